//! Counters of responses by method, status and error. One worker counts, and any thread reads. What a worker has not counted
//! yet gets a counter of its own, up to a limit, so that backends with many statuses do not make the page of metrics large.

use std::sync::OnceLock;

use http::Method;

use crate::runtime::per_worker::Count;

/// Counters that are allocated at once.
const CHUNK: usize = 3;
/// Classes of statuses, from 1xx to 5xx.
pub(super) const CLASSES: usize = 5;
/// Limit of allocations. Further outcomes are counted by the class of their status.
const MAX_CHUNKS: usize = 16;

/// A method in metrics: one that the semantic conventions of OpenTelemetry know, or `_OTHER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownMethod(u8);

impl KnownMethod {
    const NAMES: [&str; 10] = [
        "_OTHER", "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE",
    ];

    /// Returns the known method that this one is.
    #[inline]
    pub fn of(method: &Method) -> Self {
        let mut names = Self::NAMES.iter();
        let known = names.position(|name| *name == method.as_str());
        Self(known.unwrap_or(0) as u8)
    }

    /// Number of known methods, `_OTHER` included.
    pub(super) const COUNT: usize = Self::NAMES.len();

    /// Returns its index among the known methods.
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the method of an index; `_OTHER` if there is none.
    pub(super) fn at(index: usize) -> Self {
        Self(if index < Self::COUNT { index as u8 } else { 0 })
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(usize::from(self.0)).unwrap_or(&"_OTHER")
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Method of the request.
    pub method: KnownMethod,
    /// Status of the response, or the class of statuses that have no counters of their own, from 1 to 5.
    pub status: u16,
    /// The error in the access log.
    pub error: Option<&'static str>,
}

impl Outcome {
    /// The outcome of a request without an error, whose method is not counted.
    pub fn of_status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Replaces a status that is not registered by its class.
    #[inline]
    pub(super) fn with_known_status(self) -> Self {
        match is_registered(self.status) {
            true => self,
            false => Self {
                status: self.class() as u16 + 1,
                ..self
            },
        }
    }

    /// Index of the class of the status, from 1xx to 5xx. A status outside 100 to 599 is 5xx.
    pub fn class(self) -> usize {
        match self.status {
            1..=5 => usize::from(self.status) - 1,
            100..=599 => usize::from(self.status / 100) - 1,
            _ => 4,
        }
    }

    /// Compares errors by their address, which is faster than by content: readers sum up those of equal content.
    #[inline]
    fn is_same(self, other: Self) -> bool {
        let same_error = match (self.error, other.error) {
            (None, None) => true,
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            _ => false,
        };
        self.status == other.status && self.method == other.method && same_error
    }
}

/// Reports whether a status is in the registry of IANA, or is that of a client that has left.
#[inline]
fn is_registered(status: u16) -> bool {
    matches!(
        status,
        100..=104 | 200..=208 | 226 | 300..=308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451 | 499..=508 | 510 | 511
    )
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The first outcome, which most rules have most often.
    first: Slot,
    more: OnceLock<Box<More>>,
}

#[derive(Debug, Default)]
struct Slot {
    outcome: OnceLock<Outcome>,
    count: Count,
}

#[derive(Debug)]
enum More {
    Outcomes([Slot; CHUNK], OnceLock<Box<Self>>),
    /// Of all further outcomes, by class of status.
    Classes([Count; CLASSES]),
}

impl Slot {
    /// Counts the outcome if the slot is for it, or for none yet.
    #[inline]
    fn try_add(&self, outcome: Outcome) -> bool {
        let is_mine = self.outcome.get_or_init(|| outcome).is_same(outcome);
        if is_mine {
            self.count.add(1);
        }
        is_mine
    }

    fn get(&self) -> Option<(Outcome, u64)> {
        Some((*self.outcome.get()?, self.count.get()))
    }
}

impl Outcomes {
    /// Counts a request.
    #[inline]
    pub fn add(&self, outcome: Outcome) {
        let outcome = outcome.with_known_status();
        if !self.first.try_add(outcome) {
            self.add_more(outcome);
        }
    }

    fn add_more(&self, outcome: Outcome) {
        let mut next = &self.more;
        for chunk in 0.. {
            let more = next.get_or_init(|| {
                Box::new(match chunk {
                    MAX_CHUNKS => More::Classes(Default::default()),
                    _ => More::Outcomes(Default::default(), OnceLock::new()),
                })
            });
            match &**more {
                More::Outcomes(slots, _) if slots.iter().any(|it| it.try_add(outcome)) => return,
                More::Outcomes(_, further) => next = further,
                More::Classes(counts) => return counts[outcome.class()].add(1),
            }
        }
    }

    /// Calls `read` with each outcome and its number of requests.
    pub fn read(&self, mut read: impl FnMut(Outcome, u64)) {
        let mut chunk = std::slice::from_ref(&self.first);
        let mut next = &self.more;
        loop {
            for (outcome, count) in chunk.iter().filter_map(Slot::get) {
                read(outcome, count);
            }
            match next.get().map(|more| &**more) {
                Some(More::Outcomes(slots, further)) => (chunk, next) = (slots, further),
                Some(More::Classes(counts)) => {
                    for (class, count) in (1..).zip(counts) {
                        read(Outcome::of_status(class), count.get());
                    }
                    return;
                }
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(outcomes: &Outcomes) -> BTreeMap<Outcome, u64> {
        let mut all = BTreeMap::new();
        outcomes.read(|outcome, count| *all.entry(outcome).or_default() += count);
        all
    }

    #[test]
    fn outcomes_differ_in_method_status_and_error() {
        let outcomes = Outcomes::default();
        assert!(all(&outcomes).is_empty());
        let outcome = |method: &str, status, error| Outcome {
            method: KnownMethod::of(&method.parse().unwrap()),
            status,
            error,
        };
        for (method, status, error, times) in [
            ("GET", 200, None, 5),
            ("POST", 200, None, 1),
            ("GET", 503, None, 2),
            ("GET", 503, Some("the backend failed"), 3),
            ("get", 200, None, 1),
            ("PURGE", 200, None, 1),
        ] {
            for _ in 0..times {
                outcomes.add(outcome(method, status, error));
            }
        }
        let all = all(&outcomes);
        assert_eq!(all.len(), 5);
        assert_eq!(all[&outcome("GET", 200, None)], 5);
        assert_eq!(all[&outcome("GET", 503, Some("the backend failed"))], 3);
        let other = outcome("PURGE", 200, None);
        assert_eq!((other.method.name(), all[&other]), ("_OTHER", 2));
    }

    #[test]
    fn number_of_counters_is_limited() {
        let outcomes = Outcomes::default();
        for status in 100..1_000 {
            outcomes.add(Outcome::of_status(status));
        }
        let few = all(&outcomes);
        assert!(few.len() <= 1 + CHUNK * MAX_CHUNKS + 5, "{few:?}");
        assert_eq!(few.values().sum::<u64>(), 900);
        // 299 and others are not registered, and neither are those from 600.
        assert_eq!(few[&Outcome::of_status(204)], 1);
        assert_eq!(few[&Outcome::of_status(2)], 90);
        assert!(few[&Outcome::of_status(5)] >= 489, "{few:?}");
    }
}
