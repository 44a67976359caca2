//! Warnings about configuration that is valid and yet fails requests or handshakes, or has no effect. Pure: what depends on
//! the time is not here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::certificates::other_names;
use super::condition::ConditionType;
use super::report::{ParentStatus, RouteStatuses};
use crate::ir::route::Action;
use crate::ir::{Filter, ObjectRef, Port, Rule};

/// What a warning is about. Those with the most effect on requests come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningKind {
    /// No request of a rule is forwarded.
    Unforwarded,
    /// Clients refuse the certificates of a listener.
    Hostname,
    /// A rule, or a match of it, gets no request.
    Shadowed,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// The object that needs a change.
    pub object: ObjectRef,
    /// What is wrong, and the effect.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.message)
    }
}

/// Returns the warnings about all listeners and rules of these ports.
pub fn of_ports(ports: &[Arc<Port>]) -> BTreeSet<Warning> {
    let mut warnings = BTreeSet::new();
    for listener in ports.iter().flat_map(|port| &port.listeners) {
        let tls = listener.tls();
        let other_names = tls.and_then(|tls| other_names(tls, &listener.hostname));
        warnings.extend(other_names.map(|message| Warning {
            kind: WarningKind::Hostname,
            object: listener.key.origin.clone(),
            message: format!("listener {}: {message}", listener.key.name),
        }));
        for rule in listener.routes.iter().flat_map(|it| &it.route.rules) {
            warnings.extend(unforwarded(rule).map(|message| Warning {
                kind: WarningKind::Unforwarded,
                object: rule.id.route.clone(),
                message,
            }));
        }
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
