//! Ports of Services and similar objects: finds the port, its protocol, and its endpoints from EndpointSlices.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::api::core::{ServicePort, SliceEndpoint};
use crate::ir::sharing::Text;
use crate::ir::{Backend, BackendId, Endpoints, ObjectRef, Transport, UpstreamProtocol};

use super::super::reason::{Fault, Reason};
use super::kind::{Found, PortRef, Sources};
use super::port::{Port, PortTls, ZonedEndpoints};
use super::topology;
use crate::translate::endpoints::{EndpointState, addresses, state, transport};

/// Finds a port of an object with these ports, and the port's endpoints. Messages continue a sentence that begins with
/// the name of the object.
pub(super) fn resolve(
    sources: &Sources<'_, '_>,
    name: &ObjectRef,
    ports: &[ServicePort],
    port: PortRef,
) -> Result<Found, Fault> {
    let mut zoned = None;
    let mut found = resolve_with(name, ports, port, |port| {
        let (usable, by_zone) = endpoints(sources, name, port);
        zoned = by_zone;
        usable.into()
    })?;
    found.port.zoned = zoned;
    Ok(found)
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
    let id = BackendId::new(name.clone(), port.port);
    Ok(Found {
        backend: Backend::new(id, protocol, endpoints(port)),
        port: Port {
            zoned: None,
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
                Transport::Udp | Transport::Quic => "UDP",
            };
            let message = format!("has port {wanted}, but not for {needed}, which the route needs");
            Fault::new(Reason::UnsupportedProtocol, message)
        })
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

/// Returns the endpoints that may get requests: the ready ones that topology hints select, or, if none is ready, those
/// that still serve while terminating. Also returns them by zone, if that makes a difference.
fn endpoints(
    sources: &Sources<'_, '_>,
    name: &ObjectRef,
    port: &ServicePort,
) -> (Vec<SocketAddr>, Option<Arc<ZonedEndpoints>>) {
    let slices = sources.slices(name);
    let select = |wanted| -> Vec<_> {
        let endpoints = addresses(slices, port);
        endpoints
            .filter(|(endpoint, _)| state(endpoint) == Some(wanted))
            .collect()
    };
    let ready = select(EndpointState::Ready);
    let location = sources.location();
    if ready.is_empty() {
        let draining = select(EndpointState::Draining);
        let near = topology::near(&draining, location);
        let all = sorted(&draining);
        return (all.clone(), by_zone(&all, &all, &near));
    }
    let near = topology::near(&ready, location);
    // Copied only where the zones matter.
    let all = (!near.is_empty()).then(|| sorted(&ready));
    let mut hinted = ready;
    topology::narrow(&mut hinted, location);
    let hinted = sorted(&hinted);
    let zoned = all.and_then(|all| by_zone(&hinted, &all, &near));
    (hinted, zoned)
}

fn sorted(endpoints: &[(&SliceEndpoint, SocketAddr)]) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = endpoints.iter().map(|(_, address)| *address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Returns endpoints by zone, if some but not all are in that of the data plane.
fn by_zone(
    hinted: &[SocketAddr],
    all: &[SocketAddr],
    near: &[(&SliceEndpoint, SocketAddr)],
) -> Option<Arc<ZonedEndpoints>> {
    let near = sorted(near);
    let is_part = !near.is_empty() && near.len() < all.len();
    is_part.then(|| {
        Arc::new(ZonedEndpoints {
            hinted: hinted.to_vec(),
            all: all.to_vec(),
            near,
        })
    })
}
