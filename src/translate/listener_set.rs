//! ListenerSets: which of them may attach to which Gateway. Appends their listeners to the Gateway's in the order of
//! precedence. Must not know conflicts or routes.

use std::ops::Range;

use crate::api::Resource;
use crate::api::gateway::ListenerSet;
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
        let Some(index) = parent(set, gateways) else {
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

fn parent(set: &ListenerSet, gateways: &[GatewayDraft<'_>]) -> Option<usize> {
    let reference = &set.spec.parent_ref;
    if reference.group != GATEWAY_GROUP || reference.kind != "Gateway" {
        return None;
    }
    let namespace = reference
        .namespace
        .as_deref()
        .unwrap_or(&set.metadata.namespace);
    gateways.iter().position(|gateway| {
        *gateway.name.namespace == *namespace && *gateway.name.name == *reference.name
    })
}

fn check(input: &Input<'_>, set: &ListenerSet, gateway: &GatewayDraft<'_>) -> Option<Fault> {
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
    gateway.obstacle().map(|_| {
        let message = format!("{} is not accepted: see its conditions", gateway.name);
        Fault::new(Reason::ParentNotAccepted, message)
    })
}
