//! HTTP/2 connections: h2's server plus timeouts, PING and GOAWAY. Each stream runs in its own
//! task.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{PingPong, Reason, RecvStream};
use http::{Method, Request};
use tokio::task::spawn_local;

use super::deadline::in_time;
use super::in_place::in_place;
use super::io::{ClientIo, Observed};
use super::request_heads::RequestHeads;
use super::stream::{self, Stream};
use crate::http2::{AMPLE_WINDOW, Bodies, EmptyFrames, FRAME_BUDGET, SEND_BUFFER, Windows, Wire};
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::client::{Client, USUAL_HEAD};
use crate::proxy::connection::http2_shared::{CANCELLATIONS, Cancellations, Shared};
use crate::runtime::clock::{Clock, Deadline};
use crate::settings::Limits;

/// Flow-control windows of streams. Streams that are not read must not delay others: the window of
/// the connection is their sum.
const WINDOWS: Windows = Windows {
    initial: 64 * 1024,
    full: 256 * 1024,
    max_unread: 1024 * 1024,
};
/// Maximum window of a connection (RFC 9113, 6.9.1).
const MAX_WINDOW: u32 = i32::MAX as u32;
/// Maximum number of resets by the proxy on one connection before the connection ends.
const LOCAL_RESETS: usize = 256;
/// Idle time before a PING, and timeout of its response. The PING also ends a connection with an
/// unfinished header block, which no other frame can interrupt (RFC 9113, 6.10).
const PING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));

/// Serves HTTP/2 on a connection whose first bytes were read as `prefix`.
pub(crate) async fn serve(io: ClientIo, prefix: Bytes, client: Rc<Client>) {
    let worker = &client.worker;
    let activity = client.activity(true);
    let observed = Observed::new(io, prefix, activity.clone(), client.injection.clone());
    let bodies = Bodies::new(windows(&client.limits), Some(client.kept_bytes.client()));
    let wire = bodies.wire(observed, EmptyFrames::Pass);
    let handshake = server(&client, bodies.window()).handshake(wire);
    let Some(Ok(mut h2)) = in_time(handshake, &activity, &client).await else {
        return;
    };
    let mut server = Server {
        age: client.age_left().map(|left| {
            let deadline = worker.clock.deadline();
            deadline.set(left);
            deadline
        }),
        ping: Ping::new(h2.ping_pong(), &worker.clock),
        h2,
        last_stream: 0,
        goaway: GoAway::None,
        shared: Rc::new(Shared {
            cancelled: Cancellations::default(),
            bodies,
            heads: RequestHeads::default(),
            tunnels: Cell::new(0),
            activity,
            client,
        }),
    };
    poll_fn(|cx| server.poll(cx)).await;
}

fn server(client: &Client, window: u32) -> Builder {
    let limits = &client.limits;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.max_streams)
        .initial_window_size(window)
        .initial_connection_window_size(connection_window(limits))
        .data_frame_budget(FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
        .max_local_error_reset_streams(Some(LOCAL_RESETS))
        .enable_connect_protocol();
    builder
}

/// Returns the windows of streams. Those that a policy sets do not grow; how much may be unread is not its choice.
fn windows(limits: &Limits) -> Windows {
    let Some(window) = limits.stream_window else {
        return WINDOWS;
    };
    Windows {
        initial: window,
        full: window,
        ..WINDOWS
    }
}

/// Returns the window that a policy sets, or the sum of the windows of streams, and at least one.
fn connection_window(limits: &Limits) -> u32 {
    let streams = limits.max_streams.max(1);
    match (limits.connection_window, limits.stream_window) {
        (Some(window), _) => window,
        (None, Some(window)) => window.saturating_mul(streams).min(AMPLE_WINDOW),
        (None, None) => WINDOWS.full.saturating_mul(streams).min(MAX_WINDOW),
    }
}

/// The GOAWAY that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoAway {
    None,
    /// NO_ERROR: streams that the client opens before it reads the GOAWAY are served.
    Graceful,
    /// ENHANCE_YOUR_CALM: the client cancels too many streams; further streams are refused.
    Calm,
}

/// Server side of a connection.
struct Server {
    h2: Connection<Wire<Observed>, Bytes>,
    ping: Ping,
    /// When it has its maximum age, if it has one.
    age: Option<Deadline>,
    /// Highest stream id that is served.
    last_stream: u32,
    goaway: GoAway,
    shared: Rc<Shared>,
}

impl Server {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.goaway == GoAway::None && (self.shared.client.is_draining() || self.has_aged(cx)) {
            self.begin_graceful_end();
        }
        loop {
            if self.limit_cancellations().is_ready() {
                return Poll::Ready(());
            }
            // h2 has no task: polling for requests also drives all reads and writes of the
            // connection.
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.accept(request, respond),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending if self.has_ended_after_calm() => {
                    self.shared.client.injection.close()
                }
                Poll::Pending => break,
            }
        }
        let resize = |window| self.h2.set_initial_window_size(window);
        if self.shared.bodies.on_driven(resize) {
            cx.waker().wake_by_ref();
        }
        let block = match self.shared.bodies.unfinished_block() {
            0..=USUAL_HEAD => 0,
            // h2 keeps another copy.
            bytes => 2 * bytes,
        };
        if !self.shared.client.hold_unfinished(block) {
            return Poll::Ready(());
        }
        if self.ping.poll(cx, &self.shared.activity).is_ready() {
            return Poll::Ready(());
        }
        self.poll_due(cx)
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let activity = &self.shared.activity;
        match activity.poll_due(cx) {
            Poll::Ready(Phase::Idle) if self.goaway == GoAway::None => {
                // Limits the remaining writes like any other write.
                activity.on_write_blocked();
                self.begin_graceful_end();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // The last stream id of this GOAWAY tells the client that a request on its way was not
            // processed.
            Poll::Ready(Phase::Evicted) => {
                activity.on_write_blocked();
                self.goaway = GoAway::Graceful;
                self.h2.abrupt_shutdown(Reason::NO_ERROR);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // A tunnel may be silent for longer. PINGs detect a client that has vanished.
            Poll::Ready(Phase::Backend) if self.shared.tunnels.get() > 0 => {
                activity.extend();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(phase) if activity.begin_last_write(phase) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            due => due.map(|phase| self.shared.client.timed_out(phase)),
        }
    }

    /// Reports whether the connection has its maximum age. Until then, registers its task to be woken at that time.
    fn has_aged(&self, cx: &Context<'_>) -> bool {
        let age = self.age.as_ref();
        age.is_some_and(|age| age.poll_due(cx).is_ready())
    }

    fn begin_graceful_end(&mut self) {
        self.goaway = GoAway::Graceful;
        self.h2.graceful_shutdown();
    }

    /// Sends GOAWAY when the client has cancelled too many streams. Becomes ready if the client
    /// continues nevertheless.
    fn limit_cancellations(&mut self) -> Poll<()> {
        let excess = self.shared.cancelled.excess();
        if excess > CANCELLATIONS {
            return Poll::Ready(());
        }
        if excess > 0 && self.goaway == GoAway::None {
            self.goaway = GoAway::Calm;
            // h2's abrupt shutdown with a reason would reset every stream.
            let frame = goaway(self.last_stream, Reason::ENHANCE_YOUR_CALM);
            self.shared.client.injection.push(&frame);
        }
        Poll::Pending
    }

    /// Reports whether all streams have ended after [`GoAway::Calm`]. h2 is not aware of that
    /// frame, and must not send another GOAWAY with a higher last stream id (RFC 9113, 6.8).
    fn has_ended_after_calm(&self) -> bool {
        self.goaway == GoAway::Calm
            && !self.h2.has_streams()
            && self.shared.activity.requests() == 0
            && self.shared.client.injection.is_empty()
            && !self.shared.client.injection.is_closed()
            && !self.shared.activity.is_write_blocked()
    }

    fn accept(&mut self, mut request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let clock = &self.shared.client.worker.clock;
        if self.goaway == GoAway::Calm {
            self.shared.cancelled.count(clock);
            respond.send_reset(Reason::REFUSED_STREAM);
            return;
        }
        // h2 returns requests in the order of arrival, in which stream ids grow (RFC 9113, 5.1.1).
        self.last_stream = respond.stream_id().as_u32();
        // RFC 9113, 8.3.1. h2 drops the scheme of a request without `:authority`.
        if request.uri().scheme_str() == Some("") {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return;
        }
        let mut stream = Stream::new(self.shared.clone(), &mut request, respond);
        let is_head = request.method() == Method::HEAD;
        let request = stream.open(request);
        spawn_local(in_place(|| stream::serve(stream, request, is_head)));
    }
}

/// Encodes a GOAWAY frame (RFC 9113, 6.8).
fn goaway(last_stream: u32, reason: Reason) -> [u8; 17] {
    const TYPE: u8 = 7;
    let mut frame = [0; 17];
    frame[2] = 8;
    frame[3] = TYPE;
    frame[9..13].copy_from_slice(&last_stream.to_be_bytes());
    frame[13..].copy_from_slice(&u32::from(reason).to_be_bytes());
    frame
}

/// PINGs to an idle client.
struct Ping {
    /// `None` only if h2's single handle was taken before.
    pings: Option<PingPong>,
    deadline: Deadline,
    is_outstanding: bool,
}

impl Ping {
    fn new(pings: Option<PingPong>, clock: &Rc<Clock>) -> Self {
        let deadline = clock.deadline();
        deadline.set(PING.0);
        Self {
            pings,
            deadline,
            is_outstanding: false,
        }
    }

    /// Becomes ready when the response to a PING is late.
    fn poll(&mut self, cx: &mut Context<'_>, activity: &Activity) -> Poll<()> {
        let Some(pings) = &mut self.pings else {
            return Poll::Pending;
        };
        if self.is_outstanding && pings.poll_pong(cx).is_ready() {
            self.is_outstanding = false;
            self.deadline.set(PING.0);
        }
        while self.deadline.poll_due(cx).is_ready() {
            if self.is_outstanding {
                return Poll::Ready(());
            }
            let quiet = activity.quiet_for();
            if quiet < PING.0 {
                self.deadline.set(PING.0 - quiet);
                continue;
            }
            // Fails only if the connection is about to end.
            let _ = pings.send_ping(h2::Ping::opaque());
            self.is_outstanding = true;
            self.deadline.set(PING.1);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_goaway_frames() {
        let frame = goaway(5, Reason::ENHANCE_YOUR_CALM);
        assert_eq!(frame, [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 11]);
    }

    #[test]
    fn window_of_a_connection_has_room_for_its_streams() {
        const MIB: u32 = 1024 * 1024;
        for (streams, stream, connection, expected) in [
            (100, None, None, 25 * MIB),
            (0, None, None, MIB / 4),
            (u32::MAX, None, None, MAX_WINDOW),
            (100, Some(MIB / 8), None, 100 * MIB / 8),
            (1000, Some(4 * MIB), None, AMPLE_WINDOW),
            (u32::MAX, Some(65_535), None, AMPLE_WINDOW),
            (1, Some(65_535), None, 65_535),
            (100, Some(MIB), Some(2 * MIB), 2 * MIB),
            (100, None, Some(65_535), 65_535),
        ] {
            let limits = Limits {
                max_streams: streams,
                stream_window: stream,
                connection_window: connection,
                ..Limits::default()
            };
            let window = connection_window(&limits);
            assert_eq!(window, expected, "{streams} {stream:?} {connection:?}");
            let initial = windows(&limits).initial;
            assert_eq!(initial, stream.unwrap_or(WINDOWS.initial));
        }
    }

    #[test]
    fn cancellations_leak_over_time() {
        let (cancelled, clock) = (Cancellations::default(), Clock::new());
        for _ in 0..CANCELLATIONS {
            cancelled.count(&clock);
        }
        assert_eq!(cancelled.excess(), 0);
        cancelled.count(&clock);
        assert_eq!(cancelled.excess(), 1);
        clock.advance(1000);
        cancelled.count(&clock);
        assert_eq!(cancelled.excess(), 0);
    }
}
