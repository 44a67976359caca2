//! Graceful shutdown: readiness fails, listeners close, requests in flight complete, all within the
//! deadline.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Response};
use portcullis::settings::{Drain, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::client::{Client, connect, get, handshake, read_all, refuses, whole, write_text};
use crate::harness::tls;
use crate::harness::{TEST_TIMEOUT, UNREACHED};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, to};

fn objects(origin: &Origin) -> Objects {
    Objects::http_and_https()
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
}

/// Settings of a shutdown that drains at once, with this deadline.
fn draining(deadline: Duration) -> impl FnOnce(&mut Settings) {
    move |settings| {
        settings.drain = Drain {
            delay: Duration::ZERO,
            deadline,
        };
    }
}

/// Waits for the end of a shutdown, whose deadline is never reached.
async fn completes(shutdown: JoinHandle<()>) {
    let ended = timeout(TEST_TIMEOUT, shutdown).await;
    ended.expect("in time").expect("no panic");
}

/// Responds to `/held` when the gate opens, and to everything else at once.
pub(crate) async fn gated(gate: &Arc<Semaphore>) -> Origin {
    let gate = gate.clone();
    Origin::new(move |request| {
        let gate = gate.clone();
        async move {
            if request.uri().path() == "/held" {
                gate.acquire().await.expect("open").forget();
            }
            Response::new(full("done"))
        }
    })
    .await
}

/// Waits until readiness fails.
async fn becomes_unready(admin: SocketAddr) {
    let unready = async { while get(admin, "admin", "/readyz").await.status != 503 {} };
    timeout(TEST_TIMEOUT, unready).await.expect("in time");
}

#[tokio::test]
async fn terminating_server_is_unready_and_serves_until_load_balancers_have_noticed() {
    let origin = gated(&Arc::new(Semaphore::new(0))).await;
    let mut scene = Scene::with(&objects(&origin), |settings| {
        settings.drain.delay = UNREACHED;
    });
    let (plain, admin) = (scene.at(80), scene.admin_address());
    let mut busy = Client::http1(plain).await;
    assert_eq!(busy.get("a.com", "/").await.header("connection"), "");
    assert_eq!(get(admin, "admin", "/readyz").await.status, 200);
    let left = scene.begin_shutdown();
    becomes_unready(admin).await;
    assert_eq!(get(plain, "a.com", "/").await.text(), "done");
    assert_eq!(busy.get("a.com", "/").await.header("connection"), "close");
    busy.ended().await;
    assert_eq!(get(admin, "admin", "/healthz").await.status, 200);
    assert!(!left.is_finished());
}

#[tokio::test]
async fn shutdown_completes_requests_in_flight() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let mut scene = Scene::with(&objects(&origin), draining(UNREACHED));
    let (plain, secure, admin) = (scene.at(80), scene.at(443), scene.admin_address());
    let mut idle = Client::http1(plain).await;
    assert_eq!(idle.get("a.com", "/").await.text(), "done");
    let mut frames = Frames::open(plain).await;
    let config = tls::client(&["http/1.1"]);
    let mut held = Vec::new();
    for mut client in [
        Client::http1(plain).await,
        Client::http2(plain).await,
        Client::tls(secure, "a.com", &config).await,
    ] {
        let request = client.request(Method::GET, "a.com", "/held").body(empty());
        let request = request.expect("a request");
        held.push(tokio::spawn(
            async move { (client.send(request).await, client) },
        ));
    }
    origin.until_requests(1 + held.len()).await;
    assert_eq!(get(admin, "admin", "/readyz").await.status, 200);

    let left = scene.begin_shutdown();
    idle.ended().await;
    frames.until_goaway().await;
    refuses(plain).await;
    refuses(secure).await;
    assert_eq!(get(admin, "admin", "/healthz").await.status, 200);
    assert_eq!(get(admin, "admin", "/readyz").await.status, 503);
    assert!(!left.is_finished());

    gate.add_permits(held.len());
    for (index, one) in held.into_iter().enumerate() {
        let (answer, client) = one.await.expect("no panic");
        let answer = whole(answer.expect("an answer")).await;
        assert_eq!(answer.text(), "done");
        let close = if index == 1 { "" } else { "close" };
        assert_eq!(answer.header("connection"), close, "client {index}");
        client.ended().await;
    }
    completes(left).await;
}

/// An HTTP/2 client at frame level.
pub(crate) struct Frames {
    stream: TcpStream,
    /// Payload of the SETTINGS of the server.
    pub(crate) settings: Vec<u8>,
}

impl Frames {
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const GO_AWAY: u8 = 7;

    /// Opens a connection without streams.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let mut stream = connect(address).await;
        write_text(
            &mut stream,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        )
        .await;
        let mut frames = Self {
            stream,
            settings: Vec::new(),
        };
        let (kind, settings) = frames.next().await.expect("a frame");
        assert_eq!(kind, 4, "SETTINGS");
        Self { settings, ..frames }
    }

    /// Sends `GET /` for `a.com` on the first stream, and returns the first byte of the head of its response: the index of its
    /// status in the static table of HPACK.
    pub(crate) async fn get(&mut self) -> u8 {
        let request = b"\0\0\x0a\x01\x05\0\0\0\x01\x82\x86\x84\x41\x05a.com";
        write_text(&mut self.stream, request).await;
        loop {
            let (kind, payload) = self.next().await.expect("a response");
            if kind == Self::HEADERS {
                return payload[0];
            }
        }
    }

    /// Type and payload of the next frame; `None` at EOF.
    pub(crate) async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 9];
        let read = timeout(TEST_TIMEOUT, self.stream.read_exact(&mut head)).await;
        read.expect("in time").ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.stream
            .read_exact(&mut payload)
            .await
            .expect("a payload");
        if head[3] == Self::PING && head[4] == 0 {
            let acknowledged = [&[0, 0, 8, Self::PING, 1, 0, 0, 0, 0], &payload[..]].concat();
            write_text(&mut self.stream, acknowledged).await;
        }
        Some((head[3], payload))
    }

    /// Reads until EOF; a GOAWAY with NO_ERROR must have arrived.
    pub(crate) async fn until_goaway(&mut self) {
        let mut has_goaway = false;
        while let Some((kind, payload)) = self.next().await {
            if kind == Self::GO_AWAY {
                assert_eq!(payload[4..8], [0; 4], "not an error");
                has_goaway = true;
            }
        }
        assert!(has_goaway, "the connection ended without a GOAWAY");
    }
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let origin = Origin::new(|_| async { Response::new(full("done")) }).await;
    let mut scene = Scene::with(&objects(&origin), |settings| {
        // Connections park sooner.
        settings.limits.idle_buffer_timeout = Duration::from_millis(100);
        draining(UNREACHED)(settings);
    });
    let (plain, secure) = (scene.at(80), scene.at(443));
    let config = tls::client(&["http/1.1"]);
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(Client::http1(plain).await);
        clients.push(Client::http2(plain).await);
        clients.push(Client::tls(secure, "a.com", &config).await);
    }
    for client in &mut clients {
        assert_eq!(client.get("a.com", "/").await.text(), "done");
    }
    scene
        .until_stats("20 are parked", |stats| stats.parked == 20)
        .await;
    // Also connections that are not idle yet, or have never sent anything.
    clients.push(Client::http1(plain).await);
    clients.push(Client::tls(secure, "a.com", &config).await);
    let mut silent = connect(plain).await;
    let mut halting = connect(secure).await;
    halting.write_all(&[22, 3, 1]).await.expect("written");
    let left = scene.begin_shutdown();
    for client in clients {
        client.ended().await;
    }
    assert_eq!(read_all(&mut silent).await, b"");
    drop(halting);
    completes(left).await;
}

#[tokio::test]
async fn new_connections_do_not_delay_shutdown() {
    let origin = Origin::echo("echo").await;
    for _ in 0..5 {
        let mut scene = Scene::with(&objects(&origin), draining(UNREACHED));
        let address = scene.at(80);
        let storm = std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok(stream) = std::net::TcpStream::connect(address) {
                open.push(stream);
                if open.len() == 2000 {
                    break;
                }
            }
            open
        });
        scene
            .until_stats("some are open", |stats| stats.accepted > 100)
            .await;
        completes(scene.begin_shutdown()).await;
        drop(storm.join().expect("no panic"));
    }
}

#[tokio::test]
async fn request_that_arrives_with_the_end_of_its_handshake_is_served_during_the_drain() {
    let origin = gated(&Arc::new(Semaphore::new(0))).await;
    let mut scene = Scene::with(&objects(&origin), draining(UNREACHED));
    let plain = scene.at(80);
    let mut socket = TcpStream::connect(scene.at(443)).await.expect("connected");
    // The client writes to a pipe, so that the test decides when its bytes reach the server.
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let (sent, is_sent) = oneshot::channel();
    let client = tokio::spawn(async move {
        let connector = TlsConnector::from(tls::client(&["http/1.1"]));
        let name = "a.com".try_into().expect("a server name");
        let mut stream = connector.connect(name, near).await.expect("a handshake");
        write_text(&mut stream, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
        sent.send(()).expect("the test waits");
        read_all(&mut stream).await
    });
    let mut hello = vec![0; 16 * 1024];
    let length = far.read(&mut hello).await.expect("a ClientHello");
    let (last, first) = hello[..length].split_last().expect("bytes");
    socket.write_all(first).await.expect("written");
    let left = scene.begin_shutdown();
    refuses(plain).await;
    socket.write_all(&[*last]).await.expect("written");
    let mut flight = vec![0; 16 * 1024];
    let mut is_sent = pin!(is_sent);
    loop {
        tokio::select! {
            outcome = &mut is_sent => break outcome.expect("a request"),
            read = socket.read(&mut flight) => {
                let length = read.expect("the server's part of the handshake");
                far.write_all(&flight[..length]).await.expect("written");
            }
        }
    }
    let relay = tokio::io::copy_bidirectional(&mut far, &mut socket);
    let relayed = timeout(TEST_TIMEOUT, relay).await.expect("an end in time");
    relayed.expect("relayed");
    let answer = String::from_utf8(client.await.expect("no panic")).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    completes(left).await;
}

#[tokio::test]
async fn drain_deadline_closes_clients_that_never_read() {
    let origin = Origin::raw(|mut stream| async move {
        write_text(
            &mut stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
        )
        .await;
        let piece = vec![b'x'; 64 * 1024];
        while stream.write(&piece).await.is_ok() {}
    })
    .await;
    let deadline = Duration::from_secs(1);
    let mut scene = Scene::with(&objects(&origin), draining(deadline));
    let config = tls::client(&["http/1.1"]);
    let mut plain = connect(scene.at(80)).await;
    let mut secure = handshake(scene.at(443), "a.com", &config)
        .await
        .expect("a handshake");
    let mut http2 = Client::http2(scene.at(80)).await;
    write_text(&mut plain, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    write_text(&mut secure, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    let request = http2.request(Method::GET, "a.com", "/").body(empty());
    let unread = http2
        .send(request.expect("a request"))
        .await
        .expect("a head");
    let mut byte = [0];
    plain.read_exact(&mut byte).await.expect("an answer");
    secure.read_exact(&mut byte).await.expect("an answer");
    let begin = Instant::now();
    completes(scene.begin_shutdown()).await;
    assert!(begin.elapsed() >= deadline);
    drop((plain, secure, unread));
}
