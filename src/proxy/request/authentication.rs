//! The credentials of a matched request: whether they are valid, what the client may send with them, and what the backend
//! gets of them. Must not know how they are written or verified.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, request};
use tokio::sync::oneshot;

use super::policy_refusal::PolicyRefusal;
use crate::filter::credentials::{BasicCredentials, api_key, remove_api_keys};
use crate::ir::authentication::Require;
use crate::proxy::error::Error;
use crate::proxy::passwords::PasswordThreads;
use crate::table::{Authentication, AuthorizedRequest, BrokenPolicy, Policies, RequestView, Users};

/// The challenge for clients without a valid API key. No scheme is registered for these.
const API_KEY: HeaderValue = HeaderValue::from_static("ApiKey");
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
}

/// A password that has to be verified. What else the request needs is valid.
pub(super) struct Unverified {
    policies: Arc<Policies>,
    credentials: Box<BasicCredentials>,
    key: Option<usize>,
}

/// A user name and password as far as they are known.
enum User {
    Valid(usize),
    Unverified(Box<BasicCredentials>),
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
    let names = match &credentials {
        None => [None; 2],
        Some(Credentials::Valid(identity)) => identity.names(),
        Some(Credentials::Unverified(_)) => return Ok(credentials),
    };
    authorize(policies, (client, names), view)?;
    Ok(credentials)
}

/// Decides on a request by the rules about clients.
fn authorize(
    policies: &Policies,
    (client, names): (IpAddr, [Option<&str>; 2]),
    view: &RequestView<'_>,
) -> Result<(), Box<PolicyRefusal>> {
    let request = AuthorizedRequest {
        client,
        names,
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
        require,
    } = authentication;
    let key = clients.as_ref().map(|clients| {
        let key = api_key((view.headers, view.query), &clients.ir.from);
        key.and_then(|key| clients.find(&key))
    });
    let user = users.as_ref().map(|users| user(users, view.headers));
    let identity = |user, key| {
        let policies = policies.clone();
        Ok(Credentials::Valid(Identity {
            policies,
            user,
            key,
        }))
    };
    let unverified = |credentials, key| {
        let policies = policies.clone();
        Ok(Credentials::Unverified(Box::new(Unverified {
            policies,
            credentials,
            key,
        })))
    };
    let has_no_user = matches!(user, Some(User::Invalid));
    let has_no_key = matches!(key, Some(None));
    match (require, user, key.flatten()) {
        (Require::All, _, _) if has_no_user || has_no_key => {
            Err(refusal(authentication, has_no_user, has_no_key))
        }
        (_, Some(User::Valid(user)), key) => identity(Some(user), key),
        (Require::Any, _, Some(key)) => identity(None, Some(key)),
        (_, Some(User::Unverified(credentials)), key) => unverified(credentials, key),
        (Require::All, _, key) => identity(None, key),
        (Require::Any, _, None) => Err(refusal(authentication, true, true)),
    }
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

/// Returns the response to a request without valid credentials, of which those of users or clients are missing.
fn refusal(authentication: &Authentication, of_user: bool, of_client: bool) -> Box<PolicyRefusal> {
    let mut headers = HeaderMap::new();
    if let Some(users) = authentication.users.as_ref().filter(|_| of_user) {
        headers.append(WWW_AUTHENTICATE, users.challenge.clone());
    }
    if authentication.clients.is_some() && of_client {
        headers.append(WWW_AUTHENTICATE, API_KEY);
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
                    policies: policies.clone(),
                };
                authorize(&policies, (client, identity.names()), &view)?;
                Ok(identity)
            }
            Ok(None) => {
                let of_client = authentication.require == Require::Any;
                Err(refusal(authentication, true, of_client))
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

    /// Tells backends who sent the request. What the client says about that is removed, and its API key.
    pub(super) fn apply(&self, parts: &mut request::Parts) -> Result<(), Error> {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return Err(Error::BrokenPolicy);
        };
        let Authentication { users, clients, .. } = authentication;
        let clients = clients.as_ref().map(|clients| &*clients.ir);
        if let Some(clients) = clients.filter(|clients| !clients.keep) {
            remove_api_keys(parts, &clients.from).ok_or(Error::Filter)?;
        }
        let user_header = users.as_ref().and_then(|it| it.ir.forward_user.as_ref());
        let client_header = clients.and_then(|clients| clients.forward_client.as_ref());
        let [user, client] = self.names();
        let told = [(user_header, user), (client_header, client)];
        // All are removed before one is set: both may be the same header.
        for header in told.iter().filter_map(|(header, _)| *header) {
            parts.headers.remove(header);
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
    let inserted = headers.try_insert(header.clone(), value);
    inserted.map(drop).map_err(|_| Error::Filter)
}
