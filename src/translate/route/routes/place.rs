//! Listeners as policies see them, and routes with what policies require there.

use std::sync::Arc;

use crate::ir::Route;
use crate::translate::gateway::attachment::{ListenerIndex, Parents};
use crate::translate::input::Input;
use crate::translate::policy::inherited::{GatewayListener, InheritedPolicies};

/// Returns a route with what policies require of its requests through a listener.
pub(super) fn on_route(
    input: &Input<'_>,
    policies: &InheritedPolicies,
    (listener, parents): (ListenerIndex, &Parents),
    route: &Arc<Route>,
) -> Arc<Route> {
    policies.on_route(input, of_listener(listener, parents), route, parents)
}

/// Returns a listener as policies see it.
pub(super) fn of_listener(index: ListenerIndex, parents: &Parents) -> GatewayListener<'_> {
    GatewayListener {
        gateway: &parents[index].consumer.gateway,
        listener: &parents[index].key,
    }
}
