//! HTTP/3 over a network that loses, delays and repeats datagrams, and behind a NAT that changes the address of a client.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::future::join_all;
use http::Response;
use http_body_util::BodyExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::http3::before;
use crate::http3_client::{Frame, Http3, data, quic_at};
use crate::origin::{Origin, full};
use crate::scene::Scene;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Of a hundred datagrams in one direction, those below the first number are lost, up to the second one late, and up to the
/// third one there twice.
const FAULTS: [u32; 3] = [3, 8, 11];
/// How many later datagrams arrive before a late one.
const DELAY: usize = 3;

/// One direction of the network. What happens to its datagrams depends on their number alone.
struct Line {
    /// `None` if all datagrams arrive.
    random: Option<StdRng>,
    count: usize,
    /// Late datagrams, and the number of the one before which each arrives.
    late: VecDeque<(usize, Vec<u8>)>,
    lost: Arc<AtomicUsize>,
}

impl Line {
    /// Returns the datagrams that arrive when one is sent.
    fn pass(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let [lost, late, twice] = FAULTS;
        self.count += 1;
        let fate = match &mut self.random {
            Some(random) => random.random_range(0..100_u32),
            None => twice,
        };
        let mut arriving = Vec::new();
        if fate < lost {
            self.lost.fetch_add(1, Relaxed);
        } else if fate < late {
            let due = self.count + DELAY;
            self.late.push_back((due, datagram.to_vec()));
        } else {
            let copies = if fate < twice { 2 } else { 1 };
            arriving.resize(copies, datagram.to_vec());
        }
        let is_due = |(due, _): &(usize, Vec<u8>)| *due <= self.count;
        while self.late.front().is_some_and(is_due) {
            arriving.extend(self.late.pop_front().map(|(_, datagram)| datagram));
        }
        arriving
    }
}

/// What is between one client and the proxy.
struct Relay {
    /// The address for the client.
    address: SocketAddr,
    lost: Arc<AtomicUsize>,
    /// Sockets that replace the one to the proxy.
    sockets: mpsc::UnboundedSender<UdpSocket>,
    task: AbortHandle,
}

impl Relay {
    /// Passes on all datagrams, or with a seed some of them.
    async fn start(proxy: SocketAddr, seed: Option<u64>) -> Self {
        let outside = UdpSocket::bind((HERE, 0)).await.expect("bound");
        let inside = UdpSocket::bind((HERE, 0)).await.expect("bound");
        let address = outside.local_addr().expect("an address");
        let lost = Arc::<AtomicUsize>::default();
        let (sockets, replacing) = mpsc::unbounded_channel();
        let line = |direction: u64| Line {
            random: seed.map(|seed| StdRng::seed_from_u64(seed + direction)),
            count: 0,
            late: VecDeque::new(),
            lost: lost.clone(),
        };
        let lines = (line(0), line(1));
        let task = tokio::spawn(relay(outside, inside, proxy, replacing, lines));
        Self {
            address,
            lost,
            sockets,
            task: task.abort_handle(),
        }
    }

    /// Gives the client another port, or also another address. What is on its way to the old one is lost.
    async fn rebind(&self, address: IpAddr) {
        let socket = UdpSocket::bind((address, 0)).await.expect("bound");
        self.sockets.send(socket).expect("running");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(
    outside: UdpSocket,
    mut inside: UdpSocket,
    proxy: SocketAddr,
    mut replacing: mpsc::UnboundedReceiver<UdpSocket>,
    (mut up, mut down): (Line, Line),
) {
    let (mut sent, mut received) = ([0; 2048], [0; 2048]);
    let mut client = None;
    loop {
        tokio::select! {
            Some(socket) = replacing.recv() => inside = socket,
            Ok((length, from)) = outside.recv_from(&mut sent) => {
                client = Some(from);
                for datagram in up.pass(&sent[..length]) {
                    let _ = inside.send_to(&datagram, proxy).await;
                }
            }
            Ok((length, _)) = inside.recv_from(&mut received) => {
                let client = client.expect("clients begin");
                for datagram in down.pass(&received[..length]) {
                    let _ = outside.send_to(&datagram, client).await;
                }
            }
        }
    }
}

/// Sends content that depends on a number, and expects it back.
async fn mirror(client: &Http3, number: usize) {
    let length = 1 + number * 997 % 20_000;
    let body: Vec<u8> = (0..length).map(|at| (at / 7 + number) as u8).collect();
    let mut exchange = client.begin("POST", "a.com", "/", &[]).await;
    exchange.write(&data(&body)).await;
    exchange.send.finish().expect("open");
    let answer = exchange.answer().await;
    assert_eq!(answer.status, 200, "{number}");
    assert!(answer.body == body, "{number}");
}

#[tokio::test]
async fn requests_do_not_fail_when_datagrams_are_lost_late_or_repeated() {
    const ROUNDS: usize = 30;
    const TOGETHER: usize = 10;
    let origin = Origin::new(|request| async move {
        let body = request.into_body().collect().await.expect("a body");
        Response::new(full(body.to_bytes()))
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let relay = Relay::start(quic_at(&scene, 443), Some(46)).await;
    let client = Http3::connect(relay.address, "a.com").await;
    for round in 0..ROUNDS {
        let requests = (0..TOGETHER).map(|number| mirror(&client, round * TOGETHER + number));
        join_all(requests).await;
    }
    assert_eq!(origin.requests(), ROUNDS * TOGETHER);
    assert!(relay.lost.load(Relaxed) > 0);
}

#[tokio::test]
async fn downloads_go_on_behind_a_nat_that_changes_the_port() {
    const LENGTH: usize = 3_000_000;
    let origin = Origin::new(|request| async move {
        let length = match request.uri().path() {
            "/large" => LENGTH,
            _ => 1,
        };
        Response::new(full(vec![7_u8; length]))
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let relay = Relay::start(quic_at(&scene, 443), None).await;
    let client = Http3::connect(relay.address, "a.com").await;
    let mut download = client.begin("GET", "a.com", "/large", &[]).await;
    download.send.finish().expect("open");
    assert_eq!(download.head().await.0, 200);
    let mut received = 0;
    for part in 1..=3 {
        while received < part * LENGTH / 4 {
            let Some(Frame::Data(data)) = download.frame().await else {
                panic!("{received} bytes");
            };
            received += data.len();
        }
        relay.rebind(HERE).await;
        // The proxy learns the port from what the client sends, which does not know of it.
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    while let Some(frame) = download.frame().await {
        let Frame::Data(data) = frame else {
            panic!("{frame:?} in content");
        };
        received += data.len();
    }
    assert_eq!(received, LENGTH);
}

#[tokio::test]
async fn connections_end_when_a_nat_changes_the_address() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let relay = Relay::start(quic_at(&scene, 443), None).await;
    let client = Http3::connect(relay.address, "a.com").await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    relay.rebind(ELSEWHERE).await;
    let _request = client.begin("POST", "a.com", "/", &[]).await;
    assert_eq!(client.closed().await, 0x100);
    assert_eq!(origin.requests(), 1);
}

/// Passes on all datagrams. For each one of a client after its handshake, someone with another address sends a damaged copy
/// before it and an exact one after it.
async fn forge(outside: UdpSocket, proxy: SocketAddr, forged: Arc<AtomicUsize>) {
    /// The first bit of packets of a handshake (RFC 8999, 5.1).
    const LONG_HEADER: u8 = 0x80;
    let inside = UdpSocket::bind((HERE, 0)).await.expect("bound");
    let forger = UdpSocket::bind((ELSEWHERE, 0)).await.expect("bound");
    let (mut sent, mut received) = ([0; 2048], [0; 2048]);
    let mut client = None;
    loop {
        tokio::select! {
            Ok((length, from)) = outside.recv_from(&mut sent) => {
                client = Some(from);
                let datagram = &sent[..length];
                let is_forged = datagram.first().is_some_and(|first| first & LONG_HEADER == 0);
                if is_forged {
                    let mut damaged = datagram.to_vec();
                    damaged[length - 1] ^= 1;
                    forger.send_to(&damaged, proxy).await.expect("sent");
                }
                inside.send_to(datagram, proxy).await.expect("sent");
                if is_forged {
                    forger.send_to(datagram, proxy).await.expect("sent");
                    forged.fetch_add(1, Relaxed);
                }
            }
            Ok((length, _)) = inside.recv_from(&mut received) => {
                let client = client.expect("clients begin");
                outside.send_to(&received[..length], client).await.expect("sent");
            }
        }
    }
}

#[tokio::test]
async fn connections_go_on_when_others_forge_their_datagrams() {
    const REQUESTS: usize = 20;
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let outside = UdpSocket::bind((HERE, 0)).await.expect("bound");
    let address = outside.local_addr().expect("an address");
    let forged = Arc::<AtomicUsize>::default();
    tokio::spawn(forge(outside, quic_at(&scene, 443), forged.clone()));
    let client = Http3::connect(address, "a.com").await;
    for _ in 0..REQUESTS {
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    assert_eq!(origin.requests(), REQUESTS);
    assert!(forged.load(Relaxed) >= REQUESTS);
}
