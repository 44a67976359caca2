//! The Secrets and ConfigMaps that an object references, whether permitted or not. Must not know which of them are held.

use std::sync::Arc;

use crate::api::access_policy::{AccessPolicy, AccessSpec};
use crate::api::gateway::{Gateway, Listener, ListenerSet};
use crate::api::policy::TlsPolicy;
use crate::api::reference::{LocalObjectReference, ObjectReference, SecretRef};
use crate::api::route_filter::RouteFilter;
use crate::api::route_policy::RoutePolicy;
use crate::api::xbackend::XBackend;
use crate::api::{Kind, Object, ObjectRef, Resource};

/// Reports whether objects of a kind are held only while referenced.
pub(super) fn is_held_by_reference(kind: &Kind) -> bool {
    is_held(kind.group, kind.kind)
}

/// The same of an object with this name.
pub(super) fn is_held_name(name: &ObjectRef) -> bool {
    is_held(&name.group, &name.kind)
}

fn is_held(group: &str, kind: &str) -> bool {
    group.is_empty() && matches!(kind, "Secret" | "ConfigMap")
}

/// Reports whether objects of a kind can reference Secrets and ConfigMaps.
pub(super) fn can_reference(kind: &Kind) -> bool {
    matches!(
        kind.kind,
        "Gateway"
            | "ListenerSet"
            | "BackendTLSPolicy"
            | "BackendTLSOverride"
            | "XBackend"
            | "AccessPolicy"
            | "RoutePolicy"
            | "RouteFilter"
    )
}

/// The references of one version of an object. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct References {
    /// In the order of the object, with duplicates.
    pub(super) names: Arc<[ObjectRef]>,
    /// The Gateway without which they do not count: the parent of a ListenerSet. A pod that serves one Gateway does not
    /// hold the keys of others.
    pub(super) parent: Option<ObjectRef>,
}

impl References {
    /// Returns the references of an object.
    pub(super) fn of(object: &Object) -> Self {
        let mut names = Names {
            namespace: &object.meta().namespace,
            names: Vec::new(),
        };
        let mut parent = None;
        match object {
            Object::Gateway(gateway) => names.gateway(gateway),
            Object::ListenerSet(set) => {
                names.listeners(&set.spec.listeners);
                parent = Some(parent_of(set));
            }
            Object::BackendTlsPolicy(policy) => names.policy(&**policy),
            Object::BackendTlsOverride(policy) => names.policy(&**policy),
            Object::XBackend(backend) => names.xbackend(backend),
            Object::AccessPolicy(policy) => names.access_policy(policy),
            Object::RoutePolicy(policy) => names.route_policy(policy),
            Object::RouteFilter(filter) => names.route_filter(filter),
            _ => {}
        }
        Self {
            names: names.names.into(),
            parent,
        }
    }
}

/// Returns the parent Gateway of a ListenerSet.
fn parent_of(set: &ListenerSet) -> ObjectRef {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_ref();
    let namespace = namespace.unwrap_or(&set.metadata.namespace);
    ObjectRef::gateway_api(Gateway::KIND, namespace, &parent.name)
}

/// Collects the references of an object in `namespace`.
struct Names<'a> {
    namespace: &'a str,
    names: Vec<ObjectRef>,
}

impl Names<'_> {
    fn gateway(&mut self, gateway: &Gateway) {
        self.listeners(&gateway.spec.listeners);
        let Some(tls) = &gateway.spec.tls else {
            return;
        };
        let client = tls.backend.as_ref();
        let client = client.and_then(|backend| backend.client_certificate_ref.as_ref());
        client.into_iter().for_each(|it| self.secret(it));
        let Some(frontend) = &tls.frontend else {
            return;
        };
        let ports = frontend.per_port.iter().map(|port| &port.tls);
        let validations = std::iter::once(&frontend.default)
            .chain(ports)
            .filter_map(|config| config.validation.as_ref());
        for reference in validations.flat_map(|validation| &validation.ca_certificate_refs) {
            let ObjectReference {
                group,
                kind,
                name,
                namespace,
            } = reference;
            self.add(group, kind, namespace.as_deref(), name);
        }
    }

    fn listeners(&mut self, listeners: &[Listener]) {
        let tls = listeners.iter().filter_map(|it| it.tls.as_ref());
        for reference in tls.flat_map(|tls| &tls.certificate_refs) {
            self.secret(reference);
        }
    }

    fn policy<P: TlsPolicy>(&mut self, policy: &P) {
        self.authorities(&policy.spec().validation.ca_certificate_refs);
    }

    fn xbackend(&mut self, backend: &XBackend) {
        let Some(tls) = &backend.spec.tls else {
            return;
        };
        if let Some(validation) = &tls.validation {
            self.authorities(&validation.ca_certificate_refs);
        }
        if let Some(client) = &tls.client_certificate_ref {
            self.secret(client);
        }
    }

    fn access_policy(&mut self, policy: &AccessPolicy) {
        let AccessSpec {
            basic,
            api_key,
            jwt,
            oidc,
            ..
        } = &policy.spec;
        let basic = basic.iter().map(|it| &it.secret_ref);
        let api_keys = api_key.iter().flat_map(|it| &it.secret_refs);
        let providers = || jwt.iter().flat_map(|it| &it.providers);
        let shared_keys = providers().filter_map(|it| it.jwks.secret_ref.as_ref());
        let client_secret = oidc.iter().filter_map(|it| it.client_secret_ref.as_ref());
        let secrets = basic
            .chain(api_keys)
            .chain(shared_keys)
            .chain(client_secret);
        secrets.for_each(|it| self.secret(it));
        let of_keys = providers().filter_map(|it| it.jwks.config_map_ref.as_ref());
        let remotes = providers().filter_map(|it| it.jwks.remote.as_ref());
        let remotes = remotes.filter_map(|it| it.ca_config_map_ref.as_ref());
        let of_provider = oidc.iter().filter_map(|it| it.ca_config_map_ref.as_ref());
        let maps = of_keys.chain(remotes).chain(of_provider);
        maps.for_each(|it| self.add("", "ConfigMap", None, &it.name));
    }

    fn route_policy(&mut self, policy: &RoutePolicy) {
        let pages = policy.spec.error_pages.iter().flatten();
        let maps = pages.filter_map(|page| page.config_map_ref.as_ref());
        maps.for_each(|it| self.add("", "ConfigMap", None, &it.name));
    }

    fn route_filter(&mut self, filter: &RouteFilter) {
        let response = filter.spec.direct_response.as_ref();
        if let Some(map) = response.and_then(|response| response.config_map_ref.as_ref()) {
            self.add("", "ConfigMap", None, &map.name);
        }
    }

    fn authorities(&mut self, references: &[LocalObjectReference]) {
        for LocalObjectReference { group, kind, name } in references {
            self.add(group, kind, None, name);
        }
    }

    fn secret(&mut self, reference: &SecretRef) {
        let SecretRef {
            group,
            kind,
            name,
            namespace,
        } = reference;
        self.add(group, kind, namespace.as_deref(), name);
    }

    fn add(&mut self, group: &str, kind: &str, namespace: Option<&str>, name: &str) {
        if !is_held(group, kind) {
            return;
        }
        let namespace = namespace.unwrap_or(self.namespace);
        let name = ObjectRef::new(group, kind, namespace, name);
        self.names.push(name);
    }
}
