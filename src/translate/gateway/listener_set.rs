//! ListenerSets: which of them may attach to a Gateway. Appends their listeners to the Gateway's in the order of
//! precedence. Must not know conflicts or routes.

use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::ir::ObjectRef;
use crate::ir::keyed::KeyedMap;

use super::gateway::{GatewayDraft, SetDraft};
use super::listener::ListenerDraft;
use super::selector;
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};
use crate::translate::unknown_field;

/// Maximum number of listeners that the ListenerSets of one namespace may add to a Gateway, so that one team cannot take
/// the memory and the time of the others. 256 full ListenerSets.
pub(super) const MAX_OF_NAMESPACE: usize = 16_384;

/// Appends the listeners of ListenerSets to those of their Gateway: oldest set first, then by namespace and name.
/// Rejects those beyond [`MAX_OF_NAMESPACE`].
pub(super) fn merge<'a>(
    input: &Input<'a>,
    gateway: &mut GatewayDraft<'a>,
    sets: impl Iterator<Item = &'a Arc<ListenerSet>>,
) {
    let mut merged: KeyedMap<&str, usize> = KeyedMap::default();
    for set in sets {
        let name = set.object_ref();
        let generation = set.metadata.generation;
        let fault = check(input, set, gateway);
        let first = gateway.listeners.len();
        if fault.is_none() {
            let listeners = set.spec.listeners.iter().enumerate();
            let drafts = listeners.map(|(index, spec)| {
                ListenerDraft::new(input, spec, &name, generation).check_fields(&**set, index)
            });
            gateway.listeners.extend(drafts);
            let merged = merged.entry(&set.metadata.namespace).or_default();
            for listener in &mut gateway.listeners[first..] {
                *merged += 1;
                if *merged > MAX_OF_NAMESPACE {
                    listener.exclude(too_many(&set.metadata.namespace));
                }
            }
        }
        gateway.sets.push(SetDraft {
            name,
            generation,
            listeners: first..gateway.listeners.len(),
            fault,
        });
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
    if let Some(fault) = unknown_field::of_part(gateway.object, "spec.allowedListeners") {
        let message = format!("{}: {}", gateway.name, fault.message);
        return Some(Fault::new(Reason::NotAllowed, message));
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

fn too_many(namespace: &str) -> Fault {
    let message = format!(
        "older ListenerSets of namespace {namespace} have {MAX_OF_NAMESPACE} listeners on this Gateway, which is the limit: \
         remove some of them, or attach this ListenerSet to another Gateway"
    );
    Fault::new(Reason::TooManyListeners, message)
}

/// Returns the fault of a set whose Gateway is not accepted.
pub(super) fn parent_not_accepted(gateway: &ObjectRef) -> Fault {
    let message = format!("{gateway} is not accepted: see its conditions");
    Fault::new(Reason::ParentNotAccepted, message)
}
