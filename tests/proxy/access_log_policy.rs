//! The access log of a Gateway with a TelemetryPolicy: which requests it has, and which fields, in the log of the process and
//! for a collector.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderValue, Response};
use portcullis::settings::{AccessLogFilter, AccessLogTarget};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::collector::Collector;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, prefix};

/// Where lines go.
#[derive(Clone, Copy, Debug)]
enum Sink {
    Process,
    Collector,
}

const SINKS: [Sink; 2] = [Sink::Process, Sink::Collector];

/// A Gateway with a policy on its access log, and an origin behind `/a` that waits 150 ms for `/a/slow`.
struct Logged {
    scene: Scene,
    collector: Collector,
    folder: TempDir,
    sink: Sink,
    lines: Vec<Value>,
    app: Origin,
}

/// Objects with this `accessLog` beside the sink.
fn objects(sink: Sink, access_log: &str, collector: SocketAddr, app: SocketAddr) -> Objects {
    let sink = match sink {
        Sink::Process => "Process",
        Sink::Collector => "OTLP",
    };
    let policy = format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {{name: logs}}\nspec:\n  \
         targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}}]\n  \
         accessLog: {{sink: {sink}{access_log}}}\n  \
         tracing: {{mode: Disabled, provider: {{backendRef: {{name: collector, port: 80}}}}}}"
    );
    let mut moved = prefix("/moved", "app");
    moved["filters"] =
        json!([{"type": "RequestRedirect", "requestRedirect": {"hostname": "b.com"}}]);
    moved.as_object_mut().expect("a rule").remove("backendRefs");
    Objects::http()
        .service("collector", &[collector])
        .service("app", &[app])
        .with(policy)
        .route("route", &[prefix("/a", "app"), moved])
}

impl Logged {
    async fn start(sink: Sink, access_log: &str) -> Self {
        let app = Origin::new(|request| async move {
            if request.uri().path() == "/a/slow" {
                // The duration that the log has.
                sleep(Duration::from_millis(150)).await;
            }
            let mut response = Response::new(full("done"));
            let headers = response.headers_mut();
            headers.insert("x-cache", HeaderValue::from_static("hit"));
            response
        });
        let (app, collector) = (app.await, Collector::start().await);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("access.log");
        let objects = objects(sink, access_log, collector.origin.address, app.address);
        let scene = Scene::with(&objects, |settings| {
            settings.access_log.target = AccessLogTarget::File(file);
            settings.access_log.filter = AccessLogFilter::ERRORS;
        });
        Self {
            scene,
            collector,
            folder,
            sink,
            lines: Vec::new(),
            app,
        }
    }

    /// Returns the new lines up to the one of this path. Those of a connection are in the order of its requests.
    async fn until(&mut self, path: &str) -> Vec<Value> {
        let read = async {
            while !self.lines.iter().any(|line| line["path"] == path) {
                match self.sink {
                    Sink::Process => {
                        // No notification tells the change.
                        sleep(Duration::from_millis(10)).await;
                        let file = self.folder.path().join("access.log");
                        let text = fs::read_to_string(file).unwrap_or_default();
                        let whole = text.lines().map(serde_json::from_str);
                        self.lines = whole.filter_map(Result::ok).collect();
                    }
                    Sink::Collector => {
                        let records = self.collector.records().await;
                        self.lines.extend(records.iter().map(|it| it.line()));
                    }
                }
            }
        };
        let read = timeout(TEST_TIMEOUT, read).await;
        read.unwrap_or_else(|_| panic!("no line of {path}: {:?}", self.lines));
        self.lines.clone()
    }
}

fn paths(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["path"].as_str().unwrap_or_default())
        .collect()
}

#[tokio::test]
async fn requests_below_the_minima_are_not_logged() {
    for sink in SINKS {
        let filter = ", filter: {minStatus: 404, minDuration: 1h}";
        let mut logged = Logged::start(sink, filter).await;
        let mut client = Client::http1(logged.scene.at(80)).await;
        for path in ["/a", "/moved", "/none", "/a/slow", "/end"] {
            client.get("a.com", path).await;
        }
        let lines = logged.until("/end").await;
        assert_eq!(paths(&lines), ["/none", "/end"], "{sink:?}");
    }
}

#[tokio::test]
async fn slow_requests_are_logged_with_any_status() {
    for sink in SINKS {
        let filter = ", filter: {minStatus: 500, minDuration: 100ms}";
        let mut logged = Logged::start(sink, filter).await;
        let mut client = Client::http1(logged.scene.at(80)).await;
        client.get("a.com", "/a/slow").await;
        let lines = logged.until("/a/slow").await;
        let slow = lines.iter().find(|line| line["path"] == "/a/slow");
        assert_eq!(slow.expect("a line")["status"], 200, "{sink:?}");
    }
}

#[tokio::test]
async fn sample_is_of_requests_below_the_minima() {
    for sink in SINKS {
        for (sample, expected) in [
            ("1", &["/a", "/none", "/end"][..]),
            ("0", &["/none", "/end"]),
        ] {
            let filter = format!(
                ", filter: {{minStatus: 404, sample: {{numerator: {sample}, denominator: 1}}}}"
            );
            let mut logged = Logged::start(sink, &filter).await;
            let mut client = Client::http2(logged.scene.at(80)).await;
            for path in ["/a", "/none", "/end"] {
                client.get("a.com", path).await;
            }
            let lines = logged.until("/end").await;
            assert_eq!(paths(&lines), expected, "{sink:?} {sample}");
        }
    }
}

const FIELDS: &str = ", filter: {sample: {numerator: 1, denominator: 1}}, fields: {\
    omit: [client, user_agent, duration_ms, host, error], add: [\
    {name: tenant, type: Header, headerName: X-Tenant}, \
    {name: cache, type: ResponseHeader, headerName: X-Cache}, \
    {name: media, type: ResponseHeader, headerName: Content-Type}, \
    {name: to, type: ResponseHeader, headerName: Location}, \
    {name: region, type: Literal, literalValue: 'eu \"1\"'}]}";

#[tokio::test]
async fn lines_have_the_fields_that_the_policy_adds_and_not_those_that_it_omits() {
    for sink in SINKS {
        let mut logged = Logged::start(sink, FIELDS).await;
        let mut client = Client::http1(logged.scene.at(80)).await;
        let long = "t".repeat(300);
        let tenant = [
            ("x-tenant", "one\u{e9}\",\"status\":1"),
            ("user-agent", "canary"),
        ];
        client.get_with("a.com", "/a", &tenant).await;
        client
            .get_with("a.com", "/moved", &[("x-tenant", &*long)])
            .await;
        client.get("a.com", "/end").await;
        let lines = logged.until("/end").await;
        assert_eq!(paths(&lines), ["/a", "/moved", "/end"]);
        for line in &lines {
            for omitted in ["client", "user_agent", "duration_ms", "host", "error"] {
                assert!(line[omitted].is_null(), "{sink:?} {line}");
            }
            for kept in ["time", "request_id"] {
                assert!(line[kept].is_string(), "{sink:?} {line}");
            }
            assert_eq!(line["region"], "eu \"1\"", "{sink:?} {line}");
        }
        let added = |line: &Value| ["tenant", "cache", "to"].map(|name| line[name].clone());
        let tenant = "one\u{e9}\",\"status\":1";
        assert_eq!(added(&lines[0]), [json!(tenant), json!("hit"), Value::Null]);
        assert_eq!(
            (&lines[0]["status"], &lines[1]["status"]),
            (&json!(200), &json!(302))
        );
        let cut = format!("{}…", "t".repeat(256));
        assert_eq!(
            added(&lines[1]),
            [json!(cut), Value::Null, json!("http://b.com/moved")]
        );
        // A response of Portcullis itself has headers, too.
        assert_eq!(lines[2]["media"], "text/plain; charset=utf-8");
        assert_eq!(added(&lines[2]), [Value::Null, Value::Null, Value::Null]);
    }
}

#[tokio::test]
async fn a_change_of_the_policy_applies_to_later_requests() {
    let mut logged = Logged::start(Sink::Process, ", fields: {omit: [client]}").await;
    let mut client = Client::http1(logged.scene.at(80)).await;
    client.get("a.com", "/first").await;
    logged.until("/first").await;
    let (collector, app) = (logged.collector.origin.address, logged.app.address);
    let objects = objects(Sink::Process, ", filter: {minStatus: 500}", collector, app);
    logged.scene.replace(&objects).await;
    client.get("a.com", "/second").await;
    let objects = self::objects(Sink::Process, "", collector, app);
    logged.scene.replace(&objects).await;
    client.get("a.com", "/third").await;
    let lines = logged.until("/third").await;
    assert_eq!(paths(&lines), ["/first", "/third"]);
    assert!(lines[0]["client"].is_null() && lines[1]["client"].is_string());
}
