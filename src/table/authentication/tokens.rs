//! Tokens at run time: verifies signatures and claims, and remembers what was verified until it expires. Must not know where
//! requests have tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderName, HeaderValue};
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::claims::{Claims, size_of_headers};
use super::remembered::Remembered;
use super::remembered_bytes::NamespaceBytes;
use crate::ir::token::{self as ir, KeyMaterial, Provider, TokenType};
use crate::key_requests::KeyRequests;
use crate::runtime::monotonic;

/// Number of keys that a token is verified with that names none.
const MAX_TRIED: usize = 4;

/// The types of logout tokens, which may also have none (OpenID Connect Back-Channel Logout 1.0, 2.4).
const LOGOUT_TYPES: [&str; 2] = ["logout+jwt", "JWT"];

/// How often tokens of an issuer can ask for its keys, in milliseconds: clients choose the keys that tokens name.
const ASK_PERIOD: u64 = 1000;

/// The issuers of a policy.
#[derive(Debug)]
pub struct Tokens {
    /// Their configuration.
    pub ir: Arc<ir::Tokens>,
    verifiers: Box<[Verifier]>,
    requests: Arc<KeyRequests>,
    /// What was verified lately: only what an issuer has signed is here.
    verified: Remembered<Arc<VerifiedToken>>,
}

/// Why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// It is not of the issuer, or not valid now.
    Invalid,
    /// The keys of its issuer are unknown.
    WithoutKeys,
    /// It names a key that its issuer may have added since its keys were fetched.
    UnknownKey,
}

/// What verifies the tokens of an issuer.
#[derive(Debug)]
struct Verifier {
    /// A key, and what it may verify. By the position of the key in the configuration; `None` for one that the library
    /// refuses.
    keys: Box<[Option<(DecodingKey, Validation)>]>,
    /// When a token asked for the keys, in milliseconds of the monotonic clock; 0 if none did.
    asked: AtomicU64,
}

/// Whether a token has to say when it expires. One that has expired is not valid in any case.
#[derive(Clone, Copy)]
enum Lifetime {
    Limited,
    Any,
}

/// A valid token.
#[derive(Debug)]
pub struct VerifiedToken {
    /// The position of its issuer.
    provider: usize,
    /// When it becomes invalid, in seconds since 1970.
    expires: u64,
    /// What it says.
    pub claims: Claims,
    /// Headers with claims.
    pub headers: Box<[(HeaderName, HeaderValue)]>,
}

impl VerifiedToken {
    /// Returns the number of bytes of what it says.
    fn size(&self) -> usize {
        size_of::<Self>() + self.claims.size() + size_of_headers(&self.headers)
    }
}

/// The claim that a token needs to be verified at all.
#[derive(Deserialize)]
struct Issued {
    iss: String,
}

impl Tokens {
    /// Creates them. What they remember takes memory of the namespace.
    pub(super) fn new(
        ir: &Arc<ir::Tokens>,
        requests: &Arc<KeyRequests>,
        namespace: &Arc<NamespaceBytes>,
    ) -> Self {
        Self {
            verifiers: ir.providers.iter().map(Verifier::new).collect(),
            requests: requests.clone(),
            verified: Remembered::new(namespace),
            ir: ir.clone(),
        }
    }

    /// Returns a token if it is valid and of the issuer at this position.
    ///
    /// # Errors
    /// When it is not.
    pub fn verify(&self, provider: usize, text: &[u8]) -> Result<Arc<VerifiedToken>, TokenFault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_err(|_| TokenFault::Invalid)?;
        self.verify_at(provider, text, now.as_secs())
    }

    /// Returns the issuer of a token that it has verified.
    pub fn issuer(&self, token: &VerifiedToken) -> Option<&Provider> {
        self.ir.providers.get(token.provider)
    }

    fn verify_at(
        &self,
        provider: usize,
        text: &[u8],
        now: u64,
    ) -> Result<Arc<VerifiedToken>, TokenFault> {
        let place = self.verified.place(text);
        let known = place.as_ref().and_then(|it| it.find(|it| Some(it.clone())));
        if let Some(known) = known {
            let is_valid = known.provider == provider && now < known.expires;
            return is_valid.then_some(known).ok_or(TokenFault::Invalid);
        }
        let claims = self.verified_claims(provider, text)?;
        let verified = self.verified_token(provider, &claims);
        let verified = Arc::new(verified.ok_or(TokenFault::Invalid)?);
        if let Some(place) = place {
            place.set(verified.clone(), verified.size());
        }
        Ok(verified)
    }

    pub(super) fn verified_claims(
        &self,
        provider: usize,
        text: &[u8],
    ) -> Result<Map<String, Value>, TokenFault> {
        self.claims(provider, text, Lifetime::Limited)
    }

    /// Returns the claims of a logout token of the first issuer. It need not say when it expires.
    pub(super) fn logout_claims(&self, text: &[u8]) -> Result<Map<String, Value>, TokenFault> {
        let header = decode_header(text).map_err(|_| TokenFault::Invalid)?;
        let typ = header.typ.as_deref();
        let mut types = LOGOUT_TYPES.iter();
        match typ.is_none() || types.any(|it| TokenType::new(it).is_that_of(typ)) {
            true => self.claims(0, text, Lifetime::Any),
            false => Err(TokenFault::Invalid),
        }
    }

    fn claims(
        &self,
        provider: usize,
        text: &[u8],
        lifetime: Lifetime,
    ) -> Result<Map<String, Value>, TokenFault> {
        let ir = self.ir.providers.get(provider);
        let (ir, verifier) = ir
            .zip(self.verifiers.get(provider))
            .ok_or(TokenFault::Invalid)?;
        let header = Verifier::header_of(ir, text).ok_or(TokenFault::Invalid)?;
        let lacks_key = ir.key_set.is_some() && lacks_key(ir, &header);
        if let Some(key_set) = &ir.key_set
            && lacks_key
            && verifier.may_ask()
        {
            self.requests.ask(key_set);
        }
        if ir.keys.is_empty() {
            return Err(TokenFault::WithoutKeys);
        }
        let claims = verifier.verify(ir, &header, (text, lifetime));
        claims.ok_or(match lacks_key {
            true => TokenFault::UnknownKey,
            false => TokenFault::Invalid,
        })
    }

    fn verified_token(
        &self,
        provider: usize,
        claims: &Map<String, Value>,
    ) -> Option<VerifiedToken> {
        let ir = self.ir.providers.get(provider)?;
        let expires = claims.get("exp").and_then(seconds)?;
        let claims = Claims::new(claims)?;
        Some(VerifiedToken {
            provider,
            expires: expires.saturating_add(ir.leeway),
            headers: claims.headers(&ir.claim_headers),
            claims,
        })
    }
}

/// Returns a number of seconds (RFC 7519, 2: `NumericDate`), which may have a fraction.
pub(super) fn seconds(value: &Value) -> Option<u64> {
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
        Self {
            keys: keys.collect(),
            asked: AtomicU64::new(0),
        }
    }

    /// Reports whether a token may ask for keys now.
    fn may_ask(&self) -> bool {
        let now = monotonic::now().get();
        let asked = self.asked.load(Relaxed);
        let is_due = asked == 0 || now.saturating_sub(asked) >= ASK_PERIOD;
        let claim = || self.asked.compare_exchange(asked, now, Relaxed, Relaxed);
        is_due && claim().is_ok()
    }

    /// Returns the header of a token that says that it is of this issuer.
    fn header_of(ir: &Provider, token: &[u8]) -> Option<Header> {
        let header = decode_header(token).ok()?;
        // No header of `crit` is supported, so such a token is invalid (RFC 7515, 4.1.11). Encrypted tokens are not supported.
        if header.crit.is_some() || header.enc.is_some() {
            return None;
        }
        // RFC 8725, 3.11: a token of another kind that the issuer signs is none of these.
        let typ = header.typ.as_deref();
        if ir.token_type.as_ref().is_some_and(|it| !it.is_that_of(typ)) {
            return None;
        }
        // Unverified: only to spare signatures that cannot fit.
        let claimed: Issued = insecure_decode_claims(token).ok()?;
        (*claimed.iss == *ir.issuer).then_some(header)
    }

    /// Returns the claims of a valid token. One that names a key is verified with that one, others with the
    /// first few that can have its algorithm.
    fn verify(
        &self,
        ir: &Provider,
        header: &Header,
        (token, lifetime): (&[u8], Lifetime),
    ) -> Option<Map<String, Value>> {
        let keys = ir.keys.iter().zip(&self.keys);
        let mut keys = keys.filter(|(key, _)| fits(key, header)).take(MAX_TRIED);
        keys.find_map(|(_, key)| {
            let (key, validation) = key.as_ref()?;
            let decoded = match lifetime {
                Lifetime::Limited => decode(token, key, validation),
                Lifetime::Any => decode(token, key, &without_end(validation)),
            };
            decoded.ok().map(|token| token.claims)
        })
    }
}

/// Returns what also tokens meet that do not say when they expire.
fn without_end(validation: &Validation) -> Validation {
    let mut validation = validation.clone();
    validation.required_spec_claims.remove("exp");
    validation
}

/// Reports whether an issuer has no key of the name that a token has.
fn lacks_key(ir: &Provider, header: &Header) -> bool {
    let named = header.kid.as_deref();
    let has = |name| ir.keys.iter().any(|key| key.id.as_deref() == Some(name));
    ir.keys.is_empty() || named.is_some_and(|name| !has(name))
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
    use std::task::{Context, Poll, Waker};

    use jsonwebtoken::{Algorithm, EncodingKey, encode};
    use serde_json::json;

    use super::*;
    use crate::ir::ObjectRef;
    use crate::ir::token::{ClaimHeader, TokenType, VerificationKey};

    const KEY: &[u8] = b"a key of more than thirty-two bytes";

    fn tokens() -> Tokens {
        Tokens::new(&Arc::new(ir()), &Arc::default(), &Arc::default())
    }

    fn ir() -> ir::Tokens {
        let header = |claim: &str, header| ClaimHeader {
            claim: claim.into(),
            header: HeaderName::from_static(header),
        };
        ir::Tokens {
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
                key_set: None,
                key_server_tls: None,
                from: Box::default(),
                claim_headers: [header("sub", "x-user"), header("note", "x-note")].into(),
                leeway: 30,
                token_type: None,
            }]
            .into(),
        }
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
        assert!(valid(now() + 131).is_err());
        assert!(tokens.verify(1, &token).is_err());
    }

    #[test]
    fn token_of_another_type_is_not_valid() {
        let mut ir = ir();
        ir.providers[0].token_type = Some(TokenType::new("at+jwt"));
        let tokens = Tokens::new(&Arc::new(ir), &Arc::default(), &Arc::default());
        let claims = json!({"iss": "issuer", "exp": now() + 100});
        for (typ, expected) in [
            (Some("at+jwt"), true),
            (Some("application/AT+jwt"), true),
            (Some("JWT"), false),
            (Some("logout+jwt"), false),
            (None, false),
        ] {
            let mut header = Header::new(Algorithm::HS256);
            header.typ = typ.map(str::to_owned);
            let token = encode(&header, &claims, &EncodingKey::from_secret(KEY)).unwrap();
            let is_valid = tokens.verify(0, token.as_bytes()).is_ok();
            assert_eq!(is_valid, expected, "{typ:?}");
        }
    }

    #[test]
    fn logout_token_has_its_type_or_none_and_need_not_expire() {
        let issuer = json!({"iss": "issuer"});
        for (typ, claims, expected) in [
            (Some("logout+jwt"), json!({}), true),
            (Some("application/logout+jwt"), json!({}), true),
            (Some("JWT"), json!({}), true),
            (None, json!({"exp": now() + 100}), true),
            (Some("at+jwt"), json!({}), false),
            (Some(""), json!({}), false),
            (None, json!({"exp": now() - 100}), false),
            (None, json!({"exp": "never"}), false),
            (None, json!({"nbf": now() + 100}), false),
            (None, json!({"iss": "other"}), false),
        ] {
            let mut said = issuer.clone();
            for (name, value) in claims.as_object().unwrap() {
                said[name] = value.clone();
            }
            let mut header = Header::new(Algorithm::HS256);
            header.typ = typ.map(str::to_owned);
            let token = encode(&header, &said, &EncodingKey::from_secret(KEY)).unwrap();
            let found = tokens().logout_claims(token.as_bytes());
            assert_eq!(found.is_ok(), expected, "{typ:?} {claims}");
        }
    }

    #[test]
    fn lifetime_may_be_a_fraction_or_without_end() {
        for exp in [json!(1.8e9 * 2.0), json!(1e300), json!(u64::MAX)] {
            let token = token(&json!({"exp": exp}));
            let verified = tokens().verify(0, &token);
            assert!(verified.map_or(true, |it| it.expires > now()), "{exp}");
        }
        let half = token(&json!({"exp": 1.5}));
        assert!(tokens().verify(0, &half).is_err());
    }

    #[test]
    fn value_that_no_header_can_have_is_left_out() {
        let claims = json!({"exp": now() + 100, "note": "a\r\nx-user: root"});
        let verified = tokens().verify(0, &token(&claims)).unwrap();
        assert_eq!(verified.headers.len(), 1);
        assert_eq!(verified.headers[0].1, "alice");
    }

    /// Clients choose the keys that tokens name.
    #[test]
    fn token_of_unknown_key_asks_for_the_keys_once_in_a_while() {
        let key_set = ObjectRef::new("portcullis.dev", "KeySet", "ns", "https://a.com/keys");
        let mut ir = ir();
        ir.providers[0].key_set = Some(key_set.clone());
        let requests = Arc::<KeyRequests>::default();
        let tokens = Tokens::new(&Arc::new(ir.clone()), &requests, &Arc::default());
        let asked = || {
            let mut context = Context::from_waker(Waker::noop());
            requests.poll_take(&mut context).map(Vec::from_iter)
        };
        let claims = json!({"iss": "issuer", "exp": now() + 100});
        let named = |name: &str| {
            let mut header = Header::new(Algorithm::HS256);
            header.kid = Some(name.to_owned());
            encode(&header, &claims, &EncodingKey::from_secret(KEY)).unwrap()
        };
        assert!(tokens.verify(0, &token(&claims)).is_ok());
        let other = token(&json!({"iss": "other", "exp": now() + 100}));
        assert!(tokens.verify(0, &other).is_err());
        assert_eq!(asked(), Poll::Pending);
        for name in ["one", "two"] {
            let _ = tokens.verify(0, named(name).as_bytes());
        }
        assert_eq!(asked(), Poll::Ready(vec![key_set.clone()]));
        let _ = tokens.verify(0, named("three").as_bytes());
        assert_eq!(asked(), Poll::Pending);
        ir.providers[0].keys = Box::default();
        let tokens = Tokens::new(&Arc::new(ir), &requests, &Arc::default());
        let fault = tokens.verify(0, &token(&claims)).unwrap_err();
        assert_eq!(fault, TokenFault::WithoutKeys);
        assert_eq!(tokens.verify(0, &other).unwrap_err(), TokenFault::Invalid);
        assert_eq!(asked(), Poll::Ready(vec![key_set]));
    }
}
