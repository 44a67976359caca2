//! Where requests can be sent: a backend is one port of a referenced object, with its endpoints. Must not know how the
//! proxy chooses an endpoint or connects to it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::backend_policy::BackendPolicy;
use super::picker::Choice;
use super::traffic::TrafficPolicy;
use super::{BackendId, ClientTls, UpstreamProtocol};

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
    /// Who chooses the endpoint of a request.
    #[serde(skip_serializing_if = "Choice::is_balance")]
    pub choice: Choice,
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
    /// At these addresses, and others that are not ready. Both are sorted, and no address is in both.
    Unready {
        /// Those that are ready.
        addresses: Vec<SocketAddr>,
        /// Those that are not ready: they get what a picker sends them, and nothing else.
        unready: Vec<SocketAddr>,
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
    /// Returns the configured addresses that requests are balanced over, sorted and without duplicates.
    pub fn addresses(&self) -> Cow<'_, [SocketAddr]> {
        match self {
            Self::Addresses(addresses)
            | Self::Zoned { addresses, .. }
            | Self::Unready { addresses, .. } => addresses.into(),
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
            Self::Addresses(_) | Self::Zoned { .. } | Self::Unready { .. } | Self::Releases(_) => {
                None
            }
            Self::Hostname { hostname, .. } => Some(hostname),
        }
    }

    /// Returns the releases, if the endpoints are in releases.
    pub fn releases(&self) -> Option<&Releases> {
        match self {
            Self::Addresses(_)
            | Self::Zoned { .. }
            | Self::Unready { .. }
            | Self::Hostname { .. } => None,
            Self::Releases(releases) => Some(releases),
        }
    }

    /// Returns the addresses that take precedence, because they are in the zone of the data plane.
    pub fn near(&self) -> Option<&[SocketAddr]> {
        match self {
            Self::Zoned { near, .. } => Some(near),
            Self::Addresses(_)
            | Self::Unready { .. }
            | Self::Hostname { .. }
            | Self::Releases(_) => None,
        }
    }

    /// Returns the addresses that only a picker may choose.
    pub fn unready(&self) -> &[SocketAddr] {
        match self {
            Self::Unready { unready, .. } => unready,
            Self::Addresses(_) | Self::Zoned { .. } | Self::Hostname { .. } | Self::Releases(_) => {
                &[]
            }
        }
    }

    /// Reports whether requests can reach what none could with the endpoints of `before`: the first endpoints of a backend or
    /// of a release, those that take the place of all others, those of another name, and any that a picker may choose.
    pub fn open_more_than(&self, before: &Self) -> bool {
        match (before, self) {
            (Self::Hostname { .. }, _) | (_, Self::Hostname { .. }) => before != self,
            (Self::Releases(before), Self::Releases(releases)) => {
                let mut served = releases.releases.iter().filter(|it| it.is_served());
                served.any(|release| {
                    let mut known = before.releases.iter().filter(|it| it.is_served());
                    known.all(|it| {
                        it.name != release.name || !shares(&it.addresses, &release.addresses)
                    })
                })
            }
            (Self::Releases(_), _) | (_, Self::Releases(_)) => true,
            (Self::Unready { .. }, _) | (_, Self::Unready { .. }) => {
                let known = |address| {
                    before.addresses().contains(address) || before.unready().contains(address)
                };
                let all = self.addresses();
                !all.iter().chain(self.unready()).all(known)
            }
            _ => {
                let addresses = self.addresses();
                !addresses.is_empty() && !shares(&before.addresses(), &addresses)
            }
        }
    }
}

/// Reports whether an address is in both lists, which are sorted.
fn shares(one: &[SocketAddr], other: &[SocketAddr]) -> bool {
    one.iter()
        .any(|address| other.binary_search(address).is_ok())
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

impl Release {
    /// Reports whether requests reach it: it has a weight and endpoints.
    pub fn is_served(&self) -> bool {
        self.weight > 0 && !self.addresses.is_empty()
    }
}

impl Backend {
    /// Creates a backend in plain text, to which no policy applies.
    pub fn new(id: BackendId, protocol: UpstreamProtocol, endpoints: Endpoints) -> Self {
        Self {
            id,
            protocol,
            tls: None,
            endpoints,
            slow_start: None,
            traffic: None,
            policy: None,
            fallback: None,
            choice: Choice::Balance,
        }
    }

    /// A Service `ns/one` without policies, for tests.
    #[cfg(test)]
    pub(crate) fn plain(endpoints: Endpoints) -> Self {
        let id = BackendId::new(super::ObjectRef::core("Service", "ns", "one"), 80);
        Self::new(id, UpstreamProtocol::Http1, endpoints)
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
