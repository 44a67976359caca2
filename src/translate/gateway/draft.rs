//! The draft of one Gateway with its ListenerSets, as far as conflicts between its own listeners. Must not know
//! certificates or other Gateways.

use std::sync::Arc;

use super::gateway::{self, GatewayDraft};
use super::{conflict, listener_set};
use crate::api::gateway::{Gateway, ListenerSet};
use crate::translate::input::Input;

/// Returns the draft of a Gateway with these ListenerSets, which are in order of precedence; `None` if its class does not
/// belong to this controller.
pub(in crate::translate) fn draft<'a>(
    input: &Input<'a>,
    gateway: &'a Gateway,
    sets: impl Iterator<Item = &'a Arc<ListenerSet>>,
) -> Option<GatewayDraft<'a>> {
    let mut draft = gateway::draft(input, gateway)?;
    listener_set::merge(input, &mut draft, sets);
    conflict::within(&mut draft);
    Some(draft)
}
