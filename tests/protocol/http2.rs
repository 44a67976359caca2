//! HTTP/2 requests that mean something else than they say (C), floods and stalls (D), and streams that are only busy,
//! which must not be taken for either.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request};
use portcullis::telemetry::metrics::TimeoutKind;

use crate::fixture::{Fixture, HOST};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Outcome, RST_STREAM, Raw, WINDOW_UPDATE,
    block, frame,
};
use crate::harness::h2::{self, block_on};
use crate::harness::origin::Origin;

const PROTOCOL_ERROR: u32 = 1;

/// A `GET` with more fields behind the usual ones.
fn get<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/x"),
        (":authority", HOST),
    ];
    fields.extend_from_slice(more);
    fields
}

/// Each request gets one of these outcomes on a connection of its own, and none reaches the origin.
fn refused(requests: &[Vec<(&str, &str)>], accepted: &[Outcome]) {
    let fixture = Fixture::new(Origin::hello());
    for fields in requests {
        let mut raw = Raw::open(&fixture, &[]);
        raw.request(1, fields, true);
        let outcome = raw.outcome(1);
        assert!(
            accepted.contains(&outcome),
            "{fields:?} came to {outcome:?}"
        );
    }
    fixture.is_well(0);
}

const BAD: [Outcome; 3] = [
    Outcome::Status(400),
    Outcome::Reset(PROTOCOL_ERROR),
    Outcome::GoAway(PROTOCOL_ERROR),
];

#[test]
fn a_plain_request_is_served() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&[("x-other", "y")]), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let request = fixture.origin.last();
    assert_eq!(request.start, "GET /x HTTP/1.1");
    assert_eq!(request.fields.all("host"), [HOST]);
    assert_eq!(request.fields.all("x-other"), ["y"]);
    fixture.is_well(1);
}

#[test]
fn hosts_that_contradict_or_cannot_be_are_refused() {
    let authority = |authority| {
        vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/x"),
            (":authority", authority),
        ]
    };
    let none = |more: &[(&'static str, &'static str)]| {
        let mut fields = vec![(":method", "GET"), (":scheme", "http"), (":path", "/x")];
        fields.extend_from_slice(more);
        fields
    };
    refused(
        &[
            get(&[("host", "b.example")]),
            get(&[("host", HOST), ("host", HOST)]),
            get(&[("host", HOST), ("host", "b.example")]),
            none(&[]),
            none(&[("host", HOST), ("host", "b.example")]),
            none(&[("host", HOST), ("host", HOST)]),
            none(&[("host", "user@a.example")]),
            authority(""),
            authority("user@a.example"),
            authority("a.example:0"),
            authority("a.example:65536"),
            authority("a.example:x"),
            authority("a.example, b.example"),
            authority("a.example/x"),
            authority("a example"),
            authority("a.example\r\nx: y"),
        ],
        &BAD,
    );
}

#[test]
fn a_host_field_stands_in_for_the_authority() {
    let fixture = Fixture::new(Origin::hello());
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/x"),
        ("host", HOST),
    ];
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &fields, true);
    let outcome = raw.outcome(1);
    if !BAD.contains(&outcome) {
        assert_eq!(outcome, Outcome::Status(200));
        assert_eq!(fixture.origin.last().fields.all("host"), [HOST]);
    }
}

#[test]
fn fields_of_connections_are_refused() {
    refused(
        &[
            get(&[("transfer-encoding", "chunked")]),
            get(&[("connection", "close")]),
            get(&[("connection", "x-secret")]),
            get(&[("keep-alive", "5")]),
            get(&[("proxy-connection", "keep-alive")]),
            get(&[("upgrade", "websocket")]),
            get(&[("te", "gzip")]),
            get(&[("te", "trailers, gzip")]),
        ],
        &BAD,
    );
}

#[test]
fn malformed_heads_are_refused() {
    refused(
        &[
            get(&[("X-Upper", "y")]),
            get(&[("x y", "z")]),
            get(&[("", "z")]),
            get(&[("x-y", "a\r\nb: c")]),
            get(&[("x-y", "a\nb")]),
            get(&[("x-y", "a\0b")]),
            get(&[("x-y", " a")]),
            get(&[("x-y", "a\t")]),
            get(&[(":path", "/y")]),
            get(&[(":unknown", "y")]),
            get(&[("x", "y"), (":method", "GET")]),
            get(&[("expect", "100-continue"), ("content-length", "+5")]),
            vec![(":scheme", "http"), (":path", "/x"), (":authority", HOST)],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", ""),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "x"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "?x"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "?x"),
                ("host", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "*"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/a/../x"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/x y"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/x HTTP/1.1\r\nx: y"),
                (":authority", HOST),
            ],
            vec![
                (":method", "G T"),
                (":scheme", "http"),
                (":path", "/x"),
                (":authority", HOST),
            ],
            vec![
                (":method", "GET / HTTP/1.1\r\nx:"),
                (":scheme", "http"),
                (":path", "/x"),
                (":authority", HOST),
            ],
        ],
        &BAD,
    );
}

#[test]
fn methods_that_are_not_for_gateways_are_refused() {
    let accepted = [405, 501, 400]
        .map(Outcome::Status)
        .into_iter()
        .chain(BAD)
        .collect::<Vec<_>>();
    refused(
        &[
            vec![(":method", "CONNECT"), (":authority", "a.example:443")],
            vec![
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", "http"),
                (":path", "/x"),
                (":authority", HOST),
            ],
            vec![
                (":method", "TRACE"),
                (":scheme", "http"),
                (":path", "/x"),
                (":authority", HOST),
            ],
        ],
        &accepted,
    );
}

#[test]
fn too_many_fields_are_refused() {
    let many: Vec<_> = (0..101).map(|index| format!("x-{index}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "y")).collect();
    let long = "y".repeat(40 * 1024);
    let fixture = Fixture::new(Origin::hello());
    for fields in [get(&many), get(&[("x-long", &long)])] {
        let mut raw = Raw::open(&fixture, &[]);
        let block = block(&fields);
        let mut pieces = block.chunks(16_000).peekable();
        let first = pieces.next().expect("a piece");
        let last = |more: bool| if more { 0 } else { END_HEADERS };
        raw.send(
            HEADERS,
            END_STREAM | last(pieces.peek().is_some()),
            1,
            first,
        );
        while let Some(piece) = pieces.next() {
            raw.send(CONTINUATION, last(pieces.peek().is_some()), 1, piece);
        }
        assert_eq!(raw.outcome(1), Outcome::Status(431));
    }
    fixture.is_well(0);
}

#[test]
fn bodies_that_contradict_their_length_are_not_completed() {
    let fixture = Fixture::new(Origin::hello());
    let post = |length: &'static str| {
        vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/x"),
            (":authority", HOST),
            ("content-length", length),
        ]
    };
    let mut doubled = post("5");
    doubled.push(("content-length", "5"));
    let mut differing = post("5");
    differing.push(("content-length", "6"));
    let inputs: [(Vec<(&str, &str)>, &[u8]); 9] = [
        (post("5"), b"four"),
        (post("5"), b"sixsix"),
        (post("5"), b""),
        (post("+5"), b"hello"),
        (post("5,"), b"hello"),
        (post(""), b"hello"),
        (post("5, 5"), b"hello"),
        (doubled, b"hello"),
        (differing, b"hello"),
    ];
    for (fields, body) in inputs {
        let mut raw = Raw::open(&fixture, &[]);
        raw.request(1, &fields, false);
        raw.send(DATA, END_STREAM, 1, body);
        let outcome = raw.outcome(1);
        assert!(BAD.contains(&outcome), "{fields:?} came to {outcome:?}");
    }
    let connections = fixture.origin.connections();
    fixture
        .origin
        .until("the aborts", |origin| origin.ended() == connections);
    let requests = fixture.origin.requests();
    assert!(
        requests.iter().all(|request| !request.body.complete),
        "{requests:#?}"
    );
    fixture.is_well(requests.len());
}

#[test]
fn bodies_come_through_with_and_without_length() {
    let fixture = Fixture::new(Origin::hello());
    block_on(async {
        let (sender, _) = h2::connect(fixture.http()).await;
        for length in [None, Some("5")] {
            let mut request = Request::post(format!("http://{HOST}/x"));
            if let Some(length) = length {
                request = request.header("content-length", length);
            }
            let mut ready = sender.clone().ready().await.expect("open");
            let (answer, mut body) = ready
                .send_request(request.body(()).expect("a request"), false)
                .expect("sent");
            h2::write(&mut body, Bytes::from_static(b"hello"), false)
                .await
                .expect("taken");
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "1".parse().expect("a value"));
            body.send_trailers(trailers).expect("sent");
            assert_eq!(answer.await.expect("an answer").status(), 200);
            let request = fixture.origin.last();
            assert_eq!(request.body.bytes, b"hello");
            assert_eq!(request.fields.get("content-length"), length);
            let sum = request.body.trailers.get("x-sum").map(str::to_owned);
            assert_eq!(
                sum.is_some(),
                length.is_none(),
                "only chunks have room for trailers"
            );
        }
    });
    fixture.is_well(2);
}

#[test]
fn cookie_crumbs_are_joined_in_order() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(
        1,
        &get(&[
            ("cookie", "a=1"),
            ("x-y", "z"),
            ("cookie", "b=2"),
            ("cookie", "c=3"),
        ]),
        true,
    );
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    assert_eq!(
        fixture.origin.last().fields.all("cookie"),
        ["a=1; b=2; c=3"]
    );
}

#[test]
fn requests_that_are_only_given_up_do_not_flood_the_backend() {
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
    fixture.is_well(seen);
}

#[test]
fn a_client_that_gives_up_half_of_its_requests_is_served() {
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
        ended.await.expect("told").expect("an orderly end");
    });
}

#[test]
fn endless_header_blocks_end_the_connection() {
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
    fixture.is_well(0);
}

#[test]
fn an_unfinished_header_block_ends_the_connection() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = Duration::from_millis(800);
    });
    let began = Instant::now();
    let mut raw = Raw::open(&fixture, &[]);
    raw.send(HEADERS, END_STREAM, 1, &block(&get(&[])));
    raw.client.rest();
    assert!(began.elapsed() > Duration::from_millis(600));
    let stats = &fixture.server.state().stats.connections;
    assert_eq!(stats.timeouts(TimeoutKind::Header), 1);
    fixture.is_well(0);
}

#[test]
fn an_unfinished_header_block_beside_a_busy_stream_ends_the_connection() {
    let fixture = Fixture::new(Origin::start(|peer| {
        while let Some(request) = peer.request() {
            // The other request is never answered.
            if request.target() == "/fresh" {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        }
    }));
    let began = Instant::now();
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&[]), true);
    fixture
        .origin
        .until("the request", |origin| origin.requests().len() == 1);
    raw.send(HEADERS, END_STREAM, 3, &block(&get(&[])));
    // Only missing answers to pings give it away: 15 s until the first, 10 s for its answer.
    raw.client.patience(Duration::from_secs(30));
    raw.client.rest();
    assert!(began.elapsed() < Duration::from_secs(30));
    fixture.is_well(1);
}

#[test]
fn a_connection_without_requests_ends() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = Duration::from_millis(800);
        settings.limits.keep_alive_timeout = Duration::from_millis(800);
        settings.limits.write_timeout = Duration::from_millis(800);
    });
    // Nothing but the preface, and a request with silence behind it.
    let mut silent = Raw::open(&fixture, &[]);
    let mut idle = Raw::open(&fixture, &[]);
    idle.request(1, &get(&[]), true);
    assert_eq!(idle.outcome(1), Outcome::Status(200));
    silent.client.rest();
    idle.client.rest();
    block_on(async {
        let (sender, ended) = h2::connect_tls(fixture.https(), HOST).await;
        let request = h2::get(&format!("https://{HOST}/x"));
        let (head, _) = h2::ask(&sender, request).await.expect("an answer");
        assert_eq!(head.status, 200);
        ended.await.expect("told").expect("an orderly end");
    });
    fixture.is_well(2);
}

#[test]
fn tls_without_a_preface_ends() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.header_timeout = Duration::from_millis(800);
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
    fixture.is_well(0);
}

#[test]
fn streams_behind_a_closed_window_are_reset_and_nothing_else_is() {
    const SIZE: usize = 1 << 20;
    let (tell, told) = std::sync::mpsc::channel();
    let fixture = Fixture::with(
        Origin::start(move |peer| {
            while let Some(request) = peer.request() {
                if request.target() == "/fresh" {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                    continue;
                }
                peer.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                    32 * SIZE
                ));
                let sent = peer.send_until_full(32 * SIZE, Duration::from_millis(300));
                // The test has ended, if nobody listens.
                let _ = tell.send(sent);
                peer.rest();
            }
        }),
        |settings| settings.limits.write_timeout = Duration::from_secs(2),
    );
    // The windows of streams are empty.
    let mut raw = Raw::open(&fixture, &[(4, 0)]);
    for stream in [1, 3, 5, 7] {
        raw.request(stream, &get(&[]), true);
    }
    for _ in 0..4 {
        let sent = told
            .recv_timeout(crate::harness::PATIENCE)
            .expect("the origin was stopped");
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
    let stats = &fixture.server.state().stats.connections;
    assert_eq!(stats.timeouts(TimeoutKind::Write), 4);
}

#[test]
fn a_body_that_does_not_come_ends_its_stream() {
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.body_timeout = Duration::from_millis(800);
    });
    let mut raw = Raw::open(&fixture, &[]);
    let mut fields = get(&[("content-length", "10")]);
    fields[0] = (":method", "POST");
    raw.request(1, &fields, false);
    raw.send(DATA, 0, 1, b"hello");
    let outcome = raw.outcome(1);
    assert!(
        matches!(outcome, Outcome::Reset(_) | Outcome::Status(408)),
        "{outcome:?}"
    );
    raw.request(3, &get(&[]), true);
    let next = std::iter::from_fn(|| raw.next()).find(|frame| frame.stream == 3);
    assert_eq!(next.expect("an answer").kind, HEADERS);
    fixture
        .origin
        .until("the abort", |origin| origin.ended() >= 1);
    fixture.is_well(2);
}

#[test]
fn a_cut_answer_is_a_reset() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let fixture = Fixture::new(Origin::answering_once(answer));
        block_on(async {
            let (sender, _ended) = h2::connect_tls(fixture.https(), HOST).await;
            let request = h2::get(&format!("https://{HOST}/x"));
            if let Ok((head, received)) = h2::ask(&sender, request).await {
                assert!(
                    received.error.is_some() || head.status == 502,
                    "{answer:?} looks whole: {received:?}"
                );
            }
        });
    }
}
