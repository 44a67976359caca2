//! The credentials of a matched request: whether they are valid, and what the client may send with them. Must not know how
//! they are written or verified.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use tokio::sync::oneshot;

use super::identity::{Identity, authorize, broken};
use super::original;
use super::policy_refusal::PolicyRefusal;
use crate::filter::Scheme;
use crate::filter::credentials::{BasicCredentials, api_key, are_several, token};
use crate::filter::session_cookies;
use crate::ir::ObjectRef;
use crate::ir::authentication::Require;
use crate::ir::cookie_scope::CookieScope;
use crate::proxy::error::Error;
use crate::proxy::passwords::PasswordThreads;
use crate::settings::session_key::SessionKey;
use crate::table::{
    Authentication, Backend, BrokenPolicy, Listener, Oidc, Policies, Port, Remaining, RequestView,
    Session, Table, TakenTokens, TokenFault, Tokens, Users, VerifiedToken,
};
use crate::token_endpoint::now;

/// The challenge for clients without a valid API key. No scheme is registered for these.
const API_KEY: HeaderValue = HeaderValue::from_static("ApiKey");
/// The challenges for clients without a token, and with one that is not valid (RFC 6750, 3).
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");
const INVALID_TOKEN: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");
/// The challenge for clients without a session. No scheme is registered for these.
const OPENID: HeaderValue = HeaderValue::from_static("OpenID");
/// When a password may be sent again that could not be verified, in seconds.
const RETRY: HeaderValue = HeaderValue::from_static("1");

/// Credentials that a request has.
pub(super) enum Credentials {
    /// They are valid.
    Valid(Identity),
    /// It takes time to verify them.
    Unverified(Box<Unverified>),
    /// It has none that are valid, and needs none if the CORS filter answers it. Else the client gets this response.
    Waived(Box<PolicyRefusal>),
}

/// Credentials of which a password, a session or the permission of an authorization server has to be verified. What else
/// the request needs is valid.
pub(super) struct Unverified {
    /// Who sent the request, as far as that is known.
    pub(super) identity: Identity,
    password: Option<Box<BasicCredentials>>,
    /// The state of the limits that have counted the request.
    pub(super) remaining: Option<Remaining>,
    /// What the request has taken of these limits.
    pub(super) taken: TakenTokens,
    /// The authorization server, if a policy names one that can be used.
    pub(super) server: Option<Arc<Backend>>,
    /// The listener that has got the request, if a policy asks for sessions.
    pub(super) place: Option<ReceivingListener>,
    /// What the request lacks.
    pub(super) lacking: Lacking,
}

/// Where a request arrives, and the key of sessions there.
pub(super) struct Arrival<'a> {
    /// `None` if the port is served no more.
    pub(super) gateway: Option<&'a ObjectRef>,
    pub(super) listener: &'a Arc<Listener>,
    /// Scheme of the connection.
    pub(super) scheme: Scheme,
    pub(super) session_key: &'a SessionKey,
}

/// The listener that has got a request.
pub(super) struct ReceivingListener {
    pub(super) gateway: ObjectRef,
    pub(super) listener: Arc<Listener>,
}

impl Arrival<'_> {
    /// Returns the listener.
    fn place(&self) -> Option<ReceivingListener> {
        Some(ReceivingListener {
            gateway: self.gateway?.clone(),
            listener: self.listener.clone(),
        })
    }
}

/// A user name and password as far as they are known.
enum User {
    Valid(u32),
    Unverified(Box<BasicCredentials>),
    Invalid,
}

/// The credentials that a request lacks.
#[derive(Clone, Copy, Default)]
pub(super) struct Lacking {
    user: bool,
    key: bool,
    token: Option<NoToken>,
    session: bool,
}

impl Lacking {
    /// Returns all credentials that policies ask for.
    fn all(authentication: &Authentication) -> Self {
        Self {
            user: authentication.users.is_some(),
            key: authentication.clients.is_some(),
            token: authentication.tokens.is_some().then_some(NoToken::Invalid),
            session: authentication.oidc.is_some(),
        }
    }
}

/// Why a request has no valid token.
#[derive(Clone, Copy)]
pub(super) enum NoToken {
    Missing,
    Invalid,
    /// The keys of its issuer are unknown.
    WithoutKeys,
}

/// Decides on a request by its credentials, if it needs any, and by the rules about clients.
pub(super) fn check(
    policies: &Arc<Policies>,
    (client, arrival): (IpAddr, &Arrival<'_>),
    view: &RequestView<'_>,
) -> Result<Option<Credentials>, Box<PolicyRefusal>> {
    let authentication = policies.authentication().map_err(broken)?;
    let credentials = authentication.map(|it| credentials((policies, it), arrival, view));
    let credentials = credentials.transpose()?;
    if let Some(Credentials::Unverified(_)) = credentials {
        return Ok(credentials);
    }
    let identity = credentials.as_ref().and_then(Credentials::identity);
    authorize(policies, (client, identity), view)?;
    Ok(credentials)
}

/// Decides on the credentials of a request.
fn credentials(
    (policies, authentication): (&Arc<Policies>, &Authentication),
    arrival: &Arrival<'_>,
    view: &RequestView<'_>,
) -> Result<Credentials, Box<PolicyRefusal>> {
    let Authentication {
        users,
        clients,
        tokens,
        oidc,
        external,
        require,
        identity_headers: _,
    } = authentication;
    if are_several(view.headers) {
        return Err(refusal(authentication, Lacking::all(authentication)));
    }
    let key = clients.as_ref().map(|clients| {
        let key = api_key((view.headers, view.query), &clients.ir.from);
        key.and_then(|key| clients.find(&key))
    });
    let token = tokens.as_ref().map(|tokens| verified(tokens, view));
    let user = users.as_ref().map(|users| user(users, view.headers));
    let lacking = Lacking {
        user: matches!(user, Some(User::Invalid)),
        key: matches!(key, Some(None)),
        token: token.as_ref().and_then(|it| it.as_ref().err().copied()),
        session: false,
    };
    // With a session, the request needs no token.
    let waives = oidc.as_ref().is_some_and(|it| it.ir.pass_through_bearer);
    let needs_token = match lacking.token {
        Some(NoToken::Missing) => !waives,
        token => token.is_some(),
    };
    let (key, token) = (key.flatten(), token.and_then(Result::ok));
    let has_other = key.is_some() || token.is_some();
    let lacks_any = lacking.user || lacking.key || needs_token;
    let identity = |user| Identity {
        policies: policies.clone(),
        user,
        key,
        token,
        session: None,
    };
    let unverified = |identity, password| {
        Ok(Credentials::Unverified(Box::new(Unverified {
            identity,
            password,
            remaining: None,
            taken: TakenTokens::default(),
            server: None,
            place: oidc.as_ref().and_then(|_| arrival.place()),
            lacking,
        })))
    };
    // The server is asked last, and what clients say in its name is removed even if it is not asked.
    let waits = external.is_some() || oidc.is_some();
    let valid = |mut identity: Identity| {
        if !waits {
            return Ok(Credentials::Valid(identity));
        }
        identity.session = match (oidc, external) {
            (Some(oidc), None) if identity.needs_session() => session(oidc, arrival, view),
            _ => None,
        };
        match identity.session {
            Some(_) => Ok(Credentials::Valid(identity)),
            None => unverified(identity, None),
        }
    };
    match (require, user) {
        (Require::All, _) if lacks_any => Err(refusal(authentication, lacking)),
        (_, Some(User::Valid(user))) => valid(identity(Some(user))),
        (Require::Any, _) if has_other => valid(identity(None)),
        (_, Some(User::Unverified(password))) => unverified(identity(None), Some(password)),
        (Require::Any, _) if !waits => Err(refusal(authentication, lacking)),
        (Require::All | Require::Any, _) => valid(identity(None)),
    }
}

/// Returns the token of a request: that of the first issuer that it is one of.
fn verified(tokens: &Tokens, view: &RequestView<'_>) -> Result<Arc<VerifiedToken>, NoToken> {
    let mut problem = NoToken::Missing;
    for (index, provider) in tokens.ir.providers.iter().enumerate() {
        let Some(token) = token((view.headers, view.query), &provider.from) else {
            continue;
        };
        match tokens.verify(index, &token) {
            Ok(token) => return Ok(token),
            Err(TokenFault::WithoutKeys) => problem = NoToken::WithoutKeys,
            Err(_) if matches!(problem, NoToken::WithoutKeys) => {}
            Err(TokenFault::Invalid | TokenFault::UnknownKey) => problem = NoToken::Invalid,
        }
    }
    Err(problem)
}

/// Returns the session of a request for a page of its site, if it is remembered and need not be refreshed.
fn session(oidc: &Oidc, arrival: &Arrival<'_>, view: &RequestView<'_>) -> Option<Arc<Session>> {
    if oidc.ir.has_path(&view.path) {
        return None;
    }
    let scope = CookieScope {
        gateway: arrival.gateway?,
        listener: &arrival.listener.ir.key,
        host: view.host,
        key: arrival.session_key.id(),
    };
    if !scope.is_within(&oidc.ir.cookie) {
        return None;
    }
    let is_secure = original::scheme_of(view, arrival.scheme) == "https";
    let sealed = session_cookies::session(view.headers, oidc.cookie_name(is_secure))?;
    oidc.fresh_session(&sealed, &scope, now())
}

fn user(users: &Users, headers: &HeaderMap) -> User {
    let Some(credentials) = BasicCredentials::of(headers) else {
        return User::Invalid;
    };
    match users.remembered(credentials.name(), credentials.password()) {
        Some(user) => User::Valid(user),
        None => User::Unverified(Box::new(credentials)),
    }
}

/// Returns the response to a request that lacks these credentials.
fn refusal(authentication: &Authentication, lacking: Lacking) -> Box<PolicyRefusal> {
    let mut headers = HeaderMap::new();
    if let Some(users) = authentication.users.as_ref().filter(|_| lacking.user) {
        headers.append(WWW_AUTHENTICATE, users.challenge.clone());
    }
    if lacking.key {
        headers.append(WWW_AUTHENTICATE, API_KEY);
    }
    if let Some(problem) = lacking.token {
        let challenge = match problem {
            NoToken::Missing => BEARER,
            NoToken::Invalid => INVALID_TOKEN,
            // A client would discard a token that is invalid, and this one may be valid.
            NoToken::WithoutKeys => return broken(BrokenPolicy),
        };
        headers.append(WWW_AUTHENTICATE, challenge);
    }
    if lacking.session {
        headers.append(WWW_AUTHENTICATE, OPENID);
    }
    let error = Error::Unauthenticated;
    Box::new(PolicyRefusal {
        headers,
        ..error.into()
    })
}

fn busy() -> Box<PolicyRefusal> {
    Box::new(PolicyRefusal {
        headers: HeaderMap::from_iter([(RETRY_AFTER, RETRY)]),
        ..Error::PasswordsWait.into()
    })
}

impl Credentials {
    /// Returns who sent the request, if that is known.
    pub(super) fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Valid(identity) => Some(identity),
            Self::Unverified(_) | Self::Waived(_) => None,
        }
    }

    /// Reports whether it depends on a session or an authorization server whether the request passes.
    pub(super) fn have_server(&self) -> bool {
        match self {
            Self::Valid(_) | Self::Waived(_) => false,
            Self::Unverified(unverified) => unverified.has_server(),
        }
    }
}

impl Unverified {
    /// Reports whether a policy names an OpenID provider or an authorization server.
    pub(super) fn has_server(&self) -> bool {
        self.identity.external().is_some() || self.identity.oidc().is_some()
    }

    /// Finds the authorization server for requests through a port, if a policy names one.
    pub(super) fn find_server(&mut self, table: &Table, port: Option<&Arc<Port>>) {
        let server = self.identity.external().zip(port);
        let server = server.and_then(|(external, port)| {
            table.policy_server((&external.policy, 0), &port.ir.gateway)
        });
        self.server = server.cloned();
    }

    /// Verifies the password, if there is one. If the permission of an authorization server is enough, it need not be valid.
    pub(super) async fn verify_password(
        &mut self,
        threads: &PasswordThreads,
        client: IpAddr,
    ) -> Result<(), Box<PolicyRefusal>> {
        let Some(credentials) = self.password.take() else {
            return Ok(());
        };
        let authentication = self.identity.policies.authentication().map_err(broken)?;
        let users = authentication.and_then(|it| it.users.as_ref());
        let (Some(authentication), Some(users)) = (authentication, users) else {
            return Err(broken(BrokenPolicy));
        };
        let (sender, receiver) = oneshot::channel();
        let verifying = users.clone();
        let job = move || {
            // The client may be gone, or another of its requests was first.
            if sender.is_closed() {
                return;
            }
            let (name, password) = (credentials.name(), credentials.password());
            let known = verifying.remembered(name, password);
            let user = known.or_else(|| verifying.verify(name, password));
            let _ = sender.send(user);
        };
        let namespace = &users.ir.policy.namespace;
        let waits = threads.run(namespace, client, Box::new(job));
        waits.map_err(|_| busy())?;
        let is_any = authentication.require == Require::Any;
        match receiver.await {
            Ok(Some(user)) => {
                self.identity.user = Some(user);
                Ok(())
            }
            Ok(None) if is_any && self.has_server() => {
                self.lacking.user = true;
                Ok(())
            }
            Ok(None) => {
                let lacking = Lacking {
                    user: true,
                    key: is_any && authentication.clients.is_some(),
                    token: (is_any && authentication.tokens.is_some()).then_some(NoToken::Missing),
                    session: false,
                };
                Err(refusal(authentication, lacking))
            }
            Err(_) => Err(busy()),
        }
    }
}

/// Returns the response to a request that has no session, and may not begin one.
pub(super) fn without_session(identity: &Identity, lacking: Lacking) -> Box<PolicyRefusal> {
    match identity.policies().authentication() {
        Ok(Some(authentication)) => refusal(
            authentication,
            Lacking {
                session: true,
                ..lacking
            },
        ),
        _ => broken(BrokenPolicy),
    }
}
