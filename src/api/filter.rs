//! Filters of HTTPRoutes and GRPCRoutes. The schema of GRPCRoute permits only some of their types.

use serde::{Deserialize, Serialize};

use super::reference::{BackendObjectRef, Found, LocalObjectReference, Role};
use crate::ir::sharing::Text;

/// A filter. `type` selects the field with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpFilter {
    /// Type of the filter.
    #[serde(rename = "type")]
    pub kind: Text,
    /// Changes of request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<Box<HeaderModifier>>,
    /// Changes of response headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<Box<HeaderModifier>>,
    /// Mirror.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mirror: Option<Box<RequestMirror>>,
    /// Redirect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<Box<RequestRedirect>>,
    /// Rewrite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_rewrite: Option<Box<UrlRewrite>>,
    /// Cross-origin resource sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<Box<CorsFilter>>,
    /// Authorization by another backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_auth: Option<Box<ExternalAuth>>,
    /// A filter of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_ref: Option<Box<LocalObjectReference>>,
}

impl HttpFilter {
    /// Visits the fields that refer to other objects.
    pub(super) fn references(&self, found: &mut Found<'_>) {
        let mirror = self.request_mirror.iter().map(|it| &it.backend_ref);
        let auth = self.external_auth.iter().map(|it| &it.backend_ref);
        for server in mirror.chain(auth) {
            found(server.in_role(Role::Server));
        }
        if let Some(filter) = &self.extension_ref {
            found(filter.in_role(Role::Filter));
        }
    }
}

/// Header changes: set, add, remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Headers to overwrite.
    pub set: Vec<HeaderValue>,
    /// Headers to append.
    pub add: Vec<HeaderValue>,
    /// Headers to delete.
    pub remove: Vec<String>,
}

/// A header name and value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HeaderValue {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A backend that gets copies of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestMirror {
    /// The backend.
    pub backend_ref: BackendObjectRef,
    /// Percentage of the requests that are copied, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// Fraction of the requests that are copied. If both are absent, all requests are copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
}

/// A backend that authorizes requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAuth {
    /// `HTTP` or `GRPC`.
    pub protocol: String,
    /// The backend.
    pub backend_ref: BackendObjectRef,
    /// Settings for HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpAuth>,
    /// Settings for gRPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcAuth>,
    /// Whether and how much of request bodies is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_body: Option<ForwardBody>,
}

/// Settings of an authorization server that speaks HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpAuth {
    /// Prefix of request paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `Append` or `Exact`: what follows `path`. Only AccessPolicies have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mode: Option<String>,
    /// Request headers that are sent in addition to those that always are.
    pub allowed_headers: Vec<String>,
    /// Response headers that are added to the client's request; empty means all.
    pub allowed_response_headers: Vec<String>,
}

/// Settings of an authorization server that speaks gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcAuth {
    /// Request headers that are sent; empty means all.
    pub allowed_headers: Vec<String>,
}

/// How much of request bodies is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardBody {
    /// Maximum size in bytes; 0, the default, means that bodies are not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<i64>,
}

/// A fraction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Fraction {
    /// Numerator, at most the denominator.
    pub numerator: i32,
    /// Denominator, 100 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denominator: Option<i32>,
}

/// A redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestRedirect {
    /// `http` or `https`; absent keeps the scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// Host; absent keeps the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path; absent keeps the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    /// Port; absent derives it from the scheme or the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// 301, 302 (the default), 303, 307 or 308.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}

/// A rewrite of host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct UrlRewrite {
    /// Host sent to the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path sent to the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
}

/// Which origins may read responses, and what they may send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorsFilter {
    /// `*`, or origins whose host may be `*` or begin with `*.`.
    pub allow_origins: Vec<String>,
    /// Whether requests may have credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_credentials: Option<bool>,
    /// `*`, or methods.
    pub allow_methods: Vec<String>,
    /// `*`, or names of request headers.
    pub allow_headers: Vec<String>,
    /// Names of response headers; `*` means all.
    pub expose_headers: Vec<String>,
    /// How long the response to a preflight request is valid, in seconds; 5 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<i32>,
}

/// A change of a path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The whole new path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    /// The replacement of the matched prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_prefix_match: Option<String>,
}
