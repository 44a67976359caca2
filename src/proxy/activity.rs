//! What a connection or stream waits for, and its deadlines. Each step of a request only moves a
//! deadline; the task that drives the connection or stream ends it when the deadline passes.

mod bodies;
#[cfg(test)]
mod tests;
mod writes;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::unwritten::Unwritten;
use crate::runtime::clock::{Clock, Deadline};
use crate::settings::Limits;
use crate::telemetry::metrics::TimeoutKind;

/// Time without a byte after which a client that has sent a part of its first request is idle.
const PARTIAL_HEAD: Duration = Duration::from_secs(1);

/// Time without a byte after which a tunnel is idle, so that a new client may get its place.
const QUIET_TUNNEL: Duration = Duration::from_secs(5);

/// What a connection or stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first byte of a connection, or the rest of a request head.
    Head,
    /// The next request of a connection. For HTTP/1 the deadline is the time to park the
    /// connection.
    Idle,
    /// More bytes of a request body from the client.
    RequestBody,
    /// The backend.
    Backend,
    /// The client to read written bytes.
    Write,
    /// More bytes of either side of a connection that is forwarded as it is.
    Tunnel,
    /// The end of an exchange that is limited by its route's timeout.
    Exchange,
    /// Nothing: the connection is idle, and a new client needs its place.
    Evicted,
}

/// Whether a client that pauses in its request body stalls the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPace {
    /// Yes: the response begins after the body has ended.
    Steady,
    /// Yes until the response begins; after that both directions are streams.
    SteadyUntilResponse,
    /// No: both directions are streams from the beginning, as in gRPC.
    Any,
}

/// A list of connections.
pub(super) trait Registry {
    /// Removes the entry of a connection.
    fn remove(&self, key: usize);
}

/// The entry of a connection in a list, removed on drop.
pub(super) struct Registration {
    pub(super) registry: Rc<dyn Registry>,
    pub(super) key: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.remove(self.key);
    }
}

/// State of one connection, or of one stream of an HTTP/2 connection.
pub(crate) struct Activity {
    deadline: Deadline,
    limits: Rc<Limits>,
    phase: Cell<Phase>,
    requests: Cell<u32>,
    received: Cell<u64>,
    /// Clock time of the last bytes from the client.
    last_read: Cell<u64>,
    /// Whether the client has sent anything.
    has_read: Cell<bool>,
    /// Bytes of the head that arrives, or has arrived last.
    head: Cell<usize>,
    pace: Cell<BodyPace>,
    body_open: Cell<bool>,
    is_body_too_large: Cell<bool>,
    /// Whether writes do not wait until the socket is reported to be writable.
    is_last_write: Cell<bool>,
    /// Clock time at which the last blocked write could go on.
    unblocked_at: Cell<Option<u64>>,
    ended_by: Cell<Option<TimeoutKind>>,
    /// What the policies of the request say instead of the limits of the connection.
    stream_idle: Cell<Option<Duration>>,
    /// Whether the time of the backend does not pass.
    is_paused: Cell<bool>,
    expiry: RefCell<Option<Pin<Box<Sleep>>>>,
    /// Of an HTTP/1.1 connection.
    pub(super) unwritten: Unwritten,
    pub(super) multiplexed: bool,
    evicted: Cell<bool>,
    registration: Cell<Option<Registration>>,
}

impl Activity {
    /// Creates the state of a new connection. With `multiplexed`, each request has its own
    /// `Activity`.
    pub(crate) fn connection(
        clock: &Rc<Clock>,
        limits: &Rc<Limits>,
        multiplexed: bool,
    ) -> Rc<Self> {
        let activity = Self {
            deadline: clock.deadline(),
            limits: limits.clone(),
            phase: Cell::new(Phase::Head),
            requests: Cell::new(0),
            received: Cell::new(0),
            last_read: Cell::new(clock.now()),
            has_read: Cell::new(false),
            head: Cell::new(0),
            pace: Cell::new(BodyPace::Steady),
            body_open: Cell::new(false),
            is_body_too_large: Cell::new(false),
            is_last_write: Cell::new(false),
            unblocked_at: Cell::new(None),
            ended_by: Cell::new(None),
            stream_idle: Cell::new(None),
            is_paused: Cell::new(false),
            expiry: RefCell::new(None),
            unwritten: Unwritten::default(),
            multiplexed,
            evicted: Cell::new(false),
            registration: Cell::default(),
        };
        activity.deadline.set(limits.header_timeout);
        Rc::new(activity)
    }

    /// Creates the state of a TLS handshake, which another timeout limits.
    pub(crate) fn handshake(clock: &Rc<Clock>, limits: &Rc<Limits>) -> Rc<Self> {
        let activity = Self::connection(clock, limits, false);
        activity.deadline.clear();
        activity
    }

    /// Creates the state of a connection that is forwarded as it is.
    pub(crate) fn tunnel(clock: &Rc<Clock>, limits: &Rc<Limits>) -> Rc<Self> {
        let activity = Self::connection(clock, limits, false);
        activity.enter(Phase::Tunnel);
        activity
    }

    /// Records that bytes of a tunnel have moved, in either direction.
    pub(crate) fn on_moved(&self) {
        self.last_read.set(self.deadline.clock().now());
        self.enter(Phase::Tunnel);
    }

    /// Creates the state of a stream whose request has arrived.
    pub(crate) fn stream(clock: &Rc<Clock>, limits: &Rc<Limits>, pace: BodyPace) -> Rc<Self> {
        let activity = Self::connection(clock, limits, true);
        activity.pace.set(pace);
        activity.enter(Phase::Backend);
        activity
    }

    /// Becomes ready when the deadline has passed. Returns the phase that timed out.
    pub(crate) fn poll_due(&self, cx: &mut Context<'_>) -> Poll<Phase> {
        let mut expiry = self.expiry.borrow_mut();
        let expired = expiry
            .as_mut()
            .is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready());
        if expired {
            *expiry = None;
            self.phase.set(Phase::Exchange);
            // Keeps the deadline expired, so that the driver of the connection sees it too.
            self.deadline.set(Duration::ZERO);
        }
        self.deadline.poll_due(cx).map(|()| {
            if self.evicted.take() {
                self.phase.set(Phase::Evicted);
            }
            let phase = self.phase.get();
            self.ended_by.set(phase.timeout());
            phase
        })
    }

    /// Remembers the entry of this connection among those of its worker.
    pub(super) fn set_registration(&self, registration: Registration) {
        self.registration.set(Some(registration));
    }

    /// Returns the time since which this connection is idle: no request is in progress, and none is
    /// arriving.
    pub(super) fn idle_since(&self) -> Option<u64> {
        let is_idle = match self.phase.get() {
            Phase::Idle => true,
            Phase::Head => !self.has_read.get() || self.quiet_for() >= PARTIAL_HEAD,
            Phase::Tunnel => self.quiet_for() >= QUIET_TUNNEL,
            _ => false,
        };
        (is_idle && self.requests.get() == 0 && !self.evicted.get()).then(|| self.last_read.get())
    }

    /// Makes the connection close, if it is idle.
    pub(super) fn evict(&self) -> bool {
        let is_idle = self.idle_since().is_some();
        if is_idle {
            self.evicted.set(true);
            self.deadline.expire();
        }
        is_idle
    }

    /// Reports whether the connection must close.
    #[cfg(test)]
    pub(super) fn is_evicted(&self) -> bool {
        self.evicted.get()
    }

    /// Sets a deadline for the whole exchange up to its last byte. No other step moves it.
    pub(crate) fn expire_at(&self, time: Option<Instant>) {
        self.expiry
            .replace(time.map(|time| Box::pin(sleep_until(time))));
    }

    /// Returns the timeout that ended the exchange, if any.
    pub(crate) fn ended_by(&self) -> Option<TimeoutKind> {
        self.ended_by.get()
    }

    /// Records that the connection of this stream has ended, and the timeout that ended it, if any.
    pub(crate) fn on_connection_end(&self, ended_by: Option<TimeoutKind>) {
        if self.ended_by.get().is_none() {
            self.ended_by.set(ended_by);
        }
    }

    /// Restarts the current timeout.
    pub(crate) fn restart(&self) {
        self.enter(self.phase.get());
    }

    /// Restarts the current timeout after it has passed.
    pub(crate) fn extend(&self) {
        self.ended_by.set(None);
        self.restart();
    }

    /// Waits for a backend again, even if a deadline has passed, and no longer limits the exchange as a whole.
    pub(crate) fn await_backend(&self) {
        self.expire_at(None);
        self.ended_by.set(None);
        self.enter(Phase::Backend);
    }

    /// Returns the number of incomplete requests.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Returns the time since the last bytes from the client.
    pub(crate) fn quiet_for(&self) -> Duration {
        let now = self.deadline.clock().now();
        Duration::from_millis(now.saturating_sub(self.last_read.get()))
    }

    /// Records that this many bytes arrived from the client.
    pub(crate) fn on_read(&self, bytes: usize) {
        self.last_read.set(self.deadline.clock().now());
        self.has_read.set(true);
        match self.phase.get() {
            Phase::Head => self.head.set(self.head.get() + bytes),
            Phase::Idle if !self.multiplexed => {
                self.head.set(bytes);
                self.enter(Phase::Head);
            }
            Phase::Backend | Phase::RequestBody => self.restart(),
            Phase::Idle | Phase::Write | Phase::Tunnel | Phase::Exchange | Phase::Evicted => {}
        }
    }

    /// Returns the bytes of a head that is not complete.
    pub(crate) fn unfinished_head(&self) -> usize {
        match self.phase.get() {
            Phase::Head => self.head.get(),
            _ => 0,
        }
    }

    /// Records that a request head is complete.
    pub(crate) fn on_request(&self) {
        self.requests.set(self.requests.get() + 1);
        // The request has come before the connection could close.
        self.evicted.set(false);
        self.received.set(0);
        self.body_open.set(false);
        self.ended_by.set(None);
        self.stream_idle.set(None);
        if !self.multiplexed {
            self.expire_at(None);
        }
        self.enter(Phase::Backend);
    }

    /// Records that a request and its response are complete or aborted.
    pub(crate) fn on_request_end(&self) {
        self.requests.set(self.requests.get().saturating_sub(1));
        if self.requests.get() == 0 && !matches!(self.phase.get(), Phase::Write | Phase::Exchange) {
            self.enter(Phase::Idle);
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        if phase == Phase::Backend && self.is_paused.get() {
            return self.deadline.clear();
        }
        self.deadline.set(match phase {
            Phase::Head => self.limits.header_timeout,
            Phase::Idle if self.multiplexed => self.limits.keep_alive_timeout,
            Phase::Idle => {
                let limits = &self.limits;
                limits.idle_buffer_timeout.min(limits.keep_alive_timeout)
            }
            Phase::RequestBody => self.limits.body_timeout,
            Phase::Backend => (self.stream_idle.get()).unwrap_or(self.limits.stream_idle_timeout),
            Phase::Write => self.limits.write_timeout,
            Phase::Tunnel => self.limits.tunnel_idle_timeout,
            Phase::Exchange | Phase::Evicted => Duration::ZERO,
        });
    }

    /// Sets the time after which the exchange, or its tunnel, ends if no byte moves.
    pub(crate) fn idle_for(&self, time: Duration) {
        self.stream_idle.set(Some(time));
        self.restart();
    }

    /// Returns the time after which a tunnel of the last request ends if no byte moves.
    pub(crate) fn tunnel_idle_timeout(&self) -> Duration {
        let timeout = self.stream_idle.get();
        timeout.unwrap_or(self.limits.tunnel_idle_timeout)
    }

    fn pause_backend(&self, is_paused: bool) {
        self.is_paused.set(is_paused);
        if self.phase.get() == Phase::Backend {
            self.restart();
        }
    }

    /// Waits for nothing but an eviction, on an idle connection that ends soon.
    pub(crate) fn await_eviction(&self) {
        self.deadline.clear();
    }

    /// Parks an idle connection: the rest of the keep-alive timeout starts now.
    pub(crate) fn on_park(&self) {
        self.deadline.set(
            self.limits
                .keep_alive_timeout
                .saturating_sub(self.limits.idle_buffer_timeout),
        );
    }
}

/// While it exists, the time of the backend does not pass: another server owes an answer, and has a limit of its own. Afterwards
/// that time restarts. A request has one at most.
pub(crate) struct BackendPause(Rc<Activity>);

impl BackendPause {
    /// Begins a pause.
    pub(crate) fn new(activity: &Rc<Activity>) -> Self {
        activity.pause_backend(true);
        Self(activity.clone())
    }
}

impl Drop for BackendPause {
    fn drop(&mut self) {
        self.0.pause_backend(false);
    }
}

impl Phase {
    /// Returns the kind of timeout in this phase; `None` for an idle connection, which closes
    /// without one, or for a new client.
    pub(crate) fn timeout(self) -> Option<TimeoutKind> {
        match self {
            Self::Head => Some(TimeoutKind::Header),
            Self::Idle | Self::Evicted => None,
            Self::RequestBody => Some(TimeoutKind::Body),
            Self::Backend => Some(TimeoutKind::StreamIdle),
            Self::Write => Some(TimeoutKind::Write),
            Self::Tunnel => Some(TimeoutKind::TunnelIdle),
            Self::Exchange => Some(TimeoutKind::Request),
        }
    }
}
