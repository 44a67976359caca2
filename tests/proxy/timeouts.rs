//! Route timeouts: slow exchanges are aborted only if their rule has a timeout.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::client::{Client, get};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, Payload, empty, full, stream};
use crate::scene::{Objects, Scene, prefix};

/// Returns a rule with these timeouts.
fn limited(path: &str, timeouts: serde_json::Value) -> serde_json::Value {
    let mut rule = prefix(path, "origin");
    rule["timeouts"] = timeouts;
    rule
}

#[tokio::test]
async fn timeout_without_response_is_504() {
    let origin = Origin::new(|request| async move {
        if request.uri().path().ends_with("/never") {
            std::future::pending::<()>().await;
        }
        Response::new(full("in time"))
    })
    .await;
    let objects = Objects::http().service("origin", &[origin.address]).route(
        "route",
        &[
            limited("/request", json!({"request": "2s"})),
            limited("/backend", json!({"backendRequest": "2s", "request": "1h"})),
            limited("/zero", json!({"request": "0s"})),
        ],
    );
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for path in ["/request", "/backend"] {
        let begin = Instant::now();
        let answer = client.get("a.com", &format!("{path}/never")).await;
        assert_eq!(answer.status, 504, "{path}");
        assert!(begin.elapsed() >= Duration::from_secs(2), "{path}");
    }
    // The connection stays open, and requests in time succeed.
    for path in ["/request", "/backend", "/zero"] {
        assert_eq!(client.get("a.com", path).await.text(), "in time", "{path}");
    }
}

#[tokio::test]
async fn request_timeout_aborts_endless_response() {
    let origin = Origin::new(|_| async {
        let (sender, body) = stream();
        tokio::spawn(async move {
            let _ = sender.send(Frame::data(Bytes::from("begin"))).await;
            std::future::pending::<()>().await;
            drop(sender);
        });
        Response::new(body)
    })
    .await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[limited("/", json!({"request": "2s"}))]);
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let request = client.request(Method::GET, "a.com", "/").body(empty());
        let answer = client
            .send(request.expect("a request"))
            .await
            .expect("a head");
        assert_eq!(answer.status(), 200);
        let body = timeout(TEST_TIMEOUT, answer.into_body().collect())
            .await
            .expect("cut in time");
        assert!(body.is_err(), "an answer that was cut must not look whole");
    }
}

#[tokio::test]
async fn slow_stream_without_timeout_continues() {
    let (events, next) = mpsc::channel::<&'static str>(1);
    let next = std::sync::Arc::new(Mutex::new(next));
    let origin = Origin::new(move |_| {
        let next = next.clone();
        async move {
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(feed(next))
                .expect("a response")
        }
    })
    .await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[prefix("/", "origin")]);
    // Limits of requests and connections do not apply to the time between events.
    let scene = Scene::with(&objects, |settings| {
        let limits = &mut settings.limits;
        let short = Duration::from_secs(1);
        limits.header_timeout = short;
        limits.body_timeout = short;
        limits.write_timeout = short;
        limits.keep_alive_timeout = short;
        limits.upstream_idle_timeout = short;
    });
    let mut client = Client::http1(scene.at(80)).await;
    let request = client
        .request(Method::GET, "a.com", "/events")
        .body(empty());
    let answer = client
        .send(request.expect("a request"))
        .await
        .expect("a head");
    let mut body = answer.into_body();
    for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        // The pause is the subject of the test.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        events.send(event).await.expect("fed");
        let frame = timeout(TEST_TIMEOUT, body.frame())
            .await
            .expect("in time")
            .expect("a frame")
            .expect("whole");
        assert_eq!(frame.into_data().expect("data"), event);
    }
    drop(events);
    assert!(body.frame().await.is_none());
}

fn feed(next: std::sync::Arc<Mutex<mpsc::Receiver<&'static str>>>) -> Payload {
    let (sender, body) = stream();
    tokio::spawn(async move {
        while let Some(event) = next.lock().await.recv().await {
            let _ = sender.send(Frame::data(Bytes::from(event))).await;
        }
    });
    body
}

#[tokio::test]
async fn timeouts_are_per_rule() {
    let origin = Origin::new(|request| async move {
        // Later than the timeout of the other rule, whose response never comes.
        match request.uri().path() {
            "/long" => tokio::time::sleep(Duration::from_millis(400)).await,
            _ => std::future::pending().await,
        }
        Response::new(full("late"))
    })
    .await;
    let objects = Objects::http().service("origin", &[origin.address]).route(
        "route",
        &[
            limited("/short", json!({"request": "100ms"})),
            prefix("/", "origin"),
        ],
    );
    let scene = Scene::start(&objects);
    assert_eq!(get(scene.at(80), "a.com", "/short").await.status, 504);
    assert_eq!(get(scene.at(80), "a.com", "/long").await.text(), "late");
}
