//! When and how a thread that has worked gives back memory that it no longer needs. Must not know what the work is.

use std::hint::black_box;
use std::mem;
use std::time::Duration;

/// Time that a thread is busy in an interval in which it works. Giving memory back takes less.
const WORKING: Duration = Duration::from_millis(10);
/// Number of quiet intervals after work in which memory is given back: mimalloc keeps an empty page of small blocks for 16
/// of its collections.
const TURNS: u8 = 4;
/// Allocations of a turn, and their size in bytes. mimalloc collects in each thousandth allocation of more than 1 KiB. It
/// keeps an empty page of blocks above 10 KiB, up to 4 MiB for each of some 20 sizes, for 4 collections.
const ALLOCATIONS: usize = 4000;
const SIZE: usize = 2048;

/// Whether a thread has worked, and is quiet since then.
#[derive(Debug, Default)]
pub struct AfterWork {
    busy: Duration,
    turns: u8,
}

impl AfterWork {
    /// Ends an interval; `busy` is how long the thread has been busy since it began. Returns true if the thread should give
    /// memory back now.
    pub fn is_due(&mut self, busy: Duration) -> bool {
        let worked = busy.saturating_sub(mem::replace(&mut self.busy, busy));
        if worked >= WORKING {
            self.turns = TURNS;
            return false;
        }
        let is_due = self.turns > 0;
        self.turns = self.turns.saturating_sub(1);
        is_due
    }
}

/// Makes the allocator give back pages of this thread that have become empty.
///
/// mimalloc does that only during allocations: an idle thread would keep the pages. This function relies on that alone.
pub fn free_empty_pages() {
    for _ in 0..ALLOCATIONS {
        drop(black_box(Vec::<u8>::with_capacity(SIZE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_due_in_quiet_intervals_after_work() {
        let mut after_work = AfterWork::default();
        let mut busy = Duration::ZERO;
        let mut due = |worked| {
            busy += worked;
            after_work.is_due(busy)
        };
        let quiet = Duration::from_millis(1);
        assert!(!due(quiet), "there was no work");
        for _ in 0..2 {
            assert!(!due(WORKING) && !due(WORKING));
            for _ in 0..TURNS {
                assert!(due(quiet));
            }
            assert!(!due(quiet));
        }
    }
}
