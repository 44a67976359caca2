//! What memory the program takes: memory that a large configuration or many connections needed goes back to the system
//! when it is free, and what clients make it keep is bounded by what it allocates. Only the program itself shows that, so
//! it is started and watched from outside. What one call of a library allocates is counted in the process of the tests.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "memory/heads.rs"]
mod heads;
#[path = "memory/hostile.rs"]
mod hostile;
#[path = "memory/limits.rs"]
mod limits;
#[path = "memory/long_bodies.rs"]
mod long_bodies;
#[path = "memory/patterns.rs"]
mod patterns;
#[path = "memory/policies.rs"]
mod policies;
#[path = "harness/ports.rs"]
mod ports;
#[path = "memory/unread_http1.rs"]
mod unread_http1;
#[path = "memory/unwritten.rs"]
mod unwritten;

/// How long any step may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A busy machine takes longer for the steps of a test than the timeouts that end connections and streams.
const LONG_TIMEOUTS: [&str; 4] = [
    "--header-timeout=1h",
    "--body-timeout=1h",
    "--write-timeout=1h",
    "--keep-alive-timeout=1h",
];

const MIB: u64 = 1024 * 1024;

/// Returns a constant of the program, which is a product of numbers. `file` is below `src`.
fn constant(file: &str, name: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    let code = fs::read_to_string(path).unwrap();
    let begin = format!("const {name}: usize = ");
    let found = code.split_once(&begin);
    let found = found.and_then(|(_, rest)| rest.split_once(';'));
    let (value, _) = found.unwrap_or_else(|| panic!("no constant {name} in {file}"));
    let factors = value.split('*');
    let factors = factors.map(|it| it.trim().replace('_', "").parse::<usize>().unwrap());
    factors.product()
}

/// A Gateway.
fn gateway(port: u16) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec:
  gatewayClassName: portcullis
  addresses: [{{type: IPAddress, value: 127.0.0.1}}]
  listeners: [{{name: http, port: {port}, protocol: HTTP}}]
"
    )
}

/// A program that ends with the test, and what it logs.
struct Running(Child, Lines<BufReader<ChildStderr>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(directory: &Path) -> Self {
        Self::start_with(directory, "1")
    }

    fn start_with(directory: &Path, workers: &str) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--workers", workers, "--access-log", "off"])
            .args(LONG_TIMEOUTS)
            .args(["--admin", "127.0.0.1:0", "--config-dir"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(program.stderr.take().unwrap()).lines();
        Self(program, log)
    }

    /// Waits until the next configuration is served.
    fn served(&mut self) {
        let mut lines = self.1.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("is active")));
    }

    /// Resident anonymous memory in bytes: the heap, without the program's own pages.
    fn heap(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let mut lines = status.lines();
        let line = lines.find(|line| line.starts_with("RssAnon:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kilobytes * 1024
    }

    /// Waits until the heap is smaller than `limit` bytes.
    fn shrunk(&self, limit: u64) {
        let start = Instant::now();
        while self.heap() >= limit {
            let heap = self.heap();
            assert!(start.elapsed() < TEST_TIMEOUT, "{heap} bytes stay");
            // No notification tells the change.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A route of all requests to a backend, with a copy to a mirror.
fn route(backend: u16, mirror: u16) -> String {
    let mut text = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: default}
spec:
  parentRefs: [{name: edge}]
  rules:
  - backendRefs: [{name: app, port: 80}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: mirror, port: 80}}}]
"
    .to_owned();
    for (name, port) in [("app", backend), ("mirror", mirror)] {
        write!(
            text,
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: {port}, protocol: TCP}}]
endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]
"
        )
        .unwrap();
    }
    text
}

/// An upload of single bytes, each of which the backend has read, so that the proxy has read each on its own.
fn upload(port: u16, backend: &TcpListener, bytes: usize) -> [TcpStream; 2] {
    const CHUNK: &[u8; 6] = b"1\r\nx\r\n";
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_nodelay(true).unwrap();
    let head = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(&[&head[..], CHUNK].concat()).unwrap();
    let (mut backend, _) = backend.accept().unwrap();
    backend.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut received = Vec::new();
    while !received.ends_with(CHUNK) {
        let mut part = [0; 4096];
        let count = backend.read(&mut part).unwrap();
        assert_ne!(count, 0, "the proxy has ended the request");
        received.extend_from_slice(&part[..count]);
    }
    for _ in 1..bytes {
        client.write_all(CHUNK).unwrap();
        backend.read_exact(&mut [0; CHUNK.len()]).unwrap();
    }
    [client, backend]
}

fn routes(count: usize) -> String {
    let mut text = String::new();
    for i in 0..count {
        write!(
            text,
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route-{i}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{matches: [{{path: {{value: /route-{i}}}}}], filters: [{{type: RequestRedirect, requestRedirect: {{statusCode: 301}}}}]}}]
"
        )
        .unwrap();
    }
    text
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn memory_of_a_large_configuration_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    fs::write(directory.path().join("gateway.yaml"), gateway(port)).unwrap();
    let file = directory.path().join("routes.yaml");
    fs::write(&file, routes(1)).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    let small = running.heap();
    fs::write(&file, routes(4000)).unwrap();
    running.served();
    let large = running.heap();
    assert!(large > 2 * small, "{large} bytes are not much");
    fs::write(&file, routes(1)).unwrap();
    running.served();
    // The allocator keeps partly used pages, and hash tables keep their size until they grow again.
    running.shrunk(small + (large - small) * 2 / 3);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn single_bytes_that_are_kept_do_not_keep_their_read_buffers() {
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    let [backend, mirror] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [app_port, mirror_port] = [&backend, &mirror].map(|one| one.local_addr().unwrap().port());
    let objects = gateway(port) + &route(app_port, mirror_port);
    fs::write(directory.path().join("objects.yaml"), objects).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    // The program has its threads and first buffers.
    drop(upload(port, &backend, 100));
    let idle = running.heap();
    let mut open = vec![upload(port, &backend, 20_000)];
    let one = running.heap().saturating_sub(idle);
    open.extend((0..10).map(|_| upload(port, &backend, 6000)));
    let all = running.heap().saturating_sub(idle);
    assert!(one < 4 * MIB, "20,000 bytes take {one} bytes");
    assert!(all < 8 * MIB, "80,000 bytes take {all} bytes");
    drop(open);
}

/// The `appProtocol` of HTTP/1 and of HTTP/2 in plain text.
const HTTP1: &str = "http";
const HTTP2: &str = "kubernetes.io/h2c";

/// A route of all requests to a backend that speaks this protocol.
fn origin_route(port: u16, protocol: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: origin, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: origin, namespace: default}}
spec:
  ports: [{{name: http, port: 80, appProtocol: {protocol}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: origin, namespace: default, labels: {{kubernetes.io/service-name: origin}}}}
addressType: IPv4
ports: [{{name: http, port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"
    )
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// Encodes an HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// Reads a frame: type, flags, stream and payload. `None` at the end of the connection.
fn next(socket: &mut TcpStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    socket.read_exact(&mut head).ok()?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload).ok()?;
    Some((kind, flags, u32::from_be_bytes(stream), payload))
}

/// Keeps a connection open to the end of the test: the proxy closes quiet ones that do not respond to its pings.
fn keep_open(mut client: TcpStream) {
    std::thread::spawn(move || {
        while let Some((kind, flags, _, payload)) = next(&mut client) {
            if (kind, flags) == (PING, 0) && client.write_all(&frame(PING, 1, 0, &payload)).is_err()
            {
                return;
            }
        }
    });
}

/// Encodes a field without compression (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        field.push(u8::try_from(text.len()).unwrap());
        field.extend_from_slice(text.as_bytes());
    }
    field
}

/// Reads requests and fills the windows of all `streams` with frames of 20 bytes, in turns.
fn fill_windows(mut socket: TcpStream, streams: usize) {
    const WINDOW: usize = 256 * 1024;
    let mut preface = [0; PREFACE.len()];
    socket.read_exact(&mut preface).unwrap();
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    let mut open = Vec::new();
    while open.len() < streams {
        match next(&mut socket).expect("the proxy keeps its connection open") {
            (HEADERS, _, stream, _) => {
                socket
                    .write_all(&frame(HEADERS, 4, stream, &[0x88]))
                    .unwrap();
                open.push(stream);
            }
            (kind @ (SETTINGS | PING), 0, _, payload) => {
                let answer = if kind == PING { &payload[..] } else { &[] };
                socket.write_all(&frame(kind, 1, 0, answer)).unwrap();
            }
            _ => {}
        }
    }
    let turn: Vec<u8> = open
        .iter()
        .flat_map(|stream| frame(DATA, 0, *stream, b"data: 0123456789abc\n"))
        .collect();
    for _ in 0..WINDOW / 20 {
        socket.write_all(&turn).unwrap();
    }
    // A PING that is answered: everything before was read.
    socket.write_all(&frame(PING, 0, 0, &[1; 8])).unwrap();
    loop {
        match next(&mut socket).expect("the proxy keeps its connection open") {
            (PING, 1, ..) => return,
            (PING, _, _, payload) => socket.write_all(&frame(PING, 1, 0, &payload)).unwrap(),
            _ => {}
        }
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn unread_responses_of_small_frames_take_little_more_than_their_length() {
    const STREAMS: usize = 12;
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = [
        gateway(port),
        origin_route(origin.local_addr().unwrap().port(), HTTP2),
    ];
    fs::write(directory.path().join("all.yaml"), config.join("---")).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    let before = running.heap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // No window for responses.
    let mut opening = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];
    let head: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| field(name, value))
        .collect();
    for index in 0..STREAMS as u32 {
        opening.extend_from_slice(&frame(HEADERS, 5, 2 * index + 1, &head));
    }
    client.write_all(&opening).unwrap();
    keep_open(client);
    let (socket, _) = origin.accept().unwrap();
    fill_windows(socket.try_clone().unwrap(), STREAMS);
    let taken = running.heap().saturating_sub(before);
    assert!(
        taken < 16 * MIB,
        "{taken} bytes for 3 MiB that are not read"
    );
}

/// A route with 4224 different regular expressions, the most that the API permits, each close to the limit of its size.
fn patterns(namespace: &str) -> String {
    let mut text = format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: patterns, namespace: {namespace}}}
spec:
  parentRefs: [{{name: edge, namespace: default}}]
  rules:
"
    );
    for rule in 0..16 {
        text.push_str("  - matches:\n");
        for number in 0..8 {
            let id = format!("{rule}-{number}");
            let value = |kind: char, index: usize| {
                format!(
                    r"{{name: {kind}{index}, type: RegularExpression, value: '\w{{11}}{id}{kind}{index}'}}"
                )
            };
            let list = |kind: char| {
                (0..16)
                    .map(|index| value(kind, index))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let (headers, query) = (list('h'), list('q'));
            writeln!(
                text,
                r"    - path: {{type: RegularExpression, value: '/\w{{11}}{id}'}}"
            )
            .unwrap();
            writeln!(
                text,
                "      headers: [{headers}]\n      queryParams: [{query}]"
            )
            .unwrap();
        }
    }
    text
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn regular_expressions_of_one_route_take_little_memory_whether_or_not_it_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    fs::write(directory.path().join("gateway.yaml"), gateway(port)).unwrap();
    let file = directory.path().join("routes.yaml");
    fs::write(&file, routes(1)).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    // The first change reads the schemas of the API.
    fs::write(&file, routes(2)).unwrap();
    running.served();
    let before = running.heap();
    for namespace in ["other", "default"] {
        // What is served is logged when it changes, so a served route goes with each.
        let text = routes(1) + "---" + &patterns(namespace);
        fs::write(&file, text).unwrap();
        running.served();
        let growth = running.heap().saturating_sub(before);
        assert!(
            growth < 32 << 20,
            "{growth} bytes for the route in {namespace}"
        );
        fs::write(&file, routes(2)).unwrap();
        running.served();
    }
}
