//! What may precede the bytes of a client: a header of the PROXY protocol. Only load balancers are believed.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::proxy_protocol::{self, Header, Status};
use crate::ir::client::{ProxyMode, ProxyProtocol};
use crate::proxy::activity::Activity;
use crate::proxy::connection_record::ConnectionRecord;
use crate::proxy::worker_state::port::PortState;
use crate::proxy::worker_state::{OpenConnection, Worker};
use crate::telemetry::access_log::ConnectionEnd;
use crate::telemetry::metrics::TimeoutKind;

/// Size of a read in bytes: a header, and the request or ClientHello behind it.
const READ: usize = 1024;

/// A client, and the bytes that were read from it already.
type Preamble = (SocketAddr, Vec<u8>);

/// Reads what precedes the bytes of a client, and counts the connection. Returns the client; `None` if the connection must
/// be closed.
pub(super) async fn begin(
    open: &mut OpenConnection,
    port: &PortState,
    socket: &mut TcpStream,
    peer: SocketAddr,
) -> Option<SocketAddr> {
    let (protocol, keepalive) = {
        let table = open.table.load();
        (port.proxy_protocol(&table), port.tcp_keepalive(&table))
    };
    if let Some(idle) = keepalive {
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(idle);
        // A connection without it still works.
        let _ = SockRef::from(&*socket).set_tcp_keepalive(&keepalive);
    }
    let record = ConnectionRecord::begin(open, port, peer);
    let preamble = match &protocol {
        Some(protocol) => read(open, port, socket, peer, protocol).await,
        None => Some((peer, Vec::new())),
    };
    let number = port.number();
    let Some((client, received)) = preamble else {
        open.stats.without_header.fetch_add(1, Relaxed);
        record.end(ConnectionEnd::ProxyHeader);
        tracing::debug!(%peer, port = number, "closed a connection without a valid header of the PROXY protocol");
        return None;
    };
    record.comes_from(client);
    if !open.begin(port, client.ip(), received) {
        record.end(ConnectionEnd::ConnectionLimit);
        tracing::debug!(%client, port = number, "closed a connection over the limits of its port");
        return None;
    }
    // Its protocol begins another one.
    record.discard();
    Some(client)
}

/// Returns `None` if the header that must be there is not.
async fn read(
    worker: &Worker,
    port: &PortState,
    socket: &mut TcpStream,
    peer: SocketAddr,
    protocol: &ProxyProtocol,
) -> Option<Preamble> {
    let address = peer.ip().to_canonical();
    if !protocol.trusted.contains(address) {
        let is_optional = protocol.mode == ProxyMode::Optional;
        return is_optional.then_some((peer, Vec::new()));
    }
    let limits = worker.limits_of(port);
    let activity = Activity::handshake(&worker.clock, &limits);
    worker.connections.register(address, &activity);
    let reading = timeout(
        limits.handshake_timeout,
        read_header(socket, peer, protocol.mode),
    );
    tokio::select! {
        read = reading => read.unwrap_or_else(|_| {
            worker.stats.timed_out(TimeoutKind::Handshake);
            None
        }),
        // A new client gets the place of the connection.
        _ = poll_fn(|cx| activity.poll_due(cx)) => None,
    }
}

/// Reads the header of a load balancer.
async fn read_header(
    socket: &mut TcpStream,
    peer: SocketAddr,
    mode: ProxyMode,
) -> Option<Preamble> {
    let mut first = Vec::new();
    loop {
        first.reserve(READ);
        let count = socket.read_buf(&mut first).await.ok()?;
        if count == 0 {
            return None;
        }
        match proxy_protocol::parse(&first) {
            Status::Incomplete => {}
            Status::Complete(Header { length, client }) => {
                first.drain(..length);
                return Some((client.unwrap_or(peer), first));
            }
            Status::Absent if mode == ProxyMode::Optional => {
                return Some((peer, first));
            }
            Status::Absent | Status::Invalid => return None,
        }
    }
}
