//! The statuses of Gateways and ListenerSets, composed from the faults that all steps found, and notes on what has no
//! parent. Decides only how the validity of listeners determines that of their Gateway or ListenerSet.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::ListenerSet;
use crate::api::reference::ParentRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{Bind, ObjectRef};
use crate::status::{
    Address, Condition, GatewayStatus, ListenerSetStatus, ListenerStatus, Note, RouteKind,
};

use super::attachment;
use super::attachment::DEFAULT_SCOPE;
use super::gateway::{GatewayDraft, SetDraft};
use super::listener::ListenerDraft;
use super::listener_set::parent_not_accepted;
use crate::translate::input::{Input, Mode};
use crate::translate::reason::{ConditionType, Fault, Reason, judge};

/// Returns the status of a Gateway. The number of routes of each listener is 0.
pub(super) fn of_gateway(gateway: &GatewayDraft<'_>) -> GatewayStatus {
    let attached = gateway.sets.iter().filter(|set| is_attached(set, gateway));
    let generation = gateway.object.metadata.generation;
    let listeners = gateway.own_listeners();
    let total = Validity::of(listeners, ListenerDraft::is_accepted);
    let accepted = match (&gateway.fault, &total.fault) {
        (Some(fault), _) => fault.against(ConditionType::Accepted, generation),
        (None, fault) => total.accepted(fault.as_ref(), generation),
    };
    let served = listeners.iter().any(|listener| gateway.serves(listener));
    let unprogrammed = match (&gateway.fault, &gateway.address_fault) {
        (Some(fault), _) => Some(Fault::new(Reason::Invalid, fault.message.clone())),
        (None, Some(fault)) => Some(fault.clone()),
        (None, None) if served => None,
        (None, None) => Some(Fault::new(
            Reason::Invalid,
            "none of its listeners can be served: see their conditions",
        )),
    };
    let programmed = judge(
        ConditionType::Programmed,
        Reason::Programmed,
        unprogrammed.as_ref(),
        generation,
    );
    let mut conditions = vec![accepted, programmed];
    conditions.extend(gateway.client_certificate.as_ref().map(|identity| {
        let fault = identity.fault.as_ref();
        judge(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            fault,
            generation,
        )
    }));
    conditions.extend(gateway.insecure_frontend.as_ref().map(|message| {
        let kind = ConditionType::InsecureFrontendValidationMode;
        Condition::holds(kind, Reason::ConfigurationChanged, generation).with_message(message)
    }));
    conditions.extend(attachment::is_default(gateway.object).then(|| {
        let message = format!("Gateway has default scope {DEFAULT_SCOPE}");
        let kind = ConditionType::DefaultGateway;
        Condition::holds(kind, Reason::DefaultGateway, generation).with_message(message)
    }));
    GatewayStatus {
        conditions,
        addresses: gateway
            .usable
            .iter()
            .copied()
            .map(Address::IPAddress)
            .collect(),
        attached_listener_sets: attached.count(),
        listeners: listeners
            .iter()
            .map(|listener| of_listener(listener, gateway))
            .collect(),
    }
}

/// Returns the status of a ListenerSet. Its conditions do not depend on those of the Gateway's listeners, nor the other
/// way round. They depend on faults of the Gateway itself, also while dedicated data planes keep serving its listeners.
pub(super) fn of_set(set: &SetDraft, gateway: &GatewayDraft<'_>) -> ListenerSetStatus {
    let generation = set.generation;
    let name = &gateway.name;
    if let Some(fault) = &set.fault {
        let programmed = match fault.reason {
            Reason::ParentNotAccepted => parent_not_programmed(name),
            _ => fault.clone(),
        };
        return ListenerSetStatus {
            conditions: vec![
                fault.against(ConditionType::Accepted, generation),
                programmed.against(ConditionType::Programmed, generation),
            ],
            listeners: Vec::new(),
        };
    }
    let listeners = &gateway.listeners[set.listeners.clone()];
    // Unlike in a Gateway, a listener that cannot be served is invalid here (conformance test
    // ListenerSetReferenceGrant).
    let total = Validity::of(listeners, ListenerDraft::is_servable);
    let served = listeners.iter().any(|listener| gateway.serves(listener));
    let unserved = (!served).then(|| {
        total.fault.clone().unwrap_or_else(|| {
            let message = "none of its listeners can be served: see their conditions";
            Fault::new(Reason::ListenersNotValid, message)
        })
    });
    let parent_fault = gateway.fault.as_ref().or(gateway.address_fault.as_ref());
    let unprogrammed = parent_fault
        .map(|_| parent_not_programmed(name))
        .or(unserved);
    let accepted = match &gateway.fault {
        Some(_) => parent_not_accepted(name).against(ConditionType::Accepted, generation),
        None => total.accepted(total.fault.as_ref(), generation),
    };
    ListenerSetStatus {
        conditions: vec![
            accepted,
            judge(
                ConditionType::Programmed,
                Reason::Programmed,
                unprogrammed.as_ref(),
                generation,
            ),
        ],
        listeners: listeners
            .iter()
            .map(|listener| of_listener(listener, gateway))
            .collect(),
    }
}

fn parent_not_programmed(gateway: &ObjectRef) -> Fault {
    let message = format!("{gateway} is not programmed: see its conditions");
    Fault::new(Reason::ParentNotProgrammed, message)
}

fn is_attached(set: &SetDraft, gateway: &GatewayDraft<'_>) -> bool {
    let is_accepted = set.fault.is_none() && gateway.fault.is_none();
    is_accepted
        && gateway.listeners[set.listeners.clone()]
            .iter()
            .any(ListenerDraft::is_servable)
}

/// Whether some listeners of an object are valid, and the fault of the others.
struct Validity {
    some: bool,
    fault: Option<Fault>,
}

impl Validity {
    fn of<'a>(listeners: &[ListenerDraft<'a>], is_valid: fn(&ListenerDraft<'a>) -> bool) -> Self {
        let (good, bad): (Vec<&ListenerDraft<'a>>, Vec<_>) =
            listeners.iter().partition(|listener| is_valid(listener));
        let names: Vec<&str> = bad.iter().map(|listener| &*listener.key.name).collect();
        let message = || {
            format!(
                "invalid listeners: {}; see their conditions",
                names.join(", ")
            )
        };
        Self {
            some: !good.is_empty(),
            fault: (!bad.is_empty()).then(|| Fault::new(Reason::ListenersNotValid, message())),
        }
    }

    /// Returns `Accepted`: True while one listener is valid, with a reason that reports the others.
    fn accepted(&self, fault: Option<&Fault>, generation: i64) -> Condition {
        match fault {
            Some(fault) if self.some => {
                Condition::holds(ConditionType::Accepted, fault.reason, generation)
                    .with_message(&fault.message)
            }
            fault => judge(ConditionType::Accepted, Reason::Accepted, fault, generation),
        }
    }
}

fn of_listener(listener: &ListenerDraft<'_>, gateway: &GatewayDraft<'_>) -> ListenerStatus {
    let why = || format!("{} is not served: see its conditions", gateway.name);
    let blocked = gateway.fault.is_some() || gateway.addresses.is_empty();
    let fault = blocked.then(|| Fault::new(Reason::Invalid, why()));
    let (port, transport) = listener.port();
    let bind = |address: &Option<_>| Bind {
        address: *address,
        port,
        transport,
    };
    let binds = if gateway.serves(listener) {
        gateway.addresses.iter().map(bind).collect()
    } else {
        Vec::new()
    };
    let kind = |kind: &&str| RouteKind {
        group: GATEWAY_GROUP.into(),
        kind: (*kind).into(),
    };
    ListenerStatus {
        name: listener.key.name.clone(),
        attached_routes: 0,
        supported_kinds: listener.kinds.iter().map(kind).collect(),
        conditions: Arc::new(listener.conditions(fault.as_ref())),
        port,
        hostname: listener.hostname.clone(),
        binds,
    }
}

/// Returns notes on a ListenerSet whose parent does not exist. In a folder, no other controller can have it.
pub(super) fn orphan_set(input: &Input<'_>, set: &ListenerSet) -> Vec<Note> {
    if !input.options.are_of_a_folder() {
        return Vec::new();
    }
    let (name, parent) = (set.object_ref(), &set.spec.parent_ref);
    let note = orphan(input, &name, parent, "spec.parentRef");
    note.into_iter().collect()
}

/// Returns notes on a route that requests default Gateways while there is none.
pub(in crate::translate) fn without_default(input: &Input<'_>, route: &ObjectRef) -> Vec<Note> {
    if !input.options.are_of_a_folder() {
        return Vec::new();
    }
    let message = format!(
        "spec.useDefaultGateways is {DEFAULT_SCOPE}, but no Gateway has spec.defaultScope {DEFAULT_SCOPE}: the route is \
         attached to its parentRefs only"
    );
    vec![Note {
        object: route.clone(),
        message,
    }]
}

/// Returns notes on a route whose parents do not exist. In a folder, no other controller can have them.
pub(in crate::translate) fn orphan_route(
    input: &Input<'_>,
    route: &ObjectRef,
    parents: &[ParentRef],
) -> Vec<Note> {
    if !input.options.are_of_a_folder() {
        return Vec::new();
    }
    if parents.is_empty() {
        return vec![Note {
            object: route.clone(),
            message: "spec.parentRefs is empty: nothing serves this route".to_owned(),
        }];
    }
    let note = |(index, reference): (usize, &ParentRef)| {
        orphan(
            input,
            route,
            reference,
            &format!("spec.parentRefs[{index}]"),
        )
    };
    parents.iter().enumerate().filter_map(note).collect()
}

/// Returns a note on a route all of whose parents are of other groups, such as Services of a mesh. Of a proxy that is alone,
/// no mesh reads the folder.
pub(in crate::translate) fn mesh_route(
    input: &Input<'_>,
    route: &ObjectRef,
    parents: &[ParentRef],
) -> Vec<Note> {
    let names = parents.iter();
    let names = names.map(|reference| reference.object_ref(&route.namespace));
    let names: BTreeSet<_> = names.collect();
    let is_ours = |name: &ObjectRef| &*name.group == GATEWAY_GROUP;
    if names.is_empty() || names.iter().any(is_ours) || input.options.mode != Mode::Standalone {
        return Vec::new();
    }
    // With the group, since a kind may have the name of one of ours.
    let text = |name: &ObjectRef| match name.group.is_empty() {
        true => name.to_string(),
        false => format!(
            "{}.{} {}/{}",
            name.kind, name.group, name.namespace, name.name
        ),
    };
    let names: Vec<_> = names.iter().map(text).collect();
    let message = format!(
        "spec.parentRefs names only {}: routes are served through Gateways and ListenerSets only, so that nothing serves this \
         route",
        names.join(", ")
    );
    vec![Note {
        object: route.clone(),
        message,
    }]
}

fn orphan(
    input: &Input<'_>,
    object: &ObjectRef,
    reference: &ParentRef,
    field: &str,
) -> Option<Note> {
    let parent = reference.object_ref(&object.namespace);
    let exists = match &*parent.kind {
        _ if &*parent.group != GATEWAY_GROUP => true,
        "Gateway" | "ListenerSet" => input.exists(&parent),
        _ => false,
    };
    (!exists).then(|| {
        let why = input.absence(&parent);
        Note {
            object: object.clone(),
            message: format!("{field} names {parent}, which {why}: nothing is served through it"),
        }
    })
}
