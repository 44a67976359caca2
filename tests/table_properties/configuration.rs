//! Random configurations, small enough that their parts interact.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use http::{HeaderName, Method};
use portcullis::ir::backend_policy::{BackendPolicy, LoadBalancing};
use portcullis::ir::filter::{Fraction, Mirror};
use portcullis::ir::limit::KeyPart;
use portcullis::ir::route::{
    Action, BackendTarget, Conditions, GrpcCall, GrpcMatch, HeaderMatch, Match, PathMatch,
    QueryMatch, ValueMatch, WeightedBackend,
};
use portcullis::ir::time::Time;
use portcullis::ir::{
    AttachedRoute, Backend, BackendId, Filter, Hostname, Ir, Listener, ListenerKey, ObjectRef,
    Pattern, Port, Protocol, Route, RouteKind, Rule, RuleId, UpstreamProtocol,
};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::{select, subsequence};

use crate::{BIND, HOSTNAMES, PATHS};

pub(crate) static GATEWAY: LazyLock<ObjectRef> =
    LazyLock::new(|| ObjectRef::gateway_api("Gateway", "ns", "gateway"));

/// A pattern with one of these texts, compiled once.
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
    let prefixes = vec!["", "/a", "/a/b", "/ab", "/%C3%A9", "/a/"];
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
    parts.prop_map(|(path, method, headers, query)| {
        let others = Conditions {
            grpc: None,
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
        };
        Match {
            path,
            others: others.into(),
        }
    })
}

/// A condition on service and method, with their lengths.
fn grpc_path() -> impl Strategy<Value = (PathMatch, GrpcMatch)> {
    let lengths = |service, method| GrpcMatch { service, method };
    let prefix = move |service: &str| {
        let path = match service {
            "" => String::new(),
            service => format!("/{service}"),
        };
        let length = lengths(service.chars().count(), 0);
        (PathMatch::Prefix(path.into()), length)
    };
    let value = || {
        let patterns = pattern(&["^a$", "[aé]", ".*", "b$"]).prop_map(ValueMatch::Regex);
        let exact = select(vec!["a", "b", "é"]).prop_map(|text| ValueMatch::Exact(text.into()));
        proptest::option::of(prop_oneof![patterns, exact])
    };
    let calls = (value(), value()).prop_map(|(service, method)| GrpcCall { service, method });
    prop_oneof![
        Just((PathMatch::Exact("/a/b".into()), lengths(1, 1))),
        Just((PathMatch::Exact("/%C3%A9/a".into()), lengths(6, 1))),
        select(vec!["", "a", "%C3%A9", "b"]).prop_map(prefix),
        (calls, 0_usize..3, 0_usize..3).prop_map(move |(it, service, method)| (
            PathMatch::Call(Box::new(it)),
            lengths(service, method)
        )),
    ]
}

fn grpc_condition() -> impl Strategy<Value = Match> {
    (grpc_path(), condition()).prop_map(|((path, grpc), other)| {
        let others = Conditions {
            grpc: Some(grpc),
            headers: other.others.headers.clone(),
            ..Conditions::default()
        };
        Match {
            path,
            others: others.into(),
        }
    })
}

pub(crate) fn backend_id(index: u8) -> BackendId {
    BackendId::new(ObjectRef::core("Service", "ns", &format!("s{index}")), 80)
}

/// Matches of a rule, and its backends with their weights.
pub(crate) type RuleParts = (Vec<Match>, Vec<(u8, u32)>);

pub(crate) fn route(name: usize, created: Option<i64>, rules: Vec<RuleParts>) -> Route {
    named_route("ns", &format!("r{name}"), created, rules)
}

pub(crate) fn named_route(
    namespace: &str,
    name: &str,
    created: Option<i64>,
    rules: Vec<RuleParts>,
) -> Route {
    let mut matches = rules.iter().flat_map(|(matches, _)| matches);
    let (kind, object_kind) = match matches.any(|it| it.others.grpc.is_some()) {
        true => (RouteKind::Grpc, "GRPCRoute"),
        false => (RouteKind::Http, "HTTPRoute"),
    };
    let object = ObjectRef::gateway_api(object_kind, namespace, name);
    let rule = |(index, (matches, shares)): (usize, RuleParts)| {
        let mirror = |backend| {
            Filter::Mirror(Arc::new(Mirror {
                target: BackendTarget::Backend(backend_id(backend)),
                share: Fraction {
                    numerator: 1,
                    denominator: NonZeroU32::MIN,
                },
            }))
        };
        // Backends without a weight get copies of all requests, and backend 3 gets those of backend 2.
        let unweighted = shares.iter().filter(|(_, weight)| *weight == 0);
        let filters = unweighted.map(|(backend, _)| mirror(*backend)).collect();
        let share = |(backend, weight)| WeightedBackend {
            weight,
            target: BackendTarget::Backend(backend_id(backend)),
            filters: (backend == 2).then(|| mirror(3)).into_iter().collect(),
        };
        Arc::new(Rule {
            id: RuleId {
                route: object.clone(),
                index,
                name: None,
            },
            matches: matches.into(),
            filters,
            action: Action::Forward(shares.into_iter().map(share).collect()),
            options: None,
        })
    };
    let rules = rules.into_iter().enumerate().map(rule).collect();
    Route {
        kind,
        object: object.clone(),
        created: created.map(Time::from_second),
        priority: 0,
        rules,
        policies: None,
    }
}

/// A priority, mostly 0.
pub(crate) fn priority() -> impl Strategy<Value = i16> {
    prop_oneof![4 => Just(0), 1 => select(vec![-1000, -1, 1, 1000])]
}

fn routes() -> impl Strategy<Value = Vec<Arc<Route>>> {
    let shares = || vec((0_u8..4, 0_u32..3), 0..3);
    let rules = prop_oneof![
        2 => vec((vec(condition().boxed(), 1..3), shares()), 1..3),
        1 => vec((vec(grpc_condition().boxed(), 1..3), shares()), 1..3),
    ];
    let created = weighted(0.7, 0_i64..2);
    vec((created, priority(), rules), 1..6).prop_map(|routes| {
        let named = routes.into_iter().enumerate();
        named
            .map(|(name, (created, priority, rules))| {
                let route = route(name, created, rules);
                Arc::new(Route { priority, ..route })
            })
            .collect()
    })
}

pub(crate) fn listener(
    hostname: &str,
    routes: &[Arc<Route>],
    attached: &[(usize, Vec<&str>)],
) -> Arc<Listener> {
    let own = Hostname::new(hostname);
    let attach = |(index, hostnames): &(usize, Vec<&str>)| {
        let hostnames = hostnames.iter();
        let hostnames = hostnames.filter_map(|name| own.intersection(&Hostname::new(name)));
        let hostnames = Arc::new(hostnames.collect::<Vec<_>>());
        let route = routes[index % routes.len()].clone();
        (!hostnames.is_empty()).then(|| Arc::new(AttachedRoute { hostnames, route }))
    };
    let mut seen = Vec::new();
    let once = |attached: &Arc<AttachedRoute>| {
        let fresh = !seen.contains(&attached.route.object);
        seen.push(attached.route.object.clone());
        fresh
    };
    Arc::new(Listener {
        key: ListenerKey {
            origin: GATEWAY.clone(),
            name: format!("l{hostname}").into(),
        },
        hostname: own.clone(),
        protocol: Protocol::Http,
        policies: None,
        clients: None,
        routes: attached.iter().filter_map(attach).filter(once).collect(),
    })
}

/// A policy that selects endpoints by the address of the client.
fn by_address() -> BackendPolicy {
    let key = KeyPart::ClientIp { v4: 32, v6: 64 };
    BackendPolicy {
        load_balancing: LoadBalancing::ConsistentHash(vec![key]),
        ..BackendPolicy::without_settings(ObjectRef::core("Policy", "ns", "one"))
    }
}

pub(crate) fn ir() -> impl Strategy<Value = Ir> {
    let hostnames = subsequence(HOSTNAMES.to_vec(), 1..4);
    let attached = vec(
        (any::<usize>(), subsequence(HOSTNAMES.to_vec(), 1..4)),
        0..6,
    );
    let endpoints = subsequence(vec![1_u16, 2, 3], 0..=3);
    // Rules refer to backend 3, which never exists.
    let backends = vec((any::<bool>(), any::<bool>(), endpoints), 3);
    (routes(), hostnames, vec(attached, 3), backends).prop_map(
        |(routes, hostnames, attached, backends)| {
            let listeners = hostnames
                .iter()
                .zip(&attached)
                .map(|(hostname, attached)| listener(hostname, &routes, attached));
            let port = Port {
                bind: BIND,
                gateway: GATEWAY.clone(),
                listeners: listeners.collect(),
            };
            let backend = |(index, (h2c, hashes, ports)): (u8, (bool, bool, Vec<u16>))| {
                let protocol = match h2c {
                    true => UpstreamProtocol::H2c,
                    false => UpstreamProtocol::Http1,
                };
                let endpoints = ports.into_iter().map(|port| ([127, 0, 0, 1], port).into());
                let endpoints: Vec<SocketAddr> = endpoints.collect();
                Arc::new(Backend {
                    policy: hashes.then(|| Arc::new(by_address())),
                    ..Backend::new(backend_id(index), protocol, endpoints.into())
                })
            };
            Ir {
                ports: vec![Arc::new(port)],
                backends: (0..).zip(backends).map(backend).collect(),
                ..Ir::default()
            }
        },
    )
}

/// Returns `now` with some routes and backends of `before`, as the same nodes, and some backends of neither.
pub(crate) fn mixed(before: &Ir, now: &Ir, choices: &[u8]) -> Ir {
    let mut choices = choices.iter().cycle().copied();
    let mut choose = |among: u8| choices.next().unwrap_or_default() % among;
    let mut ir = now.clone();
    let known = |key: &ListenerKey| {
        let mut listeners = before.ports.iter().flat_map(|port| &port.listeners);
        listeners.find(|listener| listener.key == *key)
    };
    for port in ir.ports.iter_mut().map(Arc::make_mut) {
        for node in &mut port.listeners {
            let Some(old) = known(&node.key) else {
                continue;
            };
            if choose(4) == 0 {
                *node = old.clone();
                continue;
            }
            let listener = Arc::make_mut(node);
            for route in old.routes.iter().filter(|_| choose(3) > 0) {
                listener.routes.insert(route.clone());
            }
        }
    }
    let mut backends = Vec::new();
    for backend in &*now.backends {
        let old = before.backend(&backend.id).unwrap_or(backend);
        match choose(5) {
            0 => {}
            1 => backends.push(backend.clone()),
            _ => backends.push(old.clone()),
        }
    }
    ir.backends = backends.into();
    ir
}

/// Returns an equal IR that shares no node.
pub(crate) fn copy(ir: &Ir) -> Ir {
    let route = |route: &Route| {
        let rules = route.rules.iter();
        let rules = rules.map(|rule| Arc::new((**rule).clone())).collect();
        Route {
            rules,
            ..route.clone()
        }
    };
    let listener = |listener: &Listener| {
        let attached = |attached: &Arc<AttachedRoute>| {
            let route = Arc::new(route(&attached.route));
            let hostnames = attached.hostnames.clone();
            Arc::new(AttachedRoute { hostnames, route })
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
    let backend = |node: &Arc<Backend>| Arc::new((**node).clone());
    Ir {
        ports: ir.ports.iter().map(|node| Arc::new(port(node))).collect(),
        backends: ir.backends.iter().map(backend).collect(),
        ..Ir::default()
    }
}
