//! Connections whose bytes are forwarded as they are: those of TCP listeners, and of TLS listeners with or without their
//! TLS. The rule of a route selects the backend once, for the life of the connection.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use super::io::ClientIo;
use super::relay::{Half, RelayEnd, Side, relay};
use super::socket::Received;
use crate::proxy::activity::Activity;
use crate::proxy::connection_record::ConnectionRecord;
use crate::proxy::worker_state::OpenConnection;
use crate::proxy::worker_state::port::PortState;
use crate::table::{Backend, Rule, Unrouted};
use crate::telemetry::access_log::ConnectionEnd;
use crate::telemetry::metrics::TimeoutKind;
use crate::upstream::{Io, Security, SendError, TcpClient, TcpConnection, Unanswered, Unconnected};

/// Interval of checks for a reset by a side that is not read from, since the other one does not read.
const RESET_CHECK: Duration = Duration::from_secs(1);

/// A client's connection, and what selects its backend.
pub(super) struct Forwarded {
    pub(super) client: ClientIo,
    /// Address of the client.
    pub(super) peer: IpAddr,
    /// Port of the client.
    pub(super) port: u16,
    /// Bytes that were read from it already.
    first: Box<[u8]>,
    /// Counts them for the client until the backend has them.
    counted: Option<Box<Received>>,
    /// The rule, or why none is for the connection.
    pub(super) rule: Result<Arc<Rule>, Unrouted>,
    pub(super) security: Security,
    pub(super) record: ConnectionRecord,
}

impl Forwarded {
    /// Describes a connection from which these bytes were read.
    pub(super) fn new(
        (client, first): (ClientIo, Vec<u8>),
        peer: SocketAddr,
        rule: Result<Arc<Rule>, Unrouted>,
        security: Security,
        record: ConnectionRecord,
    ) -> Self {
        Self {
            client,
            peer: peer.ip().to_canonical(),
            port: peer.port(),
            first: first.into(),
            counted: None,
            rule,
            security,
            record,
        }
    }

    /// Counts the bytes that were read already until the backend has them.
    pub(super) fn counting(self, mut received: Received) -> Self {
        received.shrink();
        Self {
            counted: Some(Box::new(received)),
            ..self
        }
    }
}

/// Serves a connection until both sides have ended, nothing has moved for the idle timeout, its port is removed, or a new
/// client needs its place. Closes it if no backend can be connected to.
pub(super) async fn serve(open: &OpenConnection, port: &PortState, forwarded: Forwarded) {
    let activity = Activity::tunnel(&open.clock, &open.limits_of(port));
    open.connections.register(forwarded.peer, &activity);
    let connected = tokio::select! {
        connected = connect(open, &forwarded) => connected,
        // Three endpoints that do not answer take three times the connect timeout.
        end = poll_fn(|cx| poll_ended(port, &activity, cx)) => Err(end),
    };
    let Forwarded {
        client,
        first,
        counted,
        record,
        ..
    } = forwarded;
    match connected {
        Ok(mut backend) => {
            let client = RefCell::new(client);
            let first = (first.into_vec(), counted);
            let joined = (&client, first, &mut backend.io);
            let end = forward(open, port, &activity, joined, &record).await;
            record.end(end);
        }
        Err(end) => {
            record.end(end);
            client.abort();
        }
    }
}

/// The first bytes of a client, and what counts them.
type First = (Vec<u8>, Option<Box<Received>>);

/// Forwards bytes until the connection ends, and returns why.
async fn forward(
    open: &OpenConnection,
    port: &PortState,
    activity: &Activity,
    (client, (first, counted), backend): (&RefCell<ClientIo>, First, &mut Io),
    record: &ConnectionRecord,
) -> ConnectionEnd {
    let length = first.len() as u64;
    let counted = Cell::new(counted);
    let backend = RefCell::new(backend);
    let of_client = Side {
        reader: Half(client),
        writer: Half(client),
        first,
        sent: &record.sent,
    };
    let of_backend = Side {
        reader: Half(&backend),
        writer: Half(&backend),
        first: Vec::new(),
        sent: &record.received,
    };
    let unanswered = Unanswered::new(&open.clock);
    let check = open.clock.deadline();
    check.set(RESET_CHECK);
    let relayed = relay(of_client, of_backend, true, |cx, progress| {
        if progress.has_moved {
            activity.on_moved();
            record.on_moved();
            if record.received.get() >= length {
                // The backend has them.
                drop(counted.take());
            }
        }
        if progress.is_blocked && check.poll_due(cx).is_ready() {
            if client.borrow().has_failed() {
                return Poll::Ready(ConnectionEnd::ResetByClient);
            }
            if backend.borrow().has_failed() {
                return Poll::Ready(ConnectionEnd::ResetByBackend);
            }
            check.set(RESET_CHECK);
            // Registers the waker.
            let _ = check.poll_due(cx);
        }
        let moved = (record.received.get(), record.sent.get());
        let ask = || backend.borrow().unacknowledged();
        if unanswered.poll(cx, moved, ask).is_ready() {
            backend.borrow().abort();
            return Poll::Ready(ConnectionEnd::ResetByBackend);
        }
        poll_ended(port, activity, cx)
    });
    let end = match relayed.await {
        RelayEnd::ClientClosed => ConnectionEnd::ClosedByClient,
        RelayEnd::BackendClosed => ConnectionEnd::ClosedByBackend,
        RelayEnd::ClientFailed => ConnectionEnd::ResetByClient,
        RelayEnd::BackendFailed => ConnectionEnd::ResetByBackend,
        RelayEnd::Stopped(end) => end,
    };
    match end {
        ConnectionEnd::ClosedByClient | ConnectionEnd::ClosedByBackend => {}
        ConnectionEnd::ResetByClient => backend.borrow().abort(),
        ConnectionEnd::ResetByBackend => client.borrow().abort(),
        // Without the reset, both sides would take the end for that of the other's bytes.
        _ => {
            if end == ConnectionEnd::IdleTimeout {
                open.stats.timed_out(TimeoutKind::TunnelIdle);
            }
            backend.borrow().abort();
            client.borrow().abort();
        }
    }
    end
}

/// Ready when something else than its sides ends a connection: its port was removed, nothing has moved for the idle
/// timeout, or a new client needs the place.
fn poll_ended(port: &PortState, activity: &Activity, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
    if port.is_closed() {
        return Poll::Ready(ConnectionEnd::ListenerRemoved);
    }
    activity.poll_due(cx).map(|phase| match phase.timeout() {
        Some(_) => ConnectionEnd::IdleTimeout,
        None => ConnectionEnd::Evicted,
    })
}

/// Returns the addresses of a client and of the proxy, if the policy of a backend tells them.
fn ends(
    backend: &Backend,
    peer: SocketAddr,
    client: &ClientIo,
) -> Option<Arc<(SocketAddr, SocketAddr)>> {
    let settings = backend.settings.as_ref()?;
    settings.ir.connection.proxy_protocol?;
    Some(Arc::new((peer, client.local_address()?)))
}

/// Connects a client to a backend of its rule, or counts the connection and returns why that cannot be.
async fn connect(
    open: &OpenConnection,
    forwarded: &Forwarded,
) -> Result<TcpConnection, ConnectionEnd> {
    let connected = match select(open, forwarded) {
        Ok(backend) => connect_to(open, forwarded, backend).await,
        Err(end) => Err(end),
    };
    connected.inspect_err(|_| {
        open.stats.unforwarded.fetch_add(1, Relaxed);
    })
}

/// Selects the backend of a connection.
fn select<'a>(
    open: &OpenConnection,
    forwarded: &'a Forwarded,
) -> Result<&'a Arc<Backend>, ConnectionEnd> {
    let rule = forwarded.rule.as_ref().map_err(|unrouted| *unrouted)?;
    forwarded.record.matched(rule, open.id);
    let backend = rule.draw_backend().ok_or(ConnectionEnd::NoBackend)?;
    forwarded.record.selected(backend);
    Ok(backend)
}

async fn connect_to(
    open: &OpenConnection,
    forwarded: &Forwarded,
    backend: &Backend,
) -> Result<TcpConnection, ConnectionEnd> {
    let address = forwarded.peer;
    let peer = SocketAddr::new(address, forwarded.port);
    let client = TcpClient {
        address,
        ends: ends(backend, peer, &forwarded.client),
    };
    let connecting = (open.upstream).connect(backend, &client, forwarded.security);
    let connected = connecting.await;
    let endpoint = match &connected {
        Ok(connection) => Some(connection.endpoint()),
        Err(Unconnected { endpoint, .. }) => *endpoint,
    };
    forwarded.record.reached(endpoint);
    connected.map_err(|Unconnected { error, .. }| {
        tracing::debug!(%error, backend = %backend.id, "cannot forward a connection");
        match error {
            SendError::Backend(fault, cause) => ConnectionEnd::Unconnected(fault, cause),
            // A connection has no request.
            SendError::RequestBody => ConnectionEnd::ResetByClient,
        }
    })
}
