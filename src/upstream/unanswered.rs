//! Notices that the machine of a backend has vanished when a tunnel sends to it, from which no other timeout may be expected. A
//! backend that is there and does not read what it is sent acknowledges that it has no room for it: it may do so for as long as it likes.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::runtime::clock::{Clock, Deadline};

/// Time after something was sent, without a byte of the backend, before the kernel is asked, and between questions.
const CHECK: Duration = Duration::from_secs(5);
/// Time without any acknowledgement after which the machine has vanished, from the first question that finds none, in milliseconds.
const UNACKNOWLEDGED: u64 = 15_000;
/// Number of times that the kernel has sent the same in vain. A single one may be under way.
const IN_VAIN: u8 = 2;

/// What was sent on a connection and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Number of bytes, also of those that the peer has no room for.
    pub queued: u32,
    /// How often in a row the kernel has sent the first of them, or has asked for room, without a response.
    pub retransmits: u8,
}

/// The acknowledgements of the backend of a tunnel.
pub struct Unanswered {
    deadline: Deadline,
    is_set: Cell<bool>,
    /// Bytes that were sent to the backend, and that came from it.
    moved: Cell<(u64, u64)>,
    /// Bytes that the backend had acknowledged at the last question, or fewer, since TLS sends more than are counted.
    acknowledged: Cell<u64>,
    /// Time of the first question since which nothing is acknowledged and the kernel sends the same in vain, in milliseconds.
    since: Cell<Option<u64>>,
}

impl Unanswered {
    /// A tunnel on which nothing was sent.
    pub fn new(clock: &Rc<Clock>) -> Self {
        Self {
            deadline: clock.deadline(),
            is_set: Cell::new(false),
            moved: Cell::new((0, 0)),
            acknowledged: Cell::new(0),
            since: Cell::new(None),
        }
    }

    /// Becomes ready when the machine of the backend has vanished. `moved` are the bytes that were sent to it and came from it so
    /// far, and `ask` says what is not acknowledged, if that can be known.
    pub fn poll(
        &self,
        cx: &Context<'_>,
        moved: (u64, u64),
        ask: impl FnOnce() -> Option<Unacknowledged>,
    ) -> Poll<()> {
        let (sent, received) = self.moved.replace(moved);
        if moved.1 != received && self.is_set.get() {
            // It may have crossed with what was sent, which then still waits for an acknowledgement.
            self.since.set(None);
            self.deadline.set(CHECK);
        }
        if moved.0 != sent && !self.is_set.replace(true) {
            self.deadline.set(CHECK);
        }
        if !self.is_set.get() || self.deadline.poll_due(cx).is_pending() {
            return Poll::Pending;
        }
        match ask() {
            Some(Unacknowledged {
                queued: queued @ 1..,
                retransmits,
            }) => {
                let now = self.deadline.clock().now();
                let acknowledged = moved.0.saturating_sub(u64::from(queued));
                let is_stuck = acknowledged <= self.acknowledged.replace(acknowledged);
                let is_lost = retransmits >= IN_VAIN;
                let since = self.since.get().filter(|_| is_stuck).unwrap_or(now);
                self.since.set(is_lost.then_some(since));
                if is_lost && now >= since + UNACKNOWLEDGED {
                    return Poll::Ready(());
                }
                self.deadline.set(CHECK);
                // Registers the waker.
                self.deadline.poll_due(cx)
            }
            _ => {
                self.clear();
                Poll::Pending
            }
        }
    }

    fn clear(&self) {
        self.deadline.clear();
        self.is_set.set(false);
        self.since.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Simulates a tunnel for two minutes, in which it is polled each second. `moved` are the bytes at a second, and `ask` what is
    /// not acknowledged then. Returns the second at which the machine has vanished, and the number of questions.
    fn simulate(
        moved: impl Fn(u64) -> (u64, u64),
        ask: impl Fn(u64) -> Option<(u32, u8)>,
    ) -> (Option<u64>, usize) {
        let clock = Clock::new();
        let unanswered = Unanswered::new(&clock);
        let cx = Context::from_waker(Waker::noop());
        let asked = Cell::new(0);
        for second in 0..120 {
            clock.advance(second * 1000);
            let ask = || {
                asked.set(asked.get() + 1);
                let (queued, retransmits) = ask(second)?;
                Some(Unacknowledged {
                    queued,
                    retransmits,
                })
            };
            if unanswered.poll(&cx, moved(second), ask).is_ready() {
                return (Some(second), asked.get());
            }
        }
        (None, asked.get())
    }

    #[test]
    fn machine_that_acknowledges_nothing_has_vanished() {
        let retransmits = |second: u64| (second / 2).min(6) as u8;
        let all = |second: u64| Some((second.max(1) as u32, retransmits(second)));
        let (gone, _) = simulate(|second| (second.max(1), 0), all);
        assert!(gone.is_some_and(|gone| gone <= 25), "{gone:?}");
        // Also when a client waits for the response to a single message.
        let one = |second: u64| Some((1, retransmits(second)));
        let (gone, _) = simulate(|second| (second.min(1), 7), one);
        assert!(gone.is_some_and(|gone| gone <= 25), "{gone:?}");
        // Also when a last message of the backend crosses with it.
        let crossing = |second: u64| (second.min(1), u64::from(second >= 3));
        let (gone, _) = simulate(crossing, one);
        assert!(gone.is_some_and(|gone| gone <= 25), "{gone:?}");
    }

    #[test]
    fn backend_that_is_there_may_leave_what_it_is_sent_unread() {
        // A question for room is under way now and then.
        let paused = |second: u64| Some((1 << 20, u8::from(second.is_multiple_of(5))));
        assert_eq!(simulate(|second| (second, 0), paused).0, None);
        // Packets get lost, and arrive when the kernel sends them again.
        let repaired = |second: u64| Some((second as u32, if second % 20 < 15 { 3 } else { 0 }));
        assert_eq!(simulate(|second| (second, 0), repaired).0, None);
        // The kernel sends others in vain at each question.
        let lossy = |_| Some((1, 3));
        assert_eq!(simulate(|second| (second, 0), lossy).0, None);
    }

    #[test]
    fn tunnels_without_need_ask_nothing() {
        let never = |_| -> Option<(u32, u8)> { panic!("asked") };
        assert_eq!(simulate(|_| (0, 0), never), (None, 0));
        assert_eq!(simulate(|second| (0, second), never), (None, 0));
        assert_eq!(simulate(|second| (second, second), never), (None, 0));
        // One whose bytes are acknowledged asks once after them, and so does one of which nothing is known.
        for known in [Some((0, 0)), None] {
            assert_eq!(simulate(|second| (second.min(1), 0), |_| known), (None, 1));
        }
    }
}
