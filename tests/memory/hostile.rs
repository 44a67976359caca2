//! A hundred hostile connections to one program: what they leave unread, or send in small parts, takes a limited amount
//! of memory above that of the idle program, and most of it is given back after they have left.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::iter;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use super::{
    DATA, HEADERS, HTTP1, HTTP2, MIB, PING, PREFACE, Running, SETTINGS, TEST_TIMEOUT,
    WINDOW_UPDATE, field, frame, gateway, keep_open, next, origin_route, ports, route, upload,
};

pub(super) const CONNECTIONS: usize = 100;
pub(super) const WORKERS: &str = "4";
/// Streams of each HTTP/2 connection.
pub(super) const STREAMS: usize = 10;
/// Length of a long header.
pub(super) const FIELD: usize = 10 * 1024;
/// Payload of a small frame.
const SMALL: usize = 100;
/// Memory that all of them may take above the idle program.
const LIMIT: u64 = 128 * MIB;
/// What may stay after they have left.
const REST: u64 = 32 * MIB;
const RST_STREAM: u8 = 3;
/// Window for responses that no body fills.
pub(super) const OPEN: u32 = 0x7fff_0000;

/// The program, the port of its Gateway, and its heap before the attack.
pub(super) struct Idle {
    running: Running,
    pub(super) port: u16,
    heap: u64,
    /// What was taken at most.
    most: u64,
    /// The hostile connections.
    clients: Vec<TcpStream>,
    _directory: tempfile::TempDir,
}

impl Idle {
    /// Starts the program with these routes, whose backends are on loopback.
    pub(super) fn start(routes: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [port] = ports::free_ports();
        let objects = gateway(port) + routes;
        fs::write(directory.path().join("all.yaml"), objects).unwrap();
        let mut running = Running::start_with(directory.path(), WORKERS);
        running.served();
        Self {
            heap: running.heap(),
            running,
            port,
            most: 0,
            clients: Vec::new(),
            _directory: directory,
        }
    }

    /// Adds a connection that is ended with the attack.
    pub(super) fn add(&mut self, client: &TcpStream) {
        self.clients.push(client.try_clone().unwrap());
    }

    /// Returns what was taken at most above the heap before the attack.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Notes what is taken above the heap before the attack.
    pub(super) fn measure(&mut self) {
        let taken = self.running.heap().saturating_sub(self.heap);
        self.most = self.most.max(taken);
    }

    /// Measures until a condition holds.
    pub(super) fn until(&mut self, mut is_done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            self.measure();
            assert!(begin.elapsed() < TEST_TIMEOUT, "it takes too long");
            // No notification tells the change.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Measures until the heap does not grow any more.
    pub(super) fn until_steady(&mut self) {
        const MEASUREMENTS: usize = 200;
        let (mut most, mut same) = (self.most, 0);
        while same < MEASUREMENTS {
            let mut measured = false;
            self.until(|| std::mem::replace(&mut measured, true));
            same = if self.most > most { 0 } else { same + 1 };
            most = self.most;
        }
    }

    /// Checks what was taken at most, up to now, and ends the attack.
    pub(super) fn check(self) {
        self.check_below(LIMIT);
    }

    /// The same with another limit.
    pub(super) fn check_below(mut self, limit: u64) {
        self.measure();
        let most = self.most;
        println!("at most {} KiB above the idle program", most / 1024);
        assert!(most < limit, "{most} bytes above the idle program");
        for client in self.clients.drain(..) {
            // Fails if the proxy has closed the connection.
            let _ = client.shutdown(Shutdown::Both);
        }
        self.running.shrunk(self.heap + REST);
    }
}

/// Returns a route to a backend that speaks this protocol and serves each connection with `serve`, which counts the
/// responses that the proxy has read.
pub(super) fn origin<S>(protocol: &str, serve: S) -> (String, Arc<AtomicUsize>)
where
    S: Fn(&mut TcpStream, &AtomicUsize) -> Option<()> + Clone + Send + 'static,
{
    origin_on(TcpListener::bind("127.0.0.1:0").unwrap(), protocol, serve)
}

/// What the kernel holds of what a backend has sent and the program has not read: little, since beyond a limit for all connections
/// it slows down all of them.
const UNREAD: usize = 32 * 1024;

/// The same on this socket.
pub(super) fn origin_on<S>(
    listener: TcpListener,
    protocol: &str,
    serve: S,
) -> (String, Arc<AtomicUsize>)
where
    S: Fn(&mut TcpStream, &AtomicUsize) -> Option<()> + Clone + Send + 'static,
{
    let port = listener.local_addr().unwrap().port();
    // Of the connections too, which inherit it.
    SockRef::from(&listener)
        .set_send_buffer_size(UNREAD)
        .unwrap();
    let route = "---".to_owned() + &origin_route(port, protocol);
    let read = Arc::<AtomicUsize>::default();
    let counter = read.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, counter) = (socket.unwrap(), counter.clone());
            let serve = serve.clone();
            std::thread::spawn(move || serve(&mut socket, &counter));
        }
    });
    (route, read)
}

/// Reads the beginning of HTTP/2.
pub(super) fn read_preface(socket: &mut TcpStream) -> Option<()> {
    socket.read_exact(&mut [0; PREFACE.len()]).ok()
}

/// Responds to each request with a window of small frames, or with `most` bytes of them if that is less.
pub(super) fn respond(socket: &mut TcpStream, read: &AtomicUsize, most: usize) -> Option<()> {
    let mut window = 65_535;
    read_preface(socket)?;
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        match next(socket)? {
            (HEADERS, _, stream, _) => {
                let mut bytes = frame(HEADERS, 4, stream, &[0x88]);
                let part = frame(DATA, 0, stream, &[b'x'; SMALL]);
                bytes.extend(part.repeat(window.min(most) / SMALL));
                // Its response shows that everything before was read.
                bytes.extend(frame(PING, 0, 0, &[1; 8]));
                socket.write_all(&bytes).ok()?;
            }
            (SETTINGS, 0, _, payload) => {
                let settings = payload.chunks_exact(6);
                for setting in settings.filter(|setting| setting[..2] == [0, 4]) {
                    window = u32::from_be_bytes(setting[2..].try_into().unwrap()) as usize;
                }
                socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?;
            }
            (PING, 0, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            (PING, _, _, _) => drop(read.fetch_add(1, Relaxed)),
            _ => {}
        }
    }
}

/// Grants no window for request bodies.
fn refuse_bodies(socket: &mut TcpStream, _: &AtomicUsize) -> Option<()> {
    read_preface(socket)?;
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    socket.write_all(&no_window).ok()?;
    loop {
        match next(socket)? {
            (SETTINGS, 0, ..) => socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            (PING, 0, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            _ => {}
        }
    }
}

pub(super) fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// Connects from another address of loopback.
pub(super) fn connect_from_elsewhere(port: u16) -> TcpStream {
    let [from, to] = [([127, 0, 0, 2], 0), ([127, 0, 0, 1], port)].map(SocketAddr::from);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Makes room for both ends of many clients, in each of the tests that run at once.
pub(super) fn raise_descriptors() {
    let descriptors = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: descriptors.maximum,
        ..descriptors
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Encodes the head of a request.
pub(super) fn request_head(method: &str) -> Vec<u8> {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];
    let fields = fields.iter().map(|(name, value)| field(name, value));
    fields.collect::<Vec<_>>().concat()
}

/// Begins HTTP/2 with requests on all streams, and grants this window for each response.
pub(super) fn open(mut client: &TcpStream, method: &str, flags: u8, window: u32) {
    let head = request_head(method);
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
    if window > 0 {
        bytes.extend(frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes()));
    }
    for stream in streams() {
        bytes.extend(frame(HEADERS, flags, stream, &head));
    }
    client.write_all(&bytes).unwrap();
}

pub(super) fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS as u32).map(|index| 2 * index + 1)
}

/// Opens streams whose responses are not read, and waits until the proxy has got `responses` of them and of others.
fn leave_streams_unread(idle: &mut Idle, read: &AtomicUsize, responses: usize) {
    for _ in 0..CONNECTIONS {
        let client = connect(idle.port);
        open(&client, "GET", 5, 0);
        idle.add(&client);
        keep_open(client);
    }
    idle.until(|| read.load(Relaxed) == responses);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unread_streams_of_a_hundred_connections() {
    let (route, read) = origin(HTTP2, |socket, read| respond(socket, read, usize::MAX));
    let mut idle = Idle::start(&route);
    leave_streams_unread(&mut idle, &read, CONNECTIONS * STREAMS);
    idle.check();
}

/// Counts the bytes that a client gets, and its streams that are reset.
fn count_responses(client: &mut TcpStream, [bytes, resets]: &[Arc<AtomicUsize>; 2]) -> Option<()> {
    loop {
        match next(client)? {
            (DATA, _, _, payload) => drop(bytes.fetch_add(payload.len(), Relaxed)),
            (RST_STREAM, ..) => drop(resets.fetch_add(1, Relaxed)),
            (PING, 0, _, payload) => client.write_all(&frame(PING, 1, 0, &payload)).ok()?,
            _ => {}
        }
    }
}

/// Each hostile connection holds less than the polite one, whose streams share connections to the backend with theirs and have
/// waited longest there.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn slow_downloads_go_on_beside_unread_streams_of_another_client() {
    const PART: usize = 60_000;
    let (route, read) = origin(HTTP2, |socket, read| respond(socket, read, usize::MAX));
    let mut idle = Idle::start(&route);
    let mut polite = connect_from_elsewhere(idle.port);
    open(&polite, "GET", 5, 0);
    idle.add(&polite);
    let counts = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let [bytes, resets] = counts.clone();
    let mut reader = polite.try_clone().unwrap();
    std::thread::spawn(move || count_responses(&mut reader, &counts));
    idle.until(|| read.load(Relaxed) == STREAMS);
    leave_streams_unread(&mut idle, &read, STREAMS + CONNECTIONS * STREAMS);
    for stream in iter::once(0).chain(streams()) {
        let window = frame(WINDOW_UPDATE, 0, stream, &OPEN.to_be_bytes());
        polite.write_all(&window).unwrap();
    }
    idle.until(|| bytes.load(Relaxed) >= STREAMS * PART || resets.load(Relaxed) > 0);
    assert_eq!(resets.load(Relaxed), 0, "downloads of a polite client");
    idle.check();
}

/// Reads the head of an HTTP/1.1 request without a body.
pub(super) fn read_request(socket: &mut TcpStream) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).ok()?;
        request.extend(byte);
    }
    Some(())
}

/// Opens streams whose responses are fields of `fields` bytes and `part` bytes of a longer body of an HTTP/1.1 backend, and
/// grants no window for them. Checks that they take less than `limit` bytes.
fn leave_http1_responses_unread(fields: usize, part: usize, limit: u64) {
    let (route, _) = origin(HTTP1, move |socket, _| {
        read_request(socket)?;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", 1024 * MIB);
        let field = format!("X-Field: {}\r\n", "x".repeat(FIELD));
        let rest = ["\r\n", &"x".repeat(part)].concat();
        let bytes = head + &field.repeat(fields / FIELD) + &rest;
        let bytes = bytes.as_bytes();
        socket.write_all(bytes).ok()?;
        // The proxy sends nothing more. It closes the connection.
        socket.read_exact(&mut [0]).ok()
    });
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        let mut client = connect(idle.port);
        open(&client, "GET", 5, 0);
        idle.add(&client);
        let mut heads = 0;
        while heads < STREAMS {
            match next(&mut client).expect("the connection stays open") {
                (HEADERS, ..) => heads += 1,
                (PING, 0, _, payload) => client.write_all(&frame(PING, 1, 0, &payload)).unwrap(),
                _ => {}
            }
        }
        keep_open(client);
        idle.measure();
    }
    idle.check_below(limit);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unread_beginnings_of_http1_responses_do_not_keep_their_read_buffers() {
    // The head makes the pages of the buffer resident.
    const HEAD: usize = 4 * FIELD;
    // Of a size that is copied anyway, and of one that stays in its buffer while it is sent.
    leave_http1_responses_unread(HEAD, 2 * 1024, 24 * MIB);
    leave_http1_responses_unread(HEAD, 20 * 1024, 44 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unread_http1_responses_of_a_hundred_connections() {
    leave_http1_responses_unread(0, 1024 * 1024, 56 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn small_frames_of_a_hundred_connections() {
    // The window that the proxy grants at first.
    const WINDOW: usize = 64 * 1024;
    let (route, _) = origin(HTTP2, refuse_bodies);
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        let mut client = connect(idle.port);
        open(&client, "POST", 4, 0);
        idle.add(&client);
        // The window of the connection is large enough only then.
        while next(&mut client).expect("the connection stays open").0 != WINDOW_UPDATE {}
        // Without an acknowledgement of SETTINGS, no window becomes smaller.
        let mut reset = HashSet::new();
        let mut sent = 0;
        while sent + 4 * SMALL <= WINDOW {
            let open = streams().filter(|stream| !reset.contains(stream));
            let parts = open.flat_map(|stream| frame(DATA, 0, stream, &[b'x'; SMALL]).repeat(4));
            let bytes: Vec<u8> = parts.collect();
            client.write_all(&bytes).unwrap();
            sent += 4 * SMALL;
        }
        client.write_all(&frame(PING, 0, 0, &[1; 8])).unwrap();
        loop {
            match next(&mut client).expect("the connection stays open") {
                (PING, 1, ..) => break,
                (3, _, stream, _) => drop(reset.insert(stream)),
                _ => {}
            }
        }
        keep_open(client);
        idle.measure();
    }
    idle.check();
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn single_bytes_of_a_hundred_connections() {
    const CHUNK: &[u8; 6] = b"1\r\nx\r\n";
    const BYTES: usize = 500;
    let [backend, mirror] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [app_port, mirror_port] = [&backend, &mirror].map(|one| one.local_addr().unwrap().port());
    let mut idle = Idle::start(&route(app_port, mirror_port));
    let mut open: Vec<_> = (0..CONNECTIONS)
        .map(|_| upload(idle.port, &backend, 1))
        .collect();
    for _ in 1..BYTES {
        for [client, _] in &mut open {
            client.write_all(CHUNK).unwrap();
        }
        for [_, backend] in &mut open {
            backend.read_exact(&mut [0; CHUNK.len()]).unwrap();
        }
    }
    open.iter().for_each(|[client, _]| idle.add(client));
    idle.check();
}
