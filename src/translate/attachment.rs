//! Attachment of routes: the listeners that a parentRef selects, and the hostnames that are served there. Refuses
//! routes of kinds that are not served. Must not know rules.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::gateway::{Gateway, NamespacesFrom};
use crate::api::reference::ParentRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{Hostname, ListenerKey, ObjectRef};
use crate::status::{self, ParentStatus, RouteStatuses};

use super::backend_tls::{Consumer, Senders};
use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use super::listener_set::SetDraft;
use super::reason::{ConditionType, Fault, Reason};
use super::{Input, priority, selector};

/// The value of `defaultScope` that makes a Gateway a default one, and of `useDefaultGateways` (GEP-3793).
pub(super) const DEFAULT_SCOPE: &str = "All";

/// Reports whether a Gateway is a default Gateway.
pub(super) fn is_default(gateway: &Gateway) -> bool {
    gateway.spec.default_scope.as_deref() == Some(DEFAULT_SCOPE)
}

/// Index of a listener among those of all Gateways.
pub(super) type ListenerIndex = usize;

/// The parts of Gateways and ListenerSets that decide where a route attaches.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Parents {
    pub(super) listeners: Vec<Parent>,
    /// Listeners by the object that declares them: kind, namespace, name.
    by_object: BTreeMap<ObjectRef, Vec<ListenerIndex>>,
    /// The default Gateways.
    defaults: Vec<ObjectRef>,
}

/// The parts of a listener that decide which routes attach.
#[derive(PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) key: ListenerKey,
    /// The consumer on whose behalf its routes send requests to backends.
    pub(super) consumer: Consumer,
    port: u16,
    hostname: Hostname,
    /// Kinds of routes that may attach.
    kinds: Vec<&'static str>,
    /// Namespaces whose routes may attach.
    namespaces: Option<NamespacesFrom>,
    /// Whether the listener can be served.
    pub(super) is_served: bool,
}

/// The parts of a route that decide where it attaches.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a ObjectRef,
    pub(super) hostnames: &'a [Hostname],
}

/// The listeners that a parentRef selects, each with the hostnames that are served there.
pub(super) type Attachment = Result<Vec<(ListenerIndex, Vec<Hostname>)>, Fault>;

impl Parents {
    /// Returns the Gateways behind `wanted`, for Gateways and ListenerSets among them that have listeners.
    pub(super) fn senders(&self, wanted: &BTreeSet<&ObjectRef>) -> Senders {
        let mut senders = Senders::new();
        if wanted.is_empty() {
            return senders;
        }
        for listener in &self.listeners {
            let gateway = &listener.consumer.gateway;
            for name in [gateway, &listener.key.origin] {
                if wanted.contains(name) {
                    let known = senders.entry(name.clone()).or_default();
                    known.insert(gateway.clone());
                }
            }
        }
        senders
    }

    pub(super) fn new(gateways: &[GatewayDraft<'_>], sets: &[SetDraft]) -> Self {
        let mut listeners = Vec::new();
        let mut by_object: BTreeMap<ObjectRef, Vec<ListenerIndex>> = BTreeMap::new();
        for set in sets {
            by_object.insert(set.name.clone(), Vec::new());
        }
        for gateway in gateways {
            by_object.entry(gateway.name.clone()).or_default();
            for listener in &gateway.listeners {
                let origin = listener.key.origin.clone();
                by_object.entry(origin).or_default().push(listeners.len());
                listeners.push(Parent::new(gateway, listener));
            }
        }
        let defaults = gateways.iter().filter(|gateway| is_default(gateway.object));
        Self {
            listeners,
            by_object,
            defaults: defaults.map(|gateway| gateway.name.clone()).collect(),
        }
    }

    /// Returns the default Gateways as parentRefs. Omits those that `named`, the route's own parentRefs, select as a
    /// whole.
    pub(super) fn defaults_beside(&self, route: &ObjectRef, named: &[ParentRef]) -> Vec<ParentRef> {
        let is_named = |gateway: &ObjectRef| {
            let mut whole = named
                .iter()
                .filter(|reference| reference.section_name.is_none() && reference.port.is_none());
            whole.any(|reference| parent_name(reference, &route.namespace) == *gateway)
        };
        let defaults = self.defaults.iter().filter(|gateway| !is_named(gateway));
        let reference = |gateway: &ObjectRef| ParentRef {
            group: gateway.group.to_string(),
            kind: gateway.kind.to_string(),
            namespace: Some(gateway.namespace.to_string()),
            name: gateway.name.to_string(),
            section_name: None,
            port: None,
        };
        defaults.map(reference).collect()
    }

    /// Returns the Gateways and ListenerSets with other listeners than in `before`.
    pub(super) fn changed_since(&self, before: &Self) -> BTreeSet<ObjectRef> {
        let names: BTreeSet<_> = self
            .by_object
            .keys()
            .chain(before.by_object.keys())
            .collect();
        let names = names.into_iter();
        let is_changed = |name: &&ObjectRef| self.listeners_of(name) != before.listeners_of(name);
        names.filter(is_changed).cloned().collect()
    }

    /// Reports whether listeners of a Gateway or ListenerSet select routes by the labels of their namespaces.
    pub(super) fn select_by_label(&self, object: &ObjectRef) -> bool {
        let selects = |index: &ListenerIndex| {
            let namespaces = self.listeners[*index].namespaces.as_ref();
            namespaces.is_some_and(|it| it.from.as_deref() == Some("Selector"))
        };
        let listeners = self.by_object.get(object);
        listeners.is_some_and(|listeners| listeners.iter().any(selects))
    }

    fn listeners_of(&self, object: &ObjectRef) -> Option<Vec<&Parent>> {
        let indices = self.by_object.get(object)?.iter();
        Some(indices.map(|index| &self.listeners[*index]).collect())
    }

    /// Reports whether the default Gateways are the same as in `other`.
    pub(super) fn have_same_defaults(&self, other: &Self) -> bool {
        self.defaults == other.defaults
    }

    /// Reports whether there are default Gateways.
    pub(super) fn have_defaults(&self) -> bool {
        !self.defaults.is_empty()
    }

    /// Attaches a route to one of its parents. Returns `None` if this controller does not manage the parent.
    pub(super) fn attach(
        &self,
        input: &Input<'_>,
        route: &Candidate<'_>,
        reference: &ParentRef,
    ) -> Option<Attachment> {
        let parent = parent_name(reference, &route.name.namespace);
        let declared = self.by_object.get(&parent)?;
        let listener = |index: &ListenerIndex| &self.listeners[*index];
        let named: Vec<ListenerIndex> = declared
            .iter()
            .copied()
            .filter(|index| listener(index).is_selected_by(reference))
            .collect();
        if named.is_empty() {
            return Some(Err(no_parent(&parent, reference)));
        }
        let of_kind: Vec<ListenerIndex> = named
            .into_iter()
            .filter(|index| listener(index).admits_kind(route.name))
            .collect();
        if of_kind.is_empty() {
            let (what, field) = (
                &route.name.kind,
                "protocol and allowedRoutes.kinds of its listeners",
            );
            return Some(Err(not_allowed(&parent, &format!("{what}s"), field)));
        }
        let allowed: Vec<ListenerIndex> = of_kind
            .into_iter()
            .filter(|index| listener(index).admits_namespace(input, route.name))
            .collect();
        if allowed.is_empty() {
            let what = format!("routes of namespace {}", route.name.namespace);
            let field =
                "allowedRoutes.namespaces of its listeners (by default only their own namespace)";
            return Some(Err(not_allowed(&parent, &what, field)));
        }
        let hosts = allowed
            .iter()
            .map(|index| (*index, shared(&listener(index).hostname, route.hostnames)));
        let reached: Vec<_> = hosts.filter(|(_, hosts)| !hosts.is_empty()).collect();
        if reached.is_empty() {
            let shown: Vec<String> = allowed
                .iter()
                .map(|index| listener(index).hostname.to_string())
                .collect();
            let message = format!(
                "no hostname of spec.hostnames intersects those of the listeners of {parent} that the route may \
                 attach to: {}",
                shown.join(", ")
            );
            return Some(Err(Fault::new(Reason::NoMatchingListenerHostname, message)));
        }
        Some(Ok(reached))
    }
}

/// Returns the full name of a parent that an object in `namespace` refers to.
pub(super) fn parent_name(reference: &ParentRef, namespace: &str) -> ObjectRef {
    let namespace = reference.namespace.as_deref().unwrap_or(namespace);
    ObjectRef::new(
        &reference.group,
        &reference.kind,
        namespace,
        &reference.name,
    )
}

/// Converts a parentRef for the report.
pub(super) fn reported(reference: &ParentRef) -> status::ParentRef {
    let reference = reference.clone();
    status::ParentRef {
        group: reference.group,
        kind: reference.kind,
        namespace: reference.namespace,
        name: reference.name,
        section_name: reference.section_name,
        port: reference.port,
    }
}

/// Returns the statuses of routes of kinds that are not served.
pub(super) fn refuse_unserved(input: &Input<'_>, parents: &Parents) -> RouteStatuses {
    let mut statuses = RouteStatuses::new();
    for route in input.snapshot.unserved_routes.iter() {
        let metadata = &route.metadata;
        let name = ObjectRef::gateway_api(&route.kind, &metadata.namespace, &metadata.name);
        let hostnames: Vec<Hostname> = route
            .spec
            .hostnames
            .iter()
            .map(|name| Hostname::new(name))
            .collect();
        let candidate = Candidate {
            name: &name,
            hostnames: &hostnames,
        };
        let status = |reference: &ParentRef| {
            let fault = match parents.attach(input, &candidate, reference)? {
                Err(fault) if fault.reason == Reason::NoMatchingParent => fault,
                _ => Fault::new(
                    Reason::NotAllowedByListeners,
                    format!(
                        "{} is not served by this version; use an HTTPRoute",
                        route.kind
                    ),
                ),
            };
            Some(ParentStatus {
                parent_ref: reported(reference),
                controller_name: input.options.controller_name.clone(),
                conditions: vec![fault.against(ConditionType::Accepted, metadata.generation)],
            })
        };
        let parents: Vec<_> = route.spec.parent_refs.iter().filter_map(status).collect();
        if !parents.is_empty() {
            statuses.insert(name, parents.into());
        }
    }
    statuses
}

impl Parent {
    fn new(gateway: &GatewayDraft<'_>, listener: &ListenerDraft<'_>) -> Self {
        let identity = gateway.client_certificate.as_ref();
        let allowed = listener.spec.allowed_routes.as_ref();
        Self {
            consumer: Consumer {
                gateway: gateway.name.clone(),
                listener: listener.key.clone(),
                client_certificate: identity.map(|identity| identity.certificate.clone()),
                permits_priorities: priority::is_permitted(&gateway.object.metadata),
            },
            key: listener.key.clone(),
            port: listener.spec.port,
            hostname: listener.hostname.clone(),
            kinds: listener.kinds.clone(),
            namespaces: allowed.and_then(|allowed| allowed.namespaces.clone()),
            is_served: gateway.serves(listener),
        }
    }

    fn is_selected_by(&self, reference: &ParentRef) -> bool {
        let section = reference.section_name.as_deref();
        let section = section.filter(|name| !name.is_empty());
        section.is_none_or(|name| *name == *self.key.name)
            && reference.port.is_none_or(|port| port == self.port)
    }

    fn admits_kind(&self, route: &ObjectRef) -> bool {
        &*route.group == GATEWAY_GROUP && self.kinds.contains(&&*route.kind)
    }

    fn admits_namespace(&self, input: &Input<'_>, route: &ObjectRef) -> bool {
        let (from, own) = (self.namespaces.as_ref(), &self.key.origin.namespace);
        selector::allows(input, from, "Same", own, &route.namespace)
    }
}

/// Returns the hosts that a listener and a route share. A route without hostnames takes the listener's.
fn shared(listener: &Hostname, route: &[Hostname]) -> Vec<Hostname> {
    if route.is_empty() {
        return vec![listener.clone()];
    }
    let mut hosts: Vec<Hostname> = route
        .iter()
        .filter_map(|host| listener.intersection(host))
        .collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

fn no_parent(parent: &ObjectRef, reference: &ParentRef) -> Fault {
    let mut wanted = String::new();
    if let Some(section) = &reference.section_name {
        wanted.push_str(&format!(" named {section} (sectionName)"));
    }
    if let Some(port) = reference.port {
        wanted.push_str(&format!(" on port {port}"));
    }
    let message = format!(
        "{parent} has no listener{wanted} that a route can attach to; see its spec.listeners"
    );
    Fault::new(Reason::NoMatchingParent, message)
}

fn not_allowed(parent: &ObjectRef, what: &str, field: &str) -> Fault {
    let message =
        format!("no listener of {parent} that the parentRef selects allows {what}; see {field}");
    Fault::new(Reason::NotAllowedByListeners, message)
}
