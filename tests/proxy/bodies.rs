//! Relaying of bodies: large ones completely, slow ones without buffering, and responses without a
//! body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::client::{Client, connect, read_all, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::tls;
use crate::harness::yaml;
use crate::origin::{Origin, Payload, empty, full, stream};
use crate::scene::{Objects, Scene, prefix};

const LARGE: usize = 64 << 20;
/// A prime, so that lost or duplicated chunks of round sizes are detected.
const PERIOD: usize = 65_521;

/// Returns bytes that depend on their position.
fn pattern() -> Bytes {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..PERIOD).map(|_| next()).collect()
}

/// Returns a body of [`LARGE`] bytes.
fn large() -> Payload {
    let (sender, body) = stream();
    tokio::spawn(async move {
        let pattern = pattern();
        let mut left = LARGE;
        while left > 0 {
            let piece = pattern.slice(..left.min(PERIOD));
            left -= piece.len();
            if sender.send(Frame::data(piece)).await.is_err() {
                return;
            }
        }
    });
    body
}

/// Reads a body and checks it against the pattern; returns its length.
async fn verify(mut body: Incoming) -> usize {
    let (pattern, mut read) = (pattern(), 0);
    while let Some(frame) = timeout(TEST_TIMEOUT, body.frame()).await.expect("in time") {
        let mut data = frame.expect("whole").into_data().expect("data");
        while !data.is_empty() {
            let expected = &pattern[read % PERIOD..];
            let piece = data.split_to(expected.len().min(data.len()));
            assert_eq!(piece, expected[..piece.len()], "at {read}");
            read += piece.len();
        }
    }
    read
}

async fn store_or_serve(request: Request<Incoming>) -> Response<Payload> {
    match *request.method() {
        Method::GET => Response::new(large()),
        _ => Response::new(full(verify(request.into_body()).await.to_string())),
    }
}

#[tokio::test]
async fn relays_large_bodies_completely() {
    let origin = Origin::new(store_or_serve).await;
    let objects = Objects::http_and_https()
        .service("origin", &[origin.address])
        .with(yaml::service_of(
            "h2c",
            &[origin.address],
            "kubernetes.io/h2c",
        ))
        .route(
            "route",
            &[prefix("/http1", "origin"), prefix("/h2c", "h2c")],
        );
    let scene = Scene::start(&objects);
    let secure = Client::tls(scene.at(443), "a.com", &tls::client(&["h2"])).await;
    for (mut client, path) in [
        (Client::http1(scene.at(80)).await, "/http1"),
        (secure, "/http1"),
        (Client::http1(scene.at(80)).await, "/h2c"),
    ] {
        let request = client.request(Method::POST, "a.com", path).body(large());
        let answer = client.fetch(request.expect("a request")).await;
        assert_eq!(answer.text(), LARGE.to_string(), "{path}");
        let request = client.request(Method::GET, "a.com", path).body(empty());
        let answer = client
            .send(request.expect("a request"))
            .await
            .expect("an answer");
        assert_eq!(verify(answer.into_body()).await, LARGE, "{path}");
    }
}

/// Far more than the buffers of the sockets and the proxy can hold.
const HELD: usize = 48 << 20;
/// No progress for this time counts as a stall. It bounds nothing: a stall that is seen too early only makes a test weaker.
const STALL: Duration = Duration::from_millis(700);

#[tokio::test]
async fn slow_backend_applies_backpressure_to_the_client() {
    let origin = Origin::new(|request| async move {
        // Never reads the body.
        std::future::pending::<()>().await;
        drop(request);
        Response::new(empty())
    })
    .await;
    let scene = Scene::before(&origin);
    let mut client = connect(scene.at(80)).await;
    write_text(
        &mut client,
        "POST / HTTP/1.1\r\nHost: a.com\r\nContent-Length: 1000000000\r\n\r\n",
    )
    .await;
    let (piece, mut sent) = (vec![b'x'; 64 * 1024], 0);
    while let Ok(count) = timeout(STALL, client.write(&piece)).await {
        sent += count.expect("written");
        assert!(sent < HELD, "the proxy takes everything");
    }
    assert!(sent > 0);
}

#[tokio::test]
async fn slow_client_applies_backpressure_to_the_backend() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let origin = Origin::raw(move |mut stream| {
        let counted = counted.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            write_text(
                &mut stream,
                "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
            )
            .await;
            let piece = vec![b'x'; 64 * 1024];
            while let Ok(count) = stream.write(&piece).await {
                counted.fetch_add(count, SeqCst);
            }
        }
    })
    .await;
    let scene = Scene::before(&origin);
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    read_until(&mut client, "\r\n\r\n").await;
    let mut before = usize::MAX;
    while before != sent.load(SeqCst) {
        before = sent.load(SeqCst);
        assert!(before < HELD, "the proxy takes everything");
        // A counter has no change notification.
        tokio::time::sleep(STALL).await;
    }
    // Buffered data arrives as soon as it is read.
    let mut buffer = vec![0; 1 << 20];
    let mut read = 0;
    while read <= before {
        let count = timeout(TEST_TIMEOUT, client.read(&mut buffer))
            .await
            .expect("in time");
        read += count.expect("read");
    }
}

#[tokio::test]
async fn relays_chunks_without_buffering() {
    let (pieces, received) = mpsc::channel(1);
    let origin = Origin::new(move |request: Request<Incoming>| {
        let pieces = pieces.clone();
        async move {
            let mut body = request.into_body();
            let (sender, answer) = stream();
            tokio::spawn(async move {
                while let Some(Ok(frame)) = body.frame().await {
                    let data = frame.into_data().expect("data");
                    pieces.send(data.clone()).await.expect("noted");
                    sender.send(Frame::data(data)).await.expect("taken");
                }
            });
            Response::new(answer)
        }
    })
    .await;
    let scene = Scene::before(&origin);
    let mut received = received;
    for mut client in Client::both(scene.at(80)).await {
        let (sender, body) = stream();
        let request = client.request(Method::POST, "a.com", "/").body(body);
        let answer = client
            .send(request.expect("a request"))
            .await
            .expect("a head before the body");
        let mut answer = answer.into_body();
        for piece in ["one", "two", "three"] {
            sender
                .send(Frame::data(Bytes::from(piece)))
                .await
                .expect("taken");
            let arrived = timeout(TEST_TIMEOUT, received.recv())
                .await
                .expect("in time");
            assert_eq!(arrived.expect("a piece"), piece);
            let frame = timeout(TEST_TIMEOUT, answer.frame())
                .await
                .expect("in time");
            let data = frame.expect("a frame").expect("whole").into_data();
            assert_eq!(data.expect("data"), piece);
        }
        drop(sender);
        let rest = timeout(TEST_TIMEOUT, answer.collect())
            .await
            .expect("in time");
        assert!(rest.expect("whole").to_bytes().is_empty());
    }
}

#[tokio::test]
async fn responses_without_a_body_keep_the_connection() {
    let origin = Origin::raw(|mut stream| async move {
        loop {
            let head = read_until(&mut stream, "\r\n\r\n").await;
            let answer = match head.split(' ').nth(1) {
                Some("/204") => "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
                Some("/304") => {
                    "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\n"
                }
                _ if head.starts_with("HEAD") => {
                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kind: head\r\n\r\n"
                }
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            };
            write_text(&mut stream, answer).await;
        }
    })
    .await;
    let scene = Scene::before(&origin);
    for mut client in Client::both(scene.at(80)).await {
        for _ in 0..3 {
            let request = client.request(Method::HEAD, "a.com", "/").body(empty());
            let answer = client.fetch(request.expect("a request")).await;
            assert_eq!((answer.status, answer.header("content-length")), (200, "5"));
            assert_eq!(answer.header("x-kind"), "head");
            assert!(answer.body.is_empty());
            let answer = client.get("a.com", "/204").await;
            assert_eq!((answer.status, answer.body.len()), (204, 0));
            assert_eq!(answer.header("content-length"), "");
            let answer = client.get("a.com", "/304").await;
            assert_eq!((answer.status, answer.header("etag")), (304, "\"x\""));
            assert_eq!(client.get("a.com", "/").await.text(), "hello");
        }
    }
    assert!(origin.connections() <= 2, "{}", origin.connections());
    // A local response to HEAD has no body either.
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, "HEAD /%zz HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    let heard = read_all(&mut client).await;
    let heard = String::from_utf8(heard).expect("text");
    assert!(
        heard.starts_with("HTTP/1.1 400 ") && heard.ends_with("\r\n\r\n"),
        "{heard}"
    );
}
