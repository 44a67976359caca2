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

/// Returns the session of a request, if it has a valid one, without refreshing it, and whether it is sealed with the key of new
/// sessions, as far as that has just been found: of several, the one whose tokens end last. Other hosts of the domain may have
/// set one of these. So that nobody acts as another user by it, sessions of several users are none.
pub(super) fn opened(exchange: &Exchange, visit: &Visit<'_>) -> Option<(Arc<Session>, bool)> {
    let sealed = session_cookies::sessions(&exchange.parts.headers, visit.cookies.name);
    let mut sessions = sealed.filter_map(|sealed| valid(exchange, visit, &sealed));
    let mut last = sessions.next()?;
    for session in sessions {
        if !session.0.is_of_user_of(&last.0) {
            return None;
        }
        if session.0.content.expires > last.0.content.expires {
            last = session;
        }
    }
    Some(last)
}

/// Returns the session of a sealed text, if it is valid, and whether it is sealed with the key of new sessions.
fn valid(exchange: &Exchange, visit: &Visit<'_>, sealed: &[u8]) -> Option<(Arc<Session>, bool)> {
    let key = &exchange.client.worker.session_key;
    let (session, is_current) = visit.oidc.session(sealed, &visit.scope, || {
        let opened = key.open_content(sealed, &visit.sealing(PURPOSE))?;
        Some((
            serde_json::from_slice(&opened.content).ok()?,
            opened.is_current,
        ))
    })?;
    let is_live = visit.oidc.is_live(&session, now());
    is_live.then_some((session, is_current))
}

/// Returns the session of a request, if it has a valid one. The response sets the cookies of a session that was refreshed, or
/// that the previous key has sealed.
pub(super) async fn current(
    exchange: &mut Exchange,
    visit: &Visit<'_>,
) -> Result<Option<Arc<Session>>, SignInFault> {
    let Some((session, is_current)) = opened(exchange, visit) else {
        return Ok(None);
    };
    let (content, now) = (&session.content, now());
    let is_certain = !visit.oidc.is_uncertain(&session);
    if is_certain && content.is_fresh(now) || content.refresh_token.is_none() {
        let is_usable = is_certain && now < content.expires;
        if is_usable && !is_current {
            let cookies = seal(exchange, visit, &session)?;
            exchange.response_phase.set_cookies(cookies);
        }
        return Ok(is_usable.then_some(session));
    }
    let worker = exchange.client.worker.clone();
    let client = exchange.record.client().ip();
    let renewed = worker.tokens.refresh(visit.oidc, &session, client).await;
    exchange.record.attempts.have_waited();
    // Meanwhile the provider may have ended it.
    if visit.oidc.is_revoked(&session) {
        return Ok(None);
    }
    match renewed {
        Ok(renewed) => {
            let cookies = seal(exchange, visit, &renewed)?;
            exchange.response_phase.set_cookies(cookies);
            Ok(Some(renewed))
        }
        Err(error) => {
            let end = content.expires;
            let is_usable = match error {
                TokenError::Busy | TokenError::Deferred(_) | TokenError::Unavailable => {
                    now < end.saturating_add(GRACE)
                }
                TokenError::Denied | TokenError::Rejected | TokenError::Invalid => {
                    is_certain && now < end
                }
            };
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
