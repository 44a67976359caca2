//! The draft of one Gateway with its ListenerSets, as far as conflicts between its own listeners. Must not know
//! certificates or other Gateways.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::gateway::{self, GatewayDraft};
use super::listener::ListenerDraft;
use super::{conflict, listener_set};
use crate::api::gateway::{Gateway, ListenerSet};
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};
use crate::translate::unknown_field;

/// Returns the draft of a Gateway with these ListenerSets, which are in order of precedence; `None` if its class does not
/// belong to this controller.
pub(in crate::translate) fn draft<'a>(
    input: &Input<'a>,
    gateway: &'a Gateway,
    sets: impl Iterator<Item = &'a Arc<ListenerSet>>,
) -> Option<GatewayDraft<'a>> {
    let mut draft = gateway::draft(input, gateway)?;
    listener_set::merge(input, &mut draft, sets);
    check_clients(&mut draft);
    reject_repeated_names(&mut draft.listeners);
    conflict::within(&mut draft);
    Some(draft)
}

/// Rejects the listeners that terminate TLS if the Gateway asks something of their clients that this version does not know.
fn check_clients(gateway: &mut GatewayDraft<'_>) {
    let Some(fault) = unknown_field::of_part(gateway.object, "spec.tls") else {
        return;
    };
    let message = format!("{}: {}", gateway.name, fault.message);
    let listeners = gateway.listeners.iter_mut();
    for listener in listeners.filter(|listener| listener.terminates_tls()) {
        listener.reject(fault.reason, message.clone());
    }
}

/// Rejects listeners with the name of an earlier one of their object. An API server refuses such an object, where the name
/// is the key of the list, but a file may contain it.
fn reject_repeated_names(listeners: &mut [ListenerDraft<'_>]) {
    for own in listeners.chunk_by_mut(|one, two| one.key.origin == two.key.origin) {
        let mut names = FxHashSet::default();
        for listener in own {
            if !names.insert(listener.spec.name.as_str()) {
                let field = listener.field("name");
                let message =
                    format!("{field}: an earlier listener has this name; choose another one");
                listener.exclude(Fault::new(Reason::UnsupportedValue, message));
            }
        }
    }
}
