//! Exponential back-off between retries.

use std::time::Duration;

/// A delay that doubles with each consecutive failure, up to a limit.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Maximum delay.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the delay before the retry that follows `failures` + 1 failures in a row.
    pub fn after(&self, failures: u32) -> Duration {
        self.first
            .saturating_mul(1 << failures.min(16))
            .min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_the_delay_up_to_the_maximum() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
        };
        let waits = [0, 1, 5, 6, 40, u32::MAX].map(|failures| backoff.after(failures).as_millis());
        assert_eq!(waits, [100, 200, 3200, 5000, 5000, 5000]);
    }
}
