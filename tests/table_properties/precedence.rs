//! Precedence by the text of the API, clause by clause, compared with the order of the table. Must not use our own
//! order: neither `Precedence` nor the order of `Hostname`.

use std::cmp::Ordering;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis::ir::route::{
    Conditions, GrpcCall, GrpcMatch, HeaderMatch, Match, PathMatch, QueryMatch, ValueMatch,
};
use portcullis::ir::{Hostname, Ir, Pattern, Port, Route, Time};
use portcullis::table::{MatchVerdict, Table};
use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest,
};
use proptest::sample::{select, subsequence};

use crate::BIND;
use crate::configuration::{GATEWAY, listener, named_route, priority};
use crate::request::Request;

/// A match of a rule, under one hostname of its route.
#[derive(Clone, Copy)]
pub(crate) struct Ranked<'a> {
    pub(crate) hostname: &'a Hostname,
    pub(crate) route: &'a Route,
    pub(crate) rule: usize,
    pub(crate) index: usize,
}

impl<'a> Ranked<'a> {
    fn condition(&self) -> &'a Match {
        &self.route.rules[self.rule].matches[self.index]
    }
}

/// Compares two hostnames; the more specific one is `Less`, because it is tried first.
///
/// Of hostnames that match one host: "Characters in a matching non-wildcard hostname", then "Characters in a matching
/// hostname".
pub(crate) fn by_hostname(one: &Hostname, two: &Hostname) -> Ordering {
    let written = |hostname: &Hostname| match hostname {
        Hostname::Exact(name) => name.to_string(),
        Hostname::Wildcard(suffix) => format!("*.{suffix}"),
        Hostname::Any => String::new(),
    };
    let (one, two) = (written(one), written(two));
    let non_wildcard = |name: &str| if name.contains('*') { 0 } else { length(name) };
    more(non_wildcard(&one), non_wildcard(&two)).then(more(length(&one), length(&two)))
}

/// Compares two matches by the text for HTTPRoutes (HTTPRouteRule.matches). Where the text leaves the rank of regular
/// expressions open, follows its suggestion: after `Exact`, before `PathPrefix`, longer ones first.
///
/// The text for GRPCRoutes (GRPCRouteRule.matches) counts characters of the service, then of the method, then headers.
/// A complete service and method are an exact path, and a service is a prefix with one more character. Of equal matches
/// the one of the GRPCRoute is first. The priority of a route, a Portcullis extension, is compared first within a
/// hostname.
pub(crate) fn by_text(one: Ranked<'_>, two: Ranked<'_>) -> Ordering {
    let clauses: [fn(Ranked<'_>, Ranked<'_>) -> Ordering; 13] = [
        |one, two| by_hostname(one.hostname, two.hostname),
        |one, two| two.route.priority.cmp(&one.route.priority),
        |one, two| first(is_exact(one), is_exact(two)),
        |one, two| more(pattern_length(one), pattern_length(two)),
        |one, two| more(prefix_length(one), prefix_length(two)),
        |one, two| more(grpc(one).method, grpc(two).method),
        |one, two| {
            first(
                one.condition().others.grpc.is_some(),
                two.condition().others.grpc.is_some(),
            )
        },
        |one, two| first(has_method(one), has_method(two)),
        |one, two| {
            more(
                one.condition().others.headers.len(),
                two.condition().others.headers.len(),
            )
        },
        |one, two| {
            more(
                one.condition().others.query.len(),
                two.condition().others.query.len(),
            )
        },
        |one, two| older(seconds(one.route), seconds(two.route)),
        |one, two| alphabetical(one.route, two.route),
        |one, two| (one.rule, one.index).cmp(&(two.rule, two.index)),
    ];
    let mut orders = clauses.iter().map(|clause| clause(one, two));
    orders
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn more(one: usize, two: usize) -> Ordering {
    two.cmp(&one)
}

fn first(one: bool, two: bool) -> Ordering {
    more(usize::from(one), usize::from(two))
}

fn is_exact(ranked: Ranked<'_>) -> bool {
    matches!(ranked.condition().path, PathMatch::Exact(_))
}

/// Returns the characters of a pattern plus one, so that an empty pattern still precedes every prefix.
fn pattern_length(ranked: Ranked<'_>) -> usize {
    match &ranked.condition().path {
        PathMatch::Regex(pattern) => length(pattern.source()) + 1,
        _ => 0,
    }
}

fn prefix_length(ranked: Ranked<'_>) -> usize {
    match &ranked.condition().path {
        PathMatch::Prefix(prefix) => length(prefix),
        PathMatch::Call(_) if grpc(ranked).service > 0 => grpc(ranked).service + 1,
        PathMatch::Exact(_) | PathMatch::Regex(_) | PathMatch::Call(_) => 0,
    }
}

fn grpc(ranked: Ranked<'_>) -> GrpcMatch {
    ranked.condition().others.grpc.unwrap_or_default()
}

fn has_method(ranked: Ranked<'_>) -> bool {
    ranked.condition().others.method.is_some()
}

fn seconds(route: &Route) -> Option<i64> {
    route.created.map(Time::as_second)
}

/// Compares ages. A route without a time, as in files, counts as oldest.
fn older(one: Option<i64>, two: Option<i64>) -> Ordering {
    let age = |created: Option<i64>| created.map_or(i64::MIN, |created| created);
    age(one).cmp(&age(two))
}

fn alphabetical(one: &Route, two: &Route) -> Ordering {
    let text = |of: &Route| format!("{}/{}", of.object.namespace, of.object.name);
    text(one).cmp(&text(two))
}

const HOST: &str = "c.b.a";
const PATH: &str = "/a/x/b";

/// Returns the one request that meets all matches of [`fitting`].
fn request() -> Request {
    let mut headers = HeaderMap::new();
    for name in ["x-a", "x-b"] {
        headers.insert(name, HeaderValue::from_static("1"));
    }
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    Request {
        host: HOST,
        method: Method::POST,
        path: PATH,
        query: Some("p=1&q=1"),
        headers,
    }
}

/// A match that the request meets, so that only precedence decides. Most parts are equal, so that late clauses decide
/// often.
fn fitting() -> impl Strategy<Value = Match> {
    let prefix = |text: &str| PathMatch::Prefix(text.into());
    let pattern = |text| PathMatch::Regex(Pattern::new(text).unwrap());
    let paths = vec![
        PathMatch::Exact(PATH.into()),
        pattern(".*"),
        pattern("/a/.*"),
        pattern("/./[xé]/b"),
        // The same number of characters as the pattern before, and fewer bytes.
        pattern("/a/[xz]/b"),
        prefix("/a/x/b"),
        prefix("/a/x"),
        prefix("/a"),
        prefix(""),
    ];
    let method = select(vec![None, None, Some(Method::POST)]);
    let headers = subsequence(vec!["x-a", "x-b"], 0..=2);
    let query = subsequence(vec!["p", "q"], 0..=2);
    (select(paths), method, headers, query).prop_map(|(path, method, headers, query)| {
        let value = || ValueMatch::Exact("1".into());
        let header = |name| HeaderMatch {
            name: HeaderName::from_static(name),
            value: value(),
        };
        let parameter = |name: &str| QueryMatch {
            name: name.into(),
            value: value(),
        };
        let others = Conditions {
            grpc: None,
            method,
            headers: headers.into_iter().map(header).collect(),
            query: query.into_iter().map(parameter).collect(),
        };
        Match {
            path,
            others: others.into(),
        }
    })
}

/// Like [`fitting`], for a GRPCRoute.
fn fitting_grpc() -> impl Strategy<Value = Match> {
    let prefix = |text: &str| PathMatch::Prefix(text.into());
    let any = || Some(ValueMatch::Regex(Pattern::new(".*").unwrap()));
    let pattern = || {
        PathMatch::Call(Box::new(GrpcCall {
            service: any(),
            method: any(),
        }))
    };
    let paths = vec![
        (PathMatch::Exact(PATH.into()), 1, 3),
        (prefix("/a/x"), 3, 0),
        (prefix("/a"), 1, 0),
        (prefix(""), 0, 0),
        (pattern(), 3, 0),
        (pattern(), 3, 2),
        (pattern(), 9, 0),
        (pattern(), 1, 9),
        (pattern(), 0, 1),
        (pattern(), 0, 9),
    ];
    (select(paths), fitting()).prop_map(|((path, service, method), other)| {
        let others = Conditions {
            grpc: Some(GrpcMatch { service, method }),
            headers: other.others.headers.clone(),
            ..Conditions::default()
        };
        Match {
            path,
            others: others.into(),
        }
    })
}

/// Routes with unrelated names, ages and positions, with matches from a small set, so that many are equal.
fn routes() -> impl Strategy<Value = Vec<Arc<Route>>> {
    let names = vec![("a", "x"), ("a", "y"), ("a-b", "x"), ("b", "a"), ("b", "x")];
    let names = (2_usize..=5).prop_flat_map(move |count| {
        let some = subsequence(names.clone(), count);
        some.prop_shuffle()
    });
    let matches = (vec(fitting(), 1..4), vec(fitting_grpc(), 1..4));
    let all = (names, matches).prop_flat_map(|(names, (http, grpc))| {
        let created = select(vec![None, Some(-5), Some(0), Some(7), Some(7)]);
        let rules = |matches| vec(vec(select(matches), 1..3), 1..4);
        let rules = prop_oneof![rules(http), rules(grpc)];
        let routes = vec((created, priority(), rules), names.len());
        (Just(names), routes)
    });
    all.prop_map(|(names, routes)| {
        let all = names.into_iter().zip(routes);
        all.map(|((namespace, name), (created, priority, rules))| {
            let rules = rules.into_iter().map(|matches| (matches, Vec::new()));
            let route = named_route(namespace, name, created, rules.collect());
            Arc::new(Route { priority, ..route })
        })
        .collect()
    })
}

/// Returns an IR with one listener and these routes, each under its hostnames.
fn ir(routes: &[Arc<Route>], hostnames: &[Vec<&str>]) -> Ir {
    let attached: Vec<_> = hostnames.iter().cloned().enumerate().collect();
    let port = Port {
        bind: BIND,
        gateway: GATEWAY.clone(),
        listeners: vec![listener("", routes, &attached[..routes.len()])],
    };
    Ir {
        ports: vec![Arc::new(port)],
        backends: Arc::default(),
        ..Ir::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn orders_matches_as_the_api_specifies(
        routes in routes(),
        hostnames in vec(subsequence(vec!["", "c.b.a", "*.a", "*.b.a"], 1..=2), 5),
        first_built in any::<bool>(),
    ) {
        let ir = Arc::new(ir(&routes, &hostnames));
        // The second table adds the last route to a table with the others.
        let table = if first_built {
            Table::build(ir, None)
        } else {
            let fewer = self::ir(&routes[..routes.len() - 1], &hostnames);
            Table::build(ir, Some(&Table::build(Arc::new(fewer), None)))
        };
        let mut expected = Vec::new();
        for attached in table.ir.ports[0].listeners[0].routes.iter() {
            let route = &*attached.route;
            for hostname in attached.hostnames.iter() {
                for (rule, it) in route.rules.iter().enumerate() {
                    let matches = 0..it.matches.len();
                    expected.extend(matches.map(|index| Ranked { hostname, route, rule, index }));
                }
            }
        }
        expected.sort_by(|one, two| by_text(*one, *two));
        let expected: Vec<_> = expected
            .iter()
            .map(|it| (it.hostname, &it.route.rules[it.rule].id, it.index))
            .collect();

        let request = request();
        let listener = table.port(&BIND).unwrap().listener(HOST).unwrap();
        let considered = listener.explain(&request.view());
        let explained: Vec<_> = considered
            .iter()
            .map(|it| (it.hostname, &it.rule.ir.id, it.index))
            .collect();
        prop_assert_eq!(&explained, &expected);
        prop_assert_eq!(considered[0].verdict, MatchVerdict::Chosen);
        let found = listener.find(&request.view()).map(|rule| &rule.ir.id);
        prop_assert_eq!(found, Some(expected[0].1));
    }
}
