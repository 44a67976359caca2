//! Which matches are shadowed, and which of them a change of a route affects.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderName, Method};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustc_hash::FxHashSet;

use super::*;
use crate::ir::route::{
    Action, Conditions, GrpcMatch, HeaderMatch, Match, PathMatch, QueryMatch, ValueMatch,
};
use crate::ir::{
    AttachedRoute, Bind, ObjectRef, Pattern, Port, Protocol, Route, RouteKind, Rule, Time,
};

fn prefix(path: &str) -> Match {
    PathMatch::Prefix(path.into()).into()
}

fn exact(path: &str) -> Match {
    PathMatch::Exact(path.into()).into()
}

fn get(of: Match) -> Match {
    let mut others = Conditions::clone(&of.others);
    others.method = Some(Method::GET);
    Match {
        path: of.path,
        others: others.into(),
    }
}

fn with_header(name: &'static str, of: Match) -> Match {
    let header = HeaderMatch {
        name: HeaderName::from_static(name),
        value: ValueMatch::Exact("1".into()),
    };
    let mut others = Conditions::clone(&of.others);
    others.headers.push(header);
    Match {
        path: of.path,
        others: others.into(),
    }
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
        matches: matches.into(),
        filters: thin_vec::ThinVec::new(),
        action: Action::Forward(Box::default()),
        options: None,
    };
    Arc::new(AttachedRoute {
        hostnames: Arc::new(hosts.iter().map(|host| Hostname::new(host)).collect()),
        route: Arc::new(Route {
            kind: RouteKind::Http,
            object,
            created: None,
            priority,
            rules: [Arc::new(rule)].into(),
            policies: None,
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
        policies: None,
        clients: None,
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
    let get = with_header("x-a", get(prefix("/p/q")));
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

/// The routes of a listener with what is known of each: `match@host<winner` of its shadowed matches.
#[derive(Default)]
struct Followed {
    routes: BTreeMap<ObjectRef, Arc<AttachedRoute>>,
    index: MatchIndex,
    shadowed: BTreeMap<ObjectRef, Vec<String>>,
}

impl Followed {
    /// Replaces a route. Looks again at that route and at those that the index calls affected, which are returned.
    fn replace(&mut self, name: &ObjectRef, now: Option<&Arc<AttachedRoute>>) -> Vec<String> {
        let former = match now {
            Some(now) => self.routes.insert(name.clone(), now.clone()),
            None => self.routes.remove(name),
        };
        let mut affected = FxHashSet::default();
        self.index
            .replace(former.as_deref(), now.map(|now| &**now), &mut affected);
        let mut names: Vec<_> = affected.iter().map(|it| it.name.to_string()).collect();
        names.sort();
        affected.insert(name.clone());
        for name in affected {
            match self.routes.get(&name) {
                Some(route) => drop(self.shadowed.insert(name, of_route(&self.index, route))),
                None => drop(self.shadowed.remove(&name)),
            }
        }
        names
    }

    fn anew(&self) -> BTreeMap<ObjectRef, Vec<String>> {
        let mut index = MatchIndex::default();
        self.routes.values().for_each(|route| index.attach(route));
        let routes = self.routes.iter();
        let shadowed = routes.map(|(name, route)| (name.clone(), of_route(&index, route)));
        shadowed.collect()
    }

    /// Compares every match with every other one.
    fn by_comparison(&self) -> BTreeMap<ObjectRef, Vec<String>> {
        let all = || self.routes.values();
        let of_route = |route: &Arc<AttachedRoute>| {
            let mut shown = Vec::new();
            for candidate in index::candidates(&route.route) {
                for host in route.hostnames.iter() {
                    let rivals = all().filter(|rival| rival.hostnames.contains(host));
                    let rivals = rivals.flat_map(|rival| index::candidates(&rival.route));
                    let first = rivals
                        .filter(|rival| takes_all(rival, &candidate))
                        .min_by(|one, two| one.precedence.cmp(&two.precedence));
                    let winner = first.map(|first| &first.rule.id);
                    let winner = winner.filter(|winner| **winner != candidate.rule.id);
                    shown.extend(winner.map(|winner| line(&candidate, host, winner)));
                }
            }
            shown
        };
        let shadowed = all().map(|route| (route.route.object.clone(), of_route(route)));
        shadowed.collect()
    }
}

fn of_route(index: &MatchIndex, route: &AttachedRoute) -> Vec<String> {
    let mut shown = Vec::new();
    for candidate in index::candidates(&route.route) {
        for host in route.hostnames.iter() {
            let winner = index.winner(host, &candidate);
            shown.extend(winner.map(|winner| line(&candidate, host, winner)));
        }
    }
    shown
}

fn line(candidate: &Candidate<'_>, host: &Hostname, winner: &RuleId) -> String {
    let place = (candidate.rule.id.index, candidate.precedence.r#match);
    format!("{place:?}@{host}<{}[{}]", winner.route, winner.index)
}

fn takes_all(rival: &Candidate<'_>, candidate: &Candidate<'_>) -> bool {
    let (one, other) = (
        &rival.rule.matches[rival.precedence.r#match],
        &candidate.rule.matches[candidate.precedence.r#match],
    );
    let has_wider_path = match (&one.path, &other.path) {
        (PathMatch::Prefix(prefix), PathMatch::Prefix(text) | PathMatch::Exact(text)) => {
            let rest = text.strip_prefix(&**prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        (one, other) => one == other,
    };
    rival.precedence < candidate.precedence
        && has_wider_path
        && (one.others.grpc.is_none() || other.others.grpc.is_some())
        && (one.others.method.is_none() || one.others.method == other.others.method)
        && (one.others.headers.iter()).all(|it| other.others.headers.contains(it))
        && (one.others.query.iter()).all(|it| other.others.query.contains(it))
}

/// A match of few values, so that many are equal or wider than another one.
fn any_match() -> impl Strategy<Value = Match> {
    let text = prop::sample::select(vec!["/", "/a", "/a/b", "/a/b/c", "/ab", "/a/"]);
    let path = (text, 0..5_u8).prop_map(|(text, kind)| match kind {
        0 => PathMatch::Regex(Pattern::new(text).unwrap()),
        1 => PathMatch::Exact(text.into()),
        _ => PathMatch::Prefix(text.trim_end_matches('/').into()),
    });
    let header = |name| prop::bool::weighted(0.3).prop_map(move |is_set| is_set.then_some(name));
    let parts = (
        path,
        prop::bool::weighted(0.2),
        header("x-a"),
        header("x-b"),
    );
    parts.prop_map(|(path, is_get, one, two)| {
        let of = if is_get {
            get(path.into())
        } else {
            path.into()
        };
        let headers = one.into_iter().chain(two);
        headers.fold(of, |of, name| with_header(name, of))
    })
}

/// One of few routes, of either kind, with two rules.
fn any_route() -> impl Strategy<Value = Arc<AttachedRoute>> {
    let hosts = prop::sample::subsequence(vec!["a.com", "b.com", ""], 1..=3);
    let rule = || prop::collection::vec(any_match(), 1..3);
    let parts = (
        0..6_usize,
        -1..2_i16,
        prop::option::of(1..3_i64),
        any::<bool>(),
    );
    (parts, hosts, rule(), rule()).prop_map(|(parts, hosts, one, two)| {
        let (name, priority, created, is_grpc) = parts;
        let mut attached = (*route(&name.to_string(), priority, &hosts, &one)).clone();
        let mut inner = (*attached.route).clone();
        let mut second = (*inner.rules[0]).clone();
        second.id.index = 1;
        second.matches = two.into();
        inner.rules = [inner.rules[0].clone(), Arc::new(second)].into();
        inner.created = created.map(Time::from_second);
        if is_grpc {
            as_grpc(&mut inner);
        }
        attached.route = Arc::new(inner);
        Arc::new(attached)
    })
}

fn as_grpc(route: &mut Route) {
    route.kind = RouteKind::Grpc;
    route.object = ObjectRef::gateway_api("GRPCRoute", "ns", &route.object.name);
    for rule in &mut route.rules {
        let mut of = (**rule).clone();
        of.id.route = route.object.clone();
        for condition in &mut of.matches {
            let grpc = Some(match &condition.path {
                PathMatch::Exact(text) => GrpcMatch {
                    service: text.len(),
                    method: 1,
                },
                PathMatch::Prefix(text) => GrpcMatch {
                    service: text.len().saturating_sub(1),
                    method: 0,
                },
                PathMatch::Regex(_) | PathMatch::Call(_) => GrpcMatch::default(),
            });
            let of_http = Conditions::clone(&condition.others);
            let of_grpc = Conditions {
                grpc,
                method: None,
                ..of_http
            };
            condition.others = of_grpc.into();
        }
        *rule = Arc::new(of);
    }
}

#[test]
fn looking_at_affected_routes_only_finds_what_comparing_all_finds() {
    let change = (any_route(), prop::bool::weighted(0.2));
    let changes = prop::collection::vec(change, 1..40);
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&changes, |changes| {
        let mut followed = Followed::default();
        for (route, is_removed) in changes {
            let name = route.route.object.clone();
            followed.replace(&name, Some(&route).filter(|_| !is_removed));
            prop_assert_eq!(&followed.shadowed, &followed.anew());
            prop_assert_eq!(&followed.shadowed, &followed.by_comparison());
        }
        Ok(())
    });
    result.expect("all ways find the same");
}

#[test]
fn a_change_affects_no_routes_but_those_that_it_may_shadow() {
    let mut followed = Followed::default();
    let mut put = |route: Arc<AttachedRoute>| {
        let name = route.route.object.clone();
        followed.replace(&name, Some(&route))
    };
    let none: [&str; 0] = [];
    assert_eq!(put(route("a", 0, &["a.com"], &[prefix("/p")])), none);
    assert_eq!(put(route("b", 0, &["a.com"], &[prefix("/p")])), none);
    assert_eq!(put(route("c", 0, &["b.com"], &[prefix("/p")])), none);
    assert_eq!(put(route("d", 0, &["a.com"], &[exact("/p/q")])), none);
    // The same matches again.
    assert_eq!(put(route("a", 0, &["a.com"], &[prefix("/p")])), none);
    assert_eq!(put(route("a", 0, &["a.com"], &[prefix("/q")])), ["b"]);
    assert_eq!(put(route("e", 1, &["a.com"], &[prefix("/p")])), ["b", "d"]);
    assert_eq!(
        put(route("e", 1, &["b.com"], &[prefix("/p")])),
        ["b", "c", "d"]
    );
}

#[test]
fn a_path_with_too_many_matches_shadows_nothing_until_some_are_gone() {
    let mut followed = Followed::default();
    let mut put = |name: &str, matches: Option<&[Match]>| {
        let object = ObjectRef::gateway_api("HTTPRoute", "ns", name);
        let now = matches.map(|matches| route(name, 0, &["a.com"], matches));
        followed.replace(&object, now.as_ref());
        assert_eq!(followed.shadowed, followed.anew());
        followed.shadowed.values().flatten().count()
    };
    let others = |count: usize| {
        let other = |index: usize| {
            let others = Conditions {
                query: vec![QueryMatch {
                    name: index.to_string().into(),
                    value: ValueMatch::Exact("1".into()),
                }],
                ..Conditions::default()
            };
            Match {
                others: others.into(),
                ..prefix("/p")
            }
        };
        (0..count).map(other).collect::<Vec<_>>()
    };
    assert_eq!(put("a", Some(&[prefix("/p")])), 0);
    assert_eq!(put("b", Some(&[prefix("/p")])), 1);
    assert_eq!(put("c", Some(&others(510))), 1);
    assert_eq!(put("c", Some(&others(511))), 0);
    assert_eq!(put("c", Some(&others(600))), 0);
    assert_eq!(put("c", Some(&others(510))), 1);
    assert_eq!(put("c", Some(&others(511))), 0);
    assert_eq!(put("c", None), 1);
}
