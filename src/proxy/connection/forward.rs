//! Connections whose bytes are forwarded as they are: those of TCP listeners, and of TLS listeners with or without their
//! TLS. The rule of a route selects the backend once, for the life of the connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use super::io::ClientIo;
use super::relay::{RelayEnd, Side, relay};
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::worker_state::OpenConnection;
use crate::proxy::worker_state::port::PortState;
use crate::table::{Backend, BackendTarget, Rule};
use crate::upstream::{Security, TcpConnection};

/// A client's connection, and what selects its backend.
pub(super) struct Forwarded {
    pub(super) client: ClientIo,
    /// Address of the client.
    pub(super) peer: IpAddr,
    /// Bytes that were read from it already.
    pub(super) first: Vec<u8>,
    /// The rule; `None` if no route wants the connection.
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) security: Security,
}

impl Forwarded {
    /// Describes a connection from which nothing was read.
    pub(super) fn new(
        client: ClientIo,
        peer: SocketAddr,
        rule: Option<Arc<Rule>>,
        security: Security,
    ) -> Self {
        Self {
            client,
            peer: peer.ip().to_canonical(),
            first: Vec::new(),
            rule,
            security,
        }
    }
}

/// Serves a connection until both sides have ended, nothing has moved for the idle timeout, its port is removed, or a new
/// client needs its place. Closes it if no backend can be connected to.
pub(super) async fn serve(open: &OpenConnection, port: &PortState, forwarded: Forwarded) {
    let Forwarded {
        mut client,
        peer,
        first,
        rule,
        security,
    } = forwarded;
    let activity = Activity::tunnel(&open.clock, &open.limits);
    open.connections.register(peer, &activity);
    let Some(mut backend) = connect(open, rule.as_deref(), security).await else {
        open.stats.unforwarded.fetch_add(1, Relaxed);
        return client.abort();
    };
    let (reader, writer) = tokio::io::split(&mut client);
    let of_client = Side {
        reader,
        writer,
        first,
    };
    let (reader, writer) = tokio::io::split(&mut backend.io);
    let of_backend = Side {
        reader,
        writer,
        first: Vec::new(),
    };
    let relayed = relay(of_client, of_backend, true, |cx, has_moved| {
        if has_moved {
            activity.on_moved();
        }
        match port.is_closed() {
            true => Poll::Ready(Phase::Evicted),
            false => activity.poll_due(cx),
        }
    });
    match relayed.await.end {
        RelayEnd::Complete => {}
        RelayEnd::ClientFailed => backend.io.abort(),
        RelayEnd::BackendFailed => client.abort(),
        // Without the reset, both sides would take the end for that of the other's bytes.
        RelayEnd::Stopped(phase) => {
            if let Some(kind) = phase.timeout() {
                open.stats.timed_out(kind);
            }
            backend.io.abort();
            client.abort();
        }
    }
}

async fn connect(
    open: &OpenConnection,
    rule: Option<&Rule>,
    security: Security,
) -> Option<TcpConnection> {
    let backend = select(rule?)?;
    let connected = open.upstream.connect(backend, security).await;
    connected
        .inspect_err(
            |error| tracing::debug!(%error, backend = %backend.id, "cannot forward a connection"),
        )
        .ok()
}

/// Returns the backend for a connection; `None` if its share of the connections cannot be served.
fn select(rule: &Rule) -> Option<&Arc<Backend>> {
    match &rule.select(rule.draw(None))?.target {
        BackendTarget::Backend(backend) => Some(backend),
        BackendTarget::Invalid(_) => None,
    }
}
