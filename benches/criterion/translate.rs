//! Cost of a change among thousands of routes. Of a folder, step by step from nothing: reading, translating, building the
//! table. Of a cluster, as a whole and with what was translated before: from one changed object to a table in its place,
//! the old one dropped.

#![allow(clippy::unwrap_used, reason = "a failed step ends the bench")]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use mimalloc::MiMalloc;
use portcullis::api::Kind;
use portcullis::provider::file::FileProvider;
use portcullis::snapshot::Snapshot;
use portcullis::table::Table;
use portcullis::translate::closure::Closures;
use portcullis::translate::{CONTROLLER_NAME, Mode, Options, Translator, translate};
use serde_json::{Value, json};

/// The program's own.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const BASE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: v1
kind: Service
metadata: {name: backend, namespace: default}
spec: {ports: [{port: 80}]}
";

/// `count` routes of which the first sends `weight` to its backend.
fn routes(count: usize, weight: usize) -> String {
    let mut text = String::new();
    for i in 0..count {
        let weight = if i == 0 { weight } else { 1 };
        write!(
            text,
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route-{i}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [host-{}.example.com]
  rules:
  - matches: [{{path: {{value: /team-{i}}}}}]
    backendRefs: [{{name: backend, port: 80, weight: {weight}}}]
",
            i % 100
        )
        .unwrap();
    }
    text
}

fn write_routes(folder: &Path, count: usize, weight: usize) {
    fs::write(folder.join("routes.yaml"), routes(count, weight)).unwrap();
}

fn one_change(c: &mut Criterion, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("base.yaml"), BASE).unwrap();
    let mut provider = FileProvider::new(folder.path().to_owned());
    let mut load = |weight: usize| -> Arc<Snapshot> {
        write_routes(folder.path(), count, weight);
        provider.load().unwrap().snapshot
    };
    let (before, after) = (load(1), load(2));
    let options = Options::default();
    let old = translate(&before, None, &options).ir;
    let table = Table::build(Arc::new(old), None);

    let mut group = c.benchmark_group(format!("one of {count} routes changes"));
    let mut weight = 2;
    group.bench_function("read", |b| {
        b.iter_batched(
            || {
                weight += 1;
                write_routes(folder.path(), count, weight);
            },
            |()| black_box(provider.load().unwrap()),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("translate", |b| {
        b.iter(|| translate(black_box(&after), Some(&table.ir), &options));
    });
    group.bench_function("build", |b| {
        b.iter_batched(
            || Arc::new(translate(&after, Some(&table.ir), &options).ir),
            |ir| Table::build(ir, Some(&table)),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

fn gateway() -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {
            "gatewayClassName": "portcullis",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    })
}

fn route(index: usize, hosts: usize, weight: usize) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "HTTPRoute",
        "metadata": {"name": format!("route-{index}"), "namespace": "default", "generation": weight},
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "hostnames": [format!("host-{}.example.com", index % hosts)],
            "rules": [{
                "matches": [{"path": {"value": format!("/team-{index}")}}],
                "backendRefs": [{"name": format!("app-{index}"), "port": 80, "weight": weight}],
            }],
        },
    })
}

fn service(index: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("app-{index}"), "namespace": "default"},
        "spec": {"ports": [{"port": 80}]},
    })
}

fn slice(index: usize, last: usize) -> Value {
    let endpoints = [1, last].map(|host| json!({"addresses": [format!("10.0.0.{host}")]}));
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("app-{index}-x"),
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("app-{index}")},
        },
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": endpoints,
    })
}

fn put(snapshot: &mut Snapshot, object: &Value) {
    let text = |name: &str| object[name].as_str().unwrap();
    let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
    snapshot.insert(kind.decode(object).unwrap());
}

/// `count` routes on `hosts` hosts, each to a Service of its own.
fn cluster(count: usize, hosts: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    put(&mut snapshot, &gateway());
    for index in 0..count {
        for object in [route(index, hosts, 1), service(index), slice(index, 2)] {
            put(&mut snapshot, &object);
        }
    }
    snapshot
}

fn one_object(c: &mut Criterion, count: usize, hosts: usize) {
    let before = cluster(count, hosts);
    let mut group = c.benchmark_group(format!("one object among {count} routes on {hosts} hosts"));
    let changes = [
        ("route", route(count / 2, hosts, 2)),
        ("new route", route(count, hosts, 1)),
        ("slice", slice(count / 2, 3)),
    ];
    for (name, object) in changes {
        let mut after = before.clone();
        put(&mut after, &object);
        let mut versions = [&after, &before].into_iter().cycle();
        let mut translator = Translator::new(Options::default());
        let first = translator.translate(&before, None);
        let mut table = Table::build(Arc::new(first.ir), None);
        let mut report = first.report;
        group.bench_function(name, |b| {
            b.iter(|| {
                let translation = translator.translate(versions.next().unwrap(), Some(&table.ir));
                assert_ne!(translation.ir, *table.ir);
                table = Table::build(Arc::new(translation.ir), Some(&table));
                report = translation.report;
            });
        });
        black_box(&report);
    }
    group.bench_function("nothing known", |b| {
        b.iter(|| translate(&before, None, &Options::default()));
    });
    group.finish();
}

/// What following one changed object costs, from the cluster's snapshot to the differences of closures. Changing the
/// snapshot is not counted; finding the changed object in it is.
fn one_object_in_closures(c: &mut Criterion, gateways: usize, routes_each: usize) {
    let mut before = Snapshot::default();
    let class = json!({
        "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "portcullis"},
        "spec": {"controllerName": CONTROLLER_NAME},
    });
    put(&mut before, &class);
    let count = gateways * routes_each;
    let of_gateway = |index: usize, weight| {
        let mut route = route(index, 100, weight);
        route["spec"]["parentRefs"][0]["name"] =
            format!("edge-{}", index / routes_each % gateways).into();
        route
    };
    for index in 0..gateways {
        let mut gateway = gateway();
        gateway["metadata"]["name"] = format!("edge-{index}").into();
        put(&mut before, &gateway);
    }
    for index in 0..count {
        for object in [of_gateway(index, 1), service(index), slice(index, 2)] {
            put(&mut before, &object);
        }
    }
    let mut moved = of_gateway(count / 2, 1);
    moved["spec"]["rules"][0]["backendRefs"][0]["name"] = "app-0".into();
    let name =
        format!("one object in the closures of {gateways} Gateways with {routes_each} routes each");
    let mut group = c.benchmark_group(name);
    let changes = [
        ("route", of_gateway(count / 2, 2)),
        ("route to another Service", moved),
        ("new route", of_gateway(count, 1)),
        ("slice", slice(count / 2, 3)),
    ];
    for (name, object) in changes {
        let mut after = before.clone();
        put(&mut after, &object);
        let mut versions = [&after, &before].into_iter().cycle();
        let mut closures = Closures::new(Options::default());
        closures.follow(&before);
        group.bench_function(name, |b| {
            b.iter(|| {
                let differences = closures.follow(versions.next().unwrap());
                assert_eq!(differences.len(), 1);
                differences
            });
        });
    }
    group.bench_function("nothing known", |b| {
        b.iter(|| Closures::new(Options::default()).follow(&before));
    });
    group.finish();
}

/// A certificate of this host with its key, as PEM.
fn pair(host: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
    (
        parameters.self_signed(&key).unwrap().pem(),
        key.serialize_pem(),
    )
}

fn secret(index: usize, (certificate, key): &(String, String)) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("cert-{index}"), "namespace": "default"},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": certificate, "tls.key": key},
    })
}

fn listener_set(index: usize) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "ListenerSet",
        "metadata": {"name": format!("set-{index}"), "namespace": "default"},
        "spec": {
            "parentRef": {"name": format!("edge-{index}")},
            "listeners": [{"name": "http", "port": 8080, "protocol": "HTTP"}],
        },
    })
}

/// What translating one changed object costs the controller, apart from the differences of closures: each Gateway has a
/// certificate, a ListenerSet and its part of the routes.
fn one_object_among_gateways(c: &mut Criterion, gateways: usize, count: usize) {
    let (first, second) = (pair("a.example.com"), pair("b.example.com"));
    let edge = |index: usize, annotation: &str| {
        let mut gateway = gateway();
        gateway["metadata"]["name"] = format!("edge-{index}").into();
        gateway["metadata"]["annotations"] = json!({"note": annotation});
        gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
        let https = json!({
            "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": {"certificateRefs": [{"name": format!("cert-{index}")}]},
        });
        let listeners = gateway["spec"]["listeners"].as_array_mut();
        listeners.unwrap().push(https);
        gateway
    };
    let of_gateway = |index: usize, weight| {
        let mut route = route(index, 100, weight);
        route["spec"]["parentRefs"][0]["name"] = format!("edge-{}", index % gateways).into();
        route
    };
    let mut before = Snapshot::default();
    let class = json!({
        "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "portcullis"},
        "spec": {"controllerName": CONTROLLER_NAME},
    });
    put(&mut before, &class);
    for index in 0..gateways {
        let objects = [edge(index, "1"), secret(index, &first), listener_set(index)];
        objects.iter().for_each(|it| put(&mut before, it));
    }
    for index in 0..count {
        for object in [of_gateway(index, 1), service(index), slice(index, 2)] {
            put(&mut before, &object);
        }
    }
    put(&mut before, &slice(count, 2));
    let name = format!("one object among {gateways} Gateways with {count} routes");
    let mut group = c.benchmark_group(name);
    let middle = gateways / 2;
    let changes = [
        ("unrelated slice", slice(count, 3)),
        ("slice", slice(count / 2, 3)),
        ("route", of_gateway(count / 2, 2)),
        ("annotation of a Gateway", edge(middle, "2")),
        ("Secret", secret(middle, &second)),
    ];
    for (name, object) in changes {
        let mut after = before.clone();
        put(&mut after, &object);
        let mut versions = [&after, &before].into_iter().cycle();
        let mut translator = Translator::new(Options {
            mode: Mode::Dedicated,
            ..Options::default()
        });
        let mut last = translator.translate(&before, None);
        group.bench_function(name, |b| {
            b.iter(|| last = translator.translate(versions.next().unwrap(), Some(&last.ir)));
        });
    }
    group.finish();
}

fn changes(c: &mut Criterion) {
    for gateways in [50, 500] {
        one_object_among_gateways(c, gateways, 5000);
    }
    for (gateways, routes_each) in [(1, 3000), (200, 15)] {
        one_object_in_closures(c, gateways, routes_each);
    }
    for count in [100, 1000, 5000] {
        one_change(c, count);
    }
    for (count, hosts) in [
        (1000, 100),
        (3000, 100),
        (5000, 100),
        (5000, 5000),
        (5000, 1),
    ] {
        one_object(c, count, hosts);
    }
}

criterion_group!(benches, changes);
criterion_main!(benches);
