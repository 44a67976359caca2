//! Tests of the page and of its documentation.

mod conventions;
mod recorded;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::Value;

use super::rules::RuleLabels;
use super::*;
use crate::api;
use crate::ir::{Ir, RuleId};
use crate::runtime::per_worker::WorkerId;
use crate::settings::metrics::DurationLabels;
use crate::snapshot::Snapshot;
use crate::table::{
    AuthResult, MirrorResult, Outcome, PageResult, PickResult, RuleStats, TlsFailure, UpstreamFault,
};
use crate::translate::{Options, Translator};

/// Durations without labels of requests.
const PLAIN: DurationLabels = DurationLabels {
    method: false,
    status_class: false,
};
/// Durations with all labels of requests.
const LABELLED: DurationLabels = DurationLabels {
    method: true,
    status_class: true,
};
/// The detail of `--metrics-per-rule`.
pub(super) const RULES: MetricsDetail = MetricsDetail {
    per_rule: true,
    durations_by: PLAIN,
};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md"));

/// Returns all metrics.
pub(super) fn encode(
    table: Arc<Table>,
    process: ProcessStats,
    dropped: u64,
    detail: MetricsDetail,
) -> String {
    let metrics = Metrics {
        table,
        process,
        dropped,
        detail,
        problems: vec![(("route", "error"), 2)],
    };
    let mut text = String::new();
    write(&mut text, metrics).unwrap();
    text
}

#[test]
fn new_process_exports_process_metrics() {
    let process = ProcessStats::default();
    process.connections.timed_out(TimeoutKind::Body);
    process.connections.accepted.fetch_add(3, Relaxed);
    process.config.loaded(7, 2);
    let table = Arc::new(Table::build(Arc::new(Ir::default()), None));
    let text = encode(table, process, 4, MetricsDetail::default());
    for line in [
        "portcullis_connections_open 3",
        "portcullis_connections_accepted_total 3",
        "portcullis_timeouts_total{timeout=\"body\"} 1",
        "portcullis_config_generation 7",
        "portcullis_config_problems 2",
        "portcullis_problems{kind=\"route\",severity=\"error\"} 2",
        "portcullis_access_log_dropped_lines_total 4",
    ] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn pod_of_a_controller_exports_stream_metrics() {
    let stream = Arc::new(super::super::StreamStats::default());
    let process = ProcessStats {
        stream: Some(stream.clone()),
        ..ProcessStats::default()
    };
    let table = Arc::new(Table::build(Arc::new(Ir::default()), None));
    let has = |lines: [&str; 3]| {
        let text = encode(table.clone(), process.clone(), 0, MetricsDetail::default());
        for line in lines.map(|line| format!("portcullis_stream_{line}")) {
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
    };
    has(["connected 0", "connections_total 0", "revision 0"]);
    stream.connected();
    stream.committed(7);
    has(["connected 1", "connections_total 1", "revision 7"]);
    stream.disconnected();
    has(["connected 0", "connections_total 1", "revision 7"]);
}

#[test]
fn histogram_buckets_are_cumulative() {
    let stats = RuleStats::default();
    for time in [Duration::from_millis(2), Duration::from_secs(60)] {
        stats.record(WorkerId::ONLY, Outcome::of_status(200), time, PLAIN);
    }
    let id = RuleId {
        route: crate::ir::ObjectRef::gateway_api("HTTPRoute", "ns", "demo"),
        index: 3,
        name: None,
    };
    #[derive(Debug)]
    struct One(RuleId, RuleStats);
    impl Collector for One {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            Page(encoder).durations(
                "d",
                "help",
                [(RuleLabels(&self.0, true), self.1.durations())],
            )
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(One(id, stats)));
    let mut text = String::new();
    text::encode(&mut text, &registry).unwrap();
    let labels = "namespace=\"ns\",route=\"demo\",kind=\"HTTPRoute\",rule=\"3\"";
    assert!(
        text.contains(&format!("d_seconds_bucket{{le=\"0.0025\",{labels}}} 1")),
        "{text}"
    );
    assert!(
        text.contains(&format!("d_seconds_bucket{{le=\"+Inf\",{labels}}} 2")),
        "{text}"
    );
    assert!(
        text.contains(&format!("d_seconds_count{{{labels}}} 2")),
        "{text}"
    );
}

const OBJECTS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: edge}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: site, namespace: app}
spec:
  parentRefs: [{name: web, namespace: edge}]
  rules:
  - {name: "1", backendRefs: [{name: app, port: 80}]}
  - {backendRefs: [{name: app, port: 80}], matches: [{path: {value: /two}}]}
  - {name: three, backendRefs: [{name: app, port: 80}], matches: [{path: {value: /three}}]}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: app}
spec:
  ports: [{port: 80}]
"#;

/// The table of these objects, after another one.
fn table_of(objects: &str, previous: &Table) -> Arc<Table> {
    let mut snapshot = Snapshot::default();
    for object in serde_saphyr::from_multiple::<Value>(objects).unwrap() {
        let admission = api::admit(object);
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        snapshot.insert(admission.object.unwrap());
    }
    let mut translator = Translator::new(Options::default());
    let ir = translator.translate(&snapshot, None).ir;
    Arc::new(Table::build(Arc::new(ir), Some(previous)))
}

/// Counts a request of each rule, and a retry.
fn record(table: &Table) {
    for rule in table.rules() {
        let (stats, outcome) = (&rule.state.stats, Outcome::of_status(200));
        stats.record(WorkerId::ONLY, outcome, Duration::from_millis(1), PLAIN);
        stats.retried(WorkerId::ONLY);
    }
}

/// The table of [`OBJECTS`], each of whose counters is 1.
pub(super) fn table() -> Arc<Table> {
    let table = table_of(OBJECTS, &Table::empty());
    record(&table);
    for backend in table.backends() {
        let stats = &backend.stats;
        stats.responded(WorkerId::ONLY, 299, Duration::from_millis(1));
        stats.failed(UpstreamFault::Reset);
        stats.tls_failed(TlsFailure::Name);
        stats.mirrored(MirrorResult::Failed);
        stats.authorized(AuthResult::Denied);
        stats.paged(PageResult::Timeout);
        stats.picked(PickResult::FailedOpen);
        stats.pick_took(WorkerId::ONLY, Duration::from_millis(1));
        stats.retry_refused();
    }
    table
}

#[test]
fn labels_name_objects_and_rules() {
    let text = encode(table(), ProcessStats::default(), 0, RULES);
    let rule =
        |rule: &str| format!(r#"namespace="app",route="site",kind="HTTPRoute",rule="{rule}""#);
    let backend =
        r#"namespace="app",backend="app",kind="Service",port="80",protocol="http1",tls="none""#;
    let method = r#"http_request_method="_OTHER""#;
    let ok = r#"http_response_status_code="200",error_type="""#;
    let listener = r#"namespace="edge",gateway="web",listener_set="",listener="http",port="80""#;
    for line in [
        // The name of this rule is the index of the next one.
        format!("portcullis_requests_total{{{},{method},{ok}}} 1", rule("0")),
        format!("portcullis_requests_total{{{},{method},{ok}}} 1", rule("1")),
        format!("portcullis_retries_total{{{}}} 1", rule("three")),
        format!("portcullis_upstream_connections_total{{{backend}}} 0"),
        format!(
            "portcullis_upstream_responses_total{{{backend},http_response_status_code=\"2xx\"}} 1"
        ),
        format!("portcullis_listener_info{{{listener},protocol=\"HTTP\"}} 1"),
    ] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
}

/// Asserts that the route of [`OBJECTS`] has three requests in all, and returns the page.
fn assert_three_requests(table: &Arc<Table>) -> String {
    let detail = MetricsDetail::default();
    let text = encode(table.clone(), ProcessStats::default(), 0, detail);
    let route = r#"namespace="app",route="site",kind="HTTPRoute""#;
    let ok = r#"http_response_status_code="200",error_type="""#;
    for line in [
        format!("portcullis_requests_total{{{route},{ok}}} 3"),
        format!("portcullis_retries_total{{{route}}} 3"),
        format!("http_server_request_duration_seconds_count{{{route}}} 3"),
    ] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
    text
}

#[test]
fn requests_are_counted_by_route_by_default() {
    let text = assert_three_requests(&table());
    assert!(!text.contains("rule="), "{text}");
}

/// A policy on another listener of the Gateway of [`OBJECTS`], and one on the route, so that what they require of its rules
/// differs between listeners.
const POLICIES: &str = r#"
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: admin, namespace: edge}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web, sectionName: admin}]
  ipRules: {deny: [192.0.2.0/24]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: site, namespace: app}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: site}]
  ipRules: {deny: [198.51.100.0/24]}
"#;

#[test]
fn rules_with_other_policies_at_each_listener_count_once() {
    let listener = "  - {name: http, port: 80,";
    let other = listener.replace("http", "admin").replace("80", "81");
    let rest = " protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}\n";
    let objects = OBJECTS.replace(listener, &format!("{other}{rest}{listener}"));
    let table = table_of(&[&*objects, POLICIES].concat(), &Table::empty());
    assert_eq!(table.rule_versions().count(), 6);
    record(&table);
    assert_three_requests(&table);
    let text = encode(table, ProcessStats::default(), 0, RULES);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = samples.filter_map(|line| line.rsplit_once(' ')).collect();
    let unique: BTreeSet<_> = series.iter().map(|(series, _)| series).collect();
    assert_eq!(unique.len(), series.len(), "{text}");
}

#[test]
fn counters_of_a_route_keep_the_requests_of_its_former_rules() {
    let before = table();
    let last = OBJECTS.lines().find(|line| line.contains("name: three"));
    let fewer = table_of(&OBJECTS.replace(last.unwrap(), ""), &before);
    assert_eq!(fewer.rules().count(), 2);
    assert_three_requests(&fewer);
    // The series of a rule ends with it.
    let rule = r#"rule="three""#;
    let by_rule = |table: &Arc<Table>| encode(table.clone(), ProcessStats::default(), 0, RULES);
    assert!(by_rule(&before).contains(rule));
    assert!(!by_rule(&fewer).contains(rule));
    let mut latest = table_of(OBJECTS, &fewer);
    assert_three_requests(&latest);
    assert!(by_rule(&latest).contains(rule));
    for turn in 0..40 {
        let renamed = OBJECTS.replace("three, ", &format!("three-{turn}, "));
        latest = table_of(&renamed, &latest);
    }
    assert_three_requests(&latest);
    assert!(latest.counted_rules().count() < 40);
}

/// Type and labels of each metric in the tables of `docs/metrics.md`.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut metrics = BTreeMap::new();
    let prefixes = ["| `portcullis_", "| `process_", "| `http_"];
    let is_metric = |line: &&str| prefixes.iter().any(|prefix| line.starts_with(prefix));
    for line in DOCUMENT.lines().filter(is_metric) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _] = cells[..] else {
            panic!("{line} has {} cells", cells.len());
        };
        let labels = labels.split(", ").filter(|it| !it.is_empty());
        let labels = labels.flat_map(|label| match label {
            "*route*" => vec!["namespace", "route", "kind"],
            "*backend*" => vec!["namespace", "backend", "kind", "port", "protocol", "tls"],
            label => vec![label.trim_matches('`')],
        });
        let labels = labels.map(str::to_owned).collect();
        let value = (kind.to_owned(), labels);
        assert!(
            metrics
                .insert(name.trim_matches('`').to_owned(), value)
                .is_none()
        );
    }
    metrics
}

/// The counters of a process that is a pod of a controller and a controller at once.
fn process() -> ProcessStats {
    let process = ProcessStats {
        stream: Some(Arc::default()),
        controller: Some(Arc::default()),
        ..ProcessStats::default()
    };
    process.config.contacted();
    let unmatched = Outcome {
        error: Some("no route matches this request"),
        ..Outcome::of_status(404)
    };
    let counts = process.connections.unmatched.of(WorkerId::ONLY);
    counts.add(unmatched);
    let workers = [AtomicUsize::new(0)].into();
    process.connections.by_worker.set(workers).unwrap();
    let busy = process.connections.busy_micros.of(WorkerId::ONLY);
    busy.store(1, Relaxed);
    process
}

/// A page with all metrics. Those of certificates and releases have no samples.
fn complete_page() -> String {
    let table = table();
    table.limit_group().open();
    encode(table, process(), 0, MetricsDetail::default())
}

#[test]
fn documentation_has_each_metric_with_its_type_and_labels() {
    let (page, documented) = (complete_page(), documented());
    let types = page.lines().filter_map(|line| {
        let (family, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        Some((format!("{family}{suffix}"), kind))
    });
    let types: BTreeMap<String, &str> = types.collect();
    let expected = documented
        .iter()
        .map(|(name, (kind, _))| (name.clone(), kind.as_str()));
    assert_eq!(types, expected.collect());

    let samples = page.lines().filter(|line| !line.starts_with('#'));
    for line in samples {
        let name = line.split(['{', ' ']).next().unwrap();
        let histogram = ["_bucket", "_sum", "_count"].map(|suffix| name.strip_suffix(suffix));
        let mut names = [Some(name)].into_iter().chain(histogram).flatten();
        let (_, labels) = names.find_map(|name| documented.get(name)).unwrap();
        // No value of this page has a comma or an equals sign.
        let found = line
            .split(['{', ','])
            .filter_map(|it| Some(it.split_once("=\"")?.0.to_owned()));
        let found: BTreeSet<String> = found.filter(|label| label != "le").collect();
        assert_eq!(found, *labels, "{line}");
    }
}

#[test]
fn documentation_has_a_query_for_each_metric() {
    let queries = DOCUMENT.lines().filter(|line| line.starts_with("| "));
    let queries: String = queries.filter(|line| !line.starts_with("| `")).collect();
    let words =
        |text: &'static str| text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let documented = documented();
    for name in documented.keys() {
        assert!(queries.contains(name.as_str()), "{name} is in no query");
    }
    let known = |word: &str| {
        let word = ["_bucket", "_sum", "_count"]
            .into_iter()
            .find_map(|it| word.strip_suffix(it))
            .unwrap_or(word);
        documented.contains_key(word)
    };
    for word in words(DOCUMENT).filter(|word| word.starts_with("portcullis_")) {
        assert!(known(word), "there is no metric {word}");
    }
}
