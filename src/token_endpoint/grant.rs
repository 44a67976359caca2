//! Requests to the token endpoint of a provider, and their responses (RFC 6749). Does no I/O.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use form_urlencoded::{Serializer, byte_serialize};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::Value;

use super::error::TokenError;
use crate::https::WholeResponse;
use crate::ir::oidc::{Endpoints, Oidc};

/// Maximum length of a token, in bytes: cookies hold no longer ones.
const MAX_TOKEN: usize = 16 * 1024;

/// The code of a sign-in.
pub struct Code {
    /// The code.
    pub code: String,
    /// Where the provider has sent the browser to.
    pub redirect_uri: String,
    /// The verifier of the challenge of the sign-in (RFC 7636).
    pub verifier: String,
}

/// What the provider has granted.
pub(super) enum Granted {
    Code(Code),
    RefreshToken(Box<str>),
}

/// The tokens that a provider has issued. Does not print them.
pub struct TokenResponse {
    pub(super) id_token: Option<Box<str>>,
    pub(super) access_token: Box<str>,
    pub(super) refresh_token: Option<Box<str>>,
    /// For how long the access token is valid, in seconds.
    pub(super) expires_in: Option<u64>,
}

impl fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenResponse").finish_non_exhaustive()
    }
}

/// Returns the request for tokens; `None` if the client cannot be named in it.
pub(super) fn request(
    oidc: &Oidc,
    endpoints: &Endpoints,
    granted: &Granted,
) -> Option<Request<Full<Bytes>>> {
    let mut form = Serializer::new(String::new());
    match granted {
        Granted::Code(Code {
            code,
            redirect_uri,
            verifier,
        }) => form
            .append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("code_verifier", verifier),
        Granted::RefreshToken(token) => form
            .append_pair("grant_type", "refresh_token")
            .append_pair("refresh_token", token),
    };
    let mut authorization = None;
    match &oidc.client_secret {
        Some(secret) if endpoints.secret_in_form => {
            form.append_pair("client_id", &oidc.client_id)
                .append_pair("client_secret", secret.secret_text());
        }
        Some(secret) => {
            // RFC 6749, 2.3.1: both are encoded as in a form.
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let (client, secret) = (encoded(&oidc.client_id), encoded(secret.secret_text()));
            let value = format!("Basic {}", STANDARD.encode(format!("{client}:{secret}")));
            let mut value = HeaderValue::try_from(value).ok()?;
            value.set_sensitive(true);
            authorization = Some(value);
        }
        None => {
            form.append_pair("client_id", &oidc.client_id);
        }
    }
    let request = Request::post("/")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(ACCEPT, "application/json")
        .body(Full::from(form.finish()));
    let mut request = request.ok()?;
    if let Some(value) = authorization {
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    Some(request)
}

/// The parts of a response that are used.
#[derive(Deserialize)]
struct Response {
    access_token: String,
    token_type: String,
    expires_in: Option<Value>,
    id_token: Option<String>,
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
}

/// Codes of errors (RFC 6749, 5.2).
const CODES: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// Reads a response. A problem has nothing of its text, apart from a known code.
pub(super) fn read(response: &WholeResponse) -> Result<TokenResponse, (TokenError, String)> {
    let status = response.status;
    if status != StatusCode::OK {
        let refused = serde_json::from_slice::<Refused>(&response.body).ok();
        let code = CODES
            .iter()
            .find(|code| refused.as_ref().is_some_and(|it| it.error == **code));
        let error = match code {
            Some(&"invalid_grant") => TokenError::Denied,
            _ if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                TokenError::Rejected
            }
            _ => TokenError::Unavailable,
        };
        let code = code.map(|code| format!(" and {code}")).unwrap_or_default();
        return Err((
            error,
            format!("it answers with status {}{code}", status.as_u16()),
        ));
    }
    let invalid = |problem: &str| (TokenError::Invalid, format!("the response {problem}"));
    let response: Response = serde_json::from_slice(&response.body)
        .map_err(|_| invalid("is not JSON with access_token and token_type"))?;
    if !response.token_type.eq_ignore_ascii_case("bearer") {
        return Err(invalid("has another token_type than Bearer"));
    }
    let token = |token: String| match is_token(&token) {
        true => Ok(token.into_boxed_str()),
        false => Err(invalid("has a token that is no text of up to 16 KiB")),
    };
    Ok(TokenResponse {
        access_token: token(response.access_token)?,
        id_token: response.id_token.map(token).transpose()?,
        refresh_token: response.refresh_token.map(token).transpose()?,
        expires_in: response.expires_in.as_ref().and_then(seconds),
    })
}

fn is_token(text: &str) -> bool {
    let is_visible = |byte: u8| byte.is_ascii_graphic();
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(is_visible)
}

/// Some providers send the number as text.
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
