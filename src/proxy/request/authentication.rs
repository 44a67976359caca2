//! The credentials of a matched request: whether they are valid, what the client may send with them, and what the backend
//! gets of them. Must not know how they are written or verified.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, request};
use tokio::sync::oneshot;

use super::policy_refusal::PolicyRefusal;
use crate::filter::credentials::{BasicCredentials, api_key, remove_api_keys, token};
use crate::ir::authentication::Require;
use crate::proxy::error::Error;
use crate::proxy::passwords::PasswordThreads;
use crate::table::{
    Authentication, AuthorizedRequest, BrokenPolicy, Claims, Policies, RequestView, Tokens, Users,
    VerifiedToken,
};
use crate::telemetry::trace::Event;

/// The challenge for clients without a valid API key. No scheme is registered for these.
const API_KEY: HeaderValue = HeaderValue::from_static("ApiKey");
/// The challenges for clients without a token, and with one that is not valid (RFC 6750, 3).
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");
const INVALID_TOKEN: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");
/// When a password may be sent again that could not be verified, in seconds.
const RETRY: HeaderValue = HeaderValue::from_static("1");

/// Credentials that a request has.
pub(super) enum Credentials {
    /// They are valid.
    Valid(Identity),
    /// The password has to be verified.
    Unverified(Box<Unverified>),
}

/// Who sent a request.
pub(super) struct Identity {
    policies: Arc<Policies>,
    /// Index of the user.
    user: Option<usize>,
    /// Index of the API key.
    key: Option<usize>,
    token: Option<Arc<VerifiedToken>>,
}

/// A password that has to be verified. What else the request needs is valid.
pub(super) struct Unverified {
    policies: Arc<Policies>,
    credentials: Box<BasicCredentials>,
    key: Option<usize>,
    token: Option<Arc<VerifiedToken>>,
}

/// A user name and password as far as they are known.
enum User {
    Valid(usize),
    Unverified(Box<BasicCredentials>),
    Invalid,
}

/// The credentials that a request lacks.
#[derive(Clone, Copy, Default)]
struct Lacking {
    user: bool,
    key: bool,
    token: Option<NoToken>,
}

/// Why a request has no valid token.
#[derive(Clone, Copy)]
enum NoToken {
    Missing,
    Invalid,
}

/// Decides on a request by its credentials, if it needs any, and by the rules about clients.
pub(super) fn check(
    policies: &Arc<Policies>,
    client: IpAddr,
    view: &RequestView<'_>,
) -> Result<Option<Credentials>, Box<PolicyRefusal>> {
    let authentication = policies.authentication().map_err(broken)?;
    let credentials = authentication.map(|it| credentials(policies, it, view));
    let credentials = credentials.transpose()?;
    let identity = match &credentials {
        None => None,
        Some(Credentials::Valid(identity)) => Some(identity),
        Some(Credentials::Unverified(_)) => return Ok(credentials),
    };
    authorize(policies, (client, identity), view)?;
    Ok(credentials)
}

/// Decides on a request by the rules about clients.
fn authorize(
    policies: &Policies,
    (client, identity): (IpAddr, Option<&Identity>),
    view: &RequestView<'_>,
) -> Result<(), Box<PolicyRefusal>> {
    let request = AuthorizedRequest {
        client,
        names: identity.map_or([None; 2], Identity::names),
        claims: identity.and_then(Identity::claims),
        view: *view,
    };
    match policies.permits(&request).map_err(broken)? {
        true => Ok(()),
        false => Err(Box::new(Error::Unauthorized.into())),
    }
}

fn broken(_: BrokenPolicy) -> Box<PolicyRefusal> {
    Box::new(Error::BrokenPolicy.into())
}

/// Decides on the credentials of a request.
fn credentials(
    policies: &Arc<Policies>,
    authentication: &Authentication,
    view: &RequestView<'_>,
) -> Result<Credentials, Box<PolicyRefusal>> {
    let Authentication {
        users,
        clients,
        tokens,
        require,
    } = authentication;
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
    };
    let (key, token) = (key.flatten(), token.and_then(Result::ok));
    let has_other = key.is_some() || token.is_some();
    let lacks_any = lacking.user || lacking.key || lacking.token.is_some();
    let policies = policies.clone();
    let identity = |user| {
        Ok(Credentials::Valid(Identity {
            policies: policies.clone(),
            user,
            key,
            token: token.clone(),
        }))
    };
    match (require, user) {
        (Require::All, _) if lacks_any => Err(refusal(authentication, lacking)),
        (_, Some(User::Valid(user))) => identity(Some(user)),
        (Require::Any, _) if has_other => identity(None),
        (_, Some(User::Unverified(credentials))) => {
            Ok(Credentials::Unverified(Box::new(Unverified {
                policies,
                credentials,
                key,
                token,
            })))
        }
        (Require::All, _) => identity(None),
        (Require::Any, _) => Err(refusal(authentication, lacking)),
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
            Some(token) => return Ok(token),
            None => problem = NoToken::Invalid,
        }
    }
    Err(problem)
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
        };
        headers.append(WWW_AUTHENTICATE, challenge);
    }
    let error = Error::Unauthenticated;
    Box::new(PolicyRefusal { error, headers })
}

fn busy() -> Box<PolicyRefusal> {
    Box::new(PolicyRefusal {
        error: Error::PasswordsWait,
        headers: HeaderMap::from_iter([(RETRY_AFTER, RETRY)]),
    })
}

impl Unverified {
    /// Verifies the password of a client's request, and decides on it by the rules about clients.
    pub(super) async fn verify(
        self: Box<Self>,
        threads: &PasswordThreads,
        client: IpAddr,
        view: RequestView<'_>,
    ) -> Result<Identity, Box<PolicyRefusal>> {
        let Self {
            policies,
            credentials,
            key,
            token,
        } = *self;
        let authentication = policies.authentication().map_err(broken)?;
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
        match receiver.await {
            Ok(Some(user)) => {
                let identity = Identity {
                    user: Some(user),
                    key,
                    token,
                    policies: policies.clone(),
                };
                authorize(&policies, (client, Some(&identity)), &view)?;
                Ok(identity)
            }
            Ok(None) => {
                let is_any = authentication.require == Require::Any;
                let lacking = Lacking {
                    user: true,
                    key: is_any && authentication.clients.is_some(),
                    token: (is_any && authentication.tokens.is_some()).then_some(NoToken::Missing),
                };
                Err(refusal(authentication, lacking))
            }
            Err(_) => Err(busy()),
        }
    }
}

impl Identity {
    /// The names of the user and of the client that has the API key.
    fn names(&self) -> [Option<&str>; 2] {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return [None; 2];
        };
        let Authentication { users, clients, .. } = authentication;
        let user = users.as_ref().zip(self.user);
        let client = clients.as_ref().zip(self.key);
        [
            user.map(|(users, user)| &*users.ir.users[user].name),
            client.map(|(clients, key)| &*clients.ir.keys[key].client),
        ]
    }

    /// Returns the decision for the span of the request: kinds of credentials, and no name.
    pub(super) fn event(&self) -> Event {
        let kinds = [
            self.user.map(|_| "password"),
            self.key.map(|_| "API key"),
            self.token.as_ref().map(|_| "token"),
        ];
        let kinds: Vec<_> = kinds.into_iter().flatten().collect();
        Event::authenticated(&kinds)
    }

    /// What the token of the request says.
    fn claims(&self) -> Option<&Claims> {
        self.token.as_ref().map(|token| &token.claims)
    }

    /// Tells backends who sent the request. What the client says about that is removed, and its API key.
    pub(super) fn apply(&self, parts: &mut request::Parts) -> Result<(), Error> {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return Err(Error::BrokenPolicy);
        };
        let Authentication {
            users,
            clients,
            tokens,
            require: _,
        } = authentication;
        let clients = clients.as_ref().map(|clients| &*clients.ir);
        if let Some(clients) = clients.filter(|clients| !clients.keep) {
            remove_api_keys(parts, &clients.from).ok_or(Error::Filter)?;
        }
        let user_header = users.as_ref().and_then(|it| it.ir.forward_user.as_ref());
        let client_header = clients.and_then(|clients| clients.forward_client.as_ref());
        let [user, client] = self.names();
        let told = [(user_header, user), (client_header, client)];
        let providers = tokens.iter().flat_map(|tokens| &tokens.ir.providers);
        let of_claims = providers.flat_map(|provider| &provider.claim_headers);
        let of_claims = of_claims.map(|it| &it.header);
        // All are removed before one is set: several may be the same header.
        for header in told
            .iter()
            .filter_map(|(header, _)| *header)
            .chain(of_claims)
        {
            parts.headers.remove(header);
        }
        for (header, value) in self.token.iter().flat_map(|token| &token.headers) {
            insert(&mut parts.headers, header, value.clone())?;
        }
        let told = told
            .iter()
            .filter_map(|(header, name)| (*header).zip(*name));
        for (header, name) in told {
            set(&mut parts.headers, header, name)?;
        }
        Ok(())
    }
}

fn set(headers: &mut HeaderMap, header: &HeaderName, name: &str) -> Result<(), Error> {
    let value = HeaderValue::from_bytes(name.as_bytes()).map_err(|_| Error::Filter)?;
    insert(headers, header, value)
}

fn insert(headers: &mut HeaderMap, header: &HeaderName, value: HeaderValue) -> Result<(), Error> {
    let inserted = headers.try_insert(header.clone(), value);
    inserted.map(drop).map_err(|_| Error::Filter)
}
