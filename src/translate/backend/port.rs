//! What a port of a backend says of itself, and what that comes to for those who send requests there.

use std::sync::Arc;

use crate::ir::tls::AlpnProtocol;
use crate::ir::{Backend, ClientTls, ObjectRef, TlsUse, UpstreamProtocol};

use super::super::reason::{Fault, Reason};
use super::BackendKind;

/// What a port says of itself.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) name: Option<Arc<str>>,
    pub(super) protocol: UpstreamProtocol,
    /// What it says to speak, if no gRPC can be sent there.
    pub(super) refuses_grpc: Option<Arc<str>>,
    pub(super) tls: PortTls,
}

/// What decides on TLS to a port.
#[derive(Clone)]
pub(super) enum PortTls {
    /// Policies on TLS.
    OfPolicies {
        /// What the port speaks, if that is TLS: plain text must not go there.
        speaks_tls: Option<Arc<str>>,
    },
    /// The object itself: TLS, plain text, or why no request may go there.
    Own(Result<Option<Arc<ClientTls>>, Arc<str>>),
}

/// A use of a port.
pub(super) struct BackendUse {
    /// What is spoken.
    pub(super) protocol: UpstreamProtocol,
    /// Whether that is another one than the port's, for gRPC.
    pub(super) for_grpc: bool,
    /// What decides on TLS.
    pub(super) policy: Option<TlsUse>,
    pub(super) tls: Option<Arc<ClientTls>>,
}

impl BackendUse {
    /// Makes a backend one of this use.
    pub(super) fn put_into(self, backend: &mut Backend) {
        backend.protocol = self.protocol;
        backend.tls = self.tls;
        backend.id.tls = self.policy;
        backend.id.for_grpc = self.for_grpc;
    }
}

impl Port {
    /// What is spoken to it for requests of a GRPCRoute, or of another kind of route. gRPC needs HTTP/2: it is spoken where
    /// the port does not say otherwise.
    pub(super) fn protocol_for(&self, is_grpc: bool) -> Result<UpstreamProtocol, Fault> {
        match &self.refuses_grpc {
            _ if !is_grpc => Ok(self.protocol),
            None => Ok(UpstreamProtocol::H2c),
            Some(stated) => {
                let message = format!(
                    "has {stated}, and gRPC needs HTTP/2; say kubernetes.io/h2c for a Service, H2C or HTTP2 for an XBackend"
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
        }
    }

    /// TLS of its own to a port that is spoken to in this protocol.
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

    /// Whether requests may be sent to it so: plain text must not go to a port that speaks TLS, unless a policy asks for
    /// that.
    pub(super) fn permits(&self, used: Option<&TlsUse>, kind: &BackendKind) -> Result<(), Fault> {
        match &self.tls {
            PortTls::OfPolicies {
                speaks_tls: Some(name),
            } if used.is_none() => {
                let message = format!(
                    "has appProtocol {name}, and no BackendTLSPolicy says how to verify its certificate; add one whose \
                     targetRefs name this {}",
                    kind.name.1
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
            _ => Ok(()),
        }
    }
}

/// The use of a backend that says itself what TLS to it is like.
pub(super) fn own_use(name: &ObjectRef) -> TlsUse {
    TlsUse {
        policy: name.clone(),
        client: None,
    }
}
