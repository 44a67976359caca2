//! What a connection waits for while its client does not read what is written to it.

use super::{Activity, Phase};

impl Activity {
    /// Begins the last try of a write, if its timeout has passed. It fills the buffer of the socket to the last byte, so that
    /// there is room at the next time only if the client has read. Returns false if a last try has found no room.
    pub(crate) fn begin_last_write(&self, passed: Phase) -> bool {
        passed == Phase::Write && !self.is_last_write.replace(true)
    }

    /// Reports whether writes belong to the last try, which ends when one is blocked.
    pub(crate) fn is_last_write(&self) -> bool {
        self.is_last_write.get()
    }

    /// Reports whether written bytes are waiting for the client to read them.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.phase.get() == Phase::Write
    }

    /// Reports whether a write was blocked at any time of the last write timeout.
    pub(crate) fn was_write_blocked(&self) -> bool {
        let recently = self
            .deadline
            .clock()
            .now()
            .saturating_sub(self.limits.write_timeout.as_millis() as u64);
        self.is_write_blocked() || self.unblocked_at.get().is_some_and(|time| time >= recently)
    }

    /// Records that the client read bytes.
    pub(crate) fn on_written(&self) {
        match self.phase.get() {
            Phase::Write => self.end_write(),
            Phase::Backend => self.restart(),
            Phase::Head
            | Phase::Idle
            | Phase::RequestBody
            | Phase::Tunnel
            | Phase::Exchange
            | Phase::Evicted => {}
        }
    }

    /// Records that the client read all written bytes.
    pub(crate) fn on_flushed(&self) {
        self.unwritten.clear();
        if self.phase.get() == Phase::Write {
            self.end_write();
        }
        if self.requests.get() == 0 && self.expiry.borrow().is_some() {
            self.expire_at(None);
        }
    }

    fn end_write(&self) {
        if self.is_last_write.get() {
            self.ended_by.set(None);
        }
        self.unblocked_at.set(Some(self.deadline.clock().now()));
        self.enter(if self.requests.get() == 0 {
            Phase::Idle
        } else {
            Phase::Backend
        });
    }

    /// Records that the client's window or socket buffer is full.
    pub(crate) fn on_write_blocked(&self) {
        if !matches!(self.phase.get(), Phase::Write | Phase::Exchange) {
            self.is_last_write.set(false);
            self.enter(Phase::Write);
        }
    }
}
