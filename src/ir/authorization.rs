//! Which clients may send which requests. Must not know how clients authenticate.

use std::sync::Arc;

use http::Method;
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::cidr::CidrSet;
use super::claim_name::ClaimName;
use super::request_match::Match;

/// The rules of a policy. The first one that a request meets decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Authorization {
    /// The policy.
    pub policy: ObjectRef,
    /// The rules, in order. In text, `rules` are those of routes.
    #[serde(rename = "decisions")]
    pub rules: Box<[AuthorizationRule]>,
    /// What happens to requests that meet no rule.
    pub default: Action,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AuthorizationRule {
    /// Its name, unique within the policy.
    pub name: Arc<str>,
    /// What happens to requests that meet all of its conditions.
    pub action: Action,
    /// Conditions on method, path and headers.
    pub requests: RequestConditions,
    /// The addresses of clients; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidrs: Option<CidrSet>,
    /// The names of users and of clients with API keys; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Box<[Box<str>]>>,
    /// Claims of a token, which must all hold; empty for all requests.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub claims: Box<[ClaimCondition]>,
}

/// A condition on a claim of a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClaimCondition {
    /// Name of the claim.
    pub name: ClaimName,
    /// One of these is a value of the claim.
    pub values: Box<[Box<str>]>,
}

/// Conditions on method, path and headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct RequestConditions {
    /// One of these methods; `None` for all.
    #[serde(serialize_with = "methods", skip_serializing_if = "Option::is_none")]
    pub methods: Option<Box<[Method]>>,
    /// One of these, each a path with the same headers; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Box<[Match]>>,
}

/// What happens to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Action {
    /// They pass.
    Allow,
    /// They are refused.
    Deny,
}

impl Authorization {
    /// Reports whether rules decide by the names of clients or by their tokens.
    pub fn needs_clients(&self) -> bool {
        let needs = |rule: &AuthorizationRule| rule.clients.is_some() || !rule.claims.is_empty();
        self.rules.iter().any(needs)
    }

    /// Reports whether rules decide by the addresses of clients.
    pub fn needs_addresses(&self) -> bool {
        self.rules.iter().any(|rule| rule.cidrs.is_some())
    }

    /// Reports whether rules decide by the paths of requests.
    pub fn needs_paths(&self) -> bool {
        let matches = self.rules.iter().flat_map(|rule| &rule.requests.matches);
        let mut matches = matches.flatten();
        matches.any(|condition| !condition.path.is_any())
    }

    /// Reports whether every request is refused.
    pub fn denies_all(&self) -> bool {
        let denies = |rule: &AuthorizationRule| rule.action == Action::Deny;
        self.default == Action::Deny && self.rules.iter().all(denies)
    }
}

fn methods<S: Serializer>(
    methods: &Option<Box<[Method]>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let methods = methods.iter().flatten();
    serializer.collect_seq(methods.map(Method::as_str))
}
