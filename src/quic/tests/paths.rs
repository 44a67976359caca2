//! Datagrams reach the worker of their connection, from whatever address. Those of unknown connections are answered.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use aws_lc_rs::hmac;
use quinn::{ConnectionError, ConnectionIdGenerator};
use tokio::sync::watch;

use super::fixtures::{
    Authority, LIMITS, RESETS, Server, WORKERS, by_name, client_endpoint, connect, download, within,
};
use crate::quic::settings::ids;
use crate::quic::{EndpointKeys, Router};

#[tokio::test]
async fn connections_of_one_address_have_all_workers() {
    let authority = Authority::new();
    let mut server = Server::start(
        LIMITS,
        &by_name(vec![("a.test", authority.server("a.test"))]),
    );
    let endpoint = client_endpoint();
    let mut connections = Vec::new();
    let mut workers = BTreeSet::new();
    // Each worker is as likely as the other: the last try is needed once in 2^63 runs.
    while workers.len() < WORKERS && connections.len() < 64 {
        let connection = connect(&endpoint, authority.client(), server.address, "a.test").await;
        connections.push(connection.unwrap());
        workers.insert(server.next().await.worker);
    }
    assert_eq!(workers.len(), WORKERS);
    // The kernel joins datagrams that clients send from one address.
    let downloads = connections
        .iter()
        .map(|connection| download(connection, 300_000));
    futures_util::future::join_all(downloads).await;
}

#[tokio::test]
async fn download_goes_on_when_the_client_has_another_address() {
    const LENGTH: usize = 3_000_000;
    let authority = Authority::new();
    let mut server = Server::start(
        LIMITS,
        &by_name(vec![("a.test", authority.server("a.test"))]),
    );
    let endpoint = client_endpoint();
    // Connections of both workers.
    for _ in 0..4 {
        let connection = connect(&endpoint, authority.client(), server.address, "a.test").await;
        let connection = connection.unwrap();
        assert!(server.next().await.outcome.is_ok());
        let (mut request, mut response) = connection.open_bi().await.unwrap();
        request
            .write_all(&(LENGTH as u64).to_be_bytes())
            .await
            .unwrap();
        request.finish().unwrap();
        let mut received = 0;
        for part in 1..=3 {
            while received < part * LENGTH / 3 {
                let chunk = within(response.read_chunk(usize::MAX, true)).await.unwrap();
                received += chunk.expect("more to come").bytes.len();
            }
            let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            endpoint.rebind(other).unwrap();
        }
        assert_eq!(received, LENGTH);
        download(&connection, 1000).await;
    }
    // None has begun again.
    assert!(server.served.try_recv().is_err());
}

/// Passes datagrams on between one client and one server, which may become another one.
async fn relay(socket: UdpSocket, mut servers: watch::Receiver<SocketAddr>) {
    let outside = tokio::net::UdpSocket::from_std(socket).unwrap();
    let inside = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let (mut sent, mut received) = ([0; 2000], [0; 2000]);
    let mut client = None;
    loop {
        tokio::select! {
            Ok((length, from)) = outside.recv_from(&mut sent) => {
                client = Some(from);
                let server = *servers.borrow_and_update();
                inside.send_to(&sent[..length], server).await.unwrap();
            }
            Ok(length) = inside.recv(&mut received) => {
                let client = client.expect("clients begin");
                outside.send_to(&received[..length], client).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn connection_of_another_pod_is_reset_with_the_shared_key() {
    let authority = Authority::new();
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let (one, two) = (
        Server::start(LIMITS, &choose),
        Server::start(LIMITS, &choose),
    );
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let (server, servers) = watch::channel(one.address);
    tokio::spawn(relay(socket, servers));
    let connection = connect(&client_endpoint(), authority.client(), address, "a.test").await;
    let connection = connection.unwrap();
    download(&connection, 1000).await;
    server.send(two.address).unwrap();
    let (mut request, _response) = connection.open_bi().await.unwrap();
    // Resets are shorter than what they answer, which must not be too short.
    let request = request.write_all(&[0; 2000]);
    let (closed, _) = futures_util::future::join(within(connection.closed()), request).await;
    assert_eq!(closed, ConnectionError::Reset);
}

/// Many clients of a pod that has ended reach another one at the same time.
#[tokio::test]
async fn each_packet_with_an_id_of_another_pod_gets_a_reset() {
    const CLIENTS: usize = 40;
    /// Length of the token of a reset (RFC 9000, 10.3).
    const TOKEN: usize = 16;
    let authority = Authority::new();
    let choose = by_name(vec![("a.test", authority.server("a.test"))]);
    let server = Server::start(LIMITS, &choose);
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let socket = socket.unwrap();
    let ids_of = |resets: [u8; 32]| {
        let keys = EndpointKeys::new(Arc::new(resets), &[2; 32]);
        ids(&keys, &Router::new(1), 0)
    };
    let (mut of_gateway, mut of_others) = (ids_of(RESETS), ids_of([3; 32]));
    let key = hmac::Key::new(hmac::HMAC_SHA256, &RESETS);
    let mut expected = BTreeSet::new();
    for _ in 0..CLIENTS {
        let id = of_gateway.generate_cid();
        expected.insert(hmac::sign(&key, &id).as_ref()[..TOKEN].to_vec());
        for id in [of_others.generate_cid(), id] {
            let packet = [&[0x40][..], &id[..], &[0; 40][..]].concat();
            socket.send_to(&packet, server.address).await.unwrap();
        }
    }
    while !expected.is_empty() {
        let mut reset = [0; 2000];
        let (length, _) = within(socket.recv_from(&mut reset)).await.unwrap();
        let token = &reset[length - TOKEN..length];
        assert!(expected.remove(token), "a reset of an unknown id");
    }
}
