//! The problems of a report as text, and how those of two reports differ.

use std::collections::HashSet;

use super::condition::Reason;
use super::report::StatusReport;
use crate::ir::ObjectRef;

/// A problem of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedProblem {
    /// The object that needs a change.
    pub object: ObjectRef,
    /// The reason of its condition; `None` for a note.
    pub reason: Option<Reason>,
    /// What is wrong, and in which part of the object.
    pub message: String,
}

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

    /// Returns all problems in the same order, with their reasons.
    pub fn reported_problems(&self) -> Vec<ReportedProblem> {
        self.reported_unlike(&Self::default())
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

    fn problems_unlike(&self, other: &Self) -> Vec<(ObjectRef, String)> {
        let problems = self.reported_unlike(other).into_iter();
        problems.map(|it| (it.object, it.message)).collect()
    }

    /// Returns the problems of objects whose status differs from that in `other`.
    fn reported_unlike(&self, other: &Self) -> Vec<ReportedProblem> {
        let mut problems = Vec::new();
        for placed in self.conditions_unlike(other) {
            for condition in placed.problems() {
                let place = placed.place.to_string();
                problems.push(ReportedProblem {
                    object: placed.object.clone(),
                    reason: Some(condition.reason),
                    message: match place.is_empty() {
                        true => condition.to_string(),
                        false => format!("{place}: {condition}"),
                    },
                });
            }
        }
        if self.notes != other.notes {
            problems.extend(self.notes.iter().map(|note| ReportedProblem {
                object: note.object.clone(),
                reason: None,
                message: note.message.clone(),
            }));
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
