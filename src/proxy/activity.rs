//! What a connection or stream waits for, and the deadlines that follow from it. Every step of a request only moves a
//! deadline; the task that drives the connection or stream ends it when it is due.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::{Clock, Deadline};
use crate::settings::Limits;
use crate::telemetry::metrics::TimeoutKind;

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first byte of a connection, or the rest of a request's head.
    Head,
    /// The next request of a connection. A connection that carries one at a time is due when it can be parked.
    Idle,
    /// The client's next bytes of a request body.
    RequestBody,
    /// The backend.
    Backend,
    /// The client, to take what is written.
    Write,
    /// The end of an exchange that its route limits.
    Exchange,
}

/// Whether a client that sends nothing of its request body stalls its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPace {
    /// It does: the response does not begin before the body has ended, or need not.
    Steady,
    /// It does until the response has begun; from then on both directions are streams.
    SteadyUntilResponse,
    /// It does not: both directions are streams from the beginning, as in gRPC.
    Any,
}

/// The state of one connection, or of one stream of a connection that has many.
pub(crate) struct Activity {
    deadline: Deadline,
    limits: Rc<Limits>,
    phase: Cell<Phase>,
    requests: Cell<u32>,
    received: Cell<u64>,
    /// The clock's time when the client's last bytes came.
    last_read: Cell<u64>,
    pace: Cell<BodyPace>,
    body_open: Cell<bool>,
    ended_by: Cell<Option<TimeoutKind>>,
    expiry: RefCell<Option<Pin<Box<Sleep>>>>,
    multiplexed: bool,
}

impl Activity {
    /// A connection that has just been opened. With `multiplexed` its requests have activities of their own.
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
            pace: Cell::new(BodyPace::Steady),
            body_open: Cell::new(false),
            ended_by: Cell::new(None),
            expiry: RefCell::new(None),
            multiplexed,
        };
        activity.deadline.set(limits.header_timeout);
        Rc::new(activity)
    }

    /// A stream whose request has just arrived.
    pub(crate) fn stream(clock: &Rc<Clock>, limits: &Rc<Limits>, pace: BodyPace) -> Rc<Self> {
        let activity = Self::connection(clock, limits, true);
        activity.pace.set(pace);
        activity.enter(Phase::Backend);
        activity
    }

    /// Ready when what is awaited has not come in time.
    pub(crate) fn poll_due(&self, cx: &mut Context<'_>) -> Poll<Phase> {
        let mut expiry = self.expiry.borrow_mut();
        let expired = expiry
            .as_mut()
            .is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready());
        if expired {
            *expiry = None;
            self.phase.set(Phase::Exchange);
            // Due from now on, for the connection too.
            self.deadline.set(Duration::ZERO);
        }
        self.deadline.poll_due(cx).map(|()| {
            let phase = self.phase.get();
            self.ended_by.set(phase.timeout());
            phase
        })
    }

    /// Bounds the whole exchange, whatever else moves: until its last byte, it is due at this time.
    pub(crate) fn expire_at(&self, time: Option<Instant>) {
        self.expiry
            .replace(time.map(|time| Box::pin(sleep_until(time))));
    }

    /// The timeout that ended the exchange, if one did.
    pub(crate) fn ended_by(&self) -> Option<TimeoutKind> {
        self.ended_by.get()
    }

    /// The connection of this stream has ended: by this timeout, if it was one.
    pub(crate) fn on_connection_end(&self, ended_by: Option<TimeoutKind>) {
        if self.ended_by.get().is_none() {
            self.ended_by.set(ended_by);
        }
    }

    /// Gives what is awaited its full time again.
    pub(crate) fn restart(&self) {
        self.enter(self.phase.get());
    }

    /// Whether the client has yet to take what was written to it.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.phase.get() == Phase::Write
    }

    /// Requests that are not complete.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// For how long the client has sent nothing.
    pub(crate) fn quiet_for(&self) -> Duration {
        let now = self.deadline.clock().now();
        Duration::from_millis(now.saturating_sub(self.last_read.get()))
    }

    /// Bytes came from the client.
    pub(crate) fn on_read(&self) {
        self.last_read.set(self.deadline.clock().now());
        match self.phase.get() {
            Phase::Idle if !self.multiplexed => self.enter(Phase::Head),
            Phase::Backend | Phase::RequestBody => self.restart(),
            Phase::Head | Phase::Idle | Phase::Write | Phase::Exchange => {}
        }
    }

    /// The client took bytes.
    pub(crate) fn on_written(&self) {
        match self.phase.get() {
            Phase::Write => self.leave_write(),
            Phase::Backend => self.restart(),
            Phase::Head | Phase::Idle | Phase::RequestBody | Phase::Exchange => {}
        }
    }

    /// The client took everything that was there for it.
    pub(crate) fn on_flushed(&self) {
        if self.phase.get() == Phase::Write {
            self.leave_write();
        }
        if self.requests.get() == 0 && self.expiry.borrow().is_some() {
            self.expire_at(None);
        }
    }

    fn leave_write(&self) {
        self.enter(if self.requests.get() == 0 {
            Phase::Idle
        } else {
            Phase::Backend
        });
    }

    /// The client takes nothing more for now.
    pub(crate) fn on_write_blocked(&self) {
        if !matches!(self.phase.get(), Phase::Write | Phase::Exchange) {
            self.enter(Phase::Write);
        }
    }

    /// A request's head is complete.
    pub(crate) fn on_request(&self) {
        self.requests.set(self.requests.get() + 1);
        self.received.set(0);
        self.body_open.set(false);
        self.ended_by.set(None);
        if !self.multiplexed {
            self.expire_at(None);
        }
        self.enter(Phase::Backend);
    }

    /// A request and its response are complete or given up.
    pub(crate) fn on_request_end(&self) {
        self.requests.set(self.requests.get().saturating_sub(1));
        if self.requests.get() == 0 && !matches!(self.phase.get(), Phase::Write | Phase::Exchange) {
            self.enter(Phase::Idle);
        }
    }

    /// The request's body is waited for.
    pub(crate) fn on_body_awaited(&self) {
        if self.phase.get() == Phase::Backend && self.pace.get() != BodyPace::Any {
            self.enter(Phase::RequestBody);
        }
    }

    /// Bytes of the current request's body so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// The request has a body that the client has yet to send.
    pub(crate) fn on_body_begin(&self) {
        self.body_open.set(true);
    }

    /// The request's body has ended, whole or not.
    pub(crate) fn on_body_end(&self) {
        self.body_open.set(false);
        self.on_body(0);
    }

    /// Whether the client may still be sending the last request's body.
    pub(crate) fn is_body_open(&self) -> bool {
        self.body_open.get()
    }

    /// A part of the request's body has come.
    pub(crate) fn on_body(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        if self.phase.get() == Phase::RequestBody {
            self.enter(Phase::Backend);
        }
    }

    /// A part of the response is there for the client. A connection notices when the client takes it; a stream only
    /// when it asks for more.
    pub(crate) fn on_response(&self) {
        if self.pace.get() == BodyPace::SteadyUntilResponse {
            self.pace.set(BodyPace::Any);
        }
        self.enter(if self.multiplexed {
            Phase::Write
        } else {
            Phase::Backend
        });
    }

    /// The client's side asks for more of the response.
    pub(crate) fn on_response_awaited(&self) {
        if self.multiplexed && self.phase.get() == Phase::Write {
            self.enter(Phase::Backend);
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.deadline.set(match phase {
            Phase::Head => self.limits.header_timeout,
            Phase::Idle if self.multiplexed => self.limits.keep_alive_timeout,
            Phase::Idle => self.limits.park_after,
            Phase::RequestBody => self.limits.body_timeout,
            Phase::Backend => self.limits.stream_idle_timeout,
            Phase::Write => self.limits.write_timeout,
            Phase::Exchange => Duration::ZERO,
        });
    }

    /// Parks an idle connection: it has the rest of its keep-alive time from here on.
    pub(crate) fn on_park(&self) {
        self.deadline.set(
            self.limits
                .keep_alive_timeout
                .saturating_sub(self.limits.park_after),
        );
    }
}

impl Phase {
    /// The name of a timeout in this phase; an idle connection simply ends.
    pub(crate) fn timeout(self) -> Option<TimeoutKind> {
        match self {
            Self::Head => Some(TimeoutKind::Header),
            Self::Idle => None,
            Self::RequestBody => Some(TimeoutKind::Body),
            Self::Backend => Some(TimeoutKind::StreamIdle),
            Self::Write => Some(TimeoutKind::Write),
            Self::Exchange => Some(TimeoutKind::Request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(multiplexed: bool) -> Rc<Activity> {
        Activity::connection(&Clock::new(), &Rc::default(), multiplexed)
    }

    fn stream(pace: BodyPace) -> Rc<Activity> {
        let stream = Activity::stream(&Clock::new(), &Rc::default(), pace);
        stream.on_request();
        stream
    }

    #[test]
    fn goes_from_head_to_idle_and_back() {
        let connection = connection(false);
        assert_eq!(connection.phase.get(), Phase::Head);
        connection.on_read();
        assert_eq!(connection.phase.get(), Phase::Head);
        connection.on_request();
        connection.on_body_awaited();
        assert_eq!(connection.phase.get(), Phase::RequestBody);
        connection.on_body(1);
        connection.on_response();
        assert_eq!(connection.phase.get(), Phase::Backend);
        connection.on_request_end();
        assert_eq!(connection.phase.get(), Phase::Idle);
        connection.on_read();
        assert_eq!(connection.phase.get(), Phase::Head);
    }

    #[test]
    fn stays_in_a_blocked_write_past_the_end_of_the_request() {
        let connection = connection(false);
        connection.on_request();
        connection.on_write_blocked();
        connection.on_request_end();
        assert_eq!(connection.phase.get(), Phase::Write);
        connection.on_written();
        assert_eq!(connection.phase.get(), Phase::Idle);
    }

    #[test]
    fn leaves_a_blocked_write_when_it_is_flushed() {
        let connection = connection(false);
        connection.on_request();
        connection.on_write_blocked();
        connection.on_flushed();
        assert_eq!(connection.phase.get(), Phase::Backend);
        connection.on_request_end();
        connection.on_write_blocked();
        connection.on_flushed();
        assert_eq!(connection.phase.get(), Phase::Idle);
    }

    #[test]
    fn waits_for_the_client_between_parts_of_a_streams_response() {
        let stream = stream(BodyPace::Steady);
        stream.on_response();
        assert_eq!(stream.phase.get(), Phase::Write);
        stream.on_response_awaited();
        assert_eq!(stream.phase.get(), Phase::Backend);
    }

    #[test]
    fn counts_a_silent_body_against_the_client_by_its_pace() {
        let paces = [
            (BodyPace::Steady, [Phase::RequestBody, Phase::RequestBody]),
            (
                BodyPace::SteadyUntilResponse,
                [Phase::RequestBody, Phase::Backend],
            ),
            (BodyPace::Any, [Phase::Backend, Phase::Backend]),
        ];
        for (pace, [before, behind]) in paces {
            let stream = stream(pace);
            stream.on_body_awaited();
            assert_eq!(stream.phase.get(), before, "{pace:?}");
            stream.on_response();
            stream.on_response_awaited();
            stream.on_body_awaited();
            assert_eq!(stream.phase.get(), behind, "{pace:?}");
        }
    }

    #[tokio::test]
    async fn expires_whatever_else_moves() {
        let stream = stream(BodyPace::Steady);
        stream.expire_at(Some(Instant::now()));
        let due = std::future::poll_fn(|cx| {
            stream.on_response();
            stream.poll_due(cx)
        });
        assert_eq!(due.await, Phase::Exchange);
        assert_eq!(stream.ended_by(), Some(TimeoutKind::Request));
    }
}
