//! What a connection or stream waits for while the bodies of a request and its response are under way.

use super::{Activity, BodyPace, Phase};

impl Activity {
    /// Records that the proxy waits for the request body.
    pub(crate) fn on_body_awaited(&self) {
        if self.phase.get() == Phase::Backend && self.pace.get() != BodyPace::Any {
            self.enter(Phase::RequestBody);
        }
    }

    /// Returns the number of bytes received of the current request body.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Records that the request has a body that the client has not sent yet.
    pub(crate) fn on_body_begin(&self) {
        self.body_open.set(true);
        self.is_body_too_large.set(false);
    }

    /// Records that the request body exceeds the limit of its route. The client may still be sending it.
    pub(crate) fn on_body_too_large(&self) {
        self.is_body_too_large.set(true);
    }

    /// Reports whether the last request body exceeds the limit of its route.
    pub(crate) fn is_body_too_large(&self) -> bool {
        self.is_body_too_large.get()
    }

    /// Records that the request body has ended, complete or not.
    pub(crate) fn on_body_end(&self) {
        self.body_open.set(false);
        self.on_body(0);
    }

    /// Reports whether the client may still be sending the last request body.
    pub(crate) fn is_body_open(&self) -> bool {
        self.body_open.get()
    }

    /// Records that a part of the request body arrived.
    pub(crate) fn on_body(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        if self.phase.get() == Phase::RequestBody {
            self.enter(Phase::Backend);
        }
    }

    /// Records that a part of the response is ready for the client. A connection observes when the
    /// client reads it. A stream observes only that h2 asks for more.
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

    /// Records that the backend has sent a part of the response of which nothing may be ready for the client yet.
    pub(crate) fn on_backend(&self) {
        if self.phase.get() == Phase::Backend {
            self.restart();
        }
    }

    /// Records that the client's side asks for more of the response.
    pub(crate) fn on_response_awaited(&self) {
        if self.multiplexed && self.phase.get() == Phase::Write {
            self.enter(Phase::Backend);
        }
    }
}
