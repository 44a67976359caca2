//! RoutePolicies: request bodies, timeouts, retries and headers where routes do not say it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::access_policy::{access, before, gateway, of_route};
use crate::client::{Client, connect, read_until, write_text};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::{self as peer, block_on};
use crate::origin::{Origin, Payload, empty, full, stream};
use crate::scene::{Objects, Scene, prefix, to};
use crate::websocket_http2::{switch, tunnel};

/// A RoutePolicy on a target.
pub(crate) fn policy(name: &str, target: &Value, spec: &Value) -> String {
    access(name, target, spec).replace("AccessPolicy", "RoutePolicy")
}

fn admin() -> Value {
    json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"})
}

fn max_size(size: &str) -> Value {
    json!({"requestBody": {"maxSize": size}})
}

/// A backend that tells the bytes of each request body, whether or not that is complete.
async fn counting() -> (Origin, mpsc::UnboundedReceiver<usize>) {
    let (tell, told) = mpsc::unbounded_channel();
    let origin = Origin::new(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let (mut body, mut read) = (request.into_body(), 0);
            while let Some(Ok(frame)) = body.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
            }
            let _ = tell.send(read);
            Response::new(full(read.to_string()))
        }
    });
    (origin.await, told)
}

#[tokio::test]
async fn declared_length_over_the_limit_gets_413_before_a_backend_is_asked() {
    let origin = Origin::echo("origin").await;
    let policies = [
        policy("all", &gateway(), &max_size("8")),
        policy("admin", &admin(), &max_size("1Ki")),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    let mut client = connect(scene.at(80)).await;
    write_text(
        &mut client,
        "POST / HTTP/1.1\r\nhost: a.com\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n",
    )
    .await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert_eq!(origin.requests(), 0);
    for mut client in Client::both(scene.at(80)).await {
        assert_eq!(client.post("a.com", "/", "12345678").await.status, 200);
        assert_eq!(
            client.post("a.com", "/admin", "123456789").await.status,
            200
        );
    }
    let mut client = Client::http2(scene.at(80)).await;
    assert_eq!(client.post("a.com", "/", "123456789").await.status, 413);
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

/// Sends a body of unknown length in pieces of 4 bytes, until the response begins.
async fn stream_to(client: &mut Client, path: &str, pieces: usize) -> u16 {
    let (sender, body) = stream();
    let request = client.request(Method::POST, "a.com", path);
    let request = request.body(body).expect("a request");
    let feed = async move {
        for _ in 0..pieces {
            if sender.send(Frame::data(Bytes::from("abcd"))).await.is_err() {
                return;
            }
        }
    };
    let (response, ()) = tokio::join!(client.send(request), feed);
    response.expect("a response").status().as_u16()
}

#[tokio::test]
async fn streamed_body_over_the_limit_gets_413_and_the_backend_no_excess() {
    let (origin, mut told) = counting().await;
    let scene = Scene::start(&before(
        &origin,
        &[policy("a", &gateway(), &max_size("10"))],
    ));
    for mut client in Client::both(scene.at(80)).await {
        assert_eq!(stream_to(&mut client, "/", 3).await, 413);
        let read = timeout(TEST_TIMEOUT, told.recv()).await.expect("in time");
        assert!(read.is_some_and(|read| read <= 8), "{read:?}");
    }
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(stream_to(&mut client, "/", 2).await, 200);
    assert_eq!(told.recv().await, Some(8));
}

#[test]
fn other_streams_of_a_connection_go_on_after_a_body_over_the_limit() {
    block_on(async {
        let (origin, _told) = counting().await;
        let policies = [policy("a", &admin(), &max_size("4"))];
        let scene = Scene::start(&before(&origin, &policies));
        let (sender, connection) = peer::connect(scene.at(80)).await;
        let post = |path: &str| {
            let request = Request::post(format!("http://a.com{path}"));
            request.body(()).expect("a request")
        };
        let open = async |path: &str| {
            let mut sender = sender.clone().ready().await.expect("open");
            sender.send_request(post(path), false).expect("sent")
        };
        let (other, mut other_body) = open("/").await;
        let piece = Bytes::from_static(b"1234567");
        let sent = peer::write(&mut other_body, piece.clone(), false);
        sent.await.expect("taken");
        for _ in 0..20 {
            let (response, mut body) = open("/admin").await;
            // The stream may be reset before all is taken.
            let _ = peer::write(&mut body, piece.clone(), false).await;
            let response = timeout(TEST_TIMEOUT, response).await.expect("in time");
            assert_eq!(response.expect("a response").status(), 413);
        }
        let sent = peer::write(&mut other_body, piece, true);
        sent.await.expect("taken");
        let response = timeout(TEST_TIMEOUT, other).await.expect("in time");
        let heard = response.expect("a response").into_body().data().await;
        assert_eq!(heard.expect("not the end").expect("data"), "14");
        drop(connection);
    });
}

#[tokio::test]
async fn grpc_call_over_the_limit_is_resource_exhausted() {
    let origin = Origin::echo("origin").await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(policy("a", &gateway(), &max_size("2")));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client
        .request(Method::POST, "a.com", "/package.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = request.body(full("123")).expect("a request");
    let answer = client.fetch(request).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "8"));
}

#[test]
fn bytes_of_a_tunnel_are_no_body() {
    block_on(async {
        let origin = Origin::raw(|mut stream| async move {
            switch(&mut stream).await;
            let mut heard = [0; 20];
            stream.read_exact(&mut heard).await.expect("bytes");
            stream.write_all(b"all").await.expect("written");
        });
        let origin = origin.await;
        let objects = Objects::http()
            .service("origin", &[origin.address])
            .route("route", &[prefix("/chat", "origin")])
            .with(policy("a", &gateway(), &max_size("4")));
        let scene = Scene::start(&objects);
        let (sender, connection) = peer::connect(scene.at(80)).await;
        let (body, mut stream) = tunnel(&sender, "/chat").await;
        let sent = peer::write(&mut stream, Bytes::from_static(&[0; 20]), false);
        sent.await.expect("taken");
        assert_eq!(peer::read(body).await.bytes, b"welcomeall");
        drop(connection);
    });
}

#[tokio::test]
async fn timeouts_are_for_rules_that_set_none() {
    let origin = Origin::new(|request: Request<Incoming>| async move {
        // Of a rule without a timeout the response is late; of the others it never comes.
        match request.uri().path() {
            "/without" => tokio::time::sleep(Duration::from_millis(500)).await,
            _ => std::future::pending().await,
        }
        Response::new(full("late"))
    });
    let origin = origin.await;
    let mut without = prefix("/without", "origin");
    without["timeouts"] = json!({"request": "0s"});
    let mut other = prefix("/other", "origin");
    other["timeouts"] = json!({"backendRequest": "10s"});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), without, other]);
    let spec = json!({"timeouts": {"request": "100ms"}});
    let scene = Scene::start(&objects.with(policy("a", &gateway(), &spec)));
    let mut client = Client::http1(scene.at(80)).await;
    for (path, expected) in [("/", 504), ("/without", 200), ("/other", 504)] {
        assert_eq!(client.get("a.com", path).await.status, expected, "{path}");
    }
}

/// A backend whose first responses have a status.
async fn failing(count: usize) -> Origin {
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(count));
    let origin = Origin::new(move |_| {
        let left = left.clone();
        async move {
            let take = |left: usize| left.checked_sub(1);
            let (ordering, mut response) = (
                std::sync::atomic::Ordering::SeqCst,
                Response::new(full("done")),
            );
            if left.fetch_update(ordering, ordering, take).is_ok() {
                *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    });
    origin.await
}

#[tokio::test]
async fn retries_are_for_rules_that_set_none() {
    let spec = json!({"retry": {"codes": [503], "attempts": 2, "backoff": "1ms"}});
    let all = policy("all", &gateway(), &spec);
    let none = policy("none", &of_route(), &json!({"retry": {"attempts": 0}}));
    let mut own = to("origin");
    own["retry"] = json!({"codes": [500]});
    for (rule, policies, expected, requests) in [
        (to("origin"), vec![all.clone()], 200, 3),
        (own, vec![all.clone()], 503, 1),
        (to("origin"), vec![all, none], 503, 1),
    ] {
        let origin = failing(2).await;
        let objects = Objects::http()
            .service("origin", &[origin.address])
            .route("route", &[rule]);
        let objects = policies.into_iter().fold(objects, Objects::with);
        let scene = Scene::start(&objects);
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/").await.status, expected);
        assert_eq!(origin.requests(), requests);
    }
}

#[tokio::test]
async fn filters_of_routes_run_after_header_changes_of_policies() {
    let origin = Origin::new(|request: Request<Incoming>| async move {
        let values = ["x-edge", "x-own"].map(|name| {
            let value = request.headers().get(name);
            value
                .map_or("none", |value| value.to_str().expect("text"))
                .to_owned()
        });
        let mut response: Response<Payload> = Response::new(full(values.join(" ")));
        response
            .headers_mut()
            .insert("server", "origin".parse().expect("a value"));
        response
    });
    let origin = origin.await;
    let filter = |kind: &str, name: &str, value: &str| {
        let modifier = format!("{}{}", kind[..1].to_lowercase(), &kind[1..]);
        json!({"type": kind, modifier: {"set": [{"name": name, "value": value}]}})
    };
    let mut rule = to("origin");
    rule["filters"] = json!([filter("RequestHeaderModifier", "x-own", "route")]);
    rule["backendRefs"][0]["filters"] = json!([filter(
        "ResponseHeaderModifier",
        "x-frame-options",
        "SAMEORIGIN"
    )]);
    let spec = json!({
        "requestHeaders": {"set": [{"name": "x-edge", "value": "web"}, {"name": "x-own", "value": "web"}]},
        "responseHeaders": {
            "set": [{"name": "x-frame-options", "value": "DENY"}, {"name": "x-added", "value": "1"}],
            "remove": ["server"],
        },
    });
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[rule])
        .with(policy("a", &gateway(), &spec));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let fields = [("x-edge", "client"), ("X_Edge", "client")];
    let answer = client.get_with("a.com", "/", &fields).await;
    assert_eq!(answer.text(), "web route");
    assert_eq!(answer.header("x-frame-options"), "SAMEORIGIN");
    assert_eq!(answer.header("x-added"), "1");
    assert!(!answer.headers.contains_key("server"), "{answer:?}");
}

/// The time without a byte in tests, and a far shorter one in which bytes move, also on a busy machine.
const IDLE: (&str, Duration, Duration) = ("3s", Duration::from_secs(3), Duration::from_millis(200));

fn idle() -> String {
    policy(
        "idle",
        &gateway(),
        &json!({"timeouts": {"streamIdle": IDLE.0}}),
    )
}

#[tokio::test]
async fn idle_streams_end_and_others_live() {
    let (tell, mut told) = mpsc::channel(2);
    let origin = Origin::new(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            let (sender, body) = stream();
            tell.send(sender).await.expect("a test");
            Response::new(body)
        }
    })
    .await;
    let scene = Scene::start(&before(&origin, &[idle()]));
    for mut client in Client::both(scene.at(80)).await {
        let begin = Instant::now();
        assert_eq!(client.get("a.com", "/never").await.status, 504);
        // The clock of a worker is coarse.
        assert!(begin.elapsed() >= IDLE.1 / 2);
        let request = client.request(Method::GET, "a.com", "/");
        let request = request.body(empty()).expect("a request");
        let (response, sender) = tokio::join!(client.send(request), told.recv());
        let mut response = response.expect("a response");
        let sender = sender.expect("a sender");
        let begin = Instant::now();
        // Longer than the limit.
        while begin.elapsed() < IDLE.1 + 2 * IDLE.2 {
            let event = Frame::data(Bytes::from("event"));
            sender.send(event).await.expect("a reader");
            let frame = timeout(TEST_TIMEOUT, response.frame()).await;
            frame.expect("in time").expect("a frame").expect("data");
            // The pace of the events is the subject of the test.
            tokio::time::sleep(IDLE.2).await;
        }
        let end = timeout(TEST_TIMEOUT, response.frame()).await;
        assert!(end.expect("in time").expect("a failure").is_err());
    }
}

#[test]
fn idle_tunnels_end_and_others_live() {
    block_on(async {
        let origin = Origin::raw(|mut stream| async move {
            switch(&mut stream).await;
            let mut heard = [0; 4];
            while stream.read_exact(&mut heard).await.is_ok() {
                stream.write_all(&heard).await.expect("written");
            }
        });
        let origin = origin.await;
        let objects = Objects::http()
            .service("origin", &[origin.address])
            .route("route", &[prefix("/chat", "origin")])
            .with(idle());
        let scene = Scene::start(&objects);
        let (sender, connection) = peer::connect(scene.at(80)).await;
        let (body, mut stream) = tunnel(&sender, "/chat").await;
        let begin = Instant::now();
        let mut count = 0;
        // Longer than the limit.
        while begin.elapsed() < IDLE.1 + 2 * IDLE.2 {
            let sent = peer::write(&mut stream, Bytes::from_static(b"ping"), false);
            sent.await.expect("taken");
            count += 1;
            // The pace of the bytes is the subject of the test.
            tokio::time::sleep(IDLE.2).await;
        }
        let read = timeout(TEST_TIMEOUT, peer::read(body))
            .await
            .expect("in time");
        assert_eq!(read.bytes.len(), "welcome".len() + 4 * count);
        drop(connection);
    });
}
