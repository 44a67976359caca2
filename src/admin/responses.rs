//! The responses of a rule: how many failed, and with which error.

use std::collections::BTreeMap;

use super::shares::Shares;
use crate::table::Rule;

/// Index of 5xx among the classes of statuses.
const FAILED: usize = 4;

/// The responses of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Responses {
    pub(super) all: u64,
    /// Those with a 5xx that no filter responds with, by the error in the access log, which those of backends lack.
    failed: BTreeMap<Option<&'static str>, u64>,
    /// The statuses that filters of the rule respond with.
    wanted: Vec<u16>,
    /// Attempts after the first ones.
    pub(super) retries: u64,
}

impl Responses {
    pub(super) fn of(rule: &Rule) -> Self {
        let stats = &rule.state.stats;
        let mut responses = Self {
            retries: stats.retries(),
            wanted: rule.responds_with(),
            ..Self::default()
        };
        stats.outcomes(|outcome, count| {
            responses.all += count;
            let is_wanted = outcome.error.is_none() && responses.wanted.contains(&outcome.status);
            if outcome.class() == FAILED && count > 0 && !is_wanted {
                *responses.failed.entry(outcome.error).or_default() += count;
            }
        });
        responses
    }

    /// Returns those after the earlier ones.
    pub(super) fn since(mut self, before: &Self) -> Self {
        self.all = self.all.saturating_sub(before.all);
        self.retries = self.retries.saturating_sub(before.retries);
        if self.wanted != before.wanted {
            // Those of the former filters are among those of backends.
            self.failed.remove(&None);
        }
        for (error, count) in &mut self.failed {
            let before = before.failed.get(error).copied();
            *count = count.saturating_sub(before.unwrap_or_default());
        }
        self
    }

    /// Returns those with a 5xx, among all.
    pub(super) fn shares(&self) -> Shares {
        Shares {
            failed: self.failed.values().sum(),
            all: self.all,
        }
    }

    /// Returns the error that most of the failed ones have; `None` if that is a response of the backend.
    pub(super) fn error(&self) -> Option<&'static str> {
        let most = self.failed.iter().max_by_key(|(_, count)| **count);
        most.and_then(|(error, _)| *error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_that_of_most_responses_since_then() {
        let responses = |own: u64, relayed: u64| Responses {
            all: 100 + own + relayed,
            failed: [(Some("refused"), own), (None, relayed)].into(),
            retries: 2,
            ..Responses::default()
        };
        let before = responses(9, 1);
        let since = responses(10, 4).since(&before);
        assert_eq!((before.error(), since.error()), (Some("refused"), None));
        let Shares { failed, all } = since.shares();
        assert_eq!((failed, all, since.retries), (4, 4, 0));
        let mut answered = responses(9, 1);
        answered.wanted.push(503);
        let since = responses(10, 4).since(&answered);
        assert_eq!((since.error(), since.shares().failed), (Some("refused"), 1));
    }
}
