//! How clients connect to a listener, after all policies on it are merged. Must not know connections.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use serde::Serialize;

use super::ObjectRef;
use super::cidr::CidrSet;
use super::http2::Http2Windows;
use super::named::named;
use super::policy::Enforced;
use super::serialized;
use super::tls::{AlpnProtocol, ServerTls, TlsVersion};
use super::tls_parameters::{CipherSuite, Group};

/// How clients connect to a listener. Apart from `address`, `tls` and `path`, and from `http3` of
/// listeners that are not HTTPS, all listeners of a port have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ClientPolicies {
    /// Where the address of a client comes from. If broken, its IP rules and limits cannot be decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Enforced<ClientAddress>>,
    /// TLS of a listener that terminates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Arc<TlsSettings>>,
    /// How paths are normalized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Arc<PathSettings>>,
    /// The PROXY protocol in front of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<Arc<ProxyProtocol>>,
    /// HTTP/3. Only HTTPS listeners have it, and none beside the PROXY protocol or a UDP listener of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http3: Option<Arc<Http3>>,
    /// Why a policy on the PROXY protocol is broken: IP rules and limits cannot be decided, except those on datagrams. What is
    /// in `proxy_protocol` is of a more general policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_protocol: Option<Arc<str>>,
    /// Settings of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Arc<ConnectionSettings>>,
}

/// Where the address of a client comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClientAddress {
    /// The source of the address.
    pub source: AddressSource,
    /// The policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ObjectRef>,
}

/// A source of the address of a client. Where it does not tell an address, that is the one of the connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum AddressSource {
    /// The connection.
    Connection,
    /// This element of `X-Forwarded-For` from the right, 1 or more.
    Hops(usize),
    /// The last element of `X-Forwarded-For` that is no proxy, on connections of proxies.
    Proxies(CidrSet),
    /// The only value of a header, on connections of proxies.
    Header {
        /// Its name.
        #[serde(serialize_with = "serialized::name")]
        name: HeaderName,
        /// The proxies.
        trusted: CidrSet,
    },
}

/// TLS of a listener. What is not set is as the listener says it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TlsSettings {
    /// The oldest protocol version to accept, if the listener does not ask for a newer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_version: Option<TlsVersion>,
    /// The cipher suites to offer, at least one of each version to accept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suites: Vec<CipherSuite>,
    /// Groups for key exchange.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Protocols of HTTP to offer by ALPN, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<AlpnProtocol>,
    /// The policy.
    pub policy: ObjectRef,
}

/// How the paths of requests are normalized.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PathSettings {
    /// What happens to `%2F` and `%5C`.
    pub escaped_slashes: EscapedSlashes,
    /// What happens to several slashes in a row.
    pub duplicate_slashes: DuplicateSlashes,
    /// What happens to `.` and `..`.
    pub dot_segments: DotSegments,
    /// The policy.
    pub policy: ObjectRef,
}

/// What happens to escaped slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum EscapedSlashes {
    /// They stay.
    Keep,
    /// The request is refused.
    Reject,
    /// The client is redirected to the path with slashes.
    Decode,
}

impl EscapedSlashes {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Reject, Self::Decode];
}

/// What happens to several slashes in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum DuplicateSlashes {
    /// They decide as one slash, and are forwarded as they are.
    Forward,
    /// They become one.
    Merge,
    /// They stay, also where the path decides.
    Keep,
}

impl DuplicateSlashes {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Merge, Self::Keep];
}

/// What happens to dot segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum DotSegments {
    /// They stay.
    Keep,
    /// They are resolved.
    Normalize,
    /// The request is refused.
    Reject,
}

impl DotSegments {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Normalize, Self::Reject];
}

/// The PROXY protocol in front of connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ProxyProtocol {
    /// Whether connections may or must begin with a header.
    pub mode: ProxyMode,
    /// The load balancers. Headers of others do not count.
    pub trusted: CidrSet,
    /// The policy.
    pub policy: ObjectRef,
}

/// Whether connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ProxyMode {
    /// No connection does.
    Off,
    /// Those of load balancers may.
    Optional,
    /// All do. Connections of others than load balancers are closed.
    Required,
}

/// HTTP/3 on the port of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Http3 {
    /// The UDP port that `Alt-Svc` names; `None` for that of the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertised_port: Option<u16>,
    /// How long clients may remember it.
    pub max_age: Duration,
    /// The policy.
    pub policy: ObjectRef,
}

/// Settings of connections. Those that are not set are those of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ConnectionSettings {
    /// Time to the first byte of a request, and from there to the end of its head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_timeout: Option<Duration>,
    /// Time to the next byte of a request body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_timeout: Option<Duration>,
    /// Time between requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// Time without a byte while a response is awaited or streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle_timeout: Option<Duration>,
    /// Time of a TLS handshake, and of a header of the PROXY protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_timeout: Option<Duration>,
    /// Maximum number of headers of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_headers: Option<usize>,
    /// Maximum size of a request head in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_header_bytes: Option<usize>,
    /// Maximum number of streams of an HTTP/2 connection, and of requests of an HTTP/3 connection, at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Windows of HTTP/2 connections.
    #[serde(skip_serializing_if = "Http2Windows::is_default")]
    pub windows: Http2Windows,
    /// Maximum number of open connections of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Maximum number of open connections of a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_client: Option<usize>,
    /// Maximum number of requests of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Age at which a connection takes no further requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Duration>,
    /// Time without bytes after which TCP asks whether the client is still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_keepalive: Option<Duration>,
    /// What happens to headers with an underscore in their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underscores: Option<Underscores>,
    /// Where the ids of requests come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestIds>,
    /// The forwarding headers that backends get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<Vec<ForwardingHeader>>,
    /// The policies.
    pub policies: Vec<ObjectRef>,
}

/// What happens to headers with an underscore in their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Underscores {
    /// They are forwarded.
    Allow,
    /// They are removed.
    Drop,
    /// The request is refused.
    Reject,
}

/// Where the ids of requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum RequestIds {
    /// Each is new.
    Generate,
    /// From the client, if it sends one.
    Trust,
    /// Each is new, and backends do not get it.
    Off,
}

named! {
    /// A header about the origin of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    pub enum ForwardingHeader {
        /// `X-Forwarded-For`
        XForwardedFor = "X-Forwarded-For",
        /// `X-Forwarded-Proto`
        XForwardedProto = "X-Forwarded-Proto",
        /// `X-Forwarded-Host`
        XForwardedHost = "X-Forwarded-Host",
        /// `X-Forwarded-Port`
        XForwardedPort = "X-Forwarded-Port",
        /// `X-Real-IP`
        XRealIp = "X-Real-IP",
        /// `Forwarded` (RFC 7239)
        Forwarded = "Forwarded",
    }
}

impl ConnectionSettings {
    /// Reports whether they change the headers of requests.
    pub fn change_headers(&self) -> bool {
        self.underscores.is_some() || self.request_id.is_some() || self.forwarded.is_some()
    }
}

impl ClientPolicies {
    /// Reports whether nothing is required.
    pub fn are_none(&self) -> bool {
        let Self {
            address,
            tls,
            path,
            proxy_protocol,
            http3,
            unknown_protocol,
            connections,
        } = self;
        let of_listener = address.is_none() && tls.is_none() && path.is_none();
        let of_port = proxy_protocol.is_none() && unknown_protocol.is_none() && http3.is_none();
        of_listener && of_port && connections.is_none()
    }
}

impl TlsSettings {
    /// Returns the TLS of a listener with these settings.
    pub fn applied_to(&self, tls: &ServerTls) -> ServerTls {
        // Destructured, so that a new field fails to compile until it is handled here.
        let Self {
            min_version,
            suites,
            groups,
            alpn,
            policy: _,
        } = self;
        let min_version = min_version.unwrap_or(tls.min_version);
        let negotiates_http = !tls.alpn.is_empty();
        ServerTls {
            alpn: match negotiates_http && !alpn.is_empty() {
                true => alpn.clone(),
                false => tls.alpn.clone(),
            },
            certificates: tls.certificates.clone(),
            min_version: min_version.max(tls.min_version),
            ciphers: tls.ciphers,
            suites: suites.clone(),
            groups: groups.clone(),
            client_validation: tls.client_validation.clone(),
        }
    }
}
