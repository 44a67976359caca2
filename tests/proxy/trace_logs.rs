//! The access log for a collector: which lines it gets, and that they have the ids of spans.

use std::time::Duration;

use tokio::time::timeout;

use crate::admin::metric;
use crate::client::{Client, get};
use crate::collector::Collector;
use crate::harness::TEST_TIMEOUT;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix};
use crate::traces::PARENT;

/// A Gateway whose access log goes to a collector, with an origin behind a route.
fn logged(tracing: &str, collector: std::net::SocketAddr, origin: &Origin) -> Objects {
    let policy = format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {{name: logs}}\nspec:\n  \
         targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}}]\n  \
         accessLog: {{sink: OTLP}}\n  tracing: {{provider: {{backendRef: {{name: collector, port: 80}}{tracing}"
    );
    Objects::http()
        .service("collector", &[collector])
        .service("app", &[origin.address])
        .with(policy)
        .route("route", &[prefix("/a", "app")])
}

#[tokio::test]
async fn lines_have_the_ids_of_the_span_and_a_severity() {
    for protocol in ["", ", protocol: GRPC"] {
        let (mut collector, app) = (Collector::start().await, Origin::echo("app").await);
        let tracing = format!("{protocol}}}}}");
        let scene = Scene::start(&logged(&tracing, collector.origin.address, &app));
        let mut client = Client::http1(scene.at(80)).await;
        let parent = format!("{PARENT}-01");
        let headers = [("traceparent", &*parent), ("x-request-id", "request-1")];
        client.get_with("a.com", "/a?token=canary", &headers).await;
        let (server, _) = collector.request().await;
        let records = collector.records().await;
        let [record] = &records[..] else {
            panic!("{records:?}");
        };
        assert_eq!(record.trace_id, server.trace_id);
        assert_eq!(record.span_id, server.span_id);
        let line = record.line();
        let members = ["method", "path", "host", "route"].map(|name| line[name].clone());
        assert_eq!(members, ["GET", "/a", "a.com", "HTTPRoute default/route"]);
        assert_eq!((record.severity, &line["status"]), (9, &200.into()));
        assert!(!format!("{record:?}").contains("canary"));
        // A request that is not sampled is logged, too.
        let unsampled = format!("{PARENT}-00");
        let headers = [("traceparent", &*unsampled)];
        client.get_with("a.com", "/other", &headers).await;
        let records = collector.records().await;
        assert_eq!((records[0].severity, &*records[0].trace_id), (13, &[][..]));
        assert_eq!(records[0].line()["status"], 404);
    }
}

#[tokio::test]
async fn log_goes_to_the_collector_where_nothing_is_traced() {
    let (mut collector, app) = (Collector::start().await, Origin::echo("app").await);
    let objects = logged("}, mode: Disabled}", collector.origin.address, &app);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let parent = format!("{PARENT}-01");
    let headers = [("traceparent", &*parent)];
    let answer = client.get_with("a.com", "/a", &headers).await;
    assert_eq!(answer.received()["headers"]["traceparent"], parent);
    let records = collector.records().await;
    assert_eq!(records[0].line()["path"], "/a");
    assert!(records[0].trace_id.is_empty());
}

#[tokio::test]
async fn absent_collector_delays_no_request_and_lost_lines_are_counted() {
    let app = Origin::echo("app").await;
    let scene = Scene::start(&logged("}}", Origin::dead(), &app));
    let mut client = Client::http1(scene.at(80)).await;
    let served = async {
        for _ in 0..200 {
            assert_eq!(client.get("a.com", "/a").await.status, 200);
        }
    };
    // A connection to the collector is tried three times, with delays of seconds: 200 of them take minutes.
    timeout(TEST_TIMEOUT, served).await.expect("in time");
    assert_eq!(get(scene.at(80), "a.com", "/a").await.status, 200);
    let dropped = async {
        // Counters have no change notification.
        while metric(&scene, "otlp_log_dropped_records_total").await < 201.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TEST_TIMEOUT, dropped).await.expect("counted");
    assert_eq!(metric(&scene, "otlp_log_exported_records_total").await, 0.0);
}
