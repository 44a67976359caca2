//! The properties of a backend port, and their effect on requests to it.

use std::sync::Arc;

use crate::ir::tls::AlpnProtocol;
use crate::ir::{Backend, ClientTls, ObjectRef, TlsUse, UpstreamProtocol};

use super::super::reason::{Fault, Reason};

/// The properties of a port.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) name: Option<Arc<str>>,
    pub(super) protocol: UpstreamProtocol,
    /// The declared protocol, for messages, if gRPC cannot be sent there.
    pub(super) refuses_grpc: Option<Arc<str>>,
    pub(super) tls: PortTls,
}

/// Where the TLS settings for a port come from.
#[derive(Clone)]
pub(super) enum PortTls {
    /// Policies on TLS.
    OfPolicies {
        /// The declared protocol, if it is TLS: requests must not go there in plain text.
        speaks_tls: Option<Arc<str>>,
    },
    /// The object itself: TLS, plain text, or why no request may go there.
    Own(Result<Option<Arc<ClientTls>>, Arc<str>>),
}

/// A use of a port.
pub(super) struct BackendUse {
    /// The protocol of the requests.
    pub(super) protocol: UpstreamProtocol,
    /// Whether gRPC changes the protocol of the port to HTTP/2.
    pub(super) for_grpc: bool,
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
        backend.id.for_grpc = self.for_grpc;
    }
}

impl Port {
    /// Returns the protocol for requests of a GRPCRoute or another kind of route. gRPC needs HTTP/2, which is used
    /// unless the port declares another protocol.
    pub(super) fn protocol_for(&self, is_grpc: bool) -> Result<UpstreamProtocol, Fault> {
        match &self.refuses_grpc {
            _ if !is_grpc => Ok(self.protocol),
            None => Ok(UpstreamProtocol::H2c),
            Some(stated) => {
                let message = format!(
                    "has {stated}, but gRPC needs HTTP/2; use kubernetes.io/h2c for a Service, H2C or HTTP2 for an XBackend"
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
        }
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
        let tls = ClientTls::clone(tls);
        Arc::new(ClientTls {
            alpn: vec![AlpnProtocol::H2],
            ..tls
        })
    }

    /// Checks whether such requests may be sent to the port: plain text must not go to a port that declares TLS, unless
    /// a policy asks for it.
    pub(super) fn permits(&self, used: Option<&TlsUse>, kind: &str) -> Result<(), Fault> {
        match &self.tls {
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
