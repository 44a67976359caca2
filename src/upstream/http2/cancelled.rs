//! How many streams of a connection are given up before the end of their responses. h2 remembers a limited number of them for a
//! second; late frames of others are errors, and too many errors end the connection for all of its requests.

use std::cell::Cell;

/// Number of given-up streams in a period after which a connection gets no new requests.
pub(super) const MANY: usize = 512;
/// Length of a period in milliseconds: more than the second for which h2 remembers streams, with a tick of the clock.
const PERIOD: u64 = 1500;

/// The streams of a connection that were given up.
#[derive(Default)]
pub(super) struct Cancelled {
    /// Begin of the period.
    begin: Cell<u64>,
    /// Number in the period.
    count: Cell<usize>,
    are_many: Cell<bool>,
}

impl Cancelled {
    /// Counts a stream, at `now` in milliseconds.
    pub(super) fn count(&self, now: u64) {
        if now >= self.begin.get() + PERIOD {
            self.begin.set(now);
            self.count.set(0);
        }
        self.count.set(self.count.get() + 1);
        if self.count.get() >= MANY {
            self.are_many.set(true);
        }
    }

    /// Reports whether there were so many in one period that the connection must get no new requests.
    pub(super) fn are_many(&self) -> bool {
        self.are_many.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_at_a_time_may_go_on_and_many_may_not() {
        let cancelled = Cancelled::default();
        for period in 0..20 {
            (1..MANY).for_each(|_| cancelled.count(period * PERIOD));
        }
        assert!(!cancelled.are_many());
        cancelled.count(20 * PERIOD - 1);
        assert!(cancelled.are_many());
        cancelled.count(30 * PERIOD);
        assert!(cancelled.are_many(), "what is open may still be given up");
    }
}
