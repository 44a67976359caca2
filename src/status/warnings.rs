//! Findings about configuration that is valid and yet fails requests or handshakes, or has no effect. Pure: what depends on the
//! time is not here.

mod readings;
mod sign_in;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::certificates::of_names;
use super::condition::ConditionType;
use super::report::{AncestorStatus, ParentStatus, RouteStatuses};
use super::status_map::StatusMap;
use crate::finding::{Finding, Kind};
use crate::ir::hop_by_hop::is_never_seen;
use crate::ir::limit::Scope;
use crate::ir::policy::Enforced;
use crate::ir::route::Action;
use crate::ir::{Filter, Listener, ObjectRef, Port, Rule};

/// Returns the findings about all listeners and rules of these ports.
pub fn of_ports(ports: &[Arc<Port>]) -> BTreeSet<Finding> {
    let ports = ports.iter();
    let all = ports.flat_map(|port| {
        let listeners = port.listeners.iter();
        listeners.flat_map(move |listener| of_listener(port, listener))
    });
    all.collect()
}

/// Returns the findings about a listener of a port and its rules.
pub fn of_listener(port: &Port, listener: &Listener) -> Vec<Finding> {
    let rules = || listener.routes.iter().flat_map(|it| &it.route.rules);
    let mut found: Vec<_> = of_names(listener).into_iter().collect();
    found.extend(rules().filter_map(|rule| unforwarded(rule)));
    found.extend(rules().flat_map(|rule| unmet(rule)));
    found.extend(sign_in::of_listener(port, listener));
    found.extend(readings::of_listener(listener));
    found
}

/// Returns the findings about limits that the pods of a Gateway would share, for processes without a controller.
pub fn of_shared_limits(ports: &[Arc<Port>]) -> BTreeSet<Finding> {
    let listeners = ports.iter().flat_map(|port| &port.listeners);
    let policies = listeners.flat_map(|listener| {
        let routes = listener.routes.iter();
        let own = routes.flat_map(|it| it.route.policies.iter().flatten());
        own.chain(&listener.policies)
    });
    let limits = policies.filter_map(|policies| match policies.limits.as_ref()? {
        Enforced::Valid(limits) => Some((&limits.policy, limits)),
        Enforced::Broken(_) => None,
    });
    // A policy on a Gateway is that of all its rules.
    let distinct: BTreeMap<&ObjectRef, _> = limits.collect();
    let shared = distinct.into_iter().flat_map(|(policy, limits)| {
        let shared = limits.limits.iter();
        let shared = shared.filter(|limit| limit.scope == Scope::Gateway);
        shared.map(move |limit| {
            let cause = format!("limit {} has scope Gateway", limit.name);
            Finding::of_object(Kind::Policy, policy, cause)
                .with_effect("a process without a controller knows no others, and admits the whole limit by itself")
                .with_remedy("run it with a controller, or divide the limit and count by scope Replica")
        })
    });
    shared.collect()
}

/// Returns the findings about policies that permit more than one above them, that count requests without an identity, or that
/// ask for HTTP/3 where it is off, as their conditions have them.
pub fn of_policies(policies: &StatusMap<[AncestorStatus]>) -> BTreeSet<Finding> {
    let mut found = BTreeSet::new();
    for (policy, ancestors) in policies {
        let conditions = ancestors.iter().flat_map(|it| &it.conditions);
        found.extend(conditions.filter_map(|it| {
            let remedy = remedy(it.kind)?;
            let finding = Finding::of_object(Kind::Policy, policy, it.message.clone());
            Some(finding.with_remedy(remedy))
        }));
    }
    found
}

/// Returns what to do about a condition of a policy that is a warning; `None` of other conditions.
fn remedy(condition: ConditionType) -> Option<&'static str> {
    match condition {
        ConditionType::LoosensInherited => Some("narrow it, unless it is meant to permit more"),
        ConditionType::LacksIdentity => Some("add such a policy, or count by another key"),
        ConditionType::HTTP3Off => {
            Some("change what it is off for, or remove http3 from the policy")
        }
        _ => None,
    }
}

/// Returns the findings about matches that get no request, as their conditions have them.
pub fn of_routes(routes: &RouteStatuses) -> BTreeSet<Finding> {
    let of_routes = routes.iter().flat_map(|(route, parents)| {
        let messages = parents.iter().filter_map(shadowed_for);
        messages.map(move |message| shadowed(route, message))
    });
    of_routes.collect()
}

/// Returns the finding about a route with a match that gets no request, for this cause.
pub fn shadowed(route: &ObjectRef, cause: String) -> Finding {
    let finding = Finding::of_object(Kind::Shadowed, route, cause);
    finding.with_remedy("remove it, or narrow the match that comes first")
}

fn shadowed_for(parent: &ParentStatus) -> Option<String> {
    let mut conditions = parent.conditions.iter();
    let shadowed = conditions.find(|it| it.kind == ConditionType::Shadowed)?;
    Some(format!("for {}: {}", parent.parent_ref, shadowed.message))
}

/// Returns the findings about matches of a rule that no request meets.
fn unmet(rule: &Rule) -> impl Iterator<Item = Finding> {
    let matches = rule.matches.iter().enumerate();
    matches.filter_map(move |(index, it)| {
        let mut headers = it.others.headers.iter();
        let header = headers.find(|header| is_never_seen(&header.name))?;
        let cause = format!(
            "spec.rules[{}].matches[{index}] has a condition on {}, which is removed from all requests",
            rule.id.index, header.name
        );
        let finding = Finding::of_object(Kind::Shadowed, &rule.id.route, cause);
        let finding = finding.with_effect("it gets no request");
        Some(finding.with_remedy("remove it, or use Upgrade for the protocol of an upgrade"))
    })
}

/// Returns why no request of a rule is forwarded although the rule is valid and does not respond itself.
fn unforwarded(rule: &Rule) -> Option<Finding> {
    let why = without_weight(rule).filter(|_| !rule.filters.iter().any(Filter::responds))?;
    let effect = match &*rule.id.route.kind {
        "TCPRoute" | "TLSRoute" => "every connection is reset",
        "UDPRoute" => "every datagram is dropped",
        _ if rule.is_of_grpc() => "every call gets gRPC status UNAVAILABLE",
        _ => "every request gets status 500",
    };
    let finding = Finding::of_object(Kind::Route, &rule.id.route, why);
    let finding = finding.with_effect(effect);
    Some(finding.with_remedy("name a backendRef with a weight above 0"))
}

/// Returns why a valid rule has no backendRef that requests may go to.
pub fn without_weight(rule: &Rule) -> Option<String> {
    let Action::Forward(shares) = &rule.action else {
        return None;
    };
    let index = rule.id.index;
    if shares.is_empty() {
        return Some(format!("spec.rules[{index}] has no backendRefs"));
    }
    let is_unused = shares.iter().all(|share| share.weight == 0);
    is_unused.then(|| format!("all weights of spec.rules[{index}].backendRefs are 0"))
}
