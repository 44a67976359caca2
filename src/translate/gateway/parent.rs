//! A listener as a parent of routes: which may attach, and the hosts that it serves for them. Must not know other listeners.

use std::sync::Arc;

use crate::api::gateway::NamespacesFrom;
use crate::api::reference::ParentRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{Hostname, Hostnames, ListenerKey, ObjectRef, Transport};

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use super::{priority, selector};
use crate::translate::consumer::Consumer;
use crate::translate::input::Input;
use crate::translate::protocol::Protocol;

/// The parts of a listener that decide which routes attach.
#[derive(PartialEq, Eq)]
pub(in crate::translate) struct Parent {
    pub(in crate::translate) key: Arc<ListenerKey>,
    /// The consumer on whose behalf its routes send requests to backends.
    pub(in crate::translate) consumer: Consumer,
    pub(super) port: (u16, Transport),
    /// Whether its protocol is HTTPS.
    pub(super) is_https: bool,
    /// Its hostname alone.
    hosts: Hostnames,
    /// Kinds of routes that may attach.
    kinds: Vec<&'static str>,
    /// Namespaces whose routes may attach.
    namespaces: Option<NamespacesFrom>,
    /// Whether the listener can be served.
    pub(in crate::translate) is_served: bool,
}

impl Parent {
    pub(in crate::translate) fn new(
        gateway: &GatewayDraft<'_>,
        listener: &ListenerDraft<'_>,
    ) -> Self {
        let identity = gateway.client_certificate.as_ref();
        let allowed = listener.spec.allowed_routes.as_ref();
        Self {
            consumer: Consumer {
                gateway: gateway.name.clone(),
                listener: listener.key.clone(),
                client_certificate: identity.map(|identity| identity.certificate.clone()),
                passes_tls_through: listener.passes_tls_through(),
                permits_priorities: priority::is_permitted(&gateway.object.metadata),
            },
            key: Arc::new(listener.key.clone()),
            port: listener.port(),
            is_https: listener.protocol == Protocol::Https,
            hosts: Arc::new(vec![listener.hostname.clone()]),
            kinds: listener.kinds.clone(),
            namespaces: allowed.and_then(|allowed| allowed.namespaces.clone()),
            is_served: gateway.serves(listener),
        }
    }

    /// Reports whether both are versions of one listener.
    pub(super) fn is_listener_of(&self, other: &Self) -> bool {
        self.consumer.gateway == other.consumer.gateway && self.key == other.key
    }

    pub(super) fn is_selected_by(&self, reference: &ParentRef) -> bool {
        let section = reference.section_name.as_deref();
        let section = section.filter(|name| !name.is_empty());
        section.is_none_or(|name| *name == *self.key.name)
            && reference.port.is_none_or(|port| port == self.port.0)
    }

    /// Returns the hosts that the listener and a route share. A route without hostnames takes the listener's, which all
    /// such routes share.
    pub(super) fn hosts_of(&self, route: &[Hostname]) -> Hostnames {
        if route.is_empty() {
            return self.hosts.clone();
        }
        let shared = route
            .iter()
            .filter_map(|it| self.hostname().intersection(it));
        let mut hosts: Vec<_> = shared.collect();
        hosts.sort();
        hosts.dedup();
        Arc::new(hosts)
    }

    pub(super) fn hostname(&self) -> &Hostname {
        &self.hosts[0]
    }

    pub(super) fn admits_kind(&self, route: &ObjectRef) -> bool {
        &*route.group == GATEWAY_GROUP && self.kinds.contains(&&*route.kind)
    }

    pub(super) fn admits_namespace(&self, input: &Input<'_>, route: &ObjectRef) -> bool {
        let (from, own) = (self.namespaces.as_ref(), &self.key.origin.namespace);
        selector::allows(input, from, "Same", own, &route.namespace)
    }

    /// Reports whether it selects routes by the labels of their namespaces.
    pub(super) fn selects_by_label(&self) -> bool {
        let namespaces = self.namespaces.as_ref();
        namespaces.is_some_and(|it| it.from.as_deref() == Some("Selector"))
    }
}
