//! Warnings about rules that need less than another one for a path that their backend may read as one of the other. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::client::EscapedSlashes;
use crate::ir::keyed::KeyedMap;
use crate::ir::policy::Policies;
use crate::ir::route::{Action, PathMatch};
use crate::ir::{BackendId, Hostname, Listener, Rule};
use crate::status::warning::{Warning, WarningKind};

/// Maximum number of rules with a pattern that are tried for a rule. Thousands would take seconds of the control thread.
const MAX_PATTERNS: usize = 16;

/// Whether requests need an address, a limit, credentials and a permission.
type Requirements = [bool; 4];

/// A rule on a listener.
#[derive(Clone, Copy)]
struct Placed<'a> {
    hostnames: &'a [Hostname],
    rule: &'a Rule,
    needs: Requirements,
}

/// Returns the warnings about a listener. One that refuses escaped slashes has none.
pub(super) fn of_listener(listener: &Listener) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let all: BTreeSet<_> = placed(listener).map(|it| it.needs).collect();
    // Usually, all rules need the same.
    if all.len() < 2 || !keeps_escaped_slashes(listener) {
        return warnings;
    }
    for (id, rules) in by_backend(listener) {
        let distinct: BTreeSet<_> = rules.iter().map(|it| it.needs).collect();
        let index = Index::of(&rules);
        for one in &rules {
            if let Some(other) = index.passing(one, &distinct) {
                warnings.push(warning(listener, one.rule, rules[other].rule, id));
            }
        }
    }
    warnings
}

fn keeps_escaped_slashes(listener: &Listener) -> bool {
    let clients = listener.clients.as_ref();
    let path = clients.and_then(|clients| clients.path.as_ref());
    path.is_none_or(|path| path.escaped_slashes == EscapedSlashes::Keep)
}

/// Returns all rules of a listener.
fn placed(listener: &Listener) -> impl Iterator<Item = Placed<'_>> {
    listener.routes.iter().flat_map(move |attached| {
        let rules = attached.route.rules.iter().enumerate();
        rules.map(move |(index, rule)| {
            let own = attached.route.policies.as_ref();
            let own = own.and_then(|policies| policies.get(index));
            Placed {
                hostnames: &attached.hostnames,
                rule,
                needs: requirements(own.or(listener.policies.as_ref())),
            }
        })
    })
}

fn by_backend(listener: &Listener) -> BTreeMap<&BackendId, Vec<Placed<'_>>> {
    let mut by_backend: BTreeMap<&BackendId, Vec<Placed<'_>>> = BTreeMap::new();
    for placed in placed(listener) {
        for id in backends(placed.rule) {
            by_backend.entry(id).or_default().push(placed);
        }
    }
    by_backend
}

/// A condition on paths.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Condition<'a> {
    Exact(&'a str),
    Prefix(&'a str),
}

/// The rules of a backend by their conditions, so that thousands of rules are not compared with each other.
struct Index<'a> {
    /// The first rule with this condition.
    paths: KeyedMap<(&'a Hostname, Requirements, Condition<'a>), usize>,
    /// The rules with a pattern.
    patterns: Vec<(usize, &'a Placed<'a>)>,
}

impl<'a> Index<'a> {
    fn of(rules: &'a [Placed<'a>]) -> Self {
        let mut index = Self {
            paths: KeyedMap::default(),
            patterns: Vec::new(),
        };
        for (number, placed) in rules.iter().enumerate() {
            for condition in placed.rule.matches.iter().map(|it| &it.path) {
                let condition = match condition {
                    PathMatch::Exact(path) => Condition::Exact(path),
                    PathMatch::Prefix(prefix) => Condition::Prefix(prefix),
                    PathMatch::Regex(_) => {
                        index.patterns.push((number, placed));
                        continue;
                    }
                    PathMatch::Call(_) => continue,
                };
                for host in placed.hostnames {
                    let key = (host, placed.needs, condition);
                    index.paths.entry(key).or_insert(number);
                }
            }
        }
        index
    }

    /// Returns the first rule that needs less than `one` and that a path of `one` with an escaped slash belongs to.
    fn passing(&self, one: &Placed<'_>, distinct: &BTreeSet<Requirements>) -> Option<usize> {
        let lesser = distinct.iter().filter(|needs| lacks(one.needs, **needs));
        let lesser: Vec<_> = lesser.copied().collect();
        if lesser.is_empty() {
            return None;
        }
        let own = |path: &String| !matches(one.rule, path);
        let readings: Vec<_> = readings(one.rule).filter(own).collect();
        let indexed = readings
            .iter()
            .filter_map(|path| self.first(one, &lesser, path));
        let with_pattern = self.patterns.iter().take(MAX_PATTERNS).find(|(_, other)| {
            lacks(one.needs, other.needs)
                && one.hostnames.iter().any(|it| other.hostnames.contains(it))
                && readings.iter().any(|path| matches(other.rule, path))
        });
        let with_pattern = with_pattern.map(|(number, _)| *number);
        indexed.chain(with_pattern).min()
    }

    /// Returns the first rule of a host of `one` with these requirements that has a condition on a path.
    fn first(&self, one: &Placed<'_>, lesser: &[Requirements], path: &str) -> Option<usize> {
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        let prefixes = parents.chain([path]).map(Condition::Prefix);
        let conditions: Vec<_> = prefixes.chain([Condition::Exact(path)]).collect();
        let conditions = &conditions;
        let keys = one.hostnames.iter().flat_map(|host| {
            lesser.iter().flat_map(move |needs| {
                let all = conditions.iter();
                all.map(move |condition| (host, *needs, *condition))
            })
        });
        keys.filter_map(|key| self.paths.get(&key).copied()).min()
    }
}

fn backends(rule: &Rule) -> BTreeSet<&BackendId> {
    match &rule.action {
        Action::Forward(shares) => shares.iter().filter_map(|it| it.target.backend()).collect(),
        Action::Invalid(_) => BTreeSet::new(),
    }
}

fn requirements(policies: Option<&Arc<Policies>>) -> Requirements {
    policies.map_or([false; 4], |it| {
        [
            it.ip_rules.is_some(),
            it.limits.is_some(),
            it.authentication.is_some(),
            it.authorization.is_some(),
        ]
    })
}

/// Reports whether the other requirements lack one of these.
fn lacks(all: Requirements, others: Requirements) -> bool {
    all.iter().zip(others).any(|(one, other)| *one && !other)
}

fn matches(rule: &Rule, path: &str) -> bool {
    rule.matches.iter().any(|it| fits(&it.path, path))
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
        kind: WarningKind::Policy,
        object: one.id.route.clone(),
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
    use thin_vec::ThinVec;

    use super::*;
    use crate::ir::{ObjectRef, RuleId};

    /// The number of the rule that a rule for a path is compared with, beside others that need less.
    fn passing(path: &PathMatch, others: &[(&str, PathMatch)]) -> Option<usize> {
        let rule = |path: &PathMatch| Rule {
            id: RuleId {
                route: ObjectRef::gateway_api("HTTPRoute", "ns", "r"),
                index: 0,
                name: None,
            },
            matches: [path.clone().into()].into(),
            filters: ThinVec::new(),
            action: Action::Forward([].into()),
            options: None,
        };
        let protected = (rule(path), [Hostname::new("a.com")]);
        let others = others.iter();
        let others: Vec<_> = others
            .map(|(host, path)| (rule(path), [Hostname::new(host)]))
            .collect();
        let all = [&protected].into_iter().chain(&others);
        let rules: Vec<_> = all
            .enumerate()
            .map(|(number, (rule, hostnames))| Placed {
                hostnames,
                rule,
                needs: [number == 0, false, false, false],
            })
            .collect();
        let distinct = rules.iter().map(|it| it.needs).collect();
        Index::of(&rules).passing(&rules[0], &distinct)
    }

    #[test]
    fn first_rule_of_the_host_that_takes_a_reading_is_named() {
        let prefix = |path: &str| PathMatch::Prefix(path.into());
        let exact = |path: &str| PathMatch::Exact(path.into());
        let others = [
            ("b.com", prefix("")),
            ("a.com", prefix("/other")),
            ("a.com", exact("/api%2Fadmin")),
            ("a.com", prefix("/api")),
            ("a.com", prefix("")),
        ];
        assert_eq!(passing(&prefix("/admin"), &others), Some(5));
        assert_eq!(passing(&prefix("/api/admin"), &others), Some(4));
        assert_eq!(passing(&exact("/api/admin"), &others), Some(3));
        assert_eq!(passing(&prefix("/admin"), &others[..3]), None);
        assert_eq!(passing(&prefix(""), &others), None);
    }

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
