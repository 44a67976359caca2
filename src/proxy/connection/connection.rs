//! Selects the protocol of an accepted socket: plain HTTP, or TLS with the certificate for the
//! server name, which is HTTP, forwarded, or passed through. Decides once per connection.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_hello::{ClientHello, Status, normalized};
use super::forward::{self, Forwarded};
use super::io::ClientIo;
use super::preamble;
use super::socket::{Received, Socket};
use super::{http, http1, http2};
use crate::ir::{PortProtocol, Protocol};
use crate::proxy::activity::Activity;
use crate::proxy::client::{Client, TlsClient, client_certificate};
use crate::proxy::connection_record::ConnectionRecord;
use crate::proxy::worker_state::port::PortState;
use crate::proxy::worker_state::{OpenConnection, Worker};
use crate::table::{Listener, Rule, Unrouted};
use crate::telemetry::metrics::{HandshakeFailure, TimeoutKind};
use crate::upstream::Security;

/// A fatal `unrecognized_name` alert (RFC 8446, 6.2). rustls sends it itself only once a
/// configuration is selected.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Serves a connection until it ends.
pub(crate) async fn serve(
    mut open: OpenConnection,
    port: Rc<PortState>,
    mut socket: TcpStream,
    mut peer: SocketAddr,
) {
    if port.has_connection_policies(&open.table.load()) {
        match Box::pin(preamble::begin(&mut open, &port, &mut socket, peer)).await {
            Some(client) => peer = client,
            None => return,
        }
    }
    match port.protocol() {
        PortProtocol::Http => {
            let client = Client::new(open, port, peer, None);
            http::serve_plain(ClientIo::Plain(socket), client).await;
        }
        PortProtocol::Tls => serve_tls(open, port, socket, peer).await,
        PortProtocol::Tcp => {
            let record = ConnectionRecord::begin(&open, &port, peer);
            let rule = rule_of_port(&open, &port, peer);
            let client = (ClientIo::Plain(socket), open.take_received());
            let forwarded = Forwarded::new(client, peer, rule, Security::OfBackend, record);
            Box::pin(forward::serve(&open, &port, forwarded)).await;
        }
        // Has no connections.
        PortProtocol::Udp => {}
    }
}

/// Returns the rule for a connection to a TCP port, which has one listener.
fn rule_of_port(
    worker: &Worker,
    port: &PortState,
    peer: SocketAddr,
) -> Result<Arc<Rule>, Unrouted> {
    let table = worker.table.load();
    let port = port.configured(&table).ok_or(Unrouted::NoRoute)?;
    port.only_rule(peer.ip()).cloned()
}

/// What follows a ClientHello.
enum Greeted {
    /// HTTP, after the handshake.
    Http(Box<TlsStream<Socket>>, TlsClient),
    /// A connection to forward.
    Forwarded(Forwarded),
}

async fn serve_tls(open: OpenConnection, port: Rc<PortState>, socket: TcpStream, peer: SocketAddr) {
    // Boxed, like all state that a connection needs only temporarily: a task takes the memory of
    // its largest state for its whole life.
    let socket = (socket, open.take_received());
    let (stream, tls) = match Box::pin(recorded_handshake(&open, &port, socket, peer)).await {
        Ok(Greeted::Http(stream, tls)) => (stream, tls),
        Ok(Greeted::Forwarded(forwarded)) => {
            let is_terminated = forwarded.security == Security::OfBackend;
            open.stats
                .handshakes
                .fetch_add(is_terminated.into(), Relaxed);
            return Box::pin(forward::serve(&open, &port, forwarded)).await;
        }
        Err(failure) => {
            tracing::debug!(client = %peer, port = port.number(), reason = failure.name(), "a TLS handshake failed");
            return open.stats.handshake_failed(failure);
        }
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

/// Runs a handshake, and records its failure.
async fn recorded_handshake(
    worker: &Rc<Worker>,
    port: &PortState,
    socket: (TcpStream, Vec<u8>),
    peer: SocketAddr,
) -> Result<Greeted, HandshakeFailure> {
    let record = ConnectionRecord::begin(worker, port, peer);
    let outcome = timed_handshake(worker, port, socket, peer, &record).await;
    match &outcome {
        // A connection that is forwarded has taken it.
        Ok(_) => record.discard(),
        Err(failure) => record.end((*failure).into()),
    }
    outcome
}

/// Runs a handshake until its timeout or until a newer handshake or a new client evicts it.
async fn timed_handshake(
    worker: &Worker,
    port: &PortState,
    socket: (TcpStream, Vec<u8>),
    peer: SocketAddr,
    record: &ConnectionRecord,
) -> Result<Greeted, HandshakeFailure> {
    let mut entry = worker.handshakes.begin(peer.ip());
    let limits = worker.limits_of(port);
    let activity = Activity::handshake(&worker.clock, &limits);
    worker
        .connections
        .register(peer.ip().to_canonical(), &activity);
    // Pinned here, so that the outcome is counted before the socket is closed.
    let mut handshake = pin!(timeout(
        limits.handshake_timeout,
        handshake(worker, port, socket, peer, record)
    ));
    tokio::select! {
        // tokio polls the arms in order, so that a completed handshake wins over its eviction.
        biased;
        outcome = &mut handshake => outcome.unwrap_or_else(|_| {
            worker.stats.timed_out(TimeoutKind::Handshake);
            Err(HandshakeFailure::Timeout)
        }),
        () = entry.evicted() => Err(HandshakeFailure::Evicted),
        // A new client gets the place of the connection.
        _ = poll_fn(|cx| activity.poll_due(cx)) => Err(HandshakeFailure::Evicted),
    }
}

async fn handshake(
    worker: &Worker,
    port: &PortState,
    (mut socket, mut received): (TcpStream, Vec<u8>),
    peer: SocketAddr,
    record: &ConnectionRecord,
) -> Result<Greeted, HandshakeFailure> {
    let mut counted = Received::new(&worker.unfinished, peer.ip());
    counted
        .add(received.len())
        .map_err(|error| HandshakeFailure::from(&error))?;
    let forwards = port
        .configured(&worker.table.load())
        .is_some_and(|port| port.passes_tls_through());
    if forwards {
        let read = read_hello(&mut socket, &received, &mut counted).await;
        let (hello, name) = read.map_err(|error| HandshakeFailure::from(&error))?;
        match greeting(worker, port, peer, name.as_deref(), record) {
            Ok(Greeting::Terminate(..)) => received = hello,
            Ok(Greeting::PassThrough(rule)) => {
                let client = (ClientIo::Plain(socket), hello);
                let (security, record) = (Security::EndToEnd, record.take());
                let forwarded = Forwarded::new(client, peer, Ok(rule), security, record);
                return Ok(Greeted::Forwarded(forwarded.counting(counted)));
            }
            Err(failure) => {
                refuse(worker, port, Socket::new(socket, Bytes::new())).await;
                return Err(failure);
            }
        }
    }
    let socket = Socket::new(socket, received.into()).counting(counted);
    let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket)
        .await
        .map_err(|error| HandshakeFailure::from(&error))?;
    let sni = start.client_hello().server_name().map(normalized);
    let (listener, rule) = match greeting(worker, port, peer, sni.as_deref(), record) {
        Ok(Greeting::Terminate(listener, rule)) => (listener, rule),
        refused => {
            refuse(worker, port, start.io).await;
            // The table may have changed since: what was to be passed through is not terminated.
            return Err(refused.err().unwrap_or(HandshakeFailure::ServerName));
        }
    };
    let server = listener.server.as_ref();
    let server = server.ok_or(HandshakeFailure::NoCertificate)?;
    let stream = start.into_stream(server.config.clone()).await;
    let mut stream = Box::new(stream.map_err(|error| HandshakeFailure::from(&error))?);
    stream.get_mut().0.on_handshake_end();
    let verified = server
        .verified_client(stream.get_ref().1)
        .map_err(|_| HandshakeFailure::ClientCertificate)?;
    if let Some(rule) = rule {
        let client = (ClientIo::Tls(stream), Vec::new());
        let (security, record) = (Security::OfBackend, record.take());
        let forwarded = Forwarded::new(client, peer, Ok(rule), security, record);
        return Ok(Greeted::Forwarded(forwarded));
    }
    let certificate = verified.and_then(client_certificate::describe);
    let client = TlsClient {
        sni,
        is_verified: verified.is_some(),
        certificate: certificate.map(Box::new),
        is_quic: false,
    };
    Ok(Greeted::Http(stream, client))
}

/// Reads a ClientHello that may be forwarded, of which `received` was read and counted already. Returns all that was read, and its
/// server name. What is no ClientHello has none.
async fn read_hello(
    socket: &mut TcpStream,
    received: &[u8],
    counted: &mut Received,
) -> io::Result<(Vec<u8>, Option<Box<str>>)> {
    let mut hello = ClientHello::default();
    // What was received, and the message in it.
    counted.set_buffers(2);
    let mut status = hello.push(received);
    let mut buffer = [0; 2048];
    loop {
        let name = match status {
            Status::Incomplete => None,
            Status::Complete(name) => Some(name),
            Status::Invalid => Some(None),
        };
        if let Some(name) = name {
            counted.set_buffers(1);
            return Ok((hello.into_received(), name));
        }
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        counted.add(count)?;
        status = hello.push(&buffer[..count]);
    }
}

/// Refuses a ClientHello. A port with TLS listeners resets the connection, as the conformance suite requires: an alert
/// would look like that of a backend.
async fn refuse(worker: &Worker, port: &PortState, mut socket: Socket) {
    let table = worker.table.load();
    if port.configured(&table).is_some_and(|it| it.forwards_tls()) {
        return ClientIo::Plain(socket.into_tcp()).abort();
    }
    drop(table);
    // The alert is best effort: the connection ends either way.
    let _ = socket.write_all(&UNRECOGNIZED_NAME).await;
    let _ = socket.shutdown().await;
}

/// How a ClientHello is answered.
enum Greeting {
    /// Its TLS is terminated. With a rule, what follows is forwarded; without, it is HTTP.
    Terminate(Arc<Listener>, Option<Arc<Rule>>),
    /// It is forwarded, as is all that follows.
    PassThrough(Arc<Rule>),
}

/// Returns how to answer a ClientHello with this server name, or why no listener or no route wants it.
fn greeting(
    worker: &Worker,
    port: &PortState,
    peer: SocketAddr,
    sni: Option<&str>,
    record: &ConnectionRecord,
) -> Result<Greeting, HandshakeFailure> {
    let table = worker.table.load();
    let listener = port
        .configured(&table)
        .and_then(|port| port.listener_for_sni(sni));
    record.greeted(sni, listener.map(|listener| &**listener));
    let listener = listener.ok_or(HandshakeFailure::ServerName)?;
    let rule = || {
        let rule = listener.rule_for(sni.unwrap_or_default(), peer.ip());
        rule.cloned().map_err(|unrouted| {
            worker.stats.unforwarded.fetch_add(1, Relaxed);
            HandshakeFailure::from(unrouted)
        })
    };
    if listener.ir.protocol == Protocol::TlsPassthrough {
        return rule().map(Greeting::PassThrough);
    }
    if listener.server.is_none() {
        return Err(HandshakeFailure::NoCertificate);
    }
    let rule = match listener.ir.protocol {
        Protocol::TlsTerminate(_) => Some(rule()?),
        _ => None,
    };
    Ok(Greeting::Terminate(listener.clone(), rule))
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
