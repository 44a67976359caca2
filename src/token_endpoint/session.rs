//! Sessions of the tokens that a provider has issued. Does no I/O.

use super::grant::TokenResponse;
use crate::table::{IdToken, Oidc, Session, SessionContent, TokenFault};

/// Why tokens are no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFault {
    /// The ID token is missing or not valid, or it is for something else.
    Invalid,
    /// The keys that would verify the ID token are unknown.
    UnknownKeys,
}

/// Returns the session that a sign-in begins with this nonce, and that was asked for at a time, in microseconds since 1970, if that
/// is known.
///
/// # Errors
/// When the ID token is not valid for it.
pub fn begin(
    oidc: &Oidc,
    tokens: &TokenResponse,
    (nonce, asked): (&str, Option<u64>),
    now: u64,
) -> Result<Session, SessionFault> {
    let id_token = tokens.id_token.as_deref().ok_or(SessionFault::Invalid)?;
    let verified = oidc.verify(id_token).map_err(|fault| match fault {
        TokenFault::Invalid => SessionFault::Invalid,
        TokenFault::WithoutKeys | TokenFault::UnknownKey => SessionFault::UnknownKeys,
    })?;
    if !verified.is_for(&oidc.ir.client_id, nonce) {
        return Err(SessionFault::Invalid);
    }
    let lifetime = lifetime(tokens, Some(&verified), now).unwrap_or_default();
    let session = oidc.begin(SessionContent {
        began: now,
        asked,
        sid: None,
        expires: now.saturating_add(lifetime),
        lifetime,
        id_token: id_token.into(),
        access_token: kept_access_token(oidc, tokens),
        refresh_token: tokens.refresh_token.clone(),
    });
    session.ok_or(SessionFault::Invalid)
}

/// Returns a session with other tokens. The error continues a sentence about the provider.
pub(super) fn renewed(
    oidc: &Oidc,
    session: &Session,
    tokens: TokenResponse,
    now: u64,
) -> Result<Session, &'static str> {
    const INVALID: &str = "the response has an ID token that is not valid for the session";
    let access_token = kept_access_token(oidc, &tokens);
    let verified = match tokens.id_token.as_deref().map(|it| oidc.verify(it)) {
        Some(Ok(verified)) if verified.continues(session, &oidc.ir.client_id) => Some(verified),
        Some(Ok(_) | Err(TokenFault::Invalid)) => return Err(INVALID),
        // That of the session stays.
        None | Some(Err(TokenFault::UnknownKey | TokenFault::WithoutKeys)) => None,
    };
    let lifetime = lifetime(&tokens, verified.as_ref(), now);
    let lifetime = lifetime.unwrap_or(session.content.lifetime);
    let id_token = tokens.id_token.filter(|_| verified.is_some());
    let renewed = oidc.begin(SessionContent {
        began: session.content.began,
        asked: session.content.asked,
        sid: session.sid().map(Into::into),
        expires: now.saturating_add(lifetime),
        lifetime,
        id_token: id_token.unwrap_or_else(|| session.content.id_token.clone()),
        access_token,
        refresh_token: tokens
            .refresh_token
            .or_else(|| session.content.refresh_token.clone()),
    });
    renewed.ok_or(INVALID)
}

/// Returns for how long the tokens are valid: the access token, or else the ID token.
fn lifetime(tokens: &TokenResponse, verified: Option<&IdToken>, now: u64) -> Option<u64> {
    let of_id_token = || Some(verified?.expires()?.saturating_sub(now));
    tokens.expires_in.or_else(of_id_token)
}

fn kept_access_token(oidc: &Oidc, tokens: &TokenResponse) -> Option<Box<str>> {
    let is_kept = oidc.ir.access_token_header.is_some();
    is_kept.then(|| tokens.access_token.clone())
}
