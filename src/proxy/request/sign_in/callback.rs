//! The end of a sign-in: the response of the provider that a browser brings, which counts only for a sign-in that this browser
//! has begun, and the session that follows from it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, REFERRER_POLICY};
use http::{HeaderValue, Method, StatusCode};
use tokio::time::sleep;

use super::login::{Login, redirect};
use super::session::seal;
use super::visit::{Failed, Visit, response};
use crate::filter::LocalResponse;
use crate::ir::oidc::SameSite;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::sign_in_fault::SignInFault;
use crate::table::{GrantType, Oidc, Session, TokenOutcome};
use crate::token_endpoint::{Code, SessionFault, TokenError, TokenResponse, begin, now};

/// Maximum length of the query, and of a code.
const MAX_QUERY: usize = 8 * 1024;
const MAX_CODE: usize = 4 * 1024;
/// How often and after which time the keys of the provider are looked at again, if they lack that of an ID token. They are
/// fetched once in 10 s.
const LOOKS: usize = 48;
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// The parameters of a response to an authorization request (RFC 6749, 4.1.2; RFC 9207).
#[derive(Default)]
struct Parameters<'a> {
    state: Option<Cow<'a, str>>,
    code: Option<Cow<'a, str>>,
    error: Option<Cow<'a, str>>,
    iss: Option<Cow<'a, str>>,
}

/// Returns the response to a browser that comes back from the provider.
pub(super) async fn finish(
    exchange: &mut Exchange,
    visit: &Visit<'_>,
) -> Result<LocalResponse, Failed> {
    if exchange.parts.method != Method::GET {
        return Err(SignInFault::Malformed.into());
    }
    let origin = visit.origin(exchange)?;
    let query = exchange.parts.uri.query().unwrap_or_default().to_owned();
    let parameters = Parameters::read(&query)?;
    let state = parameters.state.as_deref().ok_or(SignInFault::Malformed)?;
    let login = Login::find(exchange, visit, state);
    let (login, id) = login.ok_or(SignInFault::UnknownState)?;
    let ended = visit.cookies.end_login(id);
    // The sign-in is over.
    let failed = |fault| Failed {
        fault,
        cookies: ended.clone(),
        retry_after: None,
    };
    let code = Code {
        code: parameters.code(visit.oidc).map_err(failed)?,
        redirect_uri: format!("{origin}{}", visit.oidc.ir.redirect_path),
        verifier: login.verifier.clone(),
    };
    let tokens = tokens(exchange, visit, code).await;
    let tokens = tokens.map_err(|error| match not_sent(error) {
        // The code is as good as before: the browser may come back with it.
        Some(retry_after) => Failed {
            retry_after: Some(retry_after),
            ..fault(error).into()
        },
        None => failed(fault(error)),
    })?;
    let session = session(exchange, visit, &login, &tokens).await;
    let outcome = match &session {
        Ok(_) => TokenOutcome::Issued,
        Err(SignInFault::UnknownKeys) => TokenOutcome::UnknownKey,
        Err(_) => TokenOutcome::Invalid,
    };
    visit.oidc.token_endpoint.count(GrantType::Code, outcome);
    let session = session.map_err(failed)?;
    let sealed = seal(exchange, visit, &session).map_err(failed)?;
    let cookies = sealed.into_iter().chain(ended).collect();
    returned((visit, &origin), &login, cookies).map_err(Into::into)
}

impl<'a> Parameters<'a> {
    fn read(query: &'a str) -> Result<Self, SignInFault> {
        if query.len() > MAX_QUERY {
            return Err(SignInFault::Malformed);
        }
        let mut read = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "state" => &mut read.state,
                "code" => &mut read.code,
                "error" => &mut read.error,
                "iss" => &mut read.iss,
                _ => continue,
            };
            // RFC 6749, 3.1: none more than once.
            if place.replace(value).is_some() {
                return Err(SignInFault::Malformed);
            }
        }
        Ok(read)
    }

    /// Returns the code, if the provider of the policy has issued one.
    fn code(&self, oidc: &Oidc) -> Result<String, SignInFault> {
        let must_name = oidc.ir.endpoints.as_ref().is_some_and(|it| it.sends_issuer);
        let is_of_provider = match self.iss.as_deref() {
            Some(issuer) => issuer == oidc.ir.issuer(),
            None => !must_name,
        };
        if !is_of_provider {
            return Err(SignInFault::OtherIssuer);
        }
        match (self.error.as_deref(), self.code.as_deref()) {
            (Some(_), Some(_)) | (None, None) => Err(SignInFault::Malformed),
            (Some(error), None) => Err(refusal(error)),
            (None, Some(code)) => match (1..=MAX_CODE).contains(&code.len()) {
                true => Ok(code.to_owned()),
                false => Err(SignInFault::Malformed),
            },
        }
    }
}

/// Returns what an error of the provider means (RFC 6749, 4.1.2.1; OpenID Connect Core 1.0, 3.1.2.6).
fn refusal(error: &str) -> SignInFault {
    match error {
        "access_denied"
        | "login_required"
        | "consent_required"
        | "interaction_required"
        | "account_selection_required" => SignInFault::Denied,
        "server_error" | "temporarily_unavailable" => SignInFault::Unavailable,
        _ => SignInFault::RequestRefused,
    }
}

/// Exchanges a code for tokens.
async fn tokens(
    exchange: &mut Exchange,
    visit: &Visit<'_>,
    code: Code,
) -> Result<TokenResponse, TokenError> {
    let worker = exchange.client.worker.clone();
    let client = exchange.record.client().ip();
    let tokens = worker.tokens.exchange(visit.oidc, client, code).await?;
    exchange.record.attempts.have_waited();
    Ok(tokens)
}

/// Verifies tokens. Waits for the keys of the provider if these do not have that of the ID token yet.
async fn session(
    exchange: &Exchange,
    visit: &Visit<'_>,
    login: &Login,
    tokens: &TokenResponse,
) -> Result<Arc<Session>, SignInFault> {
    let mut oidc = visit.oidc.clone();
    for _ in 0..LOOKS {
        match begin(&oidc, tokens, (&*login.nonce, login.asked), now()) {
            Ok(session) => return Ok(Arc::new(session)),
            Err(SessionFault::Invalid) => return Err(SignInFault::InvalidTokens),
            Err(SessionFault::UnknownKeys) => sleep(LOOK_PERIOD).await,
        }
        let table = exchange.client.worker.table.load();
        let current = table.oidc(&oidc.ir.policy);
        // Another client of another provider has no part in this sign-in.
        let is_same = |it: &Arc<Oidc>| {
            let identity = |oidc: &Oidc| (oidc.ir.issuer().to_owned(), oidc.ir.client_id.clone());
            identity(it) == identity(&oidc)
        };
        if let Some(current) = current.filter(is_same) {
            oidc = current;
        }
    }
    Err(SignInFault::UnknownKeys)
}

/// Returns after how many seconds a code may be tried again that the provider has not got.
fn not_sent(error: TokenError) -> Option<u64> {
    match error {
        TokenError::Busy => Some(1),
        TokenError::Deferred(seconds) => Some(seconds),
        TokenError::Unavailable
        | TokenError::Denied
        | TokenError::Rejected
        | TokenError::Invalid => None,
    }
}

fn fault(error: TokenError) -> SignInFault {
    match error {
        TokenError::Busy => SignInFault::Busy,
        TokenError::Deferred(_) | TokenError::Unavailable => SignInFault::Unavailable,
        TokenError::Denied => SignInFault::CodeRefused,
        TokenError::Rejected => SignInFault::ClientRefused,
        TokenError::Invalid => SignInFault::InvalidTokens,
    }
}

/// Returns the response that leads a browser back to the page that it has asked for.
fn returned(
    (visit, origin): (&Visit<'_>, &str),
    login: &Login,
    cookies: Vec<HeaderValue>,
) -> Result<LocalResponse, SignInFault> {
    let target = match login.target.starts_with('/') {
        true => &*login.target,
        false => "/",
    };
    let url = format!("{origin}{target}");
    if visit.oidc.ir.cookie.same_site != SameSite::Strict {
        return redirect(&url, cookies);
    }
    // After a redirect, the request for the page would be one of the provider's site, and without the cookies.
    let mut response = response(StatusCode::OK, cookies);
    let url: String = url.chars().map(escaped).collect();
    let page = format!(
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>Signed in</title>"
    );
    *response.body_mut() = Bytes::from(page);
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    // The URL of this page has the code, which backends would get in `Referer`.
    let none = HeaderValue::from_static("no-referrer");
    response.headers_mut().insert(REFERRER_POLICY, none);
    Ok(response)
}

/// Returns a character of a URL as text of HTML.
fn escaped(character: char) -> Cow<'static, str> {
    match character {
        '&' => "&amp;".into(),
        '"' => "%22".into(),
        '\'' => "%27".into(),
        '<' => "%3C".into(),
        '>' => "%3E".into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_occur_once() {
        let read = |query: &str| Parameters::read(query).map(|it| it.code.map(Cow::into_owned));
        assert_eq!(
            read("code=a%20b&state=c&x=y&x=z"),
            Ok(Some("a b".to_owned()))
        );
        for name in ["code", "state", "error", "iss"] {
            let query = format!("{name}=a&{name}=a");
            assert_eq!(read(&query), Err(SignInFault::Malformed), "{name}");
        }
        let long = format!("code={}", "a".repeat(MAX_QUERY));
        assert_eq!(read(&long), Err(SignInFault::Malformed));
    }

    #[test]
    fn url_cannot_leave_its_place_in_a_page() {
        let text: String = "\"><script>'&".chars().map(escaped).collect();
        assert_eq!(text, "%22%3E%3Cscript%3E%27&amp;");
    }
}
