//! TCPRoutes: connections of TCP listeners are forwarded byte for byte, each to the backend that it got first.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use portcullis::telemetry::metrics::ConnectionStats;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{connect, get, read_all, read_until, refuses, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, eventually};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// Port of the listener.
const PORT: u16 = 5432;
/// More than the buffers of two connections on loopback take.
const FLOOD: usize = 64 << 20;

/// Returns a route of this kind of the Gateway, with these backends by weight, as JSON, which is valid YAML.
pub(crate) fn route(kind: &str, name: &str, hostnames: &[&str], backends: &[(&str, u32)]) -> Value {
    let backends = backends.iter();
    let backends: Vec<_> = backends
        .map(|(service, weight)| json!({"name": service, "port": 80, "weight": weight}))
        .collect();
    let mut route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"name": name},
        "spec": {"parentRefs": [{"name": "gateway"}], "rules": [{"backendRefs": backends}]},
    });
    if !hostnames.is_empty() {
        route["spec"]["hostnames"] = json!(hostnames);
    }
    route
}

/// Returns a Gateway with a TCP listener.
fn listening(port: u16) -> Objects {
    Objects::gateway(&[format!("{{name: tcp, port: {port}, protocol: TCP}}")])
}

/// Returns objects that forward connections to these backends by weight.
fn to(backends: &[(&str, u32)]) -> Objects {
    listening(PORT).with(route("TCPRoute", "route", &[], backends).to_string())
}

/// A backend whose side of each connection the test has.
pub(crate) struct Backend {
    origin: Origin,
    streams: mpsc::UnboundedReceiver<TcpStream>,
}

impl Backend {
    pub(crate) async fn start() -> Self {
        let (sender, streams) = mpsc::unbounded_channel();
        let origin = Origin::raw(move |stream| {
            // Connections after the end of the test are dropped.
            let _ = sender.send(stream);
            async {}
        });
        Self {
            origin: origin.await,
            streams,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.origin.address
    }

    /// Returns the next connection.
    pub(crate) async fn accept(&mut self) -> TcpStream {
        let stream = timeout(TEST_TIMEOUT, self.streams.recv()).await;
        stream.expect("a connection in time").expect("running")
    }
}

/// Returns a backend that writes its name as a line, and then what it reads.
pub(crate) async fn echo(name: &'static str) -> Origin {
    Origin::raw(move |mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        if writer
            .write_all(format!("{name}\n").as_bytes())
            .await
            .is_ok()
        {
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    })
    .await
}

/// Makes the drop of a socket reset its connection.
pub(crate) fn reset(stream: TcpStream) {
    let linger = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    linger.expect("a socket");
    drop(stream);
}

/// Waits until the other side resets the connection, and discards what it sends before.
pub(crate) async fn until_reset<S: AsyncRead + Unpin>(stream: &mut S) {
    let ended = timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new())).await;
    let error = ended.expect("an end in time").expect_err("no EOF");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Connects, and waits until the connection is reset.
pub(crate) async fn is_reset(address: SocketAddr) {
    match TcpStream::connect(address).await {
        Ok(mut stream) => until_reset(&mut stream).await,
        // The reset may precede the result of the connect.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

/// Sends a line and awaits its echo.
pub(crate) async fn talk<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, line: &str) {
    write_text(stream, format!("{line}\n")).await;
    assert_eq!(read_until(stream, "\n").await, format!("{line}\n"));
}

/// Waits until the counters of connections match.
pub(crate) async fn until_counted(
    scene: &Scene,
    what: &str,
    condition: impl Fn(&ConnectionStats) -> bool,
) {
    let stats = &scene.state().stats.connections;
    let counted = async {
        // Counters have no change notification.
        while !condition(stats) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let counted = timeout(TEST_TIMEOUT, counted).await;
    assert!(counted.is_ok(), "{what} did not come about in time");
}

/// A client and a backend whose connections the proxy joins.
async fn joined(scene: &Scene, backend: &mut Backend) -> (TcpStream, TcpStream) {
    let client = connect(scene.at(PORT)).await;
    (client, backend.accept().await)
}

/// Writes a pattern of this length, and half-closes.
async fn write_pattern<W: AsyncWrite + Unpin>(mut writer: W, length: usize) {
    let pattern: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    write_text(&mut writer, pattern).await;
    writer.shutdown().await.expect("half-closed");
}

async fn read_pattern<R: AsyncRead + Unpin>(mut reader: R, length: usize) {
    let read = read_all(&mut reader).await;
    assert_eq!(read.len(), length);
    let mut bytes = read.iter().enumerate();
    assert!(bytes.all(|(index, byte)| *byte == (index % 251) as u8));
}

#[tokio::test]
async fn forwards_all_bytes_both_ways_at_once() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[backend.address()]));
    for length in [0, 1, 3_000_000] {
        let (client, other) = joined(&scene, &mut backend).await;
        let (from_backend, to_client) = other.into_split();
        let (from_proxy, to_proxy) = client.into_split();
        tokio::join!(
            write_pattern(to_proxy, length),
            write_pattern(to_client, length),
            read_pattern(from_backend, length),
            read_pattern(from_proxy, length),
        );
    }
}

#[tokio::test]
async fn backend_speaks_first() {
    let origin = echo("app").await;
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[origin.address]));
    let mut client = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
}

#[tokio::test]
async fn each_side_may_half_close_first() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[backend.address()]));
    for client_is_first in [true, false] {
        let (client, other) = joined(&scene, &mut backend).await;
        let (mut first, mut second) = match client_is_first {
            true => (client, other),
            false => (other, client),
        };
        write_text(&mut first, "that is all").await;
        first.shutdown().await.expect("half-closed");
        assert_eq!(read_all(&mut second).await, b"that is all");
        // The other direction stays open.
        write_text(&mut second, "one\n").await;
        assert_eq!(read_until(&mut first, "\n").await, "one\n");
        write_text(&mut second, "two").await;
        second.shutdown().await.expect("half-closed");
        assert_eq!(read_all(&mut first).await, b"two");
    }
    until_counted(&scene, "the end of both connections", |it| it.open() == 0).await;
}

#[tokio::test]
async fn reset_of_one_side_resets_the_other() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[backend.address()]));
    for client_resets in [true, false] {
        for after_half_close in [false, true] {
            let (client, other) = joined(&scene, &mut backend).await;
            let (mut one, mut two) = match client_resets {
                true => (client, other),
                false => (other, client),
            };
            write_text(&mut one, "something\n").await;
            read_until(&mut two, "\n").await;
            if after_half_close {
                two.shutdown().await.expect("half-closed");
                assert_eq!(read_all(&mut one).await, b"");
            }
            reset(one);
            until_reset(&mut two).await;
        }
    }
}

#[tokio::test]
async fn invalid_share_is_reset() {
    const CONNECTIONS: u64 = 400;
    let origin = echo("app").await;
    let objects = to(&[("app", 1), ("missing", 1), ("app", 0)]);
    let scene = Scene::start(&objects.service("app", &[origin.address]));
    let mut refused = 0;
    for _ in 0..CONNECTIONS {
        let first = async { TcpStream::connect(scene.at(PORT)).await?.read_u8().await };
        match timeout(TEST_TIMEOUT, first).await.expect("in time") {
            Ok(byte) => assert_eq!(byte, b'a'),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                refused += 1;
            }
        }
    }
    // Six standard deviations of a binomial distribution with p = 1/2.
    assert!((140..=260).contains(&refused), "{refused}");
    assert_eq!(origin.connections() as u64, CONNECTIONS - refused);
    let counted = scene.state().stats.connections.unforwarded.load(Relaxed);
    assert_eq!(counted, refused);
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let line = format!("portcullis_unforwarded_total {refused}\n");
    assert!(metrics.text().contains(&line), "{line}");
}

#[tokio::test]
async fn connections_without_a_route_or_an_endpoint_are_reset() {
    let objects = [
        listening(PORT),
        to(&[("app", 1)]).service("app", &[]),
        to(&[("app", 1)]).service("app", &[Origin::dead(), Origin::dead()]),
        to(&[("app", 0)]).service("app", &[]),
    ];
    for objects in objects {
        let scene = Scene::start(&objects);
        is_reset(scene.at(PORT)).await;
        until_counted(&scene, "the count", |it| it.unforwarded.load(Relaxed) == 1).await;
    }
}

#[tokio::test]
async fn refused_endpoint_costs_no_connection() {
    let origin = echo("app").await;
    let endpoints = [Origin::dead(), origin.address, Origin::dead()];
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &endpoints));
    for _ in 0..50 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
        talk(&mut client, "hello").await;
    }
    let unforwarded = scene.state().stats.connections.unforwarded.load(Relaxed);
    assert_eq!((origin.connections(), unforwarded), (50, 0));
}

#[tokio::test]
async fn oldest_route_gets_all_connections() {
    let (one, two) = (echo("one").await, echo("two").await);
    let mut routes = [
        route("TCPRoute", "a", &[], &[("one", 1)]),
        route("TCPRoute", "b", &[], &[("two", 1)]),
    ];
    routes[0]["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    routes[1]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let objects = listening(PORT)
        .service("one", &[one.address])
        .service("two", &[two.address]);
    let objects = routes
        .iter()
        .fold(objects, |objects, route| objects.with(route.to_string()));
    let scene = Scene::start(&objects);
    for _ in 0..10 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "two\n");
    }
}

#[tokio::test]
async fn change_of_the_route_keeps_open_connections() {
    let (one, two) = (echo("one").await, echo("two").await);
    let objects = |backends: &[(&str, u32)]| {
        to(backends)
            .service("one", &[one.address])
            .service("two", &[two.address])
    };
    let mut scene = Scene::start(&objects(&[("one", 1)]));
    let mut open = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut open, "\n").await, "one\n");
    scene.replace(&objects(&[("two", 1)])).await;
    let mut new = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut new, "\n").await, "two\n");
    talk(&mut open, "after another backend").await;
    scene.replace(&listening(PORT)).await;
    is_reset(scene.at(PORT)).await;
    talk(&mut open, "after the removal of the route").await;
    talk(&mut new, "after the removal of the route").await;
}

#[tokio::test]
async fn removal_of_the_listener_resets_its_connections() {
    let mut backend = Backend::start().await;
    let mut scene = Scene::start(&to(&[("app", 1)]).service("app", &[backend.address()]));
    let address = scene.at(PORT);
    let (mut client, mut other) = joined(&scene, &mut backend).await;
    scene.replace(&listening(PORT + 1)).await;
    until_reset(&mut client).await;
    until_reset(&mut other).await;
    refuses(address).await;
}

#[tokio::test]
async fn quiet_connection_is_reset_after_the_idle_timeout() {
    let mut backend = Backend::start().await;
    let objects = to(&[("app", 1)]).service("app", &[backend.address()]);
    let scene = Scene::with(&objects, |settings| {
        settings.limits.tunnel_idle_timeout = Duration::from_secs(2);
    });
    let (mut client, mut other) = joined(&scene, &mut backend).await;
    until_reset(&mut client).await;
    until_reset(&mut other).await;
}

#[tokio::test]
async fn policy_secures_connections_to_the_backend() {
    let (authority, origin) = (Authority::new(), echo("app").await);
    let certificate = authority.issue(&[NAME]);
    let secure = TlsOrigin::relaying(&certificate, Asks::default(), origin.address).await;
    let objects = |authority: &Authority| {
        to(&[("app", 1)])
            .service("app", &[secure.address])
            .with(policy("app", &trust(NAME), &json!({})))
            .with(authorities("ca", &authority.pem))
    };
    let mut scene = Scene::start(&objects(&authority));
    let mut client = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    talk(&mut client, "for the backend only").await;
    client.shutdown().await.expect("half-closed");
    assert_eq!(read_all(&mut client).await, b"");
    assert_eq!(origin.connections(), 1);

    // Nothing is forwarded to a backend that cannot be verified.
    scene.replace(&objects(&Authority::new())).await;
    is_reset(scene.at(PORT)).await;
    assert_eq!(origin.connections(), 1);
    assert!(secure.connections() > 1);
    secure.assert_encrypted("for the backend only");
}

#[tokio::test]
async fn stuck_connections_do_not_delay_their_neighbours() {
    let (mut stuck, healthy) = (Backend::start().await, echo("app").await);
    let objects = listening(PORT)
        .service("stuck", &[stuck.address()])
        .with(route("TCPRoute", "route", &[], &[("stuck", 1)]).to_string());
    let mut scene = Scene::with(&objects, |settings| settings.workers = 1);
    // In one connection, the backend does not read; in the other, the client.
    let (mut writing, _unread) = joined(&scene, &mut stuck).await;
    let (_unreading, mut answering) = joined(&scene, &mut stuck).await;
    let floods = [
        tokio::spawn(async move { writing.write_all(&vec![b'x'; FLOOD]).await }),
        tokio::spawn(async move { answering.write_all(&vec![b'x'; FLOOD]).await }),
    ];
    let objects = to(&[("app", 1)]).service("app", &[healthy.address]);
    scene.replace(&objects).await;
    for _ in 0..20 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
        for _ in 0..50 {
            talk(&mut client, "hello").await;
        }
    }
    for flood in floods {
        assert!(!flood.is_finished(), "everything was read");
        flood.abort();
    }
}

#[tokio::test]
async fn drain_waits_for_connections() {
    let origin = echo("app").await;
    let mut scene = Scene::start(&to(&[("app", 1)]).service("app", &[origin.address]));
    let address = scene.at(PORT);
    let mut client = connect(address).await;
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
    let left = scene.begin_shutdown();
    refuses(address).await;
    talk(&mut client, "still here").await;
    assert!(!left.is_finished());
    client.shutdown().await.expect("half-closed");
    assert_eq!(read_all(&mut client).await, b"");
    left.await.expect("left");
}

/// Returns the value of the first series of a metric of backends.
pub(crate) async fn of_backend(scene: &Scene, metric: &str) -> u64 {
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let mut lines = metrics.text().lines();
    let line = lines.find(|line| line.starts_with(&format!("{metric}{{")));
    let (_, value) = line.expect("a series").rsplit_once(' ').expect("a value");
    value.parse().expect("a number")
}

#[tokio::test]
async fn ejection_ends_when_the_endpoint_accepts_a_connection() {
    let (late, origin) = (Origin::dead(), echo("app").await);
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[late, origin.address]));
    let ejected = async || of_backend(&scene, "portcullis_upstream_endpoints_ejected").await;
    while ejected().await == 0 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
    }
    let listener = tokio::net::TcpListener::bind(late).await.expect("bound");
    let (sender, accepted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = sender.send(stream);
        }
    });
    // Connections have no other effect that shows when the next one is a probe.
    let probed = async {
        while accepted.is_empty() {
            drop(connect(scene.at(PORT)).await);
            // No notification tells the change.
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, probed).await.expect("probed in time");
    eventually("no ejection", async || ejected().await == 0).await;
}
#[tokio::test]
async fn reset_by_a_client_reaches_a_backend_that_does_not_read() {
    let mut backend = Backend::start().await;
    let scene = Scene::start(&to(&[("app", 1)]).service("app", &[backend.address()]));
    let (mut client, other) = joined(&scene, &mut backend).await;
    let flood = vec![b'x'; FLOOD];
    // A wait for nothing.
    let blocked = timeout(Duration::from_secs(1), client.write_all(&flood)).await;
    assert!(blocked.is_err(), "the buffers take everything");
    reset(client);
    until_counted(&scene, "the end of the connection", |it| it.open() == 0).await;
    drop(other);
}
