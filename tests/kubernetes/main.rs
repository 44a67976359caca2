//! A data plane that watches a cluster: the program, an API server that fails in every way that one can, and what a
//! client of the data plane sees of it.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod api;

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use api::Api;
use tempfile::TempDir;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A data plane, ended with the test.
struct DataPlane {
    program: Child,
    admin: u16,
    port: u16,
    _folder: TempDir,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Ports that were free a moment ago.
fn free_ports() -> (u16, u16) {
    let (one, two) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    (
        one.local_addr().unwrap().port(),
        two.local_addr().unwrap().port(),
    )
}

impl DataPlane {
    /// A data plane of `api`, whose Gateway `edge` is there.
    fn start(api: &Api) -> Self {
        Self::start_with(api, &[])
    }

    fn start_with(api: &Api, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let (admin, port) = free_ports();
        api.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: portcullis}}
spec: {{controllerName: portcullis.dev/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners:
  - {{name: http, port: {port}, protocol: HTTP, allowedRoutes: {{namespaces: {{from: Same}}}}}}
"
        ));
        let program = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args([
                "run",
                "--kubernetes",
                "--workers",
                "1",
                "--access-log",
                "off",
            ])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .args(arguments)
            .env("KUBECONFIG", &kubeconfig)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            program,
            admin,
            port,
            _folder: folder,
        }
    }

    /// Where `host` is redirected to, or the status of another answer; nothing without an answer.
    fn answer(&self, host: &str) -> Option<String> {
        let head = request(self.port, "/", host)?;
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        location
            .or_else(|| head.split(' ').nth(1))
            .map(str::to_owned)
    }

    fn is_ready(&self) -> bool {
        request(self.admin, "/readyz", "localhost")
            .is_some_and(|head| head.starts_with("HTTP/1.1 200"))
    }

    /// When the API server answered last, as the metrics say.
    fn contact(&self) -> Option<String> {
        let metrics = request(self.admin, "/metrics", "localhost")?;
        let mut lines = metrics.lines();
        let line =
            lines.find_map(|line| line.strip_prefix("portcullis_api_server_contact_timestamp "));
        line.map(str::to_owned)
    }

    fn is_alive(&self) -> bool {
        request(self.admin, "/healthz", "localhost")
            .is_some_and(|head| head.starts_with("HTTP/1.1 200"))
    }

    fn wait_for(&self, host: &str, expected: &str) {
        eventually(
            || self.answer(host),
            |answer| answer.as_deref() == Some(expected),
        );
    }
}

fn request(port: u16, path: &str, host: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Looks again and again until what is seen is as wanted.
fn eventually<T: Debug>(look: impl Fn() -> T, wanted: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "still {seen:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A route that redirects `host`.example to `target`.
fn route(host: &str, target: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {host}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}.example]
  rules: [{{filters: [{{type: RequestRedirect, requestRedirect: {{scheme: https, hostname: {target}, statusCode: 302}}}}]}}]
"
    )
}

#[test]
fn what_the_cluster_has_is_served_and_followed() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    assert!(plane.is_ready());
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    api.apply(&route("b", "three"));
    plane.wait_for("b.example", "https://three/");
    api.delete("HTTPRoute", "default", "a");
    plane.wait_for("a.example", "404");
    assert_eq!(plane.answer("b.example").as_deref(), Some("https://three/"));
}

#[test]
fn nothing_is_served_before_every_kind_is_listed() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    api.hang("Secret", true);
    let plane = DataPlane::start(&api);
    eventually(|| plane.is_alive(), |alive| *alive);
    assert!(!plane.is_ready());
    assert_eq!(plane.answer("a.example"), None);
    api.hang("Secret", false);
    plane.wait_for("a.example", "https://one/");
    eventually(|| plane.is_ready(), |ready| *ready);
}

#[test]
fn an_api_server_that_is_away_stops_nothing() {
    let api = Api::start();
    api.offline(true);
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    eventually(|| plane.is_alive(), |alive| *alive);
    assert!(!plane.is_ready());
    api.offline(false);
    plane.wait_for("a.example", "https://one/");
    eventually(|| plane.contact(), Option::is_some);
    api.offline(true);
    api.apply(&route("a", "two"));
    assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
    assert!(plane.is_ready());
    api.offline(false);
    plane.wait_for("a.example", "https://two/");
}

#[test]
fn deletions_that_no_watch_told_of_take_effect() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    api.apply(&route("b", "two"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.delete_unseen("HTTPRoute", "default", "a");
    plane.wait_for("a.example", "404");
    assert_eq!(plane.answer("b.example").as_deref(), Some("https://two/"));
    api.apply(&route("c", "three"));
    plane.wait_for("c.example", "https://three/");
}

#[test]
fn a_kind_that_is_forbidden_keeps_what_it_had_and_stops_no_other() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.fail("Service", 403);
    api.fail("GatewayClass", 503);
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    assert!(plane.is_ready());
}

#[test]
fn an_object_that_cannot_be_read_keeps_its_last_version() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.apply(&route("a", "two").replace("[a.example]", "7"));
    api.apply(&route("b", "three"));
    plane.wait_for("b.example", "https://three/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
    api.apply(&route("a", "four"));
    plane.wait_for("a.example", "https://four/");
}

#[test]
fn a_kind_that_comes_later_is_picked_up() {
    let api = Api::start();
    api.know("HTTPRoute", false);
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "404");
    api.apply(&route("a", "one"));
    api.know("HTTPRoute", true);
    plane.wait_for("a.example", "https://one/");
    api.know("HTTPRoute", false);
    api.fail("HTTPRoute", 404);
    plane.wait_for("a.example", "404");
}

#[test]
fn one_gateway_of_several_can_be_served_alone() {
    let api = Api::start();
    let (other, _) = free_ports();
    api.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: other, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners: [{{name: http, port: {other}, protocol: HTTP}}]
"
    ));
    api.apply(&route("a", "one"));
    let alone = DataPlane::start_with(&api, &["--gateway", "default/edge"]);
    alone.wait_for("a.example", "https://one/");
    assert_eq!(request(other, "/", "a.example"), None);
    drop(alone);
    let all = DataPlane::start(&api);
    all.wait_for("a.example", "https://one/");
    assert!(request(other, "/", "a.example").is_some());
}
