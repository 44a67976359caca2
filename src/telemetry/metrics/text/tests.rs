//! Tests of the page and of its documentation.

use std::time::Duration;

use super::*;
use crate::ir::Ir;

#[test]
fn new_process_exports_process_metrics() {
    let process = ProcessStats::default();
    process.connections.timed_out(TimeoutKind::Body);
    process.connections.accepted.fetch_add(3, Relaxed);
    process.config.loaded(7, 2);
    let table = Arc::new(Table::build(Arc::new(Ir::default()), None));
    let text = encode(table, process, 4);
    for line in [
        "portcullis_connections_open 3",
        "portcullis_connections_accepted_total 3",
        "portcullis_timeouts_total{timeout=\"body\"} 1",
        "portcullis_config_generation 7",
        "portcullis_config_problems 2",
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
        let text = encode(table.clone(), process.clone(), 0);
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
    has(["age_seconds 0", "connected 1", "revision 7"]);
    stream.disconnected();
    has(["connected 0", "connections_total 1", "revision 7"]);
}

#[test]
fn histogram_buckets_are_cumulative() {
    let stats = RuleStats::default();
    stats.record(200, Duration::from_millis(2));
    stats.record(200, Duration::from_secs(60));
    let id = RuleId {
        route: crate::ir::ObjectRef::gateway_api("HTTPRoute", "ns", "demo"),
        index: 3,
        name: None,
    };
    #[derive(Debug)]
    struct One(RuleId, RuleStats);
    impl Collector for One {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            Page(encoder).durations("d", "help", &[(RuleLabels(&self.0), &self.1)])
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
