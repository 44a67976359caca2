//! Durations of requests by method and by class of status, where the settings have these labels. One worker counts, and any
//! thread reads. A histogram exists from its first request on; finding it is an index, without a search or a lock.

use std::sync::OnceLock;

use thin_vec::ThinVec;

use super::durations::DurationCounts;
use super::outcomes::{CLASSES, KnownMethod, Outcome};
use crate::settings::metrics::DurationLabels;

/// The histograms of one worker, of which there are as many as combinations of labels.
#[derive(Debug, Default)]
pub(super) struct LabelledDurations(OnceLock<ThinVec<Slot>>);

type Slot = OnceLock<Box<DurationCounts>>;

impl LabelledDurations {
    /// Returns the histogram of an outcome. All callers have to agree about the labels.
    pub(super) fn of(&self, labels: DurationLabels, outcome: Outcome) -> Option<&DurationCounts> {
        let slots = self.0.get_or_init(|| empty(labels));
        let slot = slots.get(index(labels, outcome))?;
        Some(slot.get_or_init(Box::default))
    }

    /// Returns the histograms that exist, each with its labels as an outcome.
    pub(super) fn iter(
        &self,
        labels: DurationLabels,
    ) -> impl Iterator<Item = (Outcome, &DurationCounts)> {
        let slots = self.0.get().into_iter().flatten().enumerate();
        slots.filter_map(move |(index, slot)| Some((outcome(labels, index), &**slot.get()?)))
    }

    /// Returns the histograms that exist.
    pub(super) fn all(&self) -> impl Iterator<Item = &DurationCounts> {
        let slots = self.0.get().into_iter().flatten();
        slots.filter_map(|slot| Some(&**slot.get()?))
    }
}

impl Outcome {
    /// Returns what durations with these labels tell of the outcome: the method, and the class of the status.
    pub fn labelled(self, labels: DurationLabels) -> Self {
        outcome(labels, index(labels, self))
    }
}

#[inline]
fn index(labels: DurationLabels, outcome: Outcome) -> usize {
    let method = if labels.method {
        outcome.method.index()
    } else {
        0
    };
    match labels.status_class {
        true => method * CLASSES + outcome.class(),
        false => method,
    }
}

/// The inverse of [`index`].
fn outcome(labels: DurationLabels, index: usize) -> Outcome {
    let (method, status) = match labels.status_class {
        true => (index / CLASSES, index % CLASSES + 1),
        false => (index, 0),
    };
    Outcome {
        method: KnownMethod::at(method),
        status: status as u16,
        error: None,
    }
}

#[cold]
fn empty(labels: DurationLabels) -> ThinVec<Slot> {
    let methods = if labels.method { KnownMethod::COUNT } else { 1 };
    let classes = if labels.status_class { CLASSES } else { 1 };
    (0..methods * classes).map(|_| Slot::new()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOTH: DurationLabels = DurationLabels {
        method: true,
        status_class: true,
    };

    fn outcome(method: &str, status: u16) -> Outcome {
        Outcome {
            method: KnownMethod::of(&method.parse().unwrap()),
            status,
            error: Some("an error"),
        }
    }

    /// The number of durations by labels.
    fn counts(durations: &LabelledDurations, labels: DurationLabels) -> Vec<(&str, u16, u64)> {
        let all = durations.iter(labels).map(|(outcome, counts)| {
            let count = super::super::durations::Histogram::of([counts].into_iter()).count();
            (outcome.method.name(), outcome.status, count)
        });
        all.collect()
    }

    #[test]
    fn durations_are_counted_by_the_labels_of_the_settings() {
        let method = DurationLabels {
            method: true,
            status_class: false,
        };
        let status_class = DurationLabels {
            method: false,
            status_class: true,
        };
        for (labels, expected) in [
            (
                BOTH,
                vec![
                    ("_OTHER", 2, 1),
                    ("GET", 2, 2),
                    ("GET", 5, 1),
                    ("TRACE", 4, 1),
                ],
            ),
            (
                method,
                vec![("_OTHER", 0, 1), ("GET", 0, 3), ("TRACE", 0, 1)],
            ),
            (
                status_class,
                vec![("_OTHER", 2, 3), ("_OTHER", 4, 1), ("_OTHER", 5, 1)],
            ),
            (DurationLabels::default(), vec![("_OTHER", 0, 5)]),
        ] {
            let durations = LabelledDurations::default();
            for outcome in [
                outcome("GET", 200),
                outcome("GET", 204),
                outcome("PURGE", 299),
                outcome("GET", 999),
                outcome("TRACE", 405),
            ] {
                let counts = durations.of(labels, outcome).unwrap();
                counts.record(Duration::from_millis(1));
                let mut all = durations.iter(labels).map(|(outcome, _)| outcome);
                assert!(all.any(|it| it == outcome.labelled(labels)));
            }
            assert_eq!(counts(&durations, labels), expected);
            assert_eq!(durations.all().count(), expected.len());
        }
    }

    #[test]
    fn number_of_histograms_is_limited() {
        let durations = LabelledDurations::default();
        for method in ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"]
            .into_iter()
            .chain(["CONNECT", "TRACE", "PURGE", "get", "BREW"])
        {
            for status in 0..1_000 {
                assert!(durations.of(BOTH, outcome(method, status)).is_some());
            }
        }
        assert_eq!(durations.all().count(), KnownMethod::COUNT * CLASSES);
    }
}
