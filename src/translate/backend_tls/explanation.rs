//! Explains to people why a policy applies to requests for a backend and others do not. Makes no decisions.

use std::cmp::Ordering;

use crate::ir::ObjectRef;
use crate::permissions::PolicyLevel;

use super::TlsPolicies;
use super::policy::{Candidate, Path, Policy, Target};

/// The policies that target a backend of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPolicies {
    /// The backend.
    pub backend: ObjectRef,
    /// The port in the backendRef.
    pub port: Option<u16>,
    /// One entry for each target with this backend: first the policy that applies, then the others by precedence, then
    /// those that do not select these requests.
    pub policies: Vec<ConsideredPolicy>,
}

/// A policy, with the verdict on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsideredPolicy {
    /// The policy.
    pub policy: ObjectRef,
    /// The level of the target.
    pub level: PolicyLevel,
    /// The verdict.
    pub verdict: PolicyVerdict,
}

/// The verdict on a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// It applies.
    Applies,
    /// It would apply, but requests are refused for this reason.
    Refuses(String),
    /// It selects the requests, but the one that applies takes precedence by this criterion.
    Outranked(Criterion),
    /// It selects the requests, but the operator does not permit its settings.
    NotPermitted(String),
    /// It does not select the requests, for this reason.
    OtherRequests(String),
}

/// The criterion that decides between two policies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The level.
    Level,
    /// A section of `from` takes precedence over the whole object.
    FromSection,
    /// One port takes precedence over all ports.
    Port,
    /// The older policy takes precedence.
    Age,
    /// Namespace and name.
    Name,
}

impl TlsPolicies {
    /// Returns the verdict on every policy that targets a backend, for requests to a port with this name or without
    /// one.
    pub(super) fn explain(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Vec<ConsideredPolicy> {
        let winner = self.winner(backend, port, path);
        let policies = self.by_target.get(backend).into_iter().flatten();
        let targets = policies.flat_map(|policy| {
            let targets = policy.targets.iter().filter(|it| it.backend == *backend);
            targets.map(|target| (&**policy, target))
        });
        let mut considered: Vec<_> = targets
            .map(|(policy, target)| {
                let rank = policy.rank_of(target, path);
                let is_port = target.section.is_none() || target.section.as_deref() == port;
                let candidate = rank.filter(|_| is_port).map(|rank| Candidate {
                    policy,
                    target,
                    rank,
                });
                let verdict = match (&candidate, &winner) {
                    (Some(one), Some(winner)) => verdict(one, winner),
                    (Some(one), None) => not_permitted(one),
                    (None, _) => PolicyVerdict::OtherRequests(other(policy, target, port, path)),
                };
                let is_winner =
                    matches!(verdict, PolicyVerdict::Applies | PolicyVerdict::Refuses(_));
                let order = (!is_winner, candidate.is_none(), candidate.map(|it| it.rank));
                let one = ConsideredPolicy {
                    policy: policy.name.clone(),
                    level: policy.level(target),
                    verdict,
                };
                (order, one)
            })
            .collect();
        considered.sort_by_key(|(order, _)| *order);
        considered.into_iter().map(|(_, one)| one).collect()
    }
}

fn verdict(one: &Candidate<'_>, winner: &Candidate<'_>) -> PolicyVerdict {
    let Candidate {
        policy,
        target,
        rank,
    } = one;
    if std::ptr::eq(*policy, winner.policy) && std::ptr::eq(*target, winner.target) {
        let broken = policy.settings.as_ref().err().cloned();
        let refused = broken.or_else(|| policy.forbidden(target));
        return refused.map_or(PolicyVerdict::Applies, |fault| {
            PolicyVerdict::Refuses(fault.message)
        });
    }
    if policy.is_passed_over(target) {
        return not_permitted(one);
    }
    PolicyVerdict::Outranked(match rank.criterion(&winner.rank) {
        Some(criterion) => criterion,
        None if policy.has_age_of(winner.policy) => Criterion::Name,
        None => Criterion::Age,
    })
}

fn not_permitted(one: &Candidate<'_>) -> PolicyVerdict {
    let fault = one.policy.forbidden(one.target);
    PolicyVerdict::NotPermitted(fault.map(|fault| fault.message).unwrap_or_default())
}

/// Returns why a target does not select requests.
fn other(policy: &Policy, target: &Target, port: Option<&str>, path: &Path<'_>) -> String {
    if let Some(section) = target
        .section
        .as_ref()
        .filter(|it| Some(it.as_str()) != port)
    {
        return format!("it is for port {section}");
    }
    match &target.from {
        Some(from) if !from.selects(path) => format!("it is for requests of {from}"),
        _ => format!(
            "namespace {} is neither that of the Gateway nor that of the {}",
            policy.name.namespace, target.backend.kind
        ),
    }
}

impl Criterion {
    /// Returns the first criterion whose values differ.
    pub(super) fn first(values: [(Self, Ordering); 3]) -> Option<Self> {
        let mut values = values.into_iter();
        let found = values.find(|(_, ordering)| ordering.is_ne());
        found.map(|(criterion, _)| criterion)
    }
}
