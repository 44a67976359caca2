//! Warnings about rules that need less than another one for a path that their backend may read as one of the other. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::warnings::Warning;
use crate::ir::client::EscapedSlashes;
use crate::ir::policy::Policies;
use crate::ir::route::{Action, PathMatch};
use crate::ir::{BackendId, Hostname, Ir, Listener, Rule};

/// A rule on a listener.
#[derive(Clone, Copy)]
struct Placed<'a> {
    hostnames: &'a [Hostname],
    rule: &'a Rule,
    policies: Option<&'a Arc<Policies>>,
}

/// Returns the warnings about all listeners. A listener that refuses escaped slashes has none.
pub(super) fn of(ir: &Ir) -> BTreeSet<Warning> {
    let listeners = ir.ports.iter().flat_map(|port| &port.listeners);
    listeners
        .filter(|listener| keeps_escaped_slashes(listener))
        .flat_map(|listener| of_listener(listener))
        .collect()
}

fn keeps_escaped_slashes(listener: &Listener) -> bool {
    let clients = listener.clients.as_ref();
    let path = clients.and_then(|clients| clients.path.as_ref());
    path.is_none_or(|path| path.escaped_slashes == EscapedSlashes::Keep)
}

fn of_listener(listener: &Listener) -> Vec<Warning> {
    let mut by_backend: BTreeMap<&BackendId, Vec<Placed<'_>>> = BTreeMap::new();
    for attached in listener.routes.iter() {
        for (index, rule) in attached.route.rules.iter().enumerate() {
            let own = attached.route.policies.as_ref();
            let own = own.and_then(|policies| policies.get(index));
            let placed = Placed {
                hostnames: &attached.hostnames,
                rule,
                policies: own.or(listener.policies.as_ref()),
            };
            for id in backends(rule) {
                by_backend.entry(id).or_default().push(placed);
            }
        }
    }
    let mut warnings = Vec::new();
    for (id, rules) in by_backend {
        let protected = rules
            .iter()
            .filter(|it| requirements(it.policies) != [false; 4]);
        for one in protected {
            let mut others = rules.iter();
            if let Some(other) = others.find(|other| is_passed(one, other)) {
                warnings.push(warning(listener, one.rule, other.rule, id));
            }
        }
    }
    warnings
}

fn backends(rule: &Rule) -> BTreeSet<&BackendId> {
    match &rule.action {
        Action::Forward(shares) => shares.iter().filter_map(|it| it.target.backend()).collect(),
        Action::Invalid(_) => BTreeSet::new(),
    }
}

/// Whether requests need an address, a limit, credentials and a permission.
fn requirements(policies: Option<&Arc<Policies>>) -> [bool; 4] {
    policies.map_or([false; 4], |it| {
        [
            it.ip_rules.is_some(),
            it.limits.is_some(),
            it.authentication.is_some(),
            it.authorization.is_some(),
        ]
    })
}

/// Reports whether a path of `one` with an escaped slash belongs to `other`, which needs less.
fn is_passed(one: &Placed<'_>, other: &Placed<'_>) -> bool {
    let (all, less) = (requirements(one.policies), requirements(other.policies));
    let lacks = all.iter().zip(less).any(|(one, other)| *one && !other);
    let shares_host = || one.hostnames.iter().any(|it| other.hostnames.contains(it));
    let matches = |rule: &Rule, path: &str| rule.matches.iter().any(|it| fits(&it.path, path));
    lacks
        && shares_host()
        && readings(one.rule).any(|path| !matches(one.rule, &path) && matches(other.rule, &path))
}

/// Returns paths that are distinct from those of a rule, until a backend decodes their slash.
fn readings(rule: &Rule) -> impl Iterator<Item = String> {
    rule.matches.iter().filter_map(|it| {
        let path = match &it.path {
            PathMatch::Prefix(prefix) if !prefix.is_empty() => format!("{prefix}/x"),
            PathMatch::Exact(path) => path.to_string(),
            PathMatch::Prefix(_) | PathMatch::Regex(_) | PathMatch::Call(_) => return None,
        };
        let (before, after) = path.rsplit_once('/')?;
        (!before.is_empty()).then(|| format!("{before}%2F{after}"))
    })
}

fn fits(condition: &PathMatch, path: &str) -> bool {
    match condition {
        PathMatch::Exact(exact) => **exact == *path,
        PathMatch::Prefix(prefix) => path
            .strip_prefix(&**prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        PathMatch::Regex(pattern) => pattern.matches(path),
        PathMatch::Call(_) => false,
    }
}

fn warning(listener: &Listener, one: &Rule, other: &Rule, id: &BackendId) -> Warning {
    let name = |rule: &Rule| format!("spec.rules[{}] of {}", rule.id.index, rule.id.route);
    Warning {
        object: Some(one.id.route.clone()),
        message: format!(
            "spec.rules[{}] is protected by policies that {} lacks, and both lead to {}:{}: if it takes %2F or %5C for a slash, \
             requests pass the policies. Set path.escapedSlashes: Reject in a ClientPolicy on {}, or protect both rules, \
             which is also needed if the backend removes parameters such as ;v=1",
            one.id.index,
            name(other),
            id.object,
            id.port,
            listener.key,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_paths_of_other_rules() {
        let prefix = |text: &str| PathMatch::Prefix(text.into());
        for (path, condition, expected) in [
            ("/admin%2Fx", prefix(""), true),
            ("/admin%2Fx", prefix("/admin"), false),
            ("/api/admin%2Fx", prefix("/api"), true),
            ("/api%2Fx", PathMatch::Exact("/api%2Fx".into()), true),
        ] {
            assert_eq!(fits(&condition, path), expected, "{path}");
        }
    }
}
