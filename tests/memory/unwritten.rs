//! A hundred connections whose peers grant windows and read nothing from their sockets: what the program cannot write takes
//! a limited amount of memory.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::hostile::{
    CONNECTIONS, Idle, OPEN, STREAMS, open, origin, origin_on, read_preface, read_request,
    request_head, respond, streams,
};
use super::{
    DATA, HEADERS, HTTP1, HTTP2, MIB, PING, PREFACE, SETTINGS, WINDOW_UPDATE, frame, keep_open,
    next,
};

const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
/// A frame type that no specification defines: receivers ignore such frames.
const UNDEFINED: u8 = 0xef;
/// Data of one frame.
const PART: usize = 16 * 1024;

/// Makes the kernel take little that is not read.
fn limit(socket: &SockRef<'_>) {
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_tcp_mss(536).unwrap();
}

/// Connects without ever reading.
fn connect(idle: &mut Idle) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    limit(&SockRef::from(&socket));
    let address = SocketAddr::from(([127, 0, 0, 1], idle.port));
    socket.connect(&address.into()).unwrap();
    let client = socket.into();
    idle.add(&client);
    client
}

/// Keeps a connection open that is not read: the peer pings and closes quiet ones.
fn keep_unread(socket: &mut TcpStream) {
    while socket.write_all(&frame(UNDEFINED, 0, 0, &[])).is_ok() {
        // The pace of a peer that is alive.
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Requests with open windows, of which no response is read.
fn open_unread(idle: &mut Idle) {
    let mut client = connect(idle);
    open(&client, "GET", 5, OPEN);
    std::thread::spawn(move || keep_unread(&mut client));
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn small_frames_for_clients_that_do_not_read() {
    let (route, read) = origin(HTTP2, |socket, read| respond(socket, read, 96 * 1024));
    let mut idle = Idle::start(&route);
    (0..CONNECTIONS).for_each(|_| open_unread(&mut idle));
    idle.until(|| read.load(Relaxed) == CONNECTIONS * STREAMS);
    idle.check();
}

/// Responds to a request with as much as the proxy reads. Counts the responses that have begun.
fn respond_long(socket: &mut TcpStream, begun: &AtomicUsize) -> Option<()> {
    read_request(socket)?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1024 * MIB);
    socket.write_all(head.as_bytes()).ok()?;
    begun.fetch_add(1, Relaxed);
    loop {
        socket.write_all(&[b'x'; PART]).ok()?;
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_responses_for_clients_that_do_not_read() {
    let (route, begun) = origin(HTTP1, respond_long);
    let mut idle = Idle::start(&route);
    (0..CONNECTIONS).for_each(|_| open_unread(&mut idle));
    idle.until(|| begun.load(Relaxed) == CONNECTIONS * STREAMS);
    idle.until_steady();
    idle.check_below(100 * MIB);
}

/// The field section of a response, in parts of a frame each.
type Section = Vec<Vec<u8>>;

const INFORMATIONAL: &[u8] = b"\x08\x03103";
const OK: &[u8] = b"\x88";

/// Encodes a section of four long fields (RFC 7541, 5.1 and 6.2.2).
fn long_section(status: &[u8]) -> Section {
    const LENGTH: usize = 15_000;
    let rest = LENGTH - 127;
    let length = [127, (rest % 128) as u8 | 128, (rest / 128) as u8];
    let field = [&b"\x00\x04link"[..], &length, &[b'x'; LENGTH]].concat();
    [&[status.to_vec()][..], &vec![field; 4]].concat()
}

/// Encodes a section of a thousand short fields, whose memory is ten times their length.
fn short_section() -> Section {
    // Never indexed (RFC 7541, 6.2.3), so that they are as long for the client.
    let field = b"\x1f\x1e\x04</a>";
    vec![INFORMATIONAL.to_vec(), field.repeat(1000)]
}

/// Responds to each request with `count` heads, and no body.
fn send_heads(
    socket: &mut TcpStream,
    read: &AtomicUsize,
    section: &Section,
    count: usize,
) -> Option<()> {
    read_preface(socket)?;
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        match next(socket)? {
            (HEADERS, _, stream, _) => {
                let parts = section.iter().enumerate().map(|(index, part)| {
                    let kind = if index == 0 { HEADERS } else { CONTINUATION };
                    let is_last = index + 1 == section.len();
                    frame(kind, if is_last { 4 } else { 0 }, stream, part)
                });
                let mut bytes = parts.collect::<Vec<_>>().concat().repeat(count);
                // Its response shows that everything before was read.
                bytes.extend(frame(PING, 0, 0, &[1; 8]));
                socket.write_all(&bytes).ok()?;
            }
            (SETTINGS, 0, ..) => socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            (PING, 0, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            (PING, _, _, _) => drop(read.fetch_add(1, Relaxed)),
            _ => {}
        }
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn informational_responses_for_clients_that_do_not_read() {
    let section = short_section();
    let (route, read) = origin(HTTP2, move |socket, read| {
        send_heads(socket, read, &section, 6)
    });
    let mut idle = Idle::start(&route);
    (0..CONNECTIONS).for_each(|_| open_unread(&mut idle));
    idle.until(|| read.load(Relaxed) == CONNECTIONS * STREAMS);
    idle.check_below(48 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn informational_responses_for_http1_clients_that_do_not_read() {
    let section = long_section(INFORMATIONAL);
    let (route, read) = origin(HTTP2, move |socket, read| {
        send_heads(socket, read, &section, 32)
    });
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        let mut client = connect(&mut idle);
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
    }
    idle.until(|| read.load(Relaxed) == CONNECTIONS);
    idle.check();
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_heads_of_responses_for_clients_that_do_not_read() {
    const REQUESTS: u32 = 40;
    let section = long_section(OK);
    let (route, read) = origin(HTTP2, move |socket, read| {
        send_heads(socket, read, &section, 1)
    });
    let mut idle = Idle::start(&route);
    let head = request_head("GET");
    for _ in 0..CONNECTIONS {
        let mut client = connect(&mut idle);
        let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        bytes.extend((0..REQUESTS).flat_map(|index| frame(HEADERS, 5, 2 * index + 1, &head)));
        client.write_all(&bytes).unwrap();
        std::thread::spawn(move || keep_unread(&mut client));
    }
    idle.until(|| read.load(Relaxed) == CONNECTIONS * REQUESTS as usize);
    idle.until_steady();
    idle.check();
}

/// Grants windows for request bodies, and reads nothing after the first request.
fn stop_reading(socket: &mut TcpStream, _: &AtomicUsize) -> Option<()> {
    let windows = [&[0, 4][..], &OPEN.to_be_bytes()].concat();
    read_preface(socket)?;
    socket.write_all(&frame(SETTINGS, 0, 0, &windows)).ok()?;
    let window = frame(WINDOW_UPDATE, 0, 0, &OPEN.to_be_bytes());
    socket.write_all(&window).ok()?;
    loop {
        match next(socket)? {
            (SETTINGS, 0, ..) => socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            (PING, 0, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            (HEADERS, ..) => break,
            _ => {}
        }
    }
    keep_unread(socket);
    Some(())
}

/// The windows for request bodies that the proxy grants to a client.
struct Granted {
    /// Of all streams together.
    of_connection: i64,
    /// Of a new stream.
    initial: i64,
    of_streams: HashMap<u32, i64>,
}

impl Granted {
    /// Fills the windows. Returns whether anything was sent.
    fn fill(&mut self, client: &mut TcpStream) -> bool {
        let mut is_sent = false;
        for (stream, window) in &mut self.of_streams {
            while (*window).min(self.of_connection) >= PART as i64 {
                let part = frame(DATA, 0, *stream, &[b'x'; PART]);
                client.write_all(&part).unwrap();
                *window -= PART as i64;
                self.of_connection -= PART as i64;
                is_sent = true;
            }
        }
        is_sent
    }

    /// Reads a frame. Returns whether it grants anything.
    fn read(&mut self, client: &mut TcpStream, frame: (u8, u8, u32, Vec<u8>)) -> bool {
        let number = |bytes: &[u8]| i64::from(u32::from_be_bytes(bytes.try_into().unwrap()));
        match frame {
            (PING, 0, _, payload) => client
                .write_all(&super::frame(PING, 1, 0, &payload))
                .unwrap(),
            (SETTINGS, 0, _, payload) => {
                client
                    .write_all(&super::frame(SETTINGS, 1, 0, &[]))
                    .unwrap();
                let mut settings = payload.chunks_exact(6);
                let Some(window) = settings.find(|setting| setting[..2] == [0, 4]) else {
                    return false;
                };
                let change = number(&window[2..]) - self.initial;
                self.initial += change;
                self.of_streams
                    .values_mut()
                    .for_each(|window| *window += change);
                return true;
            }
            (WINDOW_UPDATE, _, stream, payload) => {
                let window = match stream {
                    0 => Some(&mut self.of_connection),
                    _ => self.of_streams.get_mut(&stream),
                };
                return window.map(|window| *window += number(&payload)).is_some();
            }
            (RST_STREAM, _, stream, _) => drop(self.of_streams.remove(&stream)),
            _ => {}
        }
        false
    }
}

/// Sends bodies on all streams until the proxy grants no more window.
fn send_bodies(client: &mut TcpStream) {
    const INITIAL: i64 = 65_535;
    let mut granted = Granted {
        of_connection: INITIAL,
        initial: INITIAL,
        of_streams: streams().map(|stream| (stream, INITIAL)).collect(),
    };
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        client.write_all(&frame(PING, 0, 0, &[1; 8])).unwrap();
        loop {
            match next(client).expect("the connection stays open") {
                (PING, 1, ..) => break,
                other => goes_on |= granted.read(client, other),
            }
        }
        goes_on |= granted.fill(client);
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn bodies_for_backends_that_do_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    limit(&SockRef::from(&listener));
    let (route, _) = origin_on(listener, HTTP2, stop_reading);
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        let mut client = TcpStream::connect(("127.0.0.1", idle.port)).unwrap();
        open(&client, "POST", 4, 0);
        idle.add(&client);
        send_bodies(&mut client);
        keep_open(client);
        idle.measure();
    }
    idle.check_below(108 * MIB);
}
