//! BackendPolicy, a CRD of Portcullis: how requests are sent to backends. Its CRD is deploy/crds/backendpolicies.yaml.

use serde::{Deserialize, Serialize};

use super::client_policy::Http2Settings;
use super::inherited_policy::SectionTargetRef;
use super::meta::ObjectMeta;
use super::rate_limit_policy::KeyPart;
use super::route_policy::Size;
use super::session_persistence::SessionPersistence;
use super::traffic_policy::RetryConstraint;

/// How requests are sent to backends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BackendPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: BackendPolicySpec,
}

/// Spec of a BackendPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendPolicySpec {
    /// Backends in the policy's namespace, or ports of them.
    pub target_refs: Vec<SectionTargetRef>,
    /// Limit on retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_constraint: Option<RetryConstraint>,
    /// Session persistence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
    /// How an endpoint is chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancing: Option<LoadBalancing>,
    /// What the backend gets at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<BackendLimits>,
    /// Which endpoints get requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Connections to endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancing {
    /// `LeastRequest` (the default), `RoundRobin`, `Random` or `ConsistentHash`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is hashed, for `ConsistentHash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistent_hash: Option<ConsistentHash>,
    /// How long the share of an added endpoint grows, for `LeastRequest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<String>,
    /// `Hints` (the default) or `PreferZone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
}

/// What is hashed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ConsistentHash {
    /// Requests with equal values of all parts go to the same endpoint.
    pub key: Vec<KeyPart>,
}

/// What a backend gets at the same time from each pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendLimits {
    /// Open connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Requests that wait for a new connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pending: Option<u32>,
    /// Requests in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Limits for each endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_endpoint: Option<EndpointLimits>,
}

/// What an endpoint gets at the same time from each pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointLimits {
    /// Open connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Requests in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
}

/// Which endpoints get requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheck {
    /// Asks each endpoint itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveCheck>,
    /// How failed requests eject endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive: Option<PassiveCheck>,
}

/// How endpoints are asked; with one of `http`, `tcp` and `grpc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ActiveCheck {
    /// By a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpCheck>,
    /// By a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpCheck>,
    /// By a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCheck>,
    /// Time between two checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Time after which a check has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Checks in succession that must succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy_threshold: Option<u32>,
    /// Checks in succession that must fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_threshold: Option<u32>,
    /// Percentage of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<u32>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct HttpCheck {
    /// Path, `/` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Statuses of a healthy endpoint; empty means 200 to 399.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<u16>,
}

/// A connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TcpCheck {}

/// A call of `grpc.health.v1.Health/Check`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct GrpcCheck {
    /// The service that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// How failed requests eject endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PassiveCheck {
    /// Requests in succession without a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_errors: Option<u32>,
    /// Time of the first ejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<String>,
    /// Maximum percentage of ejected endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ejected_percent: Option<u32>,
    /// Percentage of healthy endpoints below which all get requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic_percent: Option<u32>,
}

/// Connections to endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Connection {
    /// Time to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// Time without requests after which a connection closes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<String>,
    /// Requests of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Time without bytes after which TCP asks whether the other side is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<String>,
    /// Time in which an endpoint picker answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picker_timeout: Option<String>,
    /// `Off` (the default), `V1` or `V2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<String>,
    /// Connections of HTTP/1.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http1: Option<Http1Connection>,
    /// Connections of HTTP/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<Http2Settings>,
}

/// Connections of HTTP/1.1 to endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Http1Connection {
    /// Maximum size of a response head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_header_bytes: Option<Size>,
}
