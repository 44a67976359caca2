//! Unverified claims of a ServiceAccount token. They can reject a token but never accept it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::message::AUDIENCE;

/// Maximum size of a token in bytes. Real tokens have about 1,100.
const MAX_TOKEN: usize = 16 << 10;

/// The relevant claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// `exp`: seconds since the Unix epoch.
    pub(super) expires: u64,
}

#[derive(Deserialize)]
struct Payload {
    #[serde(default)]
    aud: Audiences,
    exp: u64,
}

/// One audience or several (RFC 7519, 4.1.3).
#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

/// Returns the claims of a token for this audience, or why it is unusable.
pub(super) fn claims(token: &str) -> Result<Claims, String> {
    if token.len() > MAX_TOKEN {
        return Err("the token is too long".to_owned());
    }
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the bearer token is not a ServiceAccount token".to_owned());
    };
    let payload = URL_SAFE_NO_PAD.decode(payload).ok();
    let payload = payload.and_then(|json| serde_json::from_slice::<Payload>(&json).ok());
    let payload = payload.ok_or("the bearer token cannot be parsed as a ServiceAccount token")?;
    let is_for_us = match &payload.aud {
        Audiences::One(audience) => audience == AUDIENCE,
        Audiences::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
    };
    if !is_for_us {
        return Err(format!("the token is not for the audience {AUDIENCE}"));
    }
    Ok(Claims {
        expires: payload.exp,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn token(payload: &Value) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
        format!("e30.{payload}.c2ln")
    }

    #[test]
    fn token_for_this_audience_has_an_expiry() {
        for audience in [json!(AUDIENCE), json!(["other", AUDIENCE])] {
            let claims = claims(&token(&json!({"aud": audience, "exp": 7})));
            assert_eq!(claims, Ok(Claims { expires: 7 }));
        }
    }

    #[test]
    fn rejects_other_tokens() {
        let wrong = [
            String::new(),
            "a.b".to_owned(),
            "a.b.c.d".to_owned(),
            "a.!.c".to_owned(),
            "x".repeat(MAX_TOKEN + 1),
            token(&json!({"aud": ["https://kubernetes.default.svc"], "exp": 7})),
            token(&json!({"exp": 7})),
            token(&json!({"aud": AUDIENCE})),
        ];
        for token in wrong {
            assert!(claims(&token).is_err(), "{token}");
        }
    }
}
