//! Requests with broken framing or syntax (A): each is rejected, closes its connection, and is
//! never parsed in a second way.

use crate::fixture::{Fixture, HOST};
use crate::harness::origin::Origin;

/// A smuggled request.
const TAIL: &str = "GET /evil HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Sends each input with `TAIL` in the same packet; expects one of these statuses and nothing after
/// it.
fn refused(inputs: &[&str], statuses: &[u16]) {
    let fixture = Fixture::new(Origin::hello());
    for input in inputs {
        let shown = &input[..input.len().min(120)];
        let mut client = fixture.client();
        client.send(format!("{input}{TAIL}"));
        let answer = client.response("GET");
        assert!(
            statuses.contains(&answer.status),
            "{shown:?} got {}",
            answer.start
        );
        let rest = client.rest();
        assert!(
            rest.is_empty(),
            "{shown:?} got more: {}",
            String::from_utf8_lossy(&rest)
        );
    }
    fixture.is_healthy(0);
}

/// Returns a `POST` with these header lines and a body.
fn post(lines: &str, body: &str) -> String {
    format!("POST /x HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n\r\n{body}")
}

#[test]
fn rejects_content_length_with_chunked() {
    let fixture = Fixture::new(Origin::hello());
    let orders = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    ];
    for (index, lines) in orders.iter().enumerate() {
        let mut client = fixture.client();
        client.send(format!("{}{TAIL}", post(lines, "3\r\nabc\r\n0\r\n\r\n")));
        let answer = client.response("POST");
        client.ends();
        if answer.status == 400 {
            continue;
        }
        assert_eq!(answer.status, 200, "{lines}");
        let requests = fixture.origin.requests();
        assert_eq!(requests.len(), index + 1, "{requests:#?}");
        let request = &requests[index];
        assert_eq!(request.body.bytes, b"abc");
        assert_eq!(request.fields.all("content-length"), Vec::<&str>::new());
        assert_eq!(request.fields.all("transfer-encoding"), ["chunked"]);
    }
    fixture.serves();
}

#[test]
fn rejects_differing_content_lengths() {
    let inputs = [
        post("Content-Length: 5\r\nContent-Length: 6", "helloG"),
        post("Content-Length: 5, 6", "helloG"),
        post("Content-Length: 5,5", "hello"),
        post("Content-Length: +5", "hello"),
        post("Content-Length: -5", "hello"),
        post("Content-Length: 0x5", "hello"),
        post("Content-Length: 5 5", "hello"),
        post("Content-Length:", "hello"),
        post("Content-Length: 18446744073709551621", "hello"),
    ];
    refused(&inputs.each_ref().map(String::as_str), &[400]);
}

#[test]
fn merges_equal_content_lengths() {
    let fixture = Fixture::new(Origin::hello());
    let answer = fixture.round_trip(post("Content-Length: 5\r\nContent-Length: 5", "hello"));
    assert_eq!(answer.status, 200);
    let request = fixture.origin.last();
    assert_eq!(request.fields.all("content-length"), ["5"]);
    assert_eq!(request.body.bytes, b"hello");
}

#[test]
fn rejects_codings_other_than_chunked() {
    let body = "5\r\nhello\r\n0\r\n\r\n";
    let codings = [
        "chunked, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "identity",
        "xchunked",
        ",chunked",
        "chunked,",
        "\"chunked\"",
        "chunked;q=1",
        "cow, chunked",
        "chunked\r\nTransfer-Encoding: chunked",
        "identity\r\nTransfer-Encoding: chunked",
        "chunked\r\nTransfer-Encoding: identity",
        "\u{b}chunked",
        "",
    ];
    let inputs = codings.map(|coding| post(&format!("Transfer-Encoding: {coding}"), body));
    refused(&inputs.each_ref().map(String::as_str), &[400, 501]);
}

#[test]
fn http10_requests_need_a_content_length() {
    let old =
        |lines: &str, body: &str| format!("POST /x HTTP/1.0\r\nHost: {HOST}\r\n{lines}\r\n{body}");
    let inputs = [
        old("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        old(
            "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n",
            "0\r\n\r\n",
        ),
        old("", "hello"),
        old("Connection: keep-alive\r\n", ""),
    ];
    refused(&inputs.each_ref().map(String::as_str), &[400]);
}

#[test]
fn rejects_malformed_headers() {
    let lines = [
        "X-Y : z",
        "X-Y\t: z",
        "X-Y: z\r\n folded",
        "X-Y: z\r\n\tfolded",
        "no colon",
        ": no name",
        "X-Y: a\0b",
        "X-Y: a\rb",
        "X-Y: a\u{7f}b",
        "X-Y: a\u{1}b",
        "X(Y): z",
        "X Y: z",
        "X\u{e9}Y: z",
        "\"X\": z",
    ];
    let inputs = lines.map(|line| format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{line}\r\n\r\n"));
    refused(&inputs.each_ref().map(String::as_str), &[400]);
    let first = [
        format!("GET /x HTTP/1.1\r\n Host: {HOST}\r\n\r\n"),
        format!("GET /x HTTP/1.1\r\n\tX: y\r\nHost: {HOST}\r\n\r\n"),
    ];
    refused(&first.each_ref().map(String::as_str), &[400]);
}

#[test]
fn rejects_malformed_request_lines() {
    let lines = [
        "G(T /x HTTP/1.1",
        "GE\u{1}T /x HTTP/1.1",
        "G\u{e9}T /x HTTP/1.1",
        "GET /x HTTP/1.2",
        "GET /x HTTP/2.0",
        "GET /x HTTP/3.0",
        "GET /x http/1.1",
        "GET /x HTTP/1.1 ",
        "GET /x HTTP/01.1",
        "GET /x",
        "GET  /x HTTP/1.1",
        "GET /x  HTTP/1.1",
        " GET /x HTTP/1.1",
        "GET /x\0y HTTP/1.1",
        "GET /x\u{7f} HTTP/1.1",
        "GET /x y HTTP/1.1",
        "GET ! HTTP/1.1",
        "GET x HTTP/1.1",
        "GET * HTTP/1.1",
        "GET ?x HTTP/1.1",
    ];
    let inputs = lines.map(|line| format!("{line}\r\nHost: {HOST}\r\n\r\n"));
    refused(&inputs.each_ref().map(String::as_str), &[400, 505]);
}

#[test]
fn rejects_oversized_heads() {
    let long = "x".repeat(70 * 1024);
    let many: String = (0..100).map(|index| format!("X-{index}: y\r\n")).collect();
    let inputs = [
        format!("GET /{long} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"),
        format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nX-Long: {long}\r\n\r\n"),
        format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{many}\r\n"),
    ];
    refused(&inputs.each_ref().map(String::as_str), &[414, 431]);
}

#[test]
fn serves_head_with_a_hundred_headers() {
    let fixture = Fixture::new(Origin::hello());
    let many: String = (0..99).map(|index| format!("X-{index}: y\r\n")).collect();
    let answer = fixture.round_trip(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n{many}\r\n"));
    assert_eq!(answer.status, 200);
    assert_eq!(fixture.origin.last().fields.all("x-98"), ["y"]);
}

#[test]
fn rejects_oversized_head_in_single_bytes() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    let head = format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n");
    let line = format!("X: {}\r\n", "y".repeat(1020));
    let bytes = head.bytes().chain(line.bytes().cycle().take(128 << 10));
    for byte in bytes {
        assert!(client.send([byte]), "the refusal would be lost");
    }
    assert_eq!(client.response("GET").status, 431);
    client.ends();
    fixture.is_healthy(0);
}

#[test]
fn reads_bodies_of_any_method() {
    let fixture = Fixture::new(Origin::hello());
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        let before = fixture.origin.requests().len();
        let mut client = fixture.client();
        let body = format!("Content-Length: {}\r\n\r\n{TAIL}", TAIL.len());
        let answer = client.round_trip(format!("{method} /x HTTP/1.1\r\nHost: {HOST}\r\n{body}"));
        assert_eq!(answer.status, 200, "{method}");
        let request = fixture.origin.last();
        assert_eq!((request.method(), request.target()), (method, "/x"));
        assert_eq!(request.body.bytes, TAIL.as_bytes());
        let next = client.round_trip(format!("GET /next HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        assert_eq!(next.status, 200);
        assert_eq!(fixture.origin.requests().len(), before + 2);
        assert_eq!(fixture.origin.last().target(), "/next");
    }
}

#[test]
fn unread_bodies_are_not_parsed_as_requests() {
    let fixture = Fixture::new(Origin::hello());
    let rule = "{matches: [{path: {type: PathPrefix, value: /moved}}], \
                filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302, hostname: b.example}}]}";
    let named = "{matches: [{path: {type: PathPrefix, value: /next}}], backendRefs: [{name: origin, port: 80}]}";
    let mut documents = crate::fixture::documents(fixture.origin.address, "");
    let rules = format!("[{rule}, {named}]");
    documents[1] = crate::harness::yaml::route("route", "gateway", &[], &rules);
    let server = crate::harness::server::TestServer::start(&documents);
    let long = TAIL.repeat(20_000);
    for (path, status) in [("/moved", 302), ("/missing", 404)] {
        for body in [TAIL, &long] {
            for chunked in [false, true] {
                let mut client = crate::harness::client::Client::connect(server.at(80));
                let (field, body) = if chunked {
                    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
                    ("Transfer-Encoding: chunked".to_owned(), body)
                } else {
                    (format!("Content-Length: {}", body.len()), body.to_owned())
                };
                let head = format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{field}\r\n\r\n");
                client.send(head + &body + "GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n");
                match client.try_response("POST") {
                    Ok(answer) => assert_eq!(answer.status, status, "{path}"),
                    // Data in flight has caused a reset.
                    Err(_) => assert!(body.len() > 100_000, "{path}: no answer"),
                }
                if let Ok(next) = client.try_response("GET") {
                    assert_eq!(next.status, 200);
                    assert_eq!(fixture.origin.last().target(), "/next");
                }
            }
        }
    }
    let strangers: Vec<_> = fixture.origin.requests();
    assert!(
        strangers.iter().all(|request| request.target() == "/next"),
        "{strangers:#?}"
    );
}

#[test]
fn malformed_chunks_abort_the_request() {
    let fixture = Fixture::new(Origin::hello());
    let bodies = [
        "zz\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
        "\r\n",
    ];
    for body in bodies {
        let mut client = fixture.client();
        client.send(post("Transfer-Encoding: chunked", body) + TAIL);
        let answer = client.response("POST");
        assert!(
            [400, 502].contains(&answer.status),
            "{body:?} got {}",
            answer.start
        );
        client.ends();
    }
    let requests = fixture.origin.requests();
    assert!(
        requests.iter().all(|request| request.target() == "/x"),
        "{requests:#?}"
    );
    let whole: Vec<_> = requests
        .iter()
        .filter(|request| request.body.complete)
        .collect();
    assert!(whole.is_empty(), "completed short: {whole:#?}");
    // The origin notes a request when its body ends, which may be later.
    fixture.serves();
}

#[test]
fn truncated_body_is_not_completed() {
    let fixture = Fixture::new(Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    }));
    for (lines, body) in [
        ("Content-Length: 10", "hello"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhello"),
    ] {
        let before = fixture.origin.ended();
        let mut client = fixture.client();
        client.send(post(lines, body));
        fixture
            .origin
            .until("the request", |origin| origin.connections() > before);
        drop(client);
        fixture
            .origin
            .until("its end", |origin| origin.ended() > before);
        assert!(!fixture.origin.last().body.complete, "{lines} {body:?}");
    }
    fixture.is_healthy(3);
}

#[test]
fn parses_bare_line_feeds_and_leading_lines_consistently() {
    let fixture = Fixture::new(Origin::hello());
    for input in [
        format!("\r\n\r\nGET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n"),
        format!("GET /x HTTP/1.1\nHost: {HOST}\nX-Y: z\n\n"),
    ] {
        assert_eq!(fixture.round_trip(&input).status, 200, "{input:?}");
        let raw = fixture.origin.raw(fixture.origin.last().connection);
        let lone = raw
            .windows(2)
            .any(|pair| pair[1] == b'\n' && pair[0] != b'\r');
        assert!(!lone, "{}", String::from_utf8_lossy(&raw));
    }
    fixture.is_healthy(2);
}
