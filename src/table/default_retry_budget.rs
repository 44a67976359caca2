//! The default retry budget of a backend: how many requests are sent again although the backend may have received them,
//! where neither `retry` of a rule nor a traffic policy limits it. Only retries that fail count, so that a few broken
//! endpoints do not use up the budget. Requests that succeed cost nothing: the budget reads the counts of the endpoints,
//! and only after a failure. The caller passes counts and time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::sliding_window::Window;

/// Requests for one retry. Bounds the load that retries add to a backend that fails altogether: 1.2 times its requests.
const REQUESTS_PER_RETRY: u64 = 5;
/// Interval of the share.
const INTERVAL: Duration = Duration::from_secs(10);
/// Interval of one retry that the budget always permits, so that few requests can be retried too.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The default retry budget of a backend.
#[derive(Debug)]
pub(super) struct DefaultRetryBudget {
    /// Attempts within [`INTERVAL`], retries included.
    sent: Window,
    /// Retries within [`INTERVAL`].
    retries: Window,
    /// Retries within [`MIN_INTERVAL`].
    recent: Window,
    /// Attempts until the last sample, and its time in milliseconds.
    sampled: AtomicU64,
    sampled_at: AtomicU64,
}

impl Default for DefaultRetryBudget {
    fn default() -> Self {
        Self {
            sent: Window::new(INTERVAL),
            retries: Window::new(INTERVAL),
            recent: Window::new(MIN_INTERVAL),
            sampled: AtomicU64::new(0),
            sampled_at: AtomicU64::new(0),
        }
    }
}

impl DefaultRetryBudget {
    /// Counts a retry if it is permitted, and returns whether it is. `sent` is the number of attempts so far, `now` the
    /// time in milliseconds.
    pub(super) fn try_retry(&self, sent: u64, now: u64) -> bool {
        self.sample(sent, now);
        let retries = self.retries.add(now, 1);
        let first_attempts = self.sent.total(now).saturating_sub(retries - 1);
        let recent = self.recent.add(now, 1);
        let is_within = retries * REQUESTS_PER_RETRY <= first_attempts || recent <= 1;
        if !is_within {
            self.refund(now);
        }
        is_within
    }

    /// Counts a retry that is sent in any case, so that fewer others are permitted.
    pub(super) fn count(&self, sent: u64, now: u64) {
        self.sample(sent, now);
        self.retries.add(now, 1);
        self.recent.add(now, 1);
    }

    /// Undoes the count of a retry that got a response. Unless its slot of a window is over, which leaves less budget.
    pub(super) fn refund(&self, now: u64) {
        self.retries.take_back(now);
        self.recent.take_back(now);
    }

    /// Counts the attempts since the last sample, as many as fall into the interval at an even rate. Two workers that
    /// sample at once may count a few attempts twice or not at all.
    fn sample(&self, sent: u64, now: u64) {
        let interval = INTERVAL.as_millis() as u64;
        let elapsed = now.saturating_sub(self.sampled_at.swap(now, Relaxed));
        // Fewer than before after the removal of endpoints.
        let added = sent.saturating_sub(self.sampled.swap(sent, Relaxed));
        let recent = match elapsed > interval {
            true => added.saturating_mul(interval).div_ceil(elapsed),
            false => added,
        };
        self.sent
            .add(now, u32::try_from(recent).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests that all fail, at this interval in milliseconds. Returns the number of retries.
    fn outage(requests: u64, interval: u64) -> u64 {
        let budget = DefaultRetryBudget::default();
        let retry = |retries: u64, index: u64| {
            let sent = index + 1 + retries;
            retries + u64::from(budget.try_retry(sent, 60_000 + index * interval))
        };
        (0..requests).fold(0, retry)
    }

    #[test]
    fn retries_add_a_fifth_to_the_requests_that_fail() {
        assert_eq!(outage(20, 0), 4);
        assert_eq!(outage(1_000, 0), 200);
        for interval in [1, 10, 100, 190] {
            let retries = outage(1_000, interval);
            assert!((180..=200).contains(&retries), "{retries} at {interval} ms");
        }
    }

    #[test]
    fn one_retry_per_second_is_always_permitted() {
        assert_eq!(outage(10, 1_000), 10);
    }

    /// Tries 1,000 retries at once after `sent` attempts. Returns how many were permitted.
    fn permitted(budget: &DefaultRetryBudget, sent: u64, now: u64) -> u64 {
        let retry = |count, _| count + u64::from(budget.try_retry(sent + count, now));
        (0..1_000).fold(0, retry)
    }

    #[test]
    fn requests_that_succeeded_count_for_ten_seconds() {
        let budget = DefaultRetryBudget::default();
        // 100 requests per second for a minute.
        assert_eq!(permitted(&budget, 6_000, 60_000), 200);
        assert_eq!(permitted(&budget, 6_200, 69_999), 1);
        assert_eq!(permitted(&budget, 6_201, 75_000), 1);
    }

    #[test]
    fn counted_retries_reduce_the_permitted_ones() {
        let budget = DefaultRetryBudget::default();
        (0..15).for_each(|index| budget.count(100 + index, 1_000));
        assert_eq!(permitted(&budget, 115, 1_000), 5);
    }

    #[test]
    fn retries_that_succeed_do_not_use_up_the_budget() {
        let budget = DefaultRetryBudget::default();
        for sent in 1..100 {
            assert!(budget.try_retry(sent, 1_000));
            budget.refund(1_000);
        }
        assert_eq!(permitted(&budget, 100, 1_000), 20);
    }

    #[test]
    fn removed_endpoints_take_their_counts_along() {
        let budget = DefaultRetryBudget::default();
        budget.count(1_000_000, 1_000);
        assert!(!(0..2).all(|_| budget.try_retry(10, 30_000)));
        assert!(budget.try_retry(30, 30_000));
    }
}
