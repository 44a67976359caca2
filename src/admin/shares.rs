//! How many of some events are failures, and whether these are many.

/// Percent of failures from which on they are a trouble.
const MANY_FAILURES: u64 = 1;

/// Failures among responses of a rule, attempts at an endpoint, or the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) failed: u64,
    /// All of them.
    pub(super) all: u64,
}

impl Shares {
    /// Returns those after the earlier ones.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            failed: self.failed.saturating_sub(before.failed),
            all: self.all.saturating_sub(before.all),
        }
    }

    /// Reports whether so many have failed that it is a trouble.
    pub(super) fn are_failing(self) -> bool {
        self.are_percent(MANY_FAILURES)
    }

    /// Reports whether at least this share has failed.
    pub(super) fn are_percent(self, percent: u64) -> bool {
        self.failed > 0 && self.failed.saturating_mul(100) >= self.all.saturating_mul(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_hundred_failures_is_a_trouble_and_none_of_none_is_not() {
        let are_failing = |failed, all| Shares { failed, all }.are_failing();
        assert!(are_failing(1, 100) && are_failing(1, 1));
        assert!(!are_failing(1, 101) && !are_failing(0, 0));
    }
}
