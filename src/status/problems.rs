//! The problems of a report as text, and how those of two reports differ.

use std::collections::HashSet;

use super::report::StatusReport;
use crate::ir::ObjectRef;

/// The difference between the problems of two reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemChanges {
    /// Problems that only this report contains, each with the object that needs a change.
    pub new: Vec<(ObjectRef, String)>,
    /// Problems that only the previous report contains.
    pub resolved: Vec<(ObjectRef, String)>,
    /// By how many the number of problems grows.
    pub increase: isize,
}

impl StatusReport {
    /// Returns all problems in order of objects, each with the object that needs a change.
    pub fn problems(&self) -> impl Iterator<Item = (ObjectRef, String)> + use<> {
        self.problems_unlike(&Self::default()).into_iter()
    }

    /// Returns the difference from the problems of `previous`. Skips objects that share their status with it.
    pub fn problem_changes(&self, previous: &Self) -> ProblemChanges {
        let now = self.problems_unlike(previous);
        let previous = previous.problems_unlike(self);
        let increase = now.len() as isize - previous.len() as isize;
        ProblemChanges {
            new: missing(&now, &previous),
            resolved: missing(&previous, &now),
            increase,
        }
    }

    /// Returns the problems of objects whose status differs from that in `other`.
    fn problems_unlike(&self, other: &Self) -> Vec<(ObjectRef, String)> {
        let mut problems = Vec::new();
        for placed in self.conditions_unlike(other) {
            for condition in placed.problems() {
                let place = placed.place.to_string();
                let text = match place.is_empty() {
                    true => condition.to_string(),
                    false => format!("{place}: {condition}"),
                };
                problems.push((placed.object.clone(), text));
            }
        }
        if self.notes != other.notes {
            let notes = self.notes.iter();
            problems.extend(notes.map(|note| (note.object.clone(), note.message.clone())));
        }
        problems
    }
}

/// Returns the problems that are not in `others`.
fn missing(
    problems: &[(ObjectRef, String)],
    others: &[(ObjectRef, String)],
) -> Vec<(ObjectRef, String)> {
    let others: HashSet<_> = others.iter().collect();
    let missing = problems.iter().filter(|problem| !others.contains(problem));
    missing.cloned().collect()
}
