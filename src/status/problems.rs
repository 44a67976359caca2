//! The problems of a report as findings, and how those of two reports differ.

use std::collections::HashSet;

use super::condition::{Condition, ConditionType, Reason};
use super::effect::{self, Bearer};
use super::placed::StatusPart;
use super::remedy;
use super::report::{Note, StatusReport};
use crate::finding::{Finding, Kind};
use crate::ir::ObjectRef;

/// The difference between the problems of two reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemChanges {
    /// Problems that only this report contains.
    pub new: Vec<Finding>,
    /// Problems that only the previous report contains.
    pub resolved: Vec<Finding>,
    /// By how many the number of problems grows.
    pub increase: isize,
}

impl StatusReport {
    /// Returns all problems in order of objects, each about the object that needs a change. Those of an object that name a
    /// cause come before those that only name its effect.
    pub fn findings(&self) -> Vec<Finding> {
        self.findings_unlike(&Self::default())
    }

    /// Returns all problems in the same order, each with the object that needs a change, without its effect and what to do.
    pub fn problems(&self) -> impl Iterator<Item = (ObjectRef, String)> + use<> {
        let findings = self.findings().into_iter();
        findings.filter_map(|it| Some((it.subject?, it.cause)))
    }

    /// Returns the difference from the problems of `previous`. Skips objects that share their status with it.
    pub fn problem_changes(&self, previous: &Self) -> ProblemChanges {
        let now = self.findings_unlike(previous);
        let previous = previous.findings_unlike(self);
        let increase = now.len() as isize - previous.len() as isize;
        ProblemChanges {
            new: missing(&now, &previous),
            resolved: missing(&previous, &now),
            increase,
        }
    }

    /// Returns the problems of objects whose status differs from that in `other`.
    fn findings_unlike(&self, other: &Self) -> Vec<Finding> {
        let mut problems: Vec<Finding> = Vec::new();
        let mut of_object: Vec<(Depth, Finding)> = Vec::new();
        for placed in self.conditions_unlike(other) {
            let is_next =
                |(_, problem): &(_, Finding)| problem.subject.as_ref() != Some(placed.object);
            if of_object.first().is_some_and(is_next) {
                problems.extend(causes_first(&mut of_object));
            }
            let bearer = Bearer {
                kind: &placed.object.kind,
                is_listener: matches!(placed.place, StatusPart::Listener(_)),
                conditions: placed.conditions,
            };
            let place = placed.place.to_string();
            for condition in placed.problems() {
                let problem = of_condition(placed.object, (bearer, &place), condition);
                of_object.push((Depth::of(placed.place, condition), problem));
            }
        }
        problems.extend(causes_first(&mut of_object));
        if self.notes != other.notes {
            problems.extend(self.notes.iter().map(of_note));
        }
        problems
    }
}

/// Returns the finding about an object with a condition that is a problem, at this place of its status; the place of the object
/// itself is empty.
pub(super) fn of_condition(
    object: &ObjectRef,
    (bearer, place): (Bearer<'_>, &str),
    condition: &Condition,
) -> Finding {
    let kind = match condition.reason {
        Reason::PortUnavailable => Kind::Port,
        _ => Kind::Object,
    };
    let cause = match place {
        "" => condition.to_string(),
        place => format!("{place}: {condition}"),
    };
    let effect = effect::of(bearer, condition).unwrap_or_default();
    let remedy = remedy::of(Some(condition.reason), &cause).unwrap_or_default();
    let finding = Finding::of_object(kind, object, cause);
    finding.with_effect(effect).with_remedy(remedy)
}

fn of_note(note: &Note) -> Finding {
    let remedy = remedy::of(None, &note.message).unwrap_or_default();
    Finding::of_object(Kind::Note, &note.object, note.message.clone()).with_remedy(remedy)
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
fn causes_first(problems: &mut Vec<(Depth, Finding)>) -> impl Iterator<Item = Finding> + use<> {
    let mut problems = std::mem::take(problems);
    problems.sort_by_key(|(depth, _)| *depth);
    problems.into_iter().map(|(_, problem)| problem)
}

/// Returns the problems that are not in `others`.
fn missing(problems: &[Finding], others: &[Finding]) -> Vec<Finding> {
    let others: HashSet<_> = others.iter().collect();
    let missing = problems.iter().filter(|problem| !others.contains(problem));
    missing.cloned().collect()
}
