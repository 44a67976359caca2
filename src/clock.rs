//! The coarse clock of one worker: a cached time and deadlines that cost two cell writes to move. Serves every idle,
//! stall and keep-alive limit, none of which needs to be met more precisely than [`TICK`]. Knows not what times out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

/// How often time moves, and so how late a deadline may be noticed.
pub const TICK: Duration = Duration::from_millis(100);

/// Never due.
const NEVER: u64 = u64::MAX;

/// The clock of one worker; shared within its thread.
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
    /// A clock that stands at zero until [`Clock::run`] is polled.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            start: Instant::now(),
            now: Cell::new(0),
            slots: RefCell::default(),
        })
    }

    /// Moves the clock for ever, and wakes what is due.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.advance(self.start.elapsed().as_millis() as u64);
        }
    }

    /// Milliseconds since the clock was made, as of the last tick.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Wakes every task that holds a deadline, so that it looks at the world again.
    pub fn wake_all(&self) {
        for (_, slot) in self.slots.borrow().iter() {
            slot.wake();
        }
    }

    /// A deadline that is not set.
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

    /// Moves the clock to this time, and wakes what is due.
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

/// A point in time that can be moved at no cost. Unregisters itself when dropped.
pub struct Deadline {
    clock: Rc<Clock>,
    key: usize,
    slot: Rc<Slot>,
}

impl Deadline {
    /// Due when `after` has passed from now.
    pub fn set(&self, after: Duration) {
        self.slot
            .due
            .set(self.clock.now() + after.as_millis() as u64);
    }

    /// The clock that it is read from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Never due.
    pub fn clear(&self) {
        self.slot.due.set(NEVER);
    }

    /// Ready when due; else the task is woken at that time, and on [`Clock::wake_all`].
    pub fn poll_due(&self, cx: &Context<'_>) -> Poll<()> {
        if self.slot.due.get() <= self.clock.now() {
            return Poll::Ready(());
        }
        let mut waker = self.slot.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
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
    fn a_moved_deadline_is_due_at_its_last_place() {
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
