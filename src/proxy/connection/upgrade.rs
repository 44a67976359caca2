//! Tunnels of upgraded connections: copies bytes in both directions until both have ended. Each direction ends
//! independently, so that one side's last bytes still arrive after the other side has ended. Over HTTP/1, a failure
//! ends its direction; over HTTP/2, it ends both.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::io::ClientIo;
use super::stream_io::{StreamReader, StreamWriter};
use crate::proxy::body::tunnel::Tunnel;
use crate::runtime::clock::{Clock, Deadline};
use crate::telemetry::metrics::TimeoutKind;

/// Buffer size per direction in bytes.
const BUFFER: usize = 16 * 1024;

/// Copies between the backend and an HTTP/1 connection, whose first bytes were read as `sent`.
pub(crate) async fn relay(
    tunnel: Tunnel,
    client: ClientIo,
    sent: Bytes,
    clock: &Rc<Clock>,
    idle: Duration,
) {
    let (reader, writer) = tokio::io::split(client);
    copy(tunnel, reader, writer, &sent, clock, idle, false).await;
}

/// Copies between the backend and an HTTP/2 stream, where a failure of one side ends both (RFC 8441, 5).
pub(crate) async fn relay_stream(
    tunnel: Tunnel,
    reader: StreamReader,
    writer: &mut StreamWriter,
    clock: &Rc<Clock>,
    idle: Duration,
) -> TunnelEnd {
    copy(tunnel, reader, writer, &[], clock, idle, true).await
}

/// Copies until both directions have ended, or no bytes have moved for `idle`. With
/// `ends_on_failure`, also until one side has failed.
async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut tunnel: Tunnel,
    client_read: R,
    client_write: W,
    sent: &[u8],
    clock: &Rc<Clock>,
    idle: Duration,
    ends_on_failure: bool,
) -> TunnelEnd {
    let deadline = clock.deadline();
    deadline.set(idle);
    let (backend_read, backend_write) = tokio::io::split(&mut tunnel.backend.io);
    let watch = IdleDeadline {
        deadline: &deadline,
        idle,
    };
    let mut up = Direction::new(client_read, backend_write, sent, watch);
    let mut down = Direction::new(backend_read, client_write, &tunnel.backend.first, watch);
    up.is_strict = ends_on_failure;
    down.is_strict = ends_on_failure;
    let (mut up_end, mut down_end) = (None, None);
    let end = std::future::poll_fn(|cx| {
        poll_end(&mut up, &mut up_end, cx);
        poll_end(&mut down, &mut down_end, cx);
        match (up_end, down_end) {
            (Some(End::SourceFailed), _) | (_, Some(End::TargetFailed)) if ends_on_failure => {
                Poll::Ready(TunnelEnd::ClientFailed)
            }
            (_, Some(End::SourceFailed)) if ends_on_failure => {
                Poll::Ready(TunnelEnd::BackendFailed)
            }
            (Some(_), Some(_)) => Poll::Ready(TunnelEnd::Complete),
            _ => deadline.poll_due(cx).map(|()| TunnelEnd::TimedOut),
        }
    })
    .await;
    tunnel.record.sent(down.moved);
    if end == TunnelEnd::TimedOut {
        tunnel.record.timed_out(TimeoutKind::TunnelIdle);
    }
    tunnel.record.complete();
    // Both borrow the connection.
    drop((up, down));
    if end == TunnelEnd::ClientFailed {
        tunnel.backend.io.abort();
    }
    end
}

/// Polls a direction unless it has ended.
fn poll_end<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    direction: &mut Direction<'_, R, W>,
    end: &mut Option<End>,
    cx: &mut Context<'_>,
) {
    if end.is_none()
        && let Poll::Ready(reached) = direction.poll_io(cx)
    {
        *end = Some(reached);
    }
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// Both directions have ended.
    Complete,
    /// The client has reset the stream, or its connection has ended.
    ClientFailed,
    /// The backend has reset the connection.
    BackendFailed,
    /// No bytes have moved for the idle timeout.
    TimedOut,
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The source has ended, and all of its bytes are written.
    Complete,
    /// The source has failed.
    SourceFailed,
    /// The target has failed.
    TargetFailed,
}

/// The idle deadline, shared by both directions.
#[derive(Clone, Copy)]
struct IdleDeadline<'a> {
    deadline: &'a Deadline,
    idle: Duration,
}

/// One direction: copies from `from` to `to`, and half-closes `to` at EOF.
struct Direction<'a, R, W> {
    from: R,
    to: W,
    buffer: Vec<u8>,
    filled: usize,
    written: usize,
    ended: bool,
    /// Whether to keep the target open when the source fails, since the failure is not EOF.
    is_strict: bool,
    moved: usize,
    watch: IdleDeadline<'a>,
}

impl<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Direction<'a, R, W> {
    fn new(from: R, to: W, first: &[u8], watch: IdleDeadline<'a>) -> Self {
        let mut buffer = vec![0; BUFFER.max(first.len())];
        buffer[..first.len()].copy_from_slice(first);
        Self {
            from,
            to,
            buffer,
            filled: first.len(),
            written: 0,
            ended: false,
            is_strict: false,
            moved: 0,
            watch,
        }
    }

    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.try_poll(cx)
            .map(|end| end.unwrap_or(End::TargetFailed))
    }

    /// Copies until the source ends. Fails if the target does.
    fn try_poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<End>> {
        loop {
            while self.written < self.filled {
                let count = ready!(
                    Pin::new(&mut self.to).poll_write(cx, &self.buffer[self.written..self.filled])
                )?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += count;
                self.moved += count;
                self.watch.deadline.set(self.watch.idle);
            }
            if self.ended {
                ready!(Pin::new(&mut self.to).poll_shutdown(cx))?;
                return Poll::Ready(Ok(End::Complete));
            }
            let mut window = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut self.from).poll_read(cx, &mut window) {
                Poll::Ready(Ok(())) => {
                    (self.filled, self.written) = (window.filled().len(), 0);
                    self.ended = self.filled == 0;
                    self.watch.deadline.set(self.watch.idle);
                }
                // TLS sessions often end without a close_notify alert, and the tunnelled protocol marks its end itself.
                Poll::Ready(Err(error))
                    if self.is_strict && error.kind() != io::ErrorKind::UnexpectedEof =>
                {
                    return Poll::Ready(Ok(End::SourceFailed));
                }
                // A failed source ends the direction after its received bytes are written.
                Poll::Ready(Err(_)) => (self.filled, self.written, self.ended) = (0, 0, true),
                Poll::Pending => {
                    ready!(Pin::new(&mut self.to).poll_flush(cx))?;
                    return Poll::Pending;
                }
            }
        }
    }
}
