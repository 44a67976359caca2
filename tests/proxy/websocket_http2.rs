//! WebSocket over HTTP/2 (RFC 8441): extended CONNECT to backends that speak HTTP/1.1. The bytes in
//! the tunnel are not WebSocket frames: the proxy does not read them.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{get, read_all, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::{self as peer, block_on};
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, prefix};
use crate::tls_origin::Authority;

/// Larger than every window on the path.
const LARGE: usize = 4 * 1024 * 1024;
/// Larger than all windows and socket buffers on the path.
const HUGE: usize = 48 * 1024 * 1024;

/// Returns an extended CONNECT with the headers of a WebSocket client.
pub(crate) fn connect(path: &str, protocol: &str) -> Request<()> {
    Request::connect(format!("http://a.com{path}"))
        .extension(Protocol::from(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat, superchat")
        .header("sec-websocket-extensions", "permessage-deflate")
        .header("origin", "https://a.com")
        .body(())
        .expect("a request")
}

/// Opens a stream; the settings of the proxy have arrived.
pub(crate) async fn open(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    if !sender.is_extended_connect_protocol_enabled() {
        let answer = peer::round_trip(sender, peer::get("http://unknown.host/")).await;
        answer.expect("an answer");
        assert!(sender.is_extended_connect_protocol_enabled());
    }
    let mut sender = sender.clone().ready().await.expect("open");
    let (response, stream) = sender.send_request(request, false).expect("sent");
    let response = timeout(TEST_TIMEOUT, response).await.expect("in time");
    (response.expect("a response"), stream)
}

/// Opens a tunnel.
pub(crate) async fn tunnel(
    sender: &SendRequest<Bytes>,
    path: &str,
) -> (RecvStream, SendStream<Bytes>) {
    let (response, stream) = open(sender, connect(path, "websocket")).await;
    assert_eq!(response.status(), 200);
    (response.into_body(), stream)
}

/// Reads `count` bytes.
pub(crate) async fn take(body: &mut RecvStream, count: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let data = timeout(TEST_TIMEOUT, body.data()).await.expect("in time");
        let data = data.expect("not the end").expect("data");
        // A stream that has ended has no window to release.
        let _ = body.flow_control().release_capacity(data.len());
        taken.extend_from_slice(&data);
    }
    taken
}

pub(crate) async fn tell(stream: &mut SendStream<Bytes>, text: &'static str) {
    let written = peer::write(stream, Bytes::from_static(text.as_bytes()), false);
    written.await.expect("taken");
}

fn accept_of(head: &str) -> String {
    let key = header(head, "sec-websocket-key");
    assert_eq!(STANDARD.decode(&key).expect("base64").len(), 16);
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Returns the only header of this name.
fn header(head: &str, name: &str) -> String {
    let mut values = head.lines().filter_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then(|| value.to_owned())
    });
    let value = values.next();
    assert!(values.next().is_none(), "several {name}: {head}");
    value.unwrap_or_else(|| panic!("no {name}: {head}"))
}

/// Reads a request for an upgrade and switches protocols.
pub(crate) async fn switch<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> String {
    let head = read_until(stream, "\r\n\r\n").await;
    let accept = accept_of(&head);
    write_text(
        stream,
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\nwelcome"
        ),
    )
    .await;
    head
}

/// Switches protocols and echoes until the client ends, then sends a last message.
pub(crate) async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let head = switch(&mut stream).await;
    assert!(head.starts_with("GET /chat"), "{head}");
    for (name, value) in [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("host", "a.com"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat, superchat"),
        ("sec-websocket-extensions", "permessage-deflate"),
        ("origin", "https://a.com"),
    ] {
        assert_eq!(header(&head, name), value, "{head}");
    }
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        write_text(&mut stream, &buffer[..count]).await;
    }
    write_text(&mut stream, "goodbye").await;
    let _ = stream.shutdown().await;
}

pub(crate) fn objects(origin: &Origin) -> Objects {
    let mut rule = prefix("/chat", "chat");
    rule["matches"][0]["method"] = json!("GET");
    Objects::http_and_https()
        .service("chat", &[origin.address])
        .route("route", &[rule])
}

#[test]
fn relays_both_directions_and_their_ends() {
    block_on(async {
        let origin = Origin::raw(echo).await;
        let scene = Scene::start(&objects(&origin));
        for is_tls in [false, true] {
            let (sender, _ended) = if is_tls {
                peer::connect_tls(scene.at(443), "a.com").await
            } else {
                peer::connect(scene.at(80)).await
            };
            // Several tunnels of one connection.
            let mut tunnels = Vec::new();
            for _ in 0..3 {
                let request = connect("/chat?room=1", "websocket");
                let (response, mut stream) = open(&sender, request).await;
                assert_eq!(response.status(), 200);
                let headers = response.headers();
                assert_eq!(headers["sec-websocket-protocol"], "chat");
                assert!(headers.contains_key("date"));
                for name in ["sec-websocket-accept", "upgrade", "connection"] {
                    assert!(!headers.contains_key(name), "{name}");
                }
                let mut body = response.into_body();
                assert_eq!(take(&mut body, 7).await, b"welcome");
                tell(&mut stream, "hello").await;
                assert_eq!(take(&mut body, 5).await, b"hello");
                tunnels.push((body, stream));
            }
            for (body, mut stream) in tunnels {
                stream.send_data(Bytes::new(), true).expect("sent");
                let rest = peer::read(body).await;
                assert!(rest.error.is_none(), "{:?}", rest.error);
                assert_eq!(rest.bytes, b"goodbye");
            }
        }
    });
}

#[test]
fn backend_may_end_first() {
    block_on(async {
        let (report, mut reports) = mpsc::channel(1);
        let origin = Origin::raw(move |mut stream| {
            let report = report.clone();
            async move {
                switch(&mut stream).await;
                stream.shutdown().await.expect("ended");
                let heard = read_all(&mut stream).await;
                report.send(heard).await.expect("reported");
            }
        })
        .await;
        let scene = Scene::start(&objects(&origin));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (body, mut stream) = tunnel(&sender, "/chat").await;
        let received = peer::read(body).await;
        assert!(received.error.is_none(), "{:?}", received.error);
        assert_eq!(received.bytes, b"welcome");
        // The other direction stays open.
        tell(&mut stream, "noted").await;
        stream.send_data(Bytes::new(), true).expect("sent");
        let heard = timeout(TEST_TIMEOUT, reports.recv())
            .await
            .expect("in time");
        assert_eq!(heard.expect("a report"), b"noted");
    });
}

#[test]
fn relays_large_data_within_the_windows() {
    block_on(async {
        let origin = Origin::raw(echo).await;
        let scene = Scene::start(&objects(&origin));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        let data: Vec<u8> = (0..LARGE).map(|index| (index / 1000) as u8).collect();
        let data = Bytes::from(data);
        let sent = data.clone();
        tokio::task::spawn_local(async move {
            peer::write(&mut stream, sent, true).await.expect("taken");
        });
        let received = peer::read(body).await;
        assert!(received.error.is_none(), "{:?}", received.error);
        assert_eq!(received.bytes.len(), LARGE + 7);
        assert!(received.bytes[..LARGE] == data);
    });
}

/// Writes until the socket accepts nothing for a while. Returns the number of bytes.
async fn fill(stream: &mut TcpStream) -> usize {
    let (data, mut count) = (vec![b'x'; 64 * 1024], 0);
    while let Ok(written) = timeout(Duration::from_millis(500), stream.write(&data)).await {
        count += written.expect("written");
        assert!(count < HUGE, "the proxy reads without limit");
    }
    count
}

#[test]
fn side_that_does_not_read_applies_backpressure() {
    block_on(async {
        let (report, mut reports) = mpsc::channel(1);
        let origin = Origin::raw(move |mut stream| {
            let report = report.clone();
            async move {
                switch(&mut stream).await;
                let count = fill(&mut stream).await;
                stream.shutdown().await.expect("ended");
                report.send(count).await.expect("reported");
                // Reads only after the test's signal.
                std::future::pending::<()>().await;
            }
        })
        .await;
        let scene = Scene::start(&objects(&origin));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (body, mut stream) = tunnel(&sender, "/chat").await;
        let filled = timeout(TEST_TIMEOUT, reports.recv())
            .await
            .expect("in time");
        let received = peer::read(body).await;
        assert_eq!(received.bytes.len(), filled.expect("a report") + 7);
        // The backend does not read: the window of the client closes.
        let flood = peer::write(&mut stream, vec![b'y'; HUGE].into(), false);
        let flooded = timeout(Duration::from_secs(1), flood).await;
        assert!(flooded.is_err(), "the proxy reads without limit");
    });
}

#[test]
fn filters_apply() {
    block_on(async {
        let origin = Origin::raw(|mut stream| async move {
            let head = switch(&mut stream).await;
            assert!(head.starts_with("GET /v2/room HTTP/1.1\r\n"), "{head}");
            assert_eq!(header(&head, "x-added"), "yes");
            read_all(&mut stream).await;
        })
        .await;
        let mut rule = prefix("/chat", "chat");
        rule["filters"] = json!([
            {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2"}}},
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-added", "value": "yes"}]}},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-response", "value": "too"}]}},
        ]);
        let objects = Objects::http().service("chat", &[origin.address]);
        let scene = Scene::start(&objects.route("route", &[rule]));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (response, _stream) = open(&sender, connect("/chat/room", "websocket")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["x-response"], "too");
        let mut body = response.into_body();
        assert_eq!(take(&mut body, 7).await, b"welcome");
    });
}

#[test]
fn tunnel_survives_configuration_change_and_drains() {
    block_on(async {
        let origin = Origin::raw(echo).await;
        let mut scene = Scene::start(&objects(&origin));
        let (sender, ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        scene.replace(&Objects::http()).await;
        assert_eq!(get(scene.at(80), "a.com", "/chat").await.status, 404);
        tell(&mut stream, "still here").await;
        assert_eq!(take(&mut body, 10).await, b"still here");
        // The port is closed.
        let elsewhere = Objects::gateway(&[http("elsewhere", 81, "")]);
        scene.replace(&elsewhere).await;
        tell(&mut stream, "and still").await;
        assert_eq!(take(&mut body, 9).await, b"and still");
        // The program waits for the tunnel.
        let stopped = scene.begin_shutdown();
        tell(&mut stream, "to the end").await;
        assert_eq!(take(&mut body, 10).await, b"to the end");
        stream.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(peer::read(body).await.bytes, b"goodbye");
        drop((stream, sender));
        timeout(TEST_TIMEOUT, stopped)
            .await
            .expect("in time")
            .expect("stopped");
        // Ignored: how the connection ends.
        let _ = ended.await;
    });
}

#[test]
fn resets_are_relayed_through_the_tunnel() {
    block_on(async {
        let (report, mut reports) = mpsc::channel(1);
        let origin = Origin::raw(move |mut stream| {
            let report = report.clone();
            async move {
                let head = switch(&mut stream).await;
                if head.starts_with("GET /chat/reset") {
                    // Otherwise the reset may overtake the response.
                    read_until(&mut stream, "go").await;
                    socket2::SockRef::from(&stream)
                        .set_linger(Some(Duration::ZERO))
                        .expect("set");
                    return;
                }
                let end = stream.read(&mut [0; 16]).await;
                let end = end.map_err(|error| error.kind());
                report.send(end).await.expect("reported");
            }
        })
        .await;
        let scene = Scene::start(&objects(&origin));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (body, mut stream) = tunnel(&sender, "/chat/reset").await;
        tell(&mut stream, "go").await;
        let error = peer::read(body).await.error.expect("a reset");
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        stream.send_reset(Reason::CANCEL);
        let end = timeout(TEST_TIMEOUT, reports.recv())
            .await
            .expect("in time");
        let end = end.expect("a report");
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn idle_tunnel_is_reset() {
    block_on(async {
        let origin = Origin::raw(echo).await;
        let scene = Scene::with(&objects(&origin), |settings| {
            settings.limits.tunnel_idle_timeout = Duration::from_secs(2);
        });
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (body, _stream) = tunnel(&sender, "/chat").await;
        let received = peer::read(body).await;
        assert_eq!(received.bytes, b"welcome");
        let error = received.error.expect("a reset");
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
        let counted = "timeouts_total{timeout=\"tunnel_idle\"} 1";
        assert!(metrics.text().contains(counted), "{}", metrics.text());
        // The connection still serves requests.
        let answer = peer::round_trip(&sender, peer::get("http://a.com/elsewhere")).await;
        assert_eq!(answer.expect("an answer").0.status, 404);
    });
}

#[test]
fn request_timeouts_do_not_apply_to_silent_tunnels() {
    block_on(async {
        let origin = Origin::raw(echo).await;
        let mut rule = prefix("/chat", "chat");
        rule["timeouts"] = json!({"request": "1s"});
        let objects = Objects::http().service("chat", &[origin.address]);
        let scene = Scene::with(&objects.route("route", &[rule]), |settings| {
            settings.limits.stream_idle_timeout = Duration::from_secs(1);
        });
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (mut body, mut stream) = tunnel(&sender, "/chat").await;
        assert_eq!(take(&mut body, 7).await, b"welcome");
        // A wait for nothing, longer than both timeouts.
        let silence = timeout(Duration::from_millis(2500), body.data()).await;
        assert!(silence.is_err(), "the tunnel ended: {silence:?}");
        tell(&mut stream, "still here").await;
        assert_eq!(take(&mut body, 10).await, b"still here");
    });
}

#[test]
fn tunnels_to_ports_of_ws_and_wss() {
    block_on(async {
        let authority = Authority::new();
        let certificate = authority.issue(&[NAME]);
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes()).expect("a key");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der.clone()], key)
            .expect("a configuration");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let secure = Origin::raw(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let stream = acceptor.accept(stream).await.expect("a handshake");
                echo(stream).await;
            }
        })
        .await;
        let plain = Origin::raw(echo).await;
        let service = |name: &str, origin: &Origin| {
            let protocol = format!("kubernetes.io/{name}");
            yaml::service_of(name, &[origin.address], &protocol)
        };
        let objects = Objects::http()
            .with(service("ws", &plain))
            .with(service("wss", &secure))
            .route(
                "route",
                &[prefix("/chat/ws", "ws"), prefix("/chat/wss", "wss")],
            );
        // Without a policy, nothing is sent to a port of wss.
        let mut scene = Scene::start(&objects);
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (response, _stream) = open(&sender, connect("/chat/wss", "websocket")).await;
        assert_eq!(response.status(), 500);
        assert_eq!(secure.connections(), 0);
        let objects = objects
            .with(policy("wss", &trust(NAME), &json!({})))
            .with(authorities("ca", &authority.pem));
        scene.replace(&objects).await;
        for path in ["/chat/ws", "/chat/wss"] {
            let (mut body, mut stream) = tunnel(&sender, path).await;
            assert_eq!(take(&mut body, 7).await, b"welcome", "{path}");
            stream
                .send_data(Bytes::from_static(b"hello"), true)
                .expect("sent");
            assert_eq!(peer::read(body).await.bytes, b"hellogoodbye", "{path}");
        }
    });
}
