//! ClientPolicies: connections that end at their maximum age, and TCP that asks for clients.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::client::{Client, connect, read_until, whole, write_text};
use crate::client_policy::clients;
use crate::harness::TEST_TIMEOUT;
use crate::lifecycle::{Frames, gated};
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, http, to};

/// Port 80 with a policy, and port 8080 without one.
fn objects(origin: &Origin, spec: &Value) -> Objects {
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    Objects::gateway(&[http("one", 80, ""), http("two", 8080, "")])
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(clients("clients", &one, spec))
}

fn aged() -> Value {
    json!({"timeouts": {"maxConnectionAge": "2s", "idle": "1h"}})
}

/// Sends requests on a connection until a response closes it. Returns the time since `begin`.
async fn until_closed(client: &mut Client, begin: Instant) -> Duration {
    let closed = async {
        while client.get("a.com", "/").await.header("connection") != "close" {}
        begin.elapsed()
    };
    timeout(TEST_TIMEOUT, closed).await.expect("in time")
}

#[tokio::test]
async fn old_http1_connection_ends_with_a_response() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let scene = Scene::start(&objects(&origin, &aged()));
    let begin = Instant::now();
    let mut idle = connect(scene.at(80)).await;
    write_text(&mut idle, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    let first = read_until(&mut idle, "done").await;
    assert!(!first.contains("close"), "{first}");
    let mut neighbour = Client::http1(scene.at(8080)).await;
    assert_eq!(neighbour.get("a.com", "/").await.status, 200);
    let mut held = Client::http1(scene.at(80)).await;
    let request = held.request(Method::GET, "a.com", "/held").body(empty());
    let request = request.expect("a request");
    let held = tokio::spawn(async move { whole(held.send(request).await.expect("sent")).await });
    let mut busy = Client::http1(scene.at(80)).await;
    let age = until_closed(&mut busy, begin).await;
    assert!(age >= Duration::from_millis(1_500), "{age:?}");
    busy.ended().await;
    // Ages differ by a tenth. Now that one more connection has become old, the first ones are.
    until_closed(&mut Client::http1(scene.at(80)).await, begin).await;
    // What is in progress is completed.
    gate.add_permits(1);
    assert_eq!(held.await.expect("no panic").text(), "done");
    // No request is lost that an idle client sends then.
    write_text(&mut idle, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    let last = read_until(&mut idle, "done").await;
    assert!(last.contains("connection: close"), "{last}");
    let answer = neighbour.get("a.com", "/").await;
    assert_eq!(answer.header("connection"), "");
}

#[tokio::test]
async fn old_http2_connection_ends_after_its_streams() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let scene = Scene::start(&objects(&origin, &aged()));
    let mut neighbour = Client::http2(scene.at(8080)).await;
    assert_eq!(neighbour.get("a.com", "/").await.status, 200);
    let begin = Instant::now();
    let mut idle = Frames::open(scene.at(80)).await;
    let mut busy = Client::http2(scene.at(80)).await;
    let request = busy.request(Method::GET, "a.com", "/held").body(empty());
    let request = request.expect("a request");
    let held = tokio::spawn(async move { (busy.send(request).await, busy) });
    origin.until_requests(2).await;
    idle.until_goaway().await;
    let age = begin.elapsed();
    assert!(age >= Duration::from_millis(1_500), "{age:?}");
    // The stream was open when its connection got the GOAWAY, at the latest a tenth later.
    let mut late = Frames::open(scene.at(80)).await;
    late.until_goaway().await;
    gate.add_permits(1);
    let (answer, busy) = held.await.expect("no panic");
    assert_eq!(whole(answer.expect("an answer")).await.text(), "done");
    busy.ended().await;
    assert_eq!(neighbour.get("a.com", "/").await.status, 200);
}

/// Reports whether the kernel has a keepalive timer for the proxy's socket of a connection.
fn has_keepalive(stream: &TcpStream) -> bool {
    let hex = |address: SocketAddr| format!(":{:04X}", address.port());
    let proxy = hex(stream.peer_addr().expect("an address"));
    let client = hex(stream.local_addr().expect("an address"));
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let sockets = sockets.map(Result::unwrap_or_default).concat();
    let mut lines = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|it| it.len() > 5 && it[1].ends_with(&proxy) && it[2].ends_with(&client));
    // Proc(5): the active timer, of which 2 is that of keepalive.
    line.expect("the socket")[5].starts_with("02:")
}

#[tokio::test]
async fn tcp_asks_for_clients_of_the_port_of_a_policy() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"connections": {"tcpKeepalive": "1m"}});
    let scene = Scene::start(&objects(&origin, &spec));
    for (port, expected) in [(80, true), (8080, false)] {
        let mut stream = connect(scene.at(port)).await;
        write_text(&mut stream, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
        read_until(&mut stream, "}").await;
        assert_eq!(has_keepalive(&stream), expected, "{port}");
    }
}
