//! A hundred connections with requests that no backend answers, and many with heads that are not complete: their heads and
//! trailers take a limited amount of memory, and those of others are not refused.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::hostile::{
    CONNECTIONS, FIELD, Idle, STREAMS, connect, connect_from_elsewhere, open, origin,
    raise_descriptors, read_preface, read_request, request_head,
};
use super::{DATA, HEADERS, HTTP1, HTTP2, MIB, PING, PREFACE, SETTINGS, TEST_TIMEOUT, frame, next};

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

/// Leaves a head unfinished on each of many connections of one client, where it counts with `held` bytes. Checks that the client
/// keeps its share alone, that all of it takes less than `limit` bytes, and that another client is served.
fn leave_unfinished(begin: &[u8], held: usize, limit: u64) {
    const CLIENTS: usize = 900;
    // Half of what the workers have for all.
    const SHARE: usize = 16 * 1024 * 1024;
    raise_descriptors();
    let (route, _) = origin(HTTP1, |socket, _| {
        read_request(socket)?;
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(response).ok()
    });
    let mut idle = Idle::start(&route);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = connect(idle.port);
        // Fails if the proxy has closed the connection.
        let _ = client.write_all(begin);
        client.set_nonblocking(true).unwrap();
        idle.add(&client);
        clients.push(client);
        idle.measure();
    }
    idle.until(|| {
        clients.retain_mut(is_open);
        clients.len() <= SHARE / held
    });
    let mut polite = connect_from_elsewhere(idle.port);
    polite.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = [unfinished_head().as_slice(), b"\r\n\r\n"].concat();
    for part in head.chunks(head.len() / 2) {
        polite.write_all(part).unwrap();
    }
    let mut status = [0; 12];
    polite.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    idle.check_below(limit);
}

/// Returns a head of 56 KiB without its end.
fn unfinished_head() -> Vec<u8> {
    let begin = "GET / HTTP/1.1\r\nHost: a\r\nX: ".to_owned();
    (begin + &"x".repeat(56 * 1024)).into_bytes()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unfinished_heads_of_many_connections() {
    let head = unfinished_head();
    leave_unfinished(&head, 2 * head.len(), 30 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unfinished_header_blocks_of_many_connections() {
    // The beginning of a field with a value of 65,535 bytes (RFC 7541, 5.1). h2 permits 5 frames without an end.
    const LONG_FIELD: [u8; 7] = [0, 1, b'x', 127, 0x80, 0xff, 3];
    let part = [b'x'; 16 * 1024];
    let begin = [&request_head("GET")[..], &LONG_FIELD].concat();
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(frame(HEADERS, 0, 1, &begin));
    for _ in 0..3 {
        bytes.extend(frame(CONTINUATION, 0, 1, &part));
    }
    leave_unfinished(&bytes, 2 * 3 * part.len(), 48 * MIB);
}
