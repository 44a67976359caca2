//! WebSocket (RFC 9220) and gRPC over HTTP/3.

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame as BodyFrame;
use http_body_util::BodyExt;
use serde_json::json;

use crate::access_policy::gateway;
use crate::client_policy::clients;
use crate::grpc::grpc_route;
use crate::harness::tls::Certificate;
use crate::http3::{http3_policy, listeners};
use crate::http3_client::{Exchange, Frame, Http3, data, headers, quic_at};
use crate::origin::{Origin, empty, stream};
use crate::scene::{Objects, Scene, https, secret, to};
use crate::websocket_http2;

/// The head of an extended CONNECT, with the headers of a WebSocket client.
fn connect(path: &str, protocol: &str) -> Vec<u8> {
    headers(&[
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "https"),
        (":authority", "a.com"),
        (":path", path),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat, superchat"),
        ("sec-websocket-extensions", "permessage-deflate"),
        ("origin", "https://a.com"),
    ])
}

/// Reads `count` bytes of content.
async fn take(exchange: &mut Exchange, count: usize) -> BytesMut {
    let mut taken = BytesMut::new();
    while taken.len() < count {
        match exchange.frame().await {
            Some(Frame::Data(data)) => taken.extend_from_slice(&data),
            other => panic!("{other:?} after {taken:?}"),
        }
    }
    taken
}

fn chat(origin: &Origin) -> Objects {
    websocket_http2::objects(origin).with(http3_policy())
}

#[tokio::test]
async fn relays_websockets_in_both_directions_and_their_ends() {
    let origin = Origin::raw(websocket_http2::echo).await;
    let scene = Scene::start(&chat(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let mut tunnel = client.stream().await;
        tunnel.write(&connect("/chat?room=1", "websocket")).await;
        let (status, fields) = tunnel.head().await;
        assert_eq!(status, 200);
        assert_eq!(fields["sec-websocket-protocol"], "chat");
        for name in ["sec-websocket-accept", "upgrade", "connection"] {
            assert!(!fields.contains_key(name), "{name}");
        }
        assert_eq!(&take(&mut tunnel, 7).await[..], b"welcome");
        tunnel.write(&data(b"hello")).await;
        assert_eq!(&take(&mut tunnel, 5).await[..], b"hello");
        tunnels.push(tunnel);
    }
    for mut tunnel in tunnels {
        tunnel.send.finish().expect("open");
        assert_eq!(&take(&mut tunnel, 7).await[..], b"goodbye");
        assert!(tunnel.frame().await.is_none());
    }
}

#[tokio::test]
async fn other_protocols_are_refused_and_others_frames_end_the_connection() {
    let origin = Origin::raw(websocket_http2::echo).await;
    let scene = Scene::start(&chat(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut refused = client.stream().await;
    refused.write(&connect("/chat", "connect-udp")).await;
    assert_eq!(refused.head().await.0, 501);
    let mut tunnel = client.stream().await;
    tunnel.write(&connect("/chat", "websocket")).await;
    assert_eq!(tunnel.head().await.0, 200);
    // RFC 9114, 4.4.
    tunnel.write(&headers(&[("x", "y")])).await;
    assert_eq!(client.closed().await, 0x105);
}

#[tokio::test]
async fn reset_of_a_tunnel_ends_the_connection_to_the_backend() {
    let (report, mut reports) = tokio::sync::mpsc::channel(1);
    let origin = Origin::raw(move |mut stream| {
        let report = report.clone();
        async move {
            websocket_http2::switch(&mut stream).await;
            let heard = crate::client::read_all(&mut stream).await;
            report.send(heard).await.expect("reported");
        }
    })
    .await;
    let scene = Scene::start(&chat(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut tunnel = client.stream().await;
    tunnel.write(&connect("/chat", "websocket")).await;
    assert_eq!(tunnel.head().await.0, 200);
    tunnel.send.reset(0x10c_u32.into()).expect("open");
    let heard = crate::http3_client::within(reports.recv()).await;
    assert_eq!(heard.expect("a report"), b"");
}

#[tokio::test]
async fn bytes_before_a_tunnel_is_open_count_as_unread() {
    /// More windows than any worker has memory for.
    const TUNNELS: usize = 20;
    let origin = Origin::raw(|stream| async {
        // Never responds.
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let spec = json!({"http3": {}, "http2": {"initialStreamWindow": "4Mi"}});
    let objects = websocket_http2::objects(&origin).with(clients("http3", &gateway(), &spec));
    let scene = Scene::start(&objects);
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut tunnels = Vec::new();
    for _ in 0..TUNNELS {
        let mut tunnel = client.stream().await;
        tunnel.write(&connect("/chat", "websocket")).await;
        tunnel.write(&data(b"early")).await;
        tunnels.push(tunnel);
    }
    let resets = tunnels.iter_mut().map(|tunnel| Box::pin(tunnel.reset()));
    let (code, ..) = futures_util::future::select_all(resets).await;
    assert_eq!(code, 0x107);
}

fn calls(origin: &Origin) -> Objects {
    Objects::gateway(&[https("a", 443, "a.com", &["a"])])
        .with(secret("a", &Certificate::new(&["a.com"])))
        .with(http3_policy())
        .service("calls", &[origin.address])
        .with(grpc_route("route", &[], &[to("calls")]))
}

const CALL: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

#[tokio::test]
async fn calls_of_grpc_stream_in_both_directions() {
    let origin = Origin::new(|request| async move {
        let (sender, body) = stream();
        tokio::spawn(async move {
            let mut incoming = request.into_body();
            while let Some(Ok(frame)) = incoming.frame().await {
                if let Ok(data) = frame.into_data() {
                    let _ = sender.send(BodyFrame::data(data)).await;
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let _ = sender.send(BodyFrame::trailers(trailers)).await;
        });
        let mut response = Response::new(body);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        response
    })
    .await;
    let scene = Scene::start(&calls(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut call = client.begin("POST", "a.com", "/a.B/C", &CALL).await;
    for message in ["one", "two", "three"] {
        call.write(&data(message.as_bytes())).await;
        if message == "one" {
            assert_eq!(call.head().await.0, 200);
        }
        assert_eq!(
            &take(&mut call, message.len()).await[..],
            message.as_bytes()
        );
    }
    call.send.finish().expect("open");
    let Some(Frame::Headers(trailers, None)) = call.frame().await else {
        panic!("no trailers");
    };
    assert_eq!(trailers["grpc-status"], "0");
    assert!(call.frame().await.is_none());
}

#[tokio::test]
async fn deadlines_of_grpc_end_calls_with_trailers() {
    let origin = Origin::new(|_| async {
        let (sender, body) = stream();
        tokio::spawn(async move {
            let message = bytes::Bytes::from_static(b"first");
            let _ = sender.send(BodyFrame::data(message)).await;
            // Nothing follows until the proxy ends the call.
            sender.closed().await;
        });
        let mut response = Response::new(body);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        response
    })
    .await;
    let scene = Scene::start(&calls(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let fields = [CALL[0], CALL[1], ("grpc-timeout", "500m")];
    let mut call = client.begin("POST", "a.com", "/a.B/C", &fields).await;
    call.send.finish().expect("open");
    let answer = call.answer().await;
    // On a busy machine, the deadline may pass before the head of the backend arrives.
    let status = match &answer.trailers {
        Some(trailers) => trailers["grpc-status"].clone(),
        None => answer.headers["grpc-status"].clone(),
    };
    assert_eq!((answer.status, status.as_bytes()), (200, &b"4"[..]));
}

#[tokio::test]
async fn unmatched_calls_get_the_status_of_grpc() {
    let origin = Origin::new(|_| async { Response::new(empty()) }).await;
    let rule = json!({
        "matches": [{"method": {"service": "a.B"}}],
        "backendRefs": [{"name": "calls", "port": 80}],
    });
    let objects = listeners()
        .service("calls", &[origin.address])
        .with(grpc_route("route", &[], &[rule]));
    let scene = Scene::start(&objects);
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let answer = client.ask("POST", "a.com", "/other/C", &CALL).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("grpc-status"), "12");
    assert!(answer.body.is_empty());
}
