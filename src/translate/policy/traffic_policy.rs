//! XBackendTrafficPolicies: which of them applies to a backend, its settings, and its status. Keeps policies from one
//! translation to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Resource;
use crate::api::traffic_policy::{BackendTrafficPolicy, BackendTrafficSpec, RetryConstraint};
use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::traffic::{RetryBudget, TrafficPolicy};
use crate::status::Condition;

use super::backend_tls::Requesters;
use super::index::{PolicyIndex, TargetPolicy};
use super::policy_status::{self, Effect, PolicyStatuses};
use super::session_persistence;
use crate::translate::changes::Changes;
use crate::translate::duration;
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};
use crate::translate::report::Report;
use crate::translate::source::Source;

/// Permitted intervals of budgets.
const BUDGET_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// Permitted intervals of minimum rates.
const RATE_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3600);
/// Permitted counts of minimum rates.
const RATE_COUNTS: RangeInclusive<u32> = 1..=1_000_000;

/// The traffic policies of a snapshot.
#[derive(Default)]
pub(in crate::translate) struct TrafficPolicies(PolicyIndex<Policy>);

/// The statuses of all policies.
#[derive(Default)]
pub(in crate::translate) struct Statuses(PolicyStatuses);

/// A parsed traffic policy.
struct Policy {
    name: ObjectRef,
    generation: i64,
    created: Option<Time>,
    targets: Vec<ObjectRef>,
    /// Settings for each target, or why the policy is not applied.
    settings: Result<BTreeMap<ObjectRef, Arc<TrafficPolicy>>, Fault>,
}

impl TargetPolicy for Policy {
    fn name(&self) -> &ObjectRef {
        &self.name
    }

    fn backends(&self) -> BTreeSet<&ObjectRef> {
        self.targets.iter().collect()
    }

    fn source(backend: ObjectRef) -> Source {
        Source::TrafficPolicyOf(backend)
    }

    fn created(&self) -> Option<Time> {
        self.created
    }
}

impl Statuses {
    /// Updates what has changed.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        policies: &TrafficPolicies,
        requesters: &dyn Requesters,
        report: &mut Report,
    ) {
        let of_policy = |name: &ObjectRef| {
            let policy = policies.0.get(name)?;
            Some(Effect {
                of_gateways: policies.of_gateways(input, policy, requesters),
                targets: policy.targets.clone(),
            })
        };
        let changed = changes.of::<BackendTrafficPolicy>();
        self.0.step(input, changes, changed, of_policy, report);
    }
}

impl TrafficPolicies {
    /// Parses what has changed. Announces the backends whose policy may have changed.
    pub(in crate::translate) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        let read = |name: &ObjectRef| {
            let object = input.find::<BackendTrafficPolicy>(name)?;
            Some(Policy::read(input, object))
        };
        let changed = changes.of::<BackendTrafficPolicy>();
        self.0.step(input, changes, changed, read);
    }

    /// Returns the policy that applies to a backend. An unusable policy does not let the next one apply.
    pub(in crate::translate) fn of(&self, backend: &ObjectRef) -> Option<&Arc<TrafficPolicy>> {
        let winner = self.0.of_backend(backend).first()?;
        winner.settings.as_ref().ok()?.get(backend)
    }

    /// Returns the conditions of a policy for each Gateway that sends requests to its targets.
    fn of_gateways(
        &self,
        input: &Input<'_>,
        policy: &Policy,
        requesters: &dyn Requesters,
    ) -> BTreeMap<ObjectRef, Vec<Condition>> {
        let mut targets: BTreeMap<ObjectRef, Vec<&ObjectRef>> = BTreeMap::new();
        for target in &policy.targets {
            for one in requesters.uses(target) {
                let known = targets.entry(one.gateway).or_default();
                if !known.contains(&target) {
                    known.push(target);
                }
            }
        }
        let conditions = targets.into_iter().map(|(gateway, targets)| {
            let accepted = self.accepted(input, policy, &targets);
            (gateway, vec![accepted])
        });
        conditions.collect()
    }

    fn accepted(&self, input: &Input<'_>, policy: &Policy, targets: &[&ObjectRef]) -> Condition {
        let faults = targets.iter();
        let faults = faults.filter_map(|target| self.fault_of(input, policy, target));
        let faults: Vec<_> = faults.collect();
        let unusable = policy.settings.as_ref().err();
        policy_status::accepted(unusable, &faults, targets.len(), policy.generation)
    }

    /// Returns why a policy does not apply to one of its targets.
    fn fault_of(&self, input: &Input<'_>, policy: &Policy, target: &ObjectRef) -> Option<Fault> {
        if !input.exists(target) {
            return Some(policy_status::missing_target(input, target));
        }
        input.read(|| Source::TrafficPolicyOf(target.clone()));
        let winner = self.0.of_backend(target).first()?;
        (winner.name != policy.name).then(|| policy_status::conflict(&winner.name, target))
    }
}

impl Policy {
    fn read(input: &Input<'_>, object: &BackendTrafficPolicy) -> Self {
        let BackendTrafficPolicy { metadata, spec } = object;
        let kinds = &input.options.permissions.backend_kinds;
        let targets = spec.target_refs.iter();
        let targets = targets.filter(|it| input.kinds.is_backend(kinds, &it.group, &it.kind));
        let targets =
            targets.map(|it| ObjectRef::new(&it.group, &it.kind, &metadata.namespace, &it.name));
        let targets: Vec<_> = targets.collect();
        let name = object.object_ref();
        Self {
            settings: settings(&name, spec, &targets).map_err(|fault| {
                let message = format!("{}; the policy is not applied", fault.message);
                Fault::new(Reason::Invalid, message)
            }),
            name,
            generation: metadata.generation,
            created: metadata.creation_timestamp,
            targets,
        }
    }
}

/// Returns the settings of a policy for each of its targets.
fn settings(
    policy: &ObjectRef,
    spec: &BackendTrafficSpec,
    targets: &[ObjectRef],
) -> Result<BTreeMap<ObjectRef, Arc<TrafficPolicy>>, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let BackendTrafficSpec {
        target_refs: _,
        retry_constraint,
        session_persistence,
    } = spec;
    let retry_budget = retry_constraint.as_ref().map(retry_budget).transpose()?;
    let at = |target: &ObjectRef| {
        let session = session_persistence.as_ref();
        let session = session.map(|spec| session_persistence::of_backend(spec, target));
        let settings = TrafficPolicy {
            policy: policy.clone(),
            session_policy: None,
            retry_budget,
            session: session.transpose()?,
        };
        Ok((target.clone(), Arc::new(settings)))
    };
    targets.iter().map(at).collect()
}

/// Validates the same as the CRD: an API server with another version of the CRD may accept other values.
pub(super) fn retry_budget(constraint: &RetryConstraint) -> Result<RetryBudget, Fault> {
    let RetryConstraint {
        budget,
        min_retry_rate,
    } = constraint;
    let refused = |message: String| Err(Fault::new(Reason::Invalid, message));
    let field = |name: &str| format!("spec.retryConstraint.{name}");
    if budget.percent > 100 {
        let field = field("budget.percent");
        return refused(format!("{field}: {} is not 0 to 100", budget.percent));
    }
    let interval = duration::parse(&budget.interval, &field("budget.interval"))?;
    if !BUDGET_INTERVALS.contains(&interval) {
        let field = field("budget.interval");
        return refused(format!("{field}: {} is not 1s to 1h", budget.interval));
    }
    let count = min_retry_rate.count;
    if !RATE_COUNTS.contains(&count) {
        let field = field("minRetryRate.count");
        return refused(format!("{field}: {count} is not 1 to 1000000"));
    }
    let min_interval = duration::parse(&min_retry_rate.interval, &field("minRetryRate.interval"))?;
    if !RATE_INTERVALS.contains(&min_interval) {
        let (field, interval) = (field("minRetryRate.interval"), &min_retry_rate.interval);
        return refused(format!("{field}: {interval} is not 1ms to 1h"));
    }
    Ok(RetryBudget {
        percent: budget.percent,
        interval,
        min_retries: count,
        min_interval,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::traffic_policy::{RequestRate, RetryBudget as Budget};

    fn read(percent: u32, interval: &str, count: u32, min_interval: &str) -> Option<String> {
        let constraint = RetryConstraint {
            budget: Budget {
                percent,
                interval: interval.to_owned(),
            },
            min_retry_rate: RequestRate {
                count,
                interval: min_interval.to_owned(),
            },
        };
        retry_budget(&constraint).err().map(|fault| fault.message)
    }

    #[test]
    fn values_beyond_those_of_the_crd_are_refused() {
        assert_eq!(read(0, "1s", 1, "1ms"), None);
        assert_eq!(read(100, "1h", 1_000_000, "1h"), None);
        let refused = |found: Option<String>, field: &str| {
            let message = found.unwrap();
            assert!(
                message.starts_with(&format!("spec.retryConstraint.{field}: ")),
                "{message}"
            );
        };
        refused(read(101, "10s", 1, "1s"), "budget.percent");
        refused(read(20, "999ms", 1, "1s"), "budget.interval");
        refused(read(20, "1h1ms", 1, "1s"), "budget.interval");
        refused(read(20, "ten", 1, "1s"), "budget.interval");
        refused(read(20, "10s", 0, "1s"), "minRetryRate.count");
        refused(read(20, "10s", 1_000_001, "1s"), "minRetryRate.count");
        refused(read(20, "10s", 1, "0s"), "minRetryRate.interval");
        refused(read(20, "10s", 1, "1h1s"), "minRetryRate.interval");
    }
}
