//! The data plane that each Gateway needs in a cluster: ports, addresses and parameters. Keeps ports through temporary
//! faults: a load balancer that is deleted may not get its address back. Must not know routes.

use std::collections::{BTreeMap, BTreeSet};

use crate::data_plane::DataPlane;
use crate::ir::ObjectRef;

use super::gateway::GatewayDraft;
use super::listener::{ListenerDraft, Protocol};

/// Returns the data planes of all Gateways whose class and parameters are valid.
pub(super) fn of_all(gateways: &[GatewayDraft<'_>]) -> BTreeMap<ObjectRef, DataPlane> {
    let of_one = |gateway: &GatewayDraft<'_>| {
        let granted = gateway.parameters.as_ref()?;
        let data_plane = DataPlane {
            ports: ports(&gateway.listeners),
            addresses: gateway.requested.clone(),
            parameters: granted.parameters.clone(),
            only_unprivileged_ports: granted.only_unprivileged_ports,
        };
        Some((gateway.name.clone(), data_plane))
    };
    gateways.iter().filter_map(of_one).collect()
}

/// Returns the ports of accepted listeners. If none is accepted, returns the ports of all listeners of served
/// protocols.
fn ports(listeners: &[ListenerDraft<'_>]) -> Vec<u16> {
    let is_served_protocol = |listener: &&ListenerDraft<'_>| {
        matches!(listener.protocol, Protocol::Http | Protocol::Https)
    };
    let all = || listeners.iter().filter(is_served_protocol);
    let port = |listener: &ListenerDraft<'_>| listener.spec.port;
    let accepted = all().filter(|listener| listener.is_accepted());
    let mut ports: BTreeSet<u16> = accepted.map(port).collect();
    if ports.is_empty() {
        ports.extend(all().map(port));
    }
    ports.into_iter().collect()
}
