//! Selects the protocol of an accepted socket: plain HTTP, or TLS with the certificate for the
//! server name. Decides once per connection.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::io::ClientIo;
use super::socket::Socket;
use super::{http, http1, http2};
use crate::ir::PortProtocol;
use crate::proxy::activity::Activity;
use crate::proxy::client::{Client, TlsClient, client_certificate};
use crate::proxy::worker_state::port::PortState;
use crate::proxy::worker_state::{OpenConnection, Worker};
use crate::telemetry::metrics::TimeoutKind;

/// A fatal `unrecognized_name` alert (RFC 8446, 6.2). rustls sends it itself only once a
/// configuration is selected.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Serves a connection until it ends.
pub(crate) async fn serve(
    open: OpenConnection,
    port: Rc<PortState>,
    socket: TcpStream,
    peer: SocketAddr,
) {
    match port.protocol() {
        PortProtocol::Http => {
            let client = Client::new(open, port, peer, None);
            http::serve_plain(ClientIo::Plain(socket), client).await;
        }
        PortProtocol::Tls => serve_tls(open, port, socket, peer).await,
        // TCP and UDP are not supported.
        PortProtocol::Tcp | PortProtocol::Udp => {}
    }
}

async fn serve_tls(open: OpenConnection, port: Rc<PortState>, socket: TcpStream, peer: SocketAddr) {
    // Boxed, like all state that a connection needs only temporarily: a task takes the memory of
    // its largest state for its whole life.
    let outcome = Box::pin(timed_handshake(&open, &port, socket, peer)).await;
    let Some((stream, tls)) = outcome else {
        open.stats.handshake_failures.fetch_add(1, Relaxed);
        return;
    };
    open.stats.handshakes.fetch_add(1, Relaxed);
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let client = Client::new(open, port, peer, Some(tls));
    let io = ClientIo::Tls(stream);
    if http2 {
        Box::pin(http2::serve(io, Bytes::new(), client)).await;
    } else {
        let activity = client.activity(false);
        http1::serve(io, Bytes::new(), activity, client).await;
    }
}

/// Runs a handshake until its timeout or until a newer handshake or a new client evicts it.
async fn timed_handshake(
    worker: &Worker,
    port: &PortState,
    socket: TcpStream,
    peer: SocketAddr,
) -> Option<(Box<TlsStream<Socket>>, TlsClient)> {
    let mut entry = worker.handshakes.begin();
    let activity = Activity::handshake(&worker.clock, &worker.limits);
    let peer = peer.ip().to_canonical();
    worker.connections.register(peer, &activity);
    // Pinned here, so that the outcome is counted before the socket is closed.
    let mut handshake = pin!(timeout(
        worker.limits.handshake_timeout,
        handshake(worker, port, socket)
    ));
    tokio::select! {
        // tokio polls the arms in order, so that a completed handshake wins over its eviction.
        biased;
        outcome = &mut handshake => outcome.unwrap_or_else(|_| {
            worker.stats.timed_out(TimeoutKind::Handshake);
            None
        }),
        () = entry.evicted() => None,
        // A new client gets the place of the connection.
        _ = poll_fn(|cx| activity.poll_due(cx)) => None,
    }
}

async fn handshake(
    worker: &Worker,
    port: &PortState,
    socket: TcpStream,
) -> Option<(Box<TlsStream<Socket>>, TlsClient)> {
    let mut start =
        LazyConfigAcceptor::new(rustls::server::Acceptor::default(), Socket::new(socket))
            .await
            .ok()?;
    let sni: Option<Box<str>> = start.client_hello().server_name().map(|name| {
        name.strip_suffix('.')
            .unwrap_or(name)
            .to_ascii_lowercase()
            .into()
    });
    let server = port
        .configured(&worker.table.load())
        .and_then(|port| port.server(sni.as_deref()).cloned());
    let Some(server) = server else {
        // The alert is best effort: the connection ends either way.
        let _ = start.io.write_all(&UNRECOGNIZED_NAME).await;
        let _ = start.io.shutdown().await;
        return None;
    };
    let stream = Box::new(start.into_stream(server.config.clone()).await.ok()?);
    let verified = server.verified_client(stream.get_ref().1).ok()?;
    let certificate = verified.and_then(client_certificate::describe);
    let certificate = certificate.map(Box::new);
    Some((stream, TlsClient { sni, certificate }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn waiting_connection_task_is_small() {
        let size = future_size(serve);
        assert!(size <= 1152, "a connection's task takes {size} bytes");
    }
}
