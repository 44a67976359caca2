//! The arithmetic of rates: how long an amount takes, and how pods divide a limit that they share. Pure.

use std::time::Duration;

use crate::ir::limit::Rate;

/// The part of a limit that a lease of tokens has at most: one in 20.
const LEASE_SHARE: u64 = 20;

/// A rate, or a share of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Nanoseconds in which `amount` is admitted.
    time: u128,
    amount: u128,
}

impl Pace {
    /// Returns the pace of a whole rate.
    pub(super) fn of(rate: &Rate) -> Self {
        Self {
            time: u128::from(nanos(rate.per)),
            amount: u128::from(rate.requests.max(1)),
        }
    }

    /// Returns `part` of `whole` of this pace; neither may be 0.
    pub(super) fn share(self, part: usize, whole: usize) -> Self {
        Self {
            time: self.time * whole.max(1) as u128,
            amount: self.amount * part.max(1) as u128,
        }
    }

    /// Returns the time in which an amount is admitted, in nanoseconds.
    pub(super) fn time_of(self, amount: u64) -> u64 {
        let time = self.time * u128::from(amount) / self.amount;
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Returns the time of one, at least a nanosecond.
    pub(super) fn interval(self) -> u64 {
        self.time_of(1).max(1)
    }

    /// Returns what is admitted in a period of nanoseconds.
    pub(super) fn amount_in(self, time: u64) -> u64 {
        let amount = u128::from(time) * self.amount / self.time.max(1);
        u64::try_from(amount).unwrap_or(u64::MAX)
    }
}

/// Returns by how much a theoretical arrival may be ahead with a burst: by all of it but one.
pub(super) fn tolerance(pace: Pace, burst: u64) -> u64 {
    pace.interval().saturating_mul(burst.saturating_sub(1))
}

/// Returns what each pod but the owner of a key admits of it at once without a lease: the pods together have half of the
/// burst, and each has at least one.
pub(super) fn reserve(rate: &Rate, pods: usize) -> u64 {
    (rate.burst / (2 * pods.max(1) as u64)).max(1)
}

/// Returns what the owner of a key admits of it at once: the burst without what others have.
pub(super) fn capacity(rate: &Rate, pods: usize) -> u64 {
    let others = pods.saturating_sub(1) as u64;
    let reserved = reserve(rate, pods).saturating_mul(others);
    rate.burst.saturating_sub(reserved).max(1)
}

/// Returns the maximum tokens of a lease.
pub(super) fn lease(rate: &Rate) -> u64 {
    (rate.requests / LEASE_SHARE).max(1)
}

/// Returns the part of the burst of pod `index` of `pods`, at least one.
pub(super) fn divided_burst(rate: &Rate, index: usize, pods: usize) -> u64 {
    let (index, pods) = (index as u64, pods.max(1) as u64);
    let share = rate.burst / pods + u64::from(index < rate.burst % pods);
    share.max(1)
}

/// Returns a time in nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: u64, burst: u64) -> Rate {
        Rate {
            requests,
            per: Duration::from_secs(1),
            burst,
        }
    }

    #[test]
    fn pods_divide_a_burst_without_a_rest() {
        for (burst, pods) in [(100, 4), (101, 4), (7, 3), (4, 4), (1000, 1)] {
            let shares = (0..pods).map(|index| divided_burst(&rate(100, burst), index, pods));
            assert_eq!(shares.sum::<u64>(), burst);
            let others = (pods as u64 - 1) * reserve(&rate(100, burst), pods);
            assert_eq!(
                capacity(&rate(100, burst), pods) + others,
                burst,
                "{burst} {pods}"
            );
        }
        assert_eq!(
            divided_burst(&rate(100, 1), 3, 4),
            1,
            "each pod admits one at least"
        );
        assert_eq!(capacity(&rate(100, 1), 4), 1);
    }

    #[test]
    fn times_and_amounts_are_inverse() {
        let pace = Pace::of(&rate(100, 1)).share(1, 4);
        assert_eq!(pace.interval(), 40_000_000);
        assert_eq!(pace.amount_in(pace.time_of(17)), 17);
        let day = Rate {
            requests: 1_000_000_000_000,
            per: Duration::from_secs(86_400),
            burst: 1,
        };
        let pace = Pace::of(&day).share(1, 256);
        assert_eq!(
            pace.amount_in(pace.time_of(1_000_000_000_000)),
            1_000_000_000_000
        );
    }
}
