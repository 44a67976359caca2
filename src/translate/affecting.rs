//! What statuses of Gateways, ListenerSets and routes say about the policies on them. Must not know policies.

use crate::ir::ObjectRef;
use crate::status::Condition;
use crate::translate::input::Input;

/// The policies on objects.
pub(super) trait Affecting {
    /// Returns the conditions that name the policies on an object, one for each kind.
    fn conditions(&self, input: &Input<'_>, object: &ObjectRef, generation: i64) -> Vec<Condition>;
}
