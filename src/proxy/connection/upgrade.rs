//! Tunnels of upgraded connections, such as WebSocket. Over HTTP/1, a failure ends its direction; over HTTP/2 and HTTP/3, it
//! ends both.

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::io::ClientIo;
use super::relay::{Half, RelayEnd, Side, relay as copy};
use super::splice::MaybeSocket;
use crate::proxy::body::tunnel::Tunnel;
use crate::runtime::clock::Clock;
use crate::telemetry::metrics::TimeoutKind;
use crate::upstream::Unanswered;

/// Copies between the backend and an HTTP/1 connection, whose first bytes were read as `sent`.
pub(crate) async fn relay(
    tunnel: Tunnel,
    client: ClientIo,
    sent: Bytes,
    clock: &Rc<Clock>,
    idle: Duration,
) {
    let first = sent.to_vec();
    // The tunnel would keep the buffer that it was read into.
    drop(sent);
    let (client, to_client) = (RefCell::new(client), Cell::default());
    let side = Side {
        reader: Half(&client),
        writer: Half(&client),
        first,
        sent: &to_client,
    };
    let end = relay_side(tunnel, side, clock, idle, false).await;
    if let RelayEnd::Stopped(Stopped::Vanished) = end {
        // Without the reset, the client would take the end for that of the backend's bytes.
        client.borrow().abort();
    }
}

/// Copies between the backend and a stream of HTTP/2 or HTTP/3, where a failure of one side ends both (RFC 8441, 5, and RFC
/// 9220, 3).
pub(super) async fn relay_stream<R, W>(
    tunnel: Tunnel,
    reader: R,
    writer: W,
    clock: &Rc<Clock>,
    idle: Duration,
) -> RelayEnd<Stopped>
where
    R: AsyncRead + MaybeSocket + Unpin,
    W: AsyncWrite + MaybeSocket + Unpin,
{
    let to_client = Cell::default();
    let client = Side {
        reader,
        writer,
        first: Vec::new(),
        sent: &to_client,
    };
    relay_side(tunnel, client, clock, idle, true).await
}

/// Why a tunnel has ended that neither side has ended.
pub(crate) enum Stopped {
    /// The idle timeout has passed.
    Idle,
    /// The machine of the backend has vanished.
    Vanished,
}

async fn relay_side<R: AsyncRead + MaybeSocket + Unpin, W: AsyncWrite + MaybeSocket + Unpin>(
    mut tunnel: Tunnel,
    client: Side<'_, R, W>,
    clock: &Rc<Clock>,
    idle: Duration,
    ends_on_failure: bool,
) -> RelayEnd<Stopped> {
    let deadline = clock.deadline();
    deadline.set(idle);
    let unanswered = Unanswered::new(clock);
    // The tunnel would keep the buffer that it was read into.
    let first = mem::take(&mut tunnel.backend.first).to_vec();
    let backend_io = RefCell::new(&mut tunnel.backend.io);
    let (to_client, to_backend) = (client.sent, Cell::default());
    let backend = Side {
        reader: Half(&backend_io),
        writer: Half(&backend_io),
        first,
        sent: &to_backend,
    };
    let record = RefCell::new(&mut tunnel.record);
    let note = || (record.borrow_mut()).relayed(to_backend.get(), to_client.get());
    let relayed = copy(client, backend, ends_on_failure, |cx, progress| {
        if progress.has_moved {
            deadline.set(idle);
            note();
        }
        let moved = (to_backend.get(), to_client.get());
        let ask = || backend_io.borrow().unacknowledged();
        if unanswered.poll(cx, moved, ask).is_ready() {
            return Poll::Ready(Stopped::Vanished);
        }
        deadline.poll_due(cx).map(|()| Stopped::Idle)
    });
    let end = relayed.await;
    note();
    if let RelayEnd::Stopped(Stopped::Idle) = end {
        tunnel.record.timed_out(TimeoutKind::TunnelIdle);
    }
    tunnel.record.complete();
    if let RelayEnd::ClientFailed | RelayEnd::Stopped(Stopped::Vanished) = end {
        tunnel.backend.io.abort();
    }
    end
}
