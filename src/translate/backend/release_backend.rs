//! ReleaseBackends as backends: the endpoints of an application in releases that share the requests by weight. Keeps
//! parsed objects from one translation to the next. A change of a weight or of a pod changes only endpoints.

mod endpoints;
mod links;
mod status;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::{EndpointSlice, Service, ServicePort};
use crate::api::pod::Pod;
use crate::api::release_backend::ReleaseBackend;
use crate::ir::tls::sha256;
use crate::ir::{Endpoints, ObjectRef, Release, Releases};
use crate::permissions::BackendKinds;
use crate::snapshot::{Change, Snapshot};
use crate::status::ReleaseBackendStatus;

use super::super::Input;
use super::super::reason::{Fault, Reason};
use super::load_balancer::{Balanced, Chosen, choose};
use super::registry::{BackendKind, Followed, PartChanges, Resolver, enabled, name_of};
use super::statuses::Users;
use super::{Found, Sources, ports};

use self::endpoints::Groups;
use self::status::Counted;

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "portcullis.dev/v1alpha1.ReleaseBackend",
    name: name_of::<ReleaseBackend>(),
    reads: &[
        name_of::<Service>(),
        name_of::<EndpointSlice>(),
        name_of::<Pod>(),
    ],
    endpoint_label: None,
    is_local: false,
    target_ports: Some(target_ports),
    load_balancer: None,
    has_status: true,
    links: links::links,
    resolver: || Box::new(ReleaseBackends::default()),
};

/// Returns the ports of the load balancer; none while it does not exist.
fn target_ports<'a>(
    snapshot: &'a Snapshot,
    kinds: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let objects = &snapshot.release_backends;
    let object = objects.get(&name.namespace, &name.name)?;
    let Chosen { result, .. } = chosen(kinds, snapshot, object);
    let found = result.and_then(|(kind, load_balancer)| (kind.find)(snapshot, &load_balancer));
    Some(found.map_or(&[], |balanced| balanced.ports))
}

fn chosen(kinds: &BackendKinds, snapshot: &Snapshot, object: &ReleaseBackend) -> Chosen {
    let kinds: Vec<_> = enabled(kinds).collect();
    let namespace = &object.metadata.namespace;
    choose(&kinds, snapshot, namespace, &object.spec.load_balancer)
}

/// The parsed ReleaseBackends of a snapshot.
#[derive(Default)]
struct ReleaseBackends(BTreeMap<Key, Entry>);

/// A parsed ReleaseBackend.
struct Entry {
    object: Arc<ReleaseBackend>,
    /// The configured load balancer, whether or not it exists.
    named: Option<ObjectRef>,
    /// Reason `Invalid` means that the object itself is at fault.
    load_balancer: Result<FoundBalancer, Fault>,
    /// Configurations of load balancers that are not used.
    unused: Vec<String>,
    counted: Counted,
}

/// A load balancer that exists.
#[derive(PartialEq, Eq)]
struct FoundBalancer {
    object: ObjectRef,
    ports: Vec<ServicePort>,
    /// The labels of its pods; `None` if its EndpointSlices name them.
    labels: Option<BTreeMap<String, String>>,
}

impl Resolver for ReleaseBackends {
    /// Returns nothing: its parts may be backends of other kinds, see [`Self::follow_parts`].
    fn follow(&mut self, _: &Input<'_>, _: &Snapshot) -> Vec<Key> {
        Vec::new()
    }

    fn follow_parts(&mut self, parts: &PartChanges<'_>) -> Followed {
        let (now, before) = (parts.input.snapshot, parts.before);
        let changes = now
            .release_backends
            .keys_changed_since(&before.release_backends);
        let mut keys: BTreeSet<Key> = changes.into_iter().collect();
        if keys.is_empty() && self.0.is_empty() {
            return Followed::default();
        }
        for object in parts.objects {
            let entries = self.in_namespace(&object.namespace);
            let dependent = entries.filter(|(_, entry)| entry.depends_on(object));
            keys.extend(dependent.map(|(key, _)| key.clone()));
        }
        let is_changed = |key: &&Key| self.read(parts.input, key);
        let objects = keys.iter().filter(is_changed).cloned().collect();
        for object in parts.endpoint_changes {
            let entries = self.in_namespace(&object.namespace);
            let dependent = entries.filter(|(_, entry)| entry.has_slices_of(object));
            keys.extend(dependent.map(|(key, _)| key.clone()));
        }
        for change in now.pods.changes_since(&before.pods) {
            let entries = self.in_namespace(&change.key.namespace);
            let affected = entries.filter(|(_, entry)| entry.is_affected(&change));
            keys.extend(affected.map(|(key, _)| key.clone()));
        }
        let sources = Sources {
            snapshot: now,
            slices: parts.slices,
            location: &parts.input.options.location,
        };
        for key in &keys {
            if let Some(entry) = self.0.get_mut(key) {
                entry.counted = entry.count(&sources);
            }
        }
        let endpoints = keys.into_iter().collect();
        Followed { objects, endpoints }
    }

    fn resolve(
        &self,
        sources: &Sources<'_>,
        name: &ObjectRef,
        port: Option<u16>,
    ) -> Result<Found, Fault> {
        let missing = || Fault::new(Reason::BackendNotFound, "does not exist");
        let key = Key::new(&name.namespace, &name.name);
        let entry = self.0.get(&key).ok_or_else(missing)?;
        let found = entry.load_balancer.as_ref().map_err(|fault| {
            let reason = match fault.reason {
                Reason::Invalid => Reason::BackendNotFound,
                reason => reason,
            };
            Fault::new(reason, format!("cannot be used: {}", fault.message))
        })?;
        ports::resolve_with(name, &found.ports, port, |port| {
            let groups = entry.groups(found, sources, port);
            Endpoints::Releases(entry.releases(&groups))
        })
    }

    fn status(&self, key: &Key, users: &Users<'_>) -> Option<ReleaseBackendStatus> {
        self.0.get(key).map(|entry| entry.status(users))
    }
}

impl ReleaseBackends {
    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Entry)> {
        let entries = self.0.range(Key::new(namespace, "")..);
        entries.take_while(move |(key, _)| key.namespace == namespace)
    }

    /// Parses an object again. Returns whether references to it must be resolved again.
    fn read(&mut self, input: &Input<'_>, key: &Key) -> bool {
        let objects = &input.snapshot.release_backends;
        let Some(object) = objects.get(&key.namespace, &key.name) else {
            return self.0.remove(key).is_some();
        };
        let entry = Entry::read(input, object);
        let former = self.0.insert(key.clone(), entry);
        let now = self.0.get(key);
        let reference = |entry: &Entry| match &entry.load_balancer {
            Ok(found) => Ok((found.object.clone(), found.ports.clone())),
            Err(fault) => Err(fault.clone()),
        };
        former.as_ref().map(reference) != now.map(reference)
    }
}

impl Entry {
    fn read(input: &Input<'_>, object: &Arc<ReleaseBackend>) -> Self {
        let snapshot = input.snapshot;
        let kinds = &input.options.permissions.backend_kinds;
        let Chosen { result, unused } = chosen(kinds, snapshot, object);
        let named = result.as_ref().ok().map(|(_, it)| it.object.clone());
        let found = result.and_then(|(kind, load_balancer)| {
            let Balanced { ports, labels } = (kind.find)(snapshot, &load_balancer)?;
            Ok(FoundBalancer {
                object: load_balancer.object,
                ports: ports.to_vec(),
                labels,
            })
        });
        Self {
            object: object.clone(),
            named,
            load_balancer: found,
            unused,
            counted: Counted::default(),
        }
    }

    /// Reports whether a backend of another kind affects the load balancer. Without a configuration, any object of the
    /// namespace may have the label.
    fn depends_on(&self, object: &ObjectRef) -> bool {
        self.object.spec.load_balancer.is_empty() || self.named.as_ref() == Some(object)
    }

    /// Reports whether the endpoints are in the EndpointSlices of an object.
    fn has_slices_of(&self, object: &ObjectRef) -> bool {
        let found = self.load_balancer.as_ref();
        found.is_ok_and(|it| it.labels.is_none() && it.object == *object)
    }

    /// Reports whether a change of a pod may change the endpoints.
    fn is_affected(&self, change: &Change<'_, Pod>) -> bool {
        let Ok(found) = &self.load_balancer else {
            return false;
        };
        let split_by = &self.object.spec.split_by;
        let release = |pod: Option<&'_ Arc<Pod>>| {
            pod.and_then(|pod| endpoints::release(pod, split_by).map(str::to_owned))
        };
        match &found.labels {
            Some(labels) => change.versions().any(|pod| endpoints::matches(pod, labels)),
            None => release(change.before) != release(change.after),
        }
    }

    /// Returns the endpoints of a port, by release.
    fn groups(&self, found: &FoundBalancer, sources: &Sources<'_>, port: &ServicePort) -> Groups {
        let split_by = &self.object.spec.split_by;
        let namespace = &self.object.metadata.namespace;
        let pods = endpoints::Pods {
            snapshot: sources.snapshot,
            namespace,
            split_by,
        };
        match &found.labels {
            Some(labels) => pods.selected(labels, port),
            None => pods.of_slices(sources.slices(&found.object), port),
        }
    }

    fn releases(&self, groups: &Groups) -> Releases {
        let spec = &self.object.spec;
        let cookie = spec.sticky.as_ref().map(|sticky| sticky.cookie.as_str());
        let cookie = cookie.filter(|name| !name.is_empty());
        let release = |share: weights::Share<'_>| Release {
            name: share.name.into(),
            weight: share.weight,
            token: cookie.map_or_else(|| "".into(), |_| self.token(share.name)),
            addresses: share.addresses().to_vec(),
        };
        let shares = weights::weigh(spec, &groups.releases).into_iter();
        Releases {
            cookie: cookie.map(Arc::from),
            releases: shares.map(release).collect(),
        }
    }

    /// Returns the cookie value of a release: opaque to clients, and equal in all replicas.
    fn token(&self, release: &str) -> Arc<str> {
        let metadata = &self.object.metadata;
        let text = format!("{}/{}/{release}", metadata.namespace, metadata.name);
        let digest = sha256(text.as_bytes()).unwrap_or_default();
        let mut token = String::new();
        for byte in &digest[..8] {
            // Writing to a String does not fail.
            let _ = write!(token, "{byte:02x}");
        }
        token.into()
    }
}

#[cfg(test)]
mod tests;
