//! Where requests can be sent: a backend is one port of one referenced object, with its endpoints.
//! Knows nothing of how an endpoint is chosen or reached.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::traffic::TrafficPolicy;
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
    /// Whether HTTP/2 is spoken to a port that does not ask for it, because requests of GRPCRoutes need it.
    pub for_grpc: bool,
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
        if self.for_grpc {
            f.write_str(" for gRPC")?;
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
    /// How long the share of an endpoint grows that is added to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Duration>,
    /// The traffic policy of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Arc<TrafficPolicy>>,
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
    /// In releases that share the requests by weight.
    Releases(Releases),
}

impl Endpoints {
    /// The addresses, as far as the configuration has them, sorted and without duplicates.
    pub fn addresses(&self) -> Cow<'_, [SocketAddr]> {
        match self {
            Self::Addresses(addresses) => addresses.into(),
            Self::Hostname { .. } => (&[]).into(),
            Self::Releases(Releases { releases, .. }) => {
                let addresses = releases.iter().flat_map(|release| &release.addresses);
                let mut addresses: Vec<_> = addresses.copied().collect();
                addresses.sort_unstable();
                addresses.dedup();
                addresses.into()
            }
        }
    }

    /// The name whose addresses they are.
    pub fn hostname(&self) -> Option<&Arc<str>> {
        match self {
            Self::Addresses(_) | Self::Releases(_) => None,
            Self::Hostname { hostname, .. } => Some(hostname),
        }
    }

    /// The releases, where there are any.
    pub fn releases(&self) -> Option<&Releases> {
        match self {
            Self::Addresses(_) | Self::Hostname { .. } => None,
            Self::Releases(releases) => Some(releases),
        }
    }
}

/// Endpoints in releases.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Releases {
    /// Name of the cookie that keeps a client on its release; none means that each request is drawn anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<Arc<str>>,
    /// The releases, in order of name, those of weight 0 included.
    pub releases: Vec<Release>,
}

/// One release of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Release {
    /// Its name: the value of the label that tells releases apart.
    pub name: Arc<str>,
    /// Its share of the requests, relative to the sum of all weights. Rules for readiness and unlisted releases are
    /// applied already. 0 gets none.
    pub weight: u64,
    /// Value of the cookie: the first 16 hexadecimal digits of SHA-256 over "namespace/name/release", equal in all
    /// replicas. Empty without a cookie.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub token: Arc<str>,
    /// Its usable endpoints, sorted and without duplicates. None with a weight above 0 means 503 for its share.
    #[serde(rename = "endpoints")]
    pub addresses: Vec<SocketAddr>,
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
