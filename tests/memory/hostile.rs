//! A hundred hostile connections to one program: what they leave unread, or send in small parts, takes a limited amount
//! of memory above that of the idle program.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::{
    DATA, HEADERS, MIB, PING, PREFACE, Running, SETTINGS, TEST_TIMEOUT, WINDOW_UPDATE, field,
    frame, gateway, http2_route, keep_open, next, ports, route, upload,
};

const CONNECTIONS: usize = 100;
const WORKERS: &str = "4";
/// Streams of each HTTP/2 connection.
const STREAMS: usize = 10;
/// Payload of a small frame.
const SMALL: usize = 100;
/// Memory that all of them may take above the idle program.
const LIMIT: u64 = 128 * MIB;

/// The program, the port of its Gateway, and its heap before the attack.
struct Idle {
    running: Running,
    port: u16,
    heap: u64,
    /// What was taken at most.
    most: u64,
    _directory: tempfile::TempDir,
}

impl Idle {
    /// Starts the program with these routes, whose backends are on loopback.
    fn start(routes: &str) -> Self {
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
            _directory: directory,
        }
    }

    /// Notes what is taken above the heap before the attack.
    fn measure(&mut self) {
        let taken = self.running.heap().saturating_sub(self.heap);
        self.most = self.most.max(taken);
    }

    /// Measures until a condition holds.
    fn until(&mut self, is_done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            self.measure();
            assert!(begin.elapsed() < TEST_TIMEOUT, "it takes too long");
            // No notification tells the change.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks what was taken at most, up to now.
    fn check(&mut self) {
        self.measure();
        let most = self.most;
        println!("at most {} KiB above the idle program", most / 1024);
        assert!(most < LIMIT, "{most} bytes above the idle program");
    }
}

/// Returns a route to a backend that serves each connection with `serve`, which gets the number of responses that the
/// proxy has read.
fn origin(serve: fn(&mut TcpStream, &AtomicUsize) -> Option<()>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let route = "---".to_owned() + &http2_route(listener.local_addr().unwrap().port());
    let read = Arc::<AtomicUsize>::default();
    let counter = read.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, counter) = (socket.unwrap(), counter.clone());
            std::thread::spawn(move || {
                let mut preface = [0; PREFACE.len()];
                socket.read_exact(&mut preface).ok()?;
                serve(&mut socket, &counter)
            });
        }
    });
    (route, read)
}

/// Responds to each request with a window of small frames.
fn respond(socket: &mut TcpStream, read: &AtomicUsize) -> Option<()> {
    let mut window = 65_535;
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        match next(socket)? {
            (HEADERS, _, stream, _) => {
                let mut bytes = frame(HEADERS, 4, stream, &[0x88]);
                let part = frame(DATA, 0, stream, &[b'x'; SMALL]);
                bytes.extend(part.repeat(window / SMALL));
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

/// Opens an HTTP/2 connection with requests on all streams, and grants no window for their responses.
fn open(port: u16, method: &str, flags: u8) -> TcpStream {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];
    let fields = fields.iter().map(|(name, value)| field(name, value));
    let head = fields.collect::<Vec<_>>().concat();
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for stream in streams() {
        bytes.extend(frame(HEADERS, flags, stream, &head));
    }
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(&bytes).unwrap();
    client
}

fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS as u32).map(|index| 2 * index + 1)
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unread_streams_of_a_hundred_connections() {
    let (route, read) = origin(respond);
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        keep_open(open(idle.port, "GET", 5));
    }
    idle.until(|| read.load(Relaxed) == CONNECTIONS * STREAMS);
    idle.check();
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn small_frames_of_a_hundred_connections() {
    // The window that the proxy grants at first.
    const WINDOW: usize = 64 * 1024;
    let (route, _) = origin(refuse_bodies);
    let mut idle = Idle::start(&route);
    for _ in 0..CONNECTIONS {
        let mut client = open(idle.port, "POST", 4);
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
    idle.check();
}
