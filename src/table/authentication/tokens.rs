//! Tokens at run time: verifies signatures and claims, and remembers what was verified until it expires. Must not know where
//! requests have tokens.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use http::{HeaderName, HeaderValue};
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::claims::Claims;
use super::keyed::{random_key, tag};
use crate::ir::token::{self as ir, KeyMaterial, Provider};

/// Number of tokens of a policy that are remembered. A new one may take the place of another.
const REMEMBERED: usize = 256;

/// Number of keys that a token is verified with that names none.
const MAX_TRIED: usize = 4;

/// The issuers of a policy.
#[derive(Debug)]
pub struct Tokens {
    /// Their configuration.
    pub ir: Arc<ir::Tokens>,
    verifiers: Box<[Verifier]>,
    key: hmac::Key,
    /// What was verified lately, by the tag of the token, which only this process can compute.
    verified: Box<[ArcSwapOption<VerifiedToken>]>,
}

/// What verifies the tokens of an issuer: a key, and what it may verify. By the position of the key in the configuration;
/// `None` for one that the library refuses.
#[derive(Debug)]
struct Verifier(Box<[Option<(DecodingKey, Validation)>]>);

/// A valid token.
#[derive(Debug)]
pub struct VerifiedToken {
    tag: [u8; 32],
    /// The position of its issuer.
    provider: usize,
    /// When it becomes invalid, in seconds since 1970.
    expires: u64,
    /// What it says.
    pub claims: Claims,
    /// Headers with claims.
    pub headers: Box<[(HeaderName, HeaderValue)]>,
}

/// The claim that a token needs to be verified at all.
#[derive(Deserialize)]
struct Issued {
    iss: String,
}

impl Tokens {
    pub(super) fn new(ir: &Arc<ir::Tokens>) -> Self {
        Self {
            verifiers: ir.providers.iter().map(Verifier::new).collect(),
            key: random_key(),
            verified: (0..REMEMBERED).map(|_| ArcSwapOption::empty()).collect(),
            ir: ir.clone(),
        }
    }

    /// Returns a token if it is valid and of the issuer at this position.
    pub fn verify(&self, provider: usize, text: &[u8]) -> Option<Arc<VerifiedToken>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        self.verify_at(provider, text, now.as_secs())
    }

    fn verify_at(&self, provider: usize, text: &[u8], now: u64) -> Option<Arc<VerifiedToken>> {
        let tag = tag(&self.key, &[text]);
        let place = usize::from(u16::from_le_bytes([tag[0], tag[1]])) % REMEMBERED;
        let place = self.verified.get(place)?;
        let known = place.load();
        if let Some(known) = known.as_ref()
            && verify_slices_are_equal(&known.tag, &tag).is_ok()
        {
            let is_valid = known.provider == provider && now < known.expires;
            return is_valid.then(|| known.clone());
        }
        let (ir, verifier) = (
            self.ir.providers.get(provider)?,
            self.verifiers.get(provider)?,
        );
        let claims = verifier.verify(ir, text)?;
        let expires = claims.get("exp").and_then(seconds)?;
        let claims = Claims::new(&claims)?;
        let headers = ir.claim_headers.iter().filter_map(|it| {
            let value = claims.text(&it.claim)?;
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((it.header.clone(), value))
        });
        let verified = Arc::new(VerifiedToken {
            tag,
            provider,
            expires: expires.saturating_add(ir.leeway),
            headers: headers.collect(),
            claims,
        });
        place.store(Some(verified.clone()));
        Some(verified)
    }
}

/// Returns a number of seconds (RFC 7519, 2: `NumericDate`), which may have a fraction.
fn seconds(value: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates"
    )]
    let rounded = |seconds: f64| seconds as u64;
    value.as_u64().or_else(|| value.as_f64().map(rounded))
}

impl Verifier {
    fn new(ir: &Provider) -> Self {
        let mut validation = Validation {
            leeway: ir.leeway,
            validate_nbf: true,
            ..Validation::default()
        };
        validation.set_issuer(&[&ir.issuer]);
        if ir.audiences.is_empty() {
            validation.validate_aud = false;
            validation.set_required_spec_claims(&["exp", "iss"]);
        } else {
            validation.set_audience(&ir.audiences);
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        }
        let keys = ir.keys.iter().map(|key| {
            let mut validation = validation.clone();
            validation.algorithms = key.algorithms.to_vec();
            let key = match &key.material {
                KeyMaterial::Rsa { n, e } => DecodingKey::from_rsa_components(n, e).ok(),
                KeyMaterial::Elliptic { x, y } => DecodingKey::from_ec_components(x, y).ok(),
                KeyMaterial::Edwards { x } => DecodingKey::from_ed_components(x).ok(),
                KeyMaterial::Shared(bytes) => Some(DecodingKey::from_secret(bytes)),
            };
            key.map(|key| (key, validation))
        });
        Self(keys.collect())
    }

    /// Returns the claims of a valid token. One that names a key is verified with that one, others with the
    /// first few that can have its algorithm.
    fn verify(&self, ir: &Provider, token: &[u8]) -> Option<Map<String, Value>> {
        let header = decode_header(token).ok()?;
        // No header of `crit` is supported, so such a token is invalid (RFC 7515, 4.1.11). Encrypted tokens are not supported.
        if header.crit.is_some() || header.enc.is_some() {
            return None;
        }
        // Unverified: only to spare signatures that cannot fit.
        let claimed: Issued = insecure_decode_claims(token).ok()?;
        if *claimed.iss != *ir.issuer {
            return None;
        }
        let keys = ir.keys.iter().zip(&self.0);
        let mut keys = keys.filter(|(key, _)| fits(key, &header)).take(MAX_TRIED);
        keys.find_map(|(_, key)| {
            let (key, validation) = key.as_ref()?;
            let decoded = decode(token, key, validation);
            decoded.ok().map(|token| token.claims)
        })
    }
}

/// Reports whether a key may have signed a token with this header. A shared key has no name.
fn fits(key: &ir::VerificationKey, header: &Header) -> bool {
    let is_named = match (&header.kid, &key.id) {
        (Some(named), Some(id)) => **named == **id,
        (None, _) => true,
        (Some(_), None) => matches!(key.material, KeyMaterial::Shared(_)),
    };
    is_named && key.algorithms.contains(&header.alg)
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Algorithm, EncodingKey, encode};
    use serde_json::json;

    use super::*;
    use crate::ir::ObjectRef;
    use crate::ir::token::{ClaimHeader, VerificationKey};

    const KEY: &[u8] = b"a key of more than thirty-two bytes";

    fn tokens() -> Tokens {
        let header = |claim: &str, header| ClaimHeader {
            claim: claim.into(),
            header: HeaderName::from_static(header),
        };
        Tokens::new(&Arc::new(ir::Tokens {
            policy: ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "policy"),
            providers: [Provider {
                issuer: "issuer".into(),
                audiences: Box::default(),
                keys: [VerificationKey {
                    id: None,
                    algorithms: [Algorithm::HS256].into(),
                    material: KeyMaterial::Shared(KEY.into()),
                }]
                .into(),
                from: Box::default(),
                claim_headers: [header("sub", "x-user"), header("note", "x-note")].into(),
                leeway: 30,
            }]
            .into(),
        }))
    }

    fn token(changes: &Value) -> Vec<u8> {
        let mut claims = json!({"iss": "issuer", "sub": "alice"});
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let key = EncodingKey::from_secret(KEY);
        encode(&Header::new(Algorithm::HS256), &claims, &key)
            .unwrap()
            .into_bytes()
    }

    fn now() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs()
    }

    #[test]
    fn remembered_token_is_valid_until_it_expires() {
        let tokens = tokens();
        let token = token(&json!({"exp": now() + 100}));
        let valid = |at| tokens.verify_at(0, &token, at);
        let first = valid(now()).unwrap();
        let again = valid(now() + 120).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(valid(now() + 131).is_none());
        assert!(tokens.verify(1, &token).is_none());
    }

    #[test]
    fn lifetime_may_be_a_fraction_or_without_end() {
        for exp in [json!(1.8e9 * 2.0), json!(1e300), json!(u64::MAX)] {
            let token = token(&json!({"exp": exp}));
            let verified = tokens().verify(0, &token);
            assert!(verified.is_none_or(|it| it.expires > now()), "{exp}");
        }
        let half = token(&json!({"exp": 1.5}));
        assert!(tokens().verify(0, &half).is_none());
    }

    #[test]
    fn value_that_no_header_can_have_is_left_out() {
        let claims = json!({"exp": now() + 100, "note": "a\r\nx-user: root"});
        let verified = tokens().verify(0, &token(&claims)).unwrap();
        assert_eq!(verified.headers.len(), 1);
        assert_eq!(verified.headers[0].1, "alice");
    }
}
