//! UDPRoutes: the datagrams of each client address go to one endpoint, and its answers back.

use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use portcullis::settings::Ports;
use portcullis::telemetry::metrics::ConnectionStats;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::client::get;
use crate::harness::TEST_TIMEOUT;
use crate::harness::ports::closed_address;
use crate::scene::{Objects, Scene};
use crate::tcp_route::{route, until_counted};

/// Port of the listener.
pub(crate) const PORT: u16 = 53;
/// The largest datagram of IPv4.
const LARGEST: usize = 65_507;

fn listening(port: u16) -> Objects {
    Objects::gateway(&[format!("{{name: udp, port: {port}, protocol: UDP}}")])
}

pub(crate) fn udp_route(backends: &[(&str, u32)]) -> String {
    route("UDPRoute", "route", &[], backends).to_string()
}

/// Returns a Service with UDP port 80 and these endpoints.
pub(crate) fn service(name: &str, endpoints: &[SocketAddr]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80, protocol: UDP}}]}}\n"
    );
    for (index, address) in endpoints.iter().enumerate() {
        let (ip, port) = (address.ip(), address.port());
        write!(
            text,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-{index}\n  \
             labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\n\
             ports: [{{port: {port}, protocol: UDP}}]\nendpoints: [{{addresses: ['{ip}']}}]\n"
        )
        .expect("text takes everything");
    }
    text
}

/// Returns objects that forward datagrams to Service `app` with these endpoints.
pub(crate) fn to(endpoints: &[SocketAddr]) -> Objects {
    listening(PORT)
        .with(service("app", endpoints))
        .with(udp_route(&[("app", 1)]))
}

/// A backend that answers each datagram with its name and the datagram, or with the datagram if it has no name; ends when
/// dropped.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    /// Addresses from which datagrams came, in order.
    peers: watch::Receiver<Vec<SocketAddr>>,
    task: AbortHandle,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Echo {
    pub(crate) async fn start(name: &'static str) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let socket = socket.expect("a free port");
        let address = socket.local_addr().expect("bound");
        let (sender, peers) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; LARGEST];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                sender.send_modify(|peers| peers.push(peer));
                let answer = [name.as_bytes(), &buffer[..length]].concat();
                let _ = socket.send_to(&answer, peer).await;
            }
        });
        Self {
            address,
            peers,
            task: task.abort_handle(),
        }
    }

    /// Returns the addresses from which datagrams came.
    pub(crate) fn peers(&self) -> Vec<SocketAddr> {
        self.peers.borrow().clone()
    }
}

/// Returns an address where no datagrams are received.
pub(crate) async fn dead() -> SocketAddr {
    // Bound and never read would be silent; closed, the host refuses datagrams.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    socket.expect("a free port").local_addr().expect("bound")
}

/// A client with an address of its own.
pub(crate) struct Client(pub(crate) UdpSocket);

impl Client {
    pub(crate) async fn of(proxy: SocketAddr) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let socket = socket.expect("a free port");
        socket.connect(proxy).await.expect("connected");
        Self(socket)
    }

    pub(crate) async fn send(&self, datagram: &[u8]) {
        let sent = self.0.send(datagram).await.expect("sent");
        assert_eq!(sent, datagram.len());
    }

    async fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; LARGEST];
        let received = timeout(TEST_TIMEOUT, self.0.recv(&mut buffer)).await;
        let length = received.expect("an answer in time").expect("received");
        buffer.truncate(length);
        buffer
    }

    /// Sends a datagram; returns the answer as text.
    pub(crate) async fn ask(&self, text: &str) -> String {
        self.send(text.as_bytes()).await;
        String::from_utf8(self.receive().await).expect("text")
    }

    /// Checks that nothing has arrived.
    fn has_nothing(&self) {
        let error = self.0.try_recv(&mut [0; 1]).expect_err("no datagram");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

fn sessions(stats: &ConnectionStats) -> u64 {
    let ended = stats.udp_sessions_ended.load(Relaxed);
    stats.udp_sessions.load(Relaxed) - ended
}

#[tokio::test]
async fn forwards_datagrams_of_any_length_both_ways() {
    let backend = Echo::start("").await;
    let scene = Scene::start(&to(&[backend.address]));
    let client = Client::of(scene.at(PORT)).await;
    for length in [1, 0, 512, LARGEST, 1500, 0] {
        let datagram: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        client.send(&datagram).await;
        assert!(client.receive().await == datagram, "{length} bytes");
    }
    // One session has one address.
    let peers = backend.peers();
    assert!(peers.iter().all(|peer| *peer == peers[0]), "{peers:?}");
    let stats = &scene.state().stats.connections;
    assert_eq!(stats.udp_sessions.load(Relaxed), 1);
    assert_eq!(stats.dropped_datagrams.load(Relaxed), 0);
}

/// Sends datagrams of these lengths at once, and checks the answers in order.
async fn burst(client: &Client, lengths: &[usize]) {
    let datagram = |(index, length): (usize, &usize)| vec![index as u8; *length];
    let sent: Vec<_> = lengths.iter().enumerate().map(datagram).collect();
    for datagram in &sent {
        client.send(datagram).await;
    }
    for datagram in &sent {
        assert!(client.receive().await == *datagram, "{lengths:?}");
    }
}

#[tokio::test]
async fn bursts_of_datagrams_stay_apart_and_in_order() {
    let backend = Echo::start("").await;
    let scene = Scene::start(&to(&[backend.address]));
    // The buffers of the sockets do not take the bursts of several clients.
    for _ in 0..2 {
        let client = Client::of(scene.at(PORT)).await;
        for lengths in [
            &[1200; 30][..],
            &[64; 40],
            &[1, 1, 2, 1, 0, 0, 3, 3, 3, 1, 3],
            &[1472, 1472, 9000, 9000, 1472, 1472, 100],
            &[LARGEST, 1, LARGEST],
        ] {
            burst(&client, lengths).await;
        }
        client.has_nothing();
    }
    let stats = &scene.state().stats.connections;
    assert_eq!(stats.dropped_datagrams.load(Relaxed), 0);
}

#[tokio::test]
async fn answers_come_from_the_address_that_was_asked() {
    let backend = Echo::start("").await;
    let port = closed_address().port();
    let objects = listening(port)
        .with(service("app", &[backend.address]))
        .with(udp_route(&[("app", 1)]));
    let scene = Scene::with(&objects, |settings| settings.ports = Ports::AsDeclared);
    // A connected socket receives nothing from another address.
    for last in [1, 2, 3] {
        let client = Client::of((Ipv4Addr::new(127, 0, 0, last), port).into()).await;
        for _ in 0..3 {
            assert_eq!(client.ask("hello").await, "hello");
        }
        burst(&client, &[100; 20]).await;
    }
    // One socket that asks at two addresses has two sessions.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await;
    let socket = socket.expect("a free port");
    for last in [1, 2, 1] {
        let asked: SocketAddr = (Ipv4Addr::new(127, 0, 0, last), port).into();
        socket.send_to(b"hello", asked).await.expect("sent");
        let answer = timeout(TEST_TIMEOUT, socket.recv_from(&mut [0; 10])).await;
        let (_, from) = answer.expect("an answer in time").expect("received");
        assert_eq!(from, asked);
    }
    assert_eq!(sessions(&scene.state().stats.connections), 5);
}

#[tokio::test]
async fn answers_go_to_the_client_that_asked() {
    let backend = Echo::start("").await;
    let scene = Scene::start(&to(&[backend.address]));
    let mut tasks = Vec::new();
    for index in 0..50 {
        let client = Client::of(scene.at(PORT)).await;
        tasks.push(tokio::spawn(async move {
            for count in 0..20 {
                let text = format!("client {index} datagram {count}");
                assert_eq!(client.ask(&text).await, text);
            }
            client.has_nothing();
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(sessions(&scene.state().stats.connections), 50);
}

#[tokio::test]
async fn each_session_stays_with_its_backend() {
    const CLIENTS: usize = 100;
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let objects = listening(PORT)
        .with(service("one", &[one.address]))
        .with(service("two", &[two.address]))
        .with(udp_route(&[("one", 1), ("two", 1), ("one", 0)]));
    let scene = Scene::start(&objects);
    let mut of_one = 0;
    for _ in 0..CLIENTS {
        let client = Client::of(scene.at(PORT)).await;
        let first = client.ask("hello").await;
        for _ in 0..5 {
            assert_eq!(client.ask("hello").await, first);
        }
        of_one += usize::from(first == "one hello");
    }
    // Six standard deviations of a binomial distribution with p = 1/2.
    assert!((20..=80).contains(&of_one), "{of_one}");
}

#[tokio::test]
async fn datagrams_of_an_invalid_share_are_dropped() {
    const CLIENTS: u64 = 100;
    let backend = Echo::start("").await;
    let objects = listening(PORT)
        .with(service("app", &[backend.address]))
        .with(udp_route(&[("app", 1), ("missing", 1)]));
    let scene = Scene::start(&objects);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = Client::of(scene.at(PORT)).await;
        client.send(b"hello").await;
        clients.push(client);
    }
    until_counted(&scene, "all datagrams", |it| {
        it.unforwarded.load(Relaxed) + it.udp_sessions.load(Relaxed) == CLIENTS
    })
    .await;
    let dropped = scene.state().stats.connections.unforwarded.load(Relaxed);
    assert!((20..=80).contains(&dropped), "{dropped}");
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    for line in [
        format!("portcullis_unforwarded_total {dropped}\n"),
        format!("portcullis_udp_sessions_total {}\n", CLIENTS - dropped),
        format!("portcullis_udp_sessions_open {}\n", CLIENTS - dropped),
        "portcullis_udp_datagrams_dropped_total 0\n".to_owned(),
    ] {
        assert!(metrics.text().contains(&line), "{line}");
    }
}

#[tokio::test]
async fn session_gets_another_endpoint_when_its_own_is_gone() {
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let mut scene = Scene::start(&to(&[one.address]));
    let client = Client::of(scene.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "one hello");
    scene.replace(&to(&[one.address, two.address])).await;
    assert_eq!(client.ask("hello").await, "one hello");
    scene.replace(&to(&[two.address])).await;
    assert_eq!(client.ask("hello").await, "two hello");
    // A route to another Service moves it too.
    let objects = listening(PORT)
        .with(service("other", &[one.address]))
        .with(udp_route(&[("other", 1)]));
    scene.replace(&objects).await;
    assert_eq!(client.ask("hello").await, "one hello");
    assert_eq!(sessions(&scene.state().stats.connections), 1);
}

/// A policy makes another backend of the same Service. Sessions of the previous one follow the endpoints of the new one.
#[tokio::test]
async fn session_follows_the_endpoints_of_a_backend_that_was_replaced() {
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let mut scene = Scene::start(&to(&[one.address]));
    let client = Client::of(scene.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "one hello");
    let policy = "apiVersion: gateway.networking.x-k8s.io/v1alpha1\nkind: XBackendTrafficPolicy\nmetadata: {name: policy}\n\
                  spec:\n  targetRefs: [{group: '', kind: Service, name: app}]\n  \
                  retryConstraint: {budget: {percent: 50, interval: 10s}}\n";
    scene
        .replace(&to(&[one.address]).with(policy.to_owned()))
        .await;
    assert_eq!(client.ask("hello").await, "one hello");
    scene
        .replace(&to(&[two.address]).with(policy.to_owned()))
        .await;
    assert_eq!(client.ask("hello").await, "two hello");
}

#[tokio::test]
async fn datagrams_without_a_route_or_an_endpoint_are_dropped() {
    for objects in [listening(PORT), to(&[])] {
        let scene = Scene::start(&objects);
        let client = Client::of(scene.at(PORT)).await;
        client.send(b"hello").await;
        until_counted(&scene, "the count", |it| it.unforwarded.load(Relaxed) == 1).await;
        assert_eq!(sessions(&scene.state().stats.connections), 0);
    }
}

#[tokio::test]
async fn refused_endpoint_loses_no_second_datagram() {
    let (refusing, backend) = (dead().await, Echo::start("").await);
    let scene = Scene::start(&to(&[refusing, backend.address]));
    let clients = [
        Client::of(scene.at(PORT)).await,
        Client::of(scene.at(PORT)).await,
    ];
    // Each endpoint gets one of two sessions.
    for client in &clients {
        client.send(b"first").await;
    }
    until_counted(&scene, "both sessions", |it| {
        it.udp_sessions.load(Relaxed) == 2
    })
    .await;
    let mut lost = 0;
    for client in &clients {
        let answer = client.ask("second").await;
        if answer == "first" {
            assert_eq!(client.receive().await, b"second");
        } else {
            assert_eq!(answer, "second");
            lost += 1;
        }
    }
    assert_eq!(lost, 1);
    assert_eq!(ejections(&scene).await, 1);
}

/// Returns the number of ejections of endpoints of Service `app`.
async fn ejections(scene: &Scene) -> u64 {
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let mut lines = metrics.text().lines();
    let line = lines.find(|line| line.starts_with("portcullis_upstream_ejections_total{"));
    let (_, count) = line.expect("a series").rsplit_once(' ').expect("a value");
    count.parse().expect("a number")
}

#[tokio::test]
async fn session_ends_after_the_idle_timeout() {
    let backend = Echo::start("").await;
    let scene = Scene::with(&to(&[backend.address]), |settings| {
        settings.limits.udp_idle_timeout = Duration::from_secs(1);
    });
    let client = Client::of(scene.at(PORT)).await;
    for count in 1..=2 {
        assert_eq!(client.ask("hello").await, "hello");
        until_counted(&scene, "the end of the session", |it| {
            it.udp_sessions_ended.load(Relaxed) == count
        })
        .await;
    }
    let peers = backend.peers();
    assert_ne!(peers[0], peers[1], "a new session has a socket of its own");
}

#[tokio::test]
async fn removal_of_the_listener_ends_its_sessions() {
    let backend = Echo::start("").await;
    let mut scene = Scene::start(&to(&[backend.address]));
    let client = Client::of(scene.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "hello");
    scene.replace(&listening(PORT + 1)).await;
    until_counted(&scene, "the end of the session", |it| sessions(it) == 0).await;
    // The port is closed.
    let refused = async {
        while client.0.send(b"hello").await.is_ok() {
            // A refusal has no notification of its own.
            sleep(Duration::from_millis(2)).await;
        }
    };
    let refused = timeout(TEST_TIMEOUT, refused).await;
    refused.expect("refused in time");
}

#[tokio::test]
async fn silent_backend_does_not_delay_its_neighbours() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let silent = silent.expect("a free port");
    let backend = Echo::start("").await;
    let objects = |service_name: &str| {
        listening(PORT)
            .with(service("silent", &[silent.local_addr().expect("bound")]))
            .with(service("app", &[backend.address]))
            .with(udp_route(&[(service_name, 1)]))
    };
    let mut scene = Scene::with(&objects("silent"), |settings| settings.workers = 1);
    let flooding = Client::of(scene.at(PORT)).await;
    for _ in 0..2000 {
        flooding.send(&[0; 8192]).await;
    }
    scene.replace(&objects("app")).await;
    for _ in 0..50 {
        let client = Client::of(scene.at(PORT)).await;
        assert_eq!(client.ask("hello").await, "hello");
    }
}

#[tokio::test]
async fn drain_serves_sessions_and_begins_none() {
    let backend = Echo::start("").await;
    let mut scene = Scene::start(&to(&[backend.address]));
    let address = scene.at(PORT);
    let client = Client::of(address).await;
    assert_eq!(client.ask("hello").await, "hello");
    let stats = scene.state().clone();
    let left = scene.begin_shutdown();
    until_draining(&stats.stats.connections, address).await;
    assert_eq!(client.ask("still here").await, "still here");
    left.await.expect("left");
    assert_eq!(sessions(&stats.stats.connections), 0);
}

/// Waits until a new client gets no session.
async fn until_draining(stats: &ConnectionStats, address: SocketAddr) {
    let refused = async {
        while stats.unforwarded.load(Relaxed) == 0 {
            let _ = Client::of(address).await.0.send(b"hello").await;
            // No notification tells the change.
            sleep(Duration::from_millis(2)).await;
        }
    };
    let refused = timeout(TEST_TIMEOUT, refused).await;
    refused.expect("refused in time");
}

#[tokio::test]
async fn refusal_of_the_only_datagram_of_a_session_ejects_the_endpoint() {
    let (refusing, backend) = (dead().await, Echo::start("").await);
    let scene = Scene::start(&to(&[refusing, backend.address]));
    // Each endpoint gets one of two sessions.
    for _ in 0..2 {
        Client::of(scene.at(PORT)).await.send(b"only").await;
    }
    until_counted(&scene, "the end of the refused session", |it| {
        it.udp_sessions_ended.load(Relaxed) == 1
    })
    .await;
    assert_eq!(ejections(&scene).await, 1);
}
