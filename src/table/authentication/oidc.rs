//! Sign-in at an OpenID provider at run time: verifies ID tokens and logout tokens, and remembers sessions that were opened lately
//! and those that the provider has ended. Must not know cookies, or how tokens are obtained.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::claims::{Claims, size_of_headers};
use super::logout_token::{LogoutFault, LogoutToken};
use super::remembered::Remembered;
use super::remembered_bytes::NamespaceBytes;
use super::revocations::{MICROS, Name, Revocations};
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
    /// What the providers of the namespace have ended.
    revocations: Arc<Revocations>,
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
    /// When it was sent to the provider for that, in microseconds since 1970, if that is known.
    #[serde(rename = "q", default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// The session at the provider (`sid`), if the ID token does not name it.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<Box<str>>,
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
        let optional = [&content.access_token, &content.refresh_token, &content.sid];
        let optional = optional.into_iter().flatten().map(|it| it.len());
        let of_claims = self.claims.size() + size_of_headers(&self.headers);
        content.id_token.len() + optional.sum::<usize>() + of_claims
    }

    /// Returns the session at the provider, if the provider has named it.
    pub fn sid(&self) -> Option<&str> {
        let of_sign_in = self.content.sid.as_deref();
        of_sign_in.or_else(|| self.claims.values("sid").next())
    }

    /// Returns what a logout token may name it by.
    fn names(&self) -> impl Iterator<Item = Name<'_>> {
        let own = self.content.sid.as_deref();
        let sessions = own.into_iter().chain(self.claims.values("sid"));
        let unnamed = self.sid().is_none();
        let subjects = self.claims.values("sub").flat_map(move |subject| {
            let of_unnamed = unnamed.then_some(Name::SubjectOfUnnamed(subject));
            [Some(Name::Subject(subject)), of_unnamed]
        });
        sessions.map(Name::Session).chain(subjects.flatten())
    }

    /// Returns when it began, in microseconds since 1970: before the provider had to decide about it.
    fn start(&self) -> u64 {
        let began = self.content.began.saturating_mul(MICROS);
        self.content.asked.unwrap_or(began)
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
        revocations: Arc<Revocations>,
        namespace: &Arc<NamespaceBytes>,
        previous: Option<&Self>,
    ) -> Self {
        let tokens = Arc::new(token::Tokens {
            policy: ir.policy.clone(),
            providers: [ir.id_token.clone()].into(),
        });
        Self {
            tokens: Tokens::new(&tokens, requests, namespace),
            opened: Remembered::new(namespace),
            revocations,
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
        let is_certain = session.content.is_fresh(now) && !self.is_uncertain(&session);
        let is_valid = is_certain && self.is_live(&session, now);
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
            let opened = Opened {
                bound_to: scope.bound_to(&self.ir.cookie),
                session: session.clone(),
            };
            place.set(opened, size_of::<Session>() + session.size());
        }
        Some((session, is_current))
    }

    /// Returns a session with this content, whose ID token was verified; `None` if the token has too many claims.
    pub fn begin(&self, mut content: SessionContent) -> Option<Session> {
        let payload = content.id_token.split('.').nth(1)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let claims = Claims::new(&serde_json::from_slice(&payload).ok()?)?;
        // Cookies have little room.
        if claims
            .values("sid")
            .any(|it| content.sid.as_deref() == Some(it))
        {
            content.sid = None;
        }
        Some(Session {
            headers: claims.headers(&self.ir.id_token.claim_headers),
            claims,
            content,
        })
    }

    /// Reports whether a session goes on at a time, in seconds since 1970: it is not too old, and the provider has not ended it.
    pub fn is_live(&self, session: &Session, now: u64) -> bool {
        now < self.end(session) && !self.is_revoked(session)
    }

    /// Reports whether the provider has ended a session.
    pub fn is_revoked(&self, session: &Session) -> bool {
        let names = session.names();
        self.revocations.has_ended(&self.ir, names, session.start())
    }

    /// Reports whether the provider may have ended a session before this process could know it: only the provider can tell, when
    /// the session is refreshed.
    pub fn is_uncertain(&self, session: &Session) -> bool {
        let content = &session.content;
        let issued = content.expires.saturating_sub(content.lifetime);
        self.ir.back_channel_logout_path.is_some() && self.revocations.began_after(issued)
    }

    /// Ends the sessions that a logout token names, as far as they have begun. The time is in microseconds since 1970.
    ///
    /// # Errors
    /// When the token is not valid, or when that cannot be verified or remembered. It ends nothing then.
    pub fn end_sessions(&self, logout_token: &str, now: u64) -> Result<(), LogoutFault> {
        let claims = self.tokens.logout_claims(logout_token.as_bytes());
        let claims = claims.map_err(|fault| match fault {
            TokenFault::Invalid => LogoutFault::Invalid,
            TokenFault::WithoutKeys | TokenFault::UnknownKey => LogoutFault::UnknownKeys,
        })?;
        let token = LogoutToken::read(&claims, now / MICROS, self.ir.id_token.leeway);
        let token = token.ok_or(LogoutFault::Invalid)?;
        self.revocations.add(&self.ir, &token, now)
    }

    /// Returns when a session ends at the latest, in seconds since 1970.
    fn end(&self, session: &Session) -> u64 {
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
        let (requests, namespace) = (Arc::default(), Arc::default());
        Oidc::new(&Arc::new(ir), &requests, Arc::default(), &namespace, None)
    }

    fn content(claims: &Value) -> SessionContent {
        SessionContent {
            began: 1000,
            asked: None,
            sid: None,
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

    /// Ends what a token names that comes at 1000 s.
    fn ended(oidc: &Oidc, session: Option<&str>, subject: Option<&str>) {
        let token = LogoutToken {
            session,
            subject,
            id: "1",
        };
        oidc.revocations
            .add(&oidc.ir, &token, 1000 * MICROS)
            .unwrap();
    }

    #[test]
    fn provider_ends_a_session_or_all_of_a_user() {
        let (named, unnamed) = (json!({"sub": "alice", "sid": "s"}), json!({"sub": "alice"}));
        for (session, subject, claims, expected) in [
            (Some("s"), Some("alice"), &named, true),
            (Some("s"), None, &named, true),
            (Some("t"), Some("alice"), &named, false),
            (None, Some("alice"), &named, true),
            (None, Some("bob"), &named, false),
            // Without its name, it may be the one that is meant.
            (Some("s"), Some("alice"), &unnamed, true),
            (Some("s"), Some("bob"), &unnamed, false),
            (Some("s"), None, &unnamed, false),
            (None, Some("alice"), &unnamed, true),
        ] {
            let oidc = oidc();
            ended(&oidc, session, subject);
            let begun = oidc.begin(content(claims)).unwrap();
            let case = format!("{session:?} {subject:?} {claims}");
            assert_eq!(oidc.is_revoked(&begun), expected, "{case}");
            assert_eq!(oidc.is_live(&begun, 1001), !expected, "{case}");
        }
    }

    #[test]
    fn sessions_that_began_later_go_on() {
        let oidc = oidc();
        ended(&oidc, None, Some("alice"));
        let claims = json!({"sub": "alice"});
        for (began, asked, expected) in [
            (1000, None, true),
            (1001, None, false),
            // The provider was asked before, and has responded after.
            (1001, Some(1000 * MICROS), true),
            (1001, Some(1000 * MICROS + 1), false),
        ] {
            let content = SessionContent {
                began,
                asked,
                ..content(&claims)
            };
            let session = oidc.begin(content).unwrap();
            assert_eq!(oidc.is_revoked(&session), expected, "{began} {asked:?}");
        }
    }

    #[test]
    fn sessions_of_former_processes_are_uncertain() {
        let claims = json!({"sub": "alice"});
        for (path, since, expected) in [
            (Some("/ended"), 1000, false),
            (Some("/ended"), 1001, true),
            (None, 1001, false),
        ] {
            let mut ir = ir::Oidc::sample();
            ir.back_channel_logout_path = path.map(Into::into);
            let revocations = Arc::new(Revocations::new(since * MICROS));
            let (requests, namespace) = (Arc::default(), Arc::default());
            let oidc = Oidc::new(&Arc::new(ir), &requests, revocations, &namespace, None);
            let session = oidc.begin(content(&claims)).unwrap();
            assert_eq!(oidc.is_uncertain(&session), expected, "{path:?} {since}");
        }
    }

    /// A refreshed ID token need not name the session.
    #[test]
    fn session_keeps_its_name_at_the_provider() {
        let oidc = oidc();
        let with = |claims: &Value, sid: Option<&str>| {
            let sid = sid.map(Into::into);
            let content = SessionContent {
                sid,
                ..content(claims)
            };
            oidc.begin(content).unwrap()
        };
        let (named, unnamed) = (json!({"sub": "alice", "sid": "s"}), json!({"sub": "alice"}));
        for (session, sealed) in [
            (with(&named, None), false),
            (with(&named, Some("s")), false),
            (with(&unnamed, Some("s")), true),
        ] {
            assert_eq!(session.sid(), Some("s"));
            let text = serde_json::to_string(&session.content).unwrap();
            assert_eq!(text.contains("\"s\":\"s\""), sealed, "{text}");
        }
        ended(&oidc, Some("s"), None);
        assert!(oidc.is_revoked(&with(&unnamed, Some("s"))));
        // A provider that names it otherwise later may mean it by both names.
        let renamed = json!({"sub": "alice", "sid": "t"});
        assert!(oidc.is_revoked(&with(&renamed, Some("s"))));
        assert!(!oidc.is_revoked(&with(&renamed, None)));
    }

    #[test]
    fn failures_stay_until_the_policy_trusts_others() {
        let mut ir = ir::Oidc::sample();
        let (requests, namespace) = (Arc::default(), Arc::default());
        let new = |ir: &ir::Oidc, previous: Option<&Oidc>| {
            let ir = Arc::new(ir.clone());
            Oidc::new(&ir, &requests, Arc::default(), &namespace, previous)
        };
        let first = new(&ir, None);
        for _ in 0..3 {
            first.token_endpoint.admit(0).unwrap().failed(0);
        }
        ir.scope = "openid email".into();
        let second = new(&ir, Some(&first));
        assert!(second.token_endpoint.admit(0).is_err());
        ir.authorities = Authorities::Unverified;
        let third = new(&ir, Some(&second));
        assert!(third.token_endpoint.admit(0).is_ok());
    }

    #[test]
    fn prints_no_token() {
        let session = oidc().begin(content(&json!({"sub": "alice"}))).unwrap();
        assert!(!format!("{:?}", session.content).contains("secret"));
    }
}
