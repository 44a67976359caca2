//! HTTP/2 requests with conflicting meanings, also after translation to HTTP/1 (C): rejected, or
//! translated so that both sides agree.

use bytes::Bytes;
use http::{HeaderMap, Request};

use crate::fixture::{Fixture, HOST};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Outcome, Raw, block, frame, get,
};
use crate::harness::h2::{self, block_on};
use crate::harness::origin::Origin;

const PROTOCOL_ERROR: u32 = 1;

/// Sends each request on its own connection; expects one of these outcomes, and that none reaches
/// the origin.
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
    fixture.is_healthy(0);
}

const BAD: [Outcome; 3] = [
    Outcome::Status(400),
    Outcome::Reset(PROTOCOL_ERROR),
    Outcome::GoAway(PROTOCOL_ERROR),
];

#[test]
fn serves_plain_request() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&[("x-other", "y")]), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let request = fixture.origin.last();
    assert_eq!(request.start, "GET /x HTTP/1.1");
    assert_eq!(request.fields.all("host"), [HOST]);
    assert_eq!(request.fields.all("x-other"), ["y"]);
    fixture.is_healthy(1);
}

#[test]
fn rejects_conflicting_or_invalid_hosts() {
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
fn host_header_replaces_missing_authority() {
    let fixture = Fixture::new(Origin::hello());
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/x"),
        ("host", HOST),
    ];
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &fields, true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    assert_eq!(fixture.origin.last().fields.all("host"), [HOST]);
}

#[test]
fn rejects_connection_specific_headers() {
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
fn rejects_malformed_heads() {
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
        ],
        &BAD,
    );
}

#[test]
fn resets_requests_with_pseudo_fields_in_trailers() {
    let fixture = Fixture::new(Origin::hello());
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/x"),
        (":authority", HOST),
    ];
    let with_length = [&fields[..], &[("content-length", "5")]].concat();
    // `:path: /a` enters the dynamic table of HPACK with the head, and is an index in trailers.
    let added = [
        block(&fields[..2]),
        b"\x44\x02/a".to_vec(),
        block(&fields[3..]),
    ]
    .concat();
    for (head, trailers) in [
        (block(&fields), block(&[(":path", "/y")])),
        (block(&fields), block(&[(":status", "200")])),
        (block(&fields), block(&[(":method", "GET"), ("x", "y")])),
        (block(&with_length), block(&[(":path", "/y")])),
        (added, vec![0xbe]),
    ] {
        for cut in [0, trailers.len()] {
            let mut raw = Raw::open(&fixture, &[]);
            let (begin, rest) = trailers.split_at(cut);
            // At once, so that no response precedes the trailers.
            raw.client.send(
                [
                    frame(HEADERS, END_HEADERS, 1, &head),
                    frame(DATA, 0, 1, b"hello"),
                    frame(HEADERS, END_STREAM, 1, begin),
                    frame(CONTINUATION, END_HEADERS, 1, rest),
                ]
                .concat(),
            );
            assert_eq!(
                raw.outcome(1),
                Outcome::Reset(PROTOCOL_ERROR),
                "{trailers:?}"
            );
            // The connection serves others.
            raw.request(3, &get(&[]), true);
            assert!(matches!(raw.outcome(3), Outcome::Status(_)));
        }
    }
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &fields, false);
    raw.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x", "y")]));
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    fixture.serves();
}

#[test]
fn rejects_malformed_targets_and_methods() {
    let request = |method, path, host| {
        vec![
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (host, HOST),
        ]
    };
    refused(
        &[
            request("GET", "", ":authority"),
            request("GET", "x", ":authority"),
            request("GET", "?x", ":authority"),
            request("GET", "?x", "host"),
            request("GET", "*", ":authority"),
            request("GET", "/a/../x", ":authority"),
            request("GET", "/x y", ":authority"),
            request("GET", "/x HTTP/1.1\r\nx: y", ":authority"),
            request("G T", "/x", ":authority"),
            request("GET / HTTP/1.1\r\nx:", "/x", ":authority"),
        ],
        &BAD,
    );
}

#[test]
fn rejects_methods_not_allowed_for_gateways() {
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
                (":protocol", "connect-udp"),
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

/// RFC 8441, 4.
#[test]
fn rejects_malformed_extended_connect() {
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/x"),
        (":authority", HOST),
    ];
    let mut requests = Vec::new();
    for missing in 2..connect.len() {
        let mut fields = connect.to_vec();
        fields.remove(missing);
        requests.push(fields);
    }
    for more in [
        ("content-length", "0"),
        ("content-length", "5"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("transfer-encoding", "chunked"),
        ("host", "b.example"),
    ] {
        requests.push([&connect[..], &[more]].concat());
    }
    let mut get = connect.to_vec();
    get[0] = (":method", "GET");
    requests.push(get);
    let mut twice = connect.to_vec();
    twice.insert(1, (":protocol", "websocket"));
    requests.push(twice);
    refused(&requests, &BAD);
}

#[test]
fn rejects_too_many_headers() {
    let many: Vec<_> = (0..101).map(|index| format!("x-{index}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "y")).collect();
    let long = "y".repeat(40 * 1024);
    let fixture = Fixture::with(Origin::hello(), |settings| {
        settings.limits.max_header_bytes = 32 * 1024;
    });
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
    fixture.is_healthy(0);
}

#[test]
fn body_that_differs_from_its_length_is_not_completed() {
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
    type Input<'a> = (Vec<(&'a str, &'a str)>, &'a [u8]);
    let inputs: [Input<'_>; 9] = [
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
    fixture.is_healthy(requests.len());
}

#[test]
fn relays_bodies_with_and_without_length() {
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
    fixture.is_healthy(2);
}

#[test]
fn joins_cookie_crumbs_in_order() {
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

/// The limit of headers counts them as over HTTP/1.1, where they are one.
#[test]
fn cookies_in_many_fields_are_one_header() {
    let fixture = Fixture::new(Origin::hello());
    let cookies: Vec<_> = (0..120).map(|index| format!("c{index}=v")).collect();
    let fields: Vec<_> = cookies.iter().map(|it| ("cookie", it.as_str())).collect();
    let mut raw = Raw::open(&fixture, &[]);
    raw.request(1, &get(&fields), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let request = fixture.origin.last();
    assert_eq!(request.fields.all("cookie"), [cookies.join("; ")]);
}

/// RFC 9110, 8.6: the length of content is said for methods that have some.
#[test]
fn methods_with_content_say_that_there_is_none() {
    let fixture = Fixture::new(Origin::hello());
    let mut raw = Raw::open(&fixture, &[]);
    let cases = [
        ("POST", Some("0")),
        ("PUT", Some("0")),
        ("PATCH", Some("0")),
        ("GET", None),
        ("DELETE", None),
        ("OPTIONS", None),
    ];
    for (stream, (method, length)) in (1..).step_by(2).zip(cases) {
        let mut fields = get(&[]);
        fields[0] = (":method", method);
        raw.request(stream, &fields, true);
        assert_eq!(raw.outcome(stream), Outcome::Status(200));
        let request = fixture.origin.last();
        assert_eq!(request.fields.get("content-length"), length, "{method}");
        assert_eq!(request.fields.get("transfer-encoding"), None, "{method}");
    }
}

#[test]
fn truncated_response_resets_the_stream() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let fixture = Fixture::new(Origin::answering_once(answer));
        block_on(async {
            let (sender, _ended) = h2::connect_tls(fixture.https(), HOST).await;
            let request = h2::get(&format!("https://{HOST}/x"));
            if let Ok((head, received)) = h2::round_trip(&sender, request).await {
                assert!(
                    received.error.is_some() || head.status == 502,
                    "{answer:?} looks whole: {received:?}"
                );
            }
        });
    }
}
