//! The retry budget of a backend (GEP-3388): the share of retries among recent requests, and whether another retry is
//! permitted. All workers count in it without a lock. The caller passes the time.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::ir;

/// Slots of a window. A window covers its interval less at most one slot.
const SLOTS: u64 = 10;

/// The retry budget of a backend.
#[derive(Debug)]
pub(super) struct RetryBudget {
    limits: ir::traffic::RetryBudget,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// First attempts within the budget's interval.
    requests: Window,
    /// Retries within the budget's interval.
    retries: Window,
    /// Retries within the interval of the minimum rate.
    recent: Window,
}

impl RetryBudget {
    /// Creates a budget. It takes over the counts of `former` if the intervals are the same.
    pub(super) fn new(limits: ir::traffic::RetryBudget, former: Option<&Self>) -> Self {
        let intervals = |limits: &ir::traffic::RetryBudget| (limits.interval, limits.min_interval);
        let former = former.filter(|it| intervals(&it.limits) == intervals(&limits));
        let counts = former.map(|it| it.counts.clone());
        Self {
            limits,
            counts: counts.unwrap_or_else(|| {
                Arc::new(Counts {
                    requests: Window::new(limits.interval),
                    retries: Window::new(limits.interval),
                    recent: Window::new(limits.min_interval),
                })
            }),
        }
    }

    /// Counts the first attempt of a request, at `now` in milliseconds.
    pub(super) fn count_request(&self, now: u64) {
        self.counts.requests.add(now);
    }

    /// Counts a retry if it is permitted, and returns whether it is. Permits retries up to a percentage of all requests
    /// of the interval, retries included, and always up to the minimum rate.
    pub(super) fn try_retry(&self, now: u64) -> bool {
        let Counts {
            requests,
            retries,
            recent,
        } = &*self.counts;
        // Counts first and undoes the count on refusal: two workers that check first could both take the last retry.
        let of_interval = retries.add(now);
        let all = requests.total(now) + of_interval;
        let recent_retries = recent.add(now);
        let is_within = of_interval * 100 <= all * u64::from(self.limits.percent)
            || recent_retries <= u64::from(self.limits.min_retries);
        if !is_within {
            retries.take_back(now);
            recent.take_back(now);
        }
        is_within
    }
}

/// A count of events within a sliding interval.
#[derive(Debug)]
struct Window {
    /// In milliseconds.
    interval: u64,
    slots: [Slot; SLOTS as usize],
}

/// The period of a slot in the upper half, modulo 2^32, and its count in the lower half. One word, so that one
/// compare-and-swap resets the count when the period changes. Relaxed suffices: nothing else depends on the counts.
#[derive(Debug, Default)]
struct Slot(AtomicU64);

impl Window {
    fn new(interval: Duration) -> Self {
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

    /// Counts an event. Returns the count of the window, with the event.
    fn add(&self, now: u64) -> u64 {
        let period = self.period(now);
        let own = self.slot(period).add(period as u32);
        own + self.others(period)
    }

    /// Undoes the count of an event at `now`.
    fn take_back(&self, now: u64) {
        let period = self.period(now);
        self.slot(period).take_back(period as u32);
    }

    fn total(&self, now: u64) -> u64 {
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
    fn add(&self, period: u32) -> u64 {
        let mut counted = 1;
        let update = |packed| {
            let (of, count) = unpacked(packed);
            // Another worker may have reset this slot for a later period. The distance is modulo 2^32.
            let is_late = of != period && u64::from(of.wrapping_sub(period)) <= 2 * SLOTS;
            let count = match of == period {
                true => count.saturating_add(1),
                false => 1,
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
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn limits(percent: u32, seconds: u64, count: u32, millis: u64) -> ir::traffic::RetryBudget {
        ir::traffic::RetryBudget {
            percent,
            interval: Duration::from_secs(seconds),
            min_retries: count,
            min_interval: Duration::from_millis(millis),
        }
    }

    fn budget(percent: u32, seconds: u64, count: u32, millis: u64) -> RetryBudget {
        RetryBudget::new(limits(percent, seconds, count, millis), None)
    }

    /// Returns the number of retries that are permitted at one time.
    fn permitted(budget: &RetryBudget, now: u64) -> usize {
        (0..10_000).filter(|_| budget.try_retry(now)).count()
    }

    #[test]
    fn permits_a_fifth_of_the_requests_as_retries() {
        // The example of the API: of 1000 requests, 200 may be retries.
        let budget = budget(20, 10, 1, 1);
        (0..800).for_each(|_| budget.count_request(5_000));
        assert_eq!(permitted(&budget, 6_000), 200);
        assert_eq!(permitted(&budget, 14_999), 1, "the minimum rate");
    }

    #[test]
    fn requests_count_within_the_interval_only() {
        let budget = budget(50, 10, 1, 1);
        (0..100).for_each(|_| budget.count_request(10_000));
        // 10 periods of 1 s: those of 10 s to 19 s are in the window of 19 s.
        assert_eq!(permitted(&budget, 19_999), 100);
        assert_eq!(permitted(&budget, 20_000), 1, "the minimum rate");
    }

    #[test]
    fn minimum_rate_needs_no_other_requests() {
        let budget = budget(0, 10, 10, 1_000);
        (0..1_000).for_each(|_| budget.count_request(7_000));
        assert_eq!(permitted(&budget, 7_000), 10);
        assert_eq!(permitted(&budget, 7_899), 0);
        assert_eq!(permitted(&budget, 8_000), 10);
    }

    #[test]
    fn hundred_percent_permits_every_retry() {
        let budget = budget(100, 1, 1, 1);
        assert_eq!(permitted(&budget, 1), 10_000);
    }

    #[test]
    fn counts_survive_new_limits_with_the_same_intervals() {
        let before = budget(0, 10, 10, 1_000);
        assert_eq!(permitted(&before, 1), 10);
        let after = RetryBudget::new(limits(0, 10, 15, 1_000), Some(&before));
        assert_eq!(permitted(&after, 1), 5);
        let other = RetryBudget::new(limits(0, 10, 15, 2_000), Some(&after));
        assert_eq!(permitted(&other, 1), 15);
    }

    #[test]
    fn long_unused_slot_counts_from_zero() {
        let slot = Slot::default();
        for period in [1, 11, u32::MAX / 2, u32::MAX, 9, 19] {
            assert_eq!((slot.add(period), slot.count(period)), (1, 1), "{period}");
        }
        // A late worker does not change the count of a later period.
        slot.add(9);
        assert_eq!((slot.count(19), slot.count(9)), (1, 0));
    }

    #[test]
    fn workers_share_one_budget() {
        let budget = budget(0, 10, 1_000, 1_000);
        let worker = || (0..1_000).filter(|_| budget.try_retry(500)).count();
        let total: usize = thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(total, 1_000);
    }

    proptest! {
        #[test]
        fn permits_the_same_as_a_list_of_all_events(
            percent in 0..=100_u32,
            seconds in 1..5_u64,
            count in 1..4_u32,
            millis in 1..3_000_u64,
            steps in proptest::collection::vec((0..700_u64, 0..4_u8), 0..200),
        ) {
            let budget = budget(percent, seconds, count, millis);
            let (mut requests, mut retries, mut now) = (Vec::<u64>::new(), Vec::<u64>::new(), 0);
            for (elapsed, kind) in steps {
                now += elapsed;
                if kind < 2 {
                    budget.count_request(now);
                    requests.push(now);
                    continue;
                }
                let within = |events: &[u64], interval: u64| {
                    let period = |at: u64| at * SLOTS / interval;
                    let is_in = |at: &&u64| period(**at) + SLOTS > period(now);
                    events.iter().filter(is_in).count() as u64
                };
                let interval = seconds * 1_000;
                let of_interval = within(&retries, interval) + 1;
                let all = within(&requests, interval) + of_interval;
                let is_permitted = of_interval * 100 <= all * u64::from(percent)
                    || within(&retries, millis) < u64::from(count);
                prop_assert_eq!(budget.try_retry(now), is_permitted);
                retries.extend(is_permitted.then_some(now));
            }
        }
    }
}
