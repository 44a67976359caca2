//! Properties of the table over random configurations: the index finds what a plain scan by precedence finds, and a
//! table built from its predecessor serves what one built from nothing serves. Must not look inside the index.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis::ir::route::{
    Action, HeaderMatch, Match, PathMatch, QueryMatch, Target, Timeouts, ValueMatch,
    WeightedBackend,
};
use portcullis::ir::{
    AttachedRoute, Backend, BackendId, Bind, Hostname, Ir, Listener, ListenerKey, ObjectRef,
    Pattern, Port, PortProtocol, Precedence, Route, Rule, RuleId, UpstreamProtocol,
};
use portcullis::table::{self, MatchVerdict, RequestView, Table};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use proptest::sample::{select, subsequence};

const HOSTNAMES: [&str; 7] = ["", "a", "b.a", "c.b.a", "*.a", "*.b.a", "*.c.b.a"];
const HOSTS: [&str; 8] = ["a", "b.a", "c.b.a", "d.c.b.a", "x.a", "ba", ".a", ""];
const PATHS: [&str; 12] = [
    "/", "/a", "/a/", "/a/b", "/a/b/", "/ab", "/a/b/c", "/é/a", "//a", "/b", "*", "",
];
const BIND: Bind = Bind {
    address: None,
    port: 80,
};

/// One of these patterns, compiled once.
fn pattern(texts: &[&str]) -> impl Strategy<Value = Pattern> + use<> {
    let patterns = texts.iter().map(|text| Pattern::new(text).unwrap());
    select(patterns.collect::<Vec<_>>())
}

fn value() -> impl Strategy<Value = ValueMatch> {
    let exact = select(vec!["1", "2", "1,2", "é", ""]);
    prop_oneof![
        exact.prop_map(|value| ValueMatch::Exact(value.into())),
        pattern(&["1.*", "[12]", ".*"]).prop_map(ValueMatch::Regex),
    ]
}

fn path() -> impl Strategy<Value = PathMatch> {
    let prefixes = vec!["", "/a", "/a/b", "/ab", "/é", "/a/"];
    prop_oneof![
        select(&PATHS[..]).prop_map(|path| PathMatch::Exact(path.into())),
        select(prefixes).prop_map(|path| PathMatch::Prefix(path.into())),
        pattern(&["/a.*", "/[ab]", ".*b", "/a/.+"]).prop_map(PathMatch::Regex),
    ]
}

/// Conditions on some of `names`; mostly none.
fn named(
    names: [&'static str; 2],
) -> impl Strategy<Value = impl Iterator<Item = (&'static str, ValueMatch)> + Clone> {
    let names = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(names.to_vec(), 1..=2)];
    (names, vec(value(), 2)).prop_map(|(names, values)| names.into_iter().zip(values))
}

fn condition() -> impl Strategy<Value = Match> {
    let method = weighted(0.3, select(vec![Method::GET, Method::POST]));
    let parts = (path(), method, named(["x-a", "x-b"]), named(["p", "q"]));
    parts.prop_map(|(path, method, headers, query)| Match {
        path,
        method,
        headers: headers
            .map(|(name, value)| HeaderMatch {
                name: HeaderName::from_static(name),
                value,
            })
            .collect(),
        query: query
            .map(|(name, value)| QueryMatch {
                name: name.into(),
                value,
            })
            .collect(),
    })
}

fn backend_id(index: u8) -> BackendId {
    BackendId {
        object: ObjectRef::core("Service", "ns", &format!("s{index}")),
        port: 80,
    }
}

/// Matches of a rule, and its backends with their weights.
type RuleParts = (Vec<Match>, Vec<(u8, u32)>);

fn route(name: usize, created: Option<i64>, rules: Vec<RuleParts>) -> Route {
    let object = ObjectRef::gateway_api("HTTPRoute", "ns", &format!("r{name}"));
    let rule = |(index, (matches, shares)): (usize, RuleParts)| {
        let share = |(backend, weight)| WeightedBackend {
            weight,
            target: Target::Backend(backend_id(backend)),
            filters: Vec::new(),
        };
        Arc::new(Rule {
            id: RuleId {
                route: object.clone(),
                index,
                name: None,
            },
            matches,
            filters: Vec::new(),
            action: Action::Forward(shares.into_iter().map(share).collect()),
            timeouts: Timeouts::default(),
        })
    };
    Route {
        created,
        rules: rules.into_iter().enumerate().map(rule).collect(),
        object: object.clone(),
    }
}

fn routes() -> impl Strategy<Value = Vec<Arc<Route>>> {
    let shares = vec((0_u8..4, 0_u32..3), 0..3);
    let rules = vec((vec(condition(), 1..3), shares), 1..3);
    let created = weighted(0.7, 0_i64..2);
    vec((created, rules), 1..6).prop_map(|routes| {
        let named = routes.into_iter().enumerate();
        named
            .map(|(name, (created, rules))| Arc::new(route(name, created, rules)))
            .collect()
    })
}

fn listener(
    hostname: &str,
    routes: &[Arc<Route>],
    attached: &[(usize, Vec<&str>)],
) -> Arc<Listener> {
    let own = Hostname::new(hostname);
    let attach = |(index, hostnames): &(usize, Vec<&str>)| {
        let hostnames: Vec<_> = hostnames
            .iter()
            .filter_map(|name| own.intersection(&Hostname::new(name)))
            .collect();
        (!hostnames.is_empty()).then(|| AttachedRoute {
            hostnames,
            route: routes[index % routes.len()].clone(),
        })
    };
    let mut seen = Vec::new();
    let once = |attached: &AttachedRoute| {
        let fresh = !seen.contains(&attached.route.object);
        seen.push(attached.route.object.clone());
        fresh
    };
    Arc::new(Listener {
        key: ListenerKey {
            origin: ObjectRef::gateway_api("Gateway", "ns", "gateway"),
            name: format!("l{hostname}").into(),
        },
        hostname: own.clone(),
        tls: None,
        routes: attached.iter().filter_map(attach).filter(once).collect(),
    })
}

fn ir() -> impl Strategy<Value = Ir> {
    let hostnames = subsequence(HOSTNAMES.to_vec(), 1..4);
    let attached = vec(
        (any::<usize>(), subsequence(HOSTNAMES.to_vec(), 1..4)),
        0..6,
    );
    let endpoints = subsequence(vec![1_u16, 2, 3], 0..=3);
    // Backend 3 is referred to and never there.
    let backends = vec((any::<bool>(), endpoints), 3);
    (routes(), hostnames, vec(attached, 3), backends).prop_map(
        |(routes, hostnames, attached, backends)| {
            let listeners = hostnames
                .iter()
                .zip(&attached)
                .map(|(hostname, attached)| listener(hostname, &routes, attached));
            let port = Port {
                bind: BIND,
                gateway: ObjectRef::gateway_api("Gateway", "ns", "gateway"),
                protocol: PortProtocol::Http,
                listeners: listeners.collect(),
            };
            let backend = |(index, (h2c, ports)): (u8, (bool, Vec<u16>))| {
                let protocol = match h2c {
                    true => UpstreamProtocol::H2c,
                    false => UpstreamProtocol::Http1,
                };
                let endpoints = ports.into_iter().map(|port| ([127, 0, 0, 1], port).into());
                let endpoints: Vec<SocketAddr> = endpoints.collect();
                (
                    backend_id(index),
                    Arc::new(Backend {
                        protocol,
                        endpoints,
                    }),
                )
            };
            Ir {
                ports: vec![Arc::new(port)],
                backends: (0..).zip(backends).map(backend).collect(),
            }
        },
    )
}

/// An equal IR without a single node in common.
fn copy(ir: &Ir) -> Ir {
    let route = |route: &Route| Route {
        rules: route
            .rules
            .iter()
            .map(|rule| Arc::new((**rule).clone()))
            .collect(),
        ..route.clone()
    };
    let listener = |listener: &Listener| {
        let attached = |attached: &AttachedRoute| AttachedRoute {
            hostnames: attached.hostnames.clone(),
            route: Arc::new(route(&attached.route)),
        };
        Listener {
            routes: listener.routes.iter().map(attached).collect(),
            ..listener.clone()
        }
    };
    let port = |port: &Port| Port {
        listeners: port
            .listeners
            .iter()
            .map(|node| Arc::new(listener(node)))
            .collect(),
        ..port.clone()
    };
    let backend =
        |(id, node): (&BackendId, &Arc<Backend>)| (id.clone(), Arc::new((**node).clone()));
    Ir {
        ports: ir.ports.iter().map(|node| Arc::new(port(node))).collect(),
        backends: ir.backends.iter().map(backend).collect(),
    }
}

#[derive(Clone, Debug)]
struct Request {
    host: &'static str,
    method: Method,
    path: &'static str,
    query: Option<&'static str>,
    headers: HeaderMap,
}

impl Request {
    fn view(&self) -> RequestView<'_> {
        RequestView {
            host: self.host,
            method: &self.method,
            path: self.path,
            query: self.query,
            headers: &self.headers,
        }
    }
}

fn request() -> impl Strategy<Value = Request> {
    let method = select(vec![Method::GET, Method::POST]);
    let queries = vec![
        "p=1",
        "q=2&p=1",
        "p=%31&q=+&p=2",
        "p",
        "q=%C3%A9",
        "p=%ff",
        "",
    ];
    let values = select(vec!["1", "2", "1,2", "é", "", "\u{7f}"]);
    let names = select(vec!["x-a", "x-b"]);
    let headers = vec((names, values), 0..4).prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            // The one value that is no valid field stands for one that is not UTF-8.
            let value = HeaderValue::from_bytes(value.as_bytes())
                .unwrap_or_else(|_| HeaderValue::from_bytes(b"\xff").unwrap());
            headers.append(name, value);
        }
        headers
    });
    let query = weighted(0.7, select(queries));
    (
        select(&HOSTS[..]),
        method,
        select(&PATHS[..]),
        query,
        headers,
    )
        .prop_map(|(host, method, path, query, headers)| Request {
            host,
            method,
            path,
            query,
            headers,
        })
}

fn value_fits(condition: &ValueMatch, value: Option<Vec<u8>>) -> bool {
    let Some(value) = value.and_then(|value| String::from_utf8(value).ok()) else {
        return false;
    };
    match condition {
        ValueMatch::Exact(exact) => value == **exact,
        ValueMatch::Regex(pattern) => pattern.matches(&value),
    }
}

fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

fn fits(condition: &Match, request: &Request) -> bool {
    let path = match &condition.path {
        PathMatch::Exact(exact) => **exact == *request.path,
        PathMatch::Regex(pattern) => pattern.matches(request.path),
        PathMatch::Prefix(prefix) => {
            request.path == &**prefix || request.path.starts_with(&format!("{prefix}/"))
        }
    };
    let header = |it: &HeaderMatch| {
        let all = request.headers.get_all(&it.name);
        let all: Vec<_> = all.iter().map(HeaderValue::as_bytes).collect();
        value_fits(&it.value, (!all.is_empty()).then(|| all.join(&b',')))
    };
    let query = |it: &QueryMatch| {
        let mut pairs = request.query.into_iter().flat_map(|query| query.split('&'));
        let value = pairs.find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name) == it.name.as_bytes()).then(|| decoded(value))
        });
        value_fits(&it.value, value)
    };
    let method = condition.method.as_ref();
    path && method.is_none_or(|method| *method == request.method)
        && condition.headers.iter().all(header)
        && condition.query.iter().all(query)
}

/// The listener and rule that a request belongs to, by the words of the specification.
fn scan<'a>(ir: &'a Ir, request: &Request) -> Option<(&'a ListenerKey, Option<&'a RuleId>)> {
    let listeners = ir.ports[0].listeners.iter();
    let listener = listeners
        .filter(|listener| listener.hostname.contains(request.host))
        .min_by_key(|listener| &listener.hostname)?;
    let mut fitting: Vec<(&Hostname, Precedence, &RuleId)> = Vec::new();
    for attached in &listener.routes {
        for hostname in attached
            .hostnames
            .iter()
            .filter(|it| it.contains(request.host))
        {
            for rule in &attached.route.rules {
                for (index, condition) in rule.matches.iter().enumerate() {
                    if fits(condition, request) {
                        let precedence = Precedence::http(&attached.route, rule, index);
                        fitting.push((hostname, precedence, &rule.id));
                    }
                }
            }
        }
    }
    fitting.sort();
    Some((&listener.key, fitting.first().map(|(_, _, rule)| *rule)))
}

fn find<'a>(
    table: &'a Table,
    request: &Request,
) -> Option<(&'a ListenerKey, Option<&'a table::Rule>)> {
    let listener = table.port(&BIND)?.listener(request.host)?;
    let rule = listener.find(&request.view());
    Some((&listener.ir.key, rule.map(|rule| &**rule)))
}

/// What a table does with a request, in words that can be compared.
fn outcome(table: &Table, request: &Request) -> String {
    let Some((listener, rule)) = find(table, request) else {
        return "no listener".into();
    };
    let mut text = listener.to_string();
    let Some(rule) = rule else {
        return text + ", no rule";
    };
    text += &format!(", {:?}", rule.ir);
    for share in rule.shares() {
        text += &match &share.target {
            table::Target::Backend(backend) => {
                let addresses = backend.endpoints();
                let addresses: Vec<_> = addresses.iter().map(|it| it.address).collect();
                format!(", {} {:?} {addresses:?}", backend.id, backend.protocol)
            }
            table::Target::Invalid(reason) => format!(", {reason}"),
        };
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn finds_what_a_scan_finds(ir in ir(), requests in vec(request(), 20)) {
        let table = Table::build(Arc::new(ir), None);
        for request in requests {
            let found = find(&table, &request);
            let found = found.map(|(listener, rule)| (listener, rule.map(|rule| &rule.ir.id)));
            prop_assert_eq!(found, scan(&table.ir, &request), "{:?}", request);
        }
    }

    #[test]
    fn explains_what_it_finds(ir in ir(), requests in vec(request(), 10)) {
        let table = Table::build(Arc::new(ir), None);
        let port = table.port(&BIND).unwrap();
        for request in requests {
            let Some(listener) = port.listener(request.host) else {
                continue;
            };
            let considered = listener.explain(&request.view());
            let chosen = considered.iter().find(|it| it.verdict == MatchVerdict::Chosen);
            let found = listener.find(&request.view());
            prop_assert_eq!(chosen.map(|it| &it.rule.ir.id), found.map(|rule| &rule.ir.id));
            for it in &considered {
                let differs = matches!(it.verdict, MatchVerdict::Differs(_));
                prop_assert_eq!(!differs, fits(&it.rule.ir.matches[it.index], &request));
            }
        }
    }

    #[test]
    fn serves_the_same_whatever_it_was_built_from(
        one in ir(),
        two in ir(),
        requests in vec(request(), 20),
    ) {
        let first = Table::build(Arc::new(one), None);
        let two = Arc::new(two);
        let second = Table::build(two.clone(), Some(&first));
        let fresh = Table::build(two, None);
        prop_assert_eq!(second.generation, 2);
        prop_assert_eq!(second.rules().count(), fresh.rules().count());
        for request in requests {
            prop_assert_eq!(outcome(&second, &request), outcome(&fresh, &request));
        }
    }

    #[test]
    fn keeps_every_node_of_an_equal_configuration(ir in ir()) {
        let first = Table::build(Arc::new(copy(&ir)), None);
        let second = Table::build(Arc::new(ir), Some(&first));
        prop_assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
        for (one, two) in first.rules().zip(second.rules()) {
            prop_assert!(Arc::ptr_eq(one, two));
        }
        for (one, two) in first.backends().zip(second.backends()) {
            prop_assert!(Arc::ptr_eq(one, two));
        }
    }
}

fn plain(path: &str) -> Match {
    Match {
        path: PathMatch::Prefix(path.into()),
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
    }
}

/// Listeners `a` and `b`, each with a route of its own to a backend of its own.
fn pair() -> Ir {
    let one = Arc::new(route(0, None, vec![(vec![plain("")], vec![(0, 1)])]));
    let two = Arc::new(route(1, None, vec![(vec![plain("")], vec![(1, 1)])]));
    let port = Port {
        bind: BIND,
        gateway: ObjectRef::gateway_api("Gateway", "ns", "gateway"),
        protocol: PortProtocol::Http,
        listeners: vec![
            listener("a", &[one], &[(0, vec![""])]),
            listener("b", &[two], &[(0, vec![""])]),
        ],
    };
    let backend = Backend {
        protocol: UpstreamProtocol::Http1,
        endpoints: vec![([127, 0, 0, 1], 1).into()],
    };
    let backends = [0, 1].map(|index| (backend_id(index), Arc::new(backend.clone())));
    Ir {
        ports: vec![Arc::new(port)],
        backends: BTreeMap::from(backends),
    }
}

fn change_backend(ir: &mut Ir, index: u8, change: impl FnOnce(&mut Backend)) {
    let backend = ir.backends.get_mut(&backend_id(index)).unwrap();
    change(Arc::make_mut(backend));
}

fn rule<'a>(table: &'a Table, host: &str) -> &'a Arc<table::Rule> {
    let listener = table.port(&BIND).unwrap().listener(host).unwrap();
    let request = Request {
        host: "a",
        method: Method::GET,
        path: "/",
        query: None,
        headers: HeaderMap::new(),
    };
    let view = RequestView {
        host,
        ..request.view()
    };
    listener.find(&view).unwrap()
}

#[test]
fn a_change_of_endpoints_changes_no_node() {
    let first = Table::build(Arc::new(pair()), None);
    let before = first.backends().next().unwrap().endpoints()[0].clone();
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| {
        backend.endpoints.push(([127, 0, 0, 1], 2).into());
    });
    let second = Table::build(Arc::new(ir), Some(&first));
    assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
    let after = second.backends().next().unwrap().endpoints();
    assert_eq!(after.len(), 2);
    assert!(Arc::ptr_eq(&after[0], &before));
}

#[test]
fn a_change_of_protocol_reaches_what_uses_it_and_nothing_else() {
    let first = Table::build(Arc::new(pair()), None);
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| {
        backend.protocol = UpstreamProtocol::H2c;
    });
    let second = Table::build(Arc::new(ir), Some(&first));
    let backends = |table: &Table| table.backends().cloned().collect::<Vec<_>>();
    let (old, new) = (backends(&first), backends(&second));
    assert_eq!(new[0].protocol, UpstreamProtocol::H2c);
    assert!(Arc::ptr_eq(&old[0].stats, &new[0].stats));
    assert_ne!(old[0].endpoints()[0].id, new[0].endpoints()[0].id);
    assert!(Arc::ptr_eq(&old[1], &new[1]));
    assert!(!Arc::ptr_eq(rule(&first, "a"), rule(&second, "a")));
    assert!(Arc::ptr_eq(rule(&first, "b"), rule(&second, "b")));
    let listener = |table: &Table, host| table.ports()[0].listener(host).unwrap().clone();
    assert!(!Arc::ptr_eq(
        &listener(&first, "a"),
        &listener(&second, "a")
    ));
    assert!(Arc::ptr_eq(&listener(&first, "b"), &listener(&second, "b")));
}

#[test]
fn a_changed_rule_keeps_its_counters() {
    let first = Table::build(Arc::new(pair()), None);
    rule(&first, "a").stats.enter();
    let mut ir = pair();
    let changed = Arc::new(route(
        0,
        None,
        vec![(vec![plain("")], vec![(0, 2), (1, 1)])],
    ));
    let port = Arc::make_mut(&mut ir.ports[0]);
    port.listeners[0] = listener("a", &[changed], &[(0, vec![""])]);
    let second = Table::build(Arc::new(ir), Some(&first));
    assert!(!Arc::ptr_eq(rule(&first, "a"), rule(&second, "a")));
    assert_eq!(rule(&second, "a").stats.in_flight(), 1);
}

#[test]
fn an_empty_table_serves_nothing() {
    let table = Table::empty();
    assert_eq!(table.generation, 0);
    assert!(table.port(&BIND).is_none());
    assert_eq!(table.rules().count() + table.backends().count(), 0);
}
