//! How requests are sent to a backend, as its policy says. Must not know how that is done.

use serde::Serialize;

use super::ObjectRef;
use super::limit::KeyPart;

/// The policy of one backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BackendPolicy {
    /// The policy object.
    pub policy: ObjectRef,
    /// How an endpoint is chosen.
    #[serde(skip_serializing_if = "LoadBalancing::is_default")]
    pub load_balancing: LoadBalancing,
    /// What the backend gets at the same time.
    #[serde(skip_serializing_if = "Limits::is_default")]
    pub limits: Limits,
}

/// What a backend gets at the same time from this process. Each limit is 1 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Limits {
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
}

impl Limits {
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
