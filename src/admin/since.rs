//! Since when each problem is known.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::finding::{Finding, Kind, Source};

/// What stays the same of a problem while it lasts: its kind and its object, and, if it is one of the configuration, its cause.
/// Causes of what happens now have counts.
type Key = (Kind, String, Option<String>);

/// The problems that were there at the last sample, with the time of the first one at which they were.
#[derive(Debug, Default)]
pub(super) struct Since(Mutex<BTreeMap<Key, Timestamp>>);

impl Since {
    /// Sets since when each problem is known, and forgets those that are no longer there.
    pub(super) fn set(&self, problems: &mut [Finding], now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = BTreeMap::new();
        for problem in problems {
            let key = key(problem);
            let since = known.get(&key).copied().unwrap_or(now);
            problem.since = Some(since);
            next.insert(key, since);
        }
        *known = next;
    }
}

fn key(problem: &Finding) -> Key {
    let cause = match problem.source {
        Source::Service => None,
        Source::Configuration => Some(problem.cause.clone()),
    };
    (problem.kind, problem.object.clone(), cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    #[test]
    fn problem_is_known_since_the_first_look_until_it_is_gone() {
        let since = Since::default();
        let look = |problems: &[(Kind, &str, &str)], second| {
            let problem = |(kind, object, message): &(Kind, &str, &str)| {
                Finding::of_service(*kind, (*object).to_owned(), (*message).to_owned())
            };
            let mut problems: Vec<_> = problems.iter().map(problem).collect();
            since.set(&mut problems, Timestamp::from_second(second).unwrap());
            let seconds = problems.iter().map(|it| it.since.unwrap().as_second());
            seconds.collect::<Vec<_>>()
        };
        let one = |message| (Kind::Route, "a", message);
        assert_eq!(look(&[one("1 of 1")], 1), [1]);
        let other = (Kind::Backend, "a", "1 of 1");
        assert_eq!(look(&[other, one("2 of 2")], 2), [2, 1]);
        assert_eq!(look(&[other], 3), [2]);
        assert_eq!(look(&[one("3 of 3"), other], 4), [4, 2]);
    }

    #[test]
    fn problem_of_the_configuration_is_another_one_with_another_cause() {
        let since = Since::default();
        let look = |message: &str, second| {
            let (severity, file) = (Severity::Error, "a.yaml".to_owned());
            let mut problem = Finding::of_file(severity, file, message.to_owned(), None);
            let now = Timestamp::from_second(second).unwrap();
            since.set(std::slice::from_mut(&mut problem), now);
            problem.since.unwrap().as_second()
        };
        assert_eq!((look("one", 1), look("one", 2)), (1, 1));
        assert_eq!(look("other", 3), 3);
    }
}
