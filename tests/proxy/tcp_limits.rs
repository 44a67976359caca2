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

/// Ports of the listeners.
const PORT: u16 = 5432;
const SLOW: u16 = 5433;
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
