//! TLSRoutes: connections of TLS listeners by server name, passed through or with their TLS terminated.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use portcullis::telemetry::metrics::{ConnectionStats, HandshakeFailure};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{Client, connect, handshake, read_all, read_until, write_text};
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, https, secret, to};
use crate::tcp_route::{Backend, echo, reset, route, talk, until_counted, until_reset};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// Returns a listener whose TLS is passed through; for all hosts if `hostname` is empty.
pub(crate) fn passthrough(name: &str, hostname: &str) -> String {
    let hostname = match hostname {
        "" => String::new(),
        hostname => format!(", hostname: '{hostname}'"),
    };
    format!("{{name: {name}, port: 443, protocol: TLS{hostname}, tls: {{mode: Passthrough}}}}")
}

/// Returns a listener that terminates TLS with Secret `certificate`.
fn terminating(name: &str, hostname: &str) -> String {
    format!(
        "{{name: {name}, port: 443, protocol: TLS, hostname: '{hostname}', \
         tls: {{mode: Terminate, certificateRefs: [{{name: certificate}}]}}}}"
    )
}

pub(crate) fn tls_route(name: &str, hostnames: &[&str], service: &str) -> String {
    route("TLSRoute", name, hostnames, &[(service, 1)]).to_string()
}

/// Returns a listener for everything below `example.com` that is passed through to this backend.
fn before(origin: &TlsOrigin) -> Objects {
    Objects::gateway(&[passthrough("tls", "*.example.com")])
        .service("app", &[origin.address])
        .with(tls_route("app", &["*.example.com"], "app"))
}

/// Returns a listener that terminates TLS, and forwards everything to this address.
pub(crate) fn terminated(address: SocketAddr) -> Objects {
    Objects::gateway(&[terminating("tls", "*.example.com")])
        .with(secret("certificate", &Certificate::new(&["*.example.com"])))
        .service("app", &[address])
        .with(tls_route("app", &["*.example.com"], "app"))
}

fn client() -> Arc<ClientConfig> {
    tls::client(&[])
}

/// Connects with TLS to port 443.
async fn secure(scene: &Scene, name: &str) -> TlsStream<TcpStream> {
    let stream = handshake(scene.at(443), name, &client()).await;
    stream.expect("a handshake")
}

/// Sends a ClientHello as `send` writes it, and completes the handshake. The client writes to a pipe, so that the test
/// decides how its bytes reach the proxy.
async fn handshake_with(
    scene: &Scene,
    config: Arc<ClientConfig>,
    send: impl AsyncFnOnce(&mut TcpStream, Vec<u8>),
) -> TlsStream<DuplexStream> {
    let mut socket = connect(scene.at(443)).await;
    let (near, mut far) = tokio::io::duplex(256 * 1024);
    let name = "a.example.com".try_into().expect("a server name");
    let connecting = tokio::spawn(TlsConnector::from(config).connect(name, near));
    let hello = read_hello(&mut far).await;
    send(&mut socket, hello).await;
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut far, &mut socket).await });
    let connected = tokio::time::timeout(crate::harness::TEST_TIMEOUT, connecting).await;
    let connected = connected.expect("a handshake in time").expect("no panic");
    connected.expect("a handshake")
}

/// Reads the records of a ClientHello; returns the message.
async fn read_hello(stream: &mut DuplexStream) -> Vec<u8> {
    let mut hello = Vec::new();
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).await.expect("a record");
        assert_eq!(head[0], 22, "a handshake");
        let start = hello.len();
        hello.resize(
            start + usize::from(u16::from_be_bytes([head[3], head[4]])),
            0,
        );
        stream
            .read_exact(&mut hello[start..])
            .await
            .expect("a record");
        let length = u32::from_be_bytes([0, hello[1], hello[2], hello[3]]) as usize;
        if hello.len() == 4 + length {
            return hello;
        }
    }
}

/// Divides a handshake message into records with at most this many bytes.
fn records(message: &[u8], most: usize) -> Vec<u8> {
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).expect("a record").to_be_bytes();
        [&[22, 3, 1, length[0], length[1]], part].concat()
    };
    message.chunks(most).flat_map(record).collect()
}

#[tokio::test]
async fn passes_connections_through_by_server_name() {
    let authority = Authority::new();
    let mut origins = Vec::new();
    for name in ["a.example.com", "b.example.com", "*.example.com"] {
        let certificate = authority.issue(&[name]);
        origins.push((TlsOrigin::start(&certificate).await, certificate));
    }
    let [(a, of_a), (b, of_b), (other, of_other)] = &origins[..] else {
        unreachable!("three origins");
    };
    let objects = Objects::gateway(&[passthrough("tls", "*.example.com")])
        .service("a", &[a.address])
        .service("b", &[b.address])
        .service("other", &[other.address])
        .with(tls_route("a", &["a.example.com", "c.test"], "a"))
        .with(tls_route("b", &["b.example.com"], "b"))
        .with(tls_route("other", &["*.example.com"], "other"));
    let scene = Scene::start(&objects);
    for (name, origin, certificate) in [
        ("a.example.com", a, of_a),
        ("A.Example.COM", a, of_a),
        ("b.example.com", b, of_b),
        ("x.y.example.com", other, of_other),
    ] {
        let stream = secure(&scene, name).await;
        let presented = stream.get_ref().1.peer_certificates().expect("one");
        assert_eq!(presented[0], certificate.der, "{name}");
        let answer = Client::http1_on(stream).await.get(name, "/").await;
        assert_eq!(answer.text(), "hello");
        let handshake = origin.handshakes().pop().expect("a handshake");
        let seen = handshake.server_name.expect("a name");
        assert!(seen.eq_ignore_ascii_case(name), "{seen}");
    }
}

#[tokio::test]
async fn passes_through_both_versions_and_the_protocol() {
    let authority = Authority::new();
    let certificate = authority.issue(&["a.example.com"]);
    for version in [&TLS12, &TLS13] {
        let asks = Asks {
            protocols: &["h2"],
            ..Asks::default()
        };
        let origin = TlsOrigin::asking(&certificate, asks).await;
        let scene = Scene::start(&before(&origin));
        let config = tls::client_of(&[version], &["h2", "http/1.1"]);
        let mut client = Client::tls(scene.at(443), "a.example.com", &config).await;
        assert_eq!(client.get("a.example.com", "/").await.status, 200);
        let handshake = origin.handshakes().pop().expect("a handshake");
        assert_eq!(handshake.protocol.as_deref(), Some("h2"));
    }
}

#[tokio::test]
async fn reads_a_client_hello_in_any_number_of_segments_and_records() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let web = Origin::echo("app").await;
    let terminated = terminated(web.address);
    for objects in [before(&origin), terminated] {
        let scene = Scene::start(&objects);
        for most in [16 * 1024, 100, 1] {
            let stream = handshake_with(&scene, client(), async |socket, hello| {
                for byte in records(&hello, most) {
                    write_text(socket, [byte]).await;
                }
            })
            .await;
            let mut client = Client::http1_on(stream).await;
            assert_eq!(client.get("a.example.com", "/").await.status, 200);
        }
    }
    assert_eq!(origin.requests(), 3);
}

#[tokio::test]
async fn reads_a_client_hello_of_several_full_records() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let names: Vec<String> = (0..100).map(|index| format!("{index:0250}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let config = tls::client(&names);
    let web = Origin::echo("app").await;
    let terminated = terminated(web.address);
    for objects in [before(&origin), terminated] {
        let scene = Scene::start(&objects);
        let stream = handshake_with(&scene, config.clone(), async |socket, hello| {
            assert!(hello.len() > 24 * 1024, "{}", hello.len());
            write_text(socket, records(&hello, 16 * 1024)).await;
        })
        .await;
        let mut client = Client::http1_on(stream).await;
        assert_eq!(client.get("a.example.com", "/").await.status, 200);
    }
}

#[tokio::test]
async fn bytes_after_the_client_hello_are_forwarded_in_order() {
    let mut backend = Backend::start().await;
    let objects = Objects::gateway(&[passthrough("tls", "")]);
    let objects = objects.service("app", &[backend.address()]);
    let scene = Scene::start(&objects.with(tls_route("app", &["a.example.com"], "app")));
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let name = "a.example.com".try_into().expect("a server name");
    let _connecting = tokio::spawn(TlsConnector::from(client()).connect(name, near));
    let hello = records(&read_hello(&mut far).await, 16 * 1024);
    // As early data does (RFC 8446, 4.2.10): ChangeCipherSpec, and application data.
    let early = [&[20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 200][..], &[7; 200]].concat();
    let sent = [hello, early].concat();
    let mut socket = connect(scene.at(443)).await;
    write_text(&mut socket, &sent).await;
    socket.shutdown().await.expect("half-closed");
    let mut other = backend.accept().await;
    assert!(read_all(&mut other).await == sent, "the same bytes");
    write_text(&mut other, "anything").await;
    drop(other);
    assert_eq!(read_all(&mut socket).await, b"anything");
}

#[tokio::test]
async fn server_name_without_a_route_is_reset() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let passed = before(&origin);
    let any = Objects::gateway(&[passthrough("tls", "")])
        .service("app", &[origin.address])
        .with(tls_route("app", &["a.example.com"], "app"));
    let terminated = terminated(origin.address);
    for (objects, names) in [
        (passed, ["example.com", "b.test", "127.0.0.1"]),
        (any, ["b.example.com", "b.test", "127.0.0.1"]),
        (terminated, ["example.com", "b.test", "127.0.0.1"]),
    ] {
        let scene = Scene::start(&objects);
        for name in names {
            let refused = handshake(scene.at(443), name, &client()).await;
            // An alert would look like that of a backend.
            let error = refused.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}: {error}");
        }
        until_counted(&scene, "the failures", |it| {
            it.handshake_failures(HandshakeFailure::ServerName) == 3
        })
        .await;
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn what_is_no_client_hello_reaches_no_backend() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let scene = Scene::with(&before(&origin), |settings| {
        settings.limits.handshake_timeout = Duration::from_millis(500);
    });
    // A message of a megabyte, and a record that goes on.
    let endless = [&[22, 3, 1, 64, 0, 1, 16, 0, 0][..], &[0; 100_000]].concat();
    let unfinished = [22, 3, 1, 1, 0, 1, 0, 0, 252];
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &endless, &unfinished, b""] {
        let mut socket = connect(scene.at(443)).await;
        // The connection may end before it has taken everything.
        let _ = socket.write_all(bytes).await;
        read_all(&mut socket).await;
    }
    assert_eq!(origin.connections(), 0);
}

const STALLED: u64 = 300;

/// Clients that send half a ClientHello; one in ten goes on, byte by byte. The tasks end with their connections.
async fn stall(scene: &Scene) -> JoinSet<()> {
    let mut stalled = JoinSet::new();
    for number in 0..STALLED {
        let mut socket = connect(scene.at(443)).await;
        let unfinished = [22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3];
        socket.write_all(&unfinished).await.expect("sent");
        stalled.spawn(async move {
            let (mut reader, mut writer) = socket.split();
            let goes_on = async {
                let mut pace = tokio::time::interval(Duration::from_millis(100));
                while number % 10 == 0 && writer.write_all(&[0]).await.is_ok() {
                    pace.tick().await;
                }
            };
            tokio::join!(read_all(&mut reader), goes_on);
        });
    }
    stalled
}

#[tokio::test]
async fn stalled_client_hellos_delay_no_others_and_end_at_the_handshake_timeout() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let scene = Scene::start(&before(&origin));
    let _stalled = stall(&scene).await;
    for _ in 0..20 {
        secure(&scene, "a.example.com").await;
    }
    assert_eq!(origin.connections(), 20);
    assert!(scene.state().stats.connections.open() >= STALLED);
    let scene = Scene::with(&before(&origin), |settings| {
        settings.limits.handshake_timeout = Duration::from_secs(2);
    });
    stall(&scene).await.join_all().await;
    let timeouts = |it: &ConnectionStats| it.handshake_failures(HandshakeFailure::Timeout);
    until_counted(&scene, "the timeouts", |it| timeouts(it) == STALLED).await;
}

#[tokio::test]
async fn terminates_tls_and_forwards_both_ways() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&terminated(backend.address()));
    for version in [&TLS12, &TLS13] {
        let config = tls::client_of(&[version], &["h2", "http/1.1"]);
        for client_is_first in [true, false] {
            let stream = handshake(scene.at(443), "a.example.com", &config).await;
            let mut stream = stream.expect("a handshake");
            // What is forwarded need not be HTTP.
            assert_eq!(stream.get_ref().1.alpn_protocol(), None);
            let mut other = backend.accept().await;
            write_text(&mut stream, "to the backend\n").await;
            assert_eq!(read_until(&mut other, "\n").await, "to the backend\n");
            if client_is_first {
                stream.shutdown().await.expect("half-closed");
                assert_eq!(read_all(&mut other).await, b"");
                write_text(&mut other, "a".repeat(1_000_000)).await;
                other.shutdown().await.expect("half-closed");
                assert_eq!(read_all(&mut stream).await.len(), 1_000_000);
            } else {
                other.shutdown().await.expect("half-closed");
                assert_eq!(read_all(&mut stream).await, b"");
                write_text(&mut stream, "a".repeat(1_000_000)).await;
                stream.shutdown().await.expect("half-closed");
                assert_eq!(read_all(&mut other).await.len(), 1_000_000);
            }
        }
    }
}

#[tokio::test]
async fn reset_passes_through_terminated_tls() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&terminated(backend.address()));
    let mut stream = secure(&scene, "a.example.com").await;
    reset(backend.accept().await);
    until_reset(&mut stream).await;
    let stream = secure(&scene, "a.example.com").await;
    let mut other = backend.accept().await;
    reset(stream.into_inner().0);
    until_reset(&mut other).await;
}

#[tokio::test]
async fn policy_encrypts_again_what_was_terminated() {
    let (authority, origin) = (Authority::new(), echo("app").await);
    let certificate = authority.issue(&[NAME]);
    let again = TlsOrigin::relaying(&certificate, Asks::default(), origin.address).await;
    let with_policy = |objects: Objects| {
        objects
            .with(policy("app", &trust(NAME), &json!({})))
            .with(authorities("ca", &authority.pem))
    };
    let scene = Scene::start(&with_policy(terminated(again.address)));
    let mut stream = secure(&scene, "a.example.com").await;
    assert_eq!(read_until(&mut stream, "\n").await, "app\n");
    talk(&mut stream, "for the backend only").await;
    again.assert_encrypted("for the backend only");

    // What is passed through is encrypted already.
    let origin = TlsOrigin::start(&authority.issue(&["a.example.com"])).await;
    let scene = Scene::start(&with_policy(before(&origin)));
    let stream = secure(&scene, "a.example.com").await;
    let answer = Client::http1_on(stream)
        .await
        .get("a.example.com", "/")
        .await;
    assert_eq!(answer.text(), "hello");
    let handshake = origin.handshakes().pop().expect("a handshake");
    assert_eq!(handshake.server_name.as_deref(), Some("a.example.com"));
}

#[tokio::test]
async fn invalid_share_is_reset() {
    let missing = Objects::gateway(&[passthrough("tls", "*.example.com")]).with(tls_route(
        "app",
        &["*.example.com"],
        "missing",
    ));
    let scene = Scene::start(&missing);
    let refused = handshake(scene.at(443), "a.example.com", &client()).await;
    let error = refused.expect_err("nothing to forward to");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    until_counted(&scene, "the count", |it| it.unforwarded.load(Relaxed) == 1).await;
}

/// A port with all kinds of listeners.
pub(crate) fn mixed(passed: &TlsOrigin, terminated: &Origin, web: &Origin) -> Objects {
    let secret = secret("certificate", &Certificate::new(&["*.example.com"]));
    Objects::gateway(&[
        passthrough("pass", "pass.example.com"),
        terminating("term", "term.example.com"),
        https("https", 443, "*.example.com", &["certificate"]),
    ])
    .with(secret)
    .service("pass", &[passed.address])
    .service("term", &[terminated.address])
    .service("web", &[web.address])
    .with(tls_route("pass", &["pass.example.com"], "pass"))
    .with(tls_route("term", &["term.example.com"], "term"))
    .route("web", &[to("web")])
}

#[tokio::test]
async fn one_port_serves_all_modes() {
    let authority = Authority::new();
    let passed = TlsOrigin::start(&authority.issue(&["pass.example.com"])).await;
    let (terminated, web) = (echo("term").await, Origin::echo("web").await);
    let scene = Scene::start(&mixed(&passed, &terminated, &web));
    let config = tls::client(&["h2", "http/1.1"]);
    for _ in 0..3 {
        let stream = secure(&scene, "pass.example.com").await;
        let answer = Client::http1_on(stream)
            .await
            .get("pass.example.com", "/")
            .await;
        assert_eq!(answer.text(), "hello");
        let mut stream = secure(&scene, "term.example.com").await;
        assert_eq!(read_until(&mut stream, "\n").await, "term\n");
        talk(&mut stream, "hello").await;
        let mut client = Client::tls(scene.at(443), "www.example.com", &config).await;
        assert_eq!(client.get("www.example.com", "/").await.name(), "web");
    }
    // Another name, or none, is that of no listener.
    for name in ["b.test", "127.0.0.1"] {
        let refused = handshake(scene.at(443), name, &config).await;
        let error = refused.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}: {error}");
    }
    // A request for the host of another listener is not for this connection.
    let mut client = Client::tls(scene.at(443), "www.example.com", &config).await;
    assert_eq!(client.get("term.example.com", "/").await.status, 421);
    assert_eq!((passed.requests(), terminated.connections()), (3, 3));
}

#[tokio::test]
async fn change_keeps_connections_and_their_handshakes_apart() {
    let authority = Authority::new();
    let passed = TlsOrigin::start(&authority.issue(&["pass.example.com"])).await;
    let (terminated, web) = (echo("term").await, Origin::echo("web").await);
    let mut scene = Scene::start(&mixed(&passed, &terminated, &web));
    let mut open = secure(&scene, "term.example.com").await;
    assert_eq!(read_until(&mut open, "\n").await, "term\n");
    // The port remains, with another listener.
    let other = Objects::gateway(&[passthrough("pass", "")])
        .service("pass", &[passed.address])
        .with(tls_route("pass", &["term.example.com"], "pass"));
    scene.replace(&other).await;
    talk(&mut open, "still terminated").await;
    let stream = secure(&scene, "term.example.com").await;
    let answer = Client::http1_on(stream)
        .await
        .get("term.example.com", "/")
        .await;
    assert_eq!(answer.text(), "hello");
    // The port becomes one of TCP, which closes the connections of its previous protocol.
    let tcp = Objects::gateway(&["{name: tcp, port: 443, protocol: TCP}".to_owned()])
        .service("term", &[terminated.address])
        .with(route("TCPRoute", "term", &[], &[("term", 1)]).to_string());
    scene.replace(&tcp).await;
    until_reset(&mut open).await;
    let mut plain = connect(scene.at(443)).await;
    assert_eq!(read_until(&mut plain, "\n").await, "term\n");
}
