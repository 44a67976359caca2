//! What a picker makes of the bodies of requests and responses, and what follows them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::server::{Picker, Script};
use super::{H2C, Outcome, clients, model, objects, pool, post, rule, serve};
use crate::client::{Client, connect, read_until, whole, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2 as peer;
use crate::origin::{Origin, empty, full, stream};
use crate::scene::Scene;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn bodies_of_any_size_are_those_that_the_picker_returns() {
    let server = model("a").await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    for (size, piece, streams) in [
        (1, 1, false),
        (2_000, 1, false),
        (61_999, 62_000, false),
        (62_000, 62_000, true),
        (62_001, 62_000, false),
        (MIB + 1, 16_000, true),
        (8 * MIB, 62_000, false),
        (8 * MIB, 62_000, true),
    ] {
        picker.follow(Script {
            piece,
            streams,
            ..Script::choosing(&list)
        });
        let text = "0123456789abcdef".repeat(size.div_ceil(16));
        let text = &text[..size];
        for mut client in clients(&scene).await {
            let outcome = post(&mut client, "/close", full(text.to_owned())).await;
            assert!(
                outcome == Outcome::Whole(200, text.to_owned()),
                "{size} bytes in pieces of {piece}"
            );
        }
    }
}

#[tokio::test]
async fn body_of_another_length_is_framed_by_the_proxy() {
    let server = model("a").await;
    let list = server.address.to_string();
    let picker = Picker::start(Script {
        rewrite: Some(("alias", "the-real-name")),
        headers: vec![
            ("content-length", "1"),
            ("Transfer-Encoding", "identity"),
            ("host", "evil.test"),
            (":path", "/evil"),
            ("connection", "close"),
        ],
        ..Script::choosing(&list)
    })
    .await;
    let scene = serve(&picker, &[server.address]);
    for mut client in clients(&scene).await {
        // Twice, so that bytes that are left over would be a request of their own.
        for _ in 0..2 {
            let response = client.post("a.com", "/close", "model: alias").await;
            assert_eq!(
                (response.status, response.text()),
                (200, "model: the-real-name")
            );
            assert_eq!(response.header("x-length"), "");
            assert_eq!(response.header("x-coding"), "chunked");
            assert_eq!(response.header("x-host"), "a.com");
            assert!(!response.headers.contains_key("content-length"));
        }
    }
    assert_eq!(server.requests(), 4);
}

#[tokio::test]
async fn events_reach_the_client_when_they_are_sent() {
    let (events, mut bodies) = mpsc::unbounded_channel();
    let server = Origin::new(move |request: http::Request<Incoming>| {
        let events = events.clone();
        async move {
            // The request has to be whole before its response begins.
            let _ = request.into_body().collect().await;
            let (sender, body) = stream();
            events.send(sender).expect("the test runs");
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .expect("a response")
        }
    })
    .await;
    let list = server.address.to_string();
    let picker = Picker::start(Script {
        streams: true,
        ..Script::choosing(&list)
    })
    .await;
    let scene = serve(&picker, &[server.address]);
    for mut client in clients(&scene).await {
        let request = client.request(Method::POST, "a.com", "/close");
        let request = request.body(full("prompt")).expect("a request");
        let mut response = client.send(request).await.expect("a head");
        let sender = bodies.recv().await.expect("a request");
        for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
            let sent = sender.send(Frame::data(Bytes::from_static(event.as_bytes())));
            sent.await.expect("a reader");
            assert_next(&mut response, event).await;
        }
        drop(sender);
        assert!(whole(response).await.body.is_empty());
    }
}

/// Reads the next bytes of a body.
async fn assert_next(response: &mut Response<Incoming>, text: &str) {
    let mut got = Vec::new();
    while got.len() < text.len() {
        let frame = timeout(TEST_TIMEOUT, response.body_mut().frame()).await;
        let frame = frame.expect("in time").expect("a frame");
        got.extend_from_slice(frame.expect("no error").data_ref().expect("data"));
    }
    assert_eq!(got, text.as_bytes());
}

#[tokio::test]
async fn call_goes_on_in_both_directions() {
    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let (sender, response) = stream();
        let mut body = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                // An error: the test has ended.
                let _ = sender.send(frame).await;
            }
        });
        Response::new(response)
    })
    .await;
    let picker = Picker::start(Script {
        is_duplex: true,
        ..Script::choosing(&server.address.to_string())
    })
    .await;
    for protocol in ["http", H2C] {
        let mut calls = pool("calls", &[server.address], "epp", "FailClose");
        calls["spec"]["appProtocol"] = protocol.into();
        let objects = objects(&[picker.origin.address]).with(calls.to_string());
        let scene = Scene::start(&objects.route("route", &[rule("/", "calls")]));
        let mut client = Client::http2(scene.at(80)).await;
        let (sender, body) = stream();
        let request = client.request(Method::POST, "a.com", "/");
        let request = request.body(body).expect("a request");
        // Before a byte of the request is sent.
        let mut response = client.send(request).await.expect("a head");
        for text in ["one", "two", "three"] {
            let sent = sender.send(Frame::data(Bytes::from_static(text.as_bytes())));
            sent.await.expect("a reader");
            assert_next(&mut response, text).await;
        }
        drop(sender);
        assert!(whole(response).await.body.is_empty());
    }
}

#[tokio::test]
async fn long_response_may_begin_before_a_long_request_has_ended() {
    const PARTS: usize = 64;
    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let (sender, response) = stream();
        let request = tokio::spawn(request.into_body().collect());
        tokio::spawn(async move {
            let part = Bytes::from(vec![b'a'; 62_000]);
            for _ in 0..PARTS {
                // An error: the test has ended.
                let _ = sender.send(Frame::data(part.clone())).await;
            }
            let request = request.await.expect("no panic").expect("a whole body");
            let length = request.to_bytes().len().to_string();
            let _ = sender.send(Frame::data(length.into())).await;
        });
        Response::new(response)
    })
    .await;
    let picker = Picker::start(Script {
        is_duplex: true,
        ..Script::choosing(&server.address.to_string())
    })
    .await;
    let scene = serve(&picker, &[server.address]);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client.request(Method::POST, "a.com", "/close");
    let request = request.body(full(vec![b'b'; 4 * MIB]));
    let response = client.fetch(request.expect("a request")).await;
    let length = (4 * MIB).to_string();
    assert_eq!(response.status, 200);
    assert_eq!(response.body.len(), PARTS * 62_000 + length.len());
    assert!(response.text().ends_with(&length));
}

#[tokio::test]
async fn client_may_send_before_it_reads() {
    /// Window of a client for the first stream (RFC 9113, 6.9.2).
    const WINDOW: usize = 65_535;
    /// More than the windows and buffers between client and model server hold.
    const LENGTH: usize = 4 * MIB;
    let server = peer::Origin::start(|request, mut respond| {
        Box::pin(async move {
            let response = respond.send_response(Response::new(()), false);
            let mut stream = response.expect("open");
            let beginning = Bytes::from(vec![b'a'; WINDOW + 1]);
            let sent = peer::write(&mut stream, beginning, false).await;
            sent.expect("taken");
            let received = peer::read(request.into_body()).await;
            let length = received.bytes.len().to_string();
            let sent = peer::write(&mut stream, length.into(), true).await;
            sent.expect("taken");
        })
    });
    let picker = Picker::start(Script {
        is_duplex: true,
        ..Script::choosing(&server.address.to_string())
    })
    .await;
    let scene = serve(&picker, &[server.address]);
    let address = scene.at(80);
    let exchange = async {
        let (sender, _ended) = peer::connect(address).await;
        let mut sender = sender.ready().await.expect("a connection");
        let request = http::Request::post("http://a.com/h2c/close").body(());
        let sent = sender.send_request(request.expect("a request"), false);
        let (response, mut stream) = sent.expect("sent");
        let mut body = response.await.expect("a response").into_body();
        // Nothing more of the response can be sent to the client.
        let mut unread = 0;
        while unread < WINDOW {
            unread += body.data().await.expect("data").expect("no error").len();
        }
        let sent = peer::write(&mut stream, Bytes::from(vec![b'b'; LENGTH]), true).await;
        sent.expect("taken");
        let released = body.flow_control().release_capacity(unread);
        released.expect("an open stream");
        peer::read(body).await
    };
    let tasks = LocalSet::new();
    let received = timeout(TEST_TIMEOUT, tasks.run_until(exchange)).await;
    let received = received.expect("an end in time");
    assert_eq!(received.bytes, format!("a{LENGTH}").as_bytes());
}

#[tokio::test]
async fn trailers_follow_what_the_picker_returns() {
    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let body = request.into_body().collect().await.expect("a whole body");
        let got = body.trailers().cloned().unwrap_or_default();
        let is_claim = |name: &HeaderName| name.as_str().starts_with("x-gateway");
        assert!(!got.keys().any(is_claim), "{got:?}");
        let got = got.get("x-request").cloned();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-got", got.unwrap_or(HeaderValue::from_static("none")));
        let body = body.to_bytes();
        let (sender, response) = stream();
        tokio::spawn(async move {
            let _ = sender.send(Frame::data(body)).await;
            let _ = sender.send(Frame::trailers(trailers)).await;
        });
        Response::new(response)
    })
    .await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let mut calls = pool("calls", &[server.address], "epp", "FailClose");
    calls["spec"]["appProtocol"] = H2C.into();
    let objects = objects(&[picker.origin.address]).with(calls.to_string());
    let scene = Scene::start(&objects.route("route", &[rule("/", "calls")]));
    let mut client = Client::http2(scene.at(80)).await;
    for streams in [false, true] {
        picker.follow(Script {
            streams,
            ..Script::choosing(&list)
        });
        let (sender, body) = stream();
        tokio::spawn(async move {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-request", HeaderValue::from_static("sent"));
            // Only the picker says it, and servers merge trailers into the head.
            let claim = HeaderValue::from_static("192.0.2.1:80");
            trailers.insert("x-gateway-destination-endpoint", claim);
            let _ = sender.send(Frame::data(Bytes::from_static(b"call"))).await;
            let _ = sender.send(Frame::trailers(trailers)).await;
        });
        let request = client.request(Method::POST, "a.com", "/");
        let response = client.fetch(request.body(body).expect("a request")).await;
        assert_eq!((response.status, response.text()), (200, "call"));
        let trailers = response.trailers.expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(trailers["x-got"], "sent");
    }
}

#[tokio::test]
async fn status_of_a_call_without_a_body_is_kept() {
    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "5")
            .body(empty())
            .expect("a response")
    })
    .await;
    let list = server.address.to_string();
    let mut picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    let mut client = Client::http2(scene.at(80)).await;
    for path in ["/h2c/open", "/h2c/close"] {
        let request = client.request(Method::POST, "a.com", path);
        let request = request.header("content-type", "application/grpc");
        let request = request.body(full("call")).expect("a request");
        let response = client.fetch(request).await;
        assert_eq!(
            (response.status, response.header("grpc-status")),
            (200, "5")
        );
        let received = picker.received();
        let head = received.iter().find_map(|it| it.response_headers.as_ref());
        assert!(head.expect("a head").end_of_stream);
    }
}

#[tokio::test]
async fn client_that_waits_for_a_100_gets_one() {
    let server = model("a").await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    let mut client = connect(scene.at(80)).await;
    let head =
        "POST /close HTTP/1.1\r\nhost: a.com\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    write_text(&mut client, head).await;
    let interim = read_until(&mut client, "\r\n\r\n").await;
    assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
    write_text(&mut client, "body").await;
    let response = read_until(&mut client, "\r\n0\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("body"), "{response}");
}

#[tokio::test]
async fn response_that_breaks_off_at_the_backend_breaks_off() {
    let server = Origin::new(|request: http::Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        let (sender, body) = stream();
        tokio::spawn(async move {
            let _ = sender.send(Frame::data(Bytes::from_static(b"half"))).await;
        });
        // More than it sends.
        Response::builder()
            .header("content-length", "8")
            .body(body)
            .expect("a response")
    })
    .await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    for streams in [false, true] {
        picker.follow(Script {
            streams,
            ..Script::choosing(&list)
        });
        for mut client in clients(&scene).await {
            let outcome = post(&mut client, "/close", full("body")).await;
            let right = [Outcome::Broken(200), Outcome::Whole(502, String::new())];
            assert!(right.contains(&outcome), "{outcome:?}");
        }
    }
}
