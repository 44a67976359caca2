//! The retry budget of a backend (GEP-3388): the share of retries among recent requests, and whether another retry is
//! permitted. All workers count in it without a lock. The caller passes the time.

use std::sync::Arc;

use super::sliding_window::Window;
use crate::ir;

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
    /// Creates a budget. It takes over the counts of `previous` if the intervals are the same.
    pub(super) fn new(limits: ir::traffic::RetryBudget, previous: Option<&Self>) -> Self {
        let intervals = |limits: &ir::traffic::RetryBudget| (limits.interval, limits.min_interval);
        let previous = previous.filter(|it| intervals(&it.limits) == intervals(&limits));
        let counts = previous.map(|it| it.counts.clone());
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
        self.counts.requests.add(now, 1);
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
        let of_interval = retries.add(now, 1);
        let all = requests.total(now) + of_interval;
        let recent_retries = recent.add(now, 1);
        let is_within = of_interval * 100 <= all * u64::from(self.limits.percent)
            || recent_retries <= u64::from(self.limits.min_retries);
        if !is_within {
            retries.take_back(now);
            recent.take_back(now);
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::table::sliding_window::SLOTS;

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
