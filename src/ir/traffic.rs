//! Traffic policy of a backend: a limit on retries (GEP-3388) and session persistence (GEP-1619).

use std::time::Duration;

use serde::Serialize;

use super::ObjectRef;
use super::session::SessionPersistence;

/// The traffic policy of one backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TrafficPolicy {
    /// The policy object.
    pub policy: ObjectRef,
    /// The policy object of the sessions, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_policy: Option<ObjectRef>,
    /// Limit on retries; `None` leaves only the limit of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<RetryBudget>,
    /// Session persistence of rules that do not configure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionPersistence>,
}

/// A limit on the retries to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RetryBudget {
    /// Maximum percentage of retries among the requests of an interval, retries included; 0 to 100.
    pub percent: u32,
    /// The interval, 1 s to 1 h.
    pub interval: Duration,
    /// Number of retries that are permitted in each `min_interval`, independent of the percentage; 1 or more.
    pub min_retries: u32,
    /// Interval of `min_retries`, 1 ms to 1 h.
    pub min_interval: Duration,
}
