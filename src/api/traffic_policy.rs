//! XBackendTrafficPolicy: a limit on retries to backends (GEP-3388) and session persistence of backends (GEP-1619).
//! Experimental: its CRD is in the experimental channel of the Gateway API only.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::reference::{Found, LocalObjectReference, Role};
use super::session_persistence::SessionPersistence;

/// Policy for requests to backends in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BackendTrafficPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: BackendTrafficSpec,
}

/// Spec of an XBackendTrafficPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTrafficSpec {
    /// Backends in the policy's namespace.
    pub target_refs: Vec<LocalObjectReference>,
    /// Limit on retries; absent means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_constraint: Option<RetryConstraint>,
    /// Session persistence; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

impl BackendTrafficSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        for target in &self.target_refs {
            found(target.in_role(Role::Target));
        }
    }
}

/// Limit on retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryConstraint {
    /// Maximum proportion of retries.
    pub budget: RetryBudget,
    /// Rate of retries that is always permitted.
    pub min_retry_rate: RequestRate,
}

/// Maximum proportion of retries among the requests of an interval.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RetryBudget {
    /// Percentage, 0 to 100.
    pub percent: u32,
    /// Interval, 1 s to 1 h.
    pub interval: String,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            percent: 20,
            interval: "10s".to_owned(),
        }
    }
}

/// A rate of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RequestRate {
    /// Requests per interval, 1 to 1,000,000.
    pub count: u32,
    /// Interval, longer than 0 s and up to 1 h.
    pub interval: String,
}

impl Default for RequestRate {
    fn default() -> Self {
        Self {
            count: 10,
            interval: "1s".to_owned(),
        }
    }
}
