//! Durations by bucket: each worker counts its own, and they are summed when they are read.

use std::time::Duration;

use crate::runtime::per_worker::Count;

/// Upper bounds of the duration buckets, in microseconds; one more bucket has no bound. Those that the semantic conventions
/// of OpenTelemetry advise, and three below them.
pub const DURATION_BOUNDS_MICROS: [u64; 17] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000,
];

/// Buckets of the duration histogram, the unbounded one included.
pub const DURATION_BUCKETS: usize = DURATION_BOUNDS_MICROS.len() + 1;

/// Durations that one worker has measured.
// In this order, so that a request touches few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct DurationCounts {
    total_micros: Count,
    buckets: [Count; DURATION_BUCKETS],
}

impl DurationCounts {
    #[inline]
    pub(super) fn record(&self, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let bucket = DURATION_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].add(1);
        self.total_micros.add(micros);
    }
}

/// Estimates a quantile as Prometheus does: evenly within a bucket. What is above the last bound counts as the bound.
pub fn quantile(share: f64, bounds: &[f64], buckets: &[u64]) -> Option<f64> {
    let rank = share * buckets.iter().sum::<u64>() as f64;
    let mut below = 0.0;
    for (index, count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= rank {
            let Some(to) = bounds.get(index) else {
                return bounds.last().copied();
            };
            let from = index.checked_sub(1).map_or(0.0, |before| bounds[before]);
            return Some(from + (to - from) * (rank - below) / count);
        }
        below += count;
    }
    None
}

/// A histogram of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Durations by bucket, each bucket for itself, bounded by [`DURATION_BOUNDS_MICROS`].
    pub buckets: [u64; DURATION_BUCKETS],
    /// Sum of all durations, in microseconds.
    pub total_micros: u64,
}

impl Histogram {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a DurationCounts>) -> Self {
        let mut sum = Self::default();
        for counts in all {
            for (sum, count) in sum.buckets.iter_mut().zip(&counts.buckets) {
                *sum = sum.wrapping_add(count.get());
            }
            sum.total_micros = sum.total_micros.wrapping_add(counts.total_micros.get());
        }
        sum
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.wrapping_add(count);
        }
        self.total_micros = self.total_micros.wrapping_add(other.total_micros);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_no_durations_is_none() {
        assert_eq!(quantile(0.5, &[1.0], &[0, 0]), None);
        assert_eq!(quantile(0.5, &[1.0], &[0, 3]), Some(1.0));
        assert_eq!(quantile(0.5, &[1.0], &[2, 0]), Some(0.5));
        // A document of another version may have more buckets than bounds.
        assert_eq!(quantile(0.5, &[1.0], &[0, 0, 0, 3]), Some(1.0));
    }
}
