//! Counts of the connections and sessions that routes forward, in `/api/v1/routes` and `top`, whether or not a log has them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::api::{document, portcullis, stdout};
use crate::client::{connect, get, handshake, read_all, read_until, write_text};
use crate::connection_log::{PORT, tcp, to};
use crate::harness::{TEST_TIMEOUT, tls};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, prefix};
use crate::tcp_route::{Backend, echo, reset, route, talk};
use crate::tls_route::{terminated, tls_route};
use crate::udp_route;

/// Returns what a route has forwarded: open, begun and failed, and the bytes of clients and to clients.
fn counts([open, total, failed]: [u64; 3], [received, sent]: [u64; 2]) -> Value {
    json!({
        "open": open, "total": total, "failed": failed, "bytesReceived": received, "bytesSent": sent,
    })
}

/// Waits until the route with the most requests or connections has these counts.
async fn until(scene: &Scene, expected: &Value) {
    let mut last = Value::Null;
    let counted = async {
        loop {
            let routes = document(scene, "routes?sort=requests").await;
            last = routes["routes"][0]["rules"][0]["forwarded"].clone();
            if last == *expected {
                return;
            }
            // Counters have no change notification.
            sleep(Duration::from_millis(5)).await;
        }
    };
    let counted = timeout(TEST_TIMEOUT, counted).await;
    assert!(counted.is_ok(), "{last:#} is not {expected:#}");
}

#[tokio::test]
async fn connections_count_while_they_are_open_and_fail_by_a_reset() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&to(backend.address()));
    let mut client = connect(scene.at(PORT)).await;
    let mut other = backend.accept().await;
    write_text(&mut client, "hello\n").await;
    read_until(&mut other, "\n").await;
    write_text(&mut other, "bye\n").await;
    read_until(&mut client, "\n").await;
    until(&scene, &counts([1, 1, 0], [6, 4])).await;
    client.shutdown().await.expect("half-closed");
    write_text(&mut other, "end").await;
    drop(other);
    assert_eq!(read_all(&mut client).await, b"end");
    until(&scene, &counts([0, 1, 0], [6, 7])).await;
    let client = connect(scene.at(PORT)).await;
    let _other = backend.accept().await;
    reset(client);
    until(&scene, &counts([0, 2, 1], [6, 7])).await;
}

#[tokio::test]
async fn connections_without_a_backend_fail() {
    let app = echo("app").await;
    for objects in [
        to(Origin::dead()),
        tcp(&[("app", 1)]).service("app", &[]),
        tcp(&[("app", 0)]).service("app", &[app.address]),
    ] {
        let scene = Scene::start(&objects);
        // The reset may precede the result of the connect.
        let _client = TcpStream::connect(scene.at(PORT)).await;
        until(&scene, &counts([0, 1, 1], [0, 0])).await;
    }
}

#[tokio::test]
async fn counts_of_a_tls_route_are_those_of_its_plain_bytes_and_survive_a_change() {
    let app = echo("app").await;
    let mut scene = Scene::start(&terminated(app.address));
    let stream = handshake(scene.at(443), "a.example.com", &tls::client(&[])).await;
    let mut stream = stream.expect("a handshake");
    assert_eq!(read_until(&mut stream, "\n").await, "app\n");
    let other = tls_route("other", &["other.example.com"], "app");
    scene.replace(&terminated(app.address).with(other)).await;
    talk(&mut stream, "hello").await;
    until(&scene, &counts([1, 1, 0], [6, 10])).await;
    let listed = document(&scene, "route?name=TLSRoute%20default/app").await;
    assert_eq!(listed["rules"][0]["forwarded"]["total"], 1);
}

#[tokio::test]
async fn sessions_count_with_the_bytes_of_their_datagrams() {
    let backend = udp_route::Echo::start("app ").await;
    let scene = Scene::start(&udp_route::to(&[backend.address]));
    let client = udp_route::Client::of(scene.at(udp_route::PORT)).await;
    assert_eq!(client.ask("hello").await, "app hello");
    assert_eq!(client.ask("bye").await, "app bye");
    until(&scene, &counts([1, 1, 0], [8, 16])).await;
    let scene = Scene::start(&udp_route::to(&[]));
    let client = udp_route::Client::of(scene.at(udp_route::PORT)).await;
    client.send(b"hello").await;
    until(&scene, &counts([0, 0, 1], [0, 0])).await;
}

#[tokio::test]
async fn lists_and_top_have_connections_beside_requests() {
    let (web, app) = (Origin::echo("web").await, echo("app").await);
    let listener = format!("{{name: tcp, port: {PORT}, protocol: TCP}}");
    let objects = Objects::gateway(&[http("http", 80, ""), listener])
        .service("web", &[web.address])
        .service("app", &[app.address])
        .route("web", &[prefix("/", "web")])
        .with(route("TCPRoute", "database", &[], &[("app", 1)]).to_string());
    let scene = Scene::start(&objects);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
        clients.push(client);
    }
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    until(&scene, &counts([2, 2, 0], [0, 8])).await;
    let routes = document(&scene, "routes?sort=requests").await;
    let (first, second) = (&routes["routes"][0], &routes["routes"][1]);
    assert_eq!(
        (&first["kind"], &second["kind"]),
        (&json!("TCPRoute"), &json!("HTTPRoute"))
    );
    assert_eq!(second["rules"][0]["forwarded"], Value::Null);

    let top = stdout(&portcullis(&scene, &["top", "--once"]).await);
    let lines: Vec<Vec<&str>> = top
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 5, "{top}");
    assert_eq!(lines[0][..2], ["ROUTE", "REQUESTS/S"], "{top}");
    assert_eq!(lines[1][..2], ["HTTPRoute", "default/web"], "{top}");
    let header = ["ROUTE", "NEW/S", "FAILED/S", "RECEIVED/S", "SENT/S", "OPEN"];
    assert_eq!(lines[3], header, "{top}");
    let row = [
        "TCPRoute",
        "default/database",
        "0.0",
        "0.0",
        "0",
        "B",
        "0",
        "B",
        "2",
    ];
    assert_eq!(lines[4], row, "{top}");

    let json = stdout(&portcullis(&scene, &["top", "--once", "-o", "json"]).await);
    let rows: Value = serde_json::from_str(&json).expect("JSON");
    let (first, second) = (&rows[0], &rows[1]);
    assert_eq!(first["route"], "HTTPRoute default/web");
    assert!(first["requestsPerSecond"].is_number(), "{json}");
    let expected = json!({
        "route": "TCPRoute default/database", "newPerSecond": 0.0, "failedPerSecond": 0.0,
        "bytesReceivedPerSecond": 0.0, "bytesSentPerSecond": 0.0, "open": 2,
    });
    assert_eq!(second, &expected);
}
