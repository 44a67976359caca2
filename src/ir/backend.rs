//! Where requests can be sent: a backend is one port of a referenced object, with its endpoints. Must not know how the
//! proxy chooses an endpoint or connects to it.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::backend_policy::BackendPolicy;
use super::traffic::TrafficPolicy;
use super::{ClientTls, ObjectRef, Transport};

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

/// How to talk to a backend and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Backend {
    /// Its identity.
    #[serde(skip)]
    pub id: BackendId,
    /// The protocol of its endpoints.
    pub protocol: UpstreamProtocol,
    /// TLS to its endpoints; `None` is plain text.
    pub tls: Option<Arc<ClientTls>>,
    /// Its usable endpoints. Without any, requests get 503.
    pub endpoints: Endpoints,
    /// How long the share of an endpoint grows after it joins others (slow start).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Duration>,
    /// The traffic policy of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Arc<TrafficPolicy>>,
    /// How requests are sent, if a policy says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Arc<BackendPolicy>>,
    /// Where the object itself answers, for when the endpoints are out of date and none answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// Where an object answers for all of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Fallback {
    /// At the cluster IPs of a Service.
    Addresses(Vec<SocketAddr>),
    /// At the addresses that DNS has for the name of a headless Service.
    Name {
        /// The name, relative to the domain of the cluster.
        hostname: Arc<str>,
        /// The port of its pods.
        port: u16,
    },
}

/// Where the endpoints of a backend are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Endpoints {
    /// At these addresses, sorted and without duplicates.
    Addresses(Vec<SocketAddr>),
    /// At these addresses, some of which are in the zone of the data plane. Both are sorted and without duplicates.
    Zoned {
        /// All addresses.
        addresses: Vec<SocketAddr>,
        /// Those in the zone: some, but not all.
        near: Vec<SocketAddr>,
    },
    /// Addresses that DNS has for a name, resolved while requests are served.
    Hostname {
        /// The fully qualified name, without a dot at its end.
        hostname: Arc<str>,
        /// The port.
        port: u16,
    },
    /// In releases that share the requests by weight.
    Releases(Releases),
}

impl Endpoints {
    /// Returns the configured addresses, sorted and without duplicates.
    pub fn addresses(&self) -> Cow<'_, [SocketAddr]> {
        match self {
            Self::Addresses(addresses) | Self::Zoned { addresses, .. } => addresses.into(),
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

    /// Returns the name to resolve, if the addresses come from DNS.
    pub fn hostname(&self) -> Option<&Arc<str>> {
        match self {
            Self::Addresses(_) | Self::Zoned { .. } | Self::Releases(_) => None,
            Self::Hostname { hostname, .. } => Some(hostname),
        }
    }

    /// Returns the releases, if the endpoints are in releases.
    pub fn releases(&self) -> Option<&Releases> {
        match self {
            Self::Addresses(_) | Self::Zoned { .. } | Self::Hostname { .. } => None,
            Self::Releases(releases) => Some(releases),
        }
    }

    /// Returns the addresses that take precedence, because they are in the zone of the data plane.
    pub fn near(&self) -> Option<&[SocketAddr]> {
        match self {
            Self::Zoned { near, .. } => Some(near),
            Self::Addresses(_) | Self::Hostname { .. } | Self::Releases(_) => None,
        }
    }
}

/// Endpoints in releases.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Releases {
    /// Name of the cookie that keeps a client on its release; `None` draws a release for each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<Arc<str>>,
    /// The releases, in order of name. Includes those of weight 0.
    pub releases: Vec<Release>,
}

/// One release of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Release {
    /// Its name: the value of the label that tells releases apart.
    pub name: Arc<str>,
    /// Its share of the requests, relative to the sum of all weights; 0 gets none. Translation has already applied
    /// `minReady`, `belowMinReady` and `unlisted`.
    pub weight: u64,
    /// Value of the cookie: the first 16 hexadecimal digits of SHA-256 over "namespace/name/release", equal in all
    /// replicas. Empty without a cookie.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub token: Arc<str>,
    /// Its usable endpoints, sorted and without duplicates. Without any, its share of the requests gets 503.
    #[serde(rename = "endpoints")]
    pub addresses: Vec<SocketAddr>,
}

#[cfg(test)]
impl Backend {
    /// A Service `ns/one` without policies, for tests.
    pub(crate) fn plain(endpoints: Endpoints) -> Self {
        Self {
            id: BackendId {
                object: ObjectRef::core("Service", "ns", "one"),
                port: 80,
                tls: None,
                protocol: None,
            },
            protocol: UpstreamProtocol::Http1,
            tls: None,
            endpoints,
            slow_start: None,
            traffic: None,
            policy: None,
            fallback: None,
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
