//! Backend behavior besides final responses: unprocessed streams, stream limits, and oversized
//! heads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use http::Response as Head;
use tokio::sync::Barrier;

use crate::fixture::{Fixture, HOST};
use crate::frames::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame};
use crate::harness::client::Client;
use crate::harness::h2;
use crate::harness::origin::{HELLO, Origin, Peer};
use crate::harness::server::TestServer;
use crate::harness::tls::Certificate;
use crate::harness::yaml;

const GET: &str = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n";
const POST: &str = "POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello";

/// Returns a data plane in front of a backend that speaks HTTP/2 in plain text.
fn before(origin: SocketAddr) -> TestServer {
    TestServer::start(&[
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::route("route", "gateway", &[], &yaml::all_to("origin")),
        yaml::service_of("origin", &[origin], "kubernetes.io/h2c"),
        yaml::secret("certificate", &Certificate::new(&[HOST])),
    ])
}

/// Reads up to the next HEADERS frame; returns its stream id.
fn stream(peer: &mut Peer) -> Option<u32> {
    loop {
        let head = peer.wire.take(9).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        peer.wire.take(length).ok()?;
        if head[3] == HEADERS {
            return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
    }
}

/// Returns an origin that runs `first` for the first stream of its first connection and responds to
/// all other streams.
fn failing_first(first: impl Fn(&mut Peer, u32) + Send + Sync + 'static) -> Origin {
    Origin::start(move |peer| {
        if peer.wire.take(24).is_err() {
            return;
        }
        peer.send(frame(SETTINGS, 0, 0, &[]));
        while let Some(stream) = stream(peer) {
            if peer.index == 0 {
                first(peer, stream);
            } else {
                // A 200 response in HPACK.
                peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88]));
            }
        }
    })
}

#[test]
fn retries_stream_above_goaway_on_another_connection() {
    for request in [GET, POST] {
        let origin = failing_first(|peer, _| {
            peer.send(frame(GOAWAY, 0, 0, &[0; 8]));
        });
        let server = before(origin.address);
        let response = Client::connect(server.at(80)).round_trip(request);
        assert_eq!(response.status, 200, "{request}");
        assert_eq!(origin.connections(), 2);
    }
}

#[test]
fn retries_refused_stream_at_the_only_endpoint() {
    for request in [GET, POST] {
        let origin = failing_first(|peer, stream| {
            peer.send(frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()));
        });
        let server = before(origin.address);
        let response = Client::connect(server.at(80)).round_trip(request);
        assert_eq!(response.status, 200, "{request}");
    }
}

#[test]
fn serves_cold_burst_beyond_the_backends_limit_of_streams() {
    const BURST: usize = 30;
    // Responds once all requests have arrived, which requires more than one connection per worker.
    let all = Arc::new(Barrier::new(BURST));
    let origin = h2::Origin::limited(10, move |_, mut respond| {
        let all = all.clone();
        Box::pin(async move {
            all.wait().await;
            // Ignored: the stream may have been reset.
            let _ = respond.send_response(Head::new(()), true);
        })
    });
    let server = before(origin.address);
    let address = server.at(80);
    let burst: Vec<_> = (0..BURST)
        .map(|_| thread::spawn(move || Client::connect(address).round_trip(POST).status))
        .collect();
    for request in burst {
        assert_eq!(request.join().expect("no panic"), 200);
    }
}

#[test]
fn responds_502_to_heads_beyond_the_limits() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(2000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(11));
    for (head, flag) in [(long, "--max-header-bytes"), (many, "--max-headers")] {
        let fixture = Fixture::with(Origin::answering_once(head), |settings| {
            settings.limits.max_header_bytes = 1000;
            settings.limits.max_headers = 10;
        });
        let response = fixture.round_trip(GET);
        assert_eq!(response.status, 502);
        assert!(response.text().contains(flag), "{}", response.text());
    }
}

#[test]
fn relays_the_beginning_of_a_response_that_breaks_at_once() {
    const BROKEN: &str =
        "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n";
    let fixture = Fixture::new(Origin::answering(BROKEN));
    for _ in 0..5 {
        let response = fixture.round_trip(POST);
        assert_eq!(response.status, 201);
        assert_eq!(response.body.bytes, b"abc");
        assert!(!response.body.complete);
    }
    h2::block_on(async {
        let (sender, _ended) = h2::connect(fixture.http()).await;
        for _ in 0..5 {
            let request = h2::get(&format!("http://{HOST}/x"));
            let (head, received) = h2::round_trip(&sender, request).await.expect("a head");
            assert_eq!(head.status, 201);
            assert_eq!(received.bytes, b"abc");
            assert!(received.error.is_some());
        }
    });
}

#[test]
fn relays_upgrade_of_426() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: TLS/1.2\r\nContent-Length: 0\r\n\r\n",
    ));
    let response = fixture.round_trip(GET);
    assert_eq!(response.status, 426);
    assert_eq!(response.fields.get("upgrade"), Some("TLS/1.2"));
}

const EXPECTING: &str =
    "POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";

#[test]
fn requests_body_when_backend_sends_100() {
    let fixture = Fixture::new(Origin::start(|peer| {
        while let Some(mut request) = peer.head() {
            peer.send("HTTP/1.1 100 Continue\r\n\r\n");
            peer.body(&mut request);
            peer.send(HELLO);
        }
    }));
    let mut client = fixture.client();
    for _ in 0..2 {
        client.send(EXPECTING);
        let interim = client.wire.head().expect("a 100");
        assert!(interim.start.starts_with("HTTP/1.1 100"));
        client.send("hello");
        assert_eq!(client.response("POST").text(), "hello");
        assert_eq!(fixture.origin.last().body.bytes, b"hello");
    }
    assert_eq!(fixture.origin.connections(), 1);
}

#[test]
fn relays_final_response_to_an_expectation_without_the_body() {
    let fixture = Fixture::new(Origin::start(|peer| {
        while peer.head().is_some() {
            peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
        }
    }));
    for round in 1..=2 {
        let mut client = fixture.client();
        client.send(EXPECTING);
        let response = client.response("POST");
        assert_eq!((response.status, response.interim.len()), (413, 0));
        assert!(response.closes(), "the client would send its next request");
        client.ends();
        assert_eq!(fixture.origin.connections(), round);
    }
}

#[test]
fn relays_informational_responses() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ));
    let mut client = fixture.client();
    client.send(GET);
    let early = client.wire.head().expect("early hints");
    assert!(early.start.starts_with("HTTP/1.1 103"));
    assert_eq!(early.fields.get("link"), Some("</a.css>"));
    assert_eq!(early.fields.get("x-hop"), None);
    let response = client.response("GET");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}
