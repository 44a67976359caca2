//! All problems in one list, those with the most effect on requests first: of what happens now, of files, of conditions,
//! warnings and notes. The page, `/api/v1/` and through it `portcullis status` have them from here.

use jiff::Timestamp;

use super::problem::{Kind, Problem};
use super::state::AdminState;
use super::troubles::{self, InService};
use crate::status::{Reason, ReportedProblem, Warning, WarningKind};
use crate::table::Table;

/// Returns the problems.
pub(super) fn of(state: &AdminState, table: &Table) -> Vec<Problem> {
    let service = InService {
        table,
        stats: &state.stats,
        before: &state.recent.before(),
        dropped: state.dropped_lines(),
        now: Timestamp::now(),
    };
    let mut all = troubles::of(&service);
    all.extend(state.files.load().iter().cloned());
    let report = state.report.load();
    all.extend(report.reported_problems().into_iter().map(of_object));
    all.extend(state.warnings.load().iter().map(of_warning));
    all.sort_by_key(|problem| problem.kind);
    all
}

fn of_object(problem: ReportedProblem) -> Problem {
    let kind = match problem.reason {
        Some(Reason::PortUnavailable) => Kind::Port,
        Some(_) => Kind::Object,
        None => Kind::Note,
    };
    Problem::of_configuration(kind, problem.object.to_string(), problem.message)
}

fn of_warning(warning: &Warning) -> Problem {
    let kind = match warning.kind {
        WarningKind::Unforwarded => Kind::Route,
        WarningKind::Hostname => Kind::Hostname,
        WarningKind::Shadowed => Kind::Shadowed,
    };
    Problem::of_configuration(kind, warning.object.to_string(), warning.message.clone())
}
