//! Tracks which Secrets and ConfigMaps to hold in memory: those that a Gateway, a ListenerSet, a
//! backend TLS policy or an XBackend references, whether permitted or not. Owns the fetch state of
//! each. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::gateway::{Gateway, Listener, ListenerSet};
use crate::api::policy::TlsPolicy;
use crate::api::reference::{LocalObjectReference, ObjectReference, SecretRef};
use crate::api::xbackend::XBackend;
use crate::api::{Kind, Object, ObjectRef};
use crate::snapshot::Snapshot;

/// Reports whether objects of a kind are held only while referenced.
pub(super) fn is_held_by_reference(kind: &Kind) -> bool {
    kind.group.is_empty() && matches!(kind.kind, "Secret" | "ConfigMap")
}

/// Reports whether objects of a kind can reference Secrets and ConfigMaps.
pub(super) fn can_reference(kind: &Kind) -> bool {
    matches!(
        kind.kind,
        "Gateway" | "ListenerSet" | "BackendTLSPolicy" | "BackendTLSOverride" | "XBackend"
    )
}

/// Fetch state of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchState {
    /// Not known: the watch reported it before it was referenced.
    Unknown,
    /// Known from the watch, whether it exists or not.
    Watched,
    /// Known from a fetch, at this version. The watch may still report older versions.
    Fetched(Option<u64>),
}

/// A referenced object.
#[derive(Debug)]
struct Entry {
    state: FetchState,
    /// Namespaces of the objects that refer to it.
    referrers: Vec<Arc<str>>,
}

/// Objects to fetch, with the namespaces of the objects that refer to them.
pub(super) type Wanted = BTreeMap<ObjectRef, Vec<Arc<str>>>;

/// The referenced Secrets and ConfigMaps.
#[derive(Debug, Default)]
pub(super) struct Referenced {
    named: BTreeMap<ObjectRef, Entry>,
    /// The only watched namespaces; empty means all.
    namespaces: BTreeSet<String>,
}

impl Referenced {
    /// Creates an empty set. Objects outside of `namespaces` are never held.
    pub(super) fn within(namespaces: BTreeSet<String>) -> Self {
        Self {
            named: BTreeMap::new(),
            namespaces,
        }
    }

    /// Recomputes the references of a snapshot and of `others`.
    pub(super) fn update<'a>(
        &mut self,
        snapshot: &Snapshot,
        others: impl Iterator<Item = &'a Object>,
    ) {
        let mut named = named(snapshot, others);
        named.retain(|name, _| self.is_watched(name));
        self.named.retain(|name, _| named.contains_key(name));
        for (name, referrers) in named {
            let entry = self.named.entry(name).or_insert(Entry {
                state: FetchState::Unknown,
                referrers: Vec::new(),
            });
            entry.referrers = referrers;
        }
    }

    fn is_watched(&self, name: &ObjectRef) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(&*name.namespace)
    }

    /// Reports whether an object is referenced.
    pub(super) fn has(&self, name: &ObjectRef) -> bool {
        self.named.contains_key(name)
    }

    /// Reports whether an object is known, whether it exists or not, or never will be.
    pub(super) fn is_known(&self, name: &ObjectRef) -> bool {
        match self.named.get(name) {
            Some(entry) => entry.state != FetchState::Unknown,
            None => !self.is_watched(name),
        }
    }

    /// Records a watch event. Returns whether to apply it: the object is referenced and no newer
    /// version is known.
    pub(super) fn accept_watched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let Some(Entry { state, .. }) = self.named.get_mut(name) else {
            return false;
        };
        if let FetchState::Fetched(fetched) = *state
            && version.is_some()
            && version <= fetched
        {
            return false;
        }
        *state = FetchState::Watched;
        true
    }

    /// Records that a list does not contain an object. The object may be newer than the list.
    /// Returns whether it is referenced, so that a fetch decides.
    pub(super) fn record_unlisted(&mut self, name: &ObjectRef) -> bool {
        let entry = self.named.get_mut(name);
        entry
            .map(|entry| entry.state = FetchState::Unknown)
            .is_some()
    }

    /// Records a fetched object. Returns whether to apply it: the object is referenced and the
    /// watch has not reported it since.
    pub(super) fn accept_fetched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let entry = self.named.get_mut(name);
        let Some(entry) = entry.filter(|entry| entry.state == FetchState::Unknown) else {
            return false;
        };
        entry.state = FetchState::Fetched(version);
        true
    }

    /// Returns the objects to fetch.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&ObjectRef, &[Arc<str>])> {
        self.named
            .iter()
            .filter(|(_, entry)| entry.state == FetchState::Unknown)
            .map(|(name, entry)| (name, &*entry.referrers))
    }

    /// Reports whether any object has to be fetched.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanted().next().is_some()
    }
}

/// Returns all Secrets and ConfigMaps that a snapshot and other objects reference.
fn named<'a>(snapshot: &Snapshot, others: impl Iterator<Item = &'a Object>) -> Wanted {
    let mut named = Wanted::new();
    let mut add = |namespace: &str, references: &mut dyn Iterator<Item = ObjectRef>| {
        let mut shared: Option<Arc<str>> = None;
        for reference in references {
            let namespace = shared.get_or_insert_with(|| namespace.into());
            let referrers = named.entry(reference).or_default();
            if !referrers.contains(namespace) {
                referrers.push(namespace.clone());
            }
        }
    };
    for gateway in snapshot.gateways.iter() {
        add(&gateway.metadata.namespace, &mut of_gateway(gateway));
    }
    for set in snapshot.listener_sets.iter() {
        add(&set.metadata.namespace, &mut of_set(set, snapshot));
    }
    for policy in snapshot.backend_tls_policies.iter() {
        add(&policy.metadata.namespace, &mut of_policy(&**policy));
    }
    for policy in snapshot.backend_tls_overrides.iter() {
        add(&policy.metadata.namespace, &mut of_policy(&**policy));
    }
    for backend in snapshot.xbackends.iter() {
        add(&backend.metadata.namespace, &mut of_xbackend(backend));
    }
    for object in others {
        let references = references(object, snapshot, false);
        add(&object.meta().namespace, &mut references.into_iter());
    }
    named
}

/// Returns the Secrets and ConfigMaps that an object references. A new Gateway brings those of its ListenerSets.
pub(super) fn references(object: &Object, snapshot: &Snapshot, is_new: bool) -> Vec<ObjectRef> {
    match object {
        Object::Gateway(gateway) if is_new => {
            let sets = snapshot.listener_sets.iter();
            let own = (&*gateway.metadata.namespace, &*gateway.metadata.name);
            let sets = sets.filter(|set| parent(set) == own);
            let of_sets =
                sets.flat_map(|set| of_listeners(&set.spec.listeners, &set.metadata.namespace));
            of_gateway(gateway).chain(of_sets).collect()
        }
        Object::Gateway(gateway) => of_gateway(gateway).collect(),
        Object::ListenerSet(set) => of_set(set, snapshot).collect(),
        Object::BackendTlsPolicy(policy) => of_policy(&**policy).collect(),
        Object::BackendTlsOverride(policy) => of_policy(&**policy).collect(),
        Object::XBackend(backend) => of_xbackend(backend).collect(),
        _ => Vec::new(),
    }
}

fn of_set<'a>(
    set: &'a ListenerSet,
    snapshot: &Snapshot,
) -> impl Iterator<Item = ObjectRef> + use<'a> {
    let has_parent = has_parent(set, snapshot);
    let listeners = has_parent.then_some(&*set.spec.listeners);
    of_listeners(listeners.unwrap_or_default(), &set.metadata.namespace)
}

/// Reports whether the parent Gateway of a ListenerSet exists. A pod that serves one Gateway does
/// not hold the keys of others.
fn has_parent(set: &ListenerSet, snapshot: &Snapshot) -> bool {
    let (namespace, name) = parent(set);
    snapshot.gateways.get(namespace, name).is_some()
}

/// Returns namespace and name of the parent Gateway of a ListenerSet.
fn parent(set: &ListenerSet) -> (&str, &str) {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_ref();
    (namespace.unwrap_or(&set.metadata.namespace), &parent.name)
}

fn of_gateway(gateway: &Gateway) -> impl Iterator<Item = ObjectRef> {
    let namespace = &gateway.metadata.namespace;
    let tls = gateway.spec.tls.iter();
    let client = tls
        .clone()
        .filter_map(|tls| tls.backend.as_ref()?.client_certificate_ref.as_ref());
    let frontend = tls.filter_map(|tls| tls.frontend.as_ref());
    let configs = frontend.flat_map(|frontend| {
        let ports = frontend.per_port.iter().map(|port| &port.tls);
        std::iter::once(&frontend.default).chain(ports)
    });
    let authorities = configs
        .filter_map(|config| config.validation.as_ref())
        .flat_map(|validation| &validation.ca_certificate_refs)
        .filter_map(|reference| of_reference(reference, namespace));
    of_listeners(&gateway.spec.listeners, namespace)
        .chain(client.filter_map(|reference| of_secret_ref(reference, namespace)))
        .chain(authorities)
}

fn of_listeners(listeners: &[Listener], namespace: &str) -> impl Iterator<Item = ObjectRef> {
    listeners
        .iter()
        .filter_map(|listener| listener.tls.as_ref())
        .flat_map(|tls| &tls.certificate_refs)
        .filter_map(move |reference| of_secret_ref(reference, namespace))
}

fn of_policy<P: TlsPolicy>(policy: &P) -> impl Iterator<Item = ObjectRef> {
    let namespace = &policy.meta().namespace;
    of_authorities(&policy.spec().validation.ca_certificate_refs, namespace)
}

fn of_xbackend(backend: &XBackend) -> impl Iterator<Item = ObjectRef> {
    let namespace = &backend.metadata.namespace;
    let tls = backend.spec.tls.iter();
    let client = tls
        .clone()
        .filter_map(|tls| tls.client_certificate_ref.as_ref());
    let validations = tls.filter_map(|tls| tls.validation.as_ref());
    validations
        .flat_map(|validation| of_authorities(&validation.ca_certificate_refs, namespace))
        .chain(client.filter_map(|reference| of_secret_ref(reference, namespace)))
}

fn of_authorities(
    references: &[LocalObjectReference],
    namespace: &str,
) -> impl Iterator<Item = ObjectRef> {
    references
        .iter()
        .filter_map(move |LocalObjectReference { group, kind, name }| {
            held(group, kind, namespace, name)
        })
}

fn of_secret_ref(reference: &SecretRef, namespace: &str) -> Option<ObjectRef> {
    let SecretRef {
        group,
        kind,
        name,
        namespace: other,
    } = reference;
    held(group, kind, other.as_deref().unwrap_or(namespace), name)
}

fn of_reference(reference: &ObjectReference, namespace: &str) -> Option<ObjectRef> {
    let ObjectReference {
        group,
        kind,
        name,
        namespace: other,
    } = reference;
    held(group, kind, other.as_deref().unwrap_or(namespace), name)
}

fn held(group: &str, kind: &str, namespace: &str, name: &str) -> Option<ObjectRef> {
    let kind = Kind::all()
        .iter()
        .find(|known| known.group == group && known.kind == kind)?;
    is_held_by_reference(kind).then(|| kind.object_ref(namespace, name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(objects: &[Value]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for object in objects {
            let mut kinds = Kind::all().iter();
            let kind = kinds.find(|kind| object["kind"] == kind.kind).unwrap();
            snapshot.insert(kind.decode(object).unwrap());
        }
        snapshot
    }

    fn gateway(certificate: &str) -> Value {
        json!({
            "kind": "Gateway", "metadata": {"namespace": "default", "name": "edge"},
            "spec": {"gatewayClassName": "c", "listeners": [
                {"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": certificate}]}}
            ]},
        })
    }

    fn shown<'a>(names: impl IntoIterator<Item = &'a ObjectRef>) -> Vec<String> {
        names.into_iter().map(ToString::to_string).collect()
    }

    fn secret(name: &str) -> ObjectRef {
        ObjectRef::core("Secret", "default", name)
    }

    #[test]
    fn finds_references_in_every_field() {
        let authority = |kind: &str, name: &str| json!({"validation": {"caCertificateRefs": [{"group": "", "kind": kind, "name": name}]}});
        let mut edge = gateway("listener");
        edge["spec"]["tls"] = json!({
            "backend": {"clientCertificateRef": {"name": "client", "namespace": "other"}},
            "frontend": {
                "default": authority("ConfigMap", "authority"),
                "perPort": [{"port": 443, "tls": authority("Secret", "port")}, {"port": 80, "tls": authority("Service", "no")}],
            },
        });
        let set = |name: &str, parent: &str| {
            json!({
                "kind": "ListenerSet", "metadata": {"namespace": "apps", "name": name},
                "spec": {"parentRef": {"name": parent, "namespace": "default"}, "listeners": [
                    {"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": name}]}}
                ]},
            })
        };
        let policy = json!({
            "kind": "BackendTLSPolicy", "metadata": {"namespace": "default", "name": "p"},
            "spec": {"targetRefs": [], "validation": {"hostname": "h", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "backend"}]}},
        });
        let external = json!({
            "kind": "XBackend", "metadata": {"namespace": "default", "name": "x"},
            "spec": {"type": "ExternalHostname", "port": {"port": 443}, "tls": {
                "mode": "ClientAndServer",
                "clientCertificateRef": {"name": "external"},
                "validation": {"hostname": "h", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "external"}]},
            }},
        });
        let sets = [set("set", "edge"), set("foreign", "other")];
        let objects: Vec<_> = sets.into_iter().chain([edge, policy, external]).collect();
        let snapshot = snapshot(&objects);
        let expected = [
            "ConfigMap default/authority",
            "ConfigMap default/backend",
            "ConfigMap default/external",
            "Secret apps/set",
            "Secret default/external",
            "Secret default/listener",
            "Secret default/port",
            "Secret other/client",
        ];
        let all = named(&snapshot, [].iter());
        assert_eq!(shown(all.keys()), expected);
        assert_eq!(
            *all[&ObjectRef::core("Secret", "other", "client")],
            ["default".into()]
        );
        let mut referenced = Referenced::within(BTreeSet::from(["apps".to_owned()]));
        referenced.update(&snapshot, [].iter());
        assert_eq!(
            shown(referenced.wanted().map(|(name, _)| name)),
            ["Secret apps/set"]
        );
    }

    #[test]
    fn fetches_referenced_object_until_known() {
        let mut referenced = Referenced::default();
        let a = secret("a");
        assert!(!referenced.accept_watched(&a, Some(1)));
        referenced.update(&snapshot(&[gateway("a")]), [].iter());
        assert!(referenced.is_waiting() && !referenced.is_known(&a));
        assert_eq!(
            shown(referenced.wanted().map(|(name, _)| name)),
            ["Secret default/a"]
        );
        assert!(referenced.accept_watched(&a, Some(1)));
        assert!(referenced.is_known(&a));
        assert_eq!(referenced.wanted().count(), 0);
        referenced.update(&snapshot(&[gateway("b")]), [].iter());
        assert!(!referenced.has(&a));
        assert_eq!(
            shown(referenced.wanted().map(|(name, _)| name)),
            ["Secret default/b"]
        );
    }

    #[test]
    fn newest_of_watched_and_fetched_version_wins() {
        let mut referenced = Referenced::default();
        let a = secret("a");
        referenced.update(&snapshot(&[gateway("a")]), [].iter());
        assert!(referenced.accept_fetched(&a, Some(5)));
        assert!(!referenced.accept_watched(&a, Some(4)));
        assert!(!referenced.accept_watched(&a, Some(5)));
        assert!(referenced.accept_watched(&a, Some(6)));
        assert!(!referenced.accept_fetched(&a, Some(5)));
        assert!(referenced.record_unlisted(&a));
        assert!(referenced.is_waiting() && referenced.accept_fetched(&a, None));
        assert!(referenced.accept_watched(&a, Some(7)));
    }
}
