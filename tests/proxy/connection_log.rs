//! The access log of connections and sessions that are forwarded as they are: one line for each, when it ends, with the reason.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use portcullis::settings::{AccessLogFilter, AccessLogTarget, Drain, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::access_policy::{access, gateway};
use crate::client::{connect, read_all, read_until, write_text};
use crate::client_policy::clients;
use crate::collector::Collector;
use crate::harness::TEST_TIMEOUT;
use crate::origin::Origin;
use crate::scene::{Objects, Scene};
use crate::tcp_route::{Backend, echo, reset, route, talk, until_counted, until_reset};

/// Port of the TCP listener.
pub(crate) const PORT: u16 = 5432;

/// A data plane whose access log goes to a file.
pub(crate) struct Logged {
    pub(crate) scene: Scene,
    folder: TempDir,
}

impl Logged {
    pub(crate) fn start(objects: &Objects) -> Self {
        Self::with(objects, |_| {})
    }

    pub(crate) fn with(objects: &Objects, tune: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("access.log");
        let scene = Scene::with(objects, |settings| {
            settings.access_log.target = AccessLogTarget::File(file);
            tune(settings);
        });
        Self { scene, folder }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        self.scene.at(port)
    }

    /// Returns the text of the log.
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let whole = text.lines().map(serde_json::from_str);
        whole.filter_map(Result::ok).collect()
    }

    /// Returns the lines once there are this many.
    pub(crate) async fn until(&self, count: usize) -> Vec<Value> {
        let read = async {
            loop {
                let lines = self.lines();
                if lines.len() >= count {
                    return lines;
                }
                // A file has no notification of a change.
                sleep(Duration::from_millis(5)).await;
            }
        };
        let read = timeout(TEST_TIMEOUT, read).await;
        let lines = read.unwrap_or_else(|_| panic!("{count} lines in time: {:?}", self.lines()));
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines
    }

    /// Returns the only line.
    pub(crate) async fn line(&self) -> Value {
        self.until(1).await.remove(0)
    }
}

/// Returns objects with a TCP listener, whose connections go to these backends by weight.
pub(crate) fn tcp(backends: &[(&str, u32)]) -> Objects {
    listening().with(route("TCPRoute", "route", &[], backends).to_string())
}

pub(crate) fn listening() -> Objects {
    Objects::gateway(&[format!("{{name: tcp, port: {PORT}, protocol: TCP}}")])
}

pub(crate) fn to(endpoint: SocketAddr) -> Objects {
    tcp(&[("app", 1)]).service("app", &[endpoint])
}

/// Checks members of a line; null stands for one that is not there.
pub(crate) fn assert_members(line: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("members") {
        assert_eq!(&line[name], value, "{name} of {line:#}");
    }
}

pub(crate) fn ends(lines: &[Value]) -> Vec<&str> {
    let ends = lines.iter().map(|line| line["end"].as_str());
    ends.map(|end| end.expect("an end")).collect()
}

#[tokio::test]
async fn line_of_a_tcp_connection_has_both_sides_and_their_bytes() {
    let mut backend = Backend::start().await;
    let logged = Logged::start(&to(backend.address()));
    let mut client = connect(logged.at(PORT)).await;
    let mut other = backend.accept().await;
    write_text(&mut client, "hello").await;
    client.shutdown().await.expect("half-closed");
    assert_eq!(read_all(&mut other).await, b"hello");
    write_text(&mut other, "bye").await;
    assert!(logged.lines().is_empty(), "the connection is open");
    drop(other);
    assert_eq!(read_all(&mut client).await, b"bye");
    let line = logged.line().await;
    let expected = json!({
        "client": client.local_addr().expect("connected").to_string(),
        "protocol": "TCP", "server_name": null,
        "listener": "Gateway default/gateway listener tcp", "port": PORT,
        "bytes_received": 5, "bytes_sent": 3,
        "route": "TCPRoute default/route", "rule": 0,
        "backend": "Service default/app:80 for TCP", "upstream": backend.address().to_string(),
        "end": "closed by the client", "error": null, "status": null, "request_id": null,
    });
    assert_members(&line, &expected);
    let time = line["time"].as_str().expect("a time");
    assert!(time.len() == 27 && time.ends_with('Z'), "{line:#}");
    assert!(line["duration_ms"].as_f64().is_some_and(|it| it >= 0.0));
}

#[tokio::test]
async fn line_names_the_side_that_closes_or_resets() {
    let mut backend = Backend::start().await;
    let logged = Logged::start(&to(backend.address()));
    let mut count = 0;
    for (backend_ends, resets, end) in [
        (false, false, "closed by the client"),
        (true, false, "closed by the backend"),
        (false, true, "reset by the client"),
        (true, true, "reset by the backend"),
    ] {
        let client = connect(logged.at(PORT)).await;
        let other = backend.accept().await;
        let (mut one, mut two) = match backend_ends {
            true => (other, client),
            false => (client, other),
        };
        write_text(&mut one, "something\n").await;
        read_until(&mut two, "\n").await;
        match resets {
            true => {
                reset(one);
                until_reset(&mut two).await;
            }
            false => {
                one.shutdown().await.expect("half-closed");
                read_all(&mut two).await;
                drop(two);
                read_all(&mut one).await;
            }
        }
        count += 1;
        let line = logged.until(count).await.remove(count - 1);
        let error = resets.then_some(end);
        assert_members(&line, &json!({"end": end, "error": error}));
        let (received, sent) = (&line["bytes_received"], &line["bytes_sent"]);
        let [of_one, of_two] = match backend_ends {
            true => [sent, received],
            false => [received, sent],
        };
        assert_eq!((of_one, of_two), (&json!(10), &json!(0)), "{line:#}");
    }
}

#[tokio::test]
async fn line_of_a_connection_that_reaches_no_backend_has_the_cause() {
    let dead = Origin::dead();
    let app = echo("app").await;
    let denied = json!({"ipRules": {"deny": ["127.0.0.1"]}});
    let target = json!({"kind": "TCPRoute", "name": "route"});
    let proxy_protocol =
        json!({"proxyProtocol": {"mode": "Required", "trustedCIDRs": ["192.0.2.1"]}});
    for (objects, expected) in [
        (
            to(dead),
            json!({"end": "connect failure", "error": "cannot connect to the backend",
                   "upstream": dead.to_string(), "backend": "Service default/app:80 for TCP"}),
        ),
        (
            tcp(&[("app", 1)]).service("app", &[]),
            json!({"end": "no endpoint", "error": "the backend has no ready endpoint", "upstream": null}),
        ),
        (
            tcp(&[("app", 0)]).service("app", &[app.address]),
            json!({"end": "no backend", "error": "no backend", "route": "TCPRoute default/route",
                   "backend": null}),
        ),
        (
            listening(),
            json!({"end": "no route", "error": "no route", "route": null}),
        ),
        (
            to(app.address).with(access("denied", &target, &denied)),
            json!({"end": "refused by a policy", "error": "refused by a policy", "route": null}),
        ),
        (
            to(app.address).with(clients("clients", &gateway(), &proxy_protocol)),
            json!({"end": "no valid PROXY protocol header", "error": "no valid PROXY protocol header"}),
        ),
    ] {
        let logged = Logged::with(&objects, |settings| {
            settings.access_log.filter = AccessLogFilter::ERRORS;
        });
        // The reset may precede the result of the connect.
        let _client = TcpStream::connect(logged.at(PORT)).await;
        let line = logged.line().await;
        assert_members(&line, &expected);
        assert_members(
            &line,
            &json!({"listener": "Gateway default/gateway listener tcp", "bytes_sent": 0}),
        );
    }
}

#[tokio::test]
async fn line_of_a_connection_over_a_limit_names_the_client_of_the_proxy_protocol() {
    let app = echo("app").await;
    let limits = json!({
        "proxyProtocol": {"mode": "Required", "trustedCIDRs": ["127.0.0.1"]},
        "connections": {"max": 1},
    });
    let logged = Logged::start(&to(app.address).with(clients("clients", &gateway(), &limits)));
    let mut first = connect(logged.at(PORT)).await;
    write_text(&mut first, "PROXY TCP4 192.0.2.1 127.0.0.1 4660 80\r\n").await;
    assert_eq!(read_until(&mut first, "\n").await, "app\n");
    let mut second = connect(logged.at(PORT)).await;
    write_text(&mut second, "PROXY TCP4 192.0.2.2 127.0.0.1 4661 80\r\n").await;
    let line = logged.line().await;
    let end = "over a connection limit";
    assert_members(
        &line,
        &json!({"end": end, "error": end, "client": "192.0.2.2:4661"}),
    );
    drop(first);
    let lines = logged.until(2).await;
    let expected = json!({"end": "closed by the client", "client": "192.0.2.1:4660"});
    assert_members(&lines[1], &expected);
}

#[tokio::test]
async fn line_says_that_the_idle_timeout_has_ended_a_connection() {
    let mut backend = Backend::start().await;
    let logged = Logged::with(&to(backend.address()), |settings| {
        settings.limits.tunnel_idle_timeout = Duration::from_secs(1);
    });
    let mut client = connect(logged.at(PORT)).await;
    let mut other = backend.accept().await;
    write_text(&mut client, "hello\n").await;
    read_until(&mut other, "\n").await;
    until_reset(&mut client).await;
    let expected = json!({"end": "idle timeout", "error": "idle timeout", "bytes_received": 6});
    assert_members(&logged.line().await, &expected);
}

#[tokio::test]
async fn line_says_that_the_listener_was_removed() {
    let app = echo("app").await;
    let mut logged = Logged::start(&to(app.address));
    let mut client = connect(logged.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    let other = Objects::gateway(&[format!("{{name: tcp, port: {}, protocol: TCP}}", PORT + 1)]);
    logged.scene.replace(&other).await;
    until_reset(&mut client).await;
    let end = "listener removed";
    let expected = json!({"end": end, "error": end, "bytes_sent": 4, "port": PORT});
    assert_members(&logged.line().await, &expected);
}

#[tokio::test]
async fn drain_that_cuts_a_connection_writes_its_line() {
    let app = echo("app").await;
    let mut logged = Logged::with(&to(app.address), |settings| {
        settings.drain = Drain {
            delay: Duration::ZERO,
            deadline: Duration::from_millis(200),
        };
    });
    let mut client = connect(logged.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    talk(&mut client, "hello").await;
    logged.scene.begin_shutdown().await.expect("ended");
    let expected = json!({"end": "drain", "error": "drain", "bytes_received": 6, "bytes_sent": 10});
    assert_members(&logged.line().await, &expected);
}

#[tokio::test]
async fn errors_only_leaves_out_connections_that_their_sides_close() {
    let app = echo("app").await;
    let logged = Logged::with(&to(app.address), |settings| {
        settings.access_log.filter = AccessLogFilter::ERRORS;
    });
    let connected = async || {
        let mut client = connect(logged.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
        client
    };
    let mut closing = connected().await;
    closing.shutdown().await.expect("half-closed");
    read_all(&mut closing).await;
    until_counted(&logged.scene, "its end", |it| it.open() == 0).await;
    reset(connected().await);
    assert_eq!(ends(&logged.until(1).await), ["reset by the client"]);
}

#[tokio::test]
async fn eviction_is_an_end() {
    let mut backend = Backend::start().await;
    let logged = Logged::with(&to(backend.address()), |settings| {
        settings.workers = 1;
        settings.limits.max_connections = Some(1);
    });
    let mut quiet = connect(logged.at(PORT)).await;
    let _other = backend.accept().await;
    let evicted = async {
        while logged.scene.state().stats.connections.evicted.load(Relaxed) == 0 {
            let _ = TcpStream::connect(logged.at(PORT)).await;
            // The connection is idle after some seconds.
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TEST_TIMEOUT, evicted).await.expect("in time");
    until_reset(&mut quiet).await;
    let find = async {
        loop {
            let lines = logged.lines();
            let evicted = |line: &&Value| line["end"] == "evicted for a new client";
            if let Some(line) = lines.iter().find(evicted) {
                return line.clone();
            }
            // A file has no notification of a change.
            sleep(Duration::from_millis(5)).await;
        }
    };
    let line = timeout(TEST_TIMEOUT, find).await.expect("a line in time");
    let client = quiet.local_addr().expect("a socket").to_string();
    assert_members(
        &line,
        &json!({"client": client, "error": "evicted for a new client"}),
    );
}

/// Returns a policy on the access log of the Gateway.
pub(crate) fn telemetry(access_log: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {{name: logs}}\nspec:\n  \
         targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}}]\n  \
         accessLog: {{{access_log}}}\n  \
         tracing: {{mode: Disabled, provider: {{backendRef: {{name: collector, port: 80}}}}}}"
    )
}

#[tokio::test]
async fn collector_gets_the_lines_of_connections() {
    let (mut collector, app) = (Collector::start().await, echo("app").await);
    let objects = to(app.address)
        .service("collector", &[collector.origin.address])
        .with(telemetry("sink: OTLP"));
    let scene = Scene::with(&objects, |settings| {
        settings.limits.tunnel_idle_timeout = Duration::from_secs(1);
    });
    let mut client = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    until_reset(&mut client).await;
    let record = collector.records().await.remove(0);
    assert_eq!(record.severity, 17, "an error");
    let expected = json!({"end": "idle timeout", "bytes_sent": 4, "protocol": "TCP"});
    assert_members(&record.line(), &expected);
    let mut client = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    client.shutdown().await.expect("half-closed");
    let record = collector.records().await.remove(0);
    assert_eq!(record.severity, 9, "information");
}

#[tokio::test]
async fn policy_selects_connections_and_fields() {
    let app = echo("app").await;
    let log = "filter: {minStatus: 500, minDuration: 1h}, \
               fields: {omit: [client, listener], add: [\
               {name: region, type: Literal, literalValue: eu}, \
               {name: tenant, type: Header, headerName: X-Tenant}]}";
    let objects = to(app.address).with(telemetry(log));
    let logged = Logged::start(&objects);
    let mut client = connect(logged.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    client.shutdown().await.expect("half-closed");
    read_all(&mut client).await;
    until_counted(&logged.scene, "its end", |it| it.open() == 0).await;
    let client = connect(logged.at(PORT)).await;
    reset(client);
    let line = logged.line().await;
    let expected = json!({
        "end": "reset by the client", "client": null, "listener": null, "tenant": null,
        "region": "eu",
    });
    assert_members(&line, &expected);
}
