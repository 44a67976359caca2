//! Status of BackendPolicies: one entry per Gateway that sends requests to a target.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::backend_policy::BackendPolicy as Object;
use crate::ir::ObjectRef;
use crate::status::Condition;

use super::super::backend_tls::Requesters;
use super::super::policy_status::{self, Effect, PolicyStatuses};
use super::super::traffic_policy::TrafficPolicies;
use super::BackendPolicies;
use super::parsed::{Policy, Target};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason, merge};
use crate::translate::report::Report;
use crate::translate::source::Source;

/// The statuses of all policies.
#[derive(Default)]
pub(in crate::translate) struct Statuses(PolicyStatuses);

impl Statuses {
    /// Updates what has changed.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        (policies, upstream): (&BackendPolicies, &TrafficPolicies),
        requesters: &dyn Requesters,
        report: &mut Report,
    ) {
        let of_policy = |name: &ObjectRef| {
            let policy = policies.0.get(name)?;
            let targets = policy.targets.iter();
            Some(Effect {
                of_gateways: of_gateways(input, (policies, upstream), policy, requesters),
                targets: targets.map(|target| target.backend.clone()).collect(),
            })
        };
        let changed = changes.of::<Object>();
        self.0.step(input, changes, changed, of_policy, report);
    }
}

/// Returns the conditions of a policy for each Gateway that sends requests to its targets.
fn of_gateways(
    input: &Input<'_>,
    (policies, upstream): (&BackendPolicies, &TrafficPolicies),
    policy: &Policy,
    requesters: &dyn Requesters,
) -> BTreeMap<ObjectRef, Vec<Condition>> {
    let mut by_gateway: BTreeMap<ObjectRef, Vec<&Target>> = BTreeMap::new();
    for target in &policy.targets {
        let uses = requesters.uses(&target.backend);
        let gateways: BTreeSet<_> = uses.into_iter().map(|one| one.gateway).collect();
        for gateway in gateways {
            by_gateway.entry(gateway).or_default().push(target);
        }
    }
    let conditions = by_gateway.into_iter().map(|(gateway, targets)| {
        let conditions = conditions(input, (policies, upstream), policy, &targets);
        (gateway, conditions)
    });
    conditions.collect()
}

fn conditions(
    input: &Input<'_>,
    (policies, upstream): (&BackendPolicies, &TrafficPolicies),
    policy: &Policy,
    targets: &[&Target],
) -> Vec<Condition> {
    let generation = policy.generation;
    let (mut faults, mut applied) = (Vec::new(), Vec::new());
    for target in targets {
        match fault_of(input, policies, policy, target) {
            Some(fault) => faults.push(fault),
            None => applied.push(*target),
        }
    }
    let unusable = merge(&policy.faults);
    let accepted = policy_status::accepted(unusable.as_ref(), &faults, targets.len(), generation);
    let kind = ConditionType::ResolvedRefs;
    let resolved = Condition::holds(kind, Reason::ResolvedRefs, generation);
    let programmed = programmed(input, upstream, policy, &applied);
    [accepted, resolved].into_iter().chain(programmed).collect()
}

/// Returns why a policy does not apply to one of its targets.
fn fault_of(
    input: &Input<'_>,
    policies: &BackendPolicies,
    policy: &Policy,
    target: &Target,
) -> Option<Fault> {
    let Target { backend, section } = target;
    if !input.exists(backend) {
        return Some(policy_status::missing_target(input, backend));
    }
    if let Some(name) = section {
        let kinds = &input.options.permissions.backend_kinds;
        let ports = input.kinds.target_ports(input, kinds, backend);
        let mut names = ports.into_iter().flatten().map(|port| port.name.as_ref());
        if !names.any(|port| port.is_some_and(|port| **port == **name)) {
            let message = format!("spec.targetRefs: {backend} has no port named {name}");
            return Some(Fault::new(Reason::TargetNotFound, message));
        }
    }
    input.read(|| Source::BackendPolicyOf(backend.clone()));
    let winner = policies.winner(backend, section.as_deref())?;
    (winner.name != policy.name).then(|| policy_status::conflict(&winner.name, target))
}

/// Returns whether sections take effect at the targets that the policy applies to; `None` if there is none of either.
fn programmed(
    input: &Input<'_>,
    upstream: &TrafficPolicies,
    policy: &Policy,
    targets: &[&Target],
) -> Option<Condition> {
    let (kind, generation) = (ConditionType::Programmed, policy.generation);
    let all = policy.sections * targets.len();
    let mut obstacles = BTreeSet::new();
    for target in targets {
        let backend = &target.backend;
        input.read(|| Source::TrafficPolicyOf(backend.clone()));
        let (Some(own), Some(other)) = (policy.traffic.get(backend), upstream.of(backend)) else {
            continue;
        };
        let both = [
            (
                own.retry_budget.is_some() && other.retry_budget.is_some(),
                "retryConstraint",
            ),
            (
                own.session.is_some() && other.session.is_some(),
                "sessionPersistence",
            ),
        ];
        let both = both.into_iter().filter(|(both, _)| *both);
        obstacles.extend(
            both.map(|(_, section)| {
                format!("spec.{section} of {} applies to {target}", other.policy)
            }),
        );
    }
    let why = || {
        let all: Vec<_> = obstacles.iter().map(String::as_str).collect();
        all.join("; ")
    };
    if all == 0 {
        return None;
    }
    Some(match obstacles.len() {
        0 => Condition::holds(kind, Reason::Programmed, generation),
        overridden if overridden == all => {
            Condition::fails(kind, Reason::Overridden, &why(), generation)
        }
        _ => Condition::holds(kind, Reason::PartiallyProgrammed, generation).with_message(why()),
    })
}
