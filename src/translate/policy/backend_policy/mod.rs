//! BackendPolicies: which of them applies to a port of a backend, and what it says. Exactly one applies, since policies on
//! backends are not merged. Keeps policies from one translation to the next.

mod health;
mod parsed;
mod sections;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::backend_policy::BackendPolicy as Object;
use crate::ir::ObjectRef;
use crate::ir::backend_policy::BackendPolicy;
use crate::ir::traffic::TrafficPolicy;
use crate::status::Condition;

use self::parsed::Policy;
pub(in crate::translate) use self::status::Statuses;
use super::affected::affected;
use super::index::PolicyIndex;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::ConditionType;

/// The policies of a snapshot.
#[derive(Default)]
pub(in crate::translate) struct BackendPolicies(PolicyIndex<Policy>);

/// What a policy says of a backend.
pub(in crate::translate) struct Applied<'a> {
    pub(in crate::translate) policy: &'a Arc<BackendPolicy>,
    /// Its sections that an XBackendTrafficPolicy has too.
    traffic: Option<&'a Arc<TrafficPolicy>>,
    pub(in crate::translate) slow_start: Option<Duration>,
}

impl BackendPolicies {
    /// Parses what has changed. Announces the backends whose policy may have changed.
    pub(in crate::translate) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        let read = |name: &ObjectRef| {
            let object = input.find::<Object>(name)?;
            Some(Policy::read(input, object))
        };
        let changed = changes.of::<Object>();
        self.0.step(input, changes, changed, read);
    }

    /// Returns what applies to a port of a backend, with this name or without one. Sections that are not valid are left
    /// out; they do not let the next policy apply.
    pub(in crate::translate) fn of(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
    ) -> Option<Applied<'_>> {
        let of_port = port.and_then(|port| self.winner(backend, Some(port)));
        let policy = of_port.or_else(|| self.winner(backend, None))?;
        Some(Applied {
            policy: &policy.ir,
            traffic: policy.traffic.get(backend),
            slow_start: policy.slow_start,
        })
    }

    /// Returns the condition of a backend that names the policies on it and on its ports, if there are any.
    pub(in crate::translate) fn affecting(
        &self,
        backend: &ObjectRef,
        generation: i64,
    ) -> Option<Condition> {
        let policies = self.0.of_backend(backend).iter();
        let names: BTreeSet<_> = policies.map(|policy| policy.name.to_string()).collect();
        let kind = ConditionType::BackendPolicyAffected;
        (!names.is_empty()).then(|| affected(kind, &names, generation))
    }

    /// Returns the policy that applies to a target.
    fn winner(&self, backend: &ObjectRef, section: Option<&str>) -> Option<&Arc<Policy>> {
        let mut policies = self.0.of_backend(backend).iter();
        policies.find(|policy| policy.has_target(backend, section))
    }
}

/// Returns the policy on traffic of a backend: an XBackendTrafficPolicy takes precedence for the sections that it sets.
pub(in crate::translate) fn traffic_of(
    upstream: Option<&Arc<TrafficPolicy>>,
    applied: Option<&Applied<'_>>,
) -> Option<Arc<TrafficPolicy>> {
    let own = applied.and_then(|applied| applied.traffic);
    let (Some(upstream), Some(own)) = (upstream, own) else {
        return upstream.or(own).cloned();
    };
    let adds_budget = upstream.retry_budget.is_none() && own.retry_budget.is_some();
    let adds_session = upstream.session.is_none() && own.session.is_some();
    let (first, second) = match (adds_budget, adds_session) {
        (false, false) => return Some(upstream.clone()),
        (true, true) => return Some(own.clone()),
        (true, false) => (own, upstream),
        (false, true) => (upstream, own),
    };
    Some(Arc::new(TrafficPolicy {
        policy: first.policy.clone(),
        retry_budget: first.retry_budget,
        session_policy: second.session.as_ref().map(|_| second.policy.clone()),
        session: second.session.clone(),
    }))
}
