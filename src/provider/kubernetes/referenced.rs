//! Tracks which Secrets and ConfigMaps to hold in memory: those that a Gateway, a ListenerSet, a
//! backend TLS policy or an XBackend references, whether permitted or not. Owns the fetch state of
//! each. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::gateway::{Gateway, Listener, ListenerSet};
use crate::api::policy::TlsPolicy;
use crate::api::reference::{LocalObjectReference, ObjectReference, SecretRef};
use crate::api::xbackend::XBackend;
use crate::api::{Kind, ObjectRef};
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
    /// Not known, and the fetch takes too long to wait for it.
    Late,
    /// Known from the watch, whether it exists or not.
    Watched,
    /// Known from a fetch, at this version. The watch may still report older versions.
    Fetched(Option<u64>),
}

/// The referenced Secrets and ConfigMaps.
#[derive(Debug, Default)]
pub(super) struct Referenced {
    named: BTreeMap<ObjectRef, FetchState>,
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

    /// Recomputes the references.
    pub(super) fn update(&mut self, snapshot: &Snapshot) {
        let mut named = named(snapshot);
        if !self.namespaces.is_empty() {
            named.retain(|name| self.namespaces.contains(&*name.namespace));
        }
        self.named.retain(|name, _| named.contains(name));
        for name in named {
            self.named.entry(name).or_insert(FetchState::Unknown);
        }
    }

    /// Reports whether an object is referenced.
    pub(super) fn has(&self, name: &ObjectRef) -> bool {
        self.named.contains_key(name)
    }

    /// Records a watch event. Returns whether to apply it: the object is referenced and no newer
    /// version is known.
    pub(super) fn accept_watched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let Some(standing) = self.named.get_mut(name) else {
            return false;
        };
        if let FetchState::Fetched(fetched) = *standing
            && version.is_some()
            && version <= fetched
        {
            return false;
        }
        *standing = FetchState::Watched;
        true
    }

    /// Records that a list does not contain an object. The object may be newer than the list.
    pub(super) fn record_unlisted(&mut self, name: &ObjectRef) {
        if let Some(standing) = self.named.get_mut(name) {
            *standing = FetchState::Unknown;
        }
    }

    /// Records a fetched object. Returns whether to apply it: the object is referenced and the
    /// watch has not reported it since.
    pub(super) fn accept_fetched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let standing = self.named.get_mut(name);
        let Some(standing @ (FetchState::Unknown | FetchState::Late)) = standing else {
            return false;
        };
        *standing = FetchState::Fetched(version);
        true
    }

    /// Records that a fetch takes too long.
    pub(super) fn record_late(&mut self, name: &ObjectRef) {
        if let Some(standing @ FetchState::Unknown) = self.named.get_mut(name) {
            *standing = FetchState::Late;
        }
    }

    /// Returns the objects to fetch.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &ObjectRef> {
        let is_wanted = |standing| matches!(standing, FetchState::Unknown | FetchState::Late);
        self.named
            .iter()
            .filter(move |(_, standing)| is_wanted(**standing))
            .map(|(name, _)| name)
    }

    /// Reports whether waiting for a fetch is worthwhile.
    pub(super) fn is_waiting(&self) -> bool {
        self.named
            .values()
            .any(|standing| *standing == FetchState::Unknown)
    }
}

/// Returns all Secrets and ConfigMaps that a snapshot references.
fn named(snapshot: &Snapshot) -> BTreeSet<ObjectRef> {
    let gateways = snapshot
        .gateways
        .iter()
        .flat_map(|gateway| of_gateway(gateway));
    let sets = snapshot.listener_sets.iter();
    let sets = sets
        .filter(|set| has_parent(set, snapshot))
        .flat_map(|set| {
            let namespace = &set.metadata.namespace;
            of_listeners(&set.spec.listeners, namespace)
        });
    let policies = snapshot.backend_tls_policies.iter();
    let policies = policies.flat_map(|policy| of_policy(&**policy));
    let overrides = snapshot.backend_tls_overrides.iter();
    let overrides = overrides.flat_map(|policy| of_policy(&**policy));
    let policies = policies.chain(overrides);
    let backends = snapshot.xbackends.iter();
    let backends = backends.flat_map(|backend| of_xbackend(backend));
    gateways
        .chain(sets)
        .chain(policies)
        .chain(backends)
        .collect()
}

/// Reports whether the parent Gateway of a ListenerSet exists. A pod that serves one Gateway does
/// not hold the keys of others.
fn has_parent(set: &ListenerSet, snapshot: &Snapshot) -> bool {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_ref();
    let namespace = namespace.unwrap_or(&set.metadata.namespace);
    snapshot.gateways.get(namespace, &parent.name).is_some()
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
        assert_eq!(shown(&named(&snapshot)), expected);
        let mut referenced = Referenced::within(BTreeSet::from(["apps".to_owned()]));
        referenced.update(&snapshot);
        assert_eq!(shown(referenced.wanted()), ["Secret apps/set"]);
    }

    #[test]
    fn fetches_referenced_object_until_known_and_waits_until_late() {
        let mut referenced = Referenced::default();
        let a = secret("a");
        assert!(!referenced.accept_watched(&a, Some(1)));
        referenced.update(&snapshot(&[gateway("a")]));
        assert!(referenced.is_waiting());
        referenced.record_late(&a);
        assert!(!referenced.is_waiting());
        assert_eq!(shown(referenced.wanted()), ["Secret default/a"]);
        assert!(referenced.accept_watched(&a, Some(1)));
        assert_eq!(referenced.wanted().count(), 0);
        referenced.update(&snapshot(&[gateway("b")]));
        assert!(!referenced.has(&a));
        assert_eq!(shown(referenced.wanted()), ["Secret default/b"]);
    }

    #[test]
    fn newest_of_watched_and_fetched_version_wins() {
        let mut referenced = Referenced::default();
        let a = secret("a");
        referenced.update(&snapshot(&[gateway("a")]));
        assert!(referenced.accept_fetched(&a, Some(5)));
        assert!(!referenced.accept_watched(&a, Some(4)));
        assert!(!referenced.accept_watched(&a, Some(5)));
        assert!(referenced.accept_watched(&a, Some(6)));
        assert!(!referenced.accept_fetched(&a, Some(5)));
        referenced.record_unlisted(&a);
        assert!(referenced.is_waiting() && referenced.accept_fetched(&a, None));
        assert!(referenced.accept_watched(&a, Some(7)));
    }
}
