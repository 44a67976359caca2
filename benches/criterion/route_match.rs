//! Cost of finding a request's rule, with one route and with thousands, and of building the table. Requests go round
//! all hosts or paths in random order, so that caches help as little as they do in service.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis::ir::canonical_path::CanonicalPath;
use portcullis::ir::route::{
    Action, BackendTarget, Conditions, HeaderMatch, Match, PathMatch, QueryMatch, ValueMatch,
    WeightedBackend,
};
use portcullis::ir::{
    AttachedRoute, Backend, BackendId, Bind, Hostname, Ir, Listener, ListenerKey, ObjectRef, Port,
    Protocol, Route, RouteKind, Rule, RuleId, UpstreamProtocol,
};
use portcullis::table::{RequestView, Table};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use thin_vec::ThinVec;

const BIND: Bind = Bind::tcp(None, 80);

fn backend() -> BackendId {
    BackendId::new(ObjectRef::core("Service", "default", "backend"), 80)
}

fn prefix(path: &str) -> Match {
    PathMatch::Prefix(path.into()).into()
}

fn route(name: usize, hostnames: Vec<Hostname>, matches: Vec<Match>) -> AttachedRoute {
    let object = ObjectRef::gateway_api("HTTPRoute", "default", &format!("route-{name}"));
    let rule = Rule {
        id: RuleId {
            route: object.clone(),
            index: 0,
            name: None,
        },
        matches: matches.into(),
        filters: ThinVec::new(),
        action: Action::Forward(Box::new([WeightedBackend {
            weight: 1,
            target: BackendTarget::Backend(backend()),
            filters: ThinVec::new(),
        }])),
        options: None,
    };
    let route = Route {
        kind: RouteKind::Http,
        object,
        created: None,
        priority: 0,
        rules: [Arc::new(rule)].into(),
        policies: None,
    };
    AttachedRoute {
        hostnames: Arc::new(hostnames),
        route: Arc::new(route),
    }
}

fn ir(listeners: impl IntoIterator<Item = (Hostname, Vec<AttachedRoute>)>) -> Arc<Ir> {
    let gateway = ObjectRef::gateway_api("Gateway", "default", "gateway");
    let listener = |(hostname, routes): (Hostname, Vec<AttachedRoute>)| {
        Arc::new(Listener {
            key: ListenerKey {
                origin: gateway.clone(),
                name: hostname.to_string().into(),
            },
            hostname,
            protocol: Protocol::Http,
            policies: None,
            clients: None,
            routes: routes.into_iter().map(Arc::new).collect(),
        })
    };
    let endpoints = vec![([127, 0, 0, 1], 8080).into()].into();
    let backend = Backend::new(backend(), UpstreamProtocol::Http1, endpoints);
    Arc::new(Ir {
        ports: vec![Arc::new(Port {
            bind: BIND,
            gateway: gateway.clone(),
            listeners: listeners.into_iter().map(listener).collect(),
        })],
        backends: [Arc::new(backend)].into(),
        ..Ir::default()
    })
}

fn host(index: usize) -> String {
    format!("host-{index}.example.com")
}

/// A configuration with the hosts and paths to ask for.
struct Case {
    name: &'static str,
    ir: Arc<Ir>,
    requests: Vec<(String, String)>,
}

fn case(name: &'static str, ir: Arc<Ir>, mut requests: Vec<(String, String)>) -> Case {
    requests.shuffle(&mut rand::rngs::StdRng::seed_from_u64(1));
    Case {
        name,
        ir,
        // Copied, so that they lie in memory in the order of use: a request has just been read when its rule is sought.
        requests: requests.to_vec(),
    }
}

fn one_route() -> Case {
    let routes = vec![route(0, vec![Hostname::Any], vec![prefix("")])];
    let request = (host(0), "/api/v1/items/1".to_owned());
    case("1 route", ir([(Hostname::Any, routes)]), vec![request])
}

fn routes_by_path() -> Case {
    let routes = (0..5_000).map(|index| {
        route(
            index,
            vec![Hostname::Any],
            vec![prefix(&format!("/r{index}"))],
        )
    });
    let requests = (0..5_000).map(|index| (host(0), format!("/r{index}/items/1")));
    let ir = ir([(Hostname::Any, routes.collect())]);
    case("5,000 routes by path", ir, requests.collect())
}

fn routes_by_host() -> Case {
    let routes =
        (0..5_000).map(|index| route(index, vec![Hostname::new(&host(index))], vec![prefix("")]));
    let requests = (0..5_000).map(|index| (host(index), "/api/v1/items/1".to_owned()));
    let ir = ir([(Hostname::Any, routes.collect())]);
    case("5,000 routes by host", ir, requests.collect())
}

fn hostnames_of_routes() -> Case {
    let routes = (0..10_000 / 16).map(|index| {
        let hostnames = (0..16).map(|it| Hostname::new(&host(index * 16 + it)));
        route(index, hostnames.collect(), vec![prefix("")])
    });
    let requests = (0..10_000).map(|index| (host(index), "/api/v1/items/1".to_owned()));
    let ir = ir([(Hostname::Any, routes.collect())]);
    case("10,000 hostnames of routes", ir, requests.collect())
}

fn hostnames_of_listeners() -> Case {
    let listeners = (0..10_000).map(|index| {
        let hostname = Hostname::new(&host(index));
        let routes = vec![route(index, vec![hostname.clone()], vec![prefix("")])];
        (hostname, routes)
    });
    let requests = (0..10_000).map(|index| (host(index), "/api/v1/items/1".to_owned()));
    case("10,000 listeners", ir(listeners), requests.collect())
}

fn conditions() -> Case {
    let conditions = |index| Conditions {
        grpc: None,
        method: Some(Method::GET),
        headers: vec![HeaderMatch {
            name: HeaderName::from_static("x-version"),
            value: ValueMatch::Exact(format!("{}", 15 - index).into()),
        }],
        query: vec![QueryMatch {
            name: "page".into(),
            value: ValueMatch::Exact("1".into()),
        }],
    };
    let matches = (0..16).map(|index| Match {
        others: conditions(index).into(),
        ..prefix("/api")
    });
    let routes = vec![route(0, vec![Hostname::Any], matches.collect())];
    let request = (host(0), "/api/v1/items/1".to_owned());
    case(
        "16 matches on one path",
        ir([(Hostname::Any, routes)]),
        vec![request],
    )
}

fn find(criterion: &mut Criterion) {
    let headers = HeaderMap::from_iter([
        (http::header::ACCEPT, HeaderValue::from_static("*/*")),
        (
            HeaderName::from_static("x-version"),
            HeaderValue::from_static("0"),
        ),
    ]);
    let cases = [
        one_route(),
        routes_by_path(),
        routes_by_host(),
        hostnames_of_routes(),
        hostnames_of_listeners(),
        conditions(),
    ];
    let mut group = criterion.benchmark_group("find");
    for case in cases {
        let table = Table::build(case.ir, None);
        let mut requests = case.requests.iter().cycle();
        group.bench_function(case.name, |bencher| {
            bencher.iter(|| {
                let (host, path) = requests.next().expect("cycles");
                let view = RequestView {
                    host,
                    method: &Method::GET,
                    path: CanonicalPath::new(path).expect("canonical"),
                    query: Some("page=1"),
                    headers: &headers,
                    added: &[],
                    upgrade: None,
                };
                let port = table.port(&BIND).expect("configured");
                let listener = port.listener(view.host).expect("configured");
                let rule = listener.find(&view).expect("configured");
                black_box(rule.select(rule.draw(None)));
            });
        });
    }
}

fn build(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("build");
    group.sample_size(20);
    for case in [routes_by_path(), hostnames_of_listeners()] {
        let name = |what| format!("{}, {what}", case.name);
        group.bench_function(name("from nothing"), |bencher| {
            bencher.iter_batched(
                || case.ir.clone(),
                |ir| Table::build(ir, None),
                BatchSize::PerIteration,
            );
        });
        let previous = Table::build(case.ir.clone(), None);
        group.bench_function(name("again"), |bencher| {
            bencher.iter_batched(
                || case.ir.clone(),
                |ir| Table::build(ir, Some(&previous)),
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group!(benches, find, build);
criterion_main!(benches);
