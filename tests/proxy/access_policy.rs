//! AccessPolicies: which addresses may send requests, connections and datagrams.

use std::io;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::client::{Client, connect, get};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, prefix, to};

/// An AccessPolicy on a target.
pub(crate) fn access(name: &str, target: &Value, spec: &Value) -> String {
    let mut target = target.clone();
    target["group"] = json!("gateway.networking.k8s.io");
    let mut spec = spec.clone();
    spec["targetRefs"] = json!([target]);
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": name}, "spec": spec,
    });
    policy.to_string()
}

pub(crate) fn gateway() -> Value {
    json!({"kind": "Gateway", "name": "gateway"})
}

pub(crate) fn of_route() -> Value {
    json!({"kind": "HTTPRoute", "name": "route"})
}

/// The lists of a spec.
pub(crate) fn ip_rules(allow: &[&str], deny: &[&str]) -> Value {
    let mut rules = json!({});
    if !allow.is_empty() {
        rules["allow"] = json!(allow);
    }
    if !deny.is_empty() {
        rules["deny"] = json!(deny);
    }
    json!({"ipRules": rules})
}

/// An origin behind a route with a rule `admin`, and these policies.
pub(crate) fn before(origin: &Origin, policies: &[String]) -> Objects {
    let mut admin = prefix("/admin", "origin");
    admin["name"] = json!("admin");
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), admin]);
    policies.iter().cloned().fold(objects, Objects::with)
}

/// Connects from another address of the loopback network.
pub(crate) async fn connect_from(from: [u8; 4], address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(address).await
}

/// Returns the status of a request from an address.
async fn status_from(from: [u8; 4], address: SocketAddr, path: &str) -> u16 {
    let mut client = Client::http1_on(connect_from(from, address).await.expect("connected")).await;
    client.get("a.com", path).await.status
}

const ONE: [u8; 4] = [127, 0, 0, 1];
const TWO: [u8; 4] = [127, 0, 0, 2];

#[tokio::test]
async fn addresses_that_are_not_permitted_get_403() {
    let origin = Origin::echo("origin").await;
    let policy = access(
        "a",
        &gateway(),
        &ip_rules(&["127.0.0.0/30"], &["127.0.0.2"]),
    );
    let scene = Scene::start(&before(&origin, &[policy]));
    let address = scene.at(80);
    assert_eq!(status_from(ONE, address, "/").await, 200);
    assert_eq!(status_from(TWO, address, "/").await, 403, "denied");
    assert_eq!(
        status_from([127, 0, 0, 9], address, "/").await,
        403,
        "not in allow"
    );
    let refused = status_from(TWO, address, "/admin").await;
    assert_eq!(refused, 403, "every rule");
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn rule_route_and_gateway_decide_together() {
    let origin = Origin::echo("origin").await;
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let policies = [
        access("gateway", &gateway(), &ip_rules(&[], &["127.0.0.3"])),
        access("route", &of_route(), &ip_rules(&["127.0.0.0/8"], &[])),
        access("rule", &admin, &ip_rules(&["127.0.0.1"], &[])),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    let address = scene.at(80);
    assert_eq!(status_from(TWO, address, "/").await, 200);
    assert_eq!(status_from(TWO, address, "/admin").await, 403);
    assert_eq!(status_from(ONE, address, "/admin").await, 200);
    let denied_above = status_from([127, 0, 0, 3], address, "/").await;
    assert_eq!(denied_above, 403, "deny of the Gateway counts");
}

#[tokio::test]
async fn route_cannot_escape_overrides_of_its_gateway() {
    let origin = Origin::echo("origin").await;
    let mut locked = ip_rules(&["127.0.0.2"], &[]);
    locked["strategy"] = json!("Overrides");
    let policies = [
        access("gateway", &gateway(), &locked),
        access("route", &of_route(), &ip_rules(&["0.0.0.0/0"], &[])),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    assert_eq!(status_from(ONE, scene.at(80), "/").await, 403);
    assert_eq!(status_from(TWO, scene.at(80), "/").await, 200);
}

#[tokio::test]
async fn broken_policy_fails_closed_for_its_scope_alone() {
    let origin = Origin::echo("origin").await;
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let broken = access("a", &admin, &ip_rules(&["127.0.0.1/99"], &[]));
    let mut scene = Scene::start(&before(&origin, &[broken]));
    let address = scene.at(80);
    assert_eq!(get(address, "a.com", "/admin").await.status, 500);
    assert_eq!(get(address, "a.com", "/").await.status, 200);
    let renamed = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "renamed"});
    let missing = access("a", &renamed, &ip_rules(&["127.0.0.1"], &[]));
    scene.replace(&before(&origin, &[missing])).await;
    assert_eq!(get(address, "a.com", "/").await.status, 500);
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(get(address, "a.com", "/").await.status, 200);
}

#[tokio::test]
async fn policy_applies_to_open_connections() {
    let origin = Origin::echo("origin").await;
    let mut scene = Scene::start(&before(&origin, &[]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let policy = access("a", &gateway(), &ip_rules(&[], &["127.0.0.1"]));
    scene.replace(&before(&origin, &[policy])).await;
    assert_eq!(client.get("a.com", "/").await.status, 403);
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn grpc_calls_get_permission_denied() {
    let origin = Origin::echo("origin").await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(access("a", &gateway(), &ip_rules(&["192.0.2.0/24"], &[])));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client
        .request(Method::POST, "a.com", "/package.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let answer = client
        .fetch(request.body(full("x")).expect("a request"))
        .await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "7"));
}

#[tokio::test]
async fn connections_that_are_not_permitted_are_not_forwarded() {
    let origin = Origin::echo("origin").await;
    let target = json!({"kind": "TCPRoute", "name": "route"});
    let objects = Objects::gateway(&["{name: tcp, port: 5432, protocol: TCP}".to_owned()])
        .service("origin", &[origin.address])
        .with(crate::tcp_route::route("TCPRoute", "route", &[], &[("origin", 1)]).to_string())
        .with(access("a", &target, &ip_rules(&[], &["127.0.0.2"])));
    let scene = Scene::start(&objects);
    let address = scene.at(5432);
    let mut client = Client::http1_on(connect(address).await).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let refused = async {
        let mut refused = connect_from(TWO, address).await?;
        refused.read_u8().await
    };
    // The reset may come while the client still connects.
    let error = refused.await.expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn datagrams_that_are_not_permitted_are_dropped() {
    let backend = crate::udp_route::Echo::start("udp").await;
    let target = json!({"kind": "UDPRoute", "name": "route"});
    let objects = Objects::gateway(&["{name: udp, port: 5353, protocol: UDP}".to_owned()])
        .with(crate::udp_route::udp_route(&[("backend", 1)]))
        .with(crate::udp_route::service("backend", &[backend.address]));
    let denied = access("a", &target, &ip_rules(&[], &["127.0.0.1"]));
    let mut scene = Scene::start(&objects);
    let client = crate::udp_route::Client::of(scene.at(5353)).await;
    client.ask("one").await;
    scene.replace(&objects.clone().with(denied)).await;
    client.send(b"refused").await;
    let counted = async {
        let stats = &scene.state().stats.connections;
        // Counters have no change notification.
        while stats.unforwarded.load(Relaxed) == 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(TEST_TIMEOUT, counted).await.expect("in time");
    assert_eq!(backend.peers().len(), 1);
    scene.replace(&objects).await;
    client.ask("two").await;
    assert_eq!(backend.peers().len(), 2);
}

/// Addresses that a trusted proxy has seen count, and those that the client claims do not.
#[tokio::test]
async fn address_behind_a_trusted_proxy_counts() {
    let origin = Origin::echo("origin").await;
    let policy = access("policy", &gateway(), &ip_rules(&["192.0.2.0/24"], &[]));
    let objects = before(&origin, &[policy]);
    for (trusted, claims, expected) in [
        ("127.0.0.0/8", "192.0.2.1", 200),
        ("127.0.0.0/8", "192.0.2.1, 198.51.100.1", 403),
        ("127.0.0.0/8", "198.51.100.1, 192.0.2.1", 200),
        ("127.0.0.0/8", "192.0.2.1, 127.0.0.2", 200),
        ("127.0.0.0/8", "192.0.2.1, unknown", 403),
        ("10.0.0.0/8", "192.0.2.1", 403),
    ] {
        let scene = Scene::with(&objects, |settings| {
            settings.trusted_proxies = vec![trusted.parse().expect("a network")];
        });
        let mut client = Client::http1(scene.at(80)).await;
        let request = client.request(Method::GET, "a.com", "/");
        let request = request.header("x-forwarded-for", claims);
        let answer = client.fetch(request.body(empty()).expect("a request"));
        assert_eq!(answer.await.status, expected, "{trusted}: {claims}");
    }
}
