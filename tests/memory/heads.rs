//! A hundred connections with requests that no backend answers: their heads and trailers take a limited amount of memory,
//! and those of others are not refused.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::hostile::{
    CONNECTIONS, FIELD, Idle, STREAMS, connect, open, origin, read_preface, request_head,
};
use super::{DATA, HEADERS, HTTP2, PING, PREFACE, SETTINGS, frame, next};

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
