//! The identity of a backend: one port of a referenced object, with everything that two uses of it must not share. Must not
//! know what a backend is.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{ObjectRef, Transport};

/// The identity of a backend. Includes everything that two uses of one object must not share. `Ord` is derived:
/// searches for all uses of an object, or of one of its ports, rely on these two fields being the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId {
    /// The referenced object, such as a Service.
    pub object: ObjectRef,
    /// The referenced port, such as a Service's.
    pub port: u16,
    /// Where its TLS settings come from; `None` where no policy applies.
    pub tls: Option<TlsUse>,
    /// The protocol that the requests require, if it is not that of the port: HTTP/2 for those of GRPCRoutes, TCP or UDP.
    pub protocol: Option<UpstreamProtocol>,
}

/// Where the TLS settings for a backend come from. Two uses of one port with different settings are two backends, so
/// that they share no connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsUse {
    /// The policy that applies, or the backend itself if its kind has TLS settings.
    pub policy: ObjectRef,
    /// The Gateway whose client certificate is presented.
    pub client: Option<ObjectRef>,
}

impl BackendId {
    /// Returns the least identity of a port, which sorts before its other uses: no policy on TLS applies, and the requests
    /// require the protocol of the port.
    pub fn new(object: ObjectRef, port: u16) -> Self {
        Self {
            object,
            port,
            tls: None,
            protocol: None,
        }
    }

    /// Returns what clients get while it has no endpoint.
    pub fn effect_of_absence(&self) -> &'static str {
        match self.protocol {
            Some(UpstreamProtocol::Tcp) => "its connections are reset",
            Some(UpstreamProtocol::Udp) => "its datagrams are dropped",
            _ => "its requests get 503",
        }
    }

    /// Returns the transport of the port: TCP 53 and UDP 53 of an object are two ports.
    pub fn transport(&self) -> Transport {
        match self.protocol {
            Some(UpstreamProtocol::Udp) => Transport::Udp,
            _ => Transport::Tcp,
        }
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.object, self.port)?;
        if let Some(tls) = &self.tls {
            if tls.policy == self.object {
                f.write_str(" in TLS")?;
            } else {
                write!(f, " by {}", tls.policy)?;
            }
            if let Some(client) = &tls.client {
                write!(f, " as {client}")?;
            }
        }
        f.write_str(match self.protocol {
            None | Some(UpstreamProtocol::Http1) => "",
            Some(UpstreamProtocol::H2c) => " for gRPC",
            Some(UpstreamProtocol::Tcp) => " for TCP",
            Some(UpstreamProtocol::Udp) => " for UDP",
        })
    }
}

impl Serialize for BackendId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum UpstreamProtocol {
    /// HTTP/1.1, upgrades included.
    Http1,
    /// HTTP/2 with prior knowledge (`kubernetes.io/h2c`), also within TLS.
    H2c,
    /// Bytes that the proxy does not look into, also within TLS.
    Tcp,
    /// Datagrams that the proxy does not look into.
    Udp,
}
