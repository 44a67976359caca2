//! Counters of requests by rule and by release: each worker has its own, and they are summed when they are read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::class_counts::ClassCounts;
use super::durations::{DurationCounts, Histogram};
use super::exemplar::{Exemplar, LastSampled};
use super::fault::UpstreamFault;
use super::labelled_durations::LabelledDurations;
use super::outcomes::{Outcome, Outcomes};
use crate::runtime::per_worker::{Count, PerWorker, WorkerId};
use crate::settings::metrics::DurationLabels;

/// Counters of a rule's requests.
#[derive(Debug, Default)]
pub struct RuleStats(PerWorker<RuleCounts>);

/// Counters of the requests that one worker has served.
// In this order, so that a request touches few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
struct RuleCounts {
    outcomes: Outcomes,
    in_flight: Count,
    /// Of all requests, if durations have no labels.
    durations: DurationCounts,
    /// Of all requests, if durations have labels.
    labelled: LabelledDurations,
    retries: Count,
    last_sampled: LastSampled,
}

// Each worker has these counters for each rule, rounded up to a multiple of 128 bytes.
const _: () = assert!(size_of::<RuleCounts>() <= 256);

impl RuleStats {
    /// Counts a completed request by outcome and duration, and its duration by `labels`. All callers have to agree about
    /// the labels.
    #[inline]
    pub fn record(
        &self,
        worker: WorkerId,
        outcome: Outcome,
        elapsed: Duration,
        labels: DurationLabels,
    ) {
        let counts = self.0.of(worker);
        counts.outcomes.add(outcome);
        if labels.is_empty() {
            return counts.durations.record(elapsed);
        }
        if let Some(durations) = counts.labelled.of(labels, outcome) {
            durations.record(elapsed);
        }
    }

    /// Records a sampled request, which is counted, too.
    #[cold]
    pub fn sampled(&self, worker: WorkerId, exemplar: Exemplar) {
        let outcome = exemplar.outcome.with_known_status();
        let last = &self.0.of(worker).last_sampled;
        last.set(Exemplar {
            outcome,
            ..exemplar
        });
    }

    /// Returns the last sampled request of each worker.
    pub fn exemplars(&self) -> impl Iterator<Item = Exemplar> {
        let counts = self.0.iter();
        counts.filter_map(|counts| counts.last_sampled.get())
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
        self.0.sum(|counts| &counts.retries)
    }

    /// Calls `read` with each outcome and its number of requests; several times if several workers had it.
    pub fn outcomes(&self, mut read: impl FnMut(Outcome, u64)) {
        self.0
            .iter()
            .for_each(|counts| counts.outcomes.read(&mut read));
    }

    /// Reports whether a request was completed.
    pub fn has_requests(&self) -> bool {
        let mut any = false;
        self.outcomes(|_, count| any |= count > 0);
        any
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        let mut classes = [0; 5];
        self.outcomes(|outcome, count| classes[outcome.class()] += count);
        classes
    }

    /// Durations of the requests.
    pub fn durations(&self) -> Histogram {
        let counts = self.0.iter();
        Histogram::of(counts.flat_map(|it| std::iter::once(&it.durations).chain(it.labelled.all())))
    }

    /// Durations of the requests by labels, which are those that they were recorded with. Each has its labels as an outcome.
    pub fn durations_by(&self, labels: DurationLabels) -> BTreeMap<Outcome, Histogram> {
        if labels.is_empty() {
            let all = self.durations();
            let any = (all.count() > 0).then_some((Outcome::default(), all));
            return any.into_iter().collect();
        }
        let mut histograms: BTreeMap<_, Histogram> = BTreeMap::new();
        for (outcome, counts) in self.0.iter().flat_map(|it| it.labelled.iter(labels)) {
            let own = Histogram::of(std::iter::once(counts));
            histograms.entry(outcome).or_default().add(&own);
        }
        histograms
    }

    /// Requests that have entered and not left.
    pub fn in_flight(&self) -> u64 {
        self.0.sum(|counts| &counts.in_flight)
    }
}

/// Counters of a release of a backend.
#[derive(Debug)]
pub struct ReleaseStats {
    /// Name of the release.
    pub name: Arc<str>,
    responses: ClassCounts,
    faults: [AtomicU64; UpstreamFault::ALL.len()],
}

impl ReleaseStats {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            responses: ClassCounts::default(),
            faults: Default::default(),
        }
    }

    /// Counts a completed request by status. A status outside 100 to 599 counts as 5xx.
    pub fn record(&self, worker: WorkerId, status: u16) {
        self.responses.record(worker, status);
    }

    /// Counts a failed attempt.
    pub fn failed(&self, fault: UpstreamFault) {
        self.faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        self.responses.classes()
    }

    /// Attempts that failed this way so far.
    pub fn faults(&self, fault: UpstreamFault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: DurationLabels = DurationLabels {
        method: false,
        status_class: false,
    };
    const WORKERS: [WorkerId; 2] = [WorkerId::new(0, 2), WorkerId::new(1, 2)];

    #[test]
    fn sums_the_counts_of_all_workers() {
        let [first, second] = WORKERS;
        let stats = RuleStats::default();
        stats.enter(first);
        stats.enter(second);
        stats.leave(second);
        let with = Outcome::of_status;
        stats.record(first, with(200), Duration::from_micros(500), PLAIN);
        stats.record(second, with(404), Duration::from_micros(501), PLAIN);
        stats.record(first, with(999), Duration::from_secs(61), PLAIN);
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

    #[test]
    fn durations_with_labels_are_summed_by_label_and_in_all() {
        let stats = RuleStats::default();
        let labels = DurationLabels {
            method: false,
            status_class: true,
        };
        for (worker, status) in [(0, 200), (1, 201), (0, 503)] {
            let outcome = Outcome::of_status(status);
            stats.record(WORKERS[worker], outcome, Duration::from_millis(1), labels);
        }
        let by_class = stats.durations_by(labels);
        let counts: Vec<_> = by_class
            .iter()
            .map(|(outcome, it)| (outcome.status, it.count()))
            .collect();
        assert_eq!(counts, [(2, 2), (5, 1)]);
        assert_eq!(stats.durations().count(), 3);
        assert_eq!(stats.classes(), [0, 2, 0, 0, 1]);
    }
}
