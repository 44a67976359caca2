//! Upstream connections: pooling, load balancing, and HTTP/2 with prior knowledge.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, get, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::yaml;
use crate::origin::{Origin, empty, full, stream};
use crate::scene::{Objects, Scene, to};

const H2C: &str = "kubernetes.io/h2c";

#[tokio::test]
async fn reuses_connections() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::before(&echo);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..200 {
        assert_eq!(
            client.post("a.com", "/", "some bytes").await.received()["received"],
            10
        );
    }
    assert_eq!((echo.requests(), echo.connections()), (200, 1));
    // Each worker has its own pool.
    for _ in 0..40 {
        assert_eq!(get(scene.at(80), "a.com", "/").await.name(), "echo");
    }
    assert!(echo.connections() <= 2, "{}", echo.connections());
}

#[tokio::test]
async fn opens_a_connection_per_concurrent_request() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let origin = Origin::new(move |_| {
        let held = held.clone();
        async move {
            held.acquire().await.expect("open").forget();
            Response::new(full("done"))
        }
    })
    .await;
    let scene = Scene::before(&origin);
    for _ in 0..3 {
        let mut requests = JoinSet::new();
        let done = origin.requests();
        for _ in 0..16 {
            requests.spawn(get(scene.at(80), "a.com", "/"));
        }
        origin.until_requests(done + 16).await;
        gate.add_permits(16);
        while let Some(answer) = requests.join_next().await {
            assert_eq!(answer.expect("no panic").text(), "done");
        }
    }
    // Two workers share the clients almost evenly, so that neither needs many more than its half of
    // 16.
    assert!(
        (16..=24).contains(&origin.connections()),
        "{}",
        origin.connections()
    );
}

#[tokio::test]
async fn selects_the_less_loaded_endpoint() {
    let slow = Origin::new(|_| std::future::pending()).await;
    let fast = Origin::echo("fast").await;
    let objects = Objects::http()
        .service("both", &[slow.address, fast.address])
        .route("route", &[to("both")]);
    let scene = Scene::start(&objects);
    let mut held = JoinSet::new();
    // Either of two idle endpoints may be selected, so the slow one gets a request soon.
    while slow.requests() == 0 {
        held.spawn(get(scene.at(80), "a.com", "/"));
        tokio::select! {
            () = slow.until_requests(1) => {}
            // A request to the fast one counts as its load until the response has ended.
            answer = held.join_next() => assert!(answer.is_some()),
        }
    }
    let before = fast.requests();
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..200 {
        assert_eq!(client.get("a.com", "/").await.name(), "fast");
    }
    assert_eq!((slow.requests(), fast.requests() - before), (1, 200));
}

#[tokio::test]
async fn skips_unreachable_endpoint() {
    let alive = Origin::echo("alive").await;
    let objects = Objects::http()
        .service("some", &[Origin::dead(), alive.address])
        .service("none", &[Origin::dead(), Origin::dead()])
        .route("route", &[to("some")])
        .with(crate::scene::route("dead", &["dead.com"], &[to("none")]));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..50 {
        assert_eq!(
            client.post("a.com", "/", "body").await.received()["received"],
            4
        );
    }
    assert_eq!(client.post("dead.com", "/", "body").await.status, 503);
    assert_eq!(client.get("a.com", "/").await.name(), "alive");
}

#[tokio::test]
async fn replaces_stale_connection() {
    // Every connection closes after its first response without notice.
    let origin = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(
            &mut stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    })
    .await;
    let scene = Scene::before(&origin);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..50 {
        assert_eq!(client.get("a.com", "/").await.text(), "ok");
    }
    assert_eq!(origin.connections(), 50);
}

fn h2c(origin: &Origin) -> Scene {
    let service = yaml::service_of("grpc", &[origin.address], H2C);
    Scene::start(&Objects::http().with(service).route("route", &[to("grpc")]))
}

#[tokio::test]
async fn speaks_http2_to_h2c_backends() {
    let origin = Origin::echo("echo").await;
    let scene = h2c(&origin);
    for mut client in Client::both(scene.at(80)).await {
        for _ in 0..20 {
            let received = client.post("a.com:81", "/x?y=1", "body").await.received();
            assert_eq!(received["version"], "HTTP/2.0");
            assert_eq!(received["authority"], "a.com:81");
            assert_eq!(received["path"], "/x?y=1");
            assert_eq!(received["received"], 4);
            assert_eq!(received["headers"]["host"], serde_json::Value::Null);
        }
    }
    // One connection per worker carries all requests.
    assert!(origin.connections() <= 2, "{}", origin.connections());
}

/// Echoes each message and ends the stream with trailers.
async fn converse(
    request: http::Request<hyper::body::Incoming>,
) -> Response<crate::origin::Payload> {
    assert_eq!(
        request.headers().get("te").map(|te| te.as_bytes()),
        Some(&b"trailers"[..])
    );
    let (sender, body) = stream();
    tokio::spawn(async move {
        let mut messages = request.into_body();
        while let Some(Ok(frame)) = messages.frame().await {
            if let Ok(data) = frame.into_data() {
                sender.send(Frame::data(data)).await.expect("taken");
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().expect("a value"));
        trailers.insert("grpc-message", "fine".parse().expect("a value"));
        sender.send(Frame::trailers(trailers)).await.expect("taken");
    });
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(body).expect("a response")
}

#[tokio::test]
async fn relays_bidirectional_stream_and_trailers() {
    let origin = Origin::new(converse).await;
    let scene = h2c(&origin);
    let mut client = Client::http2(scene.at(80)).await;
    let (sender, body) = stream();
    let request = client
        .request(Method::POST, "a.com", "/service/method")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(body);
    // The response head arrives before the first message of the request.
    let answer = client
        .send(request.expect("a request"))
        .await
        .expect("an answer");
    assert_eq!(answer.headers()["content-type"], "application/grpc");
    let mut answers = answer.into_body();
    for message in ["one", "two", "three"] {
        sender
            .send(Frame::data(Bytes::from(message)))
            .await
            .expect("taken");
        let frame = timeout(TEST_TIMEOUT, answers.frame())
            .await
            .expect("in time");
        let data = frame.expect("a frame").expect("whole").into_data();
        assert_eq!(data.expect("data"), message);
    }
    drop(sender);
    let frame = timeout(TEST_TIMEOUT, answers.frame())
        .await
        .expect("in time");
    let trailers = frame.expect("a frame").expect("whole").into_trailers();
    let trailers = trailers.expect("trailers");
    assert_eq!(
        (&trailers["grpc-status"], &trailers["grpc-message"]),
        (
            &"0".parse().expect("a value"),
            &"fine".parse().expect("a value")
        )
    );
}

#[tokio::test]
async fn relays_trailers_only_response() {
    let origin = Origin::new(|_| async {
        let response = Response::builder().header("content-type", "application/grpc");
        response
            .header("grpc-status", "12")
            .body(empty())
            .expect("a response")
    })
    .await;
    let scene = h2c(&origin);
    let answer = Client::http2(scene.at(80))
        .await
        .post("a.com", "/", "x")
        .await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "12"));
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn relays_http1_trailers_to_http2() {
    let origin = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
        write_text(
            &mut stream,
            format!("{head}4\r\nbody\r\n0\r\nX-Sum: 42\r\n\r\n"),
        )
        .await;
        // Open until the proxy closes the connection.
        crate::client::read_all(&mut stream).await;
    })
    .await;
    let scene = Scene::before(&origin);
    let answer = Client::http2(scene.at(80)).await.get("a.com", "/").await;
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.trailers.expect("trailers")["x-sum"], "42");
}
