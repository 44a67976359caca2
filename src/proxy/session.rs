//! Session persistence (GEP-1619): reads the endpoint of a request's session from its token, and
//! issues the token of a new session.

use std::net::SocketAddr;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::ir::session::{Carrier, SessionPersistence};
use crate::session_key::{self, Session, SessionKey};
use crate::table::{Rule, Target};
use crate::upstream::cookie;

/// Maximum number of tokens that are read from a request.
const MAX_TOKENS: usize = 8;

/// The backend and endpoint of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index in [`Rule::backends`].
    pub(super) backend: usize,
    /// Endpoint of that backend.
    pub(super) endpoint: SocketAddr,
}

/// Finds the session of a request at the backends of `rule`. Returns `None` if there is none or it
/// has expired, or if its endpoint was removed.
pub(super) fn find(
    policy: &SessionPersistence,
    rule: &Rule,
    headers: &HeaderMap,
    key: &SessionKey,
) -> Option<Place> {
    open(policy, headers, key, |endpoint| {
        let mut backends = rule.backends().iter();
        let backend = backends.position(|one| match &one.target {
            Target::Backend(backend) => backend.endpoints().find(endpoint).is_some(),
            Target::Invalid(_) => false,
        })?;
        Some(Place { backend, endpoint })
    })
}

/// Finds the session of a request at the backends that configure session persistence themselves.
pub(super) fn find_at_backends(
    rule: &Rule,
    headers: &HeaderMap,
    key: &SessionKey,
) -> Option<Place> {
    let mut backends = rule.backends().iter().enumerate();
    backends.find_map(|(index, one)| {
        let Target::Backend(backend) = &one.target else {
            return None;
        };
        let traffic = backend.traffic()?;
        open(traffic.session()?, headers, key, |endpoint| {
            backend.endpoints().find(endpoint)?;
            Some(Place {
                backend: index,
                endpoint,
            })
        })
    })
}

/// Decrypts the tokens of a request. Returns the place of the first session that has not expired and
/// whose endpoint `locate` finds.
fn open(
    policy: &SessionPersistence,
    headers: &HeaderMap,
    key: &SessionKey,
    locate: impl Fn(SocketAddr) -> Option<Place>,
) -> Option<Place> {
    let locate = |token: &[u8]| {
        let session = key.open(token, &policy.scope)?;
        let age = session_key::now().saturating_sub(session.began);
        if policy.absolute_timeout.is_some_and(|limit| age >= limit) {
            return None;
        }
        locate(session.endpoint)
    };
    match &policy.carrier {
        Carrier::Cookie { name, .. } => {
            let tokens = cookie::values(headers, name);
            tokens.take(MAX_TOKENS).find_map(locate)
        }
        Carrier::Header(name) => {
            let tokens = headers.get_all(name).iter().map(HeaderValue::as_bytes);
            tokens.take(MAX_TOKENS).find_map(locate)
        }
    }
}

/// Adds the token of a new session at `endpoint` to a response.
pub(super) fn begin(
    policy: &SessionPersistence,
    endpoint: SocketAddr,
    key: &SessionKey,
    is_secure: bool,
    headers: &mut HeaderMap,
) {
    let session = Session {
        endpoint,
        began: session_key::now(),
    };
    let token = key.seal(session, &policy.scope);
    let (name, value) = match &policy.carrier {
        Carrier::Header(name) => {
            headers.remove(name);
            (name, token)
        }
        Carrier::Cookie {
            name,
            path,
            is_permanent,
        } => {
            let mut cookie = format!("{name}={token}; Path={path}; HttpOnly; SameSite=Lax");
            if let Some(timeout) = policy.absolute_timeout.filter(|_| *is_permanent) {
                cookie += &format!("; Max-Age={}", timeout.as_secs().max(1));
            }
            if is_secure {
                cookie += "; Secure";
            }
            (&SET_COOKIE, cookie)
        }
    };
    // The value is of names and paths that translation has checked. Appending fails only beyond
    // 24,000 headers, which no parser lets through.
    if let Ok(value) = HeaderValue::try_from(value) {
        let _ = headers.try_append(name, value);
    }
}
