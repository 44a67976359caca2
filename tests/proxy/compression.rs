//! Compression of responses by RoutePolicies.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::access_policy::{before, gateway};
use crate::client::{Answer, Client, connect, read_until, write_text};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, Payload, empty, full, stream};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene, to};

fn compressed(fields: &Value) -> String {
    policy("zip", &gateway(), &json!({"compression": fields}))
}

fn page() -> String {
    "A line of a page that says nothing new.\n".repeat(200)
}

/// An origin whose responses have these headers by path, and the page as their body.
async fn pages(headers: &'static [(&'static str, &'static str, &'static str)]) -> Origin {
    let origin = Origin::new(move |request: Request<Incoming>| async move {
        let path = request.uri().path().to_owned();
        let is_head = request.method() == Method::HEAD;
        let mut response = Response::new(if is_head { empty() } else { full(page()) });
        let of_path = headers.iter().filter(|(it, _, _)| *it == path);
        for (_, name, value) in of_path {
            match *name {
                ":status" => *response.status_mut() = value.parse().expect("a status"),
                name => drop(
                    response
                        .headers_mut()
                        .append(name, HeaderValue::from_static(value)),
                ),
            }
        }
        if is_head {
            let length = page().len();
            response
                .headers_mut()
                .insert("content-length", length.into());
        }
        response
    });
    origin.await
}

fn decoded(answer: &Answer) -> Vec<u8> {
    let mut decoded = Vec::new();
    let body = &answer.body[..];
    match answer.header("content-encoding") {
        "gzip" => drop(
            flate2::read::GzDecoder::new(body)
                .read_to_end(&mut decoded)
                .expect("gzip"),
        ),
        "br" => drop(
            brotli::Decompressor::new(body, 4096)
                .read_to_end(&mut decoded)
                .expect("br"),
        ),
        "zstd" => {
            decoded.reserve(1 << 20);
            zstd_safe::decompress(&mut decoded, body).expect("zstd");
        }
        "" => decoded = body.to_vec(),
        other => panic!("encoding {other}"),
    }
    decoded
}

#[tokio::test]
async fn client_gets_the_encoding_that_it_prefers() {
    let origin = pages(&[
        ("/", "content-type", "text/html; charset=utf-8"),
        ("/", "etag", "\"1\""),
        ("/", "accept-ranges", "bytes"),
    ])
    .await;
    let scene = Scene::start(&before(&origin, &[compressed(&json!({}))]));
    for mut client in Client::both(scene.at(80)).await {
        for (accept, encoding) in [
            ("gzip, br, zstd", "zstd"),
            ("gzip, br", "br"),
            ("br;q=0.5, gzip", "gzip"),
            ("deflate", ""),
        ] {
            let answer = client
                .get_with("a.com", "/", &[("accept-encoding", accept)])
                .await;
            assert_eq!(answer.header("content-encoding"), encoding, "{accept}");
            assert_eq!(answer.header("vary"), "Accept-Encoding");
            assert_eq!(decoded(&answer), page().as_bytes());
            let is_plain = encoding.is_empty();
            assert_eq!(
                answer.header("etag"),
                if is_plain { "\"1\"" } else { "W/\"1\"" }
            );
            assert_eq!(answer.headers.contains_key("accept-ranges"), is_plain);
            assert_eq!(answer.headers.contains_key("content-length"), is_plain);
            assert!(is_plain || answer.body.len() < 500);
        }
    }
}

#[tokio::test]
async fn some_responses_are_left_as_they_are() {
    let origin = pages(&[
        ("/png", "content-type", "image/png"),
        ("/encoded", "content-type", "text/html"),
        ("/encoded", "content-encoding", "identity"),
        ("/fixed", "content-type", "text/html"),
        ("/fixed", "cache-control", "no-transform"),
        ("/part", ":status", "206"),
        ("/part", "content-type", "text/html"),
    ])
    .await;
    let scene = Scene::start(&before(&origin, &[compressed(&json!({}))]));
    let mut client = Client::http1(scene.at(80)).await;
    for path in ["/png", "/encoded", "/fixed", "/part"] {
        let answer = client
            .get_with("a.com", path, &[("accept-encoding", "gzip")])
            .await;
        assert_eq!(answer.body, page(), "{path}");
        // RFC 9110, 15.3.7: the same as of the whole.
        let vary = if path == "/part" {
            "Accept-Encoding"
        } else {
            ""
        };
        assert_eq!(answer.header("vary"), vary, "{path}");
        assert_eq!(answer.header("content-length"), page().len().to_string());
    }
    let own = [
        ("accept-encoding", "gzip"),
        ("cache-control", "no-transform"),
    ];
    assert_eq!(client.get_with("a.com", "/html", &own).await.body, page());
}

#[tokio::test]
async fn response_without_content_has_no_encoding() {
    let origin = pages(&[
        ("/none", ":status", "204"),
        ("/none", "content-type", "text/html"),
    ])
    .await;
    let scene = Scene::start(&before(&origin, &[compressed(&json!({"minSize": "1"}))]));
    let sent = [("accept-encoding", "gzip")];
    for mut client in Client::both(scene.at(80)).await {
        for _ in 0..2 {
            let answer = client.get_with("a.com", "/none", &sent).await;
            assert_eq!((answer.status, answer.body.len()), (204, 0));
            assert_eq!(answer.header("content-encoding"), "");
        }
    }
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_304_the_etag_that_was_asked_for() {
    let origin = pages(&[
        ("/", "content-type", "text/html"),
        ("/", "etag", "\"1\""),
        ("/same", ":status", "304"),
        ("/same", "etag", "\"1\""),
    ])
    .await;
    let scene = Scene::start(&before(
        &origin,
        &[compressed(&json!({"encodings": ["gzip"]}))],
    ));
    for mut client in Client::both(scene.at(80)).await {
        let mut of_method = async |method: Method, path: &str| {
            let request = client.request(method, "a.com", path);
            let request = request
                .header("accept-encoding", "gzip")
                .header("if-none-match", "W/\"1\"");
            client
                .fetch(request.body(empty()).expect("a request"))
                .await
        };
        let get = of_method(Method::GET, "/").await;
        let head = of_method(Method::HEAD, "/").await;
        assert_eq!(head.body, "");
        for (name, expected) in [
            ("content-encoding", "gzip"),
            ("vary", "Accept-Encoding"),
            ("etag", "W/\"1\""),
            ("content-length", ""),
        ] {
            assert_eq!(
                (get.header(name), head.header(name)),
                (expected, expected),
                "{name}"
            );
        }
        let same = of_method(Method::GET, "/same").await;
        assert_eq!((same.status, same.header("etag")), (304, "W/\"1\""));
        assert_eq!(same.header("content-encoding"), "");
        assert_eq!(same.header("vary"), "Accept-Encoding");
    }
}

/// An origin that sends what a test sends, as events.
async fn events() -> (Origin, mpsc::Receiver<mpsc::Sender<Frame<Bytes>>>) {
    let (tell, told) = mpsc::channel(1);
    let origin = Origin::new(move |_| {
        let tell = tell.clone();
        async move {
            let (sender, body) = stream();
            tell.send(sender).await.expect("a test");
            let mut response = Response::new(body);
            for (name, value) in [("content-type", "text/event-stream"), ("trailer", "x-end")] {
                let value = HeaderValue::from_static(value);
                response.headers_mut().insert(name, value);
            }
            response
        }
    });
    (origin.await, told)
}

#[tokio::test]
async fn events_arrive_when_they_are_sent_and_trailers_after_them() {
    let (origin, mut opened) = events().await;
    let fields = json!({"contentTypes": ["text/event-stream"]});
    let scene = Scene::start(&before(&origin, &[compressed(&fields)]));
    for encoding in ["gzip", "br", "zstd"] {
        let mut client = Client::http2(scene.at(80)).await;
        let request = client.request(Method::GET, "a.com", "/");
        let request = request
            .header("accept-encoding", encoding)
            .header("te", "trailers");
        let request = request.body(empty()).expect("a request");
        let (response, sender) = tokio::join!(client.send(request), opened.recv());
        let (mut response, sender) = (response.expect("a response"), sender.expect("a sender"));
        assert_eq!(response.headers()["content-encoding"], encoding);
        let mut body = Vec::new();
        for number in 0..5 {
            let event = format!("data: {number}\n\n");
            sender.send(Frame::data(event.into())).await.expect("sent");
            // The next event is sent when this one has arrived.
            let frame = timeout(TEST_TIMEOUT, response.frame())
                .await
                .expect("in time");
            let frame = frame.expect("a frame").expect("data");
            body.extend_from_slice(frame.data_ref().expect("data"));
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", HeaderValue::from_static("1"));
        sender.send(Frame::trailers(trailers)).await.expect("sent");
        drop(sender);
        let rest = response.collect().await.expect("an end");
        assert_eq!(rest.trailers().expect("trailers")["x-end"], "1");
        body.extend(rest.to_bytes());
        let mut headers = HeaderMap::new();
        headers.insert("content-encoding", encoding.parse().expect("a value"));
        let answer = Answer {
            status: 200,
            headers,
            trailers: None,
            body: body.into(),
        };
        let all = "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n";
        assert_eq!(decoded(&answer), all.as_bytes());
    }
}

/// A body of noise without an end. Tells when it is dropped, and how many frames were taken.
fn endless(dropped: oneshot::Sender<usize>) -> Payload {
    let (sender, body) = stream();
    tokio::spawn(async move {
        let (mut state, mut taken) = (1_u64, 0);
        loop {
            let noise = (0..8_192).flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            });
            if sender.send(Frame::data(noise.collect())).await.is_err() {
                let _ = dropped.send(taken);
                return;
            }
            taken += 1;
        }
    });
    body
}

#[tokio::test]
async fn slow_client_stops_the_backend_and_lost_client_ends_it() {
    let (tell, mut told) = mpsc::channel(1);
    let origin = Origin::new(move |_| {
        let tell = tell.clone();
        async move {
            let (dropped, end) = oneshot::channel();
            tell.send(end).await.expect("a test");
            let mut response = Response::new(endless(dropped));
            let kind = HeaderValue::from_static("text/plain");
            response.headers_mut().insert("content-type", kind);
            response
        }
    })
    .await;
    let scene = Scene::start(&before(&origin, &[compressed(&json!({}))]));
    let mut client = connect(scene.at(80)).await;
    let request = "GET / HTTP/1.1\r\nhost: a.com\r\naccept-encoding: gzip\r\n\r\n";
    write_text(&mut client, request).await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let mut end = told.recv().await.expect("an end");
    // What sockets hold moves on; the rest waits.
    let is_early = timeout(Duration::from_millis(500), &mut end).await.is_ok();
    assert!(!is_early, "the body ended before its client");
    drop(client);
    let taken = timeout(TEST_TIMEOUT, end).await.expect("in time");
    let taken = taken.expect("a number") * 65_536;
    assert!(
        taken < 64 << 20,
        "{taken} bytes wait for a client that does not read"
    );
}

#[tokio::test]
async fn neighbours_are_served_while_a_large_response_is_compressed() {
    let origin = Origin::new(|request: Request<Incoming>| async move {
        let body = if request.uri().path() == "/large" {
            full(Bytes::from(vec![b'a'; 8 << 20]))
        } else {
            full("small")
        };
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static("text/plain");
        response.headers_mut().insert("content-type", kind);
        response
    })
    .await;
    let scene = Scene::start(&before(
        &origin,
        &[compressed(&json!({"encodings": ["gzip"], "level": "Best"}))],
    ));
    let mut large = Client::http2(scene.at(80)).await;
    let mut small = Client::http1(scene.at(80)).await;
    let accept = [("accept-encoding", "gzip")];
    let compressing = large.get_with("a.com", "/large", &accept);
    let mut compressing = std::pin::pin!(compressing);
    let mut served = 0;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut compressing => break answer,
            answer = small.get("a.com", "/") => {
                assert_eq!(answer.body, "small");
                served += 1;
            }
        }
    };
    assert_eq!(answer.header("content-encoding"), "gzip");
    assert!(served > 10, "{served} requests were served meanwhile");
}

#[tokio::test]
async fn grpc_is_not_compressed() {
    let origin = Origin::new(|_| async {
        let mut response = Response::new(full(page()));
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", kind);
        response
    })
    .await;
    let fields = json!({"contentTypes": ["application/*"]});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("grpc", &[], &[to("origin")]))
        .with(compressed(&fields));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client.request(Method::POST, "a.com", "/a.b/C");
    let request = request
        .header("content-type", "application/grpc")
        .header("accept-encoding", "gzip");
    let answer = client
        .fetch(request.body(empty()).expect("a request"))
        .await;
    assert_eq!(
        (answer.header("content-encoding"), answer.header("vary")),
        ("", "")
    );
    assert_eq!(answer.body, page());
}
