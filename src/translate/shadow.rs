//! Matches that get no request, since another match of the same hostname and listener comes first and fits whatever they
//! fit. Finds those that can be told from the conditions alone: regular expressions are only compared for equality.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::ir::route::{Match, PathMatch};
use crate::ir::{AttachedRoute, Hostname, Ir, Listener, ListenerKey, Precedence, RuleId};

/// A match that gets no request under a hostname of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// The listener.
    pub listener: ListenerKey,
    /// The hostname.
    pub hostname: Hostname,
    /// The rule.
    pub rule: RuleId,
    /// Index of the match in its rule.
    pub index: usize,
    /// The rule that gets the requests.
    pub winner: RuleId,
}

impl fmt::Display for Shadowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            listener,
            hostname,
            rule,
            index,
            winner,
        } = self;
        write!(
            f,
            "{}: spec.rules[{}].matches[{index}] gets no request for host {hostname} of {listener}: spec.rules[{}] of {} \
             has the same match or a wider one, and comes first",
            rule.route, rule.index, winner.index, winner.route
        )
    }
}

/// A match with its place.
struct Candidate<'a> {
    precedence: Precedence,
    rule: &'a RuleId,
    index: usize,
    condition: &'a Match,
}

/// All such matches, in order of listeners, hostnames and precedence.
pub fn shadowed(ir: &Ir) -> Vec<Shadowed> {
    let mut listeners: Vec<&Listener> = Vec::new();
    for listener in ir.ports.iter().flat_map(|port| &port.listeners) {
        // A Gateway with several addresses has its listeners once for each.
        if !listeners.iter().any(|known| known.key == listener.key) {
            listeners.push(listener);
        }
    }
    listeners.into_iter().flat_map(of_listener).collect()
}

fn of_listener(listener: &Listener) -> Vec<Shadowed> {
    let mut by_hostname: FxHashMap<&Hostname, Vec<Candidate<'_>>> = FxHashMap::default();
    for attached in listener.routes.iter() {
        for hostname in &attached.hostnames {
            let known = by_hostname.entry(hostname).or_default();
            known.extend(candidates(attached));
        }
    }
    let mut hostnames: Vec<_> = by_hostname.into_iter().collect();
    hostnames.sort_by(|one, two| one.0.cmp(two.0));
    let of_hostname = |(hostname, candidates): (&Hostname, Vec<Candidate<'_>>)| {
        let found = of_hostname(candidates).into_iter();
        let shadowed = found.map(|(loser, winner)| Shadowed {
            listener: listener.key.clone(),
            hostname: hostname.clone(),
            rule: loser.rule.clone(),
            index: loser.index,
            winner: winner.clone(),
        });
        shadowed.collect::<Vec<_>>()
    };
    hostnames.into_iter().flat_map(of_hostname).collect()
}

fn candidates(attached: &AttachedRoute) -> impl Iterator<Item = Candidate<'_>> {
    let route = &attached.route;
    route.rules.iter().flat_map(move |rule| {
        let matches = rule.matches.iter().enumerate();
        matches.map(move |(index, condition)| Candidate {
            precedence: Precedence::new(route.kind, route.priority, route.created, rule, index),
            rule: &rule.id,
            index,
            condition,
        })
    })
}

/// The shadowed ones of all matches of a hostname, each with the first rule that shadows it.
#[expect(
    clippy::mutable_key_type,
    reason = "a pattern is hashed and compared by its source"
)]
fn of_hostname(mut candidates: Vec<Candidate<'_>>) -> Vec<(Candidate<'_>, &RuleId)> {
    candidates.sort_by(|one, two| one.precedence.cmp(&two.precedence));
    let mut earlier: FxHashMap<&PathMatch, Vec<(usize, &Match, &RuleId)>> = FxHashMap::default();
    let mut found = Vec::new();
    for (place, candidate) in candidates.into_iter().enumerate() {
        let wider = wider(&candidate.condition.path);
        let before = wider.iter().filter_map(|path| earlier.get(path)).flatten();
        let winner = before
            .filter(|(_, condition, _)| asks_no_more(condition, candidate.condition))
            .min_by_key(|(place, _, _)| *place);
        match winner {
            // Which of its matches brings a rule a request makes no difference.
            Some((_, _, winner)) if *winner == candidate.rule => {}
            Some((_, _, winner)) => found.push((candidate, *winner)),
            None => {
                let same = earlier.entry(&candidate.condition.path).or_default();
                same.push((place, candidate.condition, candidate.rule));
            }
        }
    }
    found
}

/// The path conditions that fit whatever this one fits, itself included.
fn wider(path: &PathMatch) -> Vec<PathMatch> {
    let mut all = vec![path.clone()];
    let (PathMatch::Exact(text) | PathMatch::Prefix(text)) = path else {
        return all;
    };
    if matches!(path, PathMatch::Exact(_)) && text.starts_with('/') {
        all.push(PathMatch::Prefix(text.clone()));
    }
    let ends = text.match_indices('/').map(|(end, _)| end);
    all.extend(ends.map(|end| PathMatch::Prefix(text[..end].into())));
    all
}

/// Whether a match has no condition, the path aside, that the other one lacks.
fn asks_no_more(one: &Match, other: &Match) -> bool {
    // Whatever its service and method are, which the path says.
    let is_grpc_only = one.grpc.is_some() && other.grpc.is_none();
    !is_grpc_only
        && one
            .method
            .as_ref()
            .is_none_or(|it| other.method.as_ref() == Some(it))
        && one.headers.iter().all(|it| other.headers.contains(it))
        && one.query.iter().all(|it| other.query.contains(it))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderName, Method};

    use super::*;
    use crate::ir::route::{Action, HeaderMatch, Timeouts, ValueMatch};
    use crate::ir::{Bind, ObjectRef, Port, Protocol, Route, RouteKind, Rule};

    fn prefix(path: &str) -> Match {
        Match {
            path: PathMatch::Prefix(path.into()),
            grpc: None,
            method: None,
            headers: Vec::new(),
            query: Vec::new(),
        }
    }

    fn exact(path: &str) -> Match {
        Match {
            path: PathMatch::Exact(path.into()),
            ..prefix("")
        }
    }

    fn with_header(name: &'static str, of: Match) -> Match {
        let header = HeaderMatch {
            name: HeaderName::from_static(name),
            value: ValueMatch::Exact("1".into()),
        };
        let headers = of.headers.iter().cloned().chain([header]).collect();
        Match { headers, ..of }
    }

    /// A route of this priority with one rule for these matches.
    fn route(name: &str, priority: i16, hosts: &[&str], matches: &[Match]) -> Arc<AttachedRoute> {
        let object = ObjectRef::gateway_api("HTTPRoute", "ns", name);
        let rule = Rule {
            id: RuleId {
                route: object.clone(),
                index: 0,
                name: None,
            },
            matches: matches.to_vec(),
            filters: Vec::new(),
            action: Action::Forward(Vec::new()),
            timeouts: Timeouts::default(),
            retry: None,
            session: None,
        };
        Arc::new(AttachedRoute {
            hostnames: hosts.iter().map(|host| Hostname::new(host)).collect(),
            route: Arc::new(Route {
                kind: RouteKind::Http,
                object,
                created: None,
                priority,
                rules: vec![Arc::new(rule)],
            }),
        })
    }

    /// `loser.index<winner@host` of each.
    fn found(routes: Vec<Arc<AttachedRoute>>) -> Vec<String> {
        let gateway = ObjectRef::gateway_api("Gateway", "ns", "web");
        let listener = Arc::new(Listener {
            key: ListenerKey {
                origin: gateway.clone(),
                name: "http".into(),
            },
            hostname: Hostname::Any,
            protocol: Protocol::Http,
            routes: routes.into_iter().collect(),
        });
        let port = |address: &str| {
            Arc::new(Port {
                bind: Bind::tcp(address.parse().ok(), 80),
                gateway: gateway.clone(),
                listeners: vec![listener.clone()],
            })
        };
        let ir = Ir {
            ports: vec![port("127.0.0.1"), port("127.0.0.2")],
            ..Ir::default()
        };
        let shown = shadowed(&ir).into_iter().map(|it| {
            let (loser, winner) = (&it.rule.route.name, &it.winner.route.name);
            format!("{loser}.{}<{winner}@{}", it.index, it.hostname)
        });
        shown.collect()
    }

    #[test]
    fn equal_matches_of_one_hostname_shadow() {
        let all = ["a.com", "b.com"];
        let routes = vec![
            route("x", 0, &["a.com"], &[prefix("/p"), exact("/p")]),
            route("y", 0, &all, &[prefix("/p"), prefix("/q")]),
            route("z", 0, &all, &[prefix("/q")]),
        ];
        assert_eq!(found(routes), ["y.0<x@a.com", "z.0<y@a.com", "z.0<y@b.com"]);
    }

    #[test]
    fn more_specific_matches_are_not_shadowed() {
        let routes = vec![
            route("a", 0, &[""], &[prefix("")]),
            route("b", 0, &[""], &[prefix("/p"), exact("/p/q")]),
            route("c", 0, &[""], &[with_header("x-a", prefix(""))]),
            route("d", 0, &["a.com"], &[prefix("")]),
        ];
        assert_eq!(found(routes), Vec::<String>::new());
    }

    #[test]
    fn wider_matches_of_greater_priority_shadow() {
        let get = Match {
            method: Some(Method::GET),
            ..with_header("x-a", prefix("/p/q"))
        };
        let narrow = route("narrow", 0, &[""], &[exact("/p"), get, prefix("/pq")]);
        let wide = |matches: &[Match]| route("wide", 1, &[""], matches);
        let cases: [(Match, &[&str]); 5] = [
            (
                prefix(""),
                &["narrow.0<wide@*", "narrow.1<wide@*", "narrow.2<wide@*"],
            ),
            (prefix("/p"), &["narrow.0<wide@*", "narrow.1<wide@*"]),
            (with_header("x-a", prefix("/p")), &["narrow.1<wide@*"]),
            (with_header("x-b", prefix("/p")), &[]),
            (exact("/p/q"), &[]),
        ];
        for (condition, expected) in cases {
            let mut found = found(vec![wide(std::slice::from_ref(&condition)), narrow.clone()]);
            found.sort();
            assert_eq!(found, expected, "{condition:?}");
        }
    }

    #[test]
    fn a_rule_does_not_shadow_itself() {
        let twice = [prefix("/p"), prefix("/p")];
        assert_eq!(
            found(vec![route("a", 0, &[""], &twice)]),
            Vec::<String>::new()
        );
    }
}
