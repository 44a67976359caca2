//! Sessions of an OpenID provider: requests that have one pass, browsers without one sign in, and others are refused. Must not
//! know how tokens are obtained or verified.

mod back_channel;
mod callback;
mod cookies;
mod login;
mod logout;
mod session;
mod visit;

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Method};

use self::cookies::Cookies;
use self::visit::Visit;
use super::authentication::{Lacking, ReceivingListener, without_session};
use super::exchange::Exchange;
use super::identity::Identity;
use super::negotiation::accepts;
use super::original;
use super::policy_refusal::PolicyRefusal;
use crate::filter::LocalResponse;
use crate::filter::credentials::bearer;
use crate::ir::cookie_scope::CookieScope;
use crate::ir::oidc as ir;
use crate::proxy::sign_in_fault::SignInFault;
use crate::table::{self, Oidc};

/// What a policy that asks for a session says about a request.
pub(super) enum Session {
    /// It has a session.
    Valid(Arc<table::Session>),
    /// It needs none.
    Needless,
    /// The client gets this response.
    Respond(LocalResponse),
}

/// Decides on a request by its session.
pub(super) async fn check(
    exchange: &mut Exchange,
    (oidc, place): (&Arc<Oidc>, ReceivingListener),
    identity: &Identity,
    lacking: Lacking,
) -> Result<Session, Box<PolicyRefusal>> {
    // The provider asks without cookies, and may do so at another host than those of browsers.
    let back_channel = oidc.ir.back_channel_logout_path.as_deref();
    if back_channel == Some(exchange.view().path.as_str()) {
        let response = back_channel::respond(exchange, oidc).await?;
        return Ok(Session::Respond(response));
    }
    // What trusted proxies say about the URL counts.
    let scheme = original::scheme_of(&exchange.view(), exchange.client.scheme());
    let host: Box<str> = exchange.host.as_str().into();
    let scope = CookieScope {
        gateway: &place.gateway,
        listener: &place.listener.ir.key,
        host: &host,
        key: exchange.client.worker.session_key.id(),
    };
    if !scope.is_within(&oidc.ir.cookie) {
        return Err(SignInFault::OtherDomain.into());
    }
    let is_secure = scheme == "https";
    let visit = Visit {
        scope,
        cookies: Cookies::new(&oidc.ir, oidc.cookie_name(is_secure), is_secure),
        oidc,
        scheme,
    };
    let path = exchange.view().path;
    if *path == *oidc.ir.redirect_path {
        let response = callback::finish(exchange, &visit).await?;
        return Ok(Session::Respond(response));
    }
    if *path == *oidc.ir.logout_path {
        return Ok(Session::Respond(logout::respond(exchange, &visit)?));
    }
    if !identity.needs_session() {
        return Ok(Session::Needless);
    }
    if let Some(session) = session::current(exchange, &visit).await? {
        return Ok(Session::Valid(session));
    }
    if identity.external().is_some() && identity.is_optional() {
        return Ok(Session::Needless);
    }
    match may_sign_in(exchange, &oidc.ir, identity) {
        true => Ok(Session::Respond(login::begin(exchange, &visit)?)),
        false => Err(without_session(identity, lacking)),
    }
}

/// Reports whether a request without a session is one of a browser for a page. Clients that send other credentials get to
/// know that these are not valid.
fn may_sign_in(exchange: &Exchange, oidc: &ir::Oidc, identity: &Identity) -> bool {
    let headers = &exchange.parts.headers;
    let is_page = matches!(exchange.parts.method, Method::GET | Method::HEAD);
    let mut types = oidc.redirect_only_for.iter();
    let mut authorization = headers.get_all(AUTHORIZATION).iter();
    let has_bearer = |value: &HeaderValue| bearer(value.as_bytes()).is_some();
    let has_other = match identity.is_optional() {
        true => authorization.next().is_some(),
        false => oidc.pass_through_bearer && authorization.any(has_bearer),
    };
    is_page
        && !has_other
        && exchange.websocket.is_none()
        && exchange.upgrade.is_none()
        && !exchange.is_grpc()
        && types.any(|it| accepts(headers, it))
}
