//! Unusual but valid HTTP/1 exchanges: expectations, responses without bodies, old clients,
//! trailers, pipelines. Relayed data is compared byte by byte.

use http::Request;

use crate::fixture::{Fixture, HOST};
use crate::harness::client::Client;
use crate::harness::h2;
use crate::harness::http::Fields;
use crate::harness::origin::Origin;

#[test]
fn sends_100_when_the_backend_reads_the_body() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    let head = format!(
        "POST /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    );
    client.send(head);
    let interim = client.wire.head().expect("an invitation");
    assert!(
        interim.start.starts_with("HTTP/1.1 100"),
        "{}",
        interim.start
    );
    client.send("hello");
    assert_eq!(client.response("POST").text(), "hello");
    assert_eq!(fixture.origin.last().body.bytes, b"hello");
    assert_eq!(fixture.origin.last().fields.all("expect"), ["100-continue"]);
    fixture.is_healthy(1);
}

#[test]
fn sends_no_100_to_rejected_request() {
    let fixture = Fixture::new(Origin::hello());
    for (target, host, expect, status) in [
        ("/x", "a, b", "100-continue", 400),
        ("/../x", HOST, "100-continue", 400),
        ("/x", HOST, "200-ok", 417),
    ] {
        let mut client = fixture.client();
        client.send(format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nExpect: {expect}\r\n\r\n"
        ));
        let answer = client.response("POST");
        assert_eq!((answer.status, answer.interim.len()), (status, 0));
        assert!(answer.closes());
        client.ends();
    }
    fixture.is_healthy(0);
}

#[test]
fn accepts_unsolicited_100_of_the_backend() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ));
    let answer = fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    fixture.is_healthy(1);
}

/// Returns an origin that sends 103 Early Hints before every response.
fn hinting() -> Origin {
    Origin::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    )
}

#[test]
fn forwards_informational_responses_in_the_order_of_a_pipeline() {
    let fixture = Fixture::new(hinting());
    let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    for mut client in [fixture.client(), Client::connect_tls(fixture.https(), HOST)] {
        client.send(request.repeat(3));
        for _ in 0..3 {
            let hints = client.wire.head().expect("hints");
            assert_eq!(hints.start, "HTTP/1.1 103 Early Hints");
            assert_eq!(hints.fields.all("link"), ["</a>"]);
            assert_eq!(hints.fields.get("x-hop"), None);
            let answer = client.response("GET");
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
            assert!(answer.interim.is_empty());
        }
    }
    fixture.is_healthy(6);
}

#[test]
fn sends_no_informational_response_to_http10() {
    let fixture = Fixture::new(hinting());
    let answer = fixture.round_trip(format!("GET /x HTTP/1.0\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!((answer.status, answer.interim.len()), (200, 0));
}

#[test]
fn relays_headers_without_values() {
    const EMPTY: &str =
        "X-None:\r\nX-Blanks:   \r\nX-Tab:\t\r\nX-List: a\r\nX-List:\r\nX-List: b\r\nX-Last: \r\n";
    let is_kept = |side: &str, all: &dyn Fn(&str) -> Vec<String>| {
        for name in ["x-none", "x-blanks", "x-tab", "x-last"] {
            assert_eq!(all(name), [""], "{side}: {name}");
        }
        assert_eq!(all("x-list"), ["a", "", "b"], "{side}");
    };
    let fixture = Fixture::new(Origin::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{EMPTY}\r\nhello"
    )));
    let texts =
        |fields: &Fields, name: &str| fields.all(name).into_iter().map(str::to_owned).collect();
    let answer = fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{EMPTY}\r\n"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    is_kept("HTTP/1 answer", &|name| texts(&answer.fields, name));
    let request = fixture.origin.last();
    is_kept("HTTP/1 request", &|name| texts(&request.fields, name));
    let mut request = Request::get(format!("http://{HOST}/x"));
    for line in EMPTY.lines() {
        let (name, value) = line.split_once(':').expect("a field");
        request = request.header(name, value.trim());
    }
    let (head, _) = h2::block_on(async {
        let (sender, _) = h2::connect(fixture.http()).await;
        h2::round_trip(&sender, request.body(()).expect("a request")).await
    })
    .expect("an answer");
    is_kept("HTTP/2 answer", &|name| {
        let values = head.headers.get_all(name).into_iter();
        values
            .map(|value| value.to_str().expect("text").to_owned())
            .collect()
    });
    let request = fixture.origin.last();
    is_kept("HTTP/2 request", &|name| texts(&request.fields, name));
    fixture.is_healthy(2);
}

#[test]
fn responses_without_bodies_end_with_their_heads() {
    let cases = [
        ("HEAD", "200 OK", "Content-Length: 1234\r\n", Some("1234")),
        ("HEAD", "200 OK", "Transfer-Encoding: chunked\r\n", None),
        ("HEAD", "404 Not Found", "Content-Length: 5\r\n", Some("5")),
        ("GET", "204 No Content", "", None),
        (
            "GET",
            "304 Not Modified",
            "Content-Length: 1234\r\nETag: \"x\"\r\n",
            Some("1234"),
        ),
        ("GET", "304 Not Modified", "ETag: \"x\"\r\n", None),
        ("GET", "200 OK", "Content-Length: 0\r\n", Some("0")),
    ];
    for (method, status, fields, length) in cases {
        let fixture = Fixture::new(Origin::answering(format!(
            "HTTP/1.1 {status}\r\n{fields}\r\n"
        )));
        let mut client = fixture.client();
        for round in 1..=3 {
            let answer = client.round_trip(format!("{method} /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
            assert!(
                answer.start.ends_with(status),
                "{method} {status}: {}",
                answer.start
            );
            assert_eq!(
                answer.fields.get("content-length"),
                length,
                "{method} {status} {fields}"
            );
            assert!(answer.body.complete && answer.body.bytes.is_empty());
            assert_eq!(fixture.origin.requests().len(), round);
        }
        assert_eq!(
            fixture.origin.connections(),
            1,
            "{method} {status}: the connection is kept"
        );
    }
}

#[test]
fn http10_clients_get_http10_framing() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for answer in [chunked, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"] {
        let fixture = Fixture::new(Origin::answering(answer));
        for host in ["Host: a.example\r\n", ""] {
            let mut client = fixture.client();
            let answer = client.round_trip(format!("GET /x HTTP/1.0\r\n{host}\r\n"));
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
            assert_eq!(answer.fields.get("transfer-encoding"), None);
            assert!(answer.body.complete);
            client.ends();
        }
        let request = fixture.origin.last();
        assert_eq!(request.start, "GET /x HTTP/1.1");
    }
}

#[test]
fn http10_clients_can_use_keep_alive() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    for _ in 0..3 {
        let answer = client.round_trip(format!(
            "GET /x HTTP/1.0\r\nHost: {HOST}\r\nConnection: keep-alive\r\n\r\n"
        ));
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.fields.get("connection"), Some("keep-alive"));
    }
    let answer = client.round_trip(format!(
        "POST /x HTTP/1.0\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nhello"
    ));
    assert_eq!(answer.status, 200);
    client.ends();
}

#[test]
fn relays_request_trailers() {
    let fixture = Fixture::new(Origin::hello());
    let trailers = "X-Sum: 1\r\nAuthorization: no\r\nContent-Length: 7\r\nHost: evil\r\n";
    let answer = fixture.round_trip(format!(
        "POST /x HTTP/1.1\r\nHost: {HOST}\r\nTE: trailers\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n{trailers}\r\n"
    ));
    assert_eq!(answer.status, 200);
    let request = fixture.origin.last();
    assert_eq!(request.body.bytes, b"hello");
    assert_eq!(request.body.trailers.get("x-sum"), Some("1"));
    assert_eq!(
        request.body.trailers.0.len(),
        1,
        "{:?}",
        request.body.trailers
    );
    fixture.is_healthy(1);
}

#[test]
fn relays_response_trailers() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 7\r\n\r\n",
    ));
    let send =
        |te: &str| fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{te}\r\n"));
    let answer = send("TE: trailers\r\nConnection: te\r\n");
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.body.trailers.get("x-sum"), Some("1"));
    assert_eq!(
        answer.body.trailers.0.len(),
        1,
        "{:?}",
        answer.body.trailers
    );
    assert_eq!(send("").text(), "hello");
    fixture.is_healthy(2);
}

#[test]
fn responds_to_pipelined_requests_in_order() {
    let fixture = Fixture::new(Origin::start(|peer| {
        while let Some(request) = peer.request() {
            let target = request.target();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}",
                target.len()
            ));
        }
    }));
    for mut client in [fixture.client(), Client::connect_tls(fixture.https(), HOST)] {
        let before = fixture.origin.requests().len();
        let requests: String = (0..20)
            .map(|index| match index % 3 {
                0 => format!("GET /{index} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"),
                1 => format!("POST /{index} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nhello"),
                _ => format!(
                    "POST /{index} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                ),
            })
            .collect();
        client.send(requests);
        for index in 0..20 {
            assert_eq!(client.response("GET").text(), format!("/{index}"));
        }
        assert_eq!(fixture.origin.requests().len(), before + 20);
    }
}

#[test]
fn rejected_request_ends_a_pipeline() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    let good = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    client.send(format!("{good}GET /y HTTP/1.1\r\n\r\n{good}"));
    assert_eq!(client.response("GET").status, 200);
    assert_eq!(client.response("GET").status, 400);
    client.ends();
    fixture.is_healthy(1);
}

#[test]
fn honors_connection_close_of_the_client() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    let request = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    client.send(request.repeat(2));
    let answer = client.response("GET");
    assert!(answer.closes());
    client.ends();
    assert_eq!(
        fixture.origin.last().fields.all("connection"),
        Vec::<&str>::new()
    );
    fixture.is_healthy(1);
}

#[test]
fn relays_body_bytes_unchanged() {
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let fixture = Fixture::new(Origin::start(|peer| {
        while let Some(request) = peer.request() {
            let body = &request.body.bytes;
            let head = if request.target() == "/chunked" {
                "Transfer-Encoding: chunked".to_owned()
            } else {
                format!("Content-Length: {}", body.len())
            };
            peer.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n"));
            if request.target() == "/chunked" {
                for piece in body.chunks(70_001) {
                    peer.send(format!("{:x}\r\n", piece.len()));
                    peer.send(piece);
                    peer.send("\r\n");
                }
                peer.send("0\r\n\r\n");
            } else {
                peer.send(body);
            }
        }
    }));
    for mut client in [fixture.client(), Client::connect_tls(fixture.https(), HOST)] {
        for target in ["/length", "/chunked"] {
            let mut request = format!("POST {target} HTTP/1.1\r\nHost: {HOST}\r\n").into_bytes();
            if target == "/chunked" {
                request.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for piece in body.chunks(10_007) {
                    request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                    request.extend_from_slice(piece);
                    request.extend_from_slice(b"\r\n");
                }
                request.extend_from_slice(b"0\r\n\r\n");
            } else {
                request.extend_from_slice(
                    format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(),
                );
                request.extend_from_slice(&body);
            }
            let answer = client.round_trip(request);
            assert_eq!(answer.status, 200);
            assert!(
                answer.body.complete && answer.body.bytes == body,
                "{target}: bytes differ"
            );
        }
    }
}
