//! The session of a request: opened, refreshed before its tokens end, and sealed again. Must not know how tokens are obtained.

use std::sync::Arc;

use http::HeaderValue;

use super::visit::Visit;
use crate::filter::session_cookies;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::sign_in_fault::SignInFault;
use crate::table::Session;
use crate::token_endpoint::{TokenError, now};

/// What sessions are sealed for.
const PURPOSE: &str = "session";
/// For how long a session goes on after the end of its tokens while the provider does not respond, in seconds: outages of ten
/// minutes end none.
const GRACE: u64 = 15 * 60;

/// Returns the session of a request, if it has a valid one, without refreshing it.
pub(super) fn opened(exchange: &Exchange, visit: &Visit<'_>) -> Option<Arc<Session>> {
    let settings = &visit.oidc.ir.cookie;
    let sealed = session_cookies::session(&exchange.parts.headers, &settings.name)?;
    let key = &exchange.client.worker.session_key;
    let session = visit.oidc.session(&sealed, &visit.scope, || {
        let content = key.open_content(&sealed, &visit.sealing(PURPOSE))?;
        serde_json::from_slice(&content).ok()
    })?;
    (now() < visit.oidc.end(&session)).then_some(session)
}

/// Returns the session of a request, if it has a valid one. The response sets the cookies of a session that was refreshed.
pub(super) async fn current(
    exchange: &mut Exchange,
    visit: &Visit<'_>,
) -> Result<Option<Arc<Session>>, SignInFault> {
    let Some(session) = opened(exchange, visit) else {
        return Ok(None);
    };
    let (content, now) = (&session.content, now());
    if content.is_fresh(now) {
        return Ok(Some(session));
    }
    if content.refresh_token.is_none() {
        return Ok((now < content.expires).then_some(session));
    }
    let worker = exchange.client.worker.clone();
    let client = exchange.record.client().ip();
    let renewed = worker.tokens.refresh(visit.oidc, &session, client).await;
    exchange.record.attempts.have_waited();
    match renewed {
        Ok(renewed) => {
            let cookies = seal(exchange, visit, &renewed)?;
            exchange.response_phase.set_cookies(cookies);
            Ok(Some(renewed))
        }
        Err(error) => {
            let grace = match error {
                TokenError::Busy | TokenError::Deferred(_) | TokenError::Unavailable => GRACE,
                TokenError::Denied | TokenError::Rejected | TokenError::Invalid => 0,
            };
            let is_usable = now < content.expires.saturating_add(grace);
            Ok(is_usable.then_some(session))
        }
    }
}

/// Returns the cookies of a session.
pub(super) fn seal(
    exchange: &Exchange,
    visit: &Visit<'_>,
    session: &Session,
) -> Result<Vec<HeaderValue>, SignInFault> {
    let content = serde_json::to_vec(&session.content).map_err(|_| SignInFault::TooLarge)?;
    let key = &exchange.client.worker.session_key;
    let text = key.seal_content(&content, &visit.sealing(PURPOSE));
    let cookies = visit.cookies.set_session(&text, &exchange.parts.headers);
    cookies.ok_or(SignInFault::TooLarge)
}
