//! One HTTP/2 connection to a backend, shared by many requests and driven by its own task. It gets
//! no new requests before a limit of h2 would end it for all.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::cancelled::{Cancelled, MANY};
use super::silence::{PING_AFTER, PING_TIMEOUT, Silence, Verdict};
use crate::http2::{
    AMPLE_WINDOW, Bodies, Body, EmptyFrames, FRAME_BUDGET, SEND_BUFFER, Windows, Wire,
};
use crate::ir::http2::Http2Windows;
use crate::runtime::clock::{Clock, Deadline};
use crate::table::BackendCounts;
use crate::upstream::io::Io;
use crate::upstream::outgoing::HeadLimits;

/// Assumed SETTINGS_MAX_CONCURRENT_STREAMS until the peer sends its SETTINGS. RFC 9113, 6.5.2
/// recommends at least 100.
pub(in crate::upstream) const ASSUMED_STREAMS: usize = 100;
/// Maximum number of streams on a connection, if the peer allows more.
const MAX_STREAMS: usize = 1024;
/// Flow-control windows of streams. Streams that are not read must not delay others: the window of
/// the connection is their sum.
const WINDOWS: Windows = Windows {
    initial: STREAM_WINDOW,
    full: STREAM_WINDOW,
    max_unread: 4 * 1024 * 1024,
};
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;
/// Number of streams that can be given up within a second, in two periods and when a connection gets no more requests. h2
/// remembers all of them, since late frames of others are errors (h2 #856).
const MAX_LOCAL_RESETS: usize = 2 * MANY + MAX_STREAMS;
/// Number of streams that h2 resets because of malformed responses before it ends the connection.
const MAX_ERRORS: usize = 16 * 1024;
/// Malformed responses after which a connection gets no new requests.
const MALFORMED_RESPONSES: u32 = 256;
/// Empty DATA frames, counted by h2, after which a connection gets no new requests. h2 ends it
/// after 100.
const EMPTY_FRAMES: u32 = 32;
/// Maximum time that a new connection waits for the peer's SETTINGS.
const SETTINGS_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection that accepts requests.
pub(in crate::upstream) struct Http2Connection {
    /// Unique within the thread.
    pub(in crate::upstream) id: u64,
    sender: RefCell<SendRequest<Bytes>>,
    load: Rc<Load>,
    /// Whether a response was received.
    has_responded: Cell<bool>,
    malformed: Cell<u32>,
    cancelled: Cancelled,
    bodies: Rc<Bodies>,
    clock: Rc<Clock>,
    pub(super) is_tls: bool,
    /// Whether the settings of the peer have arrived.
    pub(super) knows_settings: Rc<Cell<bool>>,
    /// Requests that it may still carry, if they are limited.
    requests_left: Cell<Option<u32>>,
    /// Its own idle timeout in milliseconds.
    pub(in crate::upstream) idle_timeout: Option<u64>,
    /// Maximum number of streams by the policy of the backend.
    max_streams: Option<usize>,
    /// What counts it, if connections are limited.
    counts: Box<[Arc<BackendCounts>]>,
}

/// Returns the windows of streams, which a policy may set. How much may be unread is not its choice.
fn windows(policy: Http2Windows) -> Windows {
    let window = policy.stream.unwrap_or(STREAM_WINDOW);
    Windows {
        initial: window,
        full: window,
        ..WINDOWS
    }
}

/// Returns the window of a connection with room for all its streams.
fn connection_window(policy: Http2Windows, max_streams: Option<u32>) -> u32 {
    let streams = max_streams.unwrap_or(MAX_STREAMS as u32);
    match (policy.connection, policy.stream) {
        (Some(window), _) => window,
        (None, Some(window)) => window.saturating_mul(streams).min(AMPLE_WINDOW),
        (None, None) => CONNECTION_WINDOW,
    }
}

/// Requests on a connection.
struct Load {
    streams: Cell<usize>,
    /// End of the last request.
    used: Cell<u64>,
}

impl Http2Connection {
    /// Starts HTTP/2 on a connected stream. Assumes that the peer allows `assumed_streams` streams
    /// until it sends SETTINGS.
    pub(in crate::upstream) async fn open(
        io: Io,
        clock: &Rc<Clock>,
        limits: HeadLimits,
        assumed_streams: usize,
    ) -> Result<Rc<Self>, h2::Error> {
        thread_local!(static NEXT: Cell<u64> = const { Cell::new(1) });
        let is_tls = io.is_tls();
        let (max_requests, idle_timeout) = (io.max_requests(), io.idle_timeout());
        let (max_streams, own) = io.http2();
        let counts = io.counts().cloned().collect();
        let last_read = Rc::new(Cell::new(clock.now()));
        let last_written = Rc::new(Cell::new(clock.now()));
        let io = WatchedIo {
            io,
            clock: clock.clone(),
            last_read: last_read.clone(),
            last_written: last_written.clone(),
            is_broken: false,
        };
        let bodies = Bodies::new(windows(own), None);
        let io = bodies.wire(io, EmptyFrames::Hide);
        let (sender, mut connection) = client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(assumed_streams)
            .initial_window_size(bodies.window())
            .initial_connection_window_size(connection_window(own, max_streams))
            .data_frame_budget(FRAME_BUDGET)
            .max_send_buffer_size(SEND_BUFFER)
            .max_concurrent_reset_streams(MAX_LOCAL_RESETS)
            .max_local_error_reset_streams(Some(MAX_ERRORS))
            .max_header_list_size(u32::try_from(limits.bytes).unwrap_or(u32::MAX))
            .handshake(io)
            .await?;
        let load = Rc::new(Load {
            streams: Cell::new(0),
            used: Cell::new(clock.now()),
        });
        let knows_settings = Rc::new(Cell::new(false));
        if let Some(mut pings) = connection.ping_pong() {
            let has_responded = learn_settings(&mut connection, &mut pings, &bodies).await?;
            knows_settings.set(has_responded);
            let deadline = clock.deadline();
            deadline.set(PING_AFTER);
            let silence = Silence {
                awaits_pong: !has_responded,
                last_read,
                last_written,
                next_ping: 0,
            };
            tokio::task::spawn_local(Driver {
                connection,
                pings,
                silence,
                deadline,
                clock: clock.clone(),
                load: load.clone(),
                bodies: bodies.clone(),
                knows_settings: knows_settings.clone(),
            });
        }
        Ok(Rc::new(Self {
            id: NEXT.replace(NEXT.get() + 1),
            sender: RefCell::new(sender),
            load,
            has_responded: Cell::new(false),
            malformed: Cell::new(0),
            cancelled: Cancelled::default(),
            bodies,
            clock: clock.clone(),
            is_tls,
            knows_settings,
            requests_left: Cell::new(max_requests),
            idle_timeout,
            max_streams: max_streams.map(|max| max as usize),
            counts,
        }))
    }

    /// Reports whether the connection accepts new requests: it has not failed, the peer has not
    /// sent GOAWAY, and it is far from the limits of h2.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        if self.malformed.get() >= MALFORMED_RESPONSES
            || self.cancelled.are_many()
            || self.bodies.counted_empty_frames() >= EMPTY_FRAMES
        {
            return false;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let ready = self.sender.borrow_mut().poll_ready(&mut cx);
        matches!(ready, Poll::Ready(Ok(())))
    }

    /// Returns the maximum number of concurrent streams that the peer and the policy of the backend allow.
    pub(in crate::upstream) fn max_streams(&self) -> usize {
        let max = self.sender.borrow().current_max_send_streams();
        max.min(self.max_streams.unwrap_or(MAX_STREAMS))
    }

    /// Reports whether it has as many streams as the policy of the backend permits. More must not queue on it.
    pub(in crate::upstream) fn is_full_by_policy(&self) -> bool {
        self.max_streams.is_some_and(|max| self.streams() >= max)
    }

    /// Reports whether request bodies that the peer does not read have used the window of the connection, so that the
    /// body of a new request would wait for them, or whether heads that it does not read wait.
    pub(in crate::upstream) fn is_exhausted(&self) -> bool {
        self.bodies.is_window_low() || !self.bodies.send_queue().has_room_for_head()
    }

    /// Returns the number of requests on the connection.
    pub(in crate::upstream) fn streams(&self) -> usize {
        self.load.streams.get()
    }

    /// Reports whether it has no request, and other connections were refused since this time, for want of slots.
    pub(in crate::upstream) fn is_wanted(&self, since: u64) -> bool {
        self.streams() == 0 && self.counts.iter().any(|counts| counts.is_wanted(since))
    }

    /// Reports whether the connection has had no request since `oldest`.
    pub(in crate::upstream) fn is_unused_since(&self, oldest: u64) -> bool {
        self.streams() == 0 && self.load.used.get() < oldest
    }

    /// Reports whether the policy of the backend permits it to carry another request.
    pub(in crate::upstream) fn has_requests_left(&self) -> bool {
        self.requests_left.get() != Some(0)
    }

    /// Reserves a slot for one request.
    pub(in crate::upstream) fn reserve(self: &Rc<Self>) -> Slot {
        self.load.streams.set(self.load.streams.get() + 1);
        if let Some(left) = self.requests_left.get() {
            self.requests_left.set(Some(left.saturating_sub(1)));
        }
        Slot {
            connection: self.clone(),
            awaits_end: Cell::new(false),
        }
    }
}

/// Slot of one request on a connection; released on drop.
pub(in crate::upstream) struct Slot {
    connection: Rc<Http2Connection>,
    /// Whether a stream was opened whose response has not ended.
    awaits_end: Cell<bool>,
}

impl Slot {
    /// Returns the connection.
    pub(in crate::upstream) fn connection(&self) -> &Http2Connection {
        &self.connection
    }

    /// Records that the stream was opened.
    pub(super) fn on_opened(&self) {
        self.awaits_end.set(true);
    }

    /// Records that the peer has ended the stream, or has sent all of the response but its end.
    pub(super) fn on_end(&self) {
        self.awaits_end.set(false);
    }

    /// Returns a handle that opens one stream.
    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.connection.sender.borrow().clone()
    }

    /// Returns the reader of a response body for this client.
    pub(super) fn read(&self, incoming: RecvStream, client: Option<IpAddr>) -> Body {
        self.connection.bodies.read_for(incoming, client)
    }

    /// Returns the bodies of the connection.
    pub(super) fn bodies(&self) -> &Rc<Bodies> {
        &self.connection.bodies
    }

    /// Records that h2 has reset the stream because of the response.
    pub(super) fn on_malformed(&self) {
        self.connection
            .malformed
            .set(self.connection.malformed.get() + 1);
    }

    /// Records a response.
    pub(super) fn on_response(&self) {
        self.connection.has_responded.set(true);
    }

    /// Reports whether the connection has delivered a response before.
    pub(super) fn is_reused(&self) -> bool {
        self.connection.has_responded.get()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Http2Connection {
            load,
            clock,
            cancelled,
            ..
        } = &*self.connection;
        load.streams.set(load.streams.get() - 1);
        load.used.set(clock.now());
        if self.awaits_end.get() {
            cancelled.count(clock.now());
        }
    }
}

/// Drives the connection until it ends, and closes it if the peer is dead.
struct Driver {
    connection: client::Connection<Wire<WatchedIo>, Bytes>,
    pings: PingPong,
    silence: Silence,
    deadline: Deadline,
    clock: Rc<Clock>,
    load: Rc<Load>,
    bodies: Rc<Bodies>,
    knows_settings: Rc<Cell<bool>>,
}

impl Driver {
    /// Handles the deadline. Returns false if the peer has not responded to a PING.
    fn on_deadline(&mut self) -> bool {
        let has_streams = self.load.streams.get() > 0;
        match self.silence.judge(self.clock.now(), has_streams) {
            Verdict::Wait(time) => self.deadline.set(time),
            Verdict::Ping if self.pings.send_ping(Ping::opaque()).is_ok() => {
                self.deadline.set(PING_TIMEOUT);
            }
            Verdict::Ping | Verdict::Dead => return false,
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
            let connection = &mut this.connection;
            let resize = |window| connection.set_initial_window_size(window);
            if this.bodies.on_driven(resize) {
                cx.waker().wake_by_ref();
            }
            if this.silence.awaits_pong && this.pings.poll_pong(cx).is_ready() {
                this.silence.awaits_pong = false;
                this.knows_settings.set(true);
                this.deadline.set(PING_AFTER);
            }
            ready!(this.deadline.poll_due(cx));
            if !this.on_deadline() {
                tracing::debug!("closing an HTTP/2 connection to a backend: no response to a PING");
                return Poll::Ready(());
            }
        }
    }
}

/// Waits for the peer's SETTINGS, which precede its response to a PING (RFC 9113, 3.4). Requests
/// sent earlier could exceed the peer's limit, and the excess would queue on this connection.
/// Returns whether the peer has responded in time. If not, the connection assumes the default
/// limit.
///
/// # Errors
/// When the connection ends meanwhile.
async fn learn_settings(
    connection: &mut client::Connection<Wire<WatchedIo>, Bytes>,
    pings: &mut PingPong,
    bodies: &Rc<Bodies>,
) -> Result<bool, h2::Error> {
    pings.send_ping(Ping::opaque())?;
    let pong = poll_fn(|cx| {
        if let Poll::Ready(end) = Pin::new(&mut *connection).poll(cx) {
            return Poll::Ready(end.and(Err(Reason::NO_ERROR.into())));
        }
        // Counted frames end a turn until they are collected.
        bodies.on_driven(|_| Ok(()));
        pings.poll_pong(cx).map_ok(|_| true)
    });
    timeout(SETTINGS_TIMEOUT, pong).await.unwrap_or(Ok(false))
}

/// A stream that records the times of the last read and write, and whose writes never fail. After the peer has
/// closed the connection, its GOAWAY may still be unread, and that frame states which streams were
/// not processed.
struct WatchedIo {
    io: Io,
    clock: Rc<Clock>,
    last_read: Rc<Cell<u64>>,
    last_written: Rc<Cell<u64>>,
    is_broken: bool,
}

impl WatchedIo {
    fn written(&mut self, outcome: io::Result<usize>, length: usize) -> io::Result<usize> {
        self.last_written.set(self.clock.now());
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::runtime::descriptors::BackendDescriptor;
    use crate::upstream::peer_watch::Reads;

    /// Opens a connection to a server that reads.
    async fn connected(clock: &Rc<Clock>) -> Rc<Http2Connection> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn_local(async move {
            let (io, _) = listener.accept().await.unwrap();
            let mut server = h2::server::handshake(io).await.unwrap();
            while server.accept().await.is_some() {}
        });
        let io = TcpStream::connect(address).await.unwrap();
        let descriptor = BackendDescriptor::take(&Arc::default(), None).unwrap();
        let io = Io::plain(io, descriptor, Reads::Promptly);
        let limits = HeadLimits {
            bytes: 1 << 16,
            headers: 100,
            is_of_policy: false,
        };
        let opened = Http2Connection::open(io, clock, limits, ASSUMED_STREAMS).await;
        opened.unwrap()
    }

    #[tokio::test]
    async fn connection_with_many_cancelled_requests_gets_no_more() {
        let test = async {
            // Stands still, so that all is in one period.
            let connection = connected(&Clock::new()).await;
            for _ in 0..2 * MAX_STREAMS {
                let slot = connection.reserve();
                slot.on_opened();
                slot.on_end();
                drop(connection.reserve());
            }
            assert!(connection.is_open());
            for _ in 0..MAX_STREAMS {
                connection.reserve().on_opened();
            }
            assert!(!connection.is_open());
        };
        LocalSet::new().run_until(test).await;
    }
}
