//! The PROXY protocol in front of connections: who is believed, and what follows the header.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::access_policy::{access, before, gateway};
use crate::admin::metric;
use crate::client::{Client, connect, write_text};
use crate::client_policy::clients;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, https, route_of, secret, to};
use crate::tcp_route;

const TEXT: &[u8] = b"PROXY TCP4 192.0.2.1 127.0.0.1 4660 80\r\n";
const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a.com\r\nconnection: close\r\n\r\n";

/// A header of version 2 with this command, for 192.0.2.1, and a TLV.
fn binary(command: u8) -> Vec<u8> {
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let addresses = [192, 0, 2, 1, 127, 0, 0, 1, 0x12, 0x34, 0, 80];
    let tlv = [4, 0, 3, 1, 2, 3];
    let length = ((addresses.len() + tlv.len()) as u16).to_be_bytes();
    let fixed = [0x20 | command, 0x11];
    [&signature[..], &fixed, &length, &addresses, &tlv].concat()
}

fn protocol(mode: &str, trusted: &str) -> Value {
    json!({"proxyProtocol": {"mode": mode, "trustedCIDRs": [trusted]}})
}

fn policy(mode: &str, trusted: &str) -> String {
    clients("clients", &gateway(), &protocol(mode, trusted))
}

/// Writes bytes and reads all that comes back. The connection may be reset.
async fn exchange(address: SocketAddr, pieces: &[&[u8]]) -> String {
    let mut stream = connect(address).await;
    let mut answer = Vec::new();
    for piece in pieces {
        if stream.write_all(piece).await.is_err() {
            break;
        }
    }
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the address that a backend sees behind a header; `None` if there is no response.
async fn seen(address: SocketAddr, header: &[u8]) -> Option<String> {
    let all = [header, REQUEST.as_bytes()].concat();
    let answer = exchange(address, &[&all]).await;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let received: Value = serde_json::from_str(body).expect("an echo");
    Some(received["headers"]["x-forwarded-for"].as_str()?.to_owned())
}

#[tokio::test]
async fn modes_decide_which_connections_have_headers() {
    let origin = Origin::echo("origin").await;
    let (v2, local) = (binary(1), binary(0));
    let (told, own) = (Some("192.0.2.1"), Some("127.0.0.1"));
    let unknown = b"PROXY UNKNOWN\r\n".as_slice();
    for (mode, trusted, header, expected) in [
        ("Required", "127.0.0.1", TEXT, told),
        ("Required", "127.0.0.1", &v2, told),
        ("Required", "127.0.0.1", &local, own),
        ("Required", "127.0.0.1", unknown, own),
        ("Required", "127.0.0.1", b"", None),
        ("Required", "127.0.0.1", b"PROXY TCP4 192.0.2.1\r\n", None),
        ("Required", "10.0.0.0/8", TEXT, None),
        ("Required", "10.0.0.0/8", b"", None),
        ("Optional", "127.0.0.1", TEXT, told),
        ("Optional", "127.0.0.1", &v2, told),
        ("Optional", "127.0.0.1", b"", own),
        ("Optional", "127.0.0.1", b"PROXY TCP9 \r\n", None),
        ("Optional", "10.0.0.0/8", b"", own),
    ] {
        let scene = Scene::start(&before(&origin, &[policy(mode, trusted)]));
        let found = seen(scene.at(80), header).await;
        let header = String::from_utf8_lossy(header);
        assert_eq!(
            found.as_deref(),
            expected,
            "{mode} from {trusted}: {header:?}"
        );
    }
    // The header of somebody else is the beginning of a bad request.
    let scene = Scene::start(&before(&origin, &[policy("Optional", "10.0.0.0/8")]));
    let all = [TEXT, REQUEST.as_bytes()].concat();
    let answer = exchange(scene.at(80), &[&all]).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn header_may_arrive_in_pieces_and_with_what_follows() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin, &[policy("Required", "127.0.0.1")]));
    for header in [TEXT.to_vec(), binary(1)] {
        let all = [&header[..], REQUEST.as_bytes()].concat();
        for size in [1, 7, header.len() - 1, header.len() + 1] {
            let pieces: Vec<_> = all.chunks(size).collect();
            let answer = exchange(scene.at(80), &pieces).await;
            assert!(answer.contains("192.0.2.1"), "{size}: {answer}");
        }
    }
}

#[tokio::test]
async fn address_of_the_header_decides() {
    let origin = Origin::echo("origin").await;
    let rules = json!({"ipRules": {"deny": ["192.0.2.1"]}});
    let denied = access("denied", &gateway(), &rules);
    let scene = Scene::start(&before(&origin, &[policy("Optional", "127.0.0.1"), denied]));
    let all = [TEXT, REQUEST.as_bytes()].concat();
    let answer = exchange(scene.at(80), &[&all]).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let mapped = b"PROXY TCP6 ::ffff:192.0.2.1 ::1 4660 80\r\n";
    let answer = exchange(scene.at(80), &[mapped, REQUEST.as_bytes()]).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "IPv4-mapped: {answer}");
    let other = b"PROXY TCP4 192.0.2.2 127.0.0.1 4660 80\r\n";
    assert_eq!(
        seen(scene.at(80), other).await.as_deref(),
        Some("192.0.2.2")
    );
}

/// A proxy behind the load balancer may append to the list, and others may not.
#[tokio::test]
async fn proxies_are_those_of_the_header() {
    let origin = Origin::echo("origin").await;
    let spec = json!({
        "proxyProtocol": {"mode": "Required", "trustedCIDRs": ["127.0.0.1"]},
        "clientIP": {"xForwardedFor": {"trustedCIDRs": ["192.0.2.1"]}},
    });
    let rules = json!({"ipRules": {"allow": ["203.0.113.0/24"]}});
    let policies = [
        clients("clients", &gateway(), &spec),
        access("policy", &gateway(), &rules),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    let claim = "host: a.com\r\nx-forwarded-for: 203.0.113.1";
    let request = REQUEST.replace("host: a.com", claim);
    for (proxy, expected) in [("192.0.2.1", "200"), ("127.0.0.1", "403")] {
        let header = format!("PROXY TCP4 {proxy} 127.0.0.1 4660 80\r\n");
        let pieces = [header.as_bytes(), request.as_bytes()];
        let answer = exchange(scene.at(80), &pieces).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected}")),
            "{answer}"
        );
    }
}

async fn secure(
    address: SocketAddr,
    header: &[u8],
    config: &Arc<ClientConfig>,
) -> io::Result<Client> {
    let mut stream = connect(address).await;
    stream.write_all(header).await?;
    let name = ServerName::try_from("a.example.com").expect("a name");
    let stream = TlsConnector::from(config.clone())
        .connect(name, stream)
        .await?;
    Ok(Client::http1_on(stream).await)
}

#[tokio::test]
async fn header_precedes_tls_that_is_terminated_or_passed_through() {
    let origin = Origin::echo("origin").await;
    let terminated = Objects::gateway(&[https("https", 443, "a.example.com", &["one"])])
        .with(secret("one", &Certificate::new(&["a.example.com"])))
        .service("origin", &[origin.address])
        .with(route_of("https", &[to("origin")]));
    let config = tls::client(&["http/1.1"]);
    let inner = Scene::start(&terminated);
    let scene = Scene::start(&terminated.clone().with(policy("Required", "127.0.0.1")));
    let mut client = secure(scene.at(443), TEXT, &config).await.expect("secure");
    let received = client.get("a.example.com", "/").await.received();
    assert_eq!(received["headers"]["x-forwarded-for"], "192.0.2.1");
    let refused = secure(scene.at(443), b"", &config).await;
    assert!(refused.is_err(), "without a header");
    let listener = "{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}";
    let route = tcp_route::route("TLSRoute", "route", &["a.example.com"], &[("inner", 1)]);
    let passing = Objects::gateway(&[listener.to_owned()])
        .service("inner", &[inner.at(443)])
        .with(route.to_string())
        .with(policy("Required", "127.0.0.1"));
    let outer = Scene::start(&passing);
    for header in [TEXT.to_vec(), binary(1)] {
        let mut client = secure(outer.at(443), &header, &config)
            .await
            .expect("secure");
        assert_eq!(client.get("a.example.com", "/").await.status, 200);
    }
    assert!(secure(outer.at(443), b"", &config).await.is_err());
}

#[tokio::test]
async fn header_precedes_forwarded_connections() {
    let origin = Origin::echo("origin").await;
    let target = json!({"kind": "TCPRoute", "name": "route"});
    let rules = json!({"ipRules": {"deny": ["192.0.2.9"]}});
    let objects = Objects::gateway(&["{name: tcp, port: 5432, protocol: TCP}".to_owned()])
        .service("origin", &[origin.address])
        .with(tcp_route::route("TCPRoute", "route", &[], &[("origin", 1)]).to_string())
        .with(access("denied", &target, &rules))
        .with(policy("Required", "127.0.0.1"));
    let scene = Scene::start(&objects);
    let all = [&binary(1)[..], REQUEST.as_bytes()].concat();
    for pieces in [vec![&all[..]], all.chunks(5).collect()] {
        let answer = exchange(scene.at(5432), &pieces).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let denied = b"PROXY TCP4 192.0.2.9 127.0.0.1 1 80\r\n";
    let pieces = [&denied[..], REQUEST.as_bytes()];
    assert_eq!(exchange(scene.at(5432), &pieces).await, "");
}

/// A load balancer that sends nothing, or an endless header, holds a connection no longer than a handshake.
#[tokio::test]
async fn headers_have_a_timeout_and_a_maximum_size() {
    let origin = Origin::echo("origin").await;
    let mut spec = protocol("Required", "127.0.0.1");
    spec["timeouts"] = json!({"tlsHandshake": "50ms", "header": "1h"});
    let policy = clients("clients", &gateway(), &spec);
    let scene = Scene::start(&before(&origin, &[policy]));
    // The defaults are an hour.
    for silent in [&b""[..], b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x40"] {
        assert_eq!(exchange(scene.at(80), &[silent]).await, "");
    }
    let endless = [&b"PROXY UNKNOWN "[..], &[b'a'; 200]].concat();
    assert_eq!(exchange(scene.at(80), &[&endless]).await, "");
    assert_eq!(origin.requests(), 0);
    let denied = metric(
        &scene,
        r#"connections_denied_total{reason="proxy_protocol"}"#,
    )
    .await;
    assert_eq!(denied, 4.0);
}

/// A new policy leaves open connections alone, and one of a port leaves other ports alone.
#[tokio::test]
async fn policy_applies_to_new_connections_of_its_port() {
    let origin = Origin::echo("origin").await;
    let listeners = [
        "{name: one, port: 80, protocol: HTTP}",
        "{name: two, port: 81, protocol: HTTP}",
    ];
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    let objects = Objects::gateway(&listeners.map(str::to_owned))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    let mut scene = Scene::start(&objects);
    let mut open = Client::http1(scene.at(80)).await;
    assert_eq!(open.get("a.com", "/").await.status, 200);
    let required = clients("clients", &one, &protocol("Required", "127.0.0.1"));
    scene.replace(&objects.clone().with(required)).await;
    assert_eq!(open.get("a.com", "/").await.status, 200);
    assert_eq!(seen(scene.at(80), TEXT).await.as_deref(), Some("192.0.2.1"));
    assert_eq!(seen(scene.at(80), b"").await, None);
    assert_eq!(seen(scene.at(81), b"").await.as_deref(), Some("127.0.0.1"));
}

/// The address of the socket decides who is believed, also behind a header that tells another one.
#[tokio::test]
async fn header_of_a_client_behind_the_header_does_not_count() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin, &[policy("Required", "127.0.0.1")]));
    let second = b"PROXY TCP4 203.0.113.1 127.0.0.1 4660 80\r\n";
    let all = [TEXT, second, REQUEST.as_bytes()].concat();
    let answer = exchange(scene.at(80), &[&all]).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 2], 0).into()).expect("bound");
    let mut stream: TcpStream = socket.connect(scene.at(80)).await.expect("connected");
    let mut answer = Vec::new();
    write_text(&mut stream, [TEXT, REQUEST.as_bytes()].concat()).await;
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(String::from_utf8_lossy(&answer), "");
}
