//! Taps of a running proxy: they show requests while these happen, and no request waits for them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{Client, connect, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix, to};

/// A tap that is open, and what was read of it.
struct Tap {
    stream: TcpStream,
    read: VecDeque<Value>,
}

impl Tap {
    async fn open(admin: SocketAddr, query: &str) -> Self {
        let mut stream = connect(admin).await;
        let head = format!("GET /api/v1/tap?{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        write_text(&mut stream, head).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        // The line that says that it is open.
        read_until(&mut stream, "\n\r\n").await;
        Self {
            stream,
            read: VecDeque::new(),
        }
    }

    /// Returns the next line with a member of this name.
    async fn next(&mut self, member: &str) -> Value {
        let next = async {
            loop {
                while let Some(value) = self.read.pop_front() {
                    if !value[member].is_null() {
                        return value;
                    }
                }
                let chunk = read_until(&mut self.stream, "\n\r\n").await;
                let values = chunk.lines().filter_map(|it| serde_json::from_str(it).ok());
                self.read.extend(values);
            }
        };
        timeout(TEST_TIMEOUT, next).await.expect("in time")
    }
}

async fn status(admin: SocketAddr, query: &str) -> u16 {
    let mut client = Client::http1(admin).await;
    let path = format!("/api/v1/tap?{query}");
    client.get("localhost", &path).await.status
}

#[tokio::test]
async fn shows_requests_that_meet_its_filters() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("empty", &[])
        .route("route", &[prefix("/empty", "empty"), to("echo")]);
    let scene = Scene::start(&objects);
    let admin = scene.admin_address();
    let mut client = Client::http1(scene.at(80)).await;
    client.get("a.com", "/before").await;
    let mut all = Tap::open(admin, "").await;
    let mut failed = Tap::open(admin, "status=5xx&route=default%2Froute").await;
    client.get("a.com", "/shop?token=secret").await;
    client.get("a.com", "/empty").await;

    let mut shown = all.next("method").await;
    let shown = shown.as_object_mut().expect("members");
    for member in ["time", "durationMs"] {
        shown.remove(member).expect("a member");
    }
    let expected = json!({
        "method": "GET", "host": "a.com", "path": "/shop", "status": 200, "route": "HTTPRoute default/route",
        "rule": 1, "backend": "Service default/echo:80", "endpoint": echo.address.to_string(), "reason": null,
    });
    assert_eq!(json!(shown), expected);
    let shown = failed.next("method").await;
    assert_eq!(
        (&shown["path"], &shown["status"]),
        (&json!("/empty"), &json!(503))
    );
    assert_eq!(shown["backend"], "Service default/empty:80");
    assert!(shown["reason"].is_string(), "{shown}");
}

#[tokio::test]
async fn tap_of_one_route_shows_its_requests_alone() {
    let echo = Origin::echo("echo").await;
    let other = Origin::echo("other").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("other", &[other.address])
        .route("other", &[prefix("/other", "other")])
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    let mut tap = Tap::open(scene.admin_address(), "route=default%2Froute&host=a.com").await;
    let mut client = Client::http1(scene.at(80)).await;
    for (host, path) in [
        ("a.com", "/other"),
        ("b.com", "/shop"),
        ("a.com", "/shop?x=y"),
    ] {
        client.get(host, path).await;
    }
    let shown = tap.next("method").await;
    assert_eq!(
        (&shown["host"], &shown["path"], &shown["route"]),
        (
            &json!("a.com"),
            &json!("/shop"),
            &json!("HTTPRoute default/route")
        )
    );
    assert!(shown["time"].is_string(), "{shown}");
}

#[tokio::test]
async fn requests_above_the_rate_are_counted() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::before(&echo);
    let mut tap = Tap::open(scene.admin_address(), "maxRps=1").await;
    let mut client = Client::http1(scene.at(80)).await;
    // All of them within two seconds of the tap, or the machine is too slow for the test.
    for _ in 0..50 {
        client.get("a.com", "/").await;
    }
    tap.next("method").await;
    let counts = tap.next("skipped").await;
    assert!(counts["skipped"].as_u64() > Some(0), "{counts}");
    assert_eq!(counts["dropped"], 0);
}

#[tokio::test]
async fn number_of_taps_is_bounded_and_a_closed_one_makes_room() {
    let scene = Scene::start(&Objects::http());
    let admin = scene.admin_address();
    let mut taps = Vec::new();
    for _ in 0..4 {
        taps.push(Tap::open(admin, "").await);
    }
    assert_eq!(status(admin, "").await, 429);
    // The client goes without a word.
    taps.pop();
    let room = async {
        loop {
            let mut stream = connect(admin).await;
            let head = "GET /api/v1/tap HTTP/1.1\r\nhost: localhost\r\n\r\n";
            write_text(&mut stream, head).await;
            if read_until(&mut stream, "\r\n\r\n").await.contains(" 200 ") {
                return;
            }
            // No notification tells the change.
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(TEST_TIMEOUT, room).await.is_ok());
}

#[tokio::test]
async fn no_request_waits_for_a_tap_that_is_not_read() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::before(&echo);
    let mut tap = Tap::open(scene.admin_address(), "maxRps=1000").await;
    let mut client = Client::http1(scene.at(80)).await;
    let path = format!("/{}", "a".repeat(2000));
    for _ in 0..2000 {
        assert_eq!(client.get("a.com", &path).await.status, 200);
    }
    // It goes on where it was left.
    let mut first = vec![0; 4096];
    tap.stream.read_exact(&mut first).await.expect("lines");
    assert!(String::from_utf8_lossy(&first).contains(&path));
}

#[tokio::test]
async fn wrong_filters_and_other_sites_get_no_tap() {
    let scene = Scene::start(&Objects::http());
    let admin = scene.admin_address();
    assert_eq!(status(admin, "status=9xx").await, 400);
    assert_eq!(status(admin, "body=true").await, 400);
    let mut client = Client::http1(admin).await;
    let site = [("sec-fetch-site", "cross-site")];
    let refused = client.get_with("localhost", "/api/v1/tap", &site).await;
    assert_eq!(refused.status, 403);
    assert_eq!(
        crate::client::get(admin, "pod", "/api/v1/tap").await.status,
        421
    );
}

/// The command, killed when a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command while `provoke` sends requests, and returns its first line.
pub(crate) async fn first_line(
    scene: &Scene,
    arguments: &[&str],
    provoke: impl Future<Output = ()>,
) -> String {
    let admin = format!("http://{}", scene.admin_address());
    let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .arg("tap")
        .args(arguments)
        .args(["--admin", &admin])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = Running(child.expect("started"));
    let (out, log) = (running.0.stdout.take(), running.0.stderr.take());
    let line = |from: Box<dyn std::io::Read + Send>| async {
        let read = move || {
            let mut line = String::new();
            BufReader::new(from).read_line(&mut line).map(|_| line)
        };
        tokio::task::spawn_blocking(read).await.expect("read")
    };
    let opened = line(Box::new(log.expect("piped"))).await.expect("a line");
    assert!(
        opened.contains("showing up to 10 requests per second"),
        "{opened}"
    );
    provoke.await;
    line(Box::new(out.expect("piped"))).await.expect("a line")
}

#[tokio::test]
async fn command_prints_a_line_for_each_request() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::before(&echo);
    let mut client = Client::http1(scene.at(80)).await;
    let requests = async {
        client.get("a.com", "/other").await;
        client.get("a.com", "/shop?token=secret").await;
    };
    let shown = first_line(&scene, &["--path", "/shop"], requests).await;
    assert!(
        shown.contains("  GET a.com/shop  200  ")
            && shown.contains("  HTTPRoute default/route rule 0  Service default/origin:80  "),
        "{shown}"
    );
}
