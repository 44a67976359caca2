//! Findings about rules that are protected otherwise than another one for a path that their backend may read as one of the other,
//! or for the same paths without the headers and query parameters that select the rule. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use http::header::UPGRADE;

use crate::finding::{Finding, Kind};
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::cidr::CidrSet;
use crate::ir::client::EscapedSlashes;
use crate::ir::keyed::KeyedMap;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::route::{Action, Match, PathMatch};
use crate::ir::{BackendId, Hostname, Hosts, Listener, Rule};

/// Maximum number of rules with a pattern that are tried for a rule. Thousands would take seconds of the control thread.
const MAX_PATTERNS: usize = 16;

/// A rule on a listener.
#[derive(Clone, Copy)]
struct Placed<'a> {
    hostnames: &'a [Hostname],
    rule: &'a Rule,
    policies: &'a Policies,
}

/// Returns the findings about a listener. One that refuses escaped slashes has none about paths.
pub(super) fn of_listener(listener: &Listener) -> Vec<Finding> {
    let mut found = Vec::new();
    let none = Policies::default();
    // Usually, all rules are protected alike.
    if are_alike(placed(listener, &none)) {
        return found;
    }
    let keeps_slashes = keeps_escaped_slashes(listener);
    for (id, rules) in by_backend(listener, &none) {
        if are_alike(rules.iter().copied()) {
            continue;
        }
        let index = Index::of(&rules);
        let is_protected = |it: &&Placed<'_>| is_protected_otherwise(it.policies, &none);
        for one in rules.iter().filter(is_protected) {
            let passing = keeps_slashes.then(|| index.passing(one)).flatten();
            found.extend(passing.map(|it| finding(listener, one.rule, rules[it].rule, id)));
            let unselected = index.unselected(one);
            found.extend(unselected.map(|it| avoidable(one.rule, rules[it].rule, id)));
        }
    }
    found
}

fn keeps_escaped_slashes(listener: &Listener) -> bool {
    let clients = listener.clients.as_ref();
    let path = clients.and_then(|clients| clients.path.as_ref());
    path.is_none_or(|path| path.escaped_slashes == EscapedSlashes::Keep)
}

/// Returns all rules of a listener. Those without policies have `none`.
fn placed<'a>(listener: &'a Listener, none: &'a Policies) -> impl Iterator<Item = Placed<'a>> {
    listener.routes.iter().flat_map(move |attached| {
        let rules = attached.route.rules.iter().enumerate();
        rules.map(move |(index, rule)| {
            let own = attached.route.policies.as_ref();
            let own = own.and_then(|policies| policies.get(index));
            let policies = own.or(listener.policies.as_ref());
            Placed {
                hostnames: &attached.hostnames,
                rule,
                policies: policies.map_or(none, |it| &**it),
            }
        })
    })
}

fn by_backend<'a>(
    listener: &'a Listener,
    none: &'a Policies,
) -> BTreeMap<&'a BackendId, Vec<Placed<'a>>> {
    let mut by_backend: BTreeMap<&BackendId, Vec<Placed<'_>>> = BTreeMap::new();
    for placed in placed(listener, none) {
        for id in backends(placed.rule) {
            by_backend.entry(id).or_default().push(placed);
        }
    }
    by_backend
}

fn are_alike<'a>(mut rules: impl Iterator<Item = Placed<'a>>) -> bool {
    let first = rules.next();
    first.is_none_or(|first| {
        rules.all(|it| {
            !is_protected_otherwise(it.policies, first.policies)
                && !is_protected_otherwise(first.policies, it.policies)
        })
    })
}

/// Reports whether a section that protects requests of `one` is another for those of `other`, or absent. Nobody can tell which of
/// two sections is stricter. Passwords and counters are those of a policy; addresses are the same in any policy.
fn is_protected_otherwise(one: &Policies, other: &Policies) -> bool {
    fn is_other<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.is_some() && one != other
    }
    let Policies {
        ip_rules: _,
        limits,
        authentication,
        authorization,
        route: _,
    } = one;
    // Rules share the policies that they have in common.
    !ptr::eq(one, other)
        && (is_other(addresses(one).as_ref(), addresses(other).as_ref())
            || is_other(limits.as_ref(), other.limits.as_ref())
            || is_other(authentication.as_ref(), other.authentication.as_ref())
            || is_other(authorization.as_ref(), other.authorization.as_ref()))
}

/// Addresses that may send requests, and those that may not.
type Addresses<'a> = (Option<&'a CidrSet>, &'a CidrSet);

/// Returns the addresses of rules, whichever policies say them, or why these are broken.
fn addresses(policies: &Policies) -> Option<Result<Addresses<'_>, &str>> {
    policies.ip_rules.as_ref().map(|rules| match rules {
        Enforced::Valid(rules) => Ok((rules.allow.as_ref(), &rules.deny)),
        Enforced::Broken(reason) => Err(&**reason),
    })
}

/// A condition on paths.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Condition<'a> {
    Exact(&'a str),
    Prefix(&'a str),
}

/// A rule with a condition.
struct Entry<'a> {
    number: usize,
    policies: &'a Policies,
    /// Whether it takes all requests that meet the condition.
    is_plain: bool,
}

/// The rules of a backend by their conditions, so that thousands of rules are not compared with each other.
struct Index<'a> {
    /// The first rules with a condition that differ in the other parts of an entry.
    paths: KeyedMap<Hosts<'a>, KeyedMap<Condition<'a>, Vec<Entry<'a>>>>,
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
            for of_rule in &placed.rule.matches {
                let condition = match &of_rule.path {
                    PathMatch::Exact(path) => Condition::Exact(path),
                    PathMatch::Prefix(prefix) => Condition::Prefix(prefix),
                    PathMatch::Regex(_) => {
                        index.patterns.push((number, placed));
                        continue;
                    }
                    PathMatch::Call(_) => continue,
                };
                for host in placed.hostnames {
                    let of_host = index.paths.entry(Hosts::of(host)).or_default();
                    let entry = Entry {
                        number,
                        policies: placed.policies,
                        is_plain: of_rule.others.is_empty(),
                    };
                    entry.add_to(of_host.entry(condition).or_default());
                }
            }
        }
        index
    }

    /// Returns the first rule that a path of `one` with an escaped slash belongs to, and that is protected otherwise.
    fn passing(&self, one: &Placed<'_>) -> Option<usize> {
        let texts: Vec<_> = readings(one.rule).collect();
        let paths = texts.iter().filter_map(|text| CanonicalPath::new(text));
        let paths: Vec<_> = paths.filter(|path| !matches(one.rule, *path)).collect();
        let indexed = paths.iter().filter_map(|path| self.first(one, path));
        let with_pattern = self.patterns.iter().take(MAX_PATTERNS).find(|(_, other)| {
            is_protected_otherwise(one.policies, other.policies)
                && shares_host(one, other)
                && paths.iter().any(|path| matches(other.rule, *path))
        });
        let with_pattern = with_pattern.map(|(number, _)| *number);
        indexed.chain(with_pattern).min()
    }

    /// Returns the first rule that gets the requests of `one` without what selects them, and that is protected otherwise.
    fn unselected(&self, one: &Placed<'_>) -> Option<usize> {
        let paths = selected(one.rule);
        let rules = paths.filter_map(|path| {
            let conditions = conditions(&path);
            let mut hosts = one.hostnames.iter().map(Hosts::of);
            hosts.find_map(|host| self.plain(one.policies, host, &conditions))
        });
        rules.min()
    }

    /// Returns the rule that gets all requests of a host that no rule selects by more than the path, if it is protected otherwise
    /// than by these policies. Of conditions, the last one that a rule has counts.
    fn plain(
        &self,
        policies: &Policies,
        host: Hosts<'_>,
        conditions: &[Condition<'_>],
    ) -> Option<usize> {
        for hosts in host.covering() {
            let Some(paths) = self.paths.get(&hosts) else {
                continue;
            };
            for entries in conditions.iter().rev().filter_map(|it| paths.get(it)) {
                let mut plain = entries.iter().filter(|it| it.is_plain).peekable();
                if let Some(first) = plain.peek().map(|it| it.number) {
                    let is_other = plain.all(|it| is_protected_otherwise(policies, it.policies));
                    return is_other.then_some(first);
                }
            }
        }
        None
    }

    /// Returns the first rule for a host of `one` and a path that is protected otherwise.
    fn first(&self, one: &Placed<'_>, path: &str) -> Option<usize> {
        let conditions = conditions(path);
        let hosts = one.hostnames.iter().map(Hosts::of);
        let rules = hosts.filter_map(|host| self.first_of_host(one.policies, host, &conditions));
        rules.min()
    }

    /// Returns the first rule for a host that is protected otherwise than by these policies. Rules of wider hosts get only what no
    /// rule of a narrower one takes. Requests of narrower hosts are not those of the host anyway.
    fn first_of_host(
        &self,
        policies: &Policies,
        host: Hosts<'_>,
        conditions: &[Condition<'_>],
    ) -> Option<usize> {
        for hosts in host.covering() {
            let Some(paths) = self.paths.get(&hosts) else {
                continue;
            };
            let rules = || conditions.iter().filter_map(|it| paths.get(it)).flatten();
            let others = rules().filter(|it| is_protected_otherwise(policies, it.policies));
            let first = others.map(|it| it.number).min();
            if first.is_some() || rules().any(|it| it.is_plain) {
                return first;
            }
        }
        None
    }
}

impl Entry<'_> {
    fn add_to(self, entries: &mut Vec<Self>) {
        let is_known = entries
            .iter()
            .any(|it| ptr::eq(it.policies, self.policies) && (it.is_plain || !self.is_plain));
        if !is_known {
            entries.push(self);
        }
    }
}

fn backends(rule: &Rule) -> BTreeSet<&BackendId> {
    match &rule.action {
        Action::Forward(shares) => shares.iter().filter_map(|it| it.target.backend()).collect(),
        Action::Invalid(_) => BTreeSet::new(),
    }
}

/// Reports whether requests of a host of `one` may reach `other`.
fn shares_host(one: &Placed<'_>, other: &Placed<'_>) -> bool {
    let mut covering = one.hostnames.iter().flat_map(|it| Hosts::of(it).covering());
    covering.any(|hosts| other.hostnames.iter().any(|it| Hosts::of(it) == hosts))
}

fn matches(rule: &Rule, path: CanonicalPath<'_>) -> bool {
    rule.matches.iter().any(|it| it.path.matches(path))
}

/// Returns the conditions that a path meets, the most specific one last.
fn conditions(path: &str) -> Vec<Condition<'_>> {
    let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
    let prefixes = parents.chain([path]).map(Condition::Prefix);
    prefixes.chain([Condition::Exact(path)]).collect()
}

/// Returns paths that a rule gets by headers or query parameters. The protocol of an upgrade makes another request.
fn selected(rule: &Rule) -> impl Iterator<Item = String> {
    let selects = |it: &&Match| {
        let mut headers = it.others.headers.iter();
        headers.any(|header| header.name != UPGRADE) || !it.others.query.is_empty()
    };
    let matches = rule.matches.iter().filter(selects);
    matches.filter_map(|it| match &it.path {
        PathMatch::Prefix(prefix) => Some(format!("{prefix}/x")),
        PathMatch::Exact(path) => Some(path.to_string()),
        PathMatch::Regex(_) | PathMatch::Call(_) => None,
    })
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

fn finding(listener: &Listener, one: &Rule, other: &Rule, id: &BackendId) -> Finding {
    let cause = format!(
        "spec.rules[{}] is not protected like spec.rules[{}] of {}, and both lead to {}:{}",
        one.id.index, other.id.index, other.id.route, id.object, id.port,
    );
    let remedy = format!(
        "set path.escapedSlashes: Reject in a ClientPolicy on {}, or protect both rules alike, which is also needed if the backend \
         removes parameters such as ;v=1",
        listener.key,
    );
    Finding::of_object(Kind::Policy, &one.id.route, cause)
        .with_effect("if it takes %2F or %5C for a slash, requests pass the policies")
        .with_remedy(remedy)
}

fn avoidable(one: &Rule, other: &Rule, id: &BackendId) -> Finding {
    let cause = format!(
        "spec.rules[{}] selects by headers or query parameters and is not protected like spec.rules[{}] of {}, which gets the same \
         paths without them, and both lead to {}:{}",
        one.id.index, other.id.index, other.id.route, id.object, id.port,
    );
    Finding::of_object(Kind::Policy, &one.id.route, cause)
        .with_effect("clients that leave them out pass its policies")
        .with_remedy("protect both rules alike, or lead them to different backends")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thin_vec::ThinVec;

    use super::*;
    use crate::ir::cidr;
    use crate::ir::policy::IpRules;
    use crate::ir::{ObjectRef, RuleId};

    /// Policies that permit only an address, said by a policy of this name.
    fn allow(address: &str, policy: &str) -> Policies {
        let rules = IpRules {
            allow: Some(cidr::parse(address).into_iter().collect()),
            deny: CidrSet::default(),
            policies: [ObjectRef::new(
                "portcullis.dev",
                "AccessPolicy",
                "ns",
                policy,
            )]
            .into(),
        };
        Policies {
            ip_rules: Some(Enforced::Valid(Arc::new(rules))),
            ..Policies::default()
        }
    }

    /// The number of the rule that the first one is compared with: the rules have these hosts, paths and policies.
    fn passing(rules: &[(&str, PathMatch, &Policies)]) -> Option<usize> {
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
        let rules = rules.iter();
        let rules: Vec<_> = rules
            .map(|(host, path, policies)| (rule(path), [Hostname::new(host)], *policies))
            .collect();
        let rules = rules.iter().map(|(rule, hostnames, policies)| Placed {
            hostnames,
            rule,
            policies,
        });
        let rules: Vec<_> = rules.collect();
        Index::of(&rules).passing(&rules[0])
    }

    fn prefix(path: &str) -> PathMatch {
        PathMatch::Prefix(path.into())
    }

    fn exact(path: &str) -> PathMatch {
        PathMatch::Exact(path.into())
    }

    #[test]
    fn first_rule_of_the_host_that_takes_a_reading_is_named() {
        let (protected, none) = (allow("192.0.2.1", "a"), Policies::default());
        let others = [
            ("b.com", prefix(""), &none),
            ("a.com", prefix("/other"), &none),
            ("a.com", exact("/api%2Fadmin"), &none),
            ("a.com", prefix("/api"), &none),
            ("a.com", prefix(""), &none),
        ];
        let named = |path: PathMatch, count: usize| {
            let one = [("a.com", path, &protected)];
            let others = others[..count].iter().cloned();
            passing(&one.into_iter().chain(others).collect::<Vec<_>>())
        };
        assert_eq!(named(prefix("/admin"), 5), Some(5));
        assert_eq!(named(prefix("/api/admin"), 5), Some(4));
        assert_eq!(named(exact("/api/admin"), 5), Some(3));
        assert_eq!(named(prefix("/admin"), 3), None);
        assert_eq!(named(prefix(""), 5), None);
    }

    #[test]
    fn rules_are_compared_by_what_protects_them() {
        let one = allow("192.0.2.1", "a");
        let limited = Policies {
            limits: Some(Enforced::Broken("a".into())),
            ..one.clone()
        };
        for (other, expected) in [
            (Policies::default(), true),
            (allow("192.0.2.2", "a"), true),
            (allow("192.0.2.1", "b"), false),
            // What protects more is passed by nothing.
            (limited.clone(), false),
        ] {
            let rules = [
                ("a.com", prefix("/admin"), &one),
                ("a.com", prefix(""), &other),
            ];
            assert_eq!(passing(&rules).is_some(), expected, "{other:?}");
            assert_eq!(is_protected_otherwise(&one, &other), expected);
        }
        assert!(is_protected_otherwise(&limited, &one));
    }

    #[test]
    fn wider_hosts_take_what_no_rule_of_a_host_takes() {
        let (protected, none) = (allow("192.0.2.1", "a"), Policies::default());
        let pattern = || PathMatch::Regex(crate::ir::Pattern::new("/.*").unwrap());
        for (host, expected) in [
            ("x.a.com", true),
            ("*.a.com", true),
            ("*.com", true),
            ("", true),
            ("y.a.com", false),
            ("*.x.a.com", false),
        ] {
            let is_named = |path: PathMatch| {
                let one = ("x.a.com", prefix("/admin"), &protected);
                passing(&[one, (host, path, &none)]) == Some(1)
            };
            assert_eq!(is_named(prefix("")), expected, "{host}");
            assert_eq!(is_named(pattern()), expected, "{host}");
        }
        let all = [
            ("x.a.com", prefix("/admin"), &protected),
            ("x.a.com", prefix(""), &protected),
            ("*.a.com", prefix(""), &none),
        ];
        assert_eq!(passing(&all), None);
        // Requests of the narrower host are those of the other rule anyway.
        let narrower = [
            ("*.a.com", prefix("/admin"), &protected),
            ("x.a.com", prefix(""), &none),
        ];
        assert_eq!(passing(&narrower), None);
    }
}
