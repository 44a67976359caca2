//! A connection of h2 over a [`Wire`], fed with bytes of its peer, for tests and fuzzing: h2 is the oracle for the dynamic
//! table that header blocks have left. h2 does not report that table, but what it makes of a head shows one entry of it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{self, ResponseFuture};
use h2::server::{self, SendResponse};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bodies::{Bodies, Body, Windows};
use super::frame::HEADER;
use super::held;
use super::hpack::{ENTRY_OVERHEAD, Kind};
use super::wire::{EmptyFrames, Wire};

/// The preface of a client (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The address of clients.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Streams of a client that bytes of a test may refer to: 1, 3, 5 and 7. The response of the last one was cancelled.
const STREAMS: usize = 4;
/// Entries of the table that are compared, the newest. Each takes a stream.
const PROBES: usize = 24;
/// Entries of the static table (RFC 7541, A).
const STATIC: usize = 61;
/// Lengths of names that h2 accepts in no message, or with some values only.
const REFUSED: [usize; 7] = [
    "te".len(),
    "upgrade".len(),
    "connection".len(),
    "keep-alive".len(),
    "content-length".len(),
    "proxy-connection".len(),
    "transfer-encoding".len(),
];
const WINDOWS: Windows = Windows {
    initial: 64 * 1024,
    full: 256 * 1024,
    max_unread: 1024 * 1024,
};

/// What the peer has sent and h2 has not read.
struct Script {
    input: VecDeque<u8>,
    /// Bytes of one read.
    step: usize,
    /// Whether a read found nothing.
    is_starved: bool,
    output: Vec<u8>,
}

/// The socket of the connection.
struct Socket(Rc<RefCell<Script>>);

/// One side of a connection.
enum Side {
    Client(client::Connection<Wire<Socket>, Bytes>),
    Server(server::Connection<Wire<Socket>, Bytes>),
}

/// A connection to the peer that a test plays.
pub(super) struct Connection {
    script: Rc<RefCell<Script>>,
    bodies: Rc<Bodies>,
    side: Side,
    has_failed: bool,
    /// The heads that are still to come, of a client.
    expected: HashMap<u32, ResponseFuture>,
    /// The heads that have come, without pseudo-header fields.
    heads: HashMap<u32, HeaderMap>,
    /// Bodies of which each second one is read.
    received: Vec<Body>,
    unanswered: Vec<SendResponse<Bytes>>,
}

impl Connection {
    /// Starts a connection whose reads have at most `step` bytes.
    pub(super) fn new(is_server: bool, step: usize) -> Self {
        let script = Rc::new(RefCell::new(Script {
            input: VecDeque::new(),
            step,
            is_starved: false,
            output: Vec::new(),
        }));
        let bodies = Bodies::new(WINDOWS, is_server.then_some(CLIENT));
        let socket = Socket(script.clone());
        let mut expected = HashMap::new();
        let side = if is_server {
            script.borrow_mut().input.extend(PREFACE);
            Side::Server(accept(bodies.wire(socket, EmptyFrames::Pass)))
        } else {
            let (connection, responses) = connect(bodies.wire(socket, EmptyFrames::Hide));
            expected = responses;
            Side::Client(connection)
        };
        let mut connection = Self {
            script,
            bodies,
            side,
            has_failed: false,
            expected,
            heads: HashMap::new(),
            received: Vec::new(),
            unanswered: Vec::new(),
        };
        connection.feed(&frame(4, 0, 0, &[]));
        connection
    }

    /// Reports whether h2 has ended the connection.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Reports whether header blocks cannot be followed any more.
    pub(super) fn is_lost(&self) -> bool {
        self.bodies.blocks.borrow().is_lost()
    }

    /// Takes what h2 has written.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.script.borrow_mut().output)
    }

    /// Responds to a request. Returns what h2 writes.
    #[cfg(test)]
    pub(super) fn respond(&mut self, headers: HeaderMap) -> Vec<u8> {
        let mut response = http::Response::new(());
        *response.headers_mut() = headers;
        let mut respond = self.unanswered.remove(0);
        respond.send_response(response, true).expect("it is open");
        self.feed(&[]);
        self.take_output()
    }

    /// Feeds bytes of the peer, and drives the connection until all are read or it has ended.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.script.borrow_mut().input.extend(bytes);
        self.script.borrow_mut().is_starved = false;
        let mut left = usize::MAX;
        // A read may leave turns to others once.
        let mut pauses = 0;
        while !self.has_failed && pauses < 4 && !self.script.borrow().is_starved {
            self.drive();
            let rest = self.script.borrow().input.len();
            pauses = if rest < left { 0 } else { pauses + 1 };
            left = rest;
        }
    }

    fn drive(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        match &mut self.side {
            Side::Client(connection) => {
                self.has_failed |= Pin::new(connection).poll(&mut cx).is_ready();
                self.read_responses(&mut cx);
            }
            Side::Server(connection) => {
                while let Poll::Ready(next) = connection.poll_accept(&mut cx) {
                    let Some(Ok((request, respond))) = next else {
                        self.has_failed = true;
                        break;
                    };
                    let (head, body) = request.into_parts();
                    self.heads
                        .insert(respond.stream_id().as_u32(), head.headers);
                    self.received.push(self.bodies.read(body));
                    self.unanswered.push(respond);
                }
            }
        }
        for body in self.received.iter_mut().step_by(2) {
            // What it returns is the concern of other tests.
            let _ = body.poll_data(&mut cx);
        }
        self.bodies.on_driven(|_| Ok(()));
    }

    fn read_responses(&mut self, cx: &mut Context<'_>) {
        self.expected.retain(|stream, response| {
            let Poll::Ready(response) = Pin::new(response).poll(cx) else {
                return true;
            };
            if let Ok(response) = response {
                let (head, body) = response.into_parts();
                self.heads.insert(*stream, head.headers);
                self.received.push(self.bodies.read(body));
            }
            false
        });
    }

    /// Checks that the connection has ended, or that both tables are equal. Ends the connection.
    pub(super) fn compare_tables(mut self) {
        if self.is_lost() {
            return self.assert_ended();
        }
        if self.has_failed {
            return self.close();
        }
        let entries: Vec<_> = {
            let blocks = self.bodies.blocks.borrow();
            blocks.table.entries.iter().copied().collect()
        };
        for at in 0..entries.len().min(PROBES) {
            self.feed(&self.probe(at, at));
        }
        // A block was not complete.
        if self.is_lost() {
            return self.assert_ended();
        }
        assert!(!self.has_failed, "h2 has not {} entries", entries.len());
        for (at, entry) in entries.iter().take(PROBES).enumerate() {
            self.compare(at, *entry);
        }
        self.feed(&self.probe(PROBES, entries.len()));
        assert!(
            self.has_failed,
            "h2 has more than {} entries",
            entries.len()
        );
        self.close();
    }

    fn assert_ended(mut self) {
        self.feed(&[]);
        assert!(self.has_failed, "it goes on with an unknown table");
        self.close();
    }

    /// Compares what is known of an entry with the head that refers to it.
    fn compare(&self, at: usize, ((kind, length), size): ((Kind, usize), usize)) {
        let stream = self.probe_stream(at);
        let is_client = matches!(self.side, Side::Client(_));
        match (kind, self.heads.get(&stream)) {
            (Kind::Field, Some(head)) => {
                let (name, value) = head.iter().next().expect("a field");
                let seen = (
                    name.as_str().len(),
                    name.as_str().len() + value.len() + ENTRY_OVERHEAD,
                );
                assert_eq!(seen, (length, size), "entry {at}: {name}");
            }
            (Kind::Field, None) => assert!(REFUSED.contains(&length), "entry {at} is no field"),
            // A response has one status, and h2 drops other pseudo-header fields. A request has all of them, once.
            (Kind::OtherPseudo, Some(head)) => {
                assert!(is_client && head.is_empty(), "entry {at}: {head:?}");
            }
            (Kind::OtherPseudo, None) => assert!(!is_client, "entry {at} makes a response fail"),
            (Kind::Status, head) => assert_eq!(head, None, "entry {at}"),
        }
    }

    fn probe_stream(&self, at: usize) -> u32 {
        (2 * (STREAMS + at) + 1) as u32
    }

    /// Returns a head with the entry `index` of the dynamic table.
    fn probe(&self, at: usize, index: usize) -> Vec<u8> {
        let mut block = match self.side {
            Side::Client(_) => vec![0x88],
            Side::Server(_) => b"\x82\x84\x86\x01\x01a".to_vec(),
        };
        put_integer(&mut block, 0x80, 7, STATIC + 1 + index);
        frame(1, 5, self.probe_stream(at), &block)
    }

    /// Checks that nothing is held after the connection and its bodies are gone.
    pub(super) fn close(self) {
        let bodies = self.bodies.clone();
        drop(self);
        assert_eq!(bodies.held(), 0);
        drop(bodies);
        assert_eq!(held::total(), 0);
    }
}

fn accept(wire: Wire<Socket>) -> server::Connection<Wire<Socket>, Bytes> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut builder = server::Builder::new();
    builder.max_local_error_reset_streams(None);
    let mut handshake = pin!(builder.handshake(wire));
    loop {
        if let Poll::Ready(connection) = handshake.as_mut().poll(&mut cx) {
            return connection.expect("the preface is there");
        }
    }
}

type Client = (
    client::Connection<Wire<Socket>, Bytes>,
    HashMap<u32, ResponseFuture>,
);

/// Starts a client with all requests that a test needs.
fn connect(wire: Wire<Socket>) -> Client {
    let mut cx = Context::from_waker(Waker::noop());
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .max_local_error_reset_streams(None)
        .initial_max_send_streams(STREAMS + PROBES + 1);
    let Poll::Ready(Ok((mut sender, connection))) = pin!(builder.handshake(wire)).poll(&mut cx)
    else {
        panic!("nothing delays writes");
    };
    let mut responses = HashMap::new();
    for _ in 0..=STREAMS + PROBES {
        let request = Request::get("http://a/").body(()).expect("valid");
        let (response, _) = sender.send_request(request, true).expect("it is open");
        responses.insert(response.stream_id().as_u32(), response);
    }
    responses.remove(&(2 * STREAMS as u32 - 1));
    (connection, responses)
}

/// Encodes a frame (RFC 9113, 4.1).
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Encodes an integer whose first byte has this many bits (RFC 7541, 5.1).
pub(super) fn put_integer(block: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let most = (1 << prefix) - 1;
    if value < most {
        block.push(first | value as u8);
        return;
    }
    block.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut script = self.0.borrow_mut();
        let count = script.step.min(buffer.remaining()).min(script.input.len());
        if count == 0 {
            script.is_starved = true;
            return Poll::Pending;
        }
        let bytes: Vec<u8> = script.input.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
