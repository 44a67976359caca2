//! Streams that share an HTTP/2 connection: what one of them leaves unread, or sends in small
//! frames, does not fail or delay the others.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ::h2::RecvStream;
use ::h2::server::SendResponse;
use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::Semaphore;

use crate::fixture::HOST;
use crate::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS, block, frame, get,
};
use crate::harness::TEST_TIMEOUT;
use crate::harness::client::{Client, get as fetch};
use crate::harness::h2::{self, Origin, Work, block_on};
use crate::harness::origin as raw;
use crate::harness::server::TestServer;
use crate::harness::yaml;

/// The stream window that the proxy grants, as 20-byte frames.
const WINDOW_OF_EVENTS: usize = 256 * 1024 / EVENT.len();
/// `:status: 200` in HPACK.
const STATUS_200: u8 = 0x88;
const BLOCK: [u8; 16 * 1024] = [7; 16 * 1024];
const EVENT: &[u8; 20] = b"data: 0123456789abc\n";

/// Serves one origin with a single worker, so that all requests share its connections.
fn serve(origin: SocketAddr) -> TestServer {
    let documents = [
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::route("route", "gateway", &[], &yaml::all_to("origin")),
        yaml::service_of("origin", &[origin], "kubernetes.io/h2c"),
    ];
    TestServer::start_with(&documents, |settings| settings.workers = 1)
}

/// Reads up to the next HEADERS frame; returns its stream id. Responds to SETTINGS and PING.
fn next_request(peer: &mut raw::Peer) -> Option<u32> {
    loop {
        let head = peer.wire.take(9).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = peer.wire.take(length).ok()?;
        match (head[3], head[4] & ACK) {
            (HEADERS, _) => return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]])),
            (PING, 0) => peer.send(frame(PING, ACK, 0, &payload)),
            (SETTINGS, 0) => peer.send(frame(SETTINGS, ACK, 0, &[])),
            _ => true,
        };
    }
}

/// Bytes that an origin has passed to its connections.
#[derive(Clone, Default)]
pub(crate) struct Sent(Arc<AtomicUsize>);

impl Sent {
    fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }

    /// Waits until nothing more is sent: all windows are empty.
    fn until_stalled(&self) {
        let begin = Instant::now();
        let mut last = (usize::MAX, Instant::now());
        // It bounds nothing: a stall that is seen too early only makes a test weaker.
        while last.1.elapsed() < Duration::from_millis(300) {
            if self.bytes() != last.0 {
                last = (self.bytes(), Instant::now());
            }
            assert!(begin.elapsed() < TEST_TIMEOUT, "the origin never stalls");
            // A counter has no change notification.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns an origin whose response has `count` pieces, each in a frame of its own, where the path
/// is `/events/count` or `/blocks/count`.
fn streaming() -> (Origin, Sent) {
    let sent = Sent::default();
    let counter = sent.clone();
    let origin = Origin::start(move |request, mut respond| {
        let sent = counter.clone();
        Box::pin(async move {
            let mut parts = request.uri().path().split('/').skip(1);
            let piece = match parts.next() {
                Some("events") => Bytes::from_static(EVENT),
                _ => Bytes::from_static(&BLOCK),
            };
            let count: usize = parts.next().map_or(0, |it| it.parse().expect("a number"));
            let Ok(mut body) = respond.send_response(Response::new(()), false) else {
                return;
            };
            for index in 1..=count {
                if h2::write(&mut body, piece.clone(), index == count)
                    .await
                    .is_err()
                {
                    return;
                }
                sent.add(piece.len());
            }
        })
    });
    (origin, sent)
}

/// Opens an HTTP/2 connection that requests `path` on `count` streams and grants no window for the
/// responses.
fn unread(server: &TestServer, path: &str, count: u32) -> Client {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let mut client = Client::connect(server.at(80));
    let mut fields = get(&[]);
    fields[2] = (":path", path);
    let head = block(&fields);
    let requests =
        (0..count).flat_map(|index| frame(HEADERS, END_STREAM | END_HEADERS, 2 * index + 1, &head));
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &NO_WINDOW)].concat();
    assert!(client.send(opening.into_iter().chain(requests).collect::<Vec<_>>()));
    client
}

#[test]
fn delivers_a_burst_of_small_frames() {
    const EVENTS: usize = 12_000;
    let origin = raw::Origin::start(|peer| {
        if peer.wire.take(24).is_err() {
            return;
        }
        peer.send(frame(SETTINGS, 0, 0, &[]));
        while let Some(stream) = next_request(peer) {
            let mut bytes = frame(HEADERS, END_HEADERS, stream, &[STATUS_200]);
            let event = frame(DATA, 0, stream, EVENT);
            bytes.extend_from_slice(&event.repeat(EVENTS));
            bytes.append(&mut frame(DATA, END_STREAM, stream, &[]));
            peer.send(bytes);
        }
    });
    let server = serve(origin.address);
    for _ in 0..5 {
        let response = fetch(server.at(80), HOST, "/x");
        assert_eq!(response.status, 200);
        assert!(response.body.complete);
        assert_eq!(response.body.bytes, EVENT.repeat(EVENTS));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn unread_small_frames_of_a_backend_do_not_end_other_calls() {
    let (origin, sent) = streaming();
    let server = serve(origin.address);
    let _unread = unread(&server, &format!("/events/{}", 2 * WINDOW_OF_EVENTS), 12);
    sent.until_stalled();
    let response = fetch(server.at(80), HOST, "/events/12000");
    assert!(response.body.complete);
    assert_eq!(response.body.bytes, EVENT.repeat(12_000));
    assert_eq!(origin.connections(), 1);
}

/// Returns an origin that reads request bodies when `gate` opens, and at once if the path is
/// `/read`. Responds with the length.
fn reading(gate: Arc<Semaphore>) -> Origin {
    Origin::start(read_at(gate))
}

/// Returns what such an origin does.
fn read_at(
    gate: Arc<Semaphore>,
) -> impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static {
    move |request, mut respond| {
        let gate = gate.clone();
        Box::pin(async move {
            if request.uri().path() != "/read" {
                drop(gate.acquire().await);
            }
            let received = h2::read(request.into_body()).await;
            let length = received.bytes.len().to_string();
            // Ignored: the stream may have been reset.
            if let Ok(mut body) = respond.send_response(Response::new(()), false) {
                let _ = body.send_data(length.into(), true);
            }
        })
    }
}

fn post(path: &str) -> Request<()> {
    let request = Request::post(format!("http://{HOST}{path}"));
    let request = request.header("content-type", "application/grpc");
    request.body(()).expect("a request")
}

/// Sends a body in pieces on a stream of its own; returns what the origin responds.
async fn upload(
    sender: &::h2::client::SendRequest<Bytes>,
    path: &str,
    piece: &'static [u8],
    count: usize,
    sent: Sent,
) -> tokio::task::JoinHandle<Vec<u8>> {
    let mut ready = sender.clone().ready().await.expect("open");
    let (response, mut stream) = ready.send_request(post(path), false).expect("sent");
    tokio::task::spawn_local(async move {
        for index in 1..=count {
            let data = Bytes::from_static(piece);
            h2::write(&mut stream, data, index == count)
                .await
                .expect("taken");
            sent.add(piece.len());
        }
        let response = response.await.expect("a response");
        h2::read(response.into_body()).await.bytes
    })
}

#[test]
fn small_messages_of_a_client_to_a_stalled_backend_do_not_end_its_connection() {
    const MESSAGES: usize = 14_000;
    let gate = Arc::new(Semaphore::new(0));
    let origin = reading(gate.clone());
    let server = serve(origin.address);
    block_on(async {
        let (sender, mut ended) = h2::connect(server.at(80)).await;
        let sent = Sent::default();
        let call = upload(&sender, "/gated", EVENT, MESSAGES, sent.clone()).await;
        until_stalled(&sent).await;
        gate.add_permits(1);
        let length = (MESSAGES * EVENT.len()).to_string();
        assert_eq!(call.await.expect("no panic"), length.into_bytes());
        assert!(ended.try_recv().is_err(), "the connection ended");
    });
}

/// Like [`Sent::until_stalled`], in the runtime that sends.
pub(crate) async fn until_stalled(sent: &Sent) {
    let mut last = usize::MAX;
    while std::mem::replace(&mut last, sent.bytes()) != sent.bytes() {
        // A counter has no change notification.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn unread_responses_do_not_delay_other_calls() {
    const LENGTH: usize = 1 << 20;
    for count in [17, 40, 100] {
        let (origin, sent) = streaming();
        let server = serve(origin.address);
        let _unread = unread(&server, "/blocks/64", count);
        sent.until_stalled();
        let response = fetch(server.at(80), HOST, "/blocks/64");
        assert!(response.body.complete, "beside {count}");
        assert_eq!(response.body.bytes.len(), LENGTH, "beside {count}");
        assert_eq!(origin.connections(), 1);
    }
}

#[test]
fn unread_uploads_do_not_delay_others_of_their_connection() {
    const STALLED: usize = 40;
    let gate = Arc::new(Semaphore::new(0));
    let origin = reading(gate.clone());
    let server = serve(origin.address);
    block_on(async {
        let (sender, mut ended) = h2::connect(server.at(80)).await;
        let sent = Sent::default();
        let mut calls = Vec::new();
        for _ in 0..STALLED {
            calls.push(upload(&sender, "/gated", &BLOCK, 20, sent.clone()).await);
        }
        until_stalled(&sent).await;
        let other = upload(&sender, "/read", &BLOCK, 64, Sent::default()).await;
        assert_eq!(other.await.expect("no panic"), b"1048576");
        gate.add_permits(STALLED);
        for call in calls {
            assert_eq!(call.await.expect("no panic"), b"327680");
        }
        assert!(ended.try_recv().is_err(), "the connection ended");
    });
}

#[test]
fn uploads_that_a_backend_does_not_read_do_not_delay_others() {
    const STALLED: usize = 3;
    let gate = Arc::new(Semaphore::new(0));
    // As in Go, all streams of a connection share 1 MiB, and one of them may use all of it.
    let mut builder = ::h2::server::Builder::new();
    builder.initial_connection_window_size(1 << 20);
    builder.initial_window_size(1 << 20);
    let origin = Origin::with(builder, read_at(gate.clone()));
    let server = serve(origin.address);
    block_on(async {
        let (sender, _ended) = h2::connect(server.at(80)).await;
        let sent = Sent::default();
        let mut calls = Vec::new();
        for _ in 0..STALLED {
            calls.push(upload(&sender, "/gated", &BLOCK, 80, sent.clone()).await);
            until_stalled(&sent).await;
        }
        let (other, _ended) = h2::connect(server.at(80)).await;
        let other = upload(&other, "/read", &BLOCK, 64, Sent::default()).await;
        assert_eq!(other.await.expect("no panic"), b"1048576");
        gate.add_permits(STALLED);
        for call in calls {
            assert_eq!(call.await.expect("no panic"), b"1310720");
        }
    });
}

/// Returns an origin of raw frames whose first response begins at once and ends when the sender
/// sends. `script` answers the other requests.
fn beside_held(
    script: impl Fn(&mut raw::Peer, u32) + Send + Sync + 'static,
) -> (raw::Origin, mpsc::Sender<()>) {
    let (finish, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(Some(wait));
    let origin = raw::Origin::start(move |peer| {
        if peer.wire.take(24).is_err() {
            return;
        }
        peer.send(frame(SETTINGS, 0, 0, &[]));
        while let Some(stream) = next_request(peer) {
            let Some(wait) = wait.lock().expect("no panic").take() else {
                script(peer, stream);
                continue;
            };
            peer.send(frame(HEADERS, END_HEADERS, stream, &[STATUS_200]));
            let mut socket = peer.wire.io.try_clone().expect("a handle");
            std::thread::spawn(move || {
                // The end of the test releases it too.
                let _ = wait.recv();
                let _ = socket.write_all(&frame(DATA, END_STREAM, stream, b"held"));
            });
        }
    });
    (origin, finish)
}

/// Sends a request and waits for the head of its response.
fn hold(server: &TestServer) -> Client {
    let mut client = Client::connect(server.at(80));
    client.send(format!("GET /held HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    let head = client.wire.take_until(b"\r\n\r\n").expect("a head");
    assert!(head.starts_with(b"HTTP/1.1 200"));
    client
}

/// Fails the test unless the held response is complete.
fn ends_well(mut held: Client, finish: &mpsc::Sender<()>) {
    finish.send(()).expect("the origin waits");
    let body = held.wire.take_until(b"\r\n0\r\n\r\n").expect("an end");
    assert_eq!(body, b"4\r\nheld\r\n0\r\n\r\n");
}

#[test]
fn many_malformed_responses_do_not_end_other_calls() {
    const MALFORMED: usize = 1_100;
    let (origin, finish) = beside_held(|peer, stream| {
        let fields = block(&[(":status", "200"), ("content-length", "5")]);
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields));
    });
    let server = serve(origin.address);
    let held = hold(&server);
    let mut client = Client::connect(server.at(80));
    for _ in 0..MALFORMED {
        let request = format!("POST /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.round_trip(request).status, 502);
    }
    ends_well(held, &finish);
    assert!(
        (2..20).contains(&origin.connections()),
        "{}",
        origin.connections()
    );
}

#[test]
fn empty_frames_end_at_most_their_own_stream() {
    let (origin, finish) = beside_held(|peer, stream| {
        peer.send(frame(HEADERS, END_HEADERS, stream, &[STATUS_200]));
        let empty = frame(DATA, 0, stream, &[]);
        if stream > 7 {
            peer.send(empty.repeat(20_000));
            return;
        }
        peer.send(empty.repeat(300));
        peer.send(frame(DATA, END_STREAM, stream, b"hello"));
    });
    let server = serve(origin.address);
    let held = hold(&server);
    for _ in 0..3 {
        assert_eq!(fetch(server.at(80), HOST, "/x").text(), "hello");
    }
    let endless = fetch(server.at(80), HOST, "/x");
    assert!(!endless.body.complete);
    ends_well(held, &finish);
    assert_eq!(origin.connections(), 1);
}
