//! Clients that read a response slowly, but all the time. The kernel reports that more can be written only after a third of
//! a socket's buffer is free, which takes such a client several write timeouts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use portcullis::telemetry::metrics::TimeoutKind;
use rustls::StreamOwned;
use socket2::{Domain, Socket, Type};

use crate::fixture::{Fixture, HOST, scripted};
use crate::frames::{END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, block, frame, get};
use crate::harness::TEST_TIMEOUT;
use crate::harness::client::connection;
use crate::harness::tls;

/// Far longer than the pauses of a slow client, also on a busy machine.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// More than the buffers of the sockets hold.
const SIZE: usize = 24 << 20;
/// The slow part of a download: a client reads so much at a time, and pauses.
const PIECE: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(40);

/// Connects with a small receive buffer, so that the client's pace is that of the proxy's writes.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(32 << 10).expect("set");
    let connected = socket.connect_timeout(&address.into(), TEST_TIMEOUT);
    connected.expect("connected");
    socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a time");
    socket.into()
}

/// Reads slowly for three write timeouts, and the rest at full speed.
fn download(mut from: impl Read) {
    let began = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    while read < SIZE {
        // How long the client is slow.
        let is_slow = began.elapsed() < 3 * WRITE_TIMEOUT;
        if is_slow {
            // The pace of a slow client is the subject of the test.
            sleep(PAUSE);
        }
        let piece = if is_slow { PIECE } else { buffer.len() };
        let count = from.read(&mut buffer[..piece]).expect("more bytes");
        assert!(
            count > 0,
            "the connection ended after {read} of {SIZE} bytes"
        );
        read += count;
    }
}

fn fixture() -> Fixture {
    let origin = scripted(|peer| {
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"))
            && peer.send(vec![0; SIZE])
    });
    Fixture::with(origin, |settings| {
        settings.limits.write_timeout = WRITE_TIMEOUT
    })
}

#[test]
fn slow_reader_of_plain_text_gets_the_whole_response() {
    let fixture = fixture();
    let mut socket = connect(fixture.http());
    write!(socket, "GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n").expect("sent");
    download(socket);
    fixture.ended_by(TimeoutKind::Write, 0);
}

#[test]
fn slow_reader_of_tls_gets_the_whole_response() {
    let fixture = fixture();
    let session = connection(HOST, tls::client(&["http/1.1"]));
    let mut stream = StreamOwned::new(session, connect(fixture.https()));
    write!(stream, "GET /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n").expect("sent");
    download(stream);
    fixture.ended_by(TimeoutKind::Write, 0);
}

#[test]
fn slow_reader_of_http2_gets_the_whole_response() {
    const SETTINGS: u8 = 4;
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    const WINDOW: u32 = 1 << 30;
    let fixture = fixture();
    let mut socket = connect(fixture.http());
    let window = WINDOW.to_be_bytes();
    let settings = [&INITIAL_WINDOW_SIZE[..], &window].concat();
    let bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &settings),
        frame(WINDOW_UPDATE, 0, 0, &window),
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&get(&[]))),
    ];
    socket.write_all(&bytes.concat()).expect("sent");
    download(socket);
    fixture.ended_by(TimeoutKind::Write, 0);
}
