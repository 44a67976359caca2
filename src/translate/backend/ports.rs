//! Ports of Services and similar objects: finds the port, its protocol, and its endpoints from EndpointSlices.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api::core::{EndpointSlice, ServicePort, SliceEndpoint};
use crate::ir::sharing::Text;
use crate::ir::{Backend, BackendId, Endpoints, ObjectRef, Transport, UpstreamProtocol};

use super::super::reason::{Fault, Reason};
use super::kind::{Found, PortRef, Sources};
use super::port::{Port, PortTls};
use super::topology;

/// Finds a port of an object with these ports, and the port's endpoints. Messages continue a sentence that begins with
/// the name of the object.
pub(super) fn resolve(
    sources: &Sources<'_, '_>,
    name: &ObjectRef,
    ports: &[ServicePort],
    port: PortRef,
) -> Result<Found, Fault> {
    resolve_with(name, ports, port, |port| {
        endpoints(sources, name, port).into()
    })
}

/// Like [`resolve`], with other endpoints.
pub(super) fn resolve_with(
    name: &ObjectRef,
    ports: &[ServicePort],
    port: PortRef,
    endpoints: impl FnOnce(&ServicePort) -> Endpoints,
) -> Result<Found, Fault> {
    let port = find_port(ports, port)?;
    let (protocol, speaks_tls) = protocol(port)?;
    let backend = Backend {
        id: BackendId {
            object: name.clone(),
            port: port.port,
            tls: None,
            protocol: None,
        },
        protocol,
        tls: None,
        endpoints: endpoints(port),
        slow_start: None,
        traffic: None,
        policy: None,
        fallback: None,
    };
    Ok(Found {
        backend,
        port: Port {
            name: port.name.clone(),
            protocol,
            refuses_grpc: websocket(port),
            tls: PortTls::OfPolicies { speaks_tls },
        },
    })
}

fn find_port(ports: &[ServicePort], port: PortRef) -> Result<&ServicePort, Fault> {
    let shown: Vec<String> = ports.iter().map(|port| port.port.to_string()).collect();
    let shown = shown.join(", ");
    let Some(wanted) = port.number else {
        let message = format!("needs a port in the reference; its ports: [{shown}]");
        return Err(Fault::new(Reason::BackendNotFound, message));
    };
    let same = ports.iter().filter(|port| port.port == wanted);
    let mut same = same.peekable();
    if same.peek().is_none() {
        let message = format!("has no port {wanted}; its ports: [{shown}]");
        return Err(Fault::new(Reason::BackendNotFound, message));
    }
    same.find(|it| transport(it.protocol.as_deref()) == Some(port.transport))
        .ok_or_else(|| {
            let needed = match port.transport {
                Transport::Tcp => "TCP",
                Transport::Udp => "UDP",
            };
            let message = format!("has port {wanted}, but not for {needed}, which the route needs");
            Fault::new(Reason::UnsupportedProtocol, message)
        })
}

/// Returns the transport of a port; `None` if it is not one that can be forwarded.
pub(super) fn transport(protocol: Option<&str>) -> Option<Transport> {
    match protocol {
        None | Some("" | "TCP") => Some(Transport::Tcp),
        Some("UDP") => Some(Transport::Udp),
        Some(_) => None,
    }
}

/// Returns the protocol of a port (GEP-1911), and its declared name if that means TLS. Other names outside
/// `kubernetes.io/` have no effect.
fn protocol(port: &ServicePort) -> Result<(UpstreamProtocol, Option<Text>), Fault> {
    let name = port.app_protocol.as_deref().unwrap_or_default();
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "kubernetes.io/h2c" => Ok((UpstreamProtocol::H2c, None)),
        "kubernetes.io/ws" => Ok((UpstreamProtocol::Http1, None)),
        "kubernetes.io/wss" | "https" | "tls" | "wss" => {
            Ok((UpstreamProtocol::Http1, Some(name.into())))
        }
        other if other.starts_with("kubernetes.io/") => {
            let message = format!(
                "has appProtocol {name} on port {}, which is not supported",
                port.port
            );
            Err(Fault::new(Reason::UnsupportedProtocol, message))
        }
        _ => Ok((UpstreamProtocol::Http1, None)),
    }
}

/// Returns the declared protocol of a port, if that is WebSocket.
fn websocket(port: &ServicePort) -> Option<Text> {
    let name = port.app_protocol.as_deref()?;
    let websocket = ["kubernetes.io/ws", "kubernetes.io/wss", "ws", "wss"];
    let mut all = websocket.iter();
    let is_one = all.any(|it| name.eq_ignore_ascii_case(it));
    is_one.then(|| format!("appProtocol {name}").into())
}

/// The requests that an endpoint may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointState {
    /// All requests.
    Ready,
    /// Requests only while no endpoint is ready: it is terminating but still serves.
    Draining,
}

/// Returns the state of an endpoint of an EndpointSlice; `None` if it may get no requests.
pub(super) fn state(endpoint: &SliceEndpoint) -> Option<EndpointState> {
    let conditions = &endpoint.conditions;
    let is_ready = conditions.ready.unwrap_or(true);
    let is_serving = conditions.serving.unwrap_or(is_ready);
    match conditions.terminating.unwrap_or(false) {
        _ if is_ready => Some(EndpointState::Ready),
        true if is_serving => Some(EndpointState::Draining),
        _ => None,
    }
}

/// Returns the endpoints that may get requests: the ready ones that topology hints select, or, if none is ready, those
/// that still serve while terminating.
fn endpoints(sources: &Sources<'_, '_>, name: &ObjectRef, port: &ServicePort) -> Vec<SocketAddr> {
    let slices = sources.slices(name);
    let select = |wanted| -> Vec<_> {
        let endpoints = addresses(slices, port);
        endpoints
            .filter(|(endpoint, _)| state(endpoint) == Some(wanted))
            .collect()
    };
    let mut usable = select(EndpointState::Ready);
    if usable.is_empty() {
        usable = select(EndpointState::Draining);
    } else {
        topology::narrow(&mut usable, sources.location());
    }
    let mut usable: Vec<_> = usable.into_iter().map(|(_, address)| address).collect();
    usable.sort_unstable();
    usable.dedup();
    usable
}

/// Returns the endpoints of a port in any state.
pub(super) fn addresses<'a>(
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
