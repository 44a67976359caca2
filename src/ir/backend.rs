//! Where requests can be sent: a backend is one port of one referenced object, with its endpoints.
//! Knows nothing of how an endpoint is chosen or reached.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{ClientTls, ObjectRef};

/// The identity of a backend. Everything that must not be shared between two uses of the same object is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId {
    /// The referenced object, such as a Service.
    pub object: ObjectRef,
    /// The referenced port, such as a Service's.
    pub port: u16,
    /// What decides on TLS to it; nothing where no policy applies.
    pub tls: Option<TlsUse>,
}

/// What decides on TLS to a backend. Two uses of one port with different TLS are two backends, so that they share no
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsUse {
    /// The policy that applies, or the backend itself where that says so.
    pub policy: ObjectRef,
    /// The Gateway whose client certificate is presented.
    pub client: Option<ObjectRef>,
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
        Ok(())
    }
}

impl Serialize for BackendId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How to talk to a backend and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Backend {
    /// Its identity.
    #[serde(skip)]
    pub id: BackendId,
    /// What its endpoints speak.
    pub protocol: UpstreamProtocol,
    /// TLS to its endpoints; `None` is plain text.
    pub tls: Option<Arc<ClientTls>>,
    /// Its usable endpoints; none means 503.
    pub endpoints: Endpoints,
}

/// Where the endpoints of a backend are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Endpoints {
    /// At these addresses, sorted and without duplicates.
    Addresses(Vec<SocketAddr>),
    /// At the addresses that a name has in DNS while requests are served.
    Hostname {
        /// The name, fully qualified, without a dot at its end.
        hostname: Arc<str>,
        /// The port.
        port: u16,
    },
}

impl Endpoints {
    /// The addresses, as far as the configuration has them.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Addresses(addresses) => addresses,
            Self::Hostname { .. } => &[],
        }
    }

    /// The name whose addresses they are.
    pub fn hostname(&self) -> Option<&Arc<str>> {
        match self {
            Self::Addresses(_) => None,
            Self::Hostname { hostname, .. } => Some(hostname),
        }
    }
}

impl FromIterator<SocketAddr> for Endpoints {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(addresses: I) -> Self {
        Self::Addresses(addresses.into_iter().collect())
    }
}

impl From<Vec<SocketAddr>> for Endpoints {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self::Addresses(addresses)
    }
}

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum UpstreamProtocol {
    /// HTTP/1.1, upgrades included.
    Http1,
    /// HTTP/2 with prior knowledge (`kubernetes.io/h2c`), also within TLS.
    H2c,
}
