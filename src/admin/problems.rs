//! All problems in one list, those with the most effect on requests first: of what happens now, of files, of conditions,
//! warnings and notes. The page, `/api/v1/` and through it `portcullis status` have them from here.

use jiff::Timestamp;

use super::problem::{Kind, Problem};
use super::state::AdminState;
use super::troubles::{self, InService};
use crate::status::{Reason, ReportedProblem, Warning, WarningKind};
use crate::table::Table;

/// Returns the problems, each with the location of its object if that is in a file.
pub(super) fn of(state: &AdminState, table: &Table) -> Vec<Problem> {
    let mut all = in_service(state, table);
    all.extend(state.files.load().iter().cloned());
    let report = state.report.load();
    all.extend(report.reported_problems().into_iter().map(of_object));
    all.extend(state.warnings.load().iter().map(of_warning));
    all.sort_by_key(|problem| problem.kind);
    let subjects = all.iter().filter_map(|problem| problem.subject.as_ref());
    let found = state.locations.load().find(subjects);
    all.iter_mut().for_each(|problem| problem.locate(&found));
    all
}

/// Returns the number of problems.
pub(super) fn count(state: &AdminState, table: &Table) -> usize {
    in_service(state, table).len()
        + state.files.load().len()
        + state.report.load().reported_problems().len()
        + state.warnings.load().len()
}

fn in_service(state: &AdminState, table: &Table) -> Vec<Problem> {
    troubles::of(&InService {
        table,
        stats: &state.stats,
        before: &state.recent.before(),
        dropped: state.dropped_lines(),
        now: Timestamp::now(),
    })
}

fn of_object(problem: ReportedProblem) -> Problem {
    let kind = match problem.reason {
        Some(Reason::PortUnavailable) => Kind::Port,
        Some(_) => Kind::Object,
        None => Kind::Note,
    };
    Problem::of_configuration(kind, &problem.object, problem.message)
}

fn of_warning(warning: &Warning) -> Problem {
    let kind = match warning.kind {
        WarningKind::Unforwarded => Kind::Route,
        WarningKind::Hostname => Kind::Hostname,
        WarningKind::SignIn => Kind::SignIn,
        WarningKind::Policy => Kind::Policy,
        WarningKind::Shadowed => Kind::Shadowed,
    };
    Problem::of_configuration(kind, &warning.object, warning.message.clone())
}
