//! What inherited policies need to know of listeners and routes. Must not know the policies.

use std::sync::Arc;

use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};
use crate::translate::gateway::quic::Quic;

/// Where the requests to targets of policies come through.
pub(in crate::translate) trait Attachments {
    /// Returns the listeners of a Gateway or ListenerSet, or those that a route is attached to, each with its Gateway.
    fn listeners_of(&self, object: &ObjectRef) -> Vec<(ObjectRef, Arc<ListenerKey>)>;

    /// Returns the names of the Gateway's own listeners on the port of a listener.
    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text>;

    /// Returns whether a listener of a Gateway may have HTTP/3.
    fn quic(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Quic;

    /// Returns the names of the rules of a route.
    fn rule_names_of(&self, route: &ObjectRef) -> Vec<Text>;
}
