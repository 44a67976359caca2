//! HTTP/2 floods and stalls (D): abusive connections are closed, slow or erratic ones are not.

use std::time::{Duration, Instant};

use portcullis::telemetry::metrics::TimeoutKind;

use crate::fixture::{Fixture, HOST, flooding, scripted};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Outcome, RST_STREAM, Raw,
    WINDOW_UPDATE, block, frame, get,
};
use crate::harness::h2::{self, block_on};
use crate::harness::origin::Origin;

/// The limit under test; all others are an hour. Far longer than a peer that keeps within it needs on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

#[test]
fn rapid_resets_do_not_flood_the_backend() {
    const PAIRS: u32 = 20_000;
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    let head = block(&get(&[]));
    let cancel = 8_u32.to_be_bytes();
    let mut sent = 0;
    while sent < PAIRS {
        let batch: Vec<u8> = (sent..sent + 10)
            .flat_map(|pair| {
                let stream = 2 * pair + 1;
                let mut bytes = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head);
                bytes.append(&mut frame(RST_STREAM, 0, stream, &cancel));
                bytes
            })
            .collect();
        if !raw.client.send(batch) {
            break;
        }
        sent += 10;
    }
    assert!(sent < PAIRS, "all {PAIRS} pairs were taken");
    raw.client.rest();
    let seen = fixture.origin.requests().len();
    assert!(seen < 1000, "{seen} of {sent} requests reached the origin");
    fixture.is_healthy(seen);
}

#[test]
fn serves_client_that_cancels_half_of_its_requests() {
    let fixture = Fixture::new(Origin::hello());
    block_on(async {
        let (sender, ended) = h2::connect(fixture.http()).await;
        for round in 0..200 {
            let mut ready = sender.clone().ready().await.expect("open");
            let (answer, mut stream) = ready
                .send_request(h2::get(&format!("http://{HOST}/x")), true)
                .expect("sent");
            if round % 2 == 0 {
                stream.send_reset(::h2::Reason::CANCEL);
            } else {
                let (head, body) = answer.await.expect("an answer").into_parts();
                assert_eq!(head.status, 200);
                assert_eq!(h2::read(body).await.bytes, b"hello");
            }
        }
        drop(sender);
        ended
            .await
            .expect("the end is reported")
            .expect("an orderly end");
    });
}

#[test]
fn endless_header_block_closes_the_connection() {
    let fixture = Fixture::new(Origin::hello());
    for piece in [
        &[][..],
        &block(&[("x-y", "z")])[..],
        &block(&[("x-y", &"z".repeat(10_000))])[..],
    ] {
        let mut raw = Raw::open(&fixture, &[]);
        raw.send(HEADERS, END_STREAM, 1, &block(&get(&[])));
        let sent = (0..100_000)
            .take_while(|_| raw.send(CONTINUATION, 0, 1, piece))
            .count();
        assert!(sent < 100_000, "{} bytes each", piece.len());
        raw.client.rest();
    }
    fixture.is_healthy(0);
}

#[test]
fn unfinished_header_block_closes_the_connection() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
    });
    let began = Instant::now();
    let mut raw = Raw::open(&fixture, &[]);
    raw.send(HEADERS, END_STREAM, 1, &block(&get(&[])));
    raw.client.rest();
    assert!(began.elapsed() > SHORT - Duration::from_millis(200));
    fixture.ended_by(TimeoutKind::Header, 1);
    fixture.is_healthy(0);
}

#[test]
fn unfinished_header_block_with_active_stream_closes_the_connection() {
    // The other request never gets a response.
    let fixture = Fixture::new(scripted(|_| true));
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&[]), true);
    fixture
        .origin
        .until("the request", |origin| origin.requests().len() == 1);
    raw.send(HEADERS, END_STREAM, 3, &block(&get(&[])));
    // Only missing PING responses reveal it: 15 s until the first PING, 10 s for its response.
    raw.client.rest();
    fixture.is_healthy(1);
}

#[test]
fn idle_connection_closes() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
        settings.limits.keep_alive_timeout = SHORT;
        settings.limits.write_timeout = SHORT;
    });
    // Only the preface; a request followed by silence; and a client that stops responding.
    let mut silent = Raw::open(&fixture, &[]);
    let mut idle = Raw::open(&fixture, &[]);
    let mut dead = Raw::open(&fixture, &[]);
    for raw in [&mut idle, &mut dead] {
        raw.request(1, &get(&[]), true);
        assert_eq!(raw.outcome(1), Outcome::Status(200));
    }
    silent.client.rest();
    let last = std::iter::from_fn(|| idle.next()).last();
    let last = last.expect("a farewell");
    assert_eq!(
        (last.kind, &last.payload[..8]),
        (GOAWAY, &[0, 0, 0, 1, 0, 0, 0, 0][..])
    );
    dead.client.rest();
    block_on(async {
        let (sender, ended) = h2::connect_tls(fixture.https(), HOST).await;
        let request = h2::get(&format!("https://{HOST}/x"));
        let (head, _) = h2::round_trip(&sender, request).await.expect("an answer");
        assert_eq!(head.status, 200);
        // The client's own GOAWAY may or may not arrive.
        let _ = ended.await.expect("the end is reported");
    });
    fixture.is_healthy(3);
}

#[test]
fn tls_connection_without_preface_closes() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = SHORT;
    });
    let config = crate::harness::tls::client(&["h2"]);
    let open = || {
        crate::harness::client::Client::handshake(fixture.https(), HOST, config.clone())
            .expect("a handshake")
    };
    let mut silent = open();
    let mut half = open();
    half.send("PRI * HTTP/2.0\r\n\r\n");
    let mut wrong = open();
    wrong.send(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    for client in [&mut silent, &mut half, &mut wrong] {
        let rest = client.rest();
        assert!(
            !rest.starts_with(b"HTTP/1"),
            "{}",
            String::from_utf8_lossy(&rest)
        );
    }
    fixture.is_healthy(0);
}

#[test]
fn resets_only_streams_with_closed_windows() {
    const SIZE: usize = 1 << 20;
    let (origin, sizes) = flooding(32 * SIZE);
    let fixture = Fixture::with(origin, |settings| settings.limits.write_timeout = SHORT);
    // The initial stream windows are empty.
    let mut raw = Raw::open(&fixture, &[(4, 0)]);
    for stream in [1, 3, 5, 7] {
        raw.request(stream, &get(&[]), true);
    }
    for _ in 0..4 {
        let sent = sizes
            .recv_timeout(crate::harness::TEST_TIMEOUT)
            .expect("the proxy closes the connection");
        assert!(
            sent < 24 * SIZE,
            "the proxy took {sent} bytes for a closed window"
        );
    }
    let mut reset = Vec::new();
    while reset.len() < 4 {
        let frame = raw.next().expect("the connection stays");
        if frame.kind == RST_STREAM {
            reset.push(frame.stream);
        }
    }
    reset.sort_unstable();
    assert_eq!(reset, [1, 3, 5, 7]);
    let mut fields = get(&[]);
    fields[2] = (":path", "/fresh");
    raw.request(9, &fields, true);
    raw.send(WINDOW_UPDATE, 0, 9, &100_u32.to_be_bytes());
    let answered =
        std::iter::from_fn(|| raw.next()).find(|frame| frame.kind == DATA && frame.stream == 9);
    assert_eq!(answered.expect("an answer").payload, b"hello");
    fixture
        .origin
        .until("the ends", |origin| origin.ended() >= 4);
    fixture.ended_by(TimeoutKind::Write, 4);
}

#[test]
fn stalled_body_resets_its_stream() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.body_timeout = SHORT;
    });
    let mut raw = Raw::open(&fixture, &[]);
    let mut fields = get(&[("content-length", "10")]);
    fields[0] = (":method", "POST");
    raw.request(1, &fields, false);
    raw.send(DATA, 0, 1, b"hello");
    assert_eq!(raw.outcome(1), Outcome::Status(408));
    raw.request(3, &get(&[]), true);
    let next = std::iter::from_fn(|| raw.next()).find(|frame| frame.stream == 3);
    assert_eq!(next.expect("an answer").kind, HEADERS);
    fixture
        .origin
        .until("the abort", |origin| origin.ended() >= 1);
    fixture.is_healthy(2);
}
