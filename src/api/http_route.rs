//! HTTPRoute, with the fields that Portcullis reads.

use serde::{Deserialize, Serialize};
use thin_vec::ThinVec;

use super::filter::HttpFilter;
use super::meta::ObjectMeta;
use super::reference::BackendRef;
use super::route::{RouteResource, RouteRule, RouteSpec};
use super::session_persistence::SessionPersistence;
use crate::ir::sharing::Text;

/// An HTTPRoute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HttpRoute {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: RouteSpec<HttpRule>,
}

impl RouteResource for HttpRoute {
    type Rule = HttpRule;

    fn spec(&self) -> &RouteSpec<HttpRule> {
        &self.spec
    }
}

/// A rule. What few rules have is in boxes: a process may hold many thousands of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Alternative matches. Empty means every path.
    pub matches: Box<[HttpMatch]>,
    /// Filters, in order.
    pub filters: ThinVec<HttpFilter>,
    /// Backends, by weight.
    pub backend_refs: ThinVec<BackendRef<HttpFilter>>,
    /// Timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Box<HttpTimeouts>>,
    /// Retries (GEP-1731).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Box<HttpRetry>>,
    /// Session persistence (GEP-1619).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<Box<SessionPersistence>>,
}

impl RouteRule for HttpRule {
    fn references(&self) -> (&[HttpFilter], &[BackendRef<HttpFilter>]) {
        (&self.filters, &self.backend_refs)
    }
}

/// Retries of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRetry {
    /// Statuses to retry, each 400 to 599.
    pub codes: Vec<u16>,
    /// Maximum number of retries of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Minimum delay before a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Text>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    /// Path; absent means prefix `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Headers.
    pub headers: ThinVec<NameValueMatch>,
    /// Query parameters.
    pub query_params: ThinVec<NameValueMatch>,
    /// Method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Text>,
}

/// A path condition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PathMatch {
    /// `Exact`, `PathPrefix` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Value, `/` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Text>,
}

/// A condition on a header or query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct NameValueMatch {
    /// `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Name.
    pub name: Text,
    /// Value or pattern.
    pub value: Text,
}

/// Timeouts, as Gateway API durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpTimeouts {
    /// The whole exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Text>,
    /// One attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<Text>,
}
