//! Many HTTP/1.1 clients that read nothing of their responses, and tunnels whose client does not: what the program has read for
//! them takes a limited amount of memory, and another client still gets its response.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::hostile::{Idle, origin, raise_descriptors, read_request};
use super::{HTTP1, MIB, TEST_TIMEOUT};

/// Enough for the limits of all workers.
const CLIENTS: usize = 1000;
/// What the client that reads gets.
const READ: usize = 16 << 20;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";

/// Sends a request. The kernel takes little of what is not read.
fn request(port: u16, headers: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_tcp_mss(536).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(&address.into()).unwrap();
    let mut client = TcpStream::from(socket);
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client
}

/// Responds with this head, and then with parts of a body without an end, at this pace. Counts the responses that have begun.
fn respond(
    socket: &mut TcpStream,
    begun: &AtomicUsize,
    (head, part): (&str, &[u8]),
    pace: Duration,
) -> Option<()> {
    read_request(socket)?;
    socket.write_all(head.as_bytes()).ok()?;
    begun.fetch_add(1, Relaxed);
    loop {
        socket.write_all(part).ok()?;
        // The pace at which parts arrive.
        std::thread::sleep(pace);
    }
}

/// Leaves responses with this head and body unread, of requests with these headers. Checks that they take
/// less than `limit` bytes, and that a client that reads gets its response.
fn leave_unread(
    (head, part): (&'static str, Vec<u8>),
    pace: Duration,
    (headers, policy): (&str, &str),
    limit: u64,
) {
    raise_descriptors();
    let (route, begun) = origin(HTTP1, move |socket, begun| {
        respond(socket, begun, (head, &part), pace)
    });
    let mut idle = Idle::start(&(route + policy));
    for _ in 0..CLIENTS {
        let client = request(idle.port, headers);
        idle.add(&client);
    }
    idle.until(|| begun.load(Relaxed) >= CLIENTS);
    idle.until_steady();
    let mut client = TcpStream::connect(("127.0.0.1", idle.port)).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    client.write_all(head.as_bytes()).unwrap();
    let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
    // Parts that arrive one by one are few.
    let enough = if pace.is_zero() { READ } else { 64 << 10 };
    while read < enough {
        let count = client.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the response of a client that reads has ended");
        read += count;
    }
    drop(client);
    idle.check_below(limit);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_responses_that_are_not_read() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
    let body = (HEAD, vec![b'x'; 64 << 10]);
    leave_unread(body, Duration::ZERO, ("", ""), 76 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn parts_that_are_read_on_their_own_and_are_not_read() {
    // The least that stays in the buffer that it was read into.
    const PART: usize = 8 << 10;
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let part = [b"2000\r\n", &[b'x'; PART][..], b"\r\n"].concat();
    // The pace of parts that arrive one by one.
    let pace = Duration::from_millis(20);
    leave_unread((HEAD, part), pace, ("", ""), 76 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn events_that_are_not_read() {
    const HEAD: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let events = b"14\r\ndata: 0123456789ab\n\n\r\n".repeat(1000);
    leave_unread((HEAD, events), Duration::ZERO, ("", ""), 76 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn compressed_responses_that_are_not_read() {
    const HEAD: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1073741824\r\n\r\n";
    const POLICY: &str = "---
apiVersion: portcullis.dev/v1alpha1
kind: RoutePolicy
metadata: {name: compressed, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: route}]
  compression: {minSize: 2Ki}
";
    // Without repetitions, so that as much goes out as comes in.
    let mut state = 1_u64;
    let part = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    });
    let part = part.take(64 << 10).collect();
    let headers = "Accept-Encoding: gzip\r\n";
    leave_unread((HEAD, part), Duration::ZERO, (headers, POLICY), 104 * MIB);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn tunnels_that_are_not_read() {
    const HEAD: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n";
    let body = (HEAD, vec![b'x'; 64 << 10]);
    leave_unread(body, Duration::ZERO, (UPGRADE, ""), 76 * MIB);
}
