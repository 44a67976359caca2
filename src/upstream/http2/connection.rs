//! One HTTP/2 connection to a backend: opened on a connected stream, driven by one task of its own, shared by many
//! requests. Knows no request.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use crate::clock::{Clock, Deadline};
use crate::upstream::HeadLimits;
use crate::upstream::io::Io;

/// Streams that a peer is assumed to allow until it says so (RFC 9113, 6.5.2 recommends at least as many).
pub(in crate::upstream) const ASSUMED_STREAMS: usize = 100;
/// Streams on one connection, where its peer allows more.
const MAX_STREAMS: usize = 1024;
/// Window of one stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Window of a connection: half of it bounds unread small frames in h2.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Late frames of streams that were cancelled here must not add up to an error of the shared connection (h2 #856).
const REMEMBERED_RESETS: usize = 1000;
/// Silence of a connection with requests after which it is pinged.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long the peer may be silent after a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a new connection waits to learn what its peer allows.
const SETTINGS_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection that takes requests.
pub(in crate::upstream) struct Http2Connection {
    /// Unique in the thread.
    pub(in crate::upstream) id: u64,
    sender: RefCell<SendRequest<Bytes>>,
    load: Rc<Load>,
    /// Whether a response has come on it.
    answered: Cell<bool>,
    clock: Rc<Clock>,
    pub(super) is_tls: bool,
}

/// The requests on a connection.
struct Load {
    streams: Cell<usize>,
    /// When the last one ended.
    used: Cell<u64>,
}

impl Http2Connection {
    /// Speaks HTTP/2 on a connected stream, with a peer that is assumed to allow so many streams until it says so.
    pub(in crate::upstream) async fn open(
        io: Io,
        clock: &Rc<Clock>,
        limits: HeadLimits,
        assumed_streams: usize,
    ) -> Result<Rc<Self>, h2::Error> {
        thread_local!(static NEXT: Cell<u64> = const { Cell::new(1) });
        let is_tls = matches!(io, Io::Tls(_));
        let last_read = Rc::new(Cell::new(clock.now()));
        let io = WatchedIo {
            io,
            clock: clock.clone(),
            last_read: last_read.clone(),
            is_broken: false,
        };
        let (sender, mut connection) = client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(assumed_streams)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            .max_header_list_size(u32::try_from(limits.bytes).unwrap_or(u32::MAX))
            .handshake(io)
            .await?;
        let load = Rc::new(Load {
            streams: Cell::new(0),
            used: Cell::new(clock.now()),
        });
        if let Some(mut pings) = connection.ping_pong() {
            let is_answered = learn_settings(&mut connection, &mut pings).await?;
            let deadline = clock.deadline();
            deadline.set(PING_AFTER);
            tokio::task::spawn_local(Driver {
                connection,
                pings,
                awaits_pong: !is_answered,
                deadline,
                clock: clock.clone(),
                last_read,
                load: load.clone(),
            });
        }
        Ok(Rc::new(Self {
            id: NEXT.replace(NEXT.get() + 1),
            sender: RefCell::new(sender),
            load,
            answered: Cell::new(false),
            clock: clock.clone(),
            is_tls,
        }))
    }

    /// Whether the connection takes new requests: it has not failed, and its peer has sent no GOAWAY.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = self.sender.borrow_mut().poll_ready(&mut cx);
        matches!(ready, Poll::Ready(Ok(())))
    }

    /// Streams that the peer allows at one time, as far as it has said so.
    pub(in crate::upstream) fn max_streams(&self) -> usize {
        let max = self.sender.borrow().current_max_send_streams();
        max.min(MAX_STREAMS)
    }

    /// Requests on the connection.
    pub(in crate::upstream) fn streams(&self) -> usize {
        self.load.streams.get()
    }

    /// Whether no request is on the connection, and none was since `oldest`.
    pub(in crate::upstream) fn is_unused_since(&self, oldest: u64) -> bool {
        self.streams() == 0 && self.load.used.get() < oldest
    }

    /// A place for one request.
    pub(in crate::upstream) fn reserve(self: &Rc<Self>) -> Slot {
        self.load.streams.set(self.load.streams.get() + 1);
        Slot(self.clone())
    }
}

/// The place of one request on a connection, given back when dropped.
pub(in crate::upstream) struct Slot(Rc<Http2Connection>);

impl Slot {
    /// The connection.
    pub(in crate::upstream) fn connection(&self) -> &Http2Connection {
        &self.0
    }

    /// A handle that opens one stream.
    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.0.sender.borrow().clone()
    }

    /// A response has come.
    pub(super) fn on_response(&self) {
        self.0.answered.set(true);
    }

    /// Whether a response has come on the connection before.
    pub(super) fn is_reused(&self) -> bool {
        self.0.answered.get()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let load = &self.0.load;
        load.streams.set(load.streams.get() - 1);
        load.used.set(self.0.clock.now());
    }
}

/// Reads and writes frames until the connection ends, and ends it when its peer has died.
struct Driver {
    connection: client::Connection<WatchedIo, Bytes>,
    pings: PingPong,
    awaits_pong: bool,
    deadline: Deadline,
    clock: Rc<Clock>,
    last_read: Rc<Cell<u64>>,
    load: Rc<Load>,
}

impl Driver {
    /// Moves the deadline on; false when the peer has let it pass.
    fn on_deadline(&mut self) -> bool {
        let silent = Duration::from_millis(self.clock.now().saturating_sub(self.last_read.get()));
        if self.load.streams.get() == 0 || silent < PING_TIMEOUT {
            self.deadline.set(PING_AFTER);
        } else if silent < PING_AFTER {
            self.deadline.set(PING_AFTER - silent);
        } else if self.awaits_pong || self.pings.send_ping(Ping::opaque()).is_err() {
            return false;
        } else {
            self.awaits_pong = true;
            self.deadline.set(PING_TIMEOUT);
        }
        true
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut this.connection).poll(cx) {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "an HTTP/2 connection to a backend ended");
                }
                return Poll::Ready(());
            }
            if this.awaits_pong && this.pings.poll_pong(cx).is_ready() {
                this.awaits_pong = false;
                this.deadline.set(PING_AFTER);
            }
            ready!(this.deadline.poll_due(cx));
            if !this.on_deadline() {
                tracing::debug!("a backend did not answer a ping on its HTTP/2 connection");
                return Poll::Ready(());
            }
        }
    }
}

/// Waits for the SETTINGS of the peer, which come before its answer to a ping (RFC 9113, 3.4): requests that are sent
/// before them could be more than it allows, and those beyond would wait on this connection for others to end. Returns
/// whether the peer has answered; one that does not in time is taken for one that allows what is assumed.
///
/// # Errors
/// When the connection ends meanwhile.
async fn learn_settings(
    connection: &mut client::Connection<WatchedIo, Bytes>,
    pings: &mut PingPong,
) -> Result<bool, h2::Error> {
    pings.send_ping(Ping::opaque())?;
    let answered = poll_fn(|cx| {
        if let Poll::Ready(end) = Pin::new(&mut *connection).poll(cx) {
            return Poll::Ready(end.and(Err(Reason::NO_ERROR.into())));
        }
        pings.poll_pong(cx).map_ok(|_| true)
    });
    timeout(SETTINGS_TIMEOUT, answered)
        .await
        .unwrap_or(Ok(false))
}

/// A stream that remembers when bytes came, and whose writes never fail: the peer may have sent GOAWAY before it closed
/// the connection, which says what it has not processed and must still be read.
struct WatchedIo {
    io: Io,
    clock: Rc<Clock>,
    last_read: Rc<Cell<u64>>,
    is_broken: bool,
}

impl WatchedIo {
    fn written(&mut self, outcome: io::Result<usize>, length: usize) -> io::Result<usize> {
        if outcome.is_err() {
            self.is_broken = true;
        }
        Ok(outcome.unwrap_or(length))
    }
}

impl AsyncRead for WatchedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.last_read.set(self.clock.now());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = ready!(Pin::new(&mut self.io).poll_write(cx, bytes));
        Poll::Ready(self.written(outcome, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.is_broken {
            return Poll::Ready(Ok(length));
        }
        let outcome = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices));
        Poll::Ready(self.written(outcome, length))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_broken && ready!(Pin::new(&mut self.io).poll_flush(cx)).is_err() {
            self.is_broken = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
