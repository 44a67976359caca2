//! How long to wait before what has failed is tried again.

use std::time::Duration;

/// Waits that double with each failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after one more failure than this many in a row.
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
    fn doubles_waits_up_to_the_longest() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
        };
        let waits = [0, 1, 5, 6, 40, u32::MAX].map(|failures| backoff.after(failures).as_millis());
        assert_eq!(waits, [100, 200, 3200, 5000, 5000, 5000]);
    }
}
