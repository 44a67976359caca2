//! Backends at a port of a Service or of what has ports like one: the port that is meant, what it speaks, and its endpoints
//! from EndpointSlices.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api::core::{EndpointSlice, ServicePort, SliceEndpoint};
use crate::ir::{Backend, BackendId, ObjectRef, UpstreamProtocol};

use super::super::reason::{Fault, Reason};
use super::{Found, Port, PortTls};

/// Finds a port of an object that has these, and the endpoints of the port. Messages continue a sentence that begins with
/// the name of the object.
pub(super) fn resolve(
    name: &ObjectRef,
    ports: &[ServicePort],
    port: Option<u16>,
    slices: &[Arc<EndpointSlice>],
) -> Result<Found, Fault> {
    let port = find_port(ports, port)?;
    let (protocol, speaks_tls) = protocol(port)?;
    let backend = Backend {
        id: BackendId {
            object: name.clone(),
            port: port.port,
            tls: None,
        },
        protocol,
        tls: None,
        endpoints: endpoints(slices, port.name.as_deref().unwrap_or_default()).into(),
    };
    Ok(Found {
        backend,
        port: Port {
            name: port.name.as_deref().map(Arc::from),
            protocol,
            tls: PortTls::OfPolicies { speaks_tls },
        },
    })
}

fn find_port(ports: &[ServicePort], port: Option<u16>) -> Result<&ServicePort, Fault> {
    let shown: Vec<String> = ports.iter().map(|port| port.port.to_string()).collect();
    let shown = shown.join(", ");
    let Some(wanted) = port else {
        let message = format!("needs a port in the reference; its ports: [{shown}]");
        return Err(Fault::new(Reason::BackendNotFound, message));
    };
    let same = ports.iter().filter(|port| port.port == wanted);
    let mut same = same.peekable();
    if same.peek().is_none() {
        let message = format!("has no port {wanted}; its ports: [{shown}]");
        return Err(Fault::new(Reason::BackendNotFound, message));
    }
    let is_tcp = |port: &&ServicePort| is_tcp(port.protocol.as_deref());
    same.find(is_tcp).ok_or_else(|| {
        let message = format!("has port {wanted}, but not for TCP, which HTTP needs");
        Fault::new(Reason::UnsupportedProtocol, message)
    })
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol.is_empty() || protocol == "TCP")
}

/// What a port speaks (GEP-1911), and the name of that if it is TLS. Names outside `kubernetes.io/` that are not TLS say
/// nothing that matters here.
fn protocol(port: &ServicePort) -> Result<(UpstreamProtocol, Option<Arc<str>>), Fault> {
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

/// Endpoints that may get traffic: the ready ones, or, when there is none, those that still serve while terminating.
fn endpoints(slices: &[Arc<EndpointSlice>], port: &str) -> Vec<SocketAddr> {
    let ready = |endpoint: &SliceEndpoint| endpoint.conditions.ready.unwrap_or(true);
    let draining = |endpoint: &SliceEndpoint| {
        let conditions = &endpoint.conditions;
        let serving = conditions.serving.or(conditions.ready).unwrap_or(true);
        serving && conditions.terminating.unwrap_or(false)
    };
    let usable = select(slices, port, ready);
    if usable.is_empty() {
        select(slices, port, draining)
    } else {
        usable
    }
}

fn select(
    slices: &[Arc<EndpointSlice>],
    port: &str,
    wanted: impl Fn(&SliceEndpoint) -> bool,
) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for slice in slices.iter().filter(|slice| slice.address_type != "FQDN") {
        let ports = slice.ports.iter().filter(|slice| {
            slice.name.as_deref().unwrap_or_default() == port && is_tcp(slice.protocol.as_deref())
        });
        for number in ports.filter_map(|port| port.port) {
            let endpoints = slice.endpoints.iter().filter(|endpoint| wanted(endpoint));
            // All addresses of an endpoint mean the same one; the API tells consumers to use the first.
            let first = endpoints.filter_map(|endpoint| endpoint.addresses.first());
            let parsed = first.filter_map(|address| address.parse::<IpAddr>().ok());
            addresses.extend(parsed.map(|address| SocketAddr::new(address, number)));
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
