//! Why one policy applies to requests for a backend and others do not, for people. Decides nothing.

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
    /// The port that the rule names.
    pub port: Option<u16>,
    /// One for each target that is the backend: the one that applies first, then by precedence, then those that do not mean
    /// these requests.
    pub policies: Vec<ConsideredPolicy>,
}

/// A policy with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsideredPolicy {
    /// The policy.
    pub policy: ObjectRef,
    /// How precisely the target means requests.
    pub level: PolicyLevel,
    /// What became of it.
    pub verdict: PolicyVerdict,
}

/// What became of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// It applies.
    Applies,
    /// It is the one that would apply, and requests are refused for this reason.
    Refuses(String),
    /// It means the requests, and the one that applies goes before it by this criterion.
    Outranked(Criterion),
    /// It means the requests, and the operator does not permit what it asks for.
    NotPermitted(String),
    /// It does not mean the requests, for this reason.
    OtherRequests(String),
}

/// What decides between two policies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The level.
    Level,
    /// A section of `from` goes before the whole object.
    FromSection,
    /// One port goes before all.
    Port,
    /// The older one goes first.
    Age,
    /// Namespace and name.
    Name,
}

impl TlsPolicies {
    /// What becomes of every policy that targets a backend, for requests to a port of this name, or of none.
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

/// Why a target does not mean requests.
fn other(policy: &Policy, target: &Target, port: Option<&str>, path: &Path<'_>) -> String {
    if let Some(section) = target
        .section
        .as_ref()
        .filter(|it| Some(it.as_str()) != port)
    {
        return format!("it is for port {section}");
    }
    match &target.from {
        Some(from) if !from.means(path) => format!("it is for requests of {from}"),
        _ => format!(
            "namespace {} is neither that of the Gateway nor that of the {}",
            policy.name.namespace, target.backend.kind
        ),
    }
}

impl Criterion {
    /// The first of two values that differ.
    pub(super) fn first(values: [(Self, Ordering); 3]) -> Option<Self> {
        let mut values = values.into_iter();
        let found = values.find(|(_, ordering)| ordering.is_ne());
        found.map(|(criterion, _)| criterion)
    }
}
