//! Tests of the page as a whole: the rules of `promlint`, and the number of series of a large configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api;
use crate::runtime::per_worker::WorkerId;
use crate::snapshot::Snapshot;
use crate::table::{KnownMethod, Outcome};
use crate::translate::{Options, Translator};

const ROUTES: usize = 2_500;
const RULES: usize = 16;
/// Number of Services that the routes share.
const SERVICES: usize = 50;

/// A table of many routes, each rule of which has had requests.
fn large() -> Arc<Table> {
    let mut snapshot = Snapshot::default();
    let mut add = |object| {
        let admission = api::admit(object);
        snapshot.insert(admission.object.expect("a valid object"));
    };
    let object = |version: &str, kind: &str, name: &str, spec: serde_json::Value| {
        let metadata = json!({"name": name, "namespace": "app"});
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    };
    let api = "gateway.networking.k8s.io/v1";
    let listener = json!({"name": "http", "port": 80, "protocol": "HTTP"});
    let spec = json!({"gatewayClassName": "portcullis", "listeners": [listener]});
    add(object(api, "Gateway", "web", spec));
    for service in 0..SERVICES {
        let spec = json!({"ports": [{"port": 80}]});
        add(object("v1", "Service", &format!("s{service}"), spec));
    }
    for route in 0..ROUTES {
        let backends = json!([{"name": format!("s{}", route % SERVICES), "port": 80}]);
        let rule = |rule: usize| {
            json!({
                "matches": [{"path": {"type": "PathPrefix", "value": format!("/{route}/{rule}")}}],
                "backendRefs": backends,
            })
        };
        let rules: Vec<_> = (0..RULES).map(rule).collect();
        let spec = json!({"parentRefs": [{"name": "web"}], "rules": rules});
        add(object(api, "HTTPRoute", &format!("r{route}"), spec));
    }
    let mut translator = Translator::new(Options::default());
    let ir = translator.translate(&snapshot, None).ir;
    let table = Table::build(Arc::new(ir), None);
    for rule in table.rules() {
        let stats = &rule.state.stats;
        for (worker, status, error) in [(0, 200, None), (1, 503, Some("the backend failed"))] {
            let method = KnownMethod::of(&http::Method::GET);
            let outcome = Outcome {
                method,
                status,
                error,
            };
            let (worker, time) = (WorkerId::new(worker, 2), Duration::from_millis(3));
            stats.record(worker, outcome, time, PLAIN);
        }
    }
    for backend in table.backends() {
        let stats = &backend.stats;
        stats.responded(WorkerId::ONLY, 200, Duration::from_millis(2));
    }
    Arc::new(table)
}

#[test]
fn large_configuration_has_a_bounded_number_of_series() {
    let table = large();
    assert_eq!(table.rules().count(), ROUTES * RULES);
    let text = encode(table, ProcessStats::default(), 0, MetricsDetail::default());
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 60_000, "{series} series");
    eprintln!("{series} series, {} bytes", text.len());
}

/// The rules of `promlint`, the linter of Prometheus' client library.
#[test]
fn names_follow_the_rules_of_promlint() {
    let process = ProcessStats {
        stream: Some(Arc::default()),
        controller: Some(Arc::default()),
        ..ProcessStats::default()
    };
    let page = encode(
        Arc::new(Table::empty()),
        process,
        0,
        MetricsDetail::default(),
    );
    let of = |prefix: &'static str| {
        let lines = page
            .lines()
            .filter_map(move |line| line.strip_prefix(prefix));
        lines
            .filter_map(|line| line.split_once(' '))
            .collect::<BTreeMap<_, _>>()
    };
    let (helps, types) = (of("# HELP "), of("# TYPE "));
    assert!(types.len() > 50);
    for (name, kind) in &types {
        assert!(
            !helps.get(name).is_none_or(|help| help.is_empty()),
            "{name} has no help"
        );
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(fits), "{name} is not in snake case");
        let words: Vec<&str> = name.split('_').collect();
        // OpenMetrics adds `_total` to the samples of counters.
        for suffix in ["total", "bucket", "sum", "count"] {
            assert_ne!(words.last(), Some(&suffix), "{name} of type {kind}");
        }
        for kind in ["counter", "gauge", "histogram", "summary"] {
            assert!(!words.contains(&kind), "{name} has a type in its name");
        }
        for unit in [
            "ms",
            "us",
            "ns",
            "milliseconds",
            "minutes",
            "hours",
            "days",
            "kb",
            "mb",
            "kilobytes",
            "megabytes",
            "bits",
            "percent",
        ] {
            assert!(!words.contains(&unit), "{name} has no base unit");
        }
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let labels = line
            .split(['{', ','])
            .filter_map(|it| Some(it.split_once("=\"")?.0));
        for label in labels {
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(
                label.bytes().all(fits),
                "{label} of {line} is not in snake case"
            );
        }
    }
}
