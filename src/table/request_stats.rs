//! Counters of requests by rule and by release: each worker has its own, and they are summed when they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::durations::{DurationCounts, Histogram};
use super::fault::UpstreamFault;
use crate::runtime::per_worker::{Count, PerWorker, WorkerId};

/// Counters of a rule's requests.
#[derive(Debug, Default)]
pub struct RuleStats(PerWorker<RuleCounts>);

/// Counters of the requests that one worker has served.
// In this order, so that a request touches few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
struct RuleCounts {
    classes: [Count; 5],
    in_flight: Count,
    durations: DurationCounts,
    retries: Count,
}

impl RuleStats {
    /// Counts a completed request by status and duration. A status outside 100 to 599 counts as 5xx.
    #[inline]
    pub fn record(&self, worker: WorkerId, status: u16, elapsed: Duration) {
        let counts = self.0.of(worker);
        counts.classes[class(status)].add(1);
        counts.durations.record(elapsed);
    }

    /// Counts a request in.
    #[inline]
    pub fn enter(&self, worker: WorkerId) {
        self.0.of(worker).in_flight.add(1);
    }

    /// Counts a request out.
    #[inline]
    pub fn leave(&self, worker: WorkerId) {
        self.0.of(worker).in_flight.subtract_one();
    }

    /// Counts a retry that the rule allowed.
    pub fn retried(&self, worker: WorkerId) {
        self.0.of(worker).retries.add(1);
    }

    /// Retries that the rule allowed.
    pub fn retries(&self) -> u64 {
        self.sum(|counts| &counts.retries)
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        std::array::from_fn(|class| self.sum(|counts| &counts.classes[class]))
    }

    /// Durations of the requests.
    pub fn durations(&self) -> Histogram {
        Histogram::of(self.0.iter().map(|counts| &counts.durations))
    }

    /// Requests that have entered and not left.
    pub fn in_flight(&self) -> u64 {
        self.sum(|counts| &counts.in_flight)
    }

    fn sum(&self, counter: impl Fn(&RuleCounts) -> &Count) -> u64 {
        let counts = self.0.iter();
        counts.fold(0, |sum: u64, counts| {
            sum.wrapping_add(counter(counts).get())
        })
    }
}

/// Index of the counter of a status: its class, and 5xx for a status outside 100 to 599.
fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        _ => 4,
    }
}

/// Counters of a release of a backend.
#[derive(Debug)]
pub struct ReleaseStats {
    /// Name of the release.
    pub name: Arc<str>,
    classes: PerWorker<[Count; 5]>,
    faults: [AtomicU64; UpstreamFault::ALL.len()],
}

impl ReleaseStats {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            classes: PerWorker::default(),
            faults: Default::default(),
        }
    }

    /// Counts a completed request by status. A status outside 100 to 599 counts as 5xx.
    pub fn record(&self, worker: WorkerId, status: u16) {
        self.classes.of(worker)[class(status)].add(1);
    }

    /// Counts a failed attempt.
    pub fn failed(&self, fault: UpstreamFault) {
        self.faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        let sum = |class: usize| self.classes.iter().map(|it| it[class].get()).sum();
        std::array::from_fn(sum)
    }

    /// Attempts that failed this way so far.
    pub fn faults(&self, fault: UpstreamFault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: [WorkerId; 2] = [WorkerId::new(0, 2), WorkerId::new(1, 2)];

    #[test]
    fn sums_the_counts_of_all_workers() {
        let [first, second] = WORKERS;
        let stats = RuleStats::default();
        stats.enter(first);
        stats.enter(second);
        stats.leave(second);
        stats.record(first, 200, Duration::from_micros(500));
        stats.record(second, 404, Duration::from_micros(501));
        stats.record(first, 999, Duration::from_secs(61));
        stats.retried(second);
        assert_eq!(stats.classes(), [0, 1, 0, 1, 1]);
        let durations = stats.durations();
        assert_eq!(
            (
                durations.buckets[0],
                durations.buckets[1],
                durations.buckets[17]
            ),
            (1, 1, 1)
        );
        assert_eq!(durations.total_micros, 61_001_001);
        assert_eq!((stats.in_flight(), stats.retries()), (1, 1));
        let release = ReleaseStats::new("stable".into());
        for worker in WORKERS {
            release.record(worker, 200);
        }
        assert_eq!(release.classes(), [0, 2, 0, 0, 0]);
    }
}
