//! What a request ends with before it is sent to the client: a response or a refusal. Must not know error pages.

use http::StatusCode;

use super::policy_refusal::PolicyRefusal;
use crate::filter::LocalResponse;
use crate::ir::error_page::Responder;
use crate::proxy::body::request_body::RequestBody;
use crate::upstream;

/// What is sent to the client, unless an error page replaces it.
pub(super) enum Answer {
    /// The response of a backend.
    Backend(upstream::Response<RequestBody>),
    /// The response of a filter or an authorization server.
    Local(LocalResponse),
    /// An error response.
    Refusal(PolicyRefusal),
}

impl Answer {
    /// Reports whether it is an error that no backend has responded with.
    pub(super) fn is_own_error(&self) -> bool {
        match self {
            Self::Backend(_) => false,
            Self::Local(response) => {
                response.status().is_client_error() || response.status().is_server_error()
            }
            Self::Refusal(_) => true,
        }
    }

    /// Returns its status and who gives it, as far as pages may replace it: a local response with a body is a page itself.
    pub(super) fn status(&self) -> (StatusCode, Responder) {
        match self {
            Self::Backend(response) => (response.status, Responder::Backend),
            Self::Local(response) if !response.body().is_empty() => {
                (StatusCode::OK, Responder::Gateway)
            }
            Self::Local(response) => (response.status(), Responder::Gateway),
            Self::Refusal(refusal) => (refusal.error.status(), Responder::Gateway),
        }
    }
}
