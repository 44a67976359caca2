//! ExternalAuth filters: the backend that authorizes requests, and what is sent to it.

use std::sync::Arc;

use http::HeaderName;
use serde::{Serialize, Serializer};

use super::route::Target;

/// Authorization of requests by another backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExternalAuth {
    /// The authorization server. With an invalid target no request is allowed.
    pub target: Target,
    /// What it speaks.
    pub protocol: AuthProtocol,
    /// Maximum bytes of a request body, which is sent to the server; 0 if no body is sent to it.
    pub max_body: u16,
}

/// What an authorization server speaks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum AuthProtocol {
    /// HTTP.
    Http(HttpAuth),
    /// gRPC: `envoy.service.auth.v3.Authorization`.
    Grpc(GrpcAuth),
}

/// Requests to an authorization server over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct HttpAuth {
    /// Precedes the path of the client's request; has no `/` at its end.
    pub path_prefix: Arc<str>,
    /// Headers of the client's request that are sent beside those that always are.
    #[serde(serialize_with = "names")]
    pub headers: Vec<HeaderName>,
    /// Headers of the server's response that the client's request gets; all if empty.
    #[serde(serialize_with = "names")]
    pub response_headers: Vec<HeaderName>,
}

/// Calls of an authorization server over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcAuth {
    /// Headers of the client's request that are sent; all if empty.
    #[serde(serialize_with = "names")]
    pub headers: Vec<HeaderName>,
}

fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}
