//! Limits of RateLimitPolicies by what requests cost: bytes of bodies, and numbers in headers of responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use http::{Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::access_policy::{access, before, gateway};
use crate::admin::metric;
use crate::client::{Answer, Client, connect, read_until, write_text};
use crate::credentials::{api_key, keys};
use crate::origin::{Origin, empty, full, stream};
use crate::rate_limit_policy::limits;
use crate::scene::{Objects, Scene, to};
use crate::upgrade::{REQUEST, SWITCH};

/// A limit per hour of what requests cost.
fn of_cost(kind: &str, requests: u64) -> Value {
    let limit = json!({"requests": requests, "per": "Hour"});
    json!({"name": "one", "limit": limit, "cost": {"type": kind}})
}

fn of_header(requests: u64) -> Value {
    let mut rule = of_cost("ResponseHeader", requests);
    rule["cost"]["name"] = json!("X-Cost");
    rule
}

fn policy(rule: &Value) -> String {
    let headers = json!({"headers": "Draft"});
    limits("a", &gateway(), &json!([rule]), Some(headers))
}

/// An origin whose response has as many bytes as the query says.
async fn sized() -> Origin {
    Origin::new(|request| async move {
        let size = request.uri().query().and_then(|it| it.parse().ok());
        Response::new(full("x".repeat(size.unwrap_or(0))))
    })
    .await
}

/// An origin whose response costs what the query says.
async fn costing() -> Origin {
    Origin::new(|request| async move {
        let response = Response::builder();
        let response = match request.uri().query() {
            None => response,
            Some(cost) => response.header("x-cost", cost),
        };
        response.body(empty()).expect("a response")
    })
    .await
}

async fn post(client: &mut Client, size: usize) -> Answer {
    let request = client.request(Method::POST, "a.com", "/");
    let body = full("x".repeat(size));
    client.fetch(request.body(body).expect("a request")).await
}

#[tokio::test]
async fn bytes_of_responses_are_charged_afterwards() {
    let origin = sized().await;
    let rule = of_cost("ResponseBytes", 1_000);
    let scene = Scene::start(&before(&origin, &[policy(&rule)]));
    let mut client = Client::http1(scene.at(80)).await;
    for (path, expected) in [("/", 200), ("/?999", 200), ("/?1800", 200), ("/", 429)] {
        let answer = client.get("a.com", path).await;
        assert_eq!(answer.status, expected, "{path}");
        let policy = "\"one\";q=1000;qu=\"content-bytes\";w=3600";
        assert_eq!(answer.header("ratelimit-policy"), policy);
        assert!(!answer.headers.contains_key("ratelimit"), "{answer:?}");
    }
    let refused = client.get("a.com", "/").await;
    let after: u64 = refused.header("retry-after").parse().expect("seconds");
    assert_eq!(after, 3_600, "no more than an hour, however large the cost");
    assert_eq!(origin.requests(), 3);
}

#[tokio::test]
async fn bytes_of_requests_are_charged_afterwards() {
    let origin = Origin::echo("origin").await;
    let rule = of_cost("RequestBytes", 1_000);
    let scene = Scene::start(&before(&origin, &[policy(&rule)]));
    let mut client = Client::http1(scene.at(80)).await;
    for (size, expected) in [(0, 200), (600, 200), (600, 200), (1, 429), (0, 429)] {
        assert_eq!(post(&mut client, size).await.status, expected, "{size}");
    }
}

#[tokio::test]
async fn costs_in_headers_are_those_of_the_backend() {
    let origin = costing().await;
    let scene = Scene::start(&before(&origin, &[policy(&of_header(10))]));
    let mut client = Client::http1(scene.at(80)).await;
    for (path, expected) in [
        ("/?0", 200),
        ("/?8", 200),
        ("/", 200),
        ("/?none", 200),
        ("/?0", 429),
    ] {
        // What the client says does not count.
        let answer = client.get_with("a.com", path, &[("x-cost", "0")]).await;
        assert_eq!(answer.status, expected, "{path}");
    }
}

#[tokio::test]
async fn responses_of_portcullis_itself_are_charged() {
    let origin = costing().await;
    let objects = [
        keys(),
        access("keys", &gateway(), &api_key()),
        policy(&of_header(2)),
    ];
    let scene = Scene::start(&before(&origin, &objects));
    let mut client = Client::http1(scene.at(80)).await;
    for (key, expected) in [("none", 401), ("none", 401), ("key-of-shop", 429)] {
        let answer = client.get_with("a.com", "/?0", &[("x-api-key", key)]).await;
        assert_eq!(answer.status, expected, "{key}");
    }
}

#[tokio::test]
async fn retries_are_charged_once() {
    let seen = Arc::<AtomicUsize>::default();
    let counted = seen.clone();
    let origin = Origin::new(move |request| {
        let is_first = counted.fetch_add(1, SeqCst).is_multiple_of(2);
        async move {
            request.into_body().collect().await.expect("a body");
            let status = if is_first { 503 } else { 200 };
            let response = Response::builder().status(status).header("x-cost", "4");
            response.body(empty()).expect("a response")
        }
    })
    .await;
    let mut rule = to("origin");
    rule["retry"] = json!({"codes": [503], "attempts": 1, "backoff": "1ms"});
    let mut bytes = of_cost("RequestBytes", 800);
    bytes["name"] = json!("bytes");
    let objects = |limit: &Value| {
        Objects::http()
            .service("origin", &[origin.address])
            .route("route", &[rule.clone()])
            .with(policy(limit))
    };
    let mut scene = Scene::start(&objects(&of_header(8)));
    let mut client = Client::http1(scene.at(80)).await;
    for expected in [200, 200, 429] {
        assert_eq!(post(&mut client, 400).await.status, expected, "by header");
    }
    scene.replace(&objects(&bytes)).await;
    for expected in [200, 200, 429] {
        assert_eq!(post(&mut client, 400).await.status, expected, "by bytes");
    }
    assert_eq!(seen.load(SeqCst), 8);
}

#[tokio::test]
async fn client_that_goes_away_is_charged_for_what_it_got() {
    let origin = Origin::new(|_| async move {
        let (sender, body) = stream();
        tokio::spawn(async move {
            let frame = Frame::data(Bytes::from("x".repeat(2_000)));
            sender.send(frame).await.expect("the proxy reads");
            // Until the proxy closes the connection.
            sender.closed().await;
        });
        Response::new(body)
    })
    .await;
    let rule = of_cost("ResponseBytes", 1_000);
    let scene = Scene::start(&before(&origin, &[policy(&rule)]));
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    read_until(&mut client, "xxx").await;
    drop(client);
    scene.until_stats("closed", |it| it.open == 0).await;
    assert_eq!(
        crate::client::get(scene.at(80), "a.com", "/").await.status,
        429
    );
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn bytes_of_tunnels_are_charged_in_both_directions() {
    for kind in ["RequestBytes", "ResponseBytes"] {
        let origin = Origin::raw(|mut stream| async move {
            read_until(&mut stream, "\r\n\r\n").await;
            write_text(&mut stream, SWITCH).await;
            read_until(&mut stream, "\n").await;
            write_text(&mut stream, format!("{}\n", "y".repeat(2_000))).await;
            crate::client::read_all(&mut stream).await;
        })
        .await;
        let rule = of_cost(kind, 1_000);
        let scene = Scene::start(&before(&origin, &[policy(&rule)]));
        let mut client = connect(scene.at(80)).await;
        write_text(&mut client, REQUEST).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        write_text(&mut client, format!("{}\n", "x".repeat(2_000))).await;
        read_until(&mut client, "y\n").await;
        drop(client);
        scene.until_stats("closed", |it| it.open == 0).await;
        let answer = crate::client::get(scene.at(80), "a.com", "/").await;
        assert_eq!(answer.status, 429, "{kind}");
    }
}

#[tokio::test]
async fn audit_charges_and_refuses_nothing() {
    let origin = sized().await;
    let mut rule = of_cost("ResponseBytes", 1_000);
    rule["mode"] = json!("Audit");
    let scene = Scene::start(&before(&origin, &[policy(&rule)]));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..3 {
        assert_eq!(client.get("a.com", "/?1500").await.status, 200);
    }
    let labels = r#"{namespace="default",policy="a",limit="one",mode="Audit"}"#;
    let exceeded = metric(&scene, &format!("limit_exceeded_total{labels}")).await;
    assert_eq!(exceeded, 2.0);
}
