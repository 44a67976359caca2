//! What policies require of requests, after all policies on a listener and a rule are merged. Must not know the policies
//! apart from their names.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use super::ObjectRef;
use super::authentication::Authentication;
use super::authorization::Authorization;
use super::cidr::CidrSet;
use super::limit::Limits;
use super::named::named;
use super::route_defaults::RouteDefaults;

named! {
    /// A phase of a request, in order. `explain` prints them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Phase {
        /// The address of the client.
        ClientIp = "client IP",
        /// The addresses that may send requests.
        IpRules = "IP rules",
        /// Limits of requests that need no identity.
        Limits = "limits without identity",
        /// The limit of the request body.
        BodyLimit = "body limit",
        /// The credentials of the client.
        Authentication = "authentication",
        /// The rules about requests and clients.
        Authorization = "authorization",
        /// Limits of requests by the identity of the client.
        IdentityLimits = "limits by identity",
        /// The filters of the rule, in list order.
        Filters = "filters",
        /// The backend, with the filters of its backendRef.
        Backend = "backend",
    }
}

/// What policies require of the requests of a listener or a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Policies {
    /// The addresses that may send requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_rules: Option<Enforced<IpRules>>,
    /// Limits of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Enforced<Limits>>,
    /// The credentials that requests need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Enforced<Authentication>>,
    /// Which clients may send which requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Enforced<Authorization>>,
    /// How requests are handled where their rule does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<Arc<RouteDefaults>>,
}

impl Policies {
    /// Returns what happens to requests from an address.
    #[inline]
    pub fn verdict(&self, client: IpAddr) -> Verdict {
        match &self.ip_rules {
            None => Verdict::Pass,
            Some(Enforced::Valid(rules)) if rules.permit(client) => Verdict::Pass,
            Some(Enforced::Valid(_)) => Verdict::Refuse,
            Some(Enforced::Broken(_)) => Verdict::Broken,
        }
    }

    /// Returns what happens to connections and datagrams from an address, which have neither credentials nor requests.
    pub fn verdict_on_connection(&self, client: IpAddr) -> Verdict {
        match self.authentication.is_none() && self.authorization.is_none() {
            true => self.verdict(client),
            false => Verdict::Refuse,
        }
    }

    /// Reports whether they decide by the addresses of clients.
    pub fn need_addresses(&self) -> bool {
        let authorization = match &self.authorization {
            Some(Enforced::Valid(authorization)) => authorization.needs_addresses(),
            Some(Enforced::Broken(_)) | None => false,
        };
        self.ip_rules.is_some() || self.limits.is_some() || authorization
    }

    /// Reports whether they decide by the paths of requests.
    pub fn need_paths(&self) -> bool {
        let authorization = match &self.authorization {
            Some(Enforced::Valid(authorization)) => authorization.needs_paths(),
            Some(Enforced::Broken(_)) | None => false,
        };
        let limits = match &self.limits {
            Some(Enforced::Valid(limits)) => {
                let mut conditions = limits.limits.iter().filter_map(|it| it.condition.as_ref());
                conditions.any(|condition| !condition.path.is_any())
            }
            Some(Enforced::Broken(_)) | None => false,
        };
        authorization || limits
    }

    /// Reports whether an authorization server decides, which sees the path.
    pub fn ask_server(&self) -> bool {
        match &self.authentication {
            Some(Enforced::Valid(authentication)) => authentication.external.is_some(),
            Some(Enforced::Broken(_)) | None => false,
        }
    }

    /// Returns why policies are broken, if some are.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        let Self {
            ip_rules,
            limits,
            authentication,
            authorization,
            // Does not protect.
            route: _,
        } = self;
        let faults = [
            ip_rules.as_ref().and_then(Enforced::fault),
            limits.as_ref().and_then(Enforced::fault),
            authentication.as_ref().and_then(Enforced::fault),
            authorization.as_ref().and_then(Enforced::fault),
        ];
        faults.into_iter().flatten()
    }

    /// Reports whether nothing is required.
    pub fn are_none(&self) -> bool {
        let Self {
            ip_rules,
            limits,
            authentication,
            authorization,
            route,
        } = self;
        ip_rules.is_none()
            && limits.is_none()
            && authentication.is_none()
            && authorization.is_none()
            && route.is_none()
    }
}

/// The result of a section that protects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Enforced<T> {
    /// What it requires.
    Valid(Arc<T>),
    /// A policy is broken, for this reason: nothing may pass.
    Broken(Arc<str>),
}

impl<T> Enforced<T> {
    /// Returns why a policy is broken, if one is.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::Valid(_) => None,
            Self::Broken(why) => Some(why),
        }
    }
}

/// Addresses that may send requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IpRules {
    /// If set, only these addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<CidrSet>,
    /// None of these, whether or not they are in `allow`.
    #[serde(skip_serializing_if = "CidrSet::is_empty")]
    pub deny: CidrSet,
    /// The policies that contribute, from general to specific. `allow` is that of the last one.
    pub policies: Box<[ObjectRef]>,
}

impl IpRules {
    /// Reports whether an address may send requests.
    #[inline]
    pub fn permit(&self, address: IpAddr) -> bool {
        !self.deny.contains(address)
            && self
                .allow
                .as_ref()
                .is_none_or(|allow| allow.contains(address))
    }
}

/// The verdict of policies on a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// It is refused.
    Refuse,
    /// It is refused, because a policy is broken.
    Broken,
}
