//! WebSockets to backends that speak HTTP/2: an extended CONNECT where their settings permit it, HTTP/1.1 where they offer that
//! too, and a clear refusal otherwise.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Method, Request, Response, StatusCode};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{connect as connect_plain, get, read_all, read_until, write_text};
use crate::harness::h2::{self as peer, block_on};
use crate::harness::yaml::service_of;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix};
use crate::tls_origin::{Asks, Authority, TlsOrigin};
use crate::upgrade::REQUEST;
use crate::websocket_http2::{connect, echo as echo_http1, open, take, tell, tunnel};

/// The `Sec-WebSocket-Accept` for the key of [`REQUEST`].
const ACCEPT: &str = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=";
const WHY: &str = "the backend speaks HTTP/2 without WebSocket (RFC 8441), which HTTP/1.1 has: appProtocol kubernetes.io/ws";
const LATE: &str = "the backend has not sent its settings of HTTP/2 in time";

/// Accepts a WebSocket and echoes until the client ends, then sends a last message. Responds to other requests, and refuses
/// WebSockets to `/chat/refused`.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    let protocol = head.extensions.get::<Protocol>().map(Protocol::as_str);
    let refused = head.uri.path() == "/chat/refused";
    if protocol.is_none() || refused {
        let status = if refused {
            StatusCode::FORBIDDEN
        } else {
            StatusCode::OK
        };
        let mut response = Response::new(());
        *response.status_mut() = status;
        let mut stream = respond.send_response(response, false).expect("sent");
        let text = Bytes::from_static(b"a page");
        return stream.send_data(text, true).expect("sent");
    }
    assert_eq!(
        (protocol, head.method),
        (Some("websocket"), Method::CONNECT)
    );
    assert_eq!(head.uri.path(), "/chat");
    assert_eq!(head.headers["sec-websocket-version"], "13");
    for name in ["sec-websocket-key", "upgrade", "connection"] {
        assert!(!head.headers.contains_key(name), "{name}");
    }
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert("sec-websocket-protocol", "chat".parse().expect("a value"));
    let mut stream = respond.send_response(response, false).expect("sent");
    tell(&mut stream, "welcome").await;
    while let Some(data) = body.data().await {
        let Ok(data) = data else {
            return;
        };
        let _ = body.flow_control().release_capacity(data.len());
        if data == "reset" {
            return stream.send_reset(Reason::CANCEL);
        }
        peer::write(&mut stream, data, false).await.expect("taken");
    }
    stream
        .send_data(Bytes::from_static(b"goodbye"), true)
        .expect("sent");
}

fn origin(has_websocket: bool) -> peer::Origin {
    let mut builder = h2::server::Builder::new();
    if has_websocket {
        builder.enable_connect_protocol();
    }
    peer::Origin::with(builder, |request, respond| Box::pin(echo(request, respond)))
}

fn scene(address: SocketAddr) -> Scene {
    let service = service_of("chat", &[address], "kubernetes.io/h2c");
    let objects = Objects::http().with(service);
    let objects = objects.route("route", &[prefix("/", "chat")]);
    Scene::with(&objects, |settings| settings.workers = 1)
}

#[test]
fn clients_of_both_versions_get_streams_of_one_connection_to_a_backend() {
    block_on(async {
        let origin = origin(true);
        let scene = scene(origin.address);
        let mut first = connect_plain(scene.at(80)).await;
        write_text(&mut first, REQUEST).await;
        let head = read_until(&mut first, "\r\n\r\n")
            .await
            .to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        for line in [
            "upgrade: websocket",
            "connection: upgrade",
            "sec-websocket-protocol: chat",
            ACCEPT,
        ] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
        }
        assert_eq!(read_until(&mut first, "welcome").await, "welcome");

        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut second) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        for _ in 0..3 {
            write_text(&mut first, "one").await;
            assert_eq!(read_until(&mut first, "one").await, "one");
            tell(&mut second, "two").await;
            assert_eq!(take(&mut body, 3).await, b"two");
        }
        assert_eq!(get(scene.at(80), "a.com", "/page").await.text(), "a page");

        first.shutdown().await.expect("ended");
        assert_eq!(read_all(&mut first).await, b"goodbye");
        second.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(peer::read(body).await.bytes, b"goodbye");
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn large_data_passes_in_both_directions() {
    block_on(async {
        const LARGE: usize = 4 * 1024 * 1024;
        let origin = origin(true);
        let scene = scene(origin.address);
        let mut client = connect_plain(scene.at(80)).await;
        write_text(&mut client, REQUEST).await;
        read_until(&mut client, "welcome").await;
        let (mut reader, mut writer) = client.split();
        let sent = async {
            let data = vec![7; LARGE];
            writer.write_all(&data).await.expect("sent");
            writer.shutdown().await.expect("ended");
        };
        let (received, ()) = tokio::join!(read_all(&mut reader), sent);
        assert_eq!(received.len(), LARGE + "goodbye".len());
        assert!(received.ends_with(b"\x07goodbye"));
    });
}

#[test]
fn ends_of_a_tunnel_leave_its_connection() {
    block_on(async {
        let origin = origin(true);
        let scene = scene(origin.address);
        // The backend resets the stream.
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        tell(&mut stream, "reset").await;
        let error = peer::read(body).await.error.expect("a reset");
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        // It refuses another one.
        let refused = connect("/chat/refused", "websocket");
        let (response, _stream) = open(&sender, refused).await;
        assert_eq!(response.status(), 403);
        assert_eq!(peer::read(response.into_body()).await.bytes, b"a page");
        let mut client = connect_plain(scene.at(80)).await;
        write_text(&mut client, REQUEST.replace("/chat", "/chat/refused")).await;
        let head = read_until(&mut client, "a page").await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        // A client goes away.
        let mut client = connect_plain(scene.at(80)).await;
        write_text(&mut client, REQUEST).await;
        read_until(&mut client, "welcome").await;
        drop(client);
        let (mut body, _stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn backend_of_http2_without_websocket_is_a_clear_502() {
    block_on(async {
        let origin = origin(false);
        let scene = scene(origin.address);
        let mut client = connect_plain(scene.at(80)).await;
        write_text(&mut client, REQUEST).await;
        let head = read_until(&mut client, WHY).await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (response, _stream) = open(&sender, connect("/chat", "websocket")).await;
        assert_eq!(response.status(), 502);
        let text = peer::read(response.into_body()).await.bytes;
        assert_eq!(String::from_utf8_lossy(&text), WHY);
        // That with which `open` learns the settings of the proxy.
        assert_eq!(origin.requests(), 1);
        // Pages work, also for clients that offer another protocol.
        let mut client = connect_plain(scene.at(80)).await;
        let other = REQUEST.replace("websocket", "other");
        write_text(&mut client, other).await;
        let head = read_until(&mut client, "a page").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}

/// Such as one that is overloaded.
#[test]
fn backend_without_settings_is_not_said_to_have_no_websocket() {
    block_on(async {
        let mute = Origin::raw(|mut stream| async move {
            read_all(&mut stream).await;
        })
        .await;
        let scene = scene(mute.address);
        let mut client = connect_plain(scene.at(80)).await;
        write_text(&mut client, REQUEST).await;
        let head = read_until(&mut client, LATE).await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    });
}

#[test]
fn only_a_get_opens_a_websocket() {
    block_on(async {
        let origin = origin(true);
        let scene = scene(origin.address);
        for (method, end, status) in [("POST", "a page", 200), ("GET", "welcome", 101)] {
            let mut client = connect_plain(scene.at(80)).await;
            write_text(&mut client, REQUEST.replace("GET", method)).await;
            let head = read_until(&mut client, end).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn request_with_a_length_of_0_opens_a_websocket() {
    block_on(async {
        let origin = origin(true);
        let scene = scene(origin.address);
        let mut client = connect_plain(scene.at(80)).await;
        let request = REQUEST.replace("Connection:", "Content-Length: 0\r\nConnection:");
        write_text(&mut client, request).await;
        read_until(&mut client, "welcome").await;
        write_text(&mut client, "one").await;
        assert_eq!(read_until(&mut client, "one").await, "one");
    });
}

/// Most servers with both versions have WebSocket in HTTP/1.1 alone.
#[test]
fn tunnels_at_a_backend_that_prefers_http2_use_http1() {
    block_on(async {
        let authority = Authority::new();
        let asks = Asks {
            protocols: &["h2", "http/1.1"],
            ..Asks::default()
        };
        let chat = Origin::raw(echo_http1).await;
        let relay = TlsOrigin::relaying(&authority.issue(&[NAME]), asks, chat.address).await;
        let objects = Objects::http()
            .service("chat", &[relay.address])
            .route("route", &[prefix("/chat", "chat")])
            .with(policy(
                "chat",
                &trust(NAME),
                &json!({"portcullis.dev/alpn": "h2,http/1.1"}),
            ))
            .with(authorities("ca", &authority.pem));
        let scene = Scene::start(&objects);
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        stream
            .send_data(Bytes::from_static(b"hello"), true)
            .expect("sent");
        assert_eq!(peer::read(body).await.bytes, b"hellogoodbye");
        let handshakes = relay.handshakes();
        let protocols = handshakes.iter().map(|it| it.protocol.as_deref());
        assert_eq!(protocols.collect::<Vec<_>>(), [Some("http/1.1")]);
    });
}
