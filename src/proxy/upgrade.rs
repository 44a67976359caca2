//! Tunnels of upgraded connections: copies bytes in both directions until both have ended. A
//! direction ends independently, so that the last bytes of one side arrive after the other side has
//! failed.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::io::ClientIo;
use super::record::Record;
use super::request_body::RequestBody;
use crate::clock::{Clock, Deadline};
use crate::telemetry::metrics::TimeoutKind;
use crate::upstream::{ResponseBody, Upgraded};

/// Buffer size per direction in bytes.
const BUFFER: usize = 16 * 1024;

/// The backend half of an upgraded connection, before the client half is available.
pub(crate) struct Tunnel {
    backend: Upgraded,
    record: Record,
}

impl Tunnel {
    /// Takes over the connection after a 101 response.
    pub(crate) fn new(response: ResponseBody<RequestBody>, record: Record) -> Option<Self> {
        let backend = response.into_upgraded()?;
        Some(Self { backend, record })
    }

    /// Copies until both directions have ended, or no bytes have moved for `idle`.
    pub(crate) async fn relay(
        mut self,
        client: ClientIo,
        sent: Bytes,
        clock: &Rc<Clock>,
        idle: Duration,
    ) {
        let deadline = clock.deadline();
        deadline.set(idle);
        let (client_read, client_write) = tokio::io::split(client);
        let (backend_read, backend_write) = tokio::io::split(&mut self.backend.io);
        let watch = IdleDeadline {
            deadline: &deadline,
            idle,
        };
        let mut up = pin!(Direction::new(client_read, backend_write, &sent, watch));
        let mut down = pin!(Direction::new(
            backend_read,
            client_write,
            &self.backend.first,
            watch
        ));
        let (mut up_done, mut down_done) = (false, false);
        let timed_out = std::future::poll_fn(|cx| {
            up_done = up_done || up.as_mut().poll(cx).is_ready();
            down_done = down_done || down.as_mut().poll(cx).is_ready();
            if up_done && down_done {
                return Poll::Ready(false);
            }
            deadline.poll_due(cx).map(|()| true)
        })
        .await;
        self.record.sent(down.moved);
        if timed_out {
            self.record.timed_out(TimeoutKind::TunnelIdle);
        }
        self.record.complete();
    }
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
            moved: 0,
            watch,
        }
    }

    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
                return Pin::new(&mut self.to).poll_shutdown(cx);
            }
            let mut window = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut self.from).poll_read(cx, &mut window) {
                Poll::Ready(Ok(())) => {
                    (self.filled, self.written) = (window.filled().len(), 0);
                    self.ended = self.filled == 0;
                    self.watch.deadline.set(self.watch.idle);
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

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Future for Direction<'_, R, W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_io(cx).map(drop)
    }
}
