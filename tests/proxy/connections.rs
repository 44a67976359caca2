//! Idle client connections: distribution over workers, parking, and limits.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Client, connect, get, read_all};
use crate::harness::tls;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, to};

async fn scene(origin: &Origin, tune: impl FnOnce(&mut portcullis::settings::Settings)) -> Scene {
    let objects = Objects::http_and_https()
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    Scene::with(&objects, tune)
}

async fn origin() -> Origin {
    Origin::new(|_| async { Response::new(full("done")) }).await
}

/// Open connections by worker, from the metrics.
async fn by_worker(scene: &Scene) -> Vec<i64> {
    let page = get(scene.admin_address(), "admin", "/metrics").await;
    let lines = page.text().lines();
    lines
        .filter_map(|line| line.strip_prefix("portcullis_worker_connections{"))
        .map(|line| line.rsplit_once(' ').expect("a value").1)
        .map(|value| value.parse().expect("a number"))
        .collect()
}

/// Within 10 % of all connections.
fn assert_even(workers: &[i64], all: i64) {
    assert_eq!(workers.iter().sum::<i64>(), all);
    assert_eq!(workers.len(), 2);
    assert!((workers[0] - workers[1]).abs() * 10 <= all, "{workers:?}");
}

#[tokio::test]
async fn spreads_keep_alive_connections_evenly() {
    let origin = origin().await;
    let scene = scene(&origin, |_| {}).await;
    let config = tls::client(&["http/1.1"]);
    let mut clients = Vec::new();
    for index in 0..64 {
        let mut client = match index % 2 {
            0 => Client::http1(scene.at(80)).await,
            _ => Client::tls(scene.at(443), "a.com", &config).await,
        };
        assert_eq!(client.get("a.com", "/").await.text(), "done");
        clients.push(client);
    }
    assert_even(&by_worker(&scene).await, 64);
    // Half of them close, on any worker; new connections restore the balance.
    let mut index = 0;
    clients.retain(|_| {
        index += 1;
        index % 4 < 2
    });
    scene
        .until_stats("half of them are gone", |stats| stats.open == 32)
        .await;
    for _ in 0..32 {
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/").await.text(), "done");
        clients.push(client);
    }
    assert_even(&by_worker(&scene).await, 64);
}

#[tokio::test]
async fn parks_and_resumes_idle_connections() {
    let origin = origin().await;
    let scene = scene(&origin, |settings| {
        settings.limits.idle_buffer_timeout = Duration::from_millis(200)
    })
    .await;
    let config = tls::client(&["http/1.1"]);
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(Client::http1(scene.at(80)).await);
        clients.push(Client::tls(scene.at(443), "a.com", &config).await);
    }
    for round in 1..=2 {
        for client in &mut clients {
            assert_eq!(client.get("a.com", "/").await.text(), "done");
        }
        scene
            .until_stats("all are parked", |stats| stats.parked == 400)
            .await;
        assert_eq!(origin.requests(), 400 * round);
    }
    // A body after parking is read completely.
    for client in &mut clients[..2] {
        assert_eq!(client.post("a.com", "/", "body").await.text(), "done");
    }
    drop(clients);
    scene
        .until_stats("all are gone", |stats| (stats.open, stats.parked) == (0, 0))
        .await;
}

#[tokio::test]
async fn parked_connections_close_after_the_keep_alive_timeout() {
    let origin = origin().await;
    let scene = scene(&origin, |settings| {
        settings.limits.idle_buffer_timeout = Duration::from_millis(100);
        settings.limits.keep_alive_timeout = Duration::from_secs(2);
    })
    .await;
    let mut clients = Vec::from(Client::both(scene.at(80)).await);
    clients.push(Client::tls(scene.at(443), "a.com", &tls::client(&["http/1.1"])).await);
    for client in &mut clients {
        assert_eq!(client.get("a.com", "/").await.text(), "done");
    }
    for client in clients {
        client.ended().await;
    }
}

/// Responds when the gate opens.
async fn gated(gate: &Arc<Semaphore>) -> Origin {
    let gate = gate.clone();
    Origin::new(move |_| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.expect("open").forget();
            Response::new(full("done"))
        }
    })
    .await
}

#[tokio::test]
async fn closes_connections_over_the_limit() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let scene = scene(&origin, |settings| {
        settings.limits.max_connections = Some(4)
    })
    .await;
    let mut busy = JoinSet::new();
    for _ in 0..4 {
        let mut client = Client::http1(scene.at(80)).await;
        busy.spawn(async move { client.get("a.com", "/").await.text().to_owned() });
    }
    origin.until_requests(4).await;
    assert_eq!(read_all(&mut connect(scene.at(80)).await).await, b"");
    gate.add_permits(5);
    while let Some(text) = busy.join_next().await {
        assert_eq!(text.expect("no panic"), "done");
    }
    assert_eq!(get(scene.at(80), "a.com", "/").await.text(), "done");
}

#[tokio::test]
async fn new_connections_replace_idle_ones_at_the_limit() {
    let origin = origin().await;
    let scene = scene(&origin, |settings| {
        settings.limits.max_connections = Some(4)
    })
    .await;
    let config = tls::client(&["http/1.1"]);
    let mut http2 = Client::http2(scene.at(80)).await;
    assert_eq!(http2.get("a.com", "/").await.text(), "done");
    let mut tls = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(tls.get("a.com", "/").await.text(), "done");
    let mut silent = connect(scene.at(80)).await;
    let mut handshaking = connect(scene.at(443)).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/").await.text(), "done");
        clients.push(client);
    }
    http2.ended().await;
    tls.ended().await;
    assert_eq!(read_all(&mut silent).await, b"");
    assert_eq!(read_all(&mut handshaking).await, b"");
}
