//! Copies bytes in both directions between two sides until both have ended. Each direction ends independently, so that
//! one side's last bytes still arrive after the other side has ended. A direction without bytes to write holds no
//! buffer. Bulk data between two sockets moves inside the kernel. Must not know who the sides are.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use super::splice::{Failure, MaybeSocket, Moved, poll_move};
use crate::http2::{SCARCE_READ, Unread, is_memory_scarce};

/// Maximum number of bytes of one read.
const READ: usize = 64 * 1024;
/// Maximum number of reads of a direction in one poll: other connections of the worker wait meanwhile.
const READS: u8 = 16;

/// Number of reads in a row that fill the buffer before bytes move inside the kernel. For fewer bytes, that saves nothing.
const BULK: u8 = 4;

thread_local! {
    /// What a read fills. The connections of a worker share it, since bytes leave it before the next read.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
}

/// A half of a stream whose other half is relayed too. Both can still be looked at.
pub(super) struct Half<'a, T>(pub(super) &'a RefCell<T>);

impl<T: AsyncRead + Unpin> AsyncRead for Half<'_, T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Half<'_, T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}

impl<T: MaybeSocket> MaybeSocket for Half<'_, T> {
    fn with_socket<V>(&self, use_socket: impl FnOnce(&TcpStream) -> V) -> Option<V> {
        self.0.borrow().with_socket(use_socket)
    }
}

/// One side of a relay.
pub(super) struct Side<'a, R, W> {
    pub(super) reader: R,
    pub(super) writer: W,
    /// Bytes that were read from it before.
    pub(super) first: Vec<u8>,
    /// Counts the bytes that it is sent.
    pub(super) sent: &'a Cell<u64>,
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayEnd<S> {
    /// Both directions have ended, that from the client first.
    ClientClosed,
    /// Both directions have ended, that from the backend first.
    BackendClosed,
    /// The client has reset the connection.
    ClientFailed,
    /// The backend has reset the connection.
    BackendFailed,
    /// Something else than the sides has ended it.
    Stopped(S),
}

/// What has happened since the last poll of a relay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Whether bytes have moved.
    pub(super) has_moved: bool,
    /// Whether one side does not read. Then the relay does not read from the other, and does not learn that it is reset.
    pub(super) is_blocked: bool,
}

/// Copies until both directions have ended, or until `poll_stopped` is ready, which gets the progress. With `ends_on_failure`, also until one side has failed; otherwise a failure ends its direction.
pub(super) async fn relay<A, B, C, D, S>(
    client: Side<'_, A, B>,
    backend: Side<'_, C, D>,
    ends_on_failure: bool,
    poll_stopped: impl Fn(&mut Context<'_>, Progress) -> Poll<S>,
) -> RelayEnd<S>
where
    A: AsyncRead + MaybeSocket + Unpin,
    B: AsyncWrite + MaybeSocket + Unpin,
    C: AsyncRead + MaybeSocket + Unpin,
    D: AsyncWrite + MaybeSocket + Unpin,
{
    let moved = || client.sent.get() + backend.sent.get();
    let up = (client.reader, client.first);
    let mut up = Direction::new(up, (backend.writer, backend.sent), ends_on_failure);
    let down = (backend.reader, backend.first);
    let mut down = Direction::new(down, (client.writer, client.sent), ends_on_failure);
    let mut client_is_first = None;
    std::future::poll_fn(|cx| {
        let before = moved();
        up.poll(cx);
        down.poll(cx);
        let progress = Progress {
            has_moved: moved() > before,
            is_blocked: up.is_blocked() || down.is_blocked(),
        };
        match (up.end, down.end) {
            (Some(End::SourceFailed), _) | (_, Some(End::TargetFailed)) if ends_on_failure => {
                return Poll::Ready(RelayEnd::ClientFailed);
            }
            (_, Some(End::SourceFailed)) if ends_on_failure => {
                return Poll::Ready(RelayEnd::BackendFailed);
            }
            (Some(_), Some(_)) => {
                return Poll::Ready(match client_is_first.unwrap_or(true) {
                    true => RelayEnd::ClientClosed,
                    false => RelayEnd::BackendClosed,
                });
            }
            // A target that has failed was closed by its side.
            (Some(end), None) => client_is_first = Some(end != End::TargetFailed),
            (None, Some(end)) => client_is_first = Some(end == End::TargetFailed),
            (None, None) => {}
        }
        poll_stopped(cx, progress).map(RelayEnd::Stopped)
    })
    .await
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

/// One direction: copies from `from` to `to`, and half-closes `to` at EOF.
struct Direction<'a, R, W> {
    from: R,
    to: W,
    /// Bytes that `to` has not taken, from `written` on.
    rest: Vec<u8>,
    written: usize,
    has_ended: bool,
    /// Whether to keep the target open when the source fails, since the failure is not EOF.
    is_strict: bool,
    /// Number of reads in a row that have filled the buffer, up to [`BULK`].
    full: u8,
    /// Whether bytes can move inside the kernel, as far as is known.
    can_splice: bool,
    moved: &'a Cell<u64>,
    end: Option<End>,
    unread: Unread,
}

impl<'a, R, W> Direction<'a, R, W>
where
    R: AsyncRead + MaybeSocket + Unpin,
    W: AsyncWrite + MaybeSocket + Unpin,
{
    fn new((from, first): (R, Vec<u8>), (to, moved): (W, &'a Cell<u64>), is_strict: bool) -> Self {
        Self {
            from,
            to,
            rest: first,
            written: 0,
            has_ended: false,
            is_strict,
            full: 0,
            can_splice: true,
            moved,
            end: None,
            unread: Unread::default(),
        }
    }

    fn count(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }

    fn is_blocked(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Makes progress, unless the direction has ended.
    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.end.is_none()
            && let Poll::Ready(end) = self.poll_end(cx)
        {
            self.end = Some(end.unwrap_or(End::TargetFailed));
            self.rest = Vec::new();
        }
        self.unread.set(self.rest.capacity());
    }

    /// Copies until the source ends. Fails if the target does.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<End>> {
        for _ in 0..READS {
            ready!(self.poll_write_rest(cx))?;
            if self.has_ended {
                ready!(Pin::new(&mut self.to).poll_shutdown(cx))?;
                return Poll::Ready(Ok(End::Complete));
            }
            let moved = match self.can_splice && self.full >= BULK {
                true => self.poll_splice(cx),
                false => SCRATCH.with_borrow_mut(|scratch| self.poll_copy(scratch, cx)),
            };
            match moved {
                Poll::Ready(Some(end)) => return Poll::Ready(end),
                Poll::Ready(None) => {}
                Poll::Pending => {
                    ready!(Pin::new(&mut self.to).poll_flush(cx))?;
                    return Poll::Pending;
                }
            }
        }
        // A waker alone would not let the runtime look at sockets.
        ready!(pin!(yield_now()).poll(cx));
        Poll::Pending
    }

    fn poll_write_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.rest.len() {
            let left = &self.rest[self.written..];
            let count = ready!(poll_write(&mut self.to, left, cx))?;
            self.written += count;
            self.count(count);
        }
        // Releases the memory.
        self.rest = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads once, and writes what was read. Keeps what the target does not take. Ready with an end if the direction has
    /// failed.
    fn poll_copy(
        &mut self,
        scratch: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<End>>> {
        let mut window = ReadBuf::new(&mut scratch[..read_size()]);
        match ready!(Pin::new(&mut self.from).poll_read(cx, &mut window)) {
            Ok(()) => {}
            Err(error) if self.is_failure(&error) => {
                return Poll::Ready(Some(Ok(End::SourceFailed)));
            }
            // A failed source ends the direction after its received bytes are written.
            Err(_) => window.clear(),
        }
        self.full = match window.remaining() {
            0 => BULK.min(self.full + 1),
            _ => 0,
        };
        let mut read = window.filled();
        self.has_ended = read.is_empty();
        while !read.is_empty() {
            match poll_write(&mut self.to, read, cx) {
                Poll::Ready(Ok(count)) => {
                    self.count(count);
                    read = &read[count..];
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => {
                    self.rest = read.to_vec();
                    break;
                }
            }
        }
        Poll::Ready(None)
    }

    /// Like [`Self::poll_copy`], inside the kernel.
    fn poll_splice(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<End>>> {
        let Self { from, to, .. } = self;
        let most = read_size();
        let moved = from.with_socket(|from| to.with_socket(|to| poll_move(from, to, cx, most)));
        let moved = match moved.flatten() {
            None => Err(Failure::Unsupported),
            Some(moved) => ready!(moved),
        };
        match moved {
            Ok(Moved { read, rest }) => {
                self.count(read - rest.len());
                self.rest = rest;
                self.has_ended = read == 0;
                if read < most / 2 {
                    self.full = 0;
                }
            }
            Err(Failure::Unsupported) => self.can_splice = false,
            Err(Failure::Target(error)) => return Poll::Ready(Some(Err(error))),
            Err(Failure::Source(error)) if self.is_failure(&error) => {
                return Poll::Ready(Some(Ok(End::SourceFailed)));
            }
            Err(Failure::Source(_)) => self.has_ended = true,
        }
        Poll::Ready(None)
    }

    /// Reports whether an error of the source is none that counts as EOF. TLS sessions often end without a close_notify
    /// alert, and the protocol marks its end itself.
    fn is_failure(&self, error: &io::Error) -> bool {
        self.is_strict && error.kind() != io::ErrorKind::UnexpectedEof
    }
}

/// Returns the maximum bytes of a read. If the other side does not take them, they stay in memory.
fn read_size() -> usize {
    match is_memory_scarce() {
        true => SCARCE_READ,
        false => READ,
    }
}

fn poll_write<W: AsyncWrite + Unpin>(
    to: &mut W,
    bytes: &[u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes)) {
        Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        result => Poll::Ready(result),
    }
}
