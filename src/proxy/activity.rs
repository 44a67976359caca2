//! What a connection or stream is waiting for, and the one deadline that follows from it. Every step of a request only
//! moves that deadline; whoever drives the connection ends it when it is due. Knows nothing of sockets or messages.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

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
}

/// The state of one connection, or of one stream of a connection that has many.
pub(crate) struct Activity {
    deadline: Deadline,
    limits: Rc<Limits>,
    phase: Cell<Phase>,
    requests: Cell<u32>,
    received: Cell<u64>,
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
            multiplexed,
        };
        activity.deadline.set(limits.header_timeout);
        Rc::new(activity)
    }

    /// A stream whose request has just arrived.
    pub(crate) fn stream(clock: &Rc<Clock>, limits: &Rc<Limits>) -> Rc<Self> {
        let activity = Self::connection(clock, limits, true);
        activity.enter(Phase::Backend);
        activity
    }

    #[cfg(test)]
    fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Ready when what is awaited has not come in time.
    pub(crate) fn poll_due(&self, cx: &Context<'_>) -> Poll<Phase> {
        self.deadline.poll_due(cx).map(|()| self.phase.get())
    }

    /// Gives what is awaited its full time again.
    pub(crate) fn restart(&self) {
        self.enter(self.phase.get());
    }

    /// Bytes came from the client.
    pub(crate) fn on_read(&self) {
        match self.phase.get() {
            Phase::Idle if !self.multiplexed => self.enter(Phase::Head),
            Phase::Backend | Phase::RequestBody => self.restart(),
            Phase::Head | Phase::Idle | Phase::Write => {}
        }
    }

    /// The client took bytes.
    pub(crate) fn on_written(&self) {
        match self.phase.get() {
            Phase::Write if self.requests.get() == 0 => self.enter(Phase::Idle),
            Phase::Write | Phase::Backend => self.enter(Phase::Backend),
            Phase::Head | Phase::Idle | Phase::RequestBody => {}
        }
    }

    /// The client takes nothing more for now.
    pub(crate) fn on_write_blocked(&self) {
        if self.phase.get() != Phase::Write {
            self.enter(Phase::Write);
        }
    }

    /// A request's head is complete.
    pub(crate) fn on_request(&self) {
        self.requests.set(self.requests.get() + 1);
        self.received.set(0);
        self.enter(Phase::Backend);
    }

    /// A request and its response are complete or given up.
    pub(crate) fn on_request_end(&self) {
        self.requests.set(self.requests.get() - 1);
        if self.requests.get() == 0 && self.phase.get() != Phase::Write {
            self.enter(Phase::Idle);
        }
    }

    /// The request's body is waited for.
    pub(crate) fn on_body_awaited(&self) {
        if self.phase.get() == Phase::Backend {
            self.enter(Phase::RequestBody);
        }
    }

    /// Bytes of the current request's body so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// A part of the request's body, or its end, has come.
    pub(crate) fn on_body(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        if self.phase.get() == Phase::RequestBody {
            self.enter(Phase::Backend);
        }
    }

    /// A part of the response is there for the client. Streams are not told when it is taken, only when they are asked
    /// for more; connections are.
    pub(crate) fn on_response(&self) {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(multiplexed: bool) -> Rc<Activity> {
        Activity::connection(&Clock::new(), &Rc::default(), multiplexed)
    }

    #[test]
    fn a_connection_goes_from_head_to_idle_and_back() {
        let connection = activity(false);
        assert_eq!(connection.phase(), Phase::Head);
        connection.on_read();
        assert_eq!(connection.phase(), Phase::Head);
        connection.on_request();
        connection.on_body_awaited();
        assert_eq!(connection.phase(), Phase::RequestBody);
        connection.on_body(1);
        connection.on_response();
        assert_eq!(connection.phase(), Phase::Backend);
        connection.on_request_end();
        assert_eq!(connection.phase(), Phase::Idle);
        connection.on_read();
        assert_eq!(connection.phase(), Phase::Head);
    }

    #[test]
    fn a_blocked_write_outlasts_the_end_of_the_request() {
        let connection = activity(false);
        connection.on_request();
        connection.on_write_blocked();
        connection.on_request_end();
        assert_eq!(connection.phase(), Phase::Write);
        connection.on_written();
        assert_eq!(connection.phase(), Phase::Idle);
    }

    #[test]
    fn a_stream_waits_for_its_client_between_parts_of_the_response() {
        let stream = activity(true);
        stream.on_request();
        stream.on_response();
        assert_eq!(stream.phase(), Phase::Write);
        stream.on_response_awaited();
        assert_eq!(stream.phase(), Phase::Backend);
    }
}
