//! Secrets of a request are on no page, in no tap, in no output of a command, in no span and in no log, not even at the level with
//! the most events.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::access_policy::access;
use crate::api::{portcullis_at, stdout};
use crate::client::{Client, connect, get, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::block_on;
use crate::origin::{Origin, empty, full};
use crate::process::{Program, objects};
use crate::scene::{Objects, prefix};
use crate::traces::{ALL, policy};

const CANARY: &str = "canary-7f3a";
/// What a line of the access log has.
const LINE: &str = "\"path\":\"/private\"";

const PAGES: [&str; 17] = [
    "/",
    "/page.js",
    "/config",
    "/metrics",
    "/api/v1/status",
    "/api/v1/ports",
    "/api/v1/routes",
    "/api/v1/backends",
    "/api/v1/certificates",
    "/api/v1/policies",
    "/api/v1/problems",
    "/api/v1/totals",
    "/api/v1/history",
    "/api/v1/limits",
    "/api/v1/conditions",
    "/api/v1/route?name=HTTPRoute%20default/route",
    "/api/v1/log-level",
];

/// A policy on the rule `private` with a password and an API key.
fn credentials() -> String {
    let password = digest(&SHA1_FOR_LEGACY_USE_ONLY, CANARY.as_bytes());
    let password = STANDARD.encode(password.as_ref());
    let secret = |name: &str, key: &str, value: &str| {
        let values = json!({key: value});
        let metadata = json!({"name": name});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values})
    };
    let target = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "private"});
    let spec = json!({
        "basic": {"secretRef": {"name": "users"}},
        "apiKey": {"secretRefs": [{"name": "keys"}], "from": [{"type": "Query", "name": "key"}]},
    });
    let users = secret("users", "auth", &format!("alice:{{SHA}}{password}"));
    let keys = secret("keys", "shop", CANARY);
    [
        users.to_string(),
        keys.to_string(),
        access("credentials", &target, &spec),
    ]
    .join("\n---\n")
}

/// Sends requests with secrets wherever a client can put some, and gets responses with some.
async fn send(address: SocketAddr) {
    let path = format!("/shop?key={CANARY}");
    let bearer = format!("Bearer {CANARY}");
    let cookie = format!("session={CANARY}");
    let headers = [
        ("authorization", &*bearer),
        ("proxy-authorization", &*bearer),
        ("cookie", &*cookie),
        ("x-token", CANARY),
        ("x-request-id", "request-1"),
    ];
    for mut client in Client::both(address).await {
        assert_eq!(client.get_with("a.com", &path, &headers).await.status, 200);
        let body = client.request(Method::POST, "a.com", &path);
        let body = body.body(full(CANARY)).expect("a request");
        assert_eq!(client.fetch(body).await.status, 404);
    }
    let password = format!("Basic {}", STANDARD.encode(format!("alice:{CANARY}")));
    for (authorization, key, status) in [
        (&*password, CANARY, 200),
        (&*password, "other", 401),
        ("Basic YTpi", CANARY, 401),
    ] {
        let mut client = Client::http1(address).await;
        let path = format!("/private?key={key}");
        let headers = [("authorization", authorization)];
        let answer = client.get_with("a.com", &path, &headers).await;
        assert_eq!(answer.status, status);
    }
    let mut stream = connect(address).await;
    let target = format!("http://user:{CANARY}@a.com/shop");
    let head =
        format!("GET {target} HTTP/1.1\r\nhost: user:{CANARY}@a.com\r\nconnection: close\r\n\r\n");
    write_text(&mut stream, head).await;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("a response");
    assert!(response.starts_with(b"HTTP/1.1 4"));
}

/// A collector, with the messages that it gets.
async fn recording() -> (Origin, mpsc::UnboundedReceiver<Bytes>) {
    let (sender, messages) = mpsc::unbounded_channel();
    let collector = Origin::new(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            let body = request.into_body().collect().await.expect("whole");
            // Fails once the test has ended.
            let _ = sender.send(body.to_bytes());
            Response::new(empty())
        }
    });
    (collector.await, messages)
}

/// Objects with secrets whose spans go to a collector, and the lines of the access log to a sink.
fn secret_objects(origin: &Origin, collector: &Origin, sink: &str) -> (Objects, SocketAddr) {
    let (objects, address) = objects(origin);
    let mut rule = prefix("/shop", "origin");
    rule["matches"][0]["headers"] = json!([{"name": "x-token", "value": CANARY}]);
    let mut private = prefix("/private", "origin");
    private["name"] = json!("private");
    let telemetry = format!("{}\n  accessLog: {{sink: {sink}}}\n", policy(ALL));
    let objects = objects
        .service("collector", &[collector.address])
        .route("route", &[rule, private])
        .with(credentials())
        .with(telemetry);
    (objects, address)
}

/// Looks for secrets in what the admin server and the commands on it show.
async fn shows_no_secret(admin: SocketAddr, address: SocketAddr) {
    for path in PAGES {
        let page = get(admin, "localhost", path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.text().contains(CANARY), "{path}: {}", page.text());
    }
    let mut events = connect(admin).await;
    let head = "GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    write_text(&mut events, head).await;
    let event = read_until(&mut events, "\n\n").await;
    assert!(
        event.contains("event: totals") && !event.contains(CANARY),
        "{event}"
    );
    let url = format!("http://a.com:{}/shop", address.port());
    for arguments in [
        &["status"][..],
        &["config", "ports"],
        &["config", "routes"],
        &["config", "backends"],
        &["config", "certificates"],
        &["config", "policies"],
        &["top", "--once"],
        &["explain", &url],
        &["explain", "-o", "json", &url],
    ] {
        let printed = stdout(&portcullis_at(admin, arguments).await);
        assert!(
            !printed.is_empty() && !printed.contains(CANARY),
            "{arguments:?}: {printed}"
        );
    }
}

#[test]
fn secrets_of_requests_are_nowhere() {
    block_on(async {
        are_nowhere("Process").await;
        are_nowhere("OTLP").await;
    });
}

async fn are_nowhere(sink: &str) {
    let origin = Origin::new(|_| async {
        Response::builder()
            .header("set-cookie", format!("session={CANARY}"))
            .body(full(CANARY))
            .expect("a response")
    });
    let (origin, (collector, mut messages)) = (origin.await, recording().await);
    let (objects, address) = secret_objects(&origin, &collector, sink);
    let logs = tempfile::tempdir().expect("a folder");
    let access_log = logs.path().join("access.log");
    let log = access_log.to_str().expect("text");
    let arguments = ["--access-log", log, "--log-level", "trace"];
    let mut program = Program::start(&objects, "", &arguments);
    program.until("/readyz", 200, "ready").await;

    let mut tap = connect(program.admin).await;
    let head = "GET /api/v1/tap?maxRps=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    write_text(&mut tap, head).await;
    read_until(&mut tap, "\n\r\n").await;
    send(address).await;
    let mut shown = String::new();
    while shown.matches("\"method\"").count() < 8 {
        shown += &read_until(&mut tap, "\n\r\n").await;
    }
    assert!(
        shown.contains("/shop") && !shown.contains(CANARY),
        "{shown}"
    );
    let (mut exported, are_records) = (String::new(), sink == "OTLP");
    while !exported.contains("/shop")
        || exported.matches("/private").count() < 3
        || are_records && !exported.contains(LINE)
    {
        let message = timeout(TEST_TIMEOUT, messages.recv()).await;
        let message = message.expect("in time").expect("a message");
        exported += &String::from_utf8_lossy(&message);
    }
    assert!(!exported.contains(CANARY), "{exported}");
    shows_no_secret(program.admin, address).await;

    program.terminate();
    let lines = std::fs::read_to_string(&access_log).expect("lines");
    assert_eq!(lines.contains(LINE), !are_records, "{lines}");
    assert!(!lines.contains(CANARY), "{lines}");
    let log = program.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    let line = log.lines().find(|line| line.contains(CANARY));
    assert_eq!(line, None);
}
