//! Misbehaving backends (H): invalid responses become 502, truncated ones are visibly truncated,
//! and requests with possible effects are never sent twice.

use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::fixture::{Fixture, HOST, documents, scripted};
use crate::harness::TEST_TIMEOUT;
use crate::harness::client::{Client, get};
use crate::harness::origin::{HELLO, Origin, Peer};
use crate::harness::ports::closed_address;
use crate::harness::server::TestServer;

fn request(method: &str, target: &str) -> String {
    let length = if method == "POST" {
        "Content-Length: 5\r\n\r\nhello"
    } else {
        "\r\n"
    };
    format!("{method} {target} HTTP/1.1\r\nHost: {HOST}\r\n{length}")
}

#[test]
fn ambiguous_response_heads_are_502() {
    let long = "x".repeat(70 * 1024);
    let many: String = (0..200).map(|index| format!("X-{index}: y\r\n")).collect();
    let heads = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nX-Y: a\0b\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nX-Y: a\rb\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nX-Y : z\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nX(Y): z\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 99 Low\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 2000 High\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 abc OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "ICY 200 OK\r\n\r\nhello".to_owned(),
        "hello\r\n\r\n".to_owned(),
        "\0\0\0\u{12}\u{4}\0\0\0\0\0\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\nX-Long: {long}\r\nContent-Length: 5\r\n\r\nhello"),
        format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 5\r\n\r\nhello"),
        "HTTP/1.1 200 OK\r\nContent-Len".to_owned(),
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
        String::new(),
    ];
    for head in heads {
        let sent = head.clone();
        let fixture = Fixture::new(scripted(move |peer| {
            peer.send(&sent);
            false
        }));
        let shown = &head[..head.len().min(100)];
        let mut client = fixture.client();
        for round in 1..=2 {
            let answer = client.round_trip(request("GET", "/x"));
            assert_eq!(answer.status, 502, "{shown:?}");
            assert!(!answer.text().contains("hello"), "{shown:?}");
            assert_eq!(
                fixture.origin.requests().len(),
                round,
                "{shown:?}: tried again"
            );
        }
        fixture.is_healthy(2);
    }
}

#[test]
fn merges_equal_content_lengths() {
    for fields in [
        "Content-Length: 5, 5",
        "Content-Length: 5\r\nContent-Length: 5",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nhello");
        let fixture = Fixture::new(Origin::answering(answer));
        let answer = fixture.round_trip(request("GET", "/x"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.fields.all("content-length"), ["5"], "{fields}");
    }
}

#[test]
fn drops_content_length_of_chunked_response() {
    let fixture = Fixture::new(scripted(|peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    }));
    for _ in 0..2 {
        let answer = fixture.round_trip(request("GET", "/x"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.fields.all("content-length"), Vec::<&str>::new());
    }
    assert_eq!(
        fixture.origin.connections(),
        2,
        "such a connection carries nothing else"
    );
}

/// Responses that are truncated or malformed.
const CUT: [&str; 9] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n-1\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nffffffffffffffffff\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
];

#[test]
fn truncated_response_is_visibly_truncated() {
    for answer in CUT {
        let fixture = Fixture::new(scripted(move |peer| {
            peer.send(answer);
            false
        }));
        let http11 = request("GET", "/x");
        // Without a length, only a reset tells a client of HTTP/1.0 that a response is cut.
        let http10 = http11.replace("HTTP/1.1", "HTTP/1.0");
        for (mut client, sent) in [
            (fixture.client(), &http11),
            (fixture.client(), &http10),
            (Client::connect_tls(fixture.https(), HOST), &http11),
        ] {
            client.send(sent);
            if let Ok(response) = client.try_response("GET") {
                assert!([200, 502].contains(&response.status));
                let whole = response.body.complete && response.status == 200;
                assert!(!whole, "{answer:?} looks whole: {response:?}");
            }
            client.rest();
        }
        fixture.is_healthy(3);
    }
}

#[test]
fn reset_response_is_visibly_truncated() {
    let fixture = Fixture::new(scripted(|peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        peer.reset();
        false
    }));
    let mut client = fixture.client();
    client.send(request("GET", "/x"));
    if let Ok(response) = client.try_response("GET") {
        assert!(
            response.status == 502 || !response.body.complete,
            "{response:?}"
        );
    }
    client.rest();
    fixture.is_healthy(1);
}

#[test]
fn response_without_framing_ends_with_its_connection() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\n\r\nhello",
    ] {
        let fixture = Fixture::new(Origin::answering_once(answer));
        for _ in 0..2 {
            let mut client = fixture.client();
            let response = client.round_trip(request("GET", "/x"));
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert!(response.body.complete);
            assert!(response.start.starts_with("HTTP/1.1"));
            // The client's own connection has framing and stays open.
            assert_eq!(client.round_trip(request("GET", "/x")).text(), "hello");
        }
        assert_eq!(fixture.origin.connections(), 4);
    }
}

#[test]
fn bytes_after_a_response_are_never_a_response() {
    let fixture = Fixture::new(scripted(|peer| {
        peer.send(format!(
            "{HELLO}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
        ))
    }));
    for _ in 0..4 {
        let mut client = fixture.client();
        assert_eq!(client.round_trip(request("GET", "/x")).text(), "hello");
        assert_eq!(client.round_trip(request("GET", "/x")).text(), "hello");
    }
    fixture.is_healthy(8);
}

#[test]
fn bytes_before_a_request_are_never_its_response() {
    let (told, go) = channel();
    let (tell, sent) = channel();
    let go = Mutex::new(go);
    let fixture = Fixture::new(Origin::start(move |peer| {
        while peer.request().is_some() {
            peer.send(HELLO);
            if peer.index == 0 && go.lock().expect("one reader").recv().is_ok() {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
                // Ignored: the test may have ended.
                let _ = tell.send(());
            }
        }
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(request("GET", "/x")).text(), "hello");
    told.send(()).expect("the origin waits");
    sent.recv_timeout(TEST_TIMEOUT)
        .expect("the bytes were sent");
    for _ in 0..5 {
        let answer = client.round_trip(request("POST", "/x"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    }
    assert_eq!(fixture.origin.connections(), 2);
}

#[test]
fn does_not_reuse_connection_closed_by_the_backend() {
    let fixture = Fixture::new(scripted(|peer| {
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
        peer.rest();
        false
    }));
    let mut client = fixture.client();
    for _ in 0..3 {
        let answer = client.round_trip(request("POST", "/x"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert!(!answer.closes(), "the client's connection is another one");
    }
    assert_eq!(
        (
            fixture.origin.requests().len(),
            fixture.origin.connections()
        ),
        (3, 3)
    );
}

/// Returns an origin that responds once on its first connection and runs `end` when the second
/// request arrives.
fn stale(end: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
    Origin::start(move |peer| {
        while let Some(request) = peer.request() {
            if peer.index == 0 && request.target() == "/second" {
                return end(peer);
            }
            peer.send(HELLO);
        }
    })
}

#[test]
fn retries_idempotent_request_on_closed_keepalive() {
    for reset in [false, true] {
        for (method, status, seen) in [("GET", 200, 3), ("POST", 502, 2)] {
            let fixture = Fixture::new(stale(move |peer| {
                if reset {
                    peer.reset();
                }
            }));
            let mut client = fixture.client();
            assert_eq!(client.round_trip(request("GET", "/first")).status, 200);
            let answer = client.round_trip(request(method, "/second"));
            assert_eq!(answer.status, status, "{method}, reset: {reset}");
            fixture.is_healthy(seen);
        }
    }
}

#[test]
fn does_not_retry_request_with_partial_response() {
    let fixture = Fixture::new(stale(|peer| {
        peer.send("HTTP/1.1 2");
    }));
    let mut client = fixture.client();
    assert_eq!(client.round_trip(request("GET", "/first")).status, 200);
    assert_eq!(client.round_trip(request("GET", "/second")).status, 502);
    fixture.is_healthy(2);
}

#[test]
fn does_not_retry_request_on_new_connection() {
    for reset in [false, true] {
        let fixture = Fixture::new(scripted(move |peer| {
            if reset {
                peer.reset();
            }
            false
        }));
        for (round, method) in ["GET", "POST"].into_iter().enumerate() {
            let answer = fixture.round_trip(request(method, "/x"));
            assert_eq!(answer.status, 502, "{method}");
            assert_eq!(fixture.origin.requests().len(), round + 1);
        }
        fixture.is_healthy(2);
    }
}

#[test]
fn idle_connection_closed_by_backend_is_invisible_to_client() {
    let (told, go) = channel();
    let go = Mutex::new(go);
    let fixture = Fixture::new(Origin::start(move |peer| {
        if peer.request().is_some() {
            peer.send(HELLO);
            // The connection closes on the test's signal.
            let _ = go.lock().expect("one reader").recv();
        }
    }));
    let mut client = fixture.client();
    for round in 1..=20 {
        let answer = client.round_trip(request("POST", "/x"));
        assert_eq!(answer.status, 200, "round {round}");
        told.send(()).expect("the origin waits");
        fixture
            .origin
            .until("the end", |origin| origin.ended() == round);
    }
    assert_eq!(fixture.origin.requests().len(), 20);
}

#[test]
fn relays_early_response_and_ends_the_upload() {
    let (tell, told) = channel();
    let fixture = Fixture::new(Origin::start(move |peer| {
        if peer.head().is_some() {
            peer.send(
                "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
            );
            // Ignored: the test may have ended.
            let _ = tell.send(());
            peer.rest();
        }
    }));
    let mut client = fixture.client();
    client.send(format!(
        "POST /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000000\r\n\r\npart"
    ));
    told.recv_timeout(TEST_TIMEOUT).expect("a request");
    let answer = client.response("POST");
    assert_eq!((answer.status, answer.text().as_str()), (413, "hello"));
    drop(client);
    fixture
        .origin
        .until("the end", |origin| origin.ended() == 1);
    assert_eq!(fixture.origin.requests().len(), 1);
}

#[test]
fn unreachable_backends_are_503() {
    let server = TestServer::start(&documents(closed_address(), ""));
    let mut client = Client::connect(server.at(80));
    for method in ["GET", "POST"] {
        assert_eq!(
            client.round_trip(request(method, "/x")).status,
            503,
            "{method}"
        );
    }
}

#[test]
fn unaccepted_connection_times_out() {
    // A full backlog of one: the next handshake gets no response.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let full = listener.local_addr().expect("bound");
    let limit = socket2::SockRef::from(&listener).listen(0);
    limit.expect("the queue is made short");
    let short = Duration::from_millis(300);
    let queued: Vec<_> = (0..8)
        .map_while(|_| std::net::TcpStream::connect_timeout(&full, short).ok())
        .collect();
    assert!(queued.len() < 8, "the queue does not fill");
    let server = TestServer::start_with(&documents(full, ""), |settings| {
        settings.limits.connect_timeout = short;
    });
    assert_eq!(get(server.at(80), HOST, "/x").status, 504);
}
