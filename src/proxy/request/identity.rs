//! Who sent a request, what the client may send for that, and what the backend gets of it. Must not know how credentials are
//! written or verified.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, request};

use super::policy_refusal::PolicyRefusal;
use crate::filter::credentials::{api_key, remove_api_keys, remove_others, token};
use crate::filter::session_cookies;
use crate::ir::auth_call::ExternalPolicy;
use crate::ir::authentication::{ApiKeys, Require};
use crate::proxy::error::Error;
use crate::table::{
    Authentication, AuthorizedRequest, BrokenPolicy, Claims, ClientIdentity, Oidc, Policies,
    RequestView, Session, TokenIdentity, Tokens, VerifiedToken,
};
use crate::telemetry::trace::Event;

/// Who sent a request.
pub(super) struct Identity {
    pub(super) policies: Arc<Policies>,
    /// Index of the user.
    pub(super) user: Option<u32>,
    /// Index of the API key.
    pub(super) key: Option<u32>,
    pub(super) token: Option<Arc<VerifiedToken>>,
    pub(super) session: Option<Arc<Session>>,
}

impl Identity {
    /// Returns what a policy says about an authorization server.
    pub(super) fn external(&self) -> Option<&Arc<ExternalPolicy>> {
        let authentication = self.policies.authentication().ok()??;
        authentication.external.as_ref()
    }

    /// Returns the sign-in of a policy.
    pub(super) fn oidc(&self) -> Option<&Arc<Oidc>> {
        let authentication = self.policies.authentication().ok()??;
        authentication.oidc.as_ref()
    }

    /// Reports whether the request passes only with a session, if a policy asks for one.
    pub(super) fn needs_session(&self) -> bool {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return true;
        };
        let Some(oidc) = &authentication.oidc else {
            return false;
        };
        match authentication.require {
            Require::Any => self.is_unknown(),
            Require::All => self.token.is_none() || !oidc.ir.pass_through_bearer,
        }
    }

    /// Reports whether other credentials would do instead of a session.
    pub(super) fn is_optional(&self) -> bool {
        let authentication = self.policies.authentication();
        authentication.is_ok_and(|it| it.is_some_and(|it| it.require == Require::Any))
    }

    /// Reports whether the request passes only with the permission of the authorization server, if a policy names one.
    pub(super) fn needs_permission(&self) -> bool {
        match self.policies.authentication() {
            Ok(Some(authentication)) => authentication.require == Require::All || self.is_unknown(),
            Ok(None) | Err(_) => true,
        }
    }

    /// Reports whether rules or limits decide about the request once its client is known.
    pub(super) fn decides(&self) -> bool {
        self.policies.ir.authorization.is_some() || self.policies.limit_identities()
    }

    /// Reports whether nothing is known about the client.
    pub(super) fn is_unknown(&self) -> bool {
        let Self {
            policies: _,
            user,
            key,
            token,
            session,
        } = self;
        user.is_none() && key.is_none() && token.is_none() && session.is_none()
    }

    /// Decides on a request by the rules about clients.
    pub(super) fn authorize(
        &self,
        client: IpAddr,
        view: &RequestView<'_>,
    ) -> Result<(), Box<PolicyRefusal>> {
        authorize(&self.policies, (client, Some(self)), view)
    }

    /// The names of the user and of the client that has the API key.
    pub(super) fn names(&self) -> [Option<&str>; 2] {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return [None; 2];
        };
        let Authentication { users, clients, .. } = authentication;
        let user = users.as_ref().zip(self.user);
        let client = clients.as_ref().zip(self.key);
        [
            user.map(|(users, user)| &*users.ir.users[user as usize].name),
            client.map(|(clients, key)| &*clients.ir.keys[key as usize].client),
        ]
    }

    /// The policies that the request has met.
    pub(super) fn policies(&self) -> &Policies {
        &self.policies
    }

    /// What limits count by.
    pub(super) fn client(&self) -> ClientIdentity<'_> {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return ClientIdentity::default();
        };
        let Authentication {
            users,
            clients,
            tokens,
            oidc,
            external: _,
            require: _,
            identity_headers: _,
        } = authentication;
        let [user, client] = self.names();
        let user = users.as_ref().zip(user);
        let user = user.map(|(users, name)| [&*users.ir.policy.namespace, name]);
        let client = clients.as_ref().zip(client);
        let client = client.map(|(clients, name)| [&*clients.ir.policy.namespace, name]);
        let token = tokens.as_ref().zip(self.token.as_ref());
        let token = token.and_then(|(tokens, token)| {
            Some(TokenIdentity {
                issuer: [&tokens.ir.policy.namespace, &tokens.issuer(token)?.issuer],
                claims: &token.claims,
            })
        });
        let session = oidc.as_ref().zip(self.session.as_ref());
        let session = session.map(|(oidc, session)| TokenIdentity {
            issuer: [&oidc.ir.policy.namespace, oidc.ir.issuer()],
            claims: &session.claims,
        });
        ClientIdentity {
            name: user.or(client),
            token: token.or(session),
        }
    }

    /// Returns the decision for the span of the request: kinds of credentials, and no name.
    pub(super) fn event(&self) -> Event {
        let kinds = [
            self.user.map(|_| "password"),
            self.key.map(|_| "API key"),
            self.token.as_ref().map(|_| "token"),
            self.session.as_ref().map(|_| "session"),
        ];
        let kinds: Vec<_> = kinds.into_iter().flatten().collect();
        Event::authenticated(&kinds)
    }

    /// What the token of the request says, or else the ID token of its session.
    pub(super) fn claims(&self) -> Option<&Claims> {
        let of_token = self.token.as_ref().map(|token| &token.claims);
        of_token.or_else(|| self.session.as_ref().map(|session| &session.claims))
    }

    /// Removes the tokens that were not verified beside one that was, and the API keys that were not verified where keys are kept:
    /// a backend may read another place than the proxy.
    fn remove_unverified(
        &self,
        parts: &mut request::Parts,
        tokens: Option<&Tokens>,
        clients: Option<&ApiKeys>,
    ) -> Result<(), Error> {
        let tokens = tokens.zip(self.token.as_ref());
        let issuer = tokens.map(|(tokens, token)| tokens.issuer(token).ok_or(Error::Filter));
        let issuer = issuer.transpose()?;
        let providers = tokens
            .into_iter()
            .flat_map(|(tokens, _)| &tokens.ir.providers);
        let keeping = clients.filter(|clients| clients.keep);
        let of_keys = keeping.into_iter().flat_map(|clients| &clients.from);
        let places = providers.flat_map(|it| &it.from).chain(of_keys);
        let keeping = keeping.filter(|_| self.key.is_some());
        let verified = usize::from(issuer.is_some()) + usize::from(keeping.is_some());
        if places.clone().count() == verified {
            return Ok(());
        }
        let request = (&parts.headers, parts.uri.query());
        let token = issuer.map(|issuer| token(request, &issuer.from));
        let key = keeping.map(|clients| api_key(request, &clients.from));
        let mut kept = Vec::new();
        for verified in token.into_iter().chain(key) {
            kept.push(verified.ok_or(Error::Filter)?.into_owned());
        }
        remove_others(parts, places, &kept).ok_or(Error::Filter)
    }

    /// Tells backends who sent the request. What the client says about that is removed, its API key, the cookies of a sign-in, and
    /// keys and tokens that were not verified beside one that was.
    pub(super) fn apply(&self, parts: &mut request::Parts) -> Result<(), Error> {
        let Ok(Some(authentication)) = self.policies.authentication() else {
            return Err(Error::BrokenPolicy);
        };
        let Authentication {
            users,
            clients,
            tokens,
            oidc,
            external: _,
            require: _,
            identity_headers,
        } = authentication;
        let clients = clients.as_ref().map(|clients| &*clients.ir);
        self.remove_unverified(parts, tokens.as_deref(), clients)?;
        if let Some(clients) = clients.filter(|clients| !clients.keep) {
            remove_api_keys(parts, &clients.from).ok_or(Error::Filter)?;
        }
        if let Some(oidc) = oidc {
            let name = &oidc.ir.cookie.name;
            session_cookies::remove(&mut parts.headers, name).ok_or(Error::Filter)?;
        }
        let user_header = users.as_ref().and_then(|it| it.ir.forward_user.as_ref());
        let client_header = clients.and_then(|clients| clients.forward_client.as_ref());
        let [user, client] = self.names();
        // All are removed before one is set: several may be the same header.
        for header in identity_headers {
            parts.headers.remove(header);
        }
        let of_token = self.token.iter().flat_map(|token| &token.headers);
        let of_session = self.session.iter().flat_map(|session| &session.headers);
        for (header, value) in of_session.chain(of_token) {
            insert(&mut parts.headers, header, value.clone())?;
        }
        if let Some((oidc, session)) = oidc.as_ref().zip(self.session.as_ref()) {
            forward_tokens(oidc, session, &mut parts.headers)?;
        }
        for (header, name) in [(user_header, user), (client_header, client)] {
            if let Some((header, name)) = header.zip(name) {
                set(&mut parts.headers, header, name)?;
            }
        }
        Ok(())
    }
}

/// Decides on a request by the rules about clients.
pub(super) fn authorize(
    policies: &Policies,
    (client, identity): (IpAddr, Option<&Identity>),
    view: &RequestView<'_>,
) -> Result<(), Box<PolicyRefusal>> {
    let request = || AuthorizedRequest {
        client,
        names: identity.map_or([None; 2], Identity::names),
        claims: identity.and_then(Identity::claims),
        view: *view,
    };
    match policies.permits(request).map_err(broken)? {
        true => Ok(()),
        false => Err(Box::new(Error::Unauthorized.into())),
    }
}

pub(super) fn broken(_: BrokenPolicy) -> Box<PolicyRefusal> {
    Box::new(Error::BrokenPolicy.into())
}

/// Sets the headers with tokens of a session. Where it has none, as one that is older than the setting, backends get none, and
/// nothing of the client in its place.
fn forward_tokens(oidc: &Oidc, session: &Session, headers: &mut HeaderMap) -> Result<(), Error> {
    let content = &session.content;
    let access_token = content.access_token.as_deref();
    let tokens = [
        (&oidc.ir.access_token_header, access_token),
        (&oidc.ir.id_token_header, Some(&*content.id_token)),
    ];
    for (header, token) in tokens {
        let Some(header) = header else { continue };
        headers.remove(header);
        let Some(token) = token else { continue };
        let value = match *header == AUTHORIZATION {
            true => HeaderValue::try_from(format!("Bearer {token}")),
            false => HeaderValue::from_str(token),
        };
        let mut value = value.map_err(|_| Error::Filter)?;
        value.set_sensitive(true);
        insert(headers, header, value)?;
    }
    Ok(())
}

fn set(headers: &mut HeaderMap, header: &HeaderName, name: &str) -> Result<(), Error> {
    let value = HeaderValue::from_bytes(name.as_bytes()).map_err(|_| Error::Filter)?;
    insert(headers, header, value)
}

fn insert(headers: &mut HeaderMap, header: &HeaderName, value: HeaderValue) -> Result<(), Error> {
    let inserted = headers.try_insert(header.clone(), value);
    inserted.map(drop).map_err(|_| Error::Filter)
}
