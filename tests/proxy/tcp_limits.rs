//! Connections of TCP listeners at the limits of the process: which of them end, and how soon.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{connect, read_until};
use crate::harness::TEST_TIMEOUT;
use crate::scene::{Objects, Scene};
use crate::tcp_route::{echo, route, talk, until_counted, until_reset};
use crate::tls_route::{passthrough, tls_route};

/// Ports of the listeners.
const PORT: u16 = 5432;
const SLOW: u16 = 5433;
/// What the handshakes of one client may hold of one worker: half of what there is for all.
const SHARE: usize = 16 * 1024 * 1024;
/// More than the timeout of tests.
const LONG: Duration = Duration::from_secs(3600);

/// An address that answers no connect: the queue of its socket is full. Ends when dropped.
struct Unanswering {
    address: SocketAddr,
    _sockets: Vec<Socket>,
}

impl Unanswering {
    fn start() -> Self {
        let new = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = new();
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&local.into()).expect("a free port");
        listener.listen(0).expect("listening");
        let address = listener.local_addr().expect("bound");
        let mut sockets = vec![listener];
        for _ in 0..4 {
            let socket = new();
            socket.set_nonblocking(true).expect("a socket");
            // Completes at once, or never.
            let _ = socket.connect(&address);
            sockets.push(socket);
        }
        Self {
            address: address.as_socket().expect("an address"),
            _sockets: sockets,
        }
    }
}

/// Returns objects with a listener for each port, and a route to each of these endpoints.
fn objects(app: SocketAddr, slow: SocketAddr) -> Objects {
    let listeners = [("app", PORT), ("slow", SLOW)];
    let listener = |(name, port)| format!("{{name: {name}, port: {port}, protocol: TCP}}");
    let objects = Objects::gateway(&listeners.map(listener))
        .service("app", &[app])
        .service("slow", &[slow]);
    listeners.iter().fold(objects, |objects, (name, _)| {
        let mut route = route("TCPRoute", name, &[], &[(name, 1)]);
        route["spec"]["parentRefs"][0]["sectionName"] = (*name).into();
        objects.with(route.to_string())
    })
}

#[tokio::test]
async fn removal_of_the_listener_resets_a_connection_whose_backend_does_not_answer() {
    let (app, slow) = (echo("app").await, Unanswering::start());
    let mut scene = Scene::with(&objects(app.address, slow.address), |settings| {
        settings.limits.connect_timeout = LONG;
    });
    let mut client = connect(scene.at(SLOW)).await;
    until_counted(&scene, "the connection", |it| it.open() == 1).await;
    let listener = format!("{{name: app, port: {PORT}, protocol: TCP}}");
    scene.replace(&Objects::gateway(&[listener])).await;
    until_reset(&mut client).await;
    until_counted(&scene, "the end of the connection", |it| it.open() == 0).await;
}

/// Sends a line each 100 ms, and checks the echo.
async fn keep_moving(mut stream: TcpStream) {
    loop {
        talk(&mut stream, "still here").await;
        // The pace is the subject of the test.
        sleep(Duration::from_millis(100)).await;
    }
}

/// Checks that a new client gets the place of a connection to this port once that is idle, and that one on which bytes
/// move stays.
async fn is_replaced_when_idle(port: u16) {
    let (app, slow) = (echo("app").await, Unanswering::start());
    let scene = Scene::with(&objects(app.address, slow.address), |settings| {
        settings.workers = 1;
        settings.limits.max_connections = Some(2);
        settings.limits.connect_timeout = LONG;
    });
    let mut idle = connect(scene.at(port)).await;
    let mut moving = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut moving, "\n").await, "app\n");
    let moving = tokio::spawn(keep_moving(moving));
    let mut refused = 0;
    let served = async {
        loop {
            let mut new = connect(scene.at(PORT)).await;
            // One without a place may be closed before.
            let _ = new.write_all(b"new\n").await;
            let mut greeting = [0; 4];
            match new.read_exact(&mut greeting).await {
                Ok(_) => break new,
                Err(_) => refused += 1,
            }
            // No notification tells the change.
            sleep(Duration::from_millis(100)).await;
        }
    };
    let served = timeout(TEST_TIMEOUT, served).await;
    let mut new = served.expect("a place in time");
    assert!(refused > 0, "a connection of a moment ago is not idle");
    assert_eq!(read_until(&mut new, "\n").await, "new\n");
    until_reset(&mut idle).await;
    assert!(!moving.is_finished(), "{:?}", moving.await);
    until_counted(&scene, "one eviction", |it| {
        it.evicted.load(std::sync::atomic::Ordering::Relaxed) == 1
    })
    .await;
    moving.abort();
}

#[tokio::test]
async fn new_client_gets_the_place_of_a_quiet_connection() {
    is_replaced_when_idle(PORT).await;
}

#[tokio::test]
async fn new_client_gets_the_place_of_a_connection_whose_backend_does_not_answer() {
    is_replaced_when_idle(SLOW).await;
}

/// Padding of a ClientHello that is almost as large as one may be.
const LARGE: usize = 30_000;

/// Returns a ClientHello with this server name and so much padding, in one record.
fn hello_of(name: &str, padding: usize) -> Vec<u8> {
    let be = |length: usize| u16::try_from(length).expect("a length").to_be_bytes();
    let extension =
        |kind: u16, content: &[u8]| [&kind.to_be_bytes()[..], &be(content.len()), content].concat();
    let names = [
        &be(name.len() + 3)[..],
        &[0],
        &be(name.len()),
        name.as_bytes(),
    ]
    .concat();
    let extensions = [extension(0, &names), extension(21, &vec![0; padding])].concat();
    // Version, random, no session, one cipher suite, no compression.
    let begin = [&[3_u8, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let body = [&begin[..], &be(extensions.len()), &extensions].concat();
    let message = [&[1_u8, 0][..], &be(body.len()), &body].concat();
    [&[22_u8, 3, 1][..], &be(message.len()), &message].concat()
}

/// Serves connections that are passed through to these endpoints, by server name, on one worker.
fn passing_through(app: SocketAddr, slow: SocketAddr) -> Scene {
    let objects = Objects::gateway(&[passthrough("tls", "*.example.com")])
        .service("app", &[app])
        .service("slow", &[slow])
        .with(tls_route("app", &["app.example.com"], "app"))
        .with(tls_route("slow", &["slow.example.com"], "slow"));
    Scene::with(&objects, |settings| {
        settings.workers = 1;
        settings.limits.connect_timeout = LONG;
    })
}

#[tokio::test]
async fn hellos_that_wait_for_a_backend_count_for_their_client() {
    let (app, slow) = (echo("app").await, Unanswering::start());
    let scene = passing_through(app.address, slow.address);
    let hello = hello_of("slow.example.com", LARGE);
    let most = SHARE / hello.len();
    let mut waiting = Vec::new();
    for _ in 0..most + 20 {
        let mut client = connect(scene.at(443)).await;
        // Fails if the proxy has ended the connection.
        let _ = client.write_all(&hello).await;
        waiting.push(client);
    }
    let most = u64::try_from(most).expect("a number");
    until_counted(&scene, "the share of a client", |it| it.open() <= most).await;
    // One of the usual size takes nothing of it.
    let mut client = connect(scene.at(443)).await;
    let usual = hello_of("app.example.com", 0);
    client.write_all(&usual).await.expect("sent");
    assert_eq!(read_until(&mut client, "\n").await, "app\n");
}

#[tokio::test]
async fn hellos_that_the_backend_has_count_no_more() {
    let (app, slow) = (echo("app").await, Unanswering::start());
    let scene = passing_through(app.address, slow.address);
    let hello = hello_of("app.example.com", LARGE);
    let mut open = Vec::new();
    for _ in 0..SHARE / hello.len() + 20 {
        let mut client = connect(scene.at(443)).await;
        client.write_all(&hello).await.expect("sent");
        assert_eq!(read_until(&mut client, "\n").await, "app\n");
        let mut echoed = vec![0; hello.len()];
        let read = timeout(TEST_TIMEOUT, client.read_exact(&mut echoed)).await;
        read.expect("in time").expect("the echo");
        assert!(echoed == hello);
        open.push(client);
    }
}
