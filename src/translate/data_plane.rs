//! What each Gateway needs of its own in a cluster: ports, addresses and parameters. Decides nothing about routes, and
//! keeps what a passing fault must not take away: a load balancer that is given up may not come back with its address.

use std::collections::{BTreeMap, BTreeSet};

use crate::data_plane::DataPlane;
use crate::ir::ObjectRef;

use super::gateway::GatewayDraft;
use super::listener::{ListenerDraft, Protocol};

/// The data planes of all Gateways whose class and parameters are in order.
pub(super) fn of_all(gateways: &[GatewayDraft<'_>]) -> BTreeMap<ObjectRef, DataPlane> {
    let of_one = |gateway: &GatewayDraft<'_>| {
        let data_plane = DataPlane {
            ports: ports(&gateway.listeners),
            addresses: gateway.requested.clone(),
            parameters: gateway.parameters.clone()?,
        };
        Some((gateway.name.clone(), data_plane))
    };
    gateways.iter().filter_map(of_one).collect()
}

/// The ports of accepted listeners; of all that could be served if their faults were mended, when none is accepted.
fn ports(listeners: &[ListenerDraft<'_>]) -> Vec<u16> {
    let speaks = |listener: &&ListenerDraft<'_>| {
        matches!(listener.protocol, Protocol::Http | Protocol::Https)
    };
    let all = || listeners.iter().filter(speaks);
    let port = |listener: &ListenerDraft<'_>| listener.spec.port;
    let accepted = all().filter(|listener| listener.is_accepted());
    let mut ports: BTreeSet<u16> = accepted.map(port).collect();
    if ports.is_empty() {
        ports.extend(all().map(port));
    }
    ports.into_iter().collect()
}
