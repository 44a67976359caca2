//! Ports to bind and the listeners merged onto them, with the routes attached to each. Must not know sockets: the
//! result of binding comes back as a [`BindReport`].

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::client::ClientPolicies;
use super::named::named;
use super::object_map::{ObjectMap, OfObject};
use super::policy::Policies;
use super::sharing::Text;
use super::{Certificate, ObjectRef, Route, ServerTls, Transport};

/// A port to bind, on one address or on every address of both families.
///
/// Prints as `address:port`, with `/udp` or `/quic` appended unless it is TCP; `*` is every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bind {
    /// The address; `None` means all, IPv4 and IPv6.
    pub address: Option<IpAddr>,
    /// The port that listeners declare.
    pub port: u16,
    /// The transport: TCP 53 and UDP 53 are two ports. That of HTTP/3 is QUIC, beside the TCP port of its listeners.
    pub transport: Transport,
}

impl Bind {
    /// Returns a TCP port.
    pub const fn tcp(address: Option<IpAddr>, port: u16) -> Self {
        Self {
            address,
            port,
            transport: Transport::Tcp,
        }
    }

    /// Returns what is bound for QUIC beside this TCP port.
    #[must_use]
    pub const fn quic(self) -> Self {
        Self {
            transport: Transport::Quic,
            ..self
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).fmt(f)?,
            None => write!(f, "*:{}", self.port)?,
        }
        f.write_str(self.transport.suffix())
    }
}

impl Transport {
    /// Returns what follows the number of a port in texts.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Tcp => "",
            Self::Udp => "/udp",
            Self::Quic => "/quic",
        }
    }
}

impl Serialize for Bind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The result of binding each port: the bound address, or the error.
pub type BindReport = BTreeMap<Bind, Result<SocketAddr, Arc<str>>>;

/// One port of one Gateway, with all listeners that share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Port {
    /// What to bind.
    pub bind: Bind,
    /// The Gateway that it belongs to.
    pub gateway: ObjectRef,
    /// Listeners with distinct hostnames; never empty. All have the same [`Protocol::port_protocol`]: translation
    /// reports others as conflicts.
    pub listeners: Vec<Arc<Listener>>,
}

impl Port {
    /// Returns what clients send first.
    pub fn protocol(&self) -> PortProtocol {
        let first = self.listeners.first();
        first.map_or(PortProtocol::Http, |one| one.protocol.port_protocol())
    }

    /// Returns the certificates of its listeners. One that several listeners have occurs once for each.
    pub fn certificates(&self) -> impl Iterator<Item = &Arc<Certificate>> {
        let tls = self.listeners.iter().filter_map(|listener| listener.tls());
        tls.flat_map(|tls| &tls.certificates)
    }
}

named! {
    /// What clients of a port send first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum PortProtocol {
        /// HTTP/1.1, or HTTP/2 with prior knowledge.
        Http = "HTTP",
        /// TLS.
        Tls = "TLS",
        /// Anything over TCP: bytes are forwarded as they are.
        Tcp = "TCP",
        /// Anything over UDP: datagrams are forwarded as they are.
        Udp = "UDP",
    }
}

/// The protocol of a listener, with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// HTTP over TLS.
    Https(TlsTermination),
    /// TLS, forwarded in plain text.
    TlsTerminate(TlsTermination),
    /// TLS, forwarded as it is.
    TlsPassthrough,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns what clients send first.
    pub fn port_protocol(&self) -> PortProtocol {
        match self {
            Self::Http => PortProtocol::Http,
            Self::Https(_) | Self::TlsTerminate(_) | Self::TlsPassthrough => PortProtocol::Tls,
            Self::Tcp => PortProtocol::Tcp,
            Self::Udp => PortProtocol::Udp,
        }
    }

    /// Returns the protocol as Gateways name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https(_) => "HTTPS",
            Self::TlsTerminate(_) | Self::TlsPassthrough => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Returns how TLS is terminated; `None` if it is not.
    pub fn termination(&self) -> Option<&TlsTermination> {
        match self {
            Self::Https(termination) | Self::TlsTerminate(termination) => Some(termination),
            Self::Http | Self::TlsPassthrough | Self::Tcp | Self::Udp => None,
        }
    }
}

/// How a listener terminates TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TlsTermination {
    /// Certificates and settings.
    #[serde(flatten)]
    pub tls: Arc<ServerTls>,
    /// Secrets of [`Self::tls`] whose present content cannot be used. Their last good certificate is served instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_over: Vec<ObjectRef>,
}

/// The name of a listener, with the object that declares it: listener names are unique only within one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ListenerKey {
    /// The Gateway or ListenerSet that declares it.
    pub origin: ObjectRef,
    /// Its name there.
    pub name: Text,
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listener {}", self.origin, self.name)
    }
}

/// A valid listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Listener {
    /// Its name.
    pub key: ListenerKey,
    /// The hosts that it serves.
    pub hostname: Hostname,
    /// Its protocol.
    pub protocol: Protocol,
    /// What policies require of its requests, except for those of routes with policies of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Arc<Policies>>,
    /// How clients connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Arc<ClientPolicies>>,
    /// Routes attached to it.
    #[serde(serialize_with = "routes")]
    pub routes: AttachedRoutes,
}

impl Listener {
    /// Returns certificates and settings, if TLS is terminated.
    pub fn tls(&self) -> Option<&Arc<ServerTls>> {
        self.protocol.termination().map(|one| &one.tls)
    }
}

/// The routes of one listener by object, each once.
pub type AttachedRoutes = ObjectMap<Arc<AttachedRoute>>;

impl OfObject for Arc<AttachedRoute> {
    fn object(&self) -> &ObjectRef {
        &self.route.object
    }
}

fn routes<S: Serializer>(routes: &AttachedRoutes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(routes.iter())
}

/// A route on one listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AttachedRoute {
    /// The hostnames that both the route and the listener permit; never empty.
    pub hostnames: Hostnames,
    /// The route.
    pub route: Arc<Route>,
}

/// Sets of hosts, which many routes share. As small as a pointer.
pub type Hostnames = Arc<Vec<Hostname>>;

/// A set of hosts, all in lower case. Orders from the most specific to the least: exact names, then wildcards by
/// length, then every host (GEP-1 and the API's "Hostname" rules).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hostname {
    /// One name.
    Exact(Text),
    /// Every name that ends in `.` and this suffix. One or more labels precede it, so the suffix itself does not match.
    Wildcard(Text),
    /// Every host.
    Any,
}

impl Hostname {
    /// Parses a hostname as objects write it; empty means any. Does not check the syntax: see [`Self::is_valid`].
    pub fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix("*.") {
            _ if text.is_empty() => Self::Any,
            Some(suffix) => Self::Wildcard(suffix.into()),
            None => Self::Exact(text.into()),
        }
    }

    /// Reports whether a hostname is valid in an object: a name, with or without a leading `*.`. Empty is not valid.
    pub fn is_valid(text: &str) -> bool {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        name.split('.')
            .all(|label| !label.is_empty() && label.bytes().all(fits))
    }

    /// Reports whether `host`, in lower case and without port, is in the set.
    pub fn contains(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => **name == *host,
            Self::Wildcard(suffix) => is_below(host, suffix),
            Self::Any => true,
        }
    }

    /// Returns the hosts that are in both sets.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let narrower = match (self, other) {
            (Self::Any, side) | (side, Self::Any) => return Some(side.clone()),
            (Self::Exact(name), set) | (set, Self::Exact(name)) => {
                return set.contains(name).then(|| Self::Exact(name.clone()));
            }
            (Self::Wildcard(one), Self::Wildcard(two)) => {
                if one == two || is_below(one, two) {
                    one
                } else if is_below(two, one) {
                    two
                } else {
                    return None;
                }
            }
        };
        Some(Self::Wildcard(narrower.clone()))
    }

    fn rank(&self) -> (u8, Reverse<usize>, &str) {
        match self {
            Self::Exact(name) => (0, Reverse(name.len()), name),
            Self::Wildcard(suffix) => (1, Reverse(suffix.len()), suffix),
            Self::Any => (2, Reverse(0), ""),
        }
    }
}

fn is_below(host: &str, suffix: &str) -> bool {
    host.strip_suffix(suffix)
        .and_then(|rest| rest.strip_suffix('.'))
        .is_some_and(|rest| !rest.is_empty())
}

impl PartialOrd for Hostname {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Hostname {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Serialize for Hostname {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A set of hosts. Like [`Hostname`], without its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hosts<'h> {
    /// One name.
    Exact(&'h str),
    /// Every name below a suffix.
    Wildcard(&'h str),
    /// Every host.
    Any,
}

impl<'h> Hosts<'h> {
    /// Returns the hosts of a hostname.
    pub fn of(name: &'h Hostname) -> Self {
        match name {
            Hostname::Exact(name) => Self::Exact(name),
            Hostname::Wildcard(suffix) => Self::Wildcard(suffix),
            Hostname::Any => Self::Any,
        }
    }

    /// Returns the set and all its supersets, the smallest first.
    pub fn covering(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |set| match set {
            Self::Exact(text) | Self::Wildcard(text) => Some(match text.split_once('.') {
                Some((_, suffix)) => Self::Wildcard(suffix),
                None => Self::Any,
            }),
            Self::Any => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_and_udp_of_one_port_are_different_binds() {
        let tcp = Bind::tcp(None, 53);
        let udp = Bind {
            transport: Transport::Udp,
            ..tcp
        };
        assert_ne!(tcp, udp);
        assert_eq!(
            [tcp, udp].map(|bind| bind.to_string()),
            ["*:53", "*:53/udp"]
        );
        let address = Some("::1".parse().unwrap());
        assert_eq!(Bind { address, ..udp }.to_string(), "[::1]:53/udp");
    }

    #[test]
    fn wildcards_need_at_least_one_label_before_the_suffix() {
        let wildcard = Hostname::new("*.Example.com");
        assert!(wildcard.contains("a.example.com"));
        assert!(wildcard.contains("a.b.example.com"));
        assert!(!wildcard.contains("example.com"));
        assert!(!wildcard.contains("badexample.com"));
        assert!(!wildcard.contains(".example.com"));
    }

    #[test]
    fn intersections_are_the_narrower_side() {
        let host = Hostname::new;
        let cases = [
            ("", "a.com", Some("a.com")),
            ("*.a.com", "", Some("*.a.com")),
            ("*.a.com", "x.a.com", Some("x.a.com")),
            ("x.a.com", "*.a.com", Some("x.a.com")),
            ("*.a.com", "*.b.a.com", Some("*.b.a.com")),
            ("*.b.a.com", "*.a.com", Some("*.b.a.com")),
            ("*.a.com", "a.com", None),
            ("*.a.com", "*.b.com", None),
            ("a.com", "b.com", None),
        ];
        for (one, two, both) in cases {
            assert_eq!(
                host(one).intersection(&host(two)),
                both.map(host),
                "{one} and {two}"
            );
        }
    }

    #[test]
    fn sets_of_hosts_are_covered_by_wildcards_of_their_parents() {
        let covering = |text: &str| {
            let name = Hostname::new(text);
            let covering: Vec<_> = Hosts::of(&name).covering().collect();
            format!("{covering:?}")
        };
        assert_eq!(
            covering("x.a.com"),
            r#"[Exact("x.a.com"), Wildcard("a.com"), Wildcard("com"), Any]"#
        );
        assert_eq!(
            covering("*.a.com"),
            r#"[Wildcard("a.com"), Wildcard("com"), Any]"#
        );
        assert_eq!(covering(""), "[Any]");
    }

    #[test]
    fn hostnames_order_from_specific_to_general() {
        let mut hosts = ["", "*.com", "*.a.com", "b.com", "a.b.com"].map(Hostname::new);
        hosts.sort();
        assert_eq!(
            hosts.map(|host| host.to_string()),
            ["a.b.com", "b.com", "*.a.com", "*.com", "*"]
        );
    }
}
