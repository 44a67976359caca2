//! TLS to backends: which policy applies to a use of a Service's port, and what it comes to. Follows policies from one
//! translation to the next. Knows nothing of endpoints or connections.

mod settings;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::core::{ConfigMap, Secret};
use crate::api::policy::BackendTlsPolicy;
use crate::api::{Key, Resource};
use crate::ir::{Certificate, ClientTls, ListenerKey, ObjectRef, TlsUse, UpstreamProtocol};
use crate::snapshot::{Objects, Snapshot};

use super::Input;
use super::reason::Fault;

use self::settings::TlsSettings;

pub(super) use self::status::{Uses, statuses, unused};

/// Who sends requests to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Consumer {
    /// The Gateway.
    pub(super) gateway: ObjectRef,
    /// The listener that the requests come through, of the Gateway or of a ListenerSet.
    pub(super) listener: ListenerKey,
    /// What the Gateway presents to backends, or why it cannot.
    pub(super) client_certificate: Option<ClientCertificate>,
}

/// A client certificate, or why there is none.
pub(super) type ClientCertificate = Result<Arc<Certificate>, Arc<str>>;

/// A policy, read.
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    name: ObjectRef,
    generation: i64,
    created: Option<jiff::Timestamp>,
    targets: Vec<Target>,
    /// Makes `Accepted` false: it cannot be applied.
    unusable: Option<Fault>,
    /// Makes `ResolvedRefs` false.
    unresolved: Option<Fault>,
    /// What it asks for; nothing when it is unusable.
    settings: Option<TlsSettings>,
    /// ConfigMaps and Secrets that it refers to.
    authorities: Vec<ObjectRef>,
}

/// A Service that a policy applies to.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    service: Key,
    /// The name of one port.
    section: Option<String>,
}

/// The policies of a snapshot.
#[derive(Default)]
pub(super) struct TlsPolicies {
    by_name: BTreeMap<ObjectRef, Arc<Policy>>,
    /// By the Services that they target, in order of precedence.
    by_service: BTreeMap<Key, Vec<Arc<Policy>>>,
}

/// What applies to a use of a backend.
pub(super) enum Decision {
    /// Plain text, since no policy applies.
    Plain,
    /// TLS.
    Tls(TlsUse, ClientTls),
    /// No request may go there, for this reason.
    Refused(String),
}

impl TlsPolicies {
    /// Follows the change from one snapshot to the next. Returns the Services to which something else may apply now.
    pub(super) fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> FxHashSet<Key> {
        let now = input.snapshot;
        let mut touched = FxHashSet::default();
        let changes = now
            .backend_tls_policies
            .changes_since(&before.backend_tls_policies);
        let mut reread: BTreeMap<ObjectRef, Option<Arc<BackendTlsPolicy>>> = changes
            .iter()
            .map(|change| (name_of(change.key), change.after.cloned()))
            .collect();
        let authorities = changed_authorities(now, before);
        if !authorities.is_empty() {
            for (name, policy) in &self.by_name {
                if policy.authorities.iter().any(|it| authorities.contains(it)) {
                    let object = &now.backend_tls_policies;
                    let object = object.get(&name.namespace, &name.name).cloned();
                    reread.entry(name.clone()).or_insert(object);
                }
            }
        }
        if reread.is_empty() {
            return touched;
        }
        for (name, object) in reread {
            let policy = object.map(|object| Arc::new(Policy::read(input, &object)));
            let former = match &policy {
                Some(policy) => self.by_name.insert(name, policy.clone()),
                None => self.by_name.remove(&name),
            };
            let versions = former.iter().chain(&policy);
            let targets = versions.flat_map(|policy| &policy.targets);
            touched.extend(targets.map(|target| target.service.clone()));
        }
        self.index();
        touched
    }

    fn index(&mut self) {
        self.by_service.clear();
        let mut policies: Vec<_> = self.by_name.values().collect();
        policies.sort_by_key(|policy| policy.age());
        for policy in policies {
            let services: BTreeSet<_> = policy.targets.iter().map(|it| &it.service).collect();
            for service in services {
                let known = self.by_service.entry(service.clone()).or_default();
                known.push(policy.clone());
            }
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether a policy targets a Service, so that what applies to it may depend on its consumer.
    pub(super) fn target(&self, service: &Key) -> bool {
        self.by_service.contains_key(service)
    }

    /// What applies to requests of a consumer for a port of this name, or of none, of a Service.
    pub(super) fn decide(
        &self,
        service: &Key,
        port: Option<&str>,
        protocol: UpstreamProtocol,
        consumer: Option<&Consumer>,
    ) -> Decision {
        let Some(policy) = self.winner(service, port) else {
            return Decision::Plain;
        };
        let Some(settings) = &policy.settings else {
            let why = policy.unusable.as_ref().map(|fault| &*fault.message);
            return Decision::Refused(format!(
                "its {} cannot be applied: {}; requests are refused rather than sent unverified",
                policy.name,
                why.unwrap_or_default()
            ));
        };
        let client = consumer.and_then(|it| Some((it, it.client_certificate.as_ref()?)));
        let (client, certificate) = match client {
            None => (None, None),
            Some((consumer, Ok(certificate))) => {
                (Some(consumer.gateway.clone()), Some(certificate.clone()))
            }
            Some((consumer, Err(why))) => {
                return Decision::Refused(format!(
                    "{} has no client certificate to present: {why}",
                    consumer.gateway
                ));
            }
        };
        let policy = policy.name.clone();
        let tls = settings.with(protocol, certificate);
        Decision::Tls(TlsUse { policy, client }, tls)
    }

    /// The TLS of a use that is known, as its policy has it now; `None` when the policy does not give any.
    pub(super) fn renew(
        &self,
        known: &TlsUse,
        certificate: Option<Arc<Certificate>>,
        protocol: UpstreamProtocol,
    ) -> Option<ClientTls> {
        let settings = self.by_name.get(&known.policy)?.settings.as_ref()?;
        Some(settings.with(protocol, certificate))
    }

    /// The policy that applies: exactly one does, and a broken one is not passed over.
    fn winner(&self, service: &Key, port: Option<&str>) -> Option<&Arc<Policy>> {
        let policies = self.by_service.get(service)?.iter();
        let rank = |policy: &Policy| {
            let targets = policy.targets.iter().filter(|it| it.service == *service);
            targets.filter_map(|target| target.rank(port)).min()
        };
        // They are in order of age, and of equal ones the first is taken.
        let ranked = policies.filter_map(|policy| Some((rank(policy)?, policy)));
        ranked
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, policy)| policy)
    }
}

impl Policy {
    fn read(input: &Input<'_>, object: &BackendTlsPolicy) -> Self {
        let name = object.object_ref();
        let namespace = &object.metadata.namespace;
        let services = object.spec.target_refs.iter().filter(|it| it.is_service());
        let targets = services.map(|target| Target {
            service: Key::new(namespace, &target.name),
            section: target.section_name.clone().filter(|name| !name.is_empty()),
        });
        let targets = targets.collect();
        let read = settings::read(input, namespace, &object.spec);
        Self {
            name,
            generation: object.metadata.generation,
            created: object.metadata.creation_timestamp,
            targets,
            unusable: read.settings.as_ref().err().cloned(),
            unresolved: read.unresolved,
            settings: read.settings.ok(),
            authorities: read.references,
        }
    }

    /// Of two equal policies the older one applies, and then the one whose name comes first.
    fn age(&self) -> (Option<jiff::Timestamp>, &ObjectRef) {
        (self.created, &self.name)
    }
}

impl Target {
    /// How well the target fits a port of this name, less for better; `None` when it does not.
    fn rank(&self, port: Option<&str>) -> Option<u8> {
        match &self.section {
            Some(section) => (port == Some(section)).then_some(0),
            None => Some(1),
        }
    }
}

fn name_of(key: &Key) -> ObjectRef {
    let (group, kind) = (BackendTlsPolicy::GROUP, BackendTlsPolicy::KIND);
    ObjectRef::new(group, kind, &key.namespace, &key.name)
}

/// ConfigMaps and Secrets that are not what they were.
fn changed_authorities(now: &Snapshot, before: &Snapshot) -> FxHashSet<ObjectRef> {
    let mut changed = FxHashSet::default();
    add_changed::<ConfigMap>(&now.config_maps, &before.config_maps, &mut changed);
    add_changed::<Secret>(&now.secrets, &before.secrets, &mut changed);
    changed
}

fn add_changed<T: Resource + Eq>(
    now: &Objects<T>,
    before: &Objects<T>,
    changed: &mut FxHashSet<ObjectRef>,
) {
    let changes = now.changes_since(before);
    let names = changes.iter().map(|change| {
        let Key { namespace, name } = change.key;
        ObjectRef::new(T::GROUP, T::KIND, namespace, name)
    });
    changed.extend(names);
}
