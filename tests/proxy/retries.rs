//! Retries that a rule allows: after which failures, which data a backend receives again, and which
//! response the client gets. Includes the cases of the conformance test HTTPRouteRetry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::admin::{metric, rule_labels};
use crate::client::{Client, read_until, write_text};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, to};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn retrying(service: &str, retry: Value) -> Value {
    let mut rule = to(service);
    rule["retry"] = retry;
    rule
}

fn before(origin: &Origin, retry: Value) -> Scene {
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[retrying("app", retry)]);
    Scene::start(&objects)
}

/// Starts a backend that fails this many requests with a status, then responds 200. The response
/// body reports the request body.
async fn failing(count: usize, status: u16) -> Origin {
    let seen = Arc::<AtomicUsize>::default();
    Origin::new(move |request| {
        let index = seen.fetch_add(1, SeqCst);
        async move {
            let body = request.into_body().collect().await.expect("a body");
            let received = body.to_bytes();
            let status = if index < count { status } else { 200 };
            Response::builder()
                .status(status)
                .body(full(format!("{index}: {}", received.len())))
                .expect("a response")
        }
    })
    .await
}

/// Closes this many connections instead of a response, then responds 200.
async fn closing(count: usize) -> Origin {
    let seen = Arc::<AtomicUsize>::default();
    Origin::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            if seen.fetch_add(1, SeqCst) >= count {
                write_text(&mut stream, OK).await;
                read_until(&mut stream, "\r\n\r\n").await;
            }
        }
    })
    .await
}

/// Starts backends that close every connection instead of a response. Returns them and the number of
/// requests that they have received.
async fn cutting(count: usize) -> (Vec<Origin>, Arc<AtomicUsize>) {
    let seen = Arc::<AtomicUsize>::default();
    let mut origins = Vec::new();
    for _ in 0..count {
        let seen = seen.clone();
        let origin = Origin::raw(move |mut stream| {
            let seen = seen.clone();
            async move {
                read_until(&mut stream, "\r\n\r\n").await;
                seen.fetch_add(1, SeqCst);
            }
        });
        origins.push(origin.await);
    }
    (origins, seen)
}

#[tokio::test]
async fn request_with_a_safe_method_is_sent_as_often_as_the_rule_allows() {
    for (attempts, requests) in [(1, 2), (2, 3)] {
        let (origins, seen) = cutting(4).await;
        let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
        let retry = json!({"attempts": attempts, "backoff": "50ms"});
        let objects = Objects::http()
            .service("app", &addresses)
            .route("route", &[retrying("app", retry)]);
        let scene = Scene::start(&objects);
        let mut client = Client::http1(scene.at(80)).await;
        let begin = Instant::now();
        assert_eq!(client.get("a.com", "/").await.status, 502);
        assert_eq!(seen.load(SeqCst), requests);
        assert!(begin.elapsed() >= Duration::from_millis(50));
        let label = format!("retries_total{{{}}}", rule_labels("0"));
        assert_eq!(metric(&scene, &label).await, f64::from(attempts));
    }
}

/// The first of these attempts is on a connection that has carried a request before.
#[tokio::test]
async fn attempts_of_a_rule_count_those_on_reused_connections() {
    let seen = Arc::<AtomicUsize>::default();
    let requests = seen.clone();
    let origin = Origin::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            if seen.fetch_add(1, SeqCst) == 0 {
                write_text(&mut stream, OK).await;
                read_until(&mut stream, "\r\n\r\n").await;
                seen.fetch_add(1, SeqCst);
            }
        }
    })
    .await;
    let scene = before(&origin, json!({"attempts": 3, "backoff": "1ms"}));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    assert_eq!(client.get("a.com", "/").await.status, 502);
    assert_eq!(requests.load(SeqCst), 1 + 4);
}

#[tokio::test]
async fn retries_add_a_fifth_to_an_outage_at_most() {
    for (method, most) in [(Method::GET, 120), (Method::PUT, 100)] {
        let (origins, seen) = cutting(4).await;
        let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
        let objects = Objects::http()
            .service("app", &addresses)
            .route("route", &[to("app")]);
        let scene = Scene::start(&objects);
        let mut client = Client::http1(scene.at(80)).await;
        let begin = Instant::now();
        for _ in 0..100 {
            let request = client.request(method.clone(), "a.com", "/");
            let answer = client.fetch(request.body(empty()).expect("valid")).await;
            assert_eq!(answer.status, 502);
        }
        // One retry per second is always permitted.
        let most = most + begin.elapsed().as_secs() as usize;
        assert!((100..=most).contains(&seen.load(SeqCst)), "{seen:?}");
    }
}

#[tokio::test]
async fn listed_status_is_retried_until_the_backend_recovers() {
    let origin = failing(2, 500).await;
    let scene = before(
        &origin,
        json!({"codes": [500], "attempts": 3, "backoff": "1ms"}),
    );
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.post("a.com", "/", "body").await;
    assert_eq!((answer.status, answer.text()), (200, "2: 4"));
    // The connections of responses that were read are reused.
    assert_eq!((origin.requests(), origin.connections()), (3, 1));
    let label = format!("retries_total{{{}}}", rule_labels("0"));
    assert_eq!(metric(&scene, &label).await, 2.0);
}

#[tokio::test]
async fn last_response_is_forwarded_after_the_last_attempt() {
    for attempts in [1, 3] {
        let origin = failing(9, 503).await;
        let scene = before(
            &origin,
            json!({"codes": [500, 503], "attempts": attempts, "backoff": "1ms"}),
        );
        let mut client = Client::http2(scene.at(80)).await;
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.text(), format!("{attempts}: 0"));
        assert_eq!(origin.requests(), attempts + 1);
    }
}

#[tokio::test]
async fn other_statuses_are_not_retried() {
    for (retry, status) in [
        (json!({"codes": [500], "attempts": 3}), 503),
        (json!({"attempts": 3}), 500),
    ] {
        let origin = failing(1, status).await;
        let scene = before(&origin, retry);
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/").await.status, status);
        assert_eq!(origin.requests(), 1);
    }
}

#[tokio::test]
async fn body_is_retried_up_to_a_limit() {
    for (length, status, requests) in [(64 * 1024, 200, 2), (64 * 1024 + 1, 500, 1)] {
        let origin = failing(1, 500).await;
        let scene = before(&origin, json!({"codes": [500], "backoff": "1ms"}));
        let mut client = Client::http1(scene.at(80)).await;
        let request = client.request(Method::PUT, "a.com", "/");
        let body = Bytes::from(vec![b'x'; length]);
        let answer = client.fetch(request.body(full(body)).expect("valid")).await;
        assert_eq!((answer.status, origin.requests()), (status, requests));
        assert_eq!(answer.text(), format!("{}: {length}", requests - 1));
    }
}

#[tokio::test]
async fn closed_connection_is_retried_for_idempotent_methods_or_by_code() {
    for (retry, method, status) in [
        (json!({"backoff": "1ms"}), Method::PUT, 200),
        (json!({"backoff": "1ms"}), Method::POST, 502),
        (json!({"codes": [502], "backoff": "1ms"}), Method::POST, 200),
        (json!({"codes": [503], "backoff": "1ms"}), Method::POST, 502),
    ] {
        let origin = closing(1).await;
        let scene = before(&origin, retry.clone());
        let mut client = Client::http1(scene.at(80)).await;
        let request = client.request(method.clone(), "a.com", "/");
        let answer = client.fetch(request.body(full("b")).expect("valid")).await;
        assert_eq!(answer.status, status, "{method} with {retry}");
    }
}

#[tokio::test]
async fn timeout_of_an_attempt_is_retried() {
    let seen = Arc::<AtomicUsize>::default();
    let count = seen.clone();
    let origin = Origin::new(move |_| {
        let index = count.fetch_add(1, SeqCst);
        async move {
            if index < 2 {
                std::future::pending::<()>().await;
            }
            Response::new(full("late"))
        }
    })
    .await;
    let mut rule = retrying("app", json!({"attempts": 2, "backoff": "1ms"}));
    rule["timeouts"] = json!({"backendRequest": "1s"});
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.text(), "late");
    seen.store(0, SeqCst);
    // The request may have had an effect.
    assert_eq!(client.post("a.com", "/", "b").await.status, 504);
    assert_eq!(seen.load(SeqCst), 1);
}

#[tokio::test]
async fn request_timeout_ends_the_wait_before_a_retry() {
    let origin = failing(9, 503).await;
    let mut rule = retrying(
        "app",
        json!({"codes": [503], "attempts": 9, "backoff": "1h"}),
    );
    rule["timeouts"] = json!({"request": "2s"});
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 504);
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn retry_prefers_another_endpoint() {
    let broken = failing(usize::MAX, 503).await;
    let alive = Origin::echo("alive").await;
    let objects = Objects::http()
        .service("app", &[broken.address, alive.address])
        .route(
            "route",
            &[retrying("app", json!({"codes": [503], "backoff": "1ms"}))],
        );
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    while broken.requests() < 10 {
        assert_eq!(client.post("a.com", "/", "b").await.name(), "alive");
    }
}

#[tokio::test]
async fn retries_reach_a_backend_that_starts_late() {
    let address = Origin::dead();
    let objects = Objects::http().service("app", &[address]).route(
        "route",
        &[retrying("app", json!({"attempts": 1000, "backoff": "5ms"}))],
    );
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let request = client.post("a.com", "/", "body");
    let starting = async {
        let label = format!("retries_total{{{}}}", rule_labels("0"));
        while metric(&scene, &label).await < 5.0 {
            tokio::task::yield_now().await;
        }
        let listener = tokio::net::TcpListener::bind(address).await.expect("free");
        let (mut stream, _) = listener.accept().await.expect("a connection");
        read_until(&mut stream, "body").await;
        write_text(&mut stream, OK).await;
        read_until(&mut stream, "\r\n\r\n").await;
    };
    tokio::select! {
        answer = request => assert_eq!(answer.status, StatusCode::OK),
        () = starting => panic!("the connection was closed before the response"),
    }
}

#[tokio::test]
async fn filters_of_a_backend_apply_once() {
    let origin = failing(2, 500).await;
    let mut rule = retrying(
        "app",
        json!({"codes": [500], "attempts": 2, "backoff": "1ms"}),
    );
    let add = json!({"add": [{"name": "X-Add", "value": "once"}]});
    rule["backendRefs"][0]["filters"] =
        json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": add}]);
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.com", "/").await;
    assert_eq!((answer.status, answer.header("x-add")), (200, "once"));
}
