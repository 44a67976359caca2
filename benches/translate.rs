//! Cost of a change to one route among thousands, step by step: reading the folder, translating, building the table.
//! What a reload costs in all is their sum.

#![allow(clippy::unwrap_used, reason = "a failed step ends the bench")]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use portcullis::provider::file::FileProvider;
use portcullis::snapshot::Snapshot;
use portcullis::table::Table;
use portcullis::translate::{Options, translate};

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

fn changes(c: &mut Criterion) {
    for count in [100, 1000, 5000] {
        one_change(c, count);
    }
}

criterion_group!(benches, changes);
criterion_main!(benches);
