//! Limits of RateLimitPolicies over which many requests of their rules are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::in_service::{InService, minutes};
use crate::admin::shares::Shares;
use crate::finding::{Finding, Kind};
use crate::ir::ObjectRef;
use crate::table::{Limiter, Listener, Rule};

/// Returns the limits that refuse many of the requests that they count. One client over its limit among many requests of others is
/// none of them, since that is what the limit is for.
pub(super) fn exceeded(service: &InService<'_>) -> Vec<Finding> {
    let before = service.before;
    let limiters = service.table.limiters().into_iter();
    let over: Vec<(Arc<Limiter>, u64)> = limiters
        .filter(|limiter| !limiter.ir.is_audit)
        .map(|limiter| {
            let count = before.exceeded(&limiter);
            (limiter, count)
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    if over.is_empty() {
        return Vec::new();
    }
    let responses = responses(service);
    let time = minutes(before.process.age());
    let trouble = |(limiter, failed): (Arc<Limiter>, u64)| {
        let policy = &limiter.policy;
        // Those that are refused now may have no response yet.
        let all = responses.get(policy).map_or(failed, |all| failed.max(*all));
        let shares = Shares { failed, all };
        let finding = || {
            let limit = &limiter.ir.name;
            let cause =
                format!("{failed} of {all} requests in the {time} were over the limit {limit}");
            Finding::of_service(Kind::Limit, policy.to_string(), cause)
                .with_effect("they are refused")
                .with_remedy(
                    "raise it if clients need more: portcullis tap shows their requests, and /api/v1/limits the keys that use most",
                )
                .about(policy)
        };
        shares.are_failing().then(finding)
    };
    over.into_iter().filter_map(trouble).collect()
}

/// Returns the recent responses of all rules for which the limits of a policy are, by policy.
fn responses(service: &InService<'_>) -> BTreeMap<ObjectRef, u64> {
    let ports = service.table.ports().iter();
    let listeners: Vec<_> = ports.flat_map(|port| port.listeners()).collect();
    let mut all = BTreeMap::<ObjectRef, u64>::new();
    let mut counted = BTreeSet::new();
    for rule in service.table.rule_versions() {
        let count = service.before.responses(rule).all;
        for policy in policies(rule, &listeners) {
            if counted.insert((Arc::as_ptr(&rule.state), policy)) {
                *all.entry(policy.clone()).or_default() += count;
            }
        }
    }
    all
}

/// Returns the policies whose limits count the requests of a rule on any listener.
fn policies<'a>(rule: &'a Rule, listeners: &[&'a Arc<Listener>]) -> BTreeSet<&'a ObjectRef> {
    let route = &rule.ir.id.route;
    let attached = listeners
        .iter()
        .copied()
        .filter(|it| it.ir.routes.get(route).is_some());
    let policies = attached.filter_map(|it| it.policies(rule));
    let limits = policies.filter_map(|it| it.limits());
    limits.map(|it| &it.policy).collect()
}
