//! GRPCRoute, with the fields that Portcullis reads.

use serde::{Deserialize, Serialize};

use super::filter::HttpFilter;
use super::http_route::NameValueMatch;
use super::meta::ObjectMeta;
use super::reference::BackendRef;
use super::route::{RouteResource, RouteRule, RouteSpec};
use super::session_persistence::SessionPersistence;

/// A GRPCRoute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GrpcRoute {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: RouteSpec<GrpcRule>,
}

impl RouteResource for GrpcRoute {
    type Rule = GrpcRule;

    fn spec(&self) -> &RouteSpec<GrpcRule> {
        &self.spec
    }
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Alternative matches. Empty means every gRPC request.
    pub matches: Vec<GrpcMatch>,
    /// Filters, in order.
    pub filters: Vec<HttpFilter>,
    /// Backends, by weight.
    pub backend_refs: Vec<BackendRef<HttpFilter>>,
    /// Session persistence (GEP-1619).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

impl RouteRule for GrpcRule {
    fn references(&self) -> (&[HttpFilter], &[BackendRef<HttpFilter>]) {
        (&self.filters, &self.backend_refs)
    }
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMatch {
    /// Service and method; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    /// Headers.
    pub headers: Vec<NameValueMatch>,
}

/// A condition on service, method or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMethodMatch {
    /// `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Service with its package, or a pattern; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method, or a pattern; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
