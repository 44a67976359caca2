//! Connections between pods, over TCP and TLS: hostile clients, and owners that break the protocol.

use std::io;
use std::net::Ipv4Addr;
use std::pin::pin;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::peers::connection::{read, write};
use crate::peers::message::{
    LogoutMessage, MAX_ASKS, MAX_MESSAGE, logout, read_answer, read_response, request,
};
use crate::table::{Ask, Grant};

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LONG: Duration = Duration::from_secs(10);

fn identity() -> Identity {
    Identity::from_secret("a").unwrap()
}

fn group() -> Arc<Group> {
    let group = Arc::<Group>::default();
    group.open();
    group.set_secret(hash_secret("a"));
    let pods = ["a", "b"].map(|name| (name, ADDRESS.ip()));
    group.set_pods("a", pods);
    group
}

/// Runs a test with a server of pod `a`.
async fn with_server(group: &Arc<Group>, test: impl AsyncFnOnce(SocketAddr)) {
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Served {
        group: group.clone(),
        index: Rc::default(),
        table: Arc::new(ArcSwap::from_pointee(Table::empty())),
    };
    let server = identity().server;
    let tasks = LocalSet::new();
    let serve = async {
        tokio::select! {
            () = server::serve(listener, server, served) => {}
            () = test(address) => {}
        }
    };
    tasks.run_until(serve).await;
}

async fn connect(address: SocketAddr, identity: Identity) -> io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    let name = ServerName::IpAddress(address.ip().into());
    TlsConnector::from(identity.client)
        .connect(name, socket)
        .await
}

/// Waits until the other side closes.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut bytes = [0; 1024];
    let ended = async { while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {} };
    timeout(LONG, ended).await.is_ok()
}

#[tokio::test]
async fn serves_pods_and_notes_that_they_are_there() {
    let group = group();
    with_server(&group, async |address| {
        let mut stream = connect(address, identity()).await.unwrap();
        let asks = (0..MAX_ASKS as u64).map(|key| Ask {
            limit: 7,
            key,
            tokens: u64::MAX,
        });
        write(&mut stream, &request("b", asks), LONG).await.unwrap();
        let response = read(&mut stream, LONG).await.unwrap();
        let mut grants = read_response(&response, MAX_ASKS).unwrap();
        assert!(grants.all(|it| it.tokens == 0 && it.wait == Grant::UNSERVED));
        let now = monotonic::nanos();
        assert_eq!(group.view().pods(), 2);
        group.view().count_absent(now);
        let begun = Instant::now();
        // 100 messages in a second.
        for _ in 0..10 {
            let message = request("b", std::iter::empty());
            write(&mut stream, &message, LONG).await.unwrap();
            assert!(read(&mut stream, LONG).await.unwrap().is_empty());
        }
        assert!(begun.elapsed() >= Duration::from_millis(80));
    })
    .await;
    assert_eq!(group.counts.faults.load(Relaxed), 0);
}

#[tokio::test]
async fn clients_that_are_no_pods_of_the_gateway_get_nothing() {
    let group = group();
    with_server(&group, async |address| {
        let other = Identity::from_secret("b").unwrap();
        let other = connect(address, other).await;
        assert!(other.is_err(), "the server has another key");
        let mut plain = TcpStream::connect(address).await.unwrap();
        let garbage = b"GET / HTTP/1.1\r\n\r\n".repeat(50);
        plain.write_all(&garbage).await.unwrap();
        assert!(closed(&mut plain).await);
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert!(closed(&mut silent).await);
    })
    .await;
}

#[tokio::test]
async fn flood_of_handshakes_does_not_keep_pods_out() {
    let group = group();
    with_server(&group, async |address| {
        let mut flood = Vec::new();
        for _ in 0..200 {
            flood.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = connect(address, identity()).await.unwrap();
        let message = request("b", std::iter::empty());
        write(&mut stream, &message, LONG).await.unwrap();
        assert!(read(&mut stream, LONG).await.unwrap().is_empty());
        assert!(closed(&mut flood[0]).await);
    })
    .await;
}

#[tokio::test]
async fn pods_that_break_the_protocol_are_cut() {
    let group = group();
    let mut too_many = request("b", std::iter::empty());
    too_many.extend(vec![0; 24 * (MAX_ASKS + 1)]);
    let length = too_many.len() as u32 - 4;
    too_many[..4].copy_from_slice(&length.to_be_bytes());
    let too_long = (MAX_MESSAGE as u32 + 1).to_be_bytes().to_vec();
    let no_name = vec![0, 0, 0, 0];
    let torn = vec![0, 0, 0, 3, 1, b'b', 0];
    for message in [too_many, too_long, no_name, torn] {
        with_server(&group, async |address| {
            let mut stream = connect(address, identity()).await.unwrap();
            stream.write_all(&message).await.unwrap();
            assert!(closed(&mut stream).await);
        })
        .await;
    }
    assert_eq!(group.counts.faults.load(Relaxed), 4);
}

/// A pod that does not know the policy yet, or not its keys, asks for the token again.
#[tokio::test]
async fn logout_token_of_an_unknown_policy_is_sent_again() {
    let group = group();
    let logouts = || Identity {
        client: identity().logouts,
        ..identity()
    };
    with_server(&group, async |address| {
        let mut stream = connect(address, logouts()).await.unwrap();
        let message = LogoutMessage {
            policy: ("ns", "policy"),
            token: "a.b.c",
            at: 7,
        };
        let message = logout(message).unwrap();
        for _ in 0..2 {
            write(&mut stream, &message, LONG).await.unwrap();
            let answer = read(&mut stream, LONG).await.unwrap();
            assert_eq!(read_answer(&answer), Ok(false));
        }
        // A wish for tokens is none.
        let wish = request("b", std::iter::empty());
        write(&mut stream, &wish, LONG).await.unwrap();
        assert!(closed(&mut stream).await);
    })
    .await;
    assert_eq!(group.counts.faults.load(Relaxed), 1);
}

/// Runs a link to an owner that answers each message with these bytes. Returns the group after a time.
async fn with_owner(answer: &'static [u8]) -> Arc<Group> {
    let group = group();
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(identity().server);
    let owner = async {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(socket).await.unwrap();
            while read(&mut stream, LONG).await.is_ok() {
                if stream.write_all(answer).await.is_err() {
                    break;
                }
                let _ = stream.flush().await;
            }
        }
    };
    let view = group.view().clone();
    let asking = async {
        let other = view.others().next().map(|(_, pod)| pod.clone()).unwrap();
        let _link = Link::new(other, port, identity().client, group.clone());
        sleep(Duration::from_millis(700)).await;
    };
    let tasks = LocalSet::new();
    let both = async {
        let (owner, asking) = (pin!(owner), pin!(asking));
        tokio::select! {
            () = owner => {}
            () = asking => {}
        }
    };
    tasks.run_until(both).await;
    group
}

#[tokio::test]
async fn owner_that_answers_is_there_and_one_that_breaks_the_protocol_is_away() {
    let away = |group: &Group| group.view().count_absent(monotonic::nanos());
    let good = with_owner(b"\0\0\0\0").await;
    assert_eq!((away(&good), good.counts.faults.load(Relaxed)), (0, 0));
    assert!(good.away().is_empty());
    for answer in [
        &b"\0\0\0\x14aaaaaaaaaaaaaaaaaaaa"[..],
        b"\xff\xff\xff\xffaaaa",
    ] {
        let bad = with_owner(answer).await;
        assert_eq!((away(&bad), bad.away().len()), (1, 1));
        assert!(bad.counts.faults.load(Relaxed) > 0);
    }
}
