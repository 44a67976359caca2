//! What connections show of the sections of ClientPolicies that are about them. Must not know levels.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::version::TLS12;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::sections::{Destination, description, exclusive};
use crate::client::{Client, connect, handshake, read_all};
use crate::harness::{TEST_TIMEOUT, tls};
use crate::lifecycle::Frames;

/// Longer than the timeouts of policies, and shorter than those without a policy.
pub(super) const QUIET: Duration = Duration::from_secs(1);

static TLS_1_2: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| tls::client_of(&[&TLS12], &[]));
static ANY: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| tls::client(&["h2", "http/1.1"]));

/// `a` refuses TLS 1.2, and `b` offers HTTP/1.1 only.
pub(super) async fn tls(to: &Destination<'_>) -> String {
    let old = handshake(to.address, to.host, &TLS_1_2).await;
    let stream = handshake(to.address, to.host, &ANY).await;
    let stream = stream.expect("a handshake");
    let is_http1 = stream.get_ref().1.alpn_protocol() == Some(b"http/1.1");
    exclusive((old.is_err(), is_http1))
}

/// `a` ends connections that do not complete a request, and `b` those without a request. The first end may take as long as
/// the test is patient. The other one would follow soon.
pub(super) async fn timeouts(to: &Destination<'_>) -> String {
    let mut incomplete = served(to, "GET / HT").await;
    let mut idle = served(to, "").await;
    let mut ended = (false, false);
    let mut patience = to.patience;
    while ended != (true, true) {
        tokio::select! {
            _ = read_all(&mut incomplete), if !ended.0 => ended.0 = true,
            _ = read_all(&mut idle), if !ended.1 => ended.1 = true,
            // Nothing tells that a connection stays.
            () = sleep(patience) => break,
        }
        patience = QUIET;
    }
    exclusive(ended)
}

/// Returns a connection on which a request was served, and behind that `rest` was sent. A client that is slower than the
/// timeouts connects again.
async fn served(to: &Destination<'_>, rest: &str) -> TcpStream {
    loop {
        if let (true, stream) = serves(to.address, &format!("{}{rest}", request(to))).await {
            return stream;
        }
    }
}

/// Concurrent streams of a connection: 7 with `a`, and 9 with `b`.
pub(super) async fn streams(to: &Destination<'_>) -> String {
    const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];
    let frames = Frames::open(to.address).await;
    let mut settings = frames.settings.chunks(6);
    let streams = settings.find(|one| one[..2] == MAX_CONCURRENT_STREAMS);
    match streams {
        Some([_, _, 0, 0, 0, 7]) => "a".to_owned(),
        Some([_, _, 0, 0, 0, 9]) => "b".to_owned(),
        other => description(other == Some(&[0, 3, 0, 0, 0, 100]), format!("{other:?}")),
    }
}

/// Clients may remember HTTP/3 for an hour with `a`, and for two with `b`.
pub(super) async fn alternatives(to: &Destination<'_>) -> String {
    let mut client = Client::tls(to.address, to.host, &ANY).await;
    let answer = client.get(to.host, to.path).await;
    let alternative = answer.header("alt-svc");
    match alternative.rsplit_once("ma=") {
        Some((_, "3600")) => "a".to_owned(),
        Some((_, "7200")) => "b".to_owned(),
        _ => description(alternative.is_empty(), alternative),
    }
}

/// `a` needs the header of the PROXY protocol, and `b` permits it.
pub(super) async fn proxy_header(to: &Destination<'_>) -> String {
    let header = "PROXY TCP4 192.0.2.1 127.0.0.1 4660 80\r\n";
    let (plain, _) = serves(to.address, &request(to)).await;
    let (proxied, _) = serves(to.address, &format!("{header}{}", request(to))).await;
    match (plain, proxied) {
        (false, true) => "a",
        (true, true) => "b",
        (true, false) => "",
        (false, false) => "no connection is served",
    }
    .to_owned()
}

/// Reports whether a new connection is served.
async fn serves(address: SocketAddr, request: &str) -> (bool, TcpStream) {
    let mut stream = connect(address).await;
    let mut start = [0; 12];
    // The connection may be reset.
    let _ = stream.write_all(request.as_bytes()).await;
    let read = timeout(TEST_TIMEOUT, stream.read_exact(&mut start)).await;
    let read = read.expect("a response or an end in time");
    (read.is_ok() && start == *b"HTTP/1.1 200", stream)
}

fn request(to: &Destination<'_>) -> String {
    format!("GET {} HTTP/1.1\r\nhost: {}\r\n\r\n", to.path, to.host)
}
