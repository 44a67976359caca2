//! A hundred connections with requests that no backend answers, and many with heads that are not complete: their heads and
//! trailers take a limited amount of memory, and those of others are not refused.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use portcullis::settings::Limits;

use super::hostile::{
    CONNECTIONS, FIELD, Idle, STREAMS, WORKERS, connect, connect_from_elsewhere, open, origin,
    raise_descriptors, read_preface, read_request, request_head,
};
use super::{
    DATA, HEADERS, HTTP1, HTTP2, PING, PREFACE, SETTINGS, TEST_TIMEOUT, constant, frame, next,
};

const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
/// A frame type that no specification defines: receivers ignore such frames.
const UNDEFINED: u8 = 0xef;
/// Long fields of a section, which is of 50 KiB.
const FIELDS: usize = 5;

/// Encodes frames of a section that begins like this and goes on with long fields.
fn section(flags: u8, stream: u32, begin: &[u8], fields: usize) -> Vec<u8> {
    // The length in its form for more than 126 bytes (RFC 7541, 5.1).
    let rest = FIELD - 127;
    let length = [127, (rest % 128) as u8 | 128, (rest / 128) as u8];
    let long = [&b"\x00\x01x"[..], &length, &[b'x'; FIELD]].concat();
    let end = |index| if index == fields { 4 } else { 0 };
    let mut frames = frame(HEADERS, flags | end(0), stream, begin);
    for index in 1..=fields {
        frames.extend(frame(CONTINUATION, end(index), stream, &long));
    }
    frames
}

/// Reads requests, and counts them without a response. Grants no window for their bodies.
fn count_requests(socket: &mut TcpStream, count: &AtomicUsize) -> Option<()> {
    const MAX_STREAMS: [u8; 6] = [0, 3, 0, 0, 0xff, 0xff];
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    read_preface(socket)?;
    let settings = [MAX_STREAMS, NO_WINDOW].concat();
    socket.write_all(&frame(SETTINGS, 0, 0, &settings)).ok()?;
    loop {
        match next(socket)? {
            (HEADERS, ..) => drop(count.fetch_add(1, Relaxed)),
            (SETTINGS, 0, ..) => socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            (PING, 0, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            _ => {}
        }
    }
}

/// Counts the streams of a client that are reset.
fn count_resets(client: &mut TcpStream, count: &AtomicUsize) -> Option<()> {
    loop {
        match next(client)? {
            (RST_STREAM, ..) => drop(count.fetch_add(1, Relaxed)),
            (PING, 0, _, payload) => client.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            _ => {}
        }
    }
}

/// Opens this many streams of each hostile connection with `encode`. Checks what they take, and that a polite client keeps its streams.
/// Returns how many were reset.
fn leave_waiting(requests: usize, encode: impl Fn(u32) -> Vec<u8>) -> usize {
    let (route, arrived) = origin(HTTP2, count_requests);
    let mut idle = Idle::start(&route);
    let [reset, refused] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let watch = |client: &TcpStream, count: &Arc<AtomicUsize>| {
        let (mut client, count) = (client.try_clone().unwrap(), count.clone());
        std::thread::spawn(move || count_resets(&mut client, &count));
    };
    let polite = connect(idle.port);
    open(&polite, "GET", 5, 0);
    watch(&polite, &refused);
    idle.until(|| arrived.load(Relaxed) == STREAMS);
    for _ in 0..CONNECTIONS {
        let mut client = connect(idle.port);
        idle.add(&client);
        watch(&client, &reset);
        let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        bytes.extend((0..requests as u32).flat_map(|index| encode(2 * index + 1)));
        client.write_all(&bytes).unwrap();
        idle.measure();
    }
    // Each has arrived, or was reset before.
    idle.until(|| arrived.load(Relaxed) + reset.load(Relaxed) >= STREAMS + CONNECTIONS * requests);
    idle.until_steady();
    idle.check();
    assert_eq!(refused.load(Relaxed), 0, "requests of a polite client");
    reset.load(Relaxed)
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_heads_of_requests_that_wait() {
    const REQUESTS: usize = 40;
    let head = request_head("GET");
    let reset = leave_waiting(REQUESTS, |stream| section(1, stream, &head, FIELDS));
    assert!(reset < CONNECTIONS * REQUESTS, "none is left");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_trailers_of_requests_that_wait() {
    let head = request_head("POST");
    leave_waiting(40, |stream| {
        let trailers = section(1, stream, b"\x00\x01y\x01y", FIELDS);
        let begin = section(0, stream, &head, 0);
        // The first byte is taken, and waits for window.
        [begin, frame(DATA, 0, stream, b"x"), trailers].concat()
    });
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn short_heads_of_requests_that_wait_do_not_keep_their_read_buffers() {
    let head = request_head("GET");
    let rest = frame(UNDEFINED, 0, 0, &[0; 16 * 1024]);
    let reset = leave_waiting(95, |stream| {
        [section(1, stream, &head, 0), rest.clone()].concat()
    });
    assert_eq!(reset, 0, "short heads take little");
}

/// Reports whether the proxy keeps a connection, which does not block.
fn is_open(client: &mut TcpStream) -> bool {
    match client.read(&mut [0; 1024]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Heads that are not complete, on connections of one client.
struct Unfinished {
    /// The beginning of a head that does not count, and that of a long one.
    usual: Vec<u8>,
    long: Vec<u8>,
    /// Bytes with which a long one counts at least.
    counted: usize,
    /// What it takes at most, in multiples of these bytes.
    most: u64,
}

impl Unfinished {
    /// Leaves many long ones. Checks that the client keeps its share alone, that these take no more than it beside what as many
    /// connections with usual heads take, and that another client is served.
    fn check(&self) {
        let share = share();
        // Far more than may stay.
        let count = 4 * share / self.counted;
        raise_descriptors();
        let (route, _) = origin(HTTP1, |socket, _| {
            read_request(socket)?;
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            socket.write_all(response).ok()
        });
        let reference = {
            let mut idle = Idle::start(&route);
            let _clients = begin_all(&mut idle, count, &self.usual);
            idle.until_steady();
            idle.most()
        };
        println!("usual heads take {} KiB", reference / 1024);
        let mut idle = Idle::start(&route);
        let mut clients = begin_all(&mut idle, count, &self.long);
        idle.until(|| {
            clients.retain_mut(is_open);
            clients.len() <= share / self.counted
        });
        let mut polite = connect_from_elsewhere(idle.port);
        polite.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let head = [long_head().as_slice(), b"\r\n\r\n"].concat();
        for part in head.chunks(head.len() / 2) {
            polite.write_all(part).unwrap();
        }
        let mut status = [0; 12];
        polite.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        idle.check_below(reference + self.most * share as u64);
    }
}

/// Returns what one client may hold of heads that are not complete, on all workers: half of what there is.
fn share() -> usize {
    const FILE: &str = "proxy/worker_state/budget.rs";
    let workers: usize = WORKERS.parse().unwrap();
    let of_worker = constant(FILE, "UNFINISHED") / workers;
    workers * of_worker.max(constant(FILE, "MIN_UNFINISHED")) / 2
}

/// Begins connections with these bytes.
fn begin_all(idle: &mut Idle, count: usize, begin: &[u8]) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = connect(idle.port);
        // Fails if the proxy has closed the connection.
        let _ = client.write_all(begin);
        client.set_nonblocking(true).unwrap();
        idle.add(&client);
        clients.push(client);
        idle.measure();
    }
    clients
}

/// Returns a head with a field of this length, without its end.
fn head_with(field: usize) -> Vec<u8> {
    let begin = "GET / HTTP/1.1\r\nHost: a\r\nX: ".to_owned();
    (begin + &"x".repeat(field)).into_bytes()
}

/// Returns a head that is almost as long as one may be, without its end.
fn long_head() -> Vec<u8> {
    head_with(Limits::default().max_header_bytes - usual_head())
}

/// Returns the length of heads that do not count.
fn usual_head() -> usize {
    constant("proxy/client.rs", "USUAL_HEAD")
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unfinished_heads_of_many_connections() {
    let long = long_head();
    let heads = Unfinished {
        usual: head_with(usual_head() / 2),
        counted: constant("proxy/connection/http1.rs", "FIRST_BUFFER") + 2 * long.len(),
        long,
        most: 1,
    };
    heads.check();
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unfinished_header_blocks_of_many_connections() {
    // The beginning of a field with a value of 65,535 bytes (RFC 7541, 5.1). h2 permits 5 frames without an end.
    const LONG_FIELD: [u8; 7] = [0, 1, b'x', 127, 0x80, 0xff, 3];
    const PARTS: usize = 3;
    let part = [b'x'; 16 * 1024];
    let begin = [&request_head("GET")[..], &LONG_FIELD].concat();
    let mut usual = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    usual.extend(frame(HEADERS, 0, 1, &begin));
    let mut long = usual.clone();
    for _ in 0..PARTS {
        long.extend(frame(CONTINUATION, 0, 1, &part));
    }
    let blocks = Unfinished {
        usual,
        long,
        // The block and the copy of h2, each in a buffer that has up to twice what is in it.
        counted: 2 * PARTS * part.len(),
        most: 2,
    };
    blocks.check();
}
