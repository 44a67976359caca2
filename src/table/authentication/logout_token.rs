//! What a logout token says beside its signature, issuer and audience (OpenID Connect Back-Channel Logout 1.0, 2.4 and 2.6). Pure:
//! the caller passes the time.

use serde_json::{Map, Value};

use super::tokens::seconds;

/// The member of `events` that makes a token a logout token.
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// For how long after it was issued a token counts, in seconds. It need not say when it ends.
const MAX_AGE: u64 = 300;

/// Why a logout token ends no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoutFault {
    /// It is not valid.
    Invalid,
    /// It was sent before.
    Replayed,
    /// The keys that would verify it are unknown.
    UnknownKeys,
    /// There is no room to remember what it ends.
    Full,
}

/// What a logout token says: which session has ended, or else all of which user.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogoutToken<'a> {
    pub(super) session: Option<&'a str>,
    pub(super) subject: Option<&'a str>,
    /// What no other token of the issuer has.
    pub(super) id: &'a str,
}

impl<'a> LogoutToken<'a> {
    /// Reads the claims of a token at a time, in seconds since 1970, from which that of the provider differs by up to `leeway`.
    /// `None` if it is no logout token, or not a new one.
    pub(super) fn read(claims: &'a Map<String, Value>, now: u64, leeway: u64) -> Option<Self> {
        // So that no ID token is one, and none is an ID token.
        if claims.contains_key("nonce") {
            return None;
        }
        claims.get("events")?.as_object()?.get(EVENT)?.as_object()?;
        let issued = seconds(claims.get("iat")?)?;
        let earliest = now.saturating_sub(MAX_AGE + leeway);
        if !(earliest..=now.saturating_add(leeway)).contains(&issued) {
            return None;
        }
        let session = text(claims, "sid")?;
        let subject = text(claims, "sub")?;
        let id = text(claims, "jti")??;
        session.or(subject)?;
        Some(Self {
            session,
            subject,
            id,
        })
    }
}

/// Returns after how many seconds a token that has arrived does not count any more.
pub(super) fn lifetime(leeway: u64) -> u64 {
    MAX_AGE + 2 * leeway + 1
}

/// Returns a claim, if the token has it; `None` if it is no text, or empty.
fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<Option<&'a str>> {
    match claims.get(name) {
        None => Some(None),
        Some(Value::String(text)) if !text.is_empty() => Some(Some(text)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 10_000;

    fn claims(changes: &Value) -> Map<String, Value> {
        let mut claims =
            json!({"iat": NOW, "jti": "1", "sid": "s", "sub": "alice", "events": {EVENT: {}}});
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let object = claims.as_object_mut().unwrap();
        // A text stands for a claim that is missing, since null is a value.
        object.retain(|_, value| *value != "MISSING");
        object.clone()
    }

    #[test]
    fn token_names_a_session_or_a_user() {
        for (changes, session, subject) in [
            (json!({}), Some("s"), Some("alice")),
            (json!({"sid": "MISSING"}), None, Some("alice")),
            (json!({"sub": "MISSING"}), Some("s"), None),
            (
                json!({"events": {EVENT: {"a": 1}, "b": null}}),
                Some("s"),
                Some("alice"),
            ),
            (json!({"iat": 10_000.5}), Some("s"), Some("alice")),
        ] {
            let expected = LogoutToken {
                session,
                subject,
                id: "1",
            };
            let claims = claims(&changes);
            let found = LogoutToken::read(&claims, NOW, 60);
            assert_eq!(found, Some(expected), "{changes}");
        }
    }

    #[test]
    fn other_tokens_are_none() {
        for changes in [
            json!({"nonce": "n"}),
            json!({"nonce": null}),
            json!({"events": "MISSING"}),
            json!({"events": {}}),
            json!({"events": [EVENT]}),
            json!({"events": EVENT}),
            json!({"events": {EVENT: null}}),
            json!({"events": {EVENT: true}}),
            json!({"events": {"http://schemas.openid.net/event/backchannel-logout/": {}}}),
            json!({"sid": "MISSING", "sub": "MISSING"}),
            json!({"sid": ""}),
            json!({"sid": 1}),
            json!({"sub": null}),
            json!({"sub": ["alice"]}),
            json!({"jti": "MISSING"}),
            json!({"jti": ""}),
            json!({"jti": 1}),
            json!({"iat": "MISSING"}),
            json!({"iat": "10000"}),
        ] {
            let claims = claims(&changes);
            let found = LogoutToken::read(&claims, NOW, 60);
            assert_eq!(found, None, "{changes}");
        }
    }

    #[test]
    fn token_counts_while_it_is_new() {
        for (issued, expected) in [
            (NOW - MAX_AGE - 60, true),
            (NOW - MAX_AGE - 61, false),
            (NOW + 60, true),
            (NOW + 61, false),
            (0, false),
        ] {
            let claims = claims(&json!({"iat": issued}));
            let found = LogoutToken::read(&claims, NOW, 60);
            assert_eq!(found.is_some(), expected, "{issued}");
        }
        // One that has arrived as early as possible.
        let claims = claims(&json!({"iat": NOW + 60}));
        let is_read = |now| LogoutToken::read(&claims, now, 60).is_some();
        assert!(is_read(NOW) && !is_read(NOW + lifetime(60)));
    }
}
