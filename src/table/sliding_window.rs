//! Counts of events within sliding intervals. All workers count without a lock. The caller passes the time.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Slots of a window. A window covers its interval less at most one slot.
pub(super) const SLOTS: u64 = 10;

/// A count of events within a sliding interval.
#[derive(Debug)]
pub(super) struct Window {
    /// In milliseconds.
    interval: u64,
    slots: [Slot; SLOTS as usize],
}

/// The period of a slot in the upper half, modulo 2^32, and its count in the lower half. One word, so that one
/// compare-and-swap resets the count when the period changes. Relaxed suffices: nothing else depends on the counts.
#[derive(Debug, Default)]
struct Slot(AtomicU64);

impl Window {
    /// Creates an empty count.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval: (interval.as_millis() as u64).max(1),
            slots: array::from_fn(|_| Slot::default()),
        }
    }

    /// Returns the number of the period at `now`. An interval has [`SLOTS`] periods.
    fn period(&self, now: u64) -> u64 {
        now.saturating_mul(SLOTS) / self.interval
    }

    fn slot(&self, period: u64) -> &Slot {
        &self.slots[(period % SLOTS) as usize]
    }

    /// Counts events at `now`, in milliseconds. Returns the count of the window, with the events.
    pub(super) fn add(&self, now: u64, events: u32) -> u64 {
        let period = self.period(now);
        let own = self.slot(period).add(period as u32, events);
        own + self.others(period)
    }

    /// Undoes the count of an event at `now`.
    pub(super) fn take_back(&self, now: u64) {
        let period = self.period(now);
        self.slot(period).take_back(period as u32);
    }

    /// Returns the count of the window at `now`.
    pub(super) fn total(&self, now: u64) -> u64 {
        let period = self.period(now);
        self.slot(period).count(period as u32) + self.others(period)
    }

    /// Returns the count of the earlier periods in the window.
    fn others(&self, period: u64) -> u64 {
        let first = (period + 1).saturating_sub(SLOTS);
        let before = first..period;
        before
            .map(|period| self.slot(period).count(period as u32))
            .sum()
    }
}

impl Slot {
    fn add(&self, period: u32, events: u32) -> u64 {
        let mut counted = u64::from(events);
        let update = |packed| {
            let (of, count) = unpacked(packed);
            // Another worker may have reset this slot for a later period. The distance is modulo 2^32.
            let is_late = of != period && u64::from(of.wrapping_sub(period)) <= 2 * SLOTS;
            let count = match of == period {
                true => count.saturating_add(events),
                false => events,
            };
            counted = u64::from(count);
            (!is_late).then(|| self::packed(period, count))
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, update);
        counted
    }

    fn take_back(&self, period: u32) {
        let update = |packed| {
            let (of, count) = unpacked(packed);
            (of == period).then(|| self::packed(of, count.saturating_sub(1)))
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, update);
    }

    fn count(&self, period: u32) -> u64 {
        match unpacked(self.0.load(Relaxed)) {
            (of, count) if of == period => count.into(),
            _ => 0,
        }
    }
}

fn packed(period: u32, count: u32) -> u64 {
    u64::from(period) << 32 | u64::from(count)
}

fn unpacked(packed: u64) -> (u32, u32) {
    ((packed >> 32) as u32, packed as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_unused_slot_counts_from_zero() {
        let slot = Slot::default();
        for period in [1, 11, u32::MAX / 2, u32::MAX, 9, 19] {
            assert_eq!(
                (slot.add(period, 1), slot.count(period)),
                (1, 1),
                "{period}"
            );
        }
        // A late worker does not change the count of a later period.
        slot.add(9, 1);
        assert_eq!((slot.count(19), slot.count(9)), (1, 0));
    }
}
