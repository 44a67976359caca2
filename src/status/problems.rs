//! The problems of a report as text, and how those of two reports differ.

use std::collections::HashSet;

use super::condition::{Condition, ConditionType, Reason};
use super::placed::StatusPart;
use super::remedy;
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
    /// What to do; `None` if the message says it.
    pub remedy: Option<&'static str>,
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

impl ReportedProblem {
    fn new(object: &ObjectRef, reason: Option<Reason>, message: String) -> Self {
        Self {
            object: object.clone(),
            reason,
            remedy: remedy::of(reason, &message),
            message,
        }
    }
}

impl StatusReport {
    /// Returns all problems in order of objects, each with the object that needs a change. Those of an object that name a
    /// cause come before those that only name its effect.
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
        let mut problems: Vec<ReportedProblem> = Vec::new();
        let mut of_object: Vec<(Depth, ReportedProblem)> = Vec::new();
        for placed in self.conditions_unlike(other) {
            let is_next = |(_, problem): &(_, ReportedProblem)| problem.object != *placed.object;
            if of_object.first().is_some_and(is_next) {
                problems.extend(causes_first(&mut of_object));
            }
            for condition in placed.problems() {
                let place = placed.place.to_string();
                let message = match place.is_empty() {
                    true => condition.to_string(),
                    false => format!("{place}: {condition}"),
                };
                let reason = Some(condition.reason);
                let problem = ReportedProblem::new(placed.object, reason, message);
                of_object.push((Depth::of(placed.place, condition), problem));
            }
        }
        problems.extend(causes_first(&mut of_object));
        if self.notes != other.notes {
            let notes = self.notes.iter();
            problems.extend(
                notes.map(|note| ReportedProblem::new(&note.object, None, note.message.clone())),
            );
        }
        problems
    }
}

/// How far a condition is from the cause of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// It names the cause.
    Cause,
    /// It says that a listener is not programmed, for a cause that another condition names.
    Listener,
    /// It says that listeners have problems.
    Sum,
}

impl Depth {
    fn of(place: StatusPart<'_>, condition: &Condition) -> Self {
        let is_sum = match condition.reason {
            Reason::ListenersNotValid => true,
            Reason::Invalid => condition.kind == ConditionType::Programmed,
            _ => false,
        };
        match place {
            _ if !is_sum => Self::Cause,
            StatusPart::Listener(_) => Self::Listener,
            StatusPart::Object | StatusPart::Parent(_) => Self::Sum,
        }
    }
}

/// Takes the problems of an object, those that name a cause first.
fn causes_first(
    problems: &mut Vec<(Depth, ReportedProblem)>,
) -> impl Iterator<Item = ReportedProblem> + use<> {
    let mut problems = std::mem::take(problems);
    problems.sort_by_key(|(depth, _)| *depth);
    problems.into_iter().map(|(_, problem)| problem)
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
