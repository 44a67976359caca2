//! Warnings about configuration that is valid and yet fails requests or handshakes, or has no effect: `check`, the log, the
//! page and `/api/v1/` render them. Pure: what depends on the time is not here.

mod readings;
mod sign_in;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::certificates::other_names;
use super::condition::{Condition, ConditionType};
use super::report::{AncestorStatus, ParentStatus, RouteStatuses};
use super::status_map::StatusMap;
use super::warning::{Warning, WarningKind};
use crate::ir::limit::Scope;
use crate::ir::policy::Enforced;
use crate::ir::route::Action;
use crate::ir::{Filter, Listener, ObjectRef, Port, Rule};

/// Returns the warnings about all listeners and rules of these ports.
pub fn of_ports(ports: &[Arc<Port>]) -> BTreeSet<Warning> {
    let ports = ports.iter();
    let all = ports.flat_map(|port| {
        let listeners = port.listeners.iter();
        listeners.flat_map(move |listener| of_listener(port, listener))
    });
    all.collect()
}

/// Returns the warnings about a listener of a port and its rules.
pub fn of_listener(port: &Port, listener: &Listener) -> Vec<Warning> {
    let tls = listener.tls();
    let other_names = tls.and_then(|tls| other_names(tls, &listener.hostname));
    let other_names = other_names.map(|message| Warning {
        kind: WarningKind::Hostname,
        object: listener.key.origin.clone(),
        message: format!("listener {}: {message}", listener.key.name),
    });
    let mut warnings: Vec<_> = other_names.into_iter().collect();
    for rule in listener.routes.iter().flat_map(|it| &it.route.rules) {
        warnings.extend(unforwarded(rule).map(|message| Warning {
            kind: WarningKind::Unforwarded,
            object: rule.id.route.clone(),
            message,
        }));
    }
    warnings.extend(sign_in::of_listener(port, listener));
    warnings.extend(readings::of_listener(listener));
    warnings
}

/// Returns the warnings about limits that the pods of a Gateway would share, for processes without a controller.
pub fn of_shared_limits(ports: &[Arc<Port>]) -> BTreeSet<Warning> {
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
        shared.map(|limit| Warning {
            kind: WarningKind::Policy,
            object: policy.clone(),
            message: format!(
                "limit {} has scope Gateway: a process without a controller knows no others, and admits the whole limit by itself",
                limit.name
            ),
        })
    });
    shared.collect()
}

/// Returns the warnings about policies that permit more than one above them, or that count requests without an identity, as
/// their conditions have them.
pub fn of_policies(policies: &StatusMap<[AncestorStatus]>) -> BTreeSet<Warning> {
    let is_warning = |condition: &&Condition| {
        matches!(
            condition.kind,
            ConditionType::LacksIdentity | ConditionType::LoosensInherited
        )
    };
    let mut warnings = BTreeSet::new();
    for (policy, ancestors) in policies {
        let conditions = ancestors.iter().flat_map(|it| &it.conditions);
        warnings.extend(conditions.filter(is_warning).map(|condition| Warning {
            kind: WarningKind::Policy,
            object: policy.clone(),
            message: condition.message.clone(),
        }));
    }
    warnings
}

/// Returns the warnings about matches that get no request, as their conditions have them.
pub fn of_routes(routes: &RouteStatuses) -> BTreeSet<Warning> {
    let mut warnings = BTreeSet::new();
    for (route, parents) in routes {
        for parent in parents.iter() {
            warnings.extend(shadowed(parent).map(|message| Warning {
                kind: WarningKind::Shadowed,
                object: route.clone(),
                message,
            }));
        }
    }
    warnings
}

fn shadowed(parent: &ParentStatus) -> Option<String> {
    let mut conditions = parent.conditions.iter();
    let shadowed = conditions.find(|it| it.kind == ConditionType::Shadowed)?;
    Some(format!("for {}: {}", parent.parent_ref, shadowed.message))
}

/// Returns why no request of a rule is forwarded although the rule is valid and does not respond itself.
fn unforwarded(rule: &Rule) -> Option<String> {
    let why = without_weight(rule).filter(|_| !rule.filters.iter().any(Filter::responds))?;
    let effect = match &*rule.id.route.kind {
        "TCPRoute" | "TLSRoute" => "every connection is reset",
        "UDPRoute" => "every datagram is dropped",
        _ if rule.is_of_grpc() => "every call gets gRPC status UNAVAILABLE",
        _ => "every request gets status 500",
    };
    Some(format!("{why}: {effect}"))
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
