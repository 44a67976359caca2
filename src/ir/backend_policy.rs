//! How requests are sent to a backend, as its policy says. Must not know how that is done.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::ObjectRef;
use super::http2::Http2Windows;
use super::limit::KeyPart;

/// The policy of one backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BackendPolicy {
    /// The policy object.
    pub policy: ObjectRef,
    /// How an endpoint is chosen.
    #[serde(skip_serializing_if = "LoadBalancing::is_default")]
    pub load_balancing: LoadBalancing,
    /// Whether endpoints in the zone of the data plane take precedence.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefers_zone: bool,
    /// What the backend gets at the same time.
    #[serde(skip_serializing_if = "BackendLimits::is_default")]
    pub limits: BackendLimits,
    /// How endpoints are asked for their health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<Arc<ActiveCheck>>,
    /// How failed requests eject endpoints.
    #[serde(skip_serializing_if = "Passive::is_default")]
    pub passive: Passive,
    /// Connections to endpoints.
    #[serde(skip_serializing_if = "Connection::is_default")]
    pub connection: Connection,
}

impl BackendPolicy {
    /// Returns the policy of an object that sets nothing: all is as without a policy.
    pub fn without_settings(policy: ObjectRef) -> Self {
        Self {
            policy,
            load_balancing: LoadBalancing::LeastRequest,
            prefers_zone: false,
            limits: BackendLimits::default(),
            active: None,
            passive: Passive::DEFAULT,
            connection: Connection::default(),
        }
    }
}

/// Connections to the endpoints of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Connection {
    /// Time to connect, TLS included; `None` means that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<Duration>,
    /// Time without requests after which a connection closes, if it is shorter than that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// Requests of a connection, 1 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Time without bytes after which TCP asks whether the other side is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Duration>,
    /// Time in which an endpoint picker answers what it was sent, and reads what waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picker_timeout: Option<Duration>,
    /// The version of the PROXY protocol that connections begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyVersion>,
    /// Maximum size of a response head of HTTP/1.1 in bytes, if it is less than that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_header_bytes: Option<u32>,
    /// Maximum number of streams of a connection of HTTP/2 at the same time, 1 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Windows of connections of HTTP/2. That of a connection has room for those of all its streams, so that one that is
    /// not read delays no other.
    #[serde(skip_serializing_if = "Http2Windows::is_default")]
    pub windows: Http2Windows,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ProxyVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

impl Connection {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How endpoints are asked for their health.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ActiveCheck {
    /// The question.
    pub probe: Probe,
    /// Time between two checks of an endpoint, 1 s or longer.
    pub interval: Duration,
    /// Time after which a check has failed.
    pub timeout: Duration,
    /// Checks in succession that must succeed before an endpoint counts as healthy again; 1 or more.
    pub healthy: u32,
    /// Checks in succession that must fail before an endpoint counts as failed; 1 or more.
    pub unhealthy: u32,
    /// Percentage by which the interval is longer or shorter at random.
    pub jitter: u32,
}

/// What an endpoint is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Probe {
    /// A GET request.
    Http {
        /// Path and query.
        path: Arc<str>,
        /// Host; `None` means the name of the certificate, or the address.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<Arc<str>>,
        /// Statuses of a healthy endpoint; empty means 200 to 399.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        statuses: Vec<u16>,
    },
    /// A connection.
    Tcp,
    /// A call of `grpc.health.v1.Health/Check`.
    Grpc {
        /// The service; empty means the server.
        service: Arc<str>,
    },
}

/// How failed requests eject endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Passive {
    /// Requests in succession without a response; 1 or more.
    pub consecutive_errors: u32,
    /// Time of the first ejection.
    pub ejection: Duration,
    /// Maximum percentage of ejected endpoints.
    pub max_ejected_percent: u32,
    /// Percentage of healthy endpoints below which all get requests.
    pub panic_percent: u32,
}

impl Passive {
    /// What holds without a policy.
    pub const DEFAULT: Self = Self {
        consecutive_errors: 3,
        ejection: Duration::from_secs(1),
        max_ejected_percent: 50,
        panic_percent: 0,
    };

    fn is_default(&self) -> bool {
        *self == Self::DEFAULT
    }
}

/// What a backend gets at the same time from this process. Each limit is 1 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct BackendLimits {
    /// Open connections, idle ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Requests that wait for a new connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// Requests in progress, connections of TCP and flows of UDP included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Requests in progress at one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_endpoint: Option<u32>,
    /// Open connections to one endpoint, idle ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_endpoint: Option<u32>,
}

impl BackendLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum LoadBalancing {
    /// The one of two random endpoints that has fewer requests in flight.
    #[default]
    LeastRequest,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// By the hash of this key; never empty. By requests in flight if the request lacks a part of it.
    ConsistentHash(Vec<KeyPart>),
}

impl LoadBalancing {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
