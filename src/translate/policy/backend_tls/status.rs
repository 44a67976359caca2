//! Status of policies: one entry per Gateway whose requests they select. Must not know how TLS is configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::status::Condition;

use super::super::index::TargetPolicy;
use super::super::policy_status::{self, Effect, PolicyStatuses};
use super::absent::{absent, missing, ports};
use super::policy::{Policy, PolicyTarget};
use super::settings::Weakening;
use super::uses::{Requesters, Use, Uses};
use super::{TlsPolicies, names_changed};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::report::Report;
use crate::translate::source::Source;

/// The targets of a policy to which one Gateway sends requests, each with the requests that the policy selects.
type Selected<'a> = Vec<(&'a PolicyTarget, Vec<&'a Use>)>;

/// The statuses of all policies.
#[derive(Default)]
pub(in crate::translate) struct Statuses(PolicyStatuses);

impl Statuses {
    /// Updates what has changed.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        policies: &TlsPolicies,
        requesters: &dyn Requesters,
        report: &mut Report,
    ) {
        let of_policy = |name: &ObjectRef| {
            let policy = policies.0.get(name)?;
            let targets = policy.targets.iter();
            Some(Effect {
                of_gateways: of_gateways(input, policies, policy, requesters),
                targets: targets.map(|target| target.backend.clone()).collect(),
            })
        };
        let changed = names_changed(changes);
        self.0.step(input, changes, changed, of_policy, report);
    }
}

/// Returns the conditions of a policy, for each Gateway.
fn of_gateways(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    requesters: &dyn Requesters,
) -> BTreeMap<ObjectRef, Vec<Condition>> {
    let mut uses = Uses::new();
    for backend in policy.backends() {
        // Other policies of the backend may take precedence.
        input.read(|| Source::Backend(backend.clone()));
        let mut of_backend = requesters.uses(backend);
        of_backend.extend(requesters.fetches(backend));
        uses.insert(backend.clone(), of_backend);
    }
    let mut of_gateways: BTreeMap<ObjectRef, Vec<Condition>> = BTreeMap::new();
    for (gateway, faults) in absent(input, policy, &uses, requesters) {
        of_gateways.insert(gateway, conditions_absent(policy, &faults));
    }
    for (gateway, selected) in &selected_by_gateway(policy, &uses) {
        let conditions = conditions(input, policies, policy, selected);
        of_gateways.insert((*gateway).clone(), conditions);
    }
    of_gateways
}

fn selected_by_gateway<'a>(
    policy: &'a Policy,
    uses: &'a Uses,
) -> BTreeMap<&'a ObjectRef, Selected<'a>> {
    let mut by_gateway: BTreeMap<&ObjectRef, Selected<'a>> = BTreeMap::new();
    for target in &policy.targets {
        let all = uses.get(&target.backend).into_iter().flatten();
        let mut of_target: BTreeMap<&ObjectRef, Vec<&Use>> = BTreeMap::new();
        for one in all.filter(|one| policy.rank_of(target, &one.path()).is_some()) {
            of_target.entry(&one.gateway).or_default().push(one);
        }
        for (gateway, selected) in of_target {
            by_gateway
                .entry(gateway)
                .or_default()
                .push((target, selected));
        }
    }
    by_gateway
}

/// Returns the conditions of a policy for a Gateway that sends it no requests, because its targets do not exist.
fn conditions_absent(policy: &Policy, faults: &[Fault]) -> Vec<Condition> {
    let (kind, generation) = (ConditionType::Accepted, policy.generation);
    let fault = merge(faults);
    let accepted = judge(kind, Reason::Accepted, fault.as_ref(), generation);
    vec![accepted, resolved(policy)]
}

fn resolved(policy: &Policy) -> Condition {
    judge(
        ConditionType::ResolvedRefs,
        Reason::ResolvedRefs,
        policy.unresolved.as_ref(),
        policy.generation,
    )
}

/// Returns the conditions of a policy for one Gateway.
fn conditions(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    selected: &Selected<'_>,
) -> Vec<Condition> {
    let faults = selected
        .iter()
        .filter_map(|(target, _)| fault_of(input, policies, policy, target));
    let faults: Vec<Fault> = faults.collect();
    let generation = policy.generation;
    let unusable = policy.settings.as_ref().err();
    let accepted = policy_status::accepted(unusable, &faults, selected.len(), generation);
    let is_accepted = accepted.reason == Reason::Accepted;
    let mut conditions = vec![accepted, resolved(policy)];
    let overridden = overridden(policies, policy, selected);
    if !overridden.is_empty() {
        let kind = ConditionType::Overridden;
        let condition = Condition::holds(kind, Reason::Overridden, generation);
        conditions.push(condition.with_message(overridden.join("; ")));
    }
    let weakening = policy.weakening().filter(|_| is_accepted);
    conditions.extend(weakening.map(|it| weakened(it, generation)));
    conditions
}

/// Returns the condition of a policy that weakens TLS.
fn weakened(weakening: Weakening, generation: i64) -> Condition {
    let (kind, reason, message) = match weakening {
        Weakening::Plain => (
            ConditionType::PlaintextToBackend,
            Reason::ModeNone,
            "spec.mode is None: requests go out in plain text",
        ),
        Weakening::PinsOnly => (
            ConditionType::InsecureBackend,
            Reason::PinsOnly,
            "certificates of backends are verified by spec.validation.pins alone: not by authority, name or time",
        ),
        Weakening::SkipVerify => (
            ConditionType::InsecureBackend,
            Reason::SkipVerify,
            "spec.validation.insecureSkipVerify is true: requests go to any backend that speaks TLS",
        ),
    };
    Condition::holds(kind, reason, generation).with_message(message)
}

/// Returns the routes for which another policy of the same namespace takes precedence by its level. Policies of other
/// namespaces are omitted: the author of this one may not be allowed to see them.
fn overridden(policies: &TlsPolicies, policy: &Policy, selected: &Selected<'_>) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (target, uses) in selected {
        let rivals = policies.0.of_backend(&target.backend).iter();
        let own = |rival: &&Arc<Policy>| {
            rival.name != policy.name && rival.name.namespace == policy.name.namespace
        };
        for rival in rivals.filter(own) {
            for one in uses {
                let path = one.path();
                let level = policy.rank_of(target, &path).map(|rank| rank.level);
                let port = target.section.as_deref();
                let other = rival.candidate(&target.backend, port, &path);
                if other.is_some_and(|it| Some(it.rank.level) < level) {
                    found.insert((&one.route, &rival.name));
                }
            }
        }
    }
    let shown = |(route, rival): (&ObjectRef, &ObjectRef)| format!("for {route} by {rival}");
    found.into_iter().map(shown).collect()
}

/// Returns why a policy does not apply to one of its targets.
fn fault_of(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    target: &PolicyTarget,
) -> Option<Fault> {
    if let Some(fault) = missing(input, target) {
        return Some(fault);
    }
    if let Some(fault) = &target.pending {
        return Some(fault.clone());
    }
    let PolicyTarget {
        backend, section, ..
    } = target;
    let mut ports = ports(input, target)?.peekable();
    if ports.peek().is_some() && ports.all(|port| port.protocol.as_deref() == Some("UDP")) {
        let message =
            format!("spec.targetRefs: the targeted ports of {backend} are UDP, but TLS needs TCP");
        return Some(Fault::new(Reason::Invalid, message));
    }
    if let Some(fault) = policy.forbidden(target) {
        let outcome = if policy.is_passed_over(target) {
            "the next policy applies"
        } else {
            "requests are refused"
        };
        let message = format!("{backend}: {}; {outcome}", fault.message);
        return Some(Fault::new(fault.reason, message));
    }
    let rivals = policies.0.of_backend(backend).iter();
    let older = rivals
        .take_while(|rival| rival.name != policy.name)
        .filter(|it| it.name.namespace == policy.name.namespace && it.targets.contains(target))
        .find(|it| !it.is_passed_over(target))?;
    let port = section.as_ref().map(|it| format!(" port {it}"));
    let port = port.unwrap_or_default();
    Some(policy_status::conflict(
        &older.name,
        format_args!("{backend}{port}"),
    ))
}
