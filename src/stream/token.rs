//! Unverified claims of a ServiceAccount token. They can reject a token but never accept it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::wire::AUDIENCE;

/// Maximum size of a token in bytes. Real tokens have about 1,100.
const MAX_TOKEN: usize = 8 << 10;
/// Maximum lifetime of a token in seconds. The kubelet requests an hour. A TokenRequest may ask for a year, and such a
/// token would be valid until its pod is deleted.
const MAX_LIFETIME: u64 = 24 * 60 * 60;
/// Maximum difference of the clocks of the API server and of this process, in seconds.
const SKEW: u64 = 60;
/// Signature algorithms of ServiceAccount tokens. The API server has no others.
const ALGORITHMS: [&str; 7] = [
    "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA",
];

/// The relevant claims and the parts to verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims<'a> {
    /// `exp`: seconds since the Unix epoch.
    pub(super) expires: u64,
    /// `iss`.
    pub(super) issuer: Option<String>,
    /// `kid` of the header.
    pub(super) key: Option<String>,
    /// `alg` of the header.
    pub(super) algorithm: Option<String>,
    /// The pod and ServiceAccount that the token says it is bound to.
    pub(super) bound: Option<Bound>,
    /// The signed text.
    pub(super) signed: &'a str,
    /// The signature, in base64url.
    pub(super) signature: &'a str,
}

/// The claim `kubernetes.io`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Bound {
    pub(super) namespace: String,
    pub(super) serviceaccount: BoundObject,
    #[serde(default)]
    pub(super) pod: Option<BoundObject>,
}

/// An object of the claim `kubernetes.io`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct BoundObject {
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Deserialize)]
struct Header {
    alg: Option<String>,
    kid: Option<String>,
}

#[derive(Deserialize)]
struct Payload {
    #[serde(default)]
    aud: Audiences,
    exp: u64,
    iat: Option<u64>,
    nbf: Option<u64>,
    iss: Option<String>,
    #[serde(rename = "kubernetes.io")]
    bound: Option<Bound>,
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

/// Returns the claims of a token that can be valid for this audience at `now`, or why it is unusable.
pub(super) fn claims(token: &str, now: u64) -> Result<Claims<'_>, String> {
    if token.len() > MAX_TOKEN {
        return Err("the token is too long".to_owned());
    }
    let mut parts = token.split('.');
    let (Some(header), Some(payload), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the bearer token is not a ServiceAccount token".to_owned());
    };
    let has_signature = !signature.is_empty() && URL_SAFE_NO_PAD.decode(signature).is_ok();
    let parsed = json::<Header>(header).zip(json::<Payload>(payload));
    let parsed = parsed.filter(|_| has_signature);
    let (header, payload) =
        parsed.ok_or("the bearer token cannot be parsed as a ServiceAccount token")?;
    if let Some(algorithm) = &header.alg
        && !ALGORITHMS.contains(&algorithm.as_str())
    {
        return Err("the signature algorithm is not one of ServiceAccount tokens".to_owned());
    }
    let is_for_us = match &payload.aud {
        Audiences::One(audience) => audience == AUDIENCE,
        Audiences::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
    };
    if !is_for_us {
        return Err(format!("the token is not for the audience {AUDIENCE}"));
    }
    check_times(&payload, now)?;
    Ok(Claims {
        expires: payload.exp,
        issuer: payload.iss,
        key: header.kid,
        algorithm: header.alg,
        bound: payload.bound,
        signed: &token[..token.len() - signature.len() - 1],
        signature,
    })
}

/// Checks `exp`, `nbf`, `iat` and the lifetime (RFC 7519, 4.1.4 to 4.1.6).
fn check_times(payload: &Payload, now: u64) -> Result<(), String> {
    if payload.exp <= now {
        return Err("the token has expired".to_owned());
    }
    let starts = payload.nbf.max(payload.iat);
    if starts.is_some_and(|starts| starts > now.saturating_add(SKEW)) {
        return Err("the token is not valid yet".to_owned());
    }
    let latest_issue = payload.iat.unwrap_or(now).min(now);
    if payload.exp - latest_issue.min(payload.exp) > MAX_LIFETIME + SKEW {
        return Err(format!(
            "the token is valid for more than {} hours: tokens of the kubelet are valid for one",
            MAX_LIFETIME / 3600
        ));
    }
    Ok(())
}

fn json<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&json).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn with_header(header: &Value, payload: &Value) -> String {
        let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        format!("{}.{}.c2ln", part(header), part(payload))
    }

    fn token(payload: &Value) -> String {
        with_header(&json!({"alg": "RS256", "kid": "k"}), payload)
    }

    #[test]
    fn reads_the_claims_of_a_token_for_this_audience() {
        for audience in [json!(AUDIENCE), json!(["other", AUDIENCE])] {
            let bound = json!({
                "namespace": "infra", "serviceaccount": {"name": "edge", "uid": "1"},
                "pod": {"name": "edge-1", "uid": "2"}, "node": {"name": "n", "uid": "3"},
            });
            let token = token(&json!({
                "aud": audience, "exp": NOW + 3600, "iat": NOW, "nbf": NOW, "iss": "https://issuer",
                "kubernetes.io": bound,
            }));
            let claims = claims(&token, NOW).unwrap();
            assert_eq!(claims.expires, NOW + 3600);
            assert_eq!(claims.key.as_deref(), Some("k"));
            assert_eq!(claims.issuer.as_deref(), Some("https://issuer"));
            assert_eq!(claims.bound.unwrap().pod.unwrap().uid, "2");
            assert_eq!(claims.signature, "c2ln");
            assert_eq!(format!("{}.c2ln", claims.signed), token);
        }
    }

    #[test]
    fn rejects_other_tokens() {
        let valid = json!({"aud": AUDIENCE, "exp": NOW + 3600});
        let wrong = [
            String::new(),
            "a.b".to_owned(),
            "a.b.c.d".to_owned(),
            "a.!.c".to_owned(),
            "x".repeat(MAX_TOKEN + 1),
            token(&valid).replace(".c2ln", "."),
            with_header(&json!({"alg": "none"}), &valid),
            with_header(&json!({"alg": "HS256"}), &valid),
            with_header(&json!("text"), &valid),
            token(&json!({"aud": ["https://kubernetes.default.svc"], "exp": NOW + 3600})),
            token(&json!({"exp": NOW + 3600})),
            token(&json!({"aud": AUDIENCE})),
            token(&json!({"aud": AUDIENCE, "exp": NOW + 3600, "kubernetes.io": {}})),
        ];
        for token in wrong {
            assert!(claims(&token, NOW).is_err(), "{token}");
        }
    }

    #[test]
    fn rejects_times_outside_the_validity() {
        let problem = |payload: Value| {
            let mut whole = json!({"aud": AUDIENCE});
            whole
                .as_object_mut()
                .unwrap()
                .extend(payload.as_object().unwrap().clone());
            claims(&token(&whole), NOW).err().unwrap_or_default()
        };
        assert!(problem(json!({"exp": NOW})).contains("expired"));
        for claim in ["iat", "nbf"] {
            let late = json!({"exp": NOW + 3600, claim: NOW + SKEW + 1});
            assert!(problem(late).contains("not valid yet"));
            assert_eq!(problem(json!({"exp": NOW + 3600, claim: NOW + SKEW})), "");
        }
        let year = 365 * 24 * 3600;
        for long in [
            json!({"exp": NOW + year}),
            json!({"exp": NOW + year, "iat": NOW}),
            json!({"exp": NOW + 60, "iat": NOW - year}),
            json!({"exp": u64::MAX, "iat": NOW + SKEW}),
        ] {
            assert!(problem(long).contains("24 hours"));
        }
        assert_eq!(problem(json!({"exp": NOW + MAX_LIFETIME, "iat": NOW})), "");
    }
}
