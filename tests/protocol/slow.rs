//! Slow, stalled or too many peers (B, and all limits that hyper leaves to the proxy), over HTTP/1
//! and TLS handshakes. The tests check which limit ends which
//! peer, and that others are unaffected.

use std::io::Write;
use std::time::{Duration, Instant};

use portcullis::settings::Settings;
use portcullis::telemetry::metrics::TimeoutKind;

use crate::fixture::{Fixture, HOST, flooding};
use crate::harness::TEST_TIMEOUT;
use crate::harness::client::{Client, connection, get, socket};
use crate::harness::http::Fill;
use crate::harness::origin::Origin;
use crate::harness::tls;

/// The limit under test; all others are an hour. Far longer than a peer that keeps within it needs on a busy machine.
const SHORT: Duration = Duration::from_secs(2);
/// The pace of a peer that keeps within the limit: so many pieces take longer than the limit.
const PACE: Duration = Duration::from_millis(300);
const PIECES: usize = 8;

/// Waits until the server has closed these connections, not before the limit.
fn all_end(began: Instant, clients: &mut [Client]) {
    for client in clients {
        client.ends();
    }
    assert!(began.elapsed() >= SHORT - Duration::from_millis(200));
}

#[test]
fn stalled_head_closes_the_connection() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
    });
    let began = Instant::now();
    let parts = [
        "",
        "G",
        "PRI * HT",
        "PRI * HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\n",
        "\r\n",
    ];
    let mut clients: Vec<_> = parts.iter().map(|_| fixture.client()).collect();
    for (client, part) in clients.iter_mut().zip(parts) {
        client.send(part);
    }
    let mut agreed = [fixture.https(), fixture.https()].map(|at| Client::connect_tls(at, HOST));
    agreed[1].send("GET / HTTP/1.1\r\n");
    all_end(began, &mut clients);
    agreed.iter_mut().for_each(Client::ends);
    fixture.ended_by(TimeoutKind::Header, 9);
    fixture.is_healthy(0);
}

#[test]
fn stalled_later_head_closes_the_connection() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
        settings.limits.idle_buffer_timeout = Duration::from_millis(200);
    });
    let mut client = fixture.client();
    let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    assert_eq!(client.round_trip(&request).status, 200);
    let connections = fixture.server.state().stats.connections.clone();
    fixture.server.until("parking", |_| {
        connections
            .parked
            .load(std::sync::atomic::Ordering::Relaxed)
            == 1
    });
    client.send(&request[..20]);
    client.ends();
    fixture.ended_by(TimeoutKind::Header, 1);
    fixture.is_healthy(1);
}

#[test]
fn slow_head_does_not_extend_the_timeout() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
    });
    let mut client = fixture.client();
    // The pace of the bytes.
    client.set_timeout(Duration::from_millis(100));
    let began = Instant::now();
    let head = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nX: {}", "y".repeat(1000));
    let mut bytes = head.bytes();
    loop {
        client.send([bytes.next().expect("it ends before")]);
        // Waiting for EOF paces the bytes.
        match client.wire.fill() {
            Fill::Silent => {}
            Fill::End | Fill::Failed(_) => break,
            Fill::Bytes(_) => assert_eq!(client.response("GET").status, 408),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it is still open");
    }
    fixture.ended_by(TimeoutKind::Header, 1);
    fixture.is_healthy(0);
}

#[test]
fn stalled_handshake_closes_the_connection() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.handshake_timeout = SHORT;
    });
    let mut hello = Vec::new();
    connection(HOST, tls::client(&["h2", "http/1.1"]))
        .write_tls(&mut hello)
        .expect("a ClientHello");
    let began = Instant::now();
    let parts = [&b""[..], &hello[..1], &hello[..hello.len() / 2]];
    let mut sockets = parts.map(|part| {
        let mut socket = socket(fixture.https());
        socket.write_all(part).expect("sent");
        socket
    });
    // A complete ClientHello gets a response; the silence after it counts as a stall.
    let mut whole = fixture.https_raw();
    whole.send(&hello);
    for socket in &mut sockets {
        let mut byte = [0];
        let end = std::io::Read::read(socket, &mut byte);
        assert!(
            matches!(end, Ok(0))
                || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
    }
    whole.rest();
    assert!(began.elapsed() >= SHORT - Duration::from_millis(200));
    fixture.ended_by(TimeoutKind::Handshake, 4);
    fixture.is_healthy(0);
}

#[test]
fn stalled_body_aborts_the_request() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.body_timeout = SHORT;
    });
    let began = Instant::now();
    for lines in [
        "Content-Length: 10\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let mut client = fixture.client();
        client.send(format!("POST /x HTTP/1.1\r\nHost: {HOST}\r\n{lines}"));
        let rest = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(rest.starts_with("HTTP/1.1 408"), "{rest}");
    }
    assert!(began.elapsed() >= SHORT);
    fixture.ended_by(TimeoutKind::Body, 2);
    fixture
        .origin
        .until("the aborts", |origin| origin.ended() == 2);
    assert!(
        fixture
            .origin
            .requests()
            .iter()
            .all(|request| !request.body.complete)
    );
    fixture.is_healthy(2);
}

#[test]
fn slow_body_is_served() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.body_timeout = SHORT;
        settings.limits.header_timeout = SHORT;
    });
    let mut client = fixture.client();
    client.set_timeout(PACE);
    client.send(format!(
        "POST /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n",
        PIECES + 1
    ));
    for _ in 0..PIECES {
        client.send("x");
        assert_eq!(client.wire.fill(), Fill::Silent);
    }
    client.set_timeout(TEST_TIMEOUT);
    client.send("x");
    assert_eq!(client.response("POST").status, 200);
    fixture.ended_by(TimeoutKind::Body, 0);
}

/// More than all buffers can hold.
const MUCH: usize = 64 << 20;

#[test]
fn unread_response_closes_the_connection_and_the_backend() {
    let (origin, sizes) = flooding(MUCH);
    let fixture = Fixture::with(origin, |settings| settings.limits.write_timeout = SHORT);
    let mut plain = fixture.client();
    let mut tls = Client::connect_tls(fixture.https(), HOST);
    for client in [&mut plain, &mut tls] {
        client.send(format!("GET /much HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    }
    for _ in 0..2 {
        let sent = sizes
            .recv_timeout(TEST_TIMEOUT)
            .expect("the proxy closes the connection");
        assert!(
            sent < MUCH / 2,
            "the proxy took {sent} bytes for a client that reads none"
        );
    }
    fixture
        .origin
        .until("the ends", |origin| origin.ended() == 2);
    fixture.ended_by(TimeoutKind::Write, 2);
    fixture.is_healthy(2);
}

#[test]
fn idle_connection_closes_after_the_keep_alive_timeout() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.keep_alive_timeout = SHORT;
        settings.limits.idle_buffer_timeout = Duration::from_millis(200);
    });
    let mut clients = [fixture.client(), Client::connect_tls(fixture.https(), HOST)];
    for client in &mut clients {
        let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        assert_eq!(client.round_trip(request).status, 200);
    }
    let began = Instant::now();
    all_end(began, &mut clients);
    fixture.ended_by(TimeoutKind::Header, 0);
    fixture.is_healthy(2);
}

#[test]
fn parked_connection_serves_again() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.idle_buffer_timeout = Duration::from_millis(100);
    });
    let connections = fixture.server.state().stats.connections.clone();
    let mut clients = [fixture.client(), Client::connect_tls(fixture.https(), HOST)];
    for _ in 0..3 {
        for client in &mut clients {
            let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
            assert_eq!(client.round_trip(request).text(), "hello");
        }
        fixture.server.until("parking", |_| {
            connections
                .parked
                .load(std::sync::atomic::Ordering::Relaxed)
                == 2
        });
    }
}

#[test]
fn unresponsive_backend_times_out() {
    let fixture = Fixture::with(
        Origin::start(|peer| {
            while let Some(request) = peer.request() {
                match request.target() {
                    "/fresh" => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
                    "/half" => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"),
                    _ => true,
                };
            }
        }),
        |settings| settings.limits.stream_idle_timeout = SHORT,
    );
    let mut client = fixture.client();
    client.send(format!("GET /half HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    let answer = client.response("GET");
    assert_eq!((answer.status, answer.body.complete), (200, false));
    client.ends();
    let mut client = fixture.client();
    client.send(format!("GET /never HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!(client.response("GET").status, 504);
    fixture.ended_by(TimeoutKind::StreamIdle, 2);
    fixture
        .origin
        .until("the ends", |origin| origin.ended() == 2);
    fixture.is_healthy(2);
}

#[test]
fn slow_response_continues_while_bytes_arrive() {
    let fixture = Fixture::with(
        Origin::start(|peer| {
            peer.request();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {PIECES}\r\n\r\n"
            ));
            peer.wire.io.set_read_timeout(Some(PACE)).expect("a time");
            for _ in 0..PIECES {
                peer.send("x");
                peer.wire.fill();
            }
        }),
        |settings| {
            settings.limits.stream_idle_timeout = SHORT;
            settings.limits.header_timeout = SHORT;
            settings.limits.write_timeout = SHORT;
            settings.limits.keep_alive_timeout = SHORT;
        },
    );
    let answer = fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "xxxxxxxx"));
}

#[test]
fn closes_connections_beyond_the_limit_at_once_while_none_is_idle() {
    let cap = |settings: &mut Settings| settings.limits.max_connections = Some(4);
    let (go, gone) = std::sync::mpsc::channel();
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::start(move |peer| {
        while peer.head().is_some() {
            arrived.send(()).expect("the test counts requests");
            let released = gone.lock().expect("one reader").recv_timeout(TEST_TIMEOUT);
            released.expect("the response may go");
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let fixture = Fixture::with(origin, cap);
    let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut clients: Vec<_> = (0..4).map(|_| fixture.client()).collect();
    for client in &mut clients {
        client.send(&request);
        arrivals.recv_timeout(TEST_TIMEOUT).expect("a request");
    }
    let mut refused = fixture.client();
    refused.send(&request);
    refused.ends();
    // All at once, since any of the origin's threads may take a permission.
    for _ in &clients {
        go.send(()).expect("the origin waits");
    }
    for client in &mut clients {
        assert_eq!(client.response("GET").status, 200);
    }
    let connections = fixture.server.state().stats.connections.clone();
    let refused = connections
        .refused
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(refused, 1);
    // An idle connection gives way to a new one.
    go.send(()).expect("the origin waits");
    assert_eq!(get(fixture.http(), HOST, "/x").status, 200);
}

#[test]
fn slow_backend_applies_backpressure_to_an_upload() {
    let (go, gone) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let fixture = Fixture::new(Origin::start(move |peer| {
        if let Some(mut request) = peer.head() {
            let patience = gone.lock().expect("one reader").recv_timeout(TEST_TIMEOUT);
            patience.expect("the client was stopped");
            peer.body(&mut request);
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    }));
    let mut client = fixture.client();
    client.send(format!(
        "PUT /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {MUCH}\r\n\r\n"
    ));
    let socket = client.wire.io.socket();
    socket
        // No progress for so long counts as a stall.
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("a time");
    let piece: Vec<u8> = (0..1 << 16).map(|index: u32| (index % 251) as u8).collect();
    let mut sent = 0;
    while let Ok(count) = client.wire.io.write(&piece[sent % piece.len()..]) {
        sent += count;
        assert!(
            sent < MUCH / 2,
            "the proxy took {sent} bytes for a backend that reads none"
        );
    }
    go.send(()).expect("the origin waits");
    client
        .wire
        .io
        .socket()
        .set_write_timeout(Some(TEST_TIMEOUT))
        .expect("a time");
    while sent < MUCH {
        let from = sent % piece.len();
        let end = piece.len().min(from + MUCH - sent);
        sent += client.wire.io.write(&piece[from..end]).expect("taken");
    }
    assert_eq!(client.response("PUT").status, 200);
    let body = fixture.origin.last().body;
    assert_eq!(body.bytes.len(), MUCH);
    assert!(
        body.bytes.chunks(piece.len()).all(|chunk| chunk == piece),
        "bytes differ"
    );
}
