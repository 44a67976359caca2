//! The end of sessions that the provider asks for by a request of its own (OpenID Connect Back-Channel Logout 1.0, 2.5 to 2.8).
//! Must not know how logout tokens are verified.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::visit::response;
use crate::filter::LocalResponse;
use crate::proxy::error::Error;
use crate::proxy::request::exchange::Exchange;
use crate::table::{LogoutFault, Oidc};
use crate::token_endpoint::now_micros;

/// Maximum size of a request, in bytes.
const MAX_BODY: usize = 16 * 1024;
const FORM: &str = "application/x-www-form-urlencoded";
const PARAMETER: &str = "logout_token";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// After how many seconds the provider may ask again: keys are fetched once in 10 s.
const RETRY: HeaderValue = HeaderValue::from_static("10");

/// Returns the response to the provider.
///
/// # Errors
/// When the body cannot be read.
pub(super) async fn respond(exchange: &mut Exchange, oidc: &Oidc) -> Result<LocalResponse, Error> {
    let parts = &exchange.parts;
    if parts.method != Method::POST || !is_form(&parts.headers) {
        return Ok(malformed("the request is no POST of a form"));
    }
    // Reading the body sends the 100 (Continue).
    exchange.expects_continue = false;
    let body = match exchange.body.buffer(MAX_BODY).await {
        Ok(body) => body,
        Err(Error::BodyTooLarge) => return Ok(malformed("the request is too large")),
        Err(error) => return Err(error),
    };
    let Some(token) = logout_token(&body) else {
        return Ok(malformed("the form does not have one logout_token"));
    };
    let now = now_micros();
    let ended = oidc.end_sessions(&token, now);
    if ended.is_ok() {
        let table = exchange.client.worker.table.load();
        table.announce_logout(&oidc.ir.policy, &token, now);
    }
    Ok(match ended {
        Ok(()) => response(StatusCode::OK, Vec::new()),
        Err(LogoutFault::Invalid) => malformed("the logout token is not valid"),
        Err(LogoutFault::Replayed) => malformed("the logout token was sent before"),
        Err(LogoutFault::UnknownKeys) => later("the keys of the provider are not known yet"),
        Err(LogoutFault::Full) => later("too many sessions have ended"),
    })
}

fn is_form(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let only = types.next().filter(|_| types.next().is_none());
    let text = only.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let media_type = text.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case(FORM)
}

/// Returns the token of a form that has one.
fn logout_token(form: &[u8]) -> Option<String> {
    let mut tokens = form_urlencoded::parse(form).filter(|(name, _)| *name == *PARAMETER);
    let (_, token) = tokens.next()?;
    tokens.next().is_none().then(|| token.into_owned())
}

/// Returns the response to a request that ends nothing.
fn malformed(description: &str) -> LocalResponse {
    error(StatusCode::BAD_REQUEST, "invalid_request", description)
}

/// Returns the response to a request that may succeed later.
fn later(description: &str) -> LocalResponse {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = error(unavailable, "temporarily_unavailable", description);
    response.headers_mut().insert(RETRY_AFTER, RETRY);
    response
}

/// Returns an error in the form of RFC 6749, 5.2.
fn error(status: StatusCode, code: &str, description: &str) -> LocalResponse {
    let mut response = response(status, Vec::new());
    let text = serde_json::json!({"error": code, "error_description": description});
    *response.body_mut() = Bytes::from(text.to_string());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
