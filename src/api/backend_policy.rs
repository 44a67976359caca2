//! BackendPolicy, a CRD of Portcullis: how requests are sent to backends. Its CRD is deploy/crds/backendpolicies.yaml.

use serde::{Deserialize, Serialize};

use super::inherited_policy::SectionTargetRef;
use super::meta::{ObjectMeta, resource};
use super::parameters::GROUP;
use super::rate_limit_policy::KeyPart;
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
resource!(BackendPolicy, GROUP, "BackendPolicy");

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
    /// Requests in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
}
