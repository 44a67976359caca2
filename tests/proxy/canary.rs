//! Secrets of a request are on no page, in no tap and in no log, not even at the level with the most events.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use tokio::io::AsyncReadExt;

use crate::access_policy::access;
use crate::client::{Client, connect, get, read_until, write_text};
use crate::harness::h2::block_on;
use crate::origin::{Origin, full};
use crate::process::{Program, objects};
use crate::scene::prefix;
use serde_json::json;

const CANARY: &str = "canary-7f3a";

const PAGES: [&str; 16] = [
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
    for mut client in [Client::http1(address).await, Client::http2(address).await] {
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

#[test]
fn secrets_of_requests_are_nowhere() {
    block_on(async {
        let origin = Origin::new(|_| async {
            http::Response::builder()
                .header("set-cookie", format!("session={CANARY}"))
                .body(full(CANARY))
                .expect("a response")
        });
        let origin = origin.await;
        let (objects, address) = objects(&origin);
        let mut rule = prefix("/shop", "origin");
        rule["matches"][0]["headers"] = json!([{"name": "x-token", "value": CANARY}]);
        let mut private = prefix("/private", "origin");
        private["name"] = json!("private");
        let objects = objects.route("route", &[rule, private]).with(credentials());
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

        for path in PAGES {
            let page = get(program.admin, "localhost", path).await;
            assert_eq!(page.status, 200, "{path}");
            assert!(!page.text().contains(CANARY), "{path}: {}", page.text());
        }
        program.terminate();
        let lines = std::fs::read_to_string(&access_log).expect("lines");
        assert!(
            lines.contains("/shop") && !lines.contains(CANARY),
            "{lines}"
        );
        let log = program.log();
        assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
        let line = log.lines().find(|line| line.contains(CANARY));
        assert_eq!(line, None);
    });
}
