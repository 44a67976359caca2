//! Datagrams that nobody needs.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use quinn::EndpointConfig;
use rand::RngExt;
use tokio::net::UdpSocket;

use super::fixtures::{
    Authority, LIMITS, Server, WORKERS, by_name, client_config, client_endpoint, connect, download,
    within,
};
use crate::quic::{HandshakeError, Limits};

/// The form and type of long headers in the first byte, and those of Retry packets (RFC 9000, 17.2).
const TYPE: u8 = 0xb0;
const RETRY: u8 = 0xb0;

/// Returns the first datagram of a new client.
fn first_datagram(authority: &Authority, to: SocketAddr) -> Vec<u8> {
    let config = Arc::new(EndpointConfig::default());
    let mut endpoint = quinn_proto::Endpoint::new(config, None, true, None);
    let now = Instant::now();
    let config = client_config(authority.client());
    let (_, mut connection) = endpoint.connect(now, config, to, "a.test").unwrap();
    let mut datagram = Vec::new();
    let sent = connection.poll_transmit(now, 1, &mut datagram).unwrap();
    datagram.truncate(sent.size);
    datagram
}

async fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

#[tokio::test]
async fn clients_must_prove_their_address_while_many_handshakes_are_in_progress() {
    let authority = Authority::new();
    let limits = Limits {
        retry_from: 3,
        ..LIMITS
    };
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let mut server = Server::start(limits, &choose);
    let mut kinds = BTreeMap::new();
    let mut sockets = Vec::new();
    // Clients that begin, and then say nothing.
    while kinds.get(&RETRY).is_none_or(|count| *count < 20) {
        let socket = socket().await;
        let datagram = first_datagram(&authority, server.address);
        socket.send_to(&datagram, server.address).await.unwrap();
        let mut response = [0; 2000];
        let (length, _) = within(socket.recv_from(&mut response)).await.unwrap();
        assert!(length <= 3 * datagram.len());
        *kinds.entry(response[0] & TYPE).or_insert(0) += 1;
        sockets.push(socket);
    }
    let answered: usize = kinds.values().sum();
    assert!(
        answered - kinds[&RETRY] <= WORKERS * limits.retry_from,
        "{kinds:?}"
    );
    // Others are served all the same.
    let endpoint = client_endpoint();
    for _ in 0..4 {
        let connection = connect(&endpoint, authority.client(), server.address, "a.test").await;
        download(&connection.unwrap(), 1000).await;
        assert!(server.next().await.outcome.is_ok());
    }
}

#[tokio::test]
async fn retry_validates_the_address() {
    let authority = Authority::new();
    let limits = Limits {
        retry_from: 0,
        ..LIMITS
    };
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let mut server = Server::start(limits, &choose);
    let endpoint = client_endpoint();
    for _ in 0..4 {
        let connection = connect(&endpoint, authority.client(), server.address, "a.test").await;
        download(&connection.unwrap(), 1000).await;
        assert!(server.next().await.is_validated);
    }
}

#[tokio::test]
async fn handshake_ends_after_its_timeout() {
    let authority = Authority::new();
    let limits = Limits {
        handshake_timeout: Duration::from_millis(10),
        ..LIMITS
    };
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let mut server = Server::start(limits, &choose);
    let datagram = first_datagram(&authority, server.address);
    let socket = socket().await;
    socket.send_to(&datagram, server.address).await.unwrap();
    let served = server.next().await;
    assert!(matches!(served.outcome, Err(HandshakeError::Timeout)));
}

#[tokio::test]
async fn new_clients_are_ignored_at_the_limit_of_handshakes() {
    let authority = Authority::new();
    let limits = Limits {
        handshakes: 0,
        ..LIMITS
    };
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let mut server = Server::start(limits, &choose);
    let socket = socket().await;
    for _ in 0..20 {
        let datagram = first_datagram(&authority, server.address);
        socket.send_to(&datagram, server.address).await.unwrap();
    }
    // An unknown version is answered, and so shows that what came before has been handled by both workers.
    for _ in 0..20 {
        let mut datagram = first_datagram(&authority, server.address);
        datagram[1..5].copy_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
        socket.send_to(&datagram, server.address).await.unwrap();
        let mut response = [0; 2000];
        let (length, _) = within(socket.recv_from(&mut response)).await.unwrap();
        assert_eq!(
            response[1..5],
            [0; 4],
            "{length} bytes are no version negotiation"
        );
    }
    assert!(server.served.try_recv().is_err());
}

#[tokio::test]
async fn garbage_is_ignored() {
    let authority = Authority::new();
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let mut server = Server::start(LIMITS, &choose);
    let socket = socket().await;
    let mut random = rand::rng();
    let valid = first_datagram(&authority, server.address);
    for round in 0..300 {
        let mut datagram = vec![0; random.random_range(0..1500)];
        random.fill(&mut datagram[..]);
        socket.send_to(&datagram, server.address).await.unwrap();
        let mut damaged = valid.clone();
        let at = random.random_range(0..50);
        damaged[at] = random.random();
        damaged.truncate(random.random_range(0..2 * valid.len()));
        socket.send_to(&damaged, server.address).await.unwrap();
        if round % 30 == 0 {
            let endpoint = client_endpoint();
            let connection = connect(&endpoint, authority.client(), server.address, "a.test").await;
            download(&connection.unwrap(), 1000).await;
            // Damaged first datagrams may begin handshakes, which do not end.
            assert!(server.next().await.outcome.is_ok());
        }
    }
    // Empty datagrams have no connection id.
    let before = server.dropped.load(Relaxed);
    within(async {
        while server.dropped.load(Relaxed) == before {
            socket.send_to(&[], server.address).await.unwrap();
            tokio::task::yield_now().await;
        }
    })
    .await;
}
