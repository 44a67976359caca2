//! Upgraded and rejected connections (F): bytes are tunneled only after a requested 101.

use std::net::Shutdown;
use std::time::Duration;

use portcullis::telemetry::metrics::TimeoutKind;

use crate::fixture::{Fixture, HOST, scripted};
use crate::harness::client::Client;
use crate::harness::origin::{Origin, Peer};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const AGREE: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Responds to `/fresh` and runs `script` for the first other request.
fn origin(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
    scripted(move |peer| {
        script(peer);
        false
    })
}

/// Accepts the upgrade and echoes everything until the client half-closes.
fn echo(peer: &mut Peer) {
    peer.send(AGREE);
    loop {
        let bytes = std::mem::take(&mut peer.wire.buffer);
        if !bytes.is_empty() && !peer.send(&bytes) {
            return;
        }
        if !matches!(peer.wire.fill(), crate::harness::http::Fill::Bytes(_)) {
            return;
        }
    }
}

#[test]
fn relays_websocket_in_both_directions() {
    let fixture = Fixture::new(origin(echo));
    for (index, mut client) in [fixture.client(), Client::connect_tls(fixture.https(), HOST)]
        .into_iter()
        .enumerate()
    {
        let answer = client.round_trip(ASK);
        assert_eq!(answer.status, 101);
        assert_eq!(answer.fields.get("upgrade"), Some("websocket"));
        assert!(
            answer
                .fields
                .get("connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("upgrade"))
        );
        assert_eq!(
            answer.fields.get("sec-websocket-accept"),
            Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        );
        for round in 0..5 {
            let frame: Vec<u8> = (0..40_000_u32).map(|byte| (byte + round) as u8).collect();
            client.send(&frame);
            assert_eq!(client.wire.take(frame.len()).expect("an echo"), frame);
        }
        let request = &fixture.origin.requests()[index];
        assert_eq!(request.fields.get("upgrade"), Some("websocket"));
        assert_eq!(request.fields.get("connection"), Some("upgrade"));
        assert_eq!(request.fields.get("sec-websocket-version"), Some("13"));
    }
    fixture.is_healthy(2);
}

#[test]
fn relays_bytes_sent_with_the_upgrade_request() {
    let fixture = Fixture::new(origin(echo));
    let mut client = fixture.client();
    client.send(format!("{ASK}early bytes"));
    assert_eq!(client.response("GET").status, 101);
    assert_eq!(client.wire.take(11).expect("an echo"), b"early bytes");
}

#[test]
fn relays_bytes_sent_with_the_101() {
    let fixture = Fixture::new(origin(|peer| {
        peer.send(format!("{AGREE}first words"));
        peer.rest();
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(ASK).status, 101);
    assert_eq!(client.wire.take(11).expect("words"), b"first words");
}

#[test]
fn tunnel_directions_half_close_independently() {
    let fixture = Fixture::new(origin(|peer| {
        peer.send(AGREE);
        let all = peer.rest();
        peer.send(format!("got {} bytes", all.len()));
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(ASK).status, 101);
    client.send(vec![b'x'; 1_000_000]);
    client.shutdown_write();
    assert_eq!(client.rest(), b"got 1000000 bytes");
    let fixture = Fixture::new(origin(|peer| {
        peer.send(AGREE);
        peer.send(vec![b'y'; 1_000_000]);
        peer.wire.io.shutdown(Shutdown::Write).expect("open");
        let all = peer.rest();
        assert_eq!(all, b"bye");
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(ASK).status, 101);
    let words = client.rest();
    assert_eq!(words.len(), 1_000_000);
    client.send("bye");
    client.shutdown_write();
    fixture
        .origin
        .until("the end", |origin| origin.ended() == 1);
    assert!(fixture.origin.raw(0).ends_with(b"\r\n\r\nbye"));
}

#[test]
fn relays_last_bytes_after_backend_failure() {
    let fixture = Fixture::new(origin(|peer| {
        peer.send(AGREE);
        assert_eq!(peer.wire.take(3).expect("a word"), b"die");
        // Small enough to be sent at once: a reset discards unsent data.
        peer.send(vec![b'z'; 1000]);
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(ASK).status, 101);
    client.send("die");
    // More data makes the closed origin respond with a reset.
    client.send(vec![b'x'; 100_000]);
    assert_eq!(client.rest().len(), 1000);
}

#[test]
fn relays_nothing_after_a_rejected_upgrade() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
    ] {
        let fixture = Fixture::new(Origin::answering(answer));
        let mut client = fixture.client();
        client.send(format!("{ASK}GET /admin HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        let first = client.response("GET");
        assert!(answer.starts_with(&first.start), "{}", first.start);
        assert_eq!(first.text(), "hello");
        // The following bytes are a separate HTTP request that is routed, or nothing.
        if client.try_response("GET").is_ok() {
            let request = fixture.origin.last();
            assert_eq!(request.target(), "/admin");
            assert!(
                request.fields.get("x-forwarded-for").is_some(),
                "relayed raw: {request:?}"
            );
        }
        let all: Vec<u8> = (0..fixture.origin.connections())
            .flat_map(|index| fixture.origin.raw(index))
            .collect();
        let raw = all.windows(ASK.len()).any(|bytes| bytes == ASK.as_bytes());
        assert!(!raw, "relayed raw: {}", String::from_utf8_lossy(&all));
    }
}

#[test]
fn upgrade_to_another_protocol_is_an_error() {
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket, foo\r\n\r\nraw bytes",
    ] {
        let origin = origin(move |peer| {
            peer.send(answer);
            peer.rest();
        });
        let fixture = Fixture::with(origin, |settings| {
            settings.limits.header_timeout = Duration::from_secs(1);
        });
        let mut client = fixture.client();
        client.send(format!("{ASK}sent early"));
        let response = client.response("GET");
        assert_eq!(response.status, 502, "{answer}");
        assert!(!response.text().contains("raw bytes"));
        let rest = client.rest();
        let rest = String::from_utf8_lossy(&rest);
        assert!(!rest.contains("raw bytes"), "{rest}");
        let raw = String::from_utf8_lossy(&fixture.origin.raw(0)).into_owned();
        assert!(!raw.contains("sent early"), "{raw}");
        fixture.is_healthy(1);
    }
}

#[test]
fn unsolicited_101_is_an_error() {
    let fixture = Fixture::new(origin(|peer| {
        peer.send(format!("{AGREE}raw bytes"));
        peer.rest();
    }));
    for request in [
        format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"),
        format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\n\r\n"),
        format!(
            "GET /x HTTP/1.0\r\nHost: {HOST}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        ),
        format!(
            "POST /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello"
        ),
    ] {
        let answer = fixture.round_trip(&request);
        assert_eq!(answer.status, 502, "{request}");
        assert_eq!(fixture.origin.last().fields.get("upgrade"), None);
    }
    fixture.is_healthy(4);
}

#[test]
fn rejects_upgrade_to_http2() {
    let fixture = Fixture::new(Origin::hello());
    let settings = "HTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    for (connection, protocol) in [
        ("Upgrade, HTTP2-Settings", "h2c"),
        ("Upgrade, HTTP2-Settings", "H2C"),
        ("Upgrade", "h2"),
        ("Upgrade", "HTTP/2.0"),
        ("Upgrade", "TLS/1.2"),
        ("Upgrade", "websocket, h2c"),
    ] {
        let mut client = fixture.client();
        let answer = client.round_trip(format!(
            "GET /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: {connection}\r\nUpgrade: {protocol}\r\n{settings}\r\n"
        ));
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "hello"),
            "{protocol}"
        );
        let request = fixture.origin.last();
        for name in ["upgrade", "connection", "http2-settings"] {
            assert_eq!(request.fields.all(name), Vec::<&str>::new(), "{protocol}");
        }
        let next = client.round_trip(format!("GET /y HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        assert_eq!(next.status, 200, "{protocol}: it is plain HTTP/1.1");
    }
}

#[test]
fn relays_other_upgrade_protocols() {
    let fixture = Fixture::new(origin(|peer| {
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: foo/2\r\n\r\n",
        );
        peer.send(b"welcome");
        peer.rest();
    }));
    let mut client = fixture.client();
    let answer = client.round_trip(format!(
        "GET /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: upgrade\r\nUpgrade: foo/2\r\n\r\n"
    ));
    assert_eq!(
        (answer.status, answer.fields.get("upgrade")),
        (101, Some("foo/2"))
    );
    assert_eq!(client.wire.take(7).expect("words"), b"welcome");
}

#[test]
fn idle_tunnel_closes() {
    let fixture = Fixture::with(origin(echo), |settings| {
        settings.limits.tunnel_idle_timeout = Duration::from_secs(4);
        // None of these limits applies to tunnels.
        let short = Duration::from_secs(1);
        settings.limits.stream_idle_timeout = short;
        settings.limits.keep_alive_timeout = short;
        settings.limits.header_timeout = short;
        settings.limits.write_timeout = short;
    });
    let mut client = fixture.client();
    assert_eq!(client.round_trip(ASK).status, 101);
    // Longer than each of them, so that two such pauses without the byte between them end the tunnel.
    client.set_timeout(Duration::from_millis(2100));
    assert_eq!(client.wire.fill(), crate::harness::http::Fill::Silent);
    client.send("x");
    assert_eq!(client.wire.take(1).expect("an echo"), b"x");
    assert_eq!(client.wire.fill(), crate::harness::http::Fill::Silent);
    client.set_timeout(crate::harness::TEST_TIMEOUT);
    client.ends();
    fixture.ended_by(TimeoutKind::TunnelIdle, 1);
    fixture
        .origin
        .until("the end", |origin| origin.ended() == 1);
}
