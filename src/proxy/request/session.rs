//! Session persistence (GEP-1619): reads the endpoint of a request's session from its token, and
//! issues the token of a new session. A cookie or header has one token for each rule that uses its
//! name, because rules do not share sessions.

use std::net::SocketAddr;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::ir::cookie;
use crate::ir::session::{Carrier, SessionPersistence};
use crate::settings::session_key;
use crate::settings::session_key::{Session, SessionKey};
use crate::table::{BackendTarget, Rule, WeightedBackend};

/// Maximum number of tokens that are read from a request, or sent in a response.
const MAX_TOKENS: usize = 8;
/// Separates tokens.
const SEPARATOR: char = '.';

/// The backend and endpoint of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct SessionEndpoint {
    /// Index in [`Rule::backends`].
    pub(in crate::proxy) backend: usize,
    /// Endpoint of that backend.
    pub(in crate::proxy) endpoint: SocketAddr,
}

/// Finds the session of a request at the backends of `rule`, by the policy of the rule or else by
/// those of its backends. Returns `None` if there is none or it has expired, or if its endpoint was
/// removed.
pub(in crate::proxy) fn find(
    rule: &Rule,
    headers: &HeaderMap,
    key: &SessionKey,
) -> Option<SessionEndpoint> {
    match rule.ir.session() {
        Some(policy) => find_at_rule(policy, rule, headers, key),
        None => find_at_backends(rule, headers, key),
    }
}

fn find_at_rule(
    policy: &SessionPersistence,
    rule: &Rule,
    headers: &HeaderMap,
    key: &SessionKey,
) -> Option<SessionEndpoint> {
    let scope = rule.ir.id.session_scope();
    open(policy, &scope, headers, key, |endpoint| {
        let position = |with_weight: bool| {
            let mut backends = rule.backends().iter();
            backends.position(|one| match &one.target {
                BackendTarget::Backend(backend) if one.has_weight == with_weight => {
                    backend.endpoints().find(endpoint).is_some()
                }
                BackendTarget::Backend(_) | BackendTarget::Invalid(_) => false,
            })
        };
        // An endpoint may be that of several backendRefs.
        let backend = position(true).or_else(|| position(false))?;
        Some(SessionEndpoint { backend, endpoint })
    })
}

fn find_at_backends(rule: &Rule, headers: &HeaderMap, key: &SessionKey) -> Option<SessionEndpoint> {
    let has_policy = |one: &WeightedBackend| match &one.target {
        BackendTarget::Backend(backend) => backend.has_traffic(),
        BackendTarget::Invalid(_) => false,
    };
    if !rule.backends().iter().any(has_policy) {
        return None;
    }
    let find = |with_weight: bool| {
        let backends = rule.backends().iter().enumerate();
        let mut backends = backends.filter(|(_, one)| one.has_weight == with_weight);
        backends.find_map(|(index, one)| {
            let BackendTarget::Backend(backend) = &one.target else {
                return None;
            };
            let traffic = backend.traffic()?;
            let policy = traffic.session()?;
            let scope = rule.ir.id.session_scope();
            open(policy, &scope, headers, key, |endpoint| {
                backend.endpoints().find(endpoint)?;
                Some(SessionEndpoint {
                    backend: index,
                    endpoint,
                })
            })
        })
    };
    find(true).or_else(|| find(false))
}

/// Decrypts the tokens of a request. Returns the place of the first session of `scope` that has not
/// expired and whose endpoint `locate` finds.
fn open(
    policy: &SessionPersistence,
    scope: &str,
    headers: &HeaderMap,
    key: &SessionKey,
    locate: impl Fn(SocketAddr) -> Option<SessionEndpoint>,
) -> Option<SessionEndpoint> {
    tokens(policy, headers).find_map(|token| {
        let session = key.open(token, scope)?;
        let age = session_key::now().saturating_sub(session.began);
        if policy.absolute_timeout.is_some_and(|limit| age >= limit) {
            return None;
        }
        locate(session.endpoint)
    })
}

/// Returns the tokens of a request.
fn tokens<'a>(
    policy: &'a SessionPersistence,
    headers: &'a HeaderMap,
) -> impl Iterator<Item = &'a [u8]> {
    let (cookies, lines) = match &policy.carrier {
        Carrier::Cookie { name, .. } => (Some(cookie::values(headers, name)), None),
        Carrier::Header(name) => (None, Some(headers.get_all(name).iter())),
    };
    let cookies = cookies.into_iter().flatten();
    let lines = lines.into_iter().flatten().map(HeaderValue::as_bytes);
    let values = cookies.chain(lines);
    let separator = SEPARATOR as u8;
    let tokens = values.flat_map(move |value| value.split(move |byte| *byte == separator));
    tokens.take(MAX_TOKENS)
}

/// A session that begins with a response.
pub(in crate::proxy) struct NewSession<'a> {
    /// Its policy.
    pub(in crate::proxy) policy: &'a SessionPersistence,
    /// The rule that it is valid for.
    pub(in crate::proxy) rule: &'a Rule,
    /// Its endpoint.
    pub(in crate::proxy) endpoint: SocketAddr,
    /// Whether the client is connected over TLS.
    pub(super) is_secure: bool,
}

impl NewSession<'_> {
    /// Adds the token to a response. Keeps the tokens of other rules that `request` has, because
    /// this one takes their place at the client.
    pub(in crate::proxy) fn begin(
        &self,
        key: &SessionKey,
        request: &HeaderMap,
        response: &mut HeaderMap,
    ) {
        let scope = self.rule.ir.id.session_scope();
        let session = Session {
            endpoint: self.endpoint,
            began: session_key::now(),
        };
        let mut value = key.seal(session, &scope);
        let others = tokens(self.policy, request)
            .filter(|token| session_key::is_token(token) && key.open(token, &scope).is_none());
        for token in others.take(MAX_TOKENS - 1) {
            value.push(SEPARATOR);
            value.extend(token.iter().copied().map(char::from));
        }
        let (name, value) = match &self.policy.carrier {
            Carrier::Header(name) => {
                response.remove(name);
                (name, value)
            }
            Carrier::Cookie { name, is_permanent } => {
                // GEP-1619: a rewrite before or behind the Gateway changes no session.
                let mut cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax");
                let timeout = self.policy.absolute_timeout;
                if let Some(timeout) = timeout.filter(|_| *is_permanent) {
                    cookie += &format!("; Max-Age={}", timeout.as_secs().max(1));
                }
                if self.is_secure {
                    cookie += "; Secure";
                }
                (&SET_COOKIE, cookie)
            }
        };
        // The value is of names and paths that translation has checked. Appending fails only beyond
        // 24,000 headers, which no parser lets through.
        if let Ok(value) = HeaderValue::try_from(value) {
            let _ = response.try_append(name, value);
        }
    }
}
