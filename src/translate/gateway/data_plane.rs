//! The data plane that a Gateway needs in a cluster: ports, addresses and parameters. Keeps ports through temporary
//! faults: a load balancer that is deleted may not get its address back. Must not know routes.

use std::collections::BTreeSet;

use crate::ir::Transport;
use crate::provision::data_plane::DataPlane;

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use crate::translate::input::Mode;
use crate::translate::protocol::Protocol;

/// Returns the data plane of a Gateway; `None` if its class or its parameters are invalid, or if it has none.
pub(super) fn of_gateway(gateway: &GatewayDraft<'_>, mode: Mode) -> Option<DataPlane> {
    let granted = gateway.parameters.as_ref()?;
    (mode == Mode::Dedicated).then(|| DataPlane {
        ports: ports(&gateway.listeners, Transport::Tcp),
        udp_ports: ports(&gateway.listeners, Transport::Udp),
        addresses: gateway.requested.clone(),
        parameters: granted.parameters.clone(),
        only_unprivileged_ports: granted.only_unprivileged_ports,
    })
}

/// Returns the ports of accepted listeners. If none is accepted, returns the ports of all listeners of served
/// protocols.
fn ports(listeners: &[ListenerDraft<'_>], transport: Transport) -> Vec<u16> {
    let is_served = |listener: &&ListenerDraft<'_>| {
        listener.protocol != Protocol::Other && listener.protocol.transport() == transport
    };
    let all = || listeners.iter().filter(is_served);
    let port = |listener: &ListenerDraft<'_>| listener.spec.port;
    let accepted = all().filter(|listener| listener.is_accepted());
    let mut ports: BTreeSet<u16> = accepted.map(port).collect();
    if ports.is_empty() {
        ports.extend(all().map(port));
    }
    ports.into_iter().collect()
}
