//! Connections whose bytes are forwarded as they are: those of TCP listeners, and of TLS listeners with or without their
//! TLS. The rule of a route selects the backend once, for the life of the connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use super::io::ClientIo;
use super::relay::{Half, RelayEnd, Side, relay};
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::worker_state::OpenConnection;
use crate::proxy::worker_state::port::PortState;
use crate::table::{Backend, Rule};
use crate::upstream::{Security, TcpClient, TcpConnection};

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
    pub(super) first: Vec<u8>,
    /// The rule; `None` if no route wants the connection.
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) security: Security,
}

impl Forwarded {
    /// Describes a connection from which these bytes were read.
    pub(super) fn new(
        (client, first): (ClientIo, Vec<u8>),
        peer: SocketAddr,
        rule: Option<Arc<Rule>>,
        security: Security,
    ) -> Self {
        Self {
            client,
            peer: peer.ip().to_canonical(),
            port: peer.port(),
            first,
            rule,
            security,
        }
    }
}

/// Serves a connection until both sides have ended, nothing has moved for the idle timeout, its port is removed, or a new
/// client needs its place. Closes it if no backend can be connected to.
pub(super) async fn serve(open: &OpenConnection, port: &PortState, forwarded: Forwarded) {
    let Forwarded {
        client,
        peer,
        port: peer_port,
        first,
        rule,
        security,
    } = forwarded;
    let activity = Activity::tunnel(&open.clock, &open.limits_of(port));
    open.connections.register(peer, &activity);
    let backend = rule.as_deref().and_then(Rule::draw_backend);
    let of_client = TcpClient {
        address: peer,
        ends: backend.and_then(|backend| ends(backend, SocketAddr::new(peer, peer_port), &client)),
    };
    let connecting = connect(open, backend, &of_client, security);
    let connected = tokio::select! {
        connected = connecting => connected,
        // Three endpoints that do not answer take three times the connect timeout.
        () = poll_fn(|cx| poll_ended(port, &activity, cx)) => return client.abort(),
    };
    let Some(mut backend) = connected else {
        open.stats.unforwarded.fetch_add(1, Relaxed);
        return client.abort();
    };
    let (client, backend_io) = (RefCell::new(client), RefCell::new(&mut backend.io));
    let of_client = Side {
        reader: Half(&client),
        writer: Half(&client),
        first,
    };
    let of_backend = Side {
        reader: Half(&backend_io),
        writer: Half(&backend_io),
        first: Vec::new(),
    };
    let check = open.clock.deadline();
    check.set(RESET_CHECK);
    let relayed = relay(of_client, of_backend, true, |cx, progress| {
        if progress.has_moved {
            activity.on_moved();
        }
        if port.is_closed() {
            return Poll::Ready(Stop::Closed);
        }
        if progress.is_blocked && check.poll_due(cx).is_ready() {
            if client.borrow().has_failed() {
                return Poll::Ready(Stop::ClientFailed);
            }
            if backend_io.borrow().has_failed() {
                return Poll::Ready(Stop::BackendFailed);
            }
            check.set(RESET_CHECK);
            // Registers the waker.
            let _ = check.poll_due(cx);
        }
        activity.poll_due(cx).map(Stop::Due)
    });
    let end = relayed.await.end;
    let (client, backend) = (client.into_inner(), backend_io.into_inner());
    match end {
        RelayEnd::Complete => {}
        RelayEnd::ClientFailed | RelayEnd::Stopped(Stop::ClientFailed) => backend.abort(),
        RelayEnd::BackendFailed | RelayEnd::Stopped(Stop::BackendFailed) => client.abort(),
        // Without the reset, both sides would take the end for that of the other's bytes.
        RelayEnd::Stopped(stop) => {
            if let Stop::Due(phase) = stop
                && let Some(kind) = phase.timeout()
            {
                open.stats.timed_out(kind);
            }
            backend.abort();
            client.abort();
        }
    }
}

/// Ready when the port was removed, or a new client needs the place.
fn poll_ended(port: &PortState, activity: &Activity, cx: &mut Context<'_>) -> Poll<()> {
    match port.is_closed() {
        true => Poll::Ready(()),
        false => activity.poll_due(cx).map(drop),
    }
}

/// What ends a connection apart from its sides.
enum Stop {
    /// The port was removed.
    Closed,
    /// A timeout has passed, or a new client needs the place.
    Due(Phase),
    /// A side was reset while the other one did not read.
    ClientFailed,
    BackendFailed,
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

async fn connect(
    open: &OpenConnection,
    backend: Option<&Arc<Backend>>,
    client: &TcpClient,
    security: Security,
) -> Option<TcpConnection> {
    let backend = backend?;
    let connected = open.upstream.connect(backend, client, security).await;
    connected
        .inspect_err(
            |error| tracing::debug!(%error, backend = %backend.id, "cannot forward a connection"),
        )
        .ok()
}
