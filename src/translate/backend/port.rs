//! The properties of a backend port, and their effect on requests to it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::ir::sharing::Text;
use crate::ir::tls::AlpnProtocol;
use crate::ir::{
    Backend, BackendId, ClientTls, Endpoints, ObjectRef, RouteKind, TlsUse, UpstreamProtocol,
};

use super::super::reason::{Fault, Reason};

/// The properties of a port.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) name: Option<Text>,
    pub(super) protocol: UpstreamProtocol,
    /// The declared protocol, for messages, if gRPC cannot be sent there.
    pub(super) refuses_grpc: Option<Text>,
    pub(super) tls: PortTls,
    /// Its endpoints by zone, if some but not all are in that of the data plane.
    pub(super) zoned: Option<Arc<ZonedEndpoints>>,
}

/// Endpoints by zone.
pub(super) struct ZonedEndpoints {
    /// Those that hints select.
    pub(super) hinted: Vec<SocketAddr>,
    pub(super) all: Vec<SocketAddr>,
    /// Those in the zone of the data plane.
    pub(super) near: Vec<SocketAddr>,
}

impl ZonedEndpoints {
    /// Returns the endpoints as the policy of their backend wants them.
    pub(super) fn endpoints(&self, prefers_zone: bool) -> Endpoints {
        match prefers_zone {
            true => Endpoints::Zoned {
                addresses: self.all.clone(),
                near: self.near.clone(),
            },
            false => Endpoints::Addresses(self.hinted.clone()),
        }
    }
}

/// Where the TLS settings for a port come from.
#[derive(Clone)]
pub(super) enum PortTls {
    /// Policies on TLS.
    OfPolicies {
        /// The declared protocol, if it is TLS: requests must not go there in plain text.
        speaks_tls: Option<Text>,
    },
    /// The object itself: TLS, plain text, or why no request may go there.
    Own(Result<Option<Arc<ClientTls>>, Text>),
}

/// A use of a port.
pub(super) struct BackendUse {
    /// The protocol of the requests.
    pub(super) protocol: UpstreamProtocol,
    /// The same, if it is not that of the port.
    pub(super) required: Option<UpstreamProtocol>,
    /// Where the TLS settings come from.
    pub(super) policy: Option<TlsUse>,
    pub(super) tls: Option<Arc<ClientTls>>,
}

impl BackendUse {
    /// Applies this use to a backend.
    pub(super) fn put_into(self, backend: &mut Backend) {
        backend.protocol = self.protocol;
        backend.tls = self.tls;
        backend.id.tls = self.policy;
        backend.id.protocol = self.required;
    }
}

impl Port {
    /// Returns the protocol for requests of a kind of route. gRPC needs HTTP/2, which is used unless the port declares
    /// another protocol. No HTTP is sent to ports that declare TCP. What TLSRoutes, TCPRoutes and UDPRoutes forward has the protocol of the clients.
    pub(super) fn protocol_for(&self, kind: RouteKind) -> Result<UpstreamProtocol, Fault> {
        match kind {
            RouteKind::Http | RouteKind::Grpc if self.protocol == UpstreamProtocol::Tcp => {
                let message = "has spec.protocol TCP, which HTTP cannot be sent to; use HTTP, HTTP11, HTTP2, H2C or MCP";
                return Err(Fault::new(Reason::UnsupportedProtocol, message));
            }
            RouteKind::Http => return Ok(self.protocol),
            RouteKind::Tls | RouteKind::Tcp => return Ok(UpstreamProtocol::Tcp),
            RouteKind::Udp => return Ok(UpstreamProtocol::Udp),
            RouteKind::Grpc => {}
        }
        match &self.refuses_grpc {
            None => Ok(UpstreamProtocol::H2c),
            Some(stated) => {
                let message = format!(
                    "has {stated}, but gRPC needs HTTP/2; use kubernetes.io/h2c for a Service, H2C or HTTP2 for an XBackend"
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
        }
    }

    /// Returns the protocol for a known use of the port.
    pub(super) fn protocol_of(&self, id: &BackendId) -> Result<UpstreamProtocol, Fault> {
        match id.protocol {
            None => Ok(self.protocol),
            Some(UpstreamProtocol::H2c) => self.protocol_for(RouteKind::Grpc),
            Some(required) => Ok(required),
        }
    }

    /// Returns `protocol`, if it is not that of the port.
    pub(super) fn required(&self, protocol: UpstreamProtocol) -> Option<UpstreamProtocol> {
        (protocol != self.protocol).then_some(protocol)
    }

    /// Returns the object's own TLS settings, adapted to the protocol of the requests.
    pub(super) fn own_tls(
        &self,
        tls: &Arc<ClientTls>,
        protocol: UpstreamProtocol,
    ) -> Arc<ClientTls> {
        if protocol == self.protocol {
            return tls.clone();
        }
        let alpn = match protocol {
            UpstreamProtocol::Tcp | UpstreamProtocol::Udp => Vec::new(),
            UpstreamProtocol::Http1 | UpstreamProtocol::H2c => vec![AlpnProtocol::H2],
        };
        let tls = ClientTls::clone(tls);
        Arc::new(ClientTls { alpn, ..tls })
    }

    /// Checks whether such requests may be sent to the port: plain text must not go to a port that declares TLS, unless
    /// a policy asks for it. What clients of TCP send may be TLS.
    pub(super) fn permits(
        &self,
        protocol: UpstreamProtocol,
        used: Option<&TlsUse>,
        kind: &str,
    ) -> Result<(), Fault> {
        match &self.tls {
            _ if matches!(protocol, UpstreamProtocol::Tcp | UpstreamProtocol::Udp) => Ok(()),
            PortTls::OfPolicies {
                speaks_tls: Some(name),
            } if used.is_none() => {
                let message = format!(
                    "has appProtocol {name}, and no BackendTLSPolicy says how to verify its certificate; add one whose \
                     targetRefs name this {}",
                    kind
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the use of a backend whose object has TLS settings.
pub(super) fn own_use(name: &ObjectRef) -> TlsUse {
    TlsUse {
        policy: name.clone(),
        client: None,
    }
}
