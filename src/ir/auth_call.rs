//! Calls to authorization servers, as ExternalAuth filters and AccessPolicies ask for them: protocol, and the parts of a
//! request that the server gets. Must not know which backend the server is.

use std::sync::Arc;

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION,
    CONTENT_RANGE, CONTENT_TYPE, COOKIE, EXPECT, HOST, TRAILER,
};
use serde::Serialize;

use super::ObjectRef;
use super::hop_by_hop::HOP_BY_HOP;
use super::serialized;

/// Headers that describe the body or framing of the authorization server's response, or what its sender expects, so that they
/// mean nothing in another message.
const DESCRIBING: [HeaderName; 8] = [
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_LOCATION,
    CONTENT_RANGE,
    CONTENT_TYPE,
    EXPECT,
    TRAILER,
];

/// Whether a header of the server's response can be part of another message.
pub fn is_independent(name: &HeaderName) -> bool {
    !HOP_BY_HOP.contains(name) && !DESCRIBING.contains(name)
}

/// The section `external` of an AccessPolicy. Which backend the authorization server is depends on the Gateway:
/// [`super::PolicyServers`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExternalPolicy {
    /// The policy.
    pub policy: ObjectRef,
    /// How the server is asked.
    #[serde(flatten)]
    pub call: AuthCall,
    /// Where browsers sign in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign_in: Option<SignIn>,
}

/// The address of a page to sign in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SignIn {
    /// The address, up to the place of the URL to return to if it has one.
    pub before: Box<str>,
    /// What follows that URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Box<str>>,
}

/// How an authorization server is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AuthCall {
    /// Protocol of the authorization server.
    pub protocol: AuthProtocol,
    /// Maximum size of a request body, in bytes, that is sent to the server; 0 sends no body.
    pub max_body: u16,
}

impl AuthCall {
    /// Returns the headers of the client's request that the server gets by their names, apart from those that it always gets.
    pub fn request_headers(&self) -> &[HeaderName] {
        match &self.protocol {
            AuthProtocol::Http(http) => &http.headers,
            AuthProtocol::Grpc(grpc) => &grpc.headers,
        }
    }

    /// Returns the headers of the server's response that replace those of the client's request; empty for all.
    pub fn response_headers(&self) -> &[HeaderName] {
        match &self.protocol {
            AuthProtocol::Http(http) => &http.response_headers,
            AuthProtocol::Grpc(_) => &[],
        }
    }

    /// Reports whether nobody but the server says this header, which is one of its response: neither is the server asked with
    /// what the client says, nor does the proxy say it.
    pub fn is_only_said_by_server(&self, name: &HeaderName) -> bool {
        let is_asked = match &self.protocol {
            AuthProtocol::Http(http) => http.headers.contains(name),
            AuthProtocol::Grpc(_) => true,
        };
        let is_of_proxy = name.as_str().starts_with("x-forwarded-") || name == "x-request-id";
        let others = [AUTHORIZATION, COOKIE, HOST];
        is_independent(name) && !is_asked && !is_of_proxy && !others.contains(name)
    }
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
    /// Path and query of every request, instead of those of the client's request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_path: Option<Arc<str>>,
    /// Headers of the client's request that are sent in addition to those that always are.
    #[serde(serialize_with = "serialized::names")]
    pub headers: Vec<HeaderName>,
    /// Headers of the server's response that are added to the client's request; all if empty.
    #[serde(serialize_with = "serialized::names")]
    pub response_headers: Vec<HeaderName>,
}

/// Calls to an authorization server over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcAuth {
    /// Headers of the client's request that are sent; all if empty.
    #[serde(serialize_with = "serialized::names")]
    pub headers: Vec<HeaderName>,
}
