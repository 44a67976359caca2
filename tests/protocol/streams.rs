//! Outcomes of single HTTP/2 streams: responses without content, cancellations, timeouts and
//! resets.

use std::time::{Duration, Instant};

use portcullis::telemetry::metrics::TimeoutKind;

use crate::fixture::{Fixture, HOST, scripted};
use crate::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, Outcome, RST_STREAM, Raw, WINDOW_UPDATE, block,
    frame, get,
};
use crate::harness::origin::Origin;

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The limit under test; all others are an hour. Far longer than a peer that keeps within it needs on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// Headers of a request with this method.
fn request<'a>(method: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut headers = get(more);
    headers[0] = (":method", method);
    headers
}

/// Returns the next frame of a stream, or of the connection.
fn next(raw: &mut Raw) -> Frame {
    raw.next().expect("the connection stays open")
}

#[test]
fn responds_to_head_without_data() {
    // A rule for one path only: everything else gets a local 404.
    let rules = r#"[{matches: [{path: {type: Exact, value: /here}}], backendRefs: [{name: origin, port: 80}]}]"#;
    let fixture = Fixture::routed(Origin::hello(), rules, |_| {});
    let mut raw = Raw::open(&fixture, &[]);
    for stream in [1, 3] {
        raw.request(stream, &request("HEAD", &[]), true);
        let head = next(&mut raw);
        assert_eq!((head.kind, head.stream), (HEADERS, stream));
        assert_ne!(head.flags & END_STREAM, 0, "the head ends the stream");
    }
}

#[test]
fn rejects_empty_scheme() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    let mut headers = get(&[]);
    headers[1] = (":scheme", "");
    raw.request(1, &headers, true);
    assert_eq!(raw.outcome(1), Outcome::Reset(PROTOCOL_ERROR));
    fixture.is_healthy(0);
}

#[test]
fn responds_408_to_stalled_body_without_content_length() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.body_timeout = SHORT;
    });
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &request("POST", &[]), false);
    raw.send(DATA, 0, 1, b"hello");
    assert_eq!(raw.outcome(1), Outcome::Status(408));
    fixture.ended_by(TimeoutKind::Body, 1);
}

/// Returns an origin that sends a response head and never ends its response.
fn early() -> Origin {
    Origin::start(|peer| {
        while let Some(request) = peer.head() {
            if request.target() == "/fresh" {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                continue;
            }
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            peer.rest();
            return;
        }
    })
}

#[test]
fn resets_stream_when_the_body_stalls_after_the_response_head() {
    let fixture = Fixture::with(early(), |settings| {
        settings.limits.body_timeout = SHORT;
    });
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &request("POST", &[("content-length", "10")]), false);
    raw.send(DATA, 0, 1, b"hello");
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    assert_eq!(next(&mut raw).kind, RST_STREAM);
    fixture.ended_by(TimeoutKind::Body, 1);
}

#[test]
fn keeps_idle_bidirectional_streams_open() {
    let fixture = Fixture::with(early(), |settings| {
        settings.limits.body_timeout = SHORT;
    });
    let mut raw = Raw::open(&fixture, &[]);
    let grpc = [
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
    ];
    raw.request(1, &request("POST", &grpc), false);
    raw.request(3, &request("POST", &[]), false);
    for stream in [1, 3] {
        raw.send(DATA, 0, stream, b"hello");
    }
    for _ in [1, 3] {
        assert_eq!(next(&mut raw).kind, HEADERS);
    }
    // Longer than the limit: a wait for nothing.
    raw.client.set_timeout(2 * SHORT);
    assert!(raw.next().is_none(), "nothing is reset");
    fixture.ended_by(TimeoutKind::Body, 0);
}

/// Requests without a response, each cancelled once the origin has received it.
fn cancel(fixture: &Fixture, raw: &mut Raw, first: u32, count: u32) {
    let head = block(&get(&[]));
    let before = fixture.origin.requests().len();
    let streams = (0..count).map(|index| first + 2 * index);
    let heads: Vec<u8> = streams
        .clone()
        .flat_map(|stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, &head))
        .collect();
    raw.client.send(heads);
    fixture.origin.until("the requests", |origin| {
        origin.requests().len() >= before + count as usize
    });
    for stream in streams {
        raw.send(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    }
}

#[test]
fn tolerates_cancelled_requests_over_a_long_time() {
    let fixture = Fixture::new(scripted(|_| true));
    let mut raw = Raw::open(&fixture, &[]);
    // More than the burst limit, at a rate that the allowance refills.
    for round in 0..12 {
        let began = Instant::now();
        cancel(&fixture, &mut raw, 1 + 100 * round, 50);
        // The rate is the subject of the test.
        std::thread::sleep(Duration::from_millis(500).saturating_sub(began.elapsed()));
    }
    let mut fresh = get(&[]);
    fresh[2] = (":path", "/fresh");
    raw.request(100_001, &fresh, true);
    assert_eq!(raw.outcome(100_001), Outcome::Status(200));
}

#[test]
fn sends_goaway_before_closing_a_flood_of_cancelled_requests() {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let fixture = Fixture::new(Origin::start(move |peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/held" {
                // The end of the test releases it too.
                let _ = wait.lock().expect("one reader").recv();
            }
            if matches!(request.target(), "/held" | "/fresh") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        }
    }));
    let mut raw = Raw::open(&fixture, &[]);
    let mut held = get(&[]);
    held[2] = (":path", "/held");
    raw.request(1, &held, true);
    fixture
        .origin
        .until("the request", |origin| origin.requests().len() == 1);
    let mut first = 3;
    let goaway = loop {
        cancel_unseen(&mut raw, first, 15);
        first += 30;
        assert!(first < 40_000, "the flood is never ended");
        if let Some(goaway) = raw.until_read() {
            break goaway;
        }
    };
    let last = u32::from_be_bytes(goaway.payload[..4].try_into().expect("four bytes"));
    assert_eq!(goaway.payload[4..8], ENHANCE_YOUR_CALM.to_be_bytes());
    assert!(last < first, "{last} of {first}");
    raw.request(first, &get(&[]), true);
    let refused = std::iter::from_fn(|| raw.next()).find(|frame| frame.stream == first);
    let refused = refused.expect("the connection stays open");
    assert_eq!(refused.kind, RST_STREAM);
    assert_eq!(refused.payload, REFUSED_STREAM.to_be_bytes());
    release.send(()).expect("the origin waits");
    let data = std::iter::from_fn(|| raw.next()).find(|frame| frame.kind == DATA);
    assert_eq!(data.expect("the response in flight").payload, b"hello");
    raw.client.rest();
    fixture.serves();
}

#[test]
fn closes_continued_flood_of_cancelled_requests() {
    const STREAMS: u32 = 10_000;
    let fixture = Fixture::new(scripted(|_| true));
    let mut raw = Raw::open(&fixture, &[]);
    let mut first = 1;
    while first < 2 * STREAMS && raw.client.send(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])) {
        cancel_unseen(&mut raw, first, 15);
        first += 30;
    }
    assert!(first < 2 * STREAMS, "the flood is never ended");
    // Requests of the flood may still be on their way to the origin.
    fixture.serves();
    let seen = fixture.origin.requests().len();
    assert!(seen < 1000, "{seen} requests reached the origin");
}

/// Requests that are cancelled at once in separate writes: the proxy may forward them before the
/// reset.
fn cancel_unseen(raw: &mut Raw, first: u32, count: u32) {
    let head = block(&get(&[]));
    let streams = (0..count).map(|index| first + 2 * index);
    let heads: Vec<u8> = streams
        .clone()
        .flat_map(|stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, &head))
        .collect();
    raw.client.send(heads);
    // Not in one read: h2 closes connections with many resets of unaccepted streams.
    std::thread::sleep(Duration::from_millis(5));
    let resets: Vec<u8> = streams
        .flat_map(|stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()))
        .collect();
    raw.client.send(resets);
}

#[test]
fn resets_stream_at_the_request_timeout() {
    let rules = r#"[{backendRefs: [{name: origin, port: 80}], timeouts: {request: 2s}}]"#;
    let (origin, _told) = crate::fixture::flooding(64 << 20);
    let fixture = Fixture::routed(origin, rules, |_| {});
    // The initial stream window is empty.
    let mut raw = Raw::open(&fixture, &[(4, 0)]);
    let began = Instant::now();
    raw.request(1, &get(&[]), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    assert_eq!(next(&mut raw).kind, RST_STREAM);
    assert!(began.elapsed() > SHORT - Duration::from_millis(100));
    // The connection still serves requests.
    let mut fresh = get(&[]);
    fresh[2] = (":path", "/fresh");
    raw.request(3, &fresh, true);
    assert_eq!(next(&mut raw).kind, HEADERS);
}

#[test]
fn long_trailers_wait_for_window_and_usual_ones_do_not() {
    for (length, waits) in [(100, false), (12_000, true)] {
        let sum = "x".repeat(length);
        let fixture = Fixture::new(Origin::answering(format!(
            "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: {sum}\r\n\r\n"
        )));
        // The body takes all of the window.
        let mut raw = Raw::open(&fixture, &[(4, 5)]);
        raw.request(1, &get(&[("te", "trailers")]), true);
        assert_eq!(raw.outcome(1), Outcome::Status(200));
        assert_eq!(next(&mut raw).payload, b"hello");
        if waits {
            // They would precede the response to a PING.
            assert!(raw.until_read().is_none());
            raw.send(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
        }
        let trailers = next(&mut raw);
        assert_eq!((trailers.kind, trailers.stream), (HEADERS, 1), "{length}");
        assert_ne!(trailers.flags & END_STREAM, 0, "{length}");
    }
}

#[test]
fn sends_100_continue_to_waiting_client() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    let headers = [("content-length", "5"), ("expect", "100-continue")];
    raw.request(1, &request("POST", &headers), false);
    assert_eq!(raw.outcome(1), Outcome::Status(100));
    raw.send(DATA, END_STREAM, 1, b"hello");
    assert_eq!(next(&mut raw).kind, HEADERS);
    assert_eq!(fixture.origin.last().body.bytes, b"hello");
    assert_eq!(fixture.origin.last().fields.all("host"), [HOST]);
}

#[test]
fn forwards_informational_responses() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ));
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&[]), true);
    assert_eq!(raw.outcome(1), Outcome::Status(103));
    assert_eq!(next(&mut raw).kind, HEADERS);
    assert_eq!(next(&mut raw).payload, b"hello");
}
