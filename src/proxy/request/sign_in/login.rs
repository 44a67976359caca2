//! The beginning of a sign-in: state, nonce and verifier, bound to the browser by a sealed cookie, and the redirect to the
//! provider. Keeps nothing.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use form_urlencoded::Serializer;
use http::HeaderValue;
use http::StatusCode;
use http::header::LOCATION;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::cookies::MAX_AGE;
use super::visit::{Visit, response};
use crate::filter::LocalResponse;
use crate::filter::session_cookies::{SIGN_IN_ID, is_sign_in_id, sign_in_id};
use crate::proxy::request::exchange::Exchange;
use crate::proxy::request::original;
use crate::proxy::sign_in_fault::SignInFault;
use crate::token_endpoint::{now, now_micros};

/// What cookies of sign-ins are sealed for.
const PURPOSE: &str = "login";
/// Maximum length of a path with its query that the browser returns to.
const MAX_TARGET: usize = 1024;

/// A sign-in, as its cookie has it.
#[derive(Deserialize, Serialize)]
pub(super) struct Login {
    /// Its name, which the provider returns. Begins with the identifier in the names of its cookies.
    #[serde(rename = "s")]
    pub(super) state: String,
    /// What its ID token has.
    #[serde(rename = "n")]
    pub(super) nonce: String,
    /// The verifier of its challenge (RFC 7636).
    #[serde(rename = "v")]
    pub(super) verifier: String,
    /// Path and query that the browser returns to.
    #[serde(rename = "t")]
    pub(super) target: String,
    /// When it began, in seconds since 1970.
    #[serde(rename = "b")]
    began: u64,
    /// Likewise, in microseconds, if that is known.
    #[serde(rename = "q", default)]
    pub(super) asked: Option<u64>,
}

/// Returns the redirect of a browser to the provider.
pub(super) fn begin(exchange: &Exchange, visit: &Visit<'_>) -> Result<LocalResponse, SignInFault> {
    let ir = &visit.oidc.ir;
    let endpoints = ir.endpoints.as_ref().ok_or(SignInFault::Unavailable)?;
    let asked = now_micros();
    let began = asked / 1_000_000;
    let id = sign_in_id(began, &random::<6>());
    let login = Login {
        state: format!("{id}{}", random::<18>()),
        nonce: random::<18>(),
        verifier: random::<32>(),
        target: target(exchange),
        began,
        asked: Some(asked),
    };
    let challenge = digest(&SHA256, login.verifier.as_bytes());
    let challenge = URL_SAFE_NO_PAD.encode(challenge);
    let redirect_uri = format!("{}{}", visit.origin(exchange)?, ir.redirect_path);
    let mut parameters: Vec<(&str, &str)> = vec![
        ("response_type", "code"),
        ("client_id", &ir.client_id),
        ("redirect_uri", &redirect_uri),
        ("scope", &ir.scope),
        ("state", &login.state),
        ("nonce", &login.nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    let own = ir.authorization_parameters.iter();
    parameters.extend(own.map(|(name, value)| (&**name, &**value)));
    let location = with_query(&endpoints.authorization.to_string(), &parameters);
    let sealed = serde_json::to_vec(&login).map_err(|_| SignInFault::TooLarge)?;
    let key = &exchange.client.worker.session_key;
    // Tabs that a browser opens at one moment have no cookie of each other: each sign-in has its own.
    let browser = random::<18>();
    let sealed = key.seal_content(&sealed, &sealing(visit, &browser));
    let cookies = [
        visit.cookies.set_login(&id, &sealed),
        visit.cookies.set_browser(&id, &browser),
    ];
    let cookies: Option<Vec<_>> = cookies.into_iter().collect();
    let mut cookies = cookies.ok_or(SignInFault::TooLarge)?;
    cookies.extend(visit.cookies.end_oldest_logins(&exchange.parts.headers));
    redirect(&location, cookies)
}

/// Returns what seals a sign-in of a browser. The cookie of a sign-in has a path, so that other hosts of the domain can set it,
/// too: it is of use only beside its cookie that tells browsers apart.
fn sealing(visit: &Visit<'_>, browser: &str) -> Vec<u8> {
    visit.sealing(&format!("{PURPOSE} {browser}"))
}

impl Login {
    /// Returns the sign-in of this browser that has a state, and its identifier.
    pub(super) fn find<'s>(
        exchange: &Exchange,
        visit: &Visit<'_>,
        state: &'s str,
    ) -> Option<(Self, &'s str)> {
        let id = state.get(..SIGN_IN_ID)?;
        if !is_sign_in_id(id.as_bytes()) {
            return None;
        }
        let key = &exchange.client.worker.session_key;
        let headers = &exchange.parts.headers;
        let scope = sealing(visit, &visit.cookies.browser(headers, id)?);
        let sealed = visit.cookies.login(headers, id);
        let opened = sealed.iter().filter_map(|it| key.open_content(it, &scope));
        let mut logins = opened.filter_map(|it| serde_json::from_slice::<Self>(&it.content).ok());
        let now = now();
        Some((logins.find(|it| it.is_begun(state, now))?, id))
    }

    /// Reports whether it has a state and may end at a time, in seconds since 1970.
    fn is_begun(&self, state: &str, now: u64) -> bool {
        // The holder of the cookie knows neither, so that no time discloses anything.
        self.state == state && now.saturating_sub(self.began) < MAX_AGE
    }
}

/// Returns where the browser returns to: on this host, so that nobody chooses another one.
fn target(exchange: &Exchange) -> String {
    let target = original::target(&exchange.parts);
    let path = exchange.parts.uri.path();
    [target, path, "/"]
        .into_iter()
        .find(|it| it.len() <= MAX_TARGET && it.starts_with('/'))
        .unwrap_or("/")
        .to_owned()
}

/// Returns so many random bytes as text.
fn random<const LENGTH: usize>() -> String {
    let bytes: [u8; LENGTH] = rand::rng().random();
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a random state of a sign-out.
pub(super) fn random_state() -> String {
    random::<18>()
}

/// Adds parameters to a URL.
pub(super) fn with_query(url: &str, parameters: &[(&str, &str)]) -> String {
    let separator = match url.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    let mut query = Serializer::new(String::new());
    query.extend_pairs(parameters);
    format!("{url}{separator}{}", query.finish())
}

/// Returns a redirect of a browser that sets cookies.
pub(super) fn redirect(
    location: &str,
    cookies: Vec<HeaderValue>,
) -> Result<LocalResponse, SignInFault> {
    let location = HeaderValue::from_str(location).map_err(|_| SignInFault::NoUrl)?;
    let mut response = response(StatusCode::FOUND, cookies);
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_follow_those_of_the_url() {
        for (url, expected) in [
            ("https://a.example/auth", "https://a.example/auth?a=b+c"),
            ("https://a.example/auth?", "https://a.example/auth?a=b+c"),
            (
                "https://a.example/auth?x=y",
                "https://a.example/auth?x=y&a=b+c",
            ),
        ] {
            assert_eq!(with_query(url, &[("a", "b c")]), expected);
        }
    }

    #[test]
    fn sign_in_ends_with_its_own_state_and_in_time() {
        let login = Login {
            state: "own".to_owned(),
            nonce: String::new(),
            verifier: String::new(),
            target: "/".to_owned(),
            began: 1000,
            asked: None,
        };
        for (state, now, expected) in [
            ("own", 1000, true),
            ("own", 999 + MAX_AGE, true),
            ("own", 1000 + MAX_AGE, false),
            ("other", 1000, false),
            ("", 1000, false),
        ] {
            assert_eq!(login.is_begun(state, now), expected, "{state} {now}");
        }
    }

    #[test]
    fn random_texts_differ() {
        assert_ne!(random::<18>(), random::<18>());
        // RFC 7636, 4.1: 43 characters at least.
        assert_eq!(random::<32>().len(), 43);
    }
}
