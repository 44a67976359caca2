//! ClientPolicy, a CRD of Portcullis: how clients connect, and where their addresses come from. Its CRD is
//! deploy/crds/clientpolicies.yaml.

use serde::{Deserialize, Serialize};

use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy, Unreadable, inherited};
use super::meta::ObjectMeta;
use super::route_policy::Size;

/// How clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClientPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ClientSpec,
    /// Present if the policy is not valid: the addresses of its clients are unknown. Not a field of the CRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Box<Unreadable>>,
    /// What is not valid of the policy, if this is the version before: its further targets, whose requests are refused. Only
    /// a folder leaves the version before in service.
    #[serde(skip)]
    pub pending: Option<Box<Self>>,
}

/// Spec of a ClientPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientSpec {
    /// Gateways and ListenerSets in the policy's namespace.
    pub target_refs: Vec<SectionTargetRef>,
    /// How it relates to policies of more specific targets.
    pub strategy: Strategy,
    /// The PROXY protocol in front of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Where the address of a client comes from.
    #[serde(rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIp>,
    /// Timeouts of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<ClientTimeouts>,
    /// Limits of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionLimits>,
    /// Headers of requests, and limits of heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderLimits>,
    /// Settings of HTTP/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<Http2Settings>,
    /// HTTP/3 on the ports of HTTPS listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http3: Option<Http3Settings>,
    /// TLS of listeners that terminate it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
    /// How paths are normalized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathNormalization>,
}

/// The PROXY protocol in front of connections.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ProxyProtocol {
    /// `Off`, `Optional` or `Required`.
    pub mode: String,
    /// CIDRs of load balancers.
    #[serde(
        default,
        rename = "trustedCIDRs",
        skip_serializing_if = "Option::is_none"
    )]
    pub trusted_cidrs: Option<Vec<String>>,
}

/// Where the address of a client comes from; without a field, from the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    /// From `X-Forwarded-For`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_forwarded_for: Option<XForwardedFor>,
    /// From another header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<AddressHeader>,
}

/// Which element of `X-Forwarded-For` is the address: one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XForwardedFor {
    /// Number of proxies in front.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted_hops: Option<u8>,
    /// CIDRs of the proxies.
    #[serde(rename = "trustedCIDRs", skip_serializing_if = "Option::is_none")]
    pub trusted_cidrs: Option<Vec<String>>,
}

/// A header with the address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AddressHeader {
    /// Its name.
    pub name: String,
    /// CIDRs of the proxies that set it.
    #[serde(rename = "trustedCIDRs")]
    pub trusted_cidrs: Vec<String>,
}

/// Timeouts of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTimeouts {
    /// To the first byte of a request, and from there to the end of its head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// To the next byte of a request body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Between requests of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// While a response is awaited or streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle: Option<String>,
    /// Of a TLS handshake, and of a header of the PROXY protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_handshake: Option<String>,
    /// Age at which a connection takes no further requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connection_age: Option<String>,
}

/// Limits of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Maximum number of open connections of a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_client: Option<u32>,
    /// Maximum number of requests of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Time without bytes after which TCP asks whether the client is still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_keepalive: Option<String>,
}

/// Limits of request heads, and headers that are not forwarded as clients send them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderLimits {
    /// Maximum number of headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_count: Option<u32>,
    /// Maximum size of a head in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u32>,
    /// What happens to headers with an underscore in their names: `Allow`, `Drop` or `Reject`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underscores: Option<String>,
    /// Where the ids of requests come from: `Generate`, `Trust` or `Off`.
    #[serde(rename = "requestID", skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The forwarding headers that backends get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<Vec<String>>,
}

/// Settings of HTTP/2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Http2Settings {
    /// Maximum number of streams of a connection at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_streams: Option<u32>,
    /// Window of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_stream_window: Option<Size>,
    /// Window of all streams together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_connection_window: Option<Size>,
}

/// HTTP/3 on the ports of HTTPS listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Http3Settings {
    /// The UDP port that `Alt-Svc` names; without it, that of the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertised_port: Option<u16>,
    /// How long clients may remember it; 24h without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<String>,
}

/// TLS of listeners that terminate it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTls {
    /// The oldest protocol version to accept: `1.2` or `1.3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_version: Option<String>,
    /// Cipher suites to offer, by their names in IANA's registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher_suites: Option<Vec<String>>,
    /// Groups for key exchange, by their names in IANA's registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Protocols to offer by ALPN, in order of preference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpn: Option<Vec<String>>,
}

/// How the paths of requests are normalized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathNormalization {
    /// What happens to escaped slashes: `Keep`, `Reject` or `Decode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escaped_slashes: Option<String>,
    /// Whether duplicate slashes become one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_slashes: Option<bool>,
    /// What happens to dot segments: `Keep`, `Normalize` or `Reject`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dot_segments: Option<String>,
}

inherited!(ClientPolicy, pending);
