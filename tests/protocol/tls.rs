//! TLS: stalled or invalid handshakes (G1), the listener of a connection and its requests (G2), and
//! client certificate validation (G5).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use portcullis::telemetry::metrics::TimeoutKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fixture::{Fixture, HOST, documents};
use crate::harness::client::{Client, connection, socket};
use crate::harness::h2::{self, block_on};
use crate::harness::origin::Origin;
use crate::harness::server::TestServer;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;

/// Returns the bytes of a ClientHello.
fn hello() -> Vec<u8> {
    let mut hello = Vec::new();
    let mut client = connection(HOST, tls::client(&["h2", "http/1.1"]));
    client.write_tls(&mut hello).expect("a ClientHello");
    hello
}

/// Starts handshakes that stall after the ClientHello.
fn stall(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let hello = hello();
    let stalled = (0..count).map(|_| {
        let mut socket = socket(address);
        socket.write_all(&hello).expect("sent");
        socket
    });
    stalled.collect()
}

/// Waits until the server ends this connection.
fn ended(mut socket: TcpStream) {
    let mut rest = Vec::new();
    if let Err(error) = socket.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// Checks that new handshakes and requests succeed.
fn assert_new_clients_are_served(fixture: &Fixture) {
    for _ in 0..20 {
        let mut client = Client::connect_tls(fixture.https(), HOST);
        let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        assert_eq!(client.round_trip(request).text(), "hello");
    }
}

#[test]
fn stalled_handshakes_do_not_affect_others() {
    let fixture = Fixture::new(Origin::hello());
    let stalled = stall(fixture.https(), 300);
    assert_new_clients_are_served(&fixture);
    let open = fixture.server.state().stats.connections.open();
    assert!(open >= stalled.len() as u64, "{open} are open");
    fixture.is_healthy(20);
}

#[test]
fn stalled_handshakes_close() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.handshake_timeout = Duration::from_secs(1);
    });
    let stalled = stall(fixture.https(), 300);
    stalled.into_iter().for_each(ended);
    let stats = &fixture.server.state().stats.connections;
    fixture.server.until("all ends", |_| stats.open() == 0);
    fixture.ended_by(TimeoutKind::Handshake, 300);
}

#[test]
fn handshakes_beyond_the_limit_do_not_affect_others() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.max_handshakes = 32;
    });
    let stalled = stall(fixture.https(), 200);
    assert_new_clients_are_served(&fixture);
    // The evicted handshakes end long before their timeout.
    let stats = &fixture.server.state().stats.connections;
    fixture.server.until("the cap", |_| stats.open() <= 32);
    drop(stalled);
    fixture.is_healthy(20);
}

#[test]
fn large_handshakes_of_one_client_are_bounded_and_do_not_affect_others() {
    const RECORD: u16 = 15 * 1024;
    const RECORDS: usize = 4;
    // Half of what a worker has for all, twice the bytes of each.
    const MOST: u64 = 16 * 1024 * 1024 / 2 / (RECORDS as u64 * RECORD as u64);
    let fixture = Fixture::with(Origin::hello(), |settings| settings.workers = 1);
    // Each record has the type and the version, its length, and a part of a ClientHello of 65,280 bytes, which does not end.
    let [high, low] = RECORD.to_be_bytes();
    let mut record = vec![22, 3, 1, high, low];
    record.resize(5 + usize::from(RECORD), 0);
    let mut bytes = record.repeat(RECORDS);
    bytes[5..9].copy_from_slice(&[1, 0, 0xff, 0]);
    let begin = |_| {
        let mut socket = socket(fixture.https());
        // Fails if the proxy has ended the connection.
        let _ = socket.write_all(&bytes);
        socket
    };
    let stalled: Vec<_> = (0..MOST + 40).map(begin).collect();
    let stats = &fixture.server.state().stats.connections;
    fixture
        .server
        .until("the share of a client", |_| stats.open() <= MOST);
    // A handshake of the usual size takes nothing of it.
    assert_new_clients_are_served(&fixture);
    drop(stalled);
    fixture.is_healthy(20);
}

#[test]
fn invalid_handshake_closes_at_once() {
    // The timeout of a handshake is an hour.
    let fixture = Fixture::new(Origin::hello());
    let ssl2 = [
        0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80, 2, 0, 0x80, 3, 0, 0x80, 4, 0,
        0x80, 5, 0, 0x80, 6, 0, 0x40, 7, 0, 0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
        15, 16,
    ];
    let mut huge = hello();
    huge[6..9].copy_from_slice(&[0xff, 0xff, 0xff]);
    for bytes in [
        &[0xff; 512][..],
        &ssl2,
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0xff, 0xff, 1],
        &[23, 3, 3, 0, 5, 1, 2, 3, 4, 5],
        &huge,
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = fixture.https_raw();
        client.send(bytes);
        let rest = client.rest();
        assert!(
            !rest.starts_with(b"HTTP"),
            "{}",
            String::from_utf8_lossy(&rest)
        );
    }
    fixture.is_healthy(0);
}

/// Returns the listeners of port 443, each with a route: `a.example`, `*.wild.example`,
/// `b.wild.example`, and one for all other hosts if `fallback`.
fn listeners(fallback: bool) -> (TestServer, Origin) {
    let origin = Origin::hello();
    let mut hosts = vec![
        ("a", "a.example"),
        ("wild", "*.wild.example"),
        ("b", "b.wild.example"),
    ];
    if fallback {
        hosts.push(("rest", ""));
    }
    let listeners: Vec<_> = hosts
        .iter()
        .map(|(name, host)| yaml::https(name, 443, host, &["certificate"]))
        .collect();
    let names = ["a.example", "*.wild.example", "other.example"];
    let mut documents = vec![
        yaml::gateway("gateway", &listeners),
        yaml::service("origin", &[origin.address]),
        yaml::secret("certificate", &Certificate::new(&names)),
    ];
    documents.extend(hosts.iter().map(|(name, host)| {
        let host = if host.is_empty() {
            "other.example"
        } else {
            host
        };
        yaml::route(
            name,
            &format!("gateway/{name}"),
            &[host],
            &yaml::all_to("origin"),
        )
    }));
    (TestServer::start(&documents), origin)
}

/// Status of requests for a host on connections with a server name, without and with a fallback
/// listener.
const ROWS: [(&str, &str, u16, u16); 15] = [
    ("a.example", "a.example", 200, 200),
    ("a.example", "A.Example:443", 200, 200),
    ("a.example", "x.wild.example", 421, 421),
    ("a.example", "b.wild.example", 421, 421),
    ("a.example", "other.example", 404, 421),
    ("a.example", "unknown.example", 404, 421),
    ("x.wild.example", "x.wild.example", 200, 200),
    ("x.wild.example", "y.wild.example", 200, 200),
    ("x.wild.example", "y.z.wild.example", 200, 200),
    ("x.wild.example", "wild.example", 404, 421),
    ("x.wild.example", "b.wild.example", 421, 421),
    ("x.wild.example", "a.example", 421, 421),
    ("B.wild.example", "b.wild.example", 200, 200),
    ("b.wild.example", "x.wild.example", 421, 421),
    ("b.wild.example", "unknown.example", 404, 421),
];

/// Status of requests on connections of the fallback listener.
const REST: [(&str, &str, u16); 7] = [
    ("other.example", "other.example", 200),
    ("unknown.example", "other.example", 200),
    ("", "other.example", 200),
    ("unknown.example", "unknown.example", 404),
    ("unknown.example", "a.example", 421),
    ("", "x.wild.example", 421),
    ("wild.example", "b.wild.example", 421),
];

fn rows(fallback: bool) -> Vec<(&'static str, &'static str, u16)> {
    let mut rows: Vec<_> = ROWS
        .iter()
        .map(|&(name, host, without, with)| (name, host, if fallback { with } else { without }))
        .collect();
    rows.extend(fallback.then_some(REST).into_iter().flatten());
    rows
}

#[test]
fn connection_serves_one_listener_over_http1() {
    for fallback in [false, true] {
        let (server, origin) = listeners(fallback);
        let mut served = 0;
        for (name, host, status) in rows(fallback) {
            let mut client = Client::connect_tls(server.at(443), name);
            let answer = client.round_trip(format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(
                answer.status, status,
                "fallback: {fallback}, {name} -> {host}"
            );
            served += usize::from(status == 200);
            assert_eq!(origin.requests().len(), served);
        }
    }
}

#[test]
fn connection_serves_one_listener_over_http2() {
    for fallback in [false, true] {
        let (server, origin) = listeners(fallback);
        let mut served = 0;
        for (name, host, status) in rows(fallback) {
            block_on(async {
                let (sender, _ended) = h2::connect_tls(server.at(443), name).await;
                // A rejection ends one request, not the connection.
                for _ in 0..2 {
                    let request = h2::get(&format!("https://{host}/x"));
                    let (head, _) = h2::round_trip(&sender, request).await.expect("an answer");
                    assert_eq!(
                        head.status, status,
                        "fallback: {fallback}, {name} -> {host}"
                    );
                }
            });
            served += 2 * usize::from(status == 200);
            assert_eq!(origin.requests().len(), served);
        }
    }
}

#[test]
fn rejects_server_names_without_a_listener() {
    let (server, origin) = listeners(false);
    for name in ["unknown.example", "wild.example", "", "a.example.evil"] {
        let outcome = Client::handshake(server.at(443), name, tls::client(&["http/1.1"]));
        let error = outcome
            .err()
            .unwrap_or_else(|| panic!("{name:?} was taken"));
        let alert = error.to_string().contains("UnrecognisedName");
        assert!(
            alert || error.kind() == std::io::ErrorKind::UnexpectedEof,
            "{name:?}: {error}"
        );
    }
    assert_eq!(origin.requests().len(), 0);
}

/// Returns a client with a self-signed certificate.
fn certified() -> Arc<rustls::ClientConfig> {
    let own = Certificate::new(&["client"]);
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
    let plain = tls::client(&["http/1.1"]);
    let mut config = (*plain).clone();
    let chain: Vec<CertificateDer<'static>> = vec![own.der.clone()];
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).expect("a usable key");
    let certified = rustls::sign::CertifiedKey::new(chain, key);
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    Arc::new(config)
}

#[test]
fn listeners_with_client_validation_fail_closed() {
    let origin = Origin::hello();
    let authority = Certificate::new(&["authority"]);
    let bundle: String = authority
        .pem
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    let bundle = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca}}\ndata:\n  ca.crt: |\n{bundle}"
    );
    let validation = |name: &str, mode: &str| {
        format!("{{caCertificateRefs: [{{group: '', kind: ConfigMap, name: {name}}}]{mode}}}")
    };
    let https = yaml::https("https", 443, "", &["certificate"]);
    for frontend in [
        format!("{{default: {{validation: {}}}}}", validation("ca", "")),
        format!("{{default: {{validation: {}}}}}", validation("missing", "")),
        format!(
            "{{default: {{}}, perPort: [{{port: 443, tls: {{validation: {}}}}}]}}",
            validation("ca", "")
        ),
    ] {
        let mut documents = documents(origin.address, &bundle);
        let listeners = [yaml::http("http", 80, ""), https.clone()];
        let more = format!("  tls: {{frontend: {frontend}}}\n");
        documents[0] = yaml::gateway_with("gateway", &listeners, &more);
        let server = TestServer::start(&documents);
        // HTTP listeners are unaffected.
        assert_eq!(
            crate::harness::client::get(server.at(80), HOST, "/x").status,
            200
        );
        let before = origin.requests().len();
        let Some(address) = server.address(443) else {
            continue;
        };
        for config in [tls::client(&["http/1.1"]), certified()] {
            let Ok(mut client) = Client::handshake(address, HOST, config) else {
                continue;
            };
            client.send(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
            // In TLS 1.3 the server rejects the client's certificate after the client's handshake.
            let rest = client.rest();
            assert!(
                rest.is_empty(),
                "{frontend}: {}",
                String::from_utf8_lossy(&rest)
            );
        }
        assert_eq!(origin.requests().len(), before, "{frontend}");
    }
}
