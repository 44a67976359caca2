//! The coarse clock of one worker: a cached time, and deadlines that cost two cell writes to move. Serves all idle,
//! stall and keep-alive limits. None of them needs more precision than [`TICK`]. Must not know what times out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

/// Interval between ticks, and so the maximum delay of a deadline.
pub const TICK: Duration = Duration::from_millis(100);

/// The time of a deadline that is not set.
const NEVER: u64 = u64::MAX;

/// The clock of one worker, shared within its thread.
pub struct Clock {
    start: Instant,
    now: Cell<u64>,
    slots: RefCell<Slab<Rc<Slot>>>,
}

struct Slot {
    due: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Clock {
    /// Creates a clock that shows zero until [`Clock::run`] is polled.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            start: Instant::now(),
            now: Cell::new(0),
            slots: RefCell::default(),
        })
    }

    /// Advances the clock forever and wakes the tasks whose deadlines are due.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(TICK);
        // A worker that was busy needs one tick with the current time, not a burst of missed ticks.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.advance(self.start.elapsed().as_millis() as u64);
        }
    }

    /// Returns the milliseconds since the clock was created, as of the last tick.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Wakes every task that waits for a deadline, so that it checks its state again.
    pub fn wake_all(&self) {
        for (_, slot) in self.slots.borrow().iter() {
            slot.wake();
        }
    }

    /// Creates a deadline that is not set.
    pub fn deadline(self: &Rc<Self>) -> Deadline {
        let slot = Rc::new(Slot {
            due: Cell::new(NEVER),
            waker: RefCell::new(None),
        });
        let key = self.slots.borrow_mut().insert(slot.clone());
        Deadline {
            clock: self.clone(),
            key,
            slot,
        }
    }

    /// Advances the clock to `now` and wakes the tasks whose deadlines are due.
    pub(crate) fn advance(&self, now: u64) {
        self.now.set(now);
        for (_, slot) in self.slots.borrow().iter() {
            if slot.due.get() <= now {
                slot.wake();
            }
        }
    }
}

impl Slot {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A deadline that can be moved at almost no cost. Unregisters itself when dropped.
pub struct Deadline {
    clock: Rc<Clock>,
    key: usize,
    slot: Rc<Slot>,
}

impl Deadline {
    /// Sets the deadline to `after` from now.
    pub fn set(&self, after: Duration) {
        self.slot
            .due
            .set(self.clock.now() + after.as_millis() as u64);
    }

    /// Returns the clock of the deadline.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Makes the deadline due at once, and wakes the task that waits for it.
    pub fn expire(&self) {
        self.slot.due.set(0);
        self.slot.wake();
    }

    /// Clears the deadline.
    pub fn clear(&self) {
        self.slot.due.set(NEVER);
    }

    /// Becomes ready when the deadline is due. Until then, registers the task to be woken at that time and by
    /// [`Clock::wake_all`].
    pub fn poll_due(&self, cx: &Context<'_>) -> Poll<()> {
        if self.slot.due.get() <= self.clock.now() {
            return Poll::Ready(());
        }
        let mut waker = self.slot.waker.borrow_mut();
        let waker = waker.get_or_insert_with(|| cx.waker().clone());
        waker.clone_from(cx.waker());
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clock.slots.borrow_mut().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_deadline_is_due_at_its_last_time() {
        let clock = Clock::new();
        let deadline = clock.deadline();
        let cx = Context::from_waker(Waker::noop());
        deadline.set(Duration::from_millis(300));
        clock.advance(200);
        deadline.set(Duration::from_millis(300));
        clock.advance(400);
        assert!(deadline.poll_due(&cx).is_pending());
        clock.advance(500);
        assert!(deadline.poll_due(&cx).is_ready());
        deadline.clear();
        assert!(deadline.poll_due(&cx).is_pending());
    }
}
