//! BackendPolicies: the size of response heads, and streams and flow-control windows of HTTP/2 to endpoints.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::admin::{metric, service_labels};
use crate::backend_limits::{all_are_served, gated, send};
use crate::backend_policy::policy;
use crate::client::{Client, read_until};
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix, to};

const H2C: &str = "kubernetes.io/h2c";

/// Responds to each request with a head of this many bytes.
async fn with_head(bytes: usize) -> Origin {
    Origin::raw(move |mut stream| async move {
        loop {
            read_until(&mut stream, "\r\n\r\n").await;
            let begin = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: ";
            let value = "x".repeat(bytes - begin.len() - 4);
            let response = format!("{begin}{value}\r\n\r\nok");
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

fn small_heads(one: &Origin, other: &Origin) -> Objects {
    Objects::http()
        .service("app", &[one.address])
        .service("other", &[other.address])
        .route("route", &[to("app"), prefix("/other", "other")])
        .with(policy(
            json!({"connection": {"http1": {"maxHeaderBytes": "1Ki"}}}),
        ))
}

#[tokio::test]
async fn larger_response_heads_get_502() {
    for (bytes, status) in [(1024, 200), (1025, 502), (60_000, 502)] {
        let (one, other) = (with_head(bytes).await, with_head(60_000).await);
        let scene = Scene::start(&small_heads(&one, &other));
        let mut client = Client::http1(scene.at(80)).await;
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.status, status, "{bytes}");
        let expected = match status {
            200 => "ok",
            _ => "the response head exceeds maxHeaderBytes of the backend's BackendPolicy",
        };
        assert!(answer.text().contains(expected), "{}", answer.text());
        let labels = service_labels("app");
        let counted = format!("upstream_errors_total{{{labels},reason=\"protocol\"}}");
        let expected = f64::from(u8::from(status == 502));
        assert_eq!(metric(&scene, &counted).await, expected, "{bytes}");
        let neighbour = client.get("a.com", "/other").await;
        assert_eq!(neighbour.status, 200, "the neighbour");
    }
}

/// A backend whose response head never ends.
#[tokio::test]
async fn endless_response_head_is_not_read_further() {
    let (ended, mut end) = mpsc::channel(1);
    let endless = Origin::raw(move |mut stream| {
        let ended = ended.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let mut sent = 0_usize;
            let mut line = b"HTTP/1.1 200 OK\r\n".to_vec();
            while stream.write_all(&line).await.is_ok() {
                sent += line.len();
                line = format!("X: {}\r\n", "x".repeat(1000)).into_bytes();
            }
            let _ = ended.send(sent).await;
        }
    })
    .await;
    let other = with_head(100).await;
    let scene = Scene::start(&small_heads(&endless, &other));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 502);
    let closed = timeout(TEST_TIMEOUT, end.recv()).await;
    assert!(closed.expect("the connection closes").is_some());
}

/// Reads the windows that the proxy announces on a connection of HTTP/2: of streams, and of the connection.
async fn windows(stream: &mut TcpStream) -> Option<(u32, u32)> {
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).ok();
    stream.read_exact(&mut [0; 24]).await.ok()?;
    let mut of_stream = 65_535;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = number(&[0, head[0], head[1], head[2]])? as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.ok()?;
        match head[3] {
            SETTINGS => {
                let mut settings = payload.chunks(6);
                if let Some(one) = settings.find(|one| one[..2] == [0, 4]) {
                    of_stream = number(&one[2..])?;
                }
            }
            WINDOW_UPDATE => return Some((of_stream, 65_535 + number(&payload)?)),
            _ => {}
        }
    }
}

#[tokio::test]
async fn windows_to_endpoints_are_those_of_the_policy() {
    const KIB: u32 = 1024;
    for (http2, expected) in [
        (
            json!({"maxConcurrentStreams": 1000}),
            (256 * KIB, 256 * 1024 * KIB),
        ),
        (
            json!({"initialStreamWindow": "1Mi"}),
            (1024 * KIB, 64 * 1024 * KIB),
        ),
        (
            json!({"initialStreamWindow": "100k", "maxConcurrentStreams": 20}),
            (100_000, 2_000_000),
        ),
        (
            json!({"initialConnectionWindow": "16Mi", "maxConcurrentStreams": 64}),
            (256 * KIB, 16 * 1024 * KIB),
        ),
    ] {
        let (announced, mut found) = mpsc::channel(1);
        let origin = Origin::raw(move |mut stream| {
            let announced = announced.clone();
            async move {
                let _ = announced.try_send(windows(&mut stream).await);
            }
        })
        .await;
        let objects = Objects::http()
            .with(yaml::service_of("app", &[origin.address], H2C))
            .route("route", &[to("app")])
            .with(policy(json!({"connection": {"http2": http2}})));
        let scene = Scene::start(&objects);
        let asked = tokio::spawn({
            let mut client = Client::http1(scene.at(80)).await;
            async move { client.get("a.com", "/").await }
        });
        let found = timeout(TEST_TIMEOUT, found.recv()).await.expect("in time");
        assert_eq!(found.flatten(), Some(expected), "{http2}");
        asked.abort();
    }
}

/// More connections than requests may usually have before they share full ones.
#[tokio::test]
async fn connections_never_have_more_streams_than_the_policy_permits() {
    for (max, requests, connections) in [(4, 12, 3), (1, 80, 80)] {
        let gate = Arc::new(Semaphore::new(0));
        let origin = gated(&gate).await;
        let spec: Value = json!({"connection": {"http2": {"maxConcurrentStreams": max}}});
        let objects = Objects::http()
            .with(yaml::service_of("app", &[origin.address], H2C))
            .route("route", &[to("app")])
            .with(policy(spec));
        let scene = Scene::with(&objects, |settings| settings.workers = 1);
        let sent = send(&scene, requests).await;
        origin.until_requests(requests).await;
        assert_eq!(origin.connections(), connections, "of {max} streams");
        all_are_served(sent, &gate).await;
        // Idle connections are used again.
        let again = send(&scene, max).await;
        all_are_served(again, &gate).await;
        assert_eq!(origin.connections(), connections);
    }
}
