//! GRPCRoute, with the fields that Portcullis reads. Its filters have the type of an HTTPRoute's; the schema permits
//! only some of their types.

use serde::{Deserialize, Serialize};

use super::http_route::{HttpFilter, NameValueMatch};
use super::meta::{ObjectMeta, resource};
use super::reference::{BackendRef, ParentRef};
use super::session_persistence::SessionPersistence;
use crate::ir::object_ref::GATEWAY_GROUP;

/// A GRPCRoute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GrpcRoute {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: GrpcRouteSpec,
}
resource!(GrpcRoute, GATEWAY_GROUP, "GRPCRoute");

/// Spec of a [`GrpcRoute`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteSpec {
    /// Parents, at most 32.
    pub parent_refs: Vec<ParentRef>,
    /// `All` also attaches the route to default Gateways; `None` is the default (GEP-3793).
    pub use_default_gateways: Option<String>,
    /// Hostnames, at most 16; empty means the listeners'.
    pub hostnames: Vec<String>,
    /// Rules, at most 16.
    pub rules: Vec<GrpcRule>,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// Name.
    pub name: Option<String>,
    /// Alternative matches. Empty means every gRPC request.
    pub matches: Vec<GrpcMatch>,
    /// Filters, in order.
    pub filters: Vec<HttpFilter>,
    /// Backends, by weight.
    pub backend_refs: Vec<BackendRef<HttpFilter>>,
    /// Session persistence (GEP-1619).
    pub session_persistence: Option<SessionPersistence>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMatch {
    /// Service and method; absent means all.
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
    pub kind: Option<String>,
    /// Service with its package, or a pattern; absent means any.
    pub service: Option<String>,
    /// Method, or a pattern; absent means any.
    pub method: Option<String>,
}
