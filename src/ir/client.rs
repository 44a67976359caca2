//! How clients connect to a listener, after all policies on it are merged. Must not know connections.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::cidr::CidrSet;
use super::policy::Enforced;

/// How clients connect to a listener. Apart from `address`, all listeners of a port have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ClientPolicies {
    /// Where the address of a client comes from. If broken, its IP rules and limits cannot be decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Enforced<ClientAddress>>,
    /// The PROXY protocol in front of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<Arc<ProxyProtocol>>,
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
        #[serde(serialize_with = "header")]
        name: HeaderName,
        /// The proxies.
        trusted: CidrSet,
    },
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
    /// Maximum number of streams of an HTTP/2 connection at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Maximum number of open connections of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Maximum number of open connections of a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_client: Option<usize>,
    /// Maximum number of requests of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// The policies.
    pub policies: Vec<ObjectRef>,
}

impl ClientPolicies {
    /// Reports whether nothing is required.
    pub fn are_none(&self) -> bool {
        let Self {
            address,
            proxy_protocol,
            connections,
        } = self;
        address.is_none() && proxy_protocol.is_none() && connections.is_none()
    }
}

fn header<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
