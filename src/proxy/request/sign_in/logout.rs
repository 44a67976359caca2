//! The end of a session that its user asks for (OpenID Connect RP-Initiated Logout 1.0): here, and then at the provider. Pages of
//! other sites cannot ask for it.

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, ORIGIN, REFERER};
use http::{HeaderValue, Method, StatusCode};

use super::login::{random_state, redirect, with_query};
use super::session::opened;
use super::visit::{Visit, response};
use crate::filter::LocalResponse;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::sign_in_fault::SignInFault;
use crate::token_endpoint::now;

use super::cookies::MAX_AGE;

/// What cookies of sign-outs are sealed for.
const PURPOSE: &str = "logout";
const PAGE: &str = "<!doctype html><title>Signed out</title><p>You are signed out.";
/// With a route's `Referrer-Policy: no-referrer` alone, browsers send the form with `Origin: null`.
const QUESTION: &str = "<!doctype html><title>Sign out</title><meta name=\"referrer\" content=\"same-origin\">\
    <form method=\"post\"><button>Sign out</button></form>";

/// Returns the response to a browser that signs out, or that comes back from the provider.
pub(super) fn respond(
    exchange: &Exchange,
    visit: &Visit<'_>,
) -> Result<LocalResponse, SignInFault> {
    if !matches!(exchange.parts.method, Method::GET | Method::POST) {
        return Err(SignInFault::Malformed);
    }
    let query = exchange.parts.uri.query().unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let state = parameters.find(|(name, _)| name == "state");
    if let Some((_, state)) = state {
        return match is_own(exchange, visit, &state) {
            true => Ok(page(PAGE, visit.cookies.end_logout().into_iter().collect())),
            false => Err(SignInFault::UnknownState),
        };
    }
    if !is_asked_for(exchange, visit) {
        return Ok(question());
    }
    let mut cookies = visit.cookies.end_session(&exchange.parts.headers);
    let ir = &visit.oidc.ir;
    let endpoints = ir.endpoints.as_ref();
    let endpoint = endpoints.and_then(|it| it.end_session.as_ref());
    let Some((endpoint, (session, _))) = endpoint.zip(opened(exchange, visit)) else {
        return Ok(page(PAGE, cookies));
    };
    let state = random_state();
    let return_to = format!("{}{}", visit.origin(exchange)?, ir.logout_path);
    let location = with_query(
        &endpoint.to_string(),
        &[
            ("id_token_hint", &session.content.id_token),
            ("client_id", &ir.client_id),
            ("post_logout_redirect_uri", &return_to),
            ("state", &state),
        ],
    );
    let key = &exchange.client.worker.session_key;
    let content = format!("{} {state}", now());
    let sealed = key.seal_content(content.as_bytes(), &visit.sealing(PURPOSE));
    cookies.extend(visit.cookies.set_logout(&sealed));
    redirect(&location, cookies)
}

/// Reports whether the user asks for the end, and no page of another site does. Browsers say so in `Sec-Fetch-Site` (Fetch
/// Metadata), over HTTPS and to loopback. Otherwise `Origin` or `Referer` says it: other pages may leave these out, but cannot
/// forge them.
fn is_asked_for(exchange: &Exchange, visit: &Visit<'_>) -> bool {
    let headers = &exchange.parts.headers;
    let text = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    match (text("sec-fetch-site"), text("sec-fetch-dest")) {
        (Some(b"same-origin" | b"none"), _) => true,
        // A link of another host of the site, which may share the session, and no image.
        (Some(b"same-site"), Some(b"document")) => true,
        (Some(_), _) => false,
        (None, _) => {
            let named = headers.get(ORIGIN).or_else(|| headers.get(REFERER));
            let own = visit.origin(exchange).ok();
            named.zip(own).is_some_and(|(named, own)| {
                let rest = named.as_bytes().strip_prefix(own.as_bytes());
                rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
            })
        }
    }
}

/// Reports whether this browser has begun the sign-out with a state.
fn is_own(exchange: &Exchange, visit: &Visit<'_>, state: &str) -> bool {
    let key = &exchange.client.worker.session_key;
    let sealed = visit.cookies.logout(&exchange.parts.headers);
    let opened = sealed.and_then(|it| key.open_content(&it, &visit.sealing(PURPOSE)));
    let opened = opened.and_then(|it| String::from_utf8(it.content).ok());
    opened.is_some_and(|text| {
        let (began, own) = text.split_once(' ').unwrap_or_default();
        let began = began.parse::<u64>().unwrap_or_default();
        own == state && now().saturating_sub(began) < MAX_AGE
    })
}

/// Returns a page on which the user confirms the end. No other site may show it, since its user would click there.
fn question() -> LocalResponse {
    let mut response = page(QUESTION, Vec::new());
    let frames = HeaderValue::from_static("frame-ancestors 'none'");
    response
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, frames);
    response
}

fn page(text: &'static str, cookies: Vec<HeaderValue>) -> LocalResponse {
    let mut response = response(StatusCode::OK, cookies);
    *response.body_mut() = Bytes::from_static(text.as_bytes());
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    response
}
