//! Ends of HTTP/1 connections: half-close, close and reset by clients, and close by the proxy while
//! the client is sending.

use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::fixture::{Fixture, HOST, scripted};
use crate::harness::TEST_TIMEOUT;
use crate::harness::origin::{HELLO, Origin};

/// More than all buffers can hold.
const MUCH: usize = 64 << 20;

fn get() -> String {
    format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n")
}

#[test]
fn serves_client_that_half_closes_after_its_request() {
    let (release, wait) = channel();
    let wait = std::sync::Mutex::new(wait);
    let fixture = Fixture::new(scripted(move |peer| {
        let released = wait.lock().expect("one reader").recv_timeout(TEST_TIMEOUT);
        released.is_ok() && peer.send(HELLO)
    }));
    let mut client = fixture.client();
    client.send(get());
    client.shutdown_write();
    fixture
        .origin
        .until("the request", |origin| origin.requests().len() == 1);
    release.send(()).expect("the origin waits");
    assert_eq!(client.response("GET").text(), "hello");
    client.ends();
}

#[test]
fn closes_idle_connection_when_the_client_closes() {
    let fixture = Fixture::new(Origin::hello());
    let mut client = fixture.client();
    assert_eq!(client.round_trip(get()).status, 200);
    client.shutdown_write();
    client.ends();
}

#[test]
fn cancels_the_backend_when_the_client_resets() {
    for half_closed_before in [false, true] {
        let fixture = Fixture::new(Origin::start(|peer| {
            peer.request();
            peer.rest();
        }));
        let mut client = fixture.client();
        client.send(get());
        fixture
            .origin
            .until("the request", |origin| origin.requests().len() == 1);
        if half_closed_before {
            client.shutdown_write();
        }
        SockRef::from(client.wire.io.socket())
            .set_linger(Some(Duration::ZERO))
            .expect("set");
        drop(client);
        fixture
            .origin
            .until("the cancellation", |origin| origin.ended() == 1);
    }
}

#[test]
fn closes_http10_connection_after_response_without_length() {
    let fixture = Fixture::new(Origin::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ));
    let answer = fixture.round_trip(format!(
        "GET /x HTTP/1.0\r\nHost: {HOST}\r\nConnection: keep-alive\r\n\r\n"
    ));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(answer.fields.all("connection"), ["close"]);
}

#[test]
fn lingers_after_response_to_unfinished_upload() {
    const SIZE: usize = 4 << 20;
    let fixture = Fixture::new(Origin::start(|peer| {
        if peer.head().is_some() {
            let refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge";
            peer.send(refusal);
            peer.rest();
        }
    }));
    for target in ["/x", "/../x"] {
        let mut client = fixture.client();
        let head =
            format!("PUT {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {SIZE}\r\n\r\n");
        client.send(head);
        let piece = [0; 1 << 16];
        for _ in 0..SIZE / piece.len() {
            assert!(client.send(piece), "{target}: the connection is cut");
        }
        let status = client.response("PUT").status;
        assert!(matches!(status, 400 | 413), "{target}: {status}");
    }
}

#[test]
fn aborts_connection_at_the_request_timeout() {
    let rules = r#"[{backendRefs: [{name: origin, port: 80}], timeouts: {request: 800ms}}]"#;
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {MUCH}\r\n\r\n"));
        peer.send(vec![b'x'; MUCH]);
    });
    let fixture = Fixture::routed(origin, rules, |_| {});
    let mut client = fixture.client();
    let began = Instant::now();
    client.wire.io.write_all(get().as_bytes()).expect("sent");
    // A slow client, while the backend always has more data.
    let mut buffer = vec![0; 16 << 10];
    while matches!(client.wire.io.read(&mut buffer), Ok(1..)) {
        std::thread::sleep(Duration::from_millis(10));
        assert!(began.elapsed() < TEST_TIMEOUT, "the response is never cut");
    }
    assert!(began.elapsed() > Duration::from_millis(700));
    fixture
        .origin
        .until("the cut", |origin| origin.ended() == 1);
}

#[test]
fn response_of_http10_that_times_out_ends_with_a_reset() {
    let rules = r#"[{backendRefs: [{name: origin, port: 80}], timeouts: {request: 2s}}]"#;
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        peer.rest();
    });
    let fixture = Fixture::routed(origin, rules, |_| {});
    let answer = fixture.round_trip(format!("GET /x HTTP/1.0\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert!(!answer.body.complete, "its end looks like that of the body");
}
