//! Limits of BackendPolicies: what is beyond gets 503 at once, and other backends do not notice. Their settings of
//! connections.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::admin::{metric, service_labels};
use crate::backend_policy::policy;
use crate::backend_tls::{self, authorities, trust};
use crate::client::{Answer, Client, read_until};
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, prefix, to};
use crate::tls_origin::Authority;

/// Responds to each request when the gate has a permit.
pub(crate) async fn gated(gate: &Arc<Semaphore>) -> Origin {
    let gate = gate.clone();
    Origin::new(move |_| {
        let gate = gate.clone();
        async move {
            let _permit = gate.acquire().await;
            http::Response::new(full("ok"))
        }
    })
    .await
}

fn limited(origins: &[&Origin], limits: &Value) -> Objects {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    Objects::http()
        .service("app", &addresses)
        .route("route", &[to("app")])
        .with(policy(json!({"limits": limits})))
}

/// Sends requests over connections of their own.
pub(crate) async fn send(scene: &Scene, count: usize) -> JoinSet<Answer> {
    let mut sent = JoinSet::new();
    for _ in 0..count {
        let mut client = Client::http1(scene.at(80)).await;
        sent.spawn(async move { client.get("a.com", "/").await });
    }
    sent
}

async fn refused(scene: &Scene) {
    let answer = Client::http1(scene.at(80)).await.get("a.com", "/").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("overloaded"), "{}", answer.text());
}

pub(crate) async fn all_are_served(sent: JoinSet<Answer>, gate: &Semaphore) {
    gate.add_permits(1000);
    for answer in sent.join_all().await {
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_get_503_until_others_end() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let objects = limited(&[&origin], &json!({"maxRequests": 3}));
    let scene = Scene::with(&objects, |settings| settings.workers = 2);
    let sent = send(&scene, 3).await;
    origin.until_requests(3).await;
    for _ in 0..4 {
        refused(&scene).await;
    }
    all_are_served(sent, &gate).await;
    let again = send(&scene, 3).await;
    for answer in again.join_all().await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(origin.requests(), 6);
    let labels = service_labels("app");
    let overloaded = format!("upstream_errors_total{{{labels},reason=\"overloaded\"}}");
    assert_eq!(metric(&scene, &overloaded).await, 4.0);
}

#[tokio::test]
async fn counts_outlive_changes_of_the_policy() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let limits = |requests: u32| limited(&[&origin], &json!({"maxRequests": requests}));
    let mut scene = Scene::start(&limits(1));
    let sent = send(&scene, 1).await;
    origin.until_requests(1).await;
    scene.replace(&limits(2)).await;
    let more = send(&scene, 1).await;
    origin.until_requests(2).await;
    refused(&scene).await;
    all_are_served(sent, &gate).await;
    all_are_served(more, &gate).await;
}

#[tokio::test]
async fn each_endpoint_has_its_limit() {
    let gate = Arc::new(Semaphore::new(0));
    let (one, two) = (gated(&gate).await, gated(&gate).await);
    let limits = json!({"perEndpoint": {"maxRequests": 2}});
    let scene = Scene::with(&limited(&[&one, &two], &limits), |settings| {
        settings.workers = 2
    });
    let sent = send(&scene, 4).await;
    one.until_requests(2).await;
    two.until_requests(2).await;
    refused(&scene).await;
    all_are_served(sent, &gate).await;
    assert_eq!((one.requests(), two.requests()), (2, 2));
}

#[tokio::test]
async fn each_endpoint_has_its_connections() {
    let gate = Arc::new(Semaphore::new(0));
    let (one, two) = (gated(&gate).await, gated(&gate).await);
    let limits = json!({"perEndpoint": {"maxConnections": 2}});
    let scene = Scene::with(&limited(&[&one, &two], &limits), |settings| {
        settings.workers = 2
    });
    let sent = send(&scene, 4).await;
    one.until_requests(2).await;
    two.until_requests(2).await;
    for _ in 0..4 {
        refused(&scene).await;
    }
    all_are_served(sent, &gate).await;
    assert_eq!((one.connections(), two.connections()), (2, 2));
}

fn shared(origin: &Origin) -> Objects {
    let limits = json!({"perEndpoint": {"maxConnections": 1}});
    Objects::http()
        .with(yaml::service_of(
            "app",
            &[origin.address],
            "kubernetes.io/h2c",
        ))
        .route("route", &[to("app")])
        .with(policy(json!({"limits": limits})))
}

#[tokio::test]
async fn requests_share_the_connections_of_an_endpoint() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let scene = Scene::with(&shared(&origin), |settings| settings.workers = 1);
    let sent = send(&scene, 20).await;
    origin.until_requests(20).await;
    all_are_served(sent, &gate).await;
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn idle_http2_connection_of_another_worker_makes_room() {
    let origin = Origin::echo("alive").await;
    let scene = Scene::with(&shared(&origin), |settings| settings.workers = 2);
    // Each client stays at its worker.
    let mut refused = Vec::new();
    for _ in 0..32 {
        let mut client = Client::http1(scene.at(80)).await;
        if client.get("a.com", "/").await.status == 503 {
            refused.push(client);
        }
    }
    let mut client = refused.pop().expect("a client of the other worker");
    let served = async { while client.get("a.com", "/").await.status != 200 {} };
    let served = tokio::time::timeout(TEST_TIMEOUT, served).await;
    served.expect("the connection closes before its idle timeout");
}

#[tokio::test]
async fn connections_beyond_the_limit_get_503() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let objects = limited(&[&origin], &json!({"maxConnections": 2}));
    let scene = Scene::with(&objects, |settings| settings.workers = 1);
    let sent = send(&scene, 2).await;
    origin.until_requests(2).await;
    refused(&scene).await;
    all_are_served(sent, &gate).await;
    // Idle connections are used again.
    let again = send(&scene, 2).await;
    all_are_served(again, &gate).await;
    assert_eq!(origin.connections(), 2);
}

/// A backend that accepts connections and never completes the TLS handshake.
#[tokio::test]
async fn requests_that_wait_for_a_connection_are_limited() {
    let mute = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "never").await;
    })
    .await;
    let authority = Authority::new();
    let tls = backend_tls::policy("app", &trust("app.example.com"), &json!({}));
    let objects = limited(&[&mute], &json!({"maxPending": 2}))
        .with(tls)
        .with(authorities("ca", &authority.pem));
    let scene = Scene::with(&objects, |settings| settings.workers = 1);
    let waiting = send(&scene, 2).await;
    while mute.connections() < 2 {
        tokio::task::yield_now().await;
    }
    refused(&scene).await;
    drop(waiting);
}

#[tokio::test]
async fn limits_of_one_backend_do_not_touch_another() {
    let gate = Arc::new(Semaphore::new(0));
    let (held, other) = (gated(&gate).await, Origin::echo("other").await);
    let objects = Objects::http()
        .service("app", &[held.address])
        .service("other", &[other.address])
        .route("route", &[to("app"), prefix("/other", "other")])
        .with(policy(
            json!({"limits": {"maxRequests": 1, "maxConnections": 1}}),
        ));
    let scene = Scene::start(&objects);
    let sent = send(&scene, 1).await;
    held.until_requests(1).await;
    refused(&scene).await;
    for _ in 0..10 {
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/other").await.name(), "other");
    }
    all_are_served(sent, &gate).await;
}

#[tokio::test]
async fn connection_closes_after_its_requests() {
    let (http1, http2) = ("http", "kubernetes.io/h2c");
    for (max, protocol, connections) in [
        (1, http1, 6),
        (4, http1, 2),
        (100, http1, 1),
        (1, http2, 6),
        (4, http2, 2),
    ] {
        let origin = Origin::echo("alive").await;
        let objects = Objects::http()
            .with(yaml::service_of("app", &[origin.address], protocol))
            .route("route", &[to("app")])
            .with(policy(json!({"connection": {"maxRequests": max}})));
        let scene = Scene::with(&objects, |settings| settings.workers = 1);
        let mut client = Client::http1(scene.at(80)).await;
        for _ in 0..6 {
            assert_eq!(client.get("a.com", "/").await.name(), "alive");
        }
        assert_eq!(origin.connections(), connections);
    }
}

#[tokio::test]
async fn connecting_takes_no_longer_than_the_policy_permits() {
    let mute = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "never").await;
    })
    .await;
    let authority = Authority::new();
    let tls = backend_tls::policy("app", &trust("app.example.com"), &json!({}));
    let objects = Objects::http()
        .service("app", &[mute.address])
        .route("route", &[to("app")])
        .with(policy(
            json!({"connection": {"connectTimeout": "50ms", "keepalive": "10s"}}),
        ))
        .with(tls)
        .with(authorities("ca", &authority.pem));
    let scene = Scene::with(&objects, |settings| {
        settings.limits.connect_timeout = TEST_TIMEOUT * 10;
    });
    let mut client = Client::http1(scene.at(80)).await;
    let answer = tokio::time::timeout(TEST_TIMEOUT, client.get("a.com", "/")).await;
    assert_eq!(answer.expect("in time").status, 504);
}
