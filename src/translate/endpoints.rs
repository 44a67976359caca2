//! Endpoints of EndpointSlices: their addresses at a port of a Service, and whether they may get requests. Must not know
//! backends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api::core::{EndpointSlice, ServicePort, SliceEndpoint};
use crate::ir::Transport;

/// Returns the transport of a port; `None` if it is not one that can be forwarded.
pub(in crate::translate) fn transport(protocol: Option<&str>) -> Option<Transport> {
    match protocol {
        None | Some("" | "TCP") => Some(Transport::Tcp),
        Some("UDP") => Some(Transport::Udp),
        Some(_) => None,
    }
}

/// The requests that an endpoint may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum EndpointState {
    /// All requests.
    Ready,
    /// Requests only while no endpoint is ready: it is terminating but still serves.
    Draining,
}

/// Returns the state of an endpoint of an EndpointSlice; `None` if it may get no requests.
pub(in crate::translate) fn state(endpoint: &SliceEndpoint) -> Option<EndpointState> {
    let conditions = &endpoint.conditions;
    let state = match conditions.is_ready() {
        true => EndpointState::Ready,
        false => EndpointState::Draining,
    };
    conditions.may_get_requests().then_some(state)
}

/// Returns the endpoints of a port in any state.
pub(in crate::translate) fn addresses<'a>(
    slices: &'a [Arc<EndpointSlice>],
    port: &'a ServicePort,
) -> impl Iterator<Item = (&'a SliceEndpoint, SocketAddr)> {
    let name = port.name.as_deref().unwrap_or_default();
    let slices = slices.iter().filter(|slice| slice.address_type != "FQDN");
    slices.flat_map(move |slice| {
        let ports = slice.ports.iter().filter(move |slice| {
            slice.name.as_deref().unwrap_or_default() == name
                && transport(slice.protocol.as_deref()) == transport(port.protocol.as_deref())
        });
        let numbers = ports.filter_map(|port| port.port);
        numbers.flat_map(|number| {
            slice.endpoints.iter().filter_map(move |endpoint| {
                // The API defines the addresses of an endpoint as equivalent and recommends the first one.
                let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
                Some((endpoint, SocketAddr::new(address, number)))
            })
        })
    })
}
