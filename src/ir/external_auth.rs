//! ExternalAuth filters: the backend that authorizes requests, and which parts of a request it gets.

use std::sync::Arc;

use http::HeaderName;
use serde::{Serialize, Serializer};

use super::target::BackendTarget;

/// Authorization of requests by another backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExternalAuth {
    /// The authorization server. With an invalid target every request is refused.
    pub target: BackendTarget,
    /// Protocol of the authorization server.
    pub protocol: AuthProtocol,
    /// Maximum size of a request body, in bytes, that is sent to the server; 0 sends no body.
    pub max_body: u16,
}

/// Protocol of an authorization server.
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
    /// Prefix of the path; has no `/` at its end.
    pub path_prefix: Arc<str>,
    /// Headers of the client's request that are sent in addition to those that always are.
    #[serde(serialize_with = "names")]
    pub headers: Vec<HeaderName>,
    /// Headers of the server's response that are added to the client's request; all if empty.
    #[serde(serialize_with = "names")]
    pub response_headers: Vec<HeaderName>,
}

/// Calls to an authorization server over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcAuth {
    /// Headers of the client's request that are sent; all if empty.
    #[serde(serialize_with = "names")]
    pub headers: Vec<HeaderName>,
}

fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}
