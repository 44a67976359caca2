//! Sign-in at an OpenID provider at run time: verifies ID tokens, and remembers sessions that were opened lately. Must not know
//! cookies, or how tokens are obtained.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claims::Claims;
use super::remembered::Remembered;
use super::token_endpoint::TokenEndpoint;
use super::tokens::{TokenFault, Tokens, seconds};
use crate::ir::cookie_scope::{BoundTo, CookieScope};
use crate::ir::oidc as ir;
use crate::ir::token;
use crate::key_requests::KeyRequests;

/// How long before the end of its tokens a session is refreshed at the earliest, in seconds, and in parts of their lifetime.
const MARGIN: u64 = 60;
const MARGIN_PARTS: u64 = 5;

/// The sign-in of a policy.
#[derive(Debug)]
pub struct Oidc {
    /// Its configuration.
    pub ir: Arc<ir::Oidc>,
    /// The state of the token endpoint.
    pub token_endpoint: Arc<TokenEndpoint>,
    tokens: Tokens,
    opened: Remembered<Opened>,
    /// Name of the cookies of sessions over HTTPS.
    secure_name: Box<str>,
}

/// A session that was opened, and where its cookie is of use.
struct Opened {
    bound_to: BoundTo,
    session: Arc<Session>,
}

/// What a session consists of, as it is sealed. Does not print tokens.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct SessionContent {
    /// When the client has signed in, in seconds since 1970.
    #[serde(rename = "b")]
    pub began: u64,
    /// When its tokens end, likewise.
    #[serde(rename = "e")]
    pub expires: u64,
    /// For how long they were valid when they were issued, in seconds.
    #[serde(rename = "l")]
    pub lifetime: u64,
    /// The ID token.
    #[serde(rename = "i")]
    pub id_token: Box<str>,
    /// The access token, if backends get it.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<Box<str>>,
    /// The refresh token, if the provider has issued one.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<Box<str>>,
}

impl fmt::Debug for SessionContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionContent").finish_non_exhaustive()
    }
}

impl SessionContent {
    /// Reports whether its tokens are good for so long that it need not be refreshed at a time, in seconds since 1970.
    pub fn is_fresh(&self, now: u64) -> bool {
        let margin = MARGIN.min(self.lifetime / MARGIN_PARTS);
        now.saturating_add(margin) < self.expires
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// What it consists of.
    pub content: SessionContent,
    /// What its ID token says.
    pub claims: Claims,
    /// Headers with claims.
    pub headers: Box<[(HeaderName, HeaderValue)]>,
}

impl Session {
    /// Returns the number of bytes of its tokens and of what they say.
    pub fn size(&self) -> usize {
        let content = &self.content;
        let optional = [&content.access_token, &content.refresh_token];
        let optional = optional.into_iter().flatten().map(|it| it.len());
        let headers = self.headers.iter().map(|(_, value)| value.len());
        let of_claims = self.claims.size() + headers.sum::<usize>();
        content.id_token.len() + optional.sum::<usize>() + of_claims
    }

    /// Reports whether this session and another one of the same policy are of one user.
    pub fn is_of_user_of(&self, other: &Self) -> bool {
        self.claims.values("sub").eq(other.claims.values("sub"))
    }
}

/// What an ID token says that decides whether it is for a sign-in.
#[derive(Debug)]
pub struct IdToken {
    claims: Map<String, Value>,
}

impl Oidc {
    /// Creates it, with the state of the token endpoint of the previous one.
    pub(super) fn new(
        ir: &Arc<ir::Oidc>,
        requests: &Arc<KeyRequests>,
        previous: Option<&Self>,
    ) -> Self {
        let tokens = Arc::new(token::Tokens {
            policy: ir.policy.clone(),
            providers: [ir.id_token.clone()].into(),
        });
        Self {
            tokens: Tokens::new(&tokens, requests),
            opened: Remembered::default(),
            secure_name: ir.cookie.secure_name(),
            token_endpoint: previous.map_or_else(Arc::default, |it| it.token_endpoint_for(ir)),
            ir: ir.clone(),
        }
    }

    /// Returns the state of the token endpoint for another version of the policy.
    fn token_endpoint_for(&self, ir: &ir::Oidc) -> Arc<TokenEndpoint> {
        let token = |ir: &ir::Oidc| ir.endpoints.as_ref().map(|it| it.token.clone());
        if token(&self.ir) != token(ir) || self.ir.authorities != ir.authorities {
            self.token_endpoint.forget_failures();
        }
        self.token_endpoint.clone()
    }

    /// Returns the name of the cookies of sessions.
    pub fn cookie_name(&self, is_secure: bool) -> &str {
        match is_secure {
            true => &self.secure_name,
            false => &self.ir.cookie.name,
        }
    }

    /// Verifies the signature, the issuer, the audience and the time of an ID token.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn verify(&self, id_token: &str) -> Result<IdToken, TokenFault> {
        let claims = self.tokens.verified_claims(0, id_token.as_bytes())?;
        Ok(IdToken { claims })
    }

    /// Returns the session of a sealed text at a time, in seconds since 1970, if it is remembered and need not be refreshed.
    pub fn fresh_session(
        &self,
        sealed: &[u8],
        scope: &CookieScope<'_>,
        now: u64,
    ) -> Option<Arc<Session>> {
        let session = self.opened.place(sealed)?.find(|it| it.of(scope))?;
        let is_valid = session.content.is_fresh(now) && now < self.end(&session);
        is_valid.then_some(session)
    }

    /// Returns the session of a sealed text, and whether it is sealed with the key of new sessions. If it is not remembered, it is
    /// the one that `open` returns. Only those of that key are remembered, so that others get new cookies with each response.
    pub fn session(
        &self,
        sealed: &[u8],
        scope: &CookieScope<'_>,
        open: impl FnOnce() -> Option<(SessionContent, bool)>,
    ) -> Option<(Arc<Session>, bool)> {
        let place = self.opened.place(sealed);
        if let Some(known) = place.as_ref().and_then(|it| it.find(|it| it.of(scope))) {
            return Some((known, true));
        }
        let (content, is_current) = open()?;
        let session = Arc::new(self.begin(content)?);
        if let Some(place) = place.filter(|_| is_current) {
            place.set(Opened {
                bound_to: scope.bound_to(&self.ir.cookie),
                session: session.clone(),
            });
        }
        Some((session, is_current))
    }

    /// Returns a session with this content, whose ID token was verified; `None` if the token has too many claims.
    pub fn begin(&self, content: SessionContent) -> Option<Session> {
        let payload = content.id_token.split('.').nth(1)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let claims = Claims::new(&serde_json::from_slice(&payload).ok()?)?;
        Some(Session {
            headers: claims.headers(&self.ir.id_token.claim_headers),
            claims,
            content,
        })
    }

    /// Returns when a session ends at the latest, in seconds since 1970.
    pub fn end(&self, session: &Session) -> u64 {
        let timeout: Duration = self.ir.absolute_timeout;
        session.content.began.saturating_add(timeout.as_secs())
    }
}

impl Opened {
    /// Returns the session, if its cookie is of use in a scope.
    fn of(&self, scope: &CookieScope<'_>) -> Option<Arc<Session>> {
        let is_of_use = self.bound_to.is_within(scope);
        is_of_use.then(|| self.session.clone())
    }
}

impl IdToken {
    /// Reports whether it is for a sign-in with this nonce at this client (OpenID Connect Core 1.0, 3.1.3.7).
    pub fn is_for(&self, client: &str, nonce: &str) -> bool {
        let own = self.text("nonce").unwrap_or_default();
        let has_nonce = verify_slices_are_equal(own.as_bytes(), nonce.as_bytes()).is_ok();
        has_nonce && self.is_authorized_for(client)
    }

    /// Reports whether it may take the place of the one of a session (12.2).
    pub fn continues(&self, session: &Session, client: &str) -> bool {
        let same = |name: &str| {
            let mut values = session.claims.values(name);
            self.text(name) == values.next() && values.next().is_none()
        };
        let has_nonce = self.claims.contains_key("nonce");
        same("sub") && (!has_nonce || same("nonce")) && self.is_authorized_for(client)
    }

    /// Returns when it ends, in seconds since 1970.
    pub fn expires(&self) -> Option<u64> {
        seconds(self.claims.get("exp")?)
    }

    /// Reports whether the client is the authorized party. With several audiences it has to be named.
    fn is_authorized_for(&self, client: &str) -> bool {
        let is_for_several =
            matches!(self.claims.get("aud"), Some(Value::Array(values)) if values.len() > 1);
        let has_subject = self.text("sub").is_some_and(|it| !it.is_empty());
        has_subject
            && match self.claims.get("azp") {
                None => !is_for_several,
                Some(party) => party.as_str() == Some(client),
            }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.claims.get(name)?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ir::tls::Authorities;
    use crate::ir::token::ClaimHeader;
    use crate::ir::{ListenerKey, ObjectRef};

    fn oidc() -> Oidc {
        let mut ir = ir::Oidc::sample();
        ir.id_token.claim_headers = [ClaimHeader {
            claim: "sub".into(),
            header: HeaderName::from_static("x-user"),
        }]
        .into();
        Oidc::new(&Arc::new(ir), &Arc::default(), None)
    }

    fn content(claims: &Value) -> SessionContent {
        SessionContent {
            began: 1000,
            expires: 1100,
            lifetime: 100,
            id_token: format!("e30.{}.", URL_SAFE_NO_PAD.encode(claims.to_string())).into(),
            access_token: None,
            refresh_token: Some("secret".into()),
        }
    }

    fn id_token(claims: &Value) -> IdToken {
        let claims = claims.as_object().unwrap().clone();
        IdToken { claims }
    }

    #[test]
    fn session_is_opened_once_where_it_is_of_use() {
        let oidc = oidc();
        let gateway = ObjectRef::new("gateway.networking.k8s.io", "Gateway", "ns", "gateway");
        let listener = ListenerKey {
            origin: gateway.clone(),
            name: "http".into(),
        };
        let at = |host| CookieScope {
            gateway: &gateway,
            listener: &listener,
            host,
            key: [0; 8],
        };
        let open = || Some((content(&json!({"sub": "alice"})), true));
        let (first, _) = oidc.session(b"text", &at("a.example"), open).unwrap();
        let (again, _) = oidc.session(b"text", &at("a.example"), || None).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(first.headers[0].1, "alice");
        assert_eq!(oidc.end(&first), 4600);
        for (text, host) in [("other", "a.example"), ("text", "b.example")] {
            let scope = at(host);
            assert!(oidc.session(text.as_bytes(), &scope, || None).is_none());
            let fresh = oidc.fresh_session(text.as_bytes(), &scope, 1000);
            assert!(fresh.is_none(), "{text} {host}");
        }
        // It ends at 1100, and is refreshed 20 s before.
        for (now, expected) in [(1000, true), (1079, true), (1080, false), (5000, false)] {
            let fresh = oidc.fresh_session(b"text", &at("a.example"), now);
            assert_eq!(fresh.is_some(), expected, "{now}");
        }
    }

    #[test]
    fn id_token_is_for_one_sign_in_at_one_client() {
        let good = json!({"sub": "alice", "aud": "shop", "nonce": "n"});
        assert!(id_token(&good).is_for("shop", "n"));
        for (changes, expected) in [
            (json!({"azp": "shop"}), true),
            (json!({"azp": "other"}), false),
            (json!({"azp": 1}), false),
            (json!({"aud": ["shop"]}), true),
            (json!({"aud": ["shop", "other"]}), false),
            (json!({"aud": ["shop", "other"], "azp": "shop"}), true),
            (json!({"nonce": "m"}), false),
            (json!({"nonce": ["n"]}), false),
            (json!({"nonce": null}), false),
            (json!({"sub": ""}), false),
            (json!({"sub": null}), false),
        ] {
            let mut claims = good.clone();
            for (name, value) in changes.as_object().unwrap() {
                claims[name] = value.clone();
            }
            assert_eq!(id_token(&claims).is_for("shop", "n"), expected, "{changes}");
        }
    }

    #[test]
    fn refreshed_id_token_is_of_the_same_user() {
        let oidc = oidc();
        let session = oidc.begin(content(&json!({"sub": "alice", "nonce": "n"})));
        let session = session.unwrap();
        for (claims, expected) in [
            (json!({"sub": "alice"}), true),
            (json!({"sub": "alice", "nonce": "n"}), true),
            (json!({"sub": "alice", "nonce": "m"}), false),
            (json!({"sub": "bob"}), false),
            (json!({}), false),
        ] {
            let continues = id_token(&claims).continues(&session, "shop");
            assert_eq!(continues, expected, "{claims}");
        }
    }

    #[test]
    fn failures_stay_until_the_policy_trusts_others() {
        let mut ir = ir::Oidc::sample();
        let requests = Arc::default();
        let first = Oidc::new(&Arc::new(ir.clone()), &requests, None);
        for _ in 0..3 {
            first.token_endpoint.admit(0).unwrap().failed(0);
        }
        ir.scope = "openid email".into();
        let second = Oidc::new(&Arc::new(ir.clone()), &requests, Some(&first));
        assert!(second.token_endpoint.admit(0).is_err());
        ir.authorities = Authorities::Unverified;
        let third = Oidc::new(&Arc::new(ir), &requests, Some(&second));
        assert!(third.token_endpoint.admit(0).is_ok());
    }

    #[test]
    fn prints_no_token() {
        let session = oidc().begin(content(&json!({"sub": "alice"}))).unwrap();
        assert!(!format!("{:?}", session.content).contains("secret"));
    }
}
