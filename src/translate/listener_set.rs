//! ListenerSets: which of them may attach to which Gateway. Appends their listeners to the Gateway's in the order of
//! precedence. Must not know conflicts or routes.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::api::Resource;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use super::reason::{Fault, Reason};
use super::{Input, selector};

/// A ListenerSet that refers to a Gateway of this controller.
pub(super) struct SetDraft {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    /// Index of its Gateway.
    pub(super) gateway: usize,
    /// Range of its listeners among those of the Gateway.
    pub(super) listeners: Range<usize>,
    /// Why its listeners are not merged.
    pub(super) fault: Option<Fault>,
}

/// Appends the listeners of ListenerSets to those of their Gateways: oldest set first, then by namespace and name.
pub(super) fn merge<'a>(input: &Input<'a>, gateways: &mut [GatewayDraft<'a>]) -> Vec<SetDraft> {
    let mut sets: Vec<&'a ListenerSet> = input
        .snapshot
        .listener_sets
        .iter()
        .map(AsRef::as_ref)
        .collect();
    // The sort is stable, and `Objects` iterates by namespace and name.
    sets.sort_by_key(|set| set.metadata.creation_timestamp);
    let mut drafts = Vec::new();
    for set in sets {
        let Some(index) = gateway_of(input, set, gateways) else {
            continue;
        };
        let name = set.object_ref();
        let gateway = &mut gateways[index];
        let generation = set.metadata.generation;
        let fault = check(input, set, gateway);
        let first = gateway.listeners.len();
        if fault.is_none() {
            let listeners = set.spec.listeners.iter();
            let drafts = listeners.map(|spec| ListenerDraft::new(spec, &name, generation));
            gateway.listeners.extend(drafts);
        }
        drafts.push(SetDraft {
            name,
            generation,
            gateway: index,
            listeners: first..gateway.listeners.len(),
            fault,
        });
    }
    drafts
}

/// Returns the full name of the object that a set refers to.
pub(super) fn parent_name(set: &ListenerSet) -> ObjectRef {
    let reference = &set.spec.parent_ref;
    let namespace = reference.namespace.as_deref();
    let namespace = namespace.unwrap_or(&set.metadata.namespace);
    ObjectRef::new(
        &reference.group,
        &reference.kind,
        namespace,
        &reference.name,
    )
}

/// Returns the index of the Gateway that a set refers to, also through other sets: then nothing is attached, but its
/// controller has to say so.
fn gateway_of(
    input: &Input<'_>,
    set: &ListenerSet,
    gateways: &[GatewayDraft<'_>],
) -> Option<usize> {
    let mut set = set;
    let mut seen = BTreeSet::new();
    loop {
        let parent = parent_name(set);
        if *parent.kind == *Gateway::KIND && *parent.group == *GATEWAY_GROUP {
            let mut gateways = gateways.iter();
            return gateways.position(|gateway| gateway.name == parent);
        }
        let is_set = *parent.kind == *ListenerSet::KIND && *parent.group == *GATEWAY_GROUP;
        if !is_set || !seen.insert(parent.clone()) {
            return None;
        }
        let sets = &input.snapshot.listener_sets;
        set = sets.get(&parent.namespace, &parent.name)?;
    }
}

fn check(input: &Input<'_>, set: &ListenerSet, gateway: &GatewayDraft<'_>) -> Option<Fault> {
    let kind = &set.spec.parent_ref.kind;
    if kind != Gateway::KIND {
        let message = format!(
            "spec.parentRef names {kind} {}; a ListenerSet attaches to a Gateway: name {}",
            set.spec.parent_ref.name, gateway.name
        );
        return Some(Fault::new(Reason::Invalid, message));
    }
    let own = &gateway.object.metadata.namespace;
    let namespace = &set.metadata.namespace;
    let allowed = gateway.object.spec.allowed_listeners.as_ref();
    let from = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    if !selector::allows(input, from, "None", own, namespace) {
        return Some(Fault::new(
            Reason::NotAllowed,
            format!(
                "{} does not allow ListenerSets of namespace {namespace}; its spec.allowedListeners.namespaces has to \
                 include that namespace (by default none is allowed)",
                gateway.name
            ),
        ));
    }
    gateway
        .obstacle()
        .map(|_| parent_not_accepted(&gateway.name))
}

/// Returns the fault of a set whose Gateway is not accepted.
pub(super) fn parent_not_accepted(gateway: &ObjectRef) -> Fault {
    let message = format!("{gateway} is not accepted: see its conditions");
    Fault::new(Reason::ParentNotAccepted, message)
}
