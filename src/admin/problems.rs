//! All problems in one list, those with the most effect on requests first: of what happens now, of files, of conditions,
//! warnings and notes. The page, `/api/v1/` and through it `portcullis status` have them from here.

use jiff::Timestamp;

use super::causes;
use super::problem::{Kind, Problem};
use super::state::AdminState;
use super::troubles::{self, InService};
use crate::explain::advised;
use crate::status::{Reason, ReportedProblem, StatusReport, Warning, WarningKind};
use crate::table::Table;
use crate::telemetry::metrics::MemoryUse;

/// Returns the problems, each with the location of its object if that is in a file.
pub(super) fn of(state: &AdminState, table: &Table) -> Vec<Problem> {
    let mut all = in_service(state, table);
    all.extend(state.files.load().iter().cloned());
    let report = state.report.load();
    let reported = report.reported_problems().into_iter();
    all.extend(reported.map(|problem| of_object(problem, &report)));
    all.extend(state.warnings.load().iter().map(of_warning));
    causes::order(&mut all);
    let subjects = all.iter().filter_map(|problem| problem.subject.as_ref());
    let found = state.locations.load().find(subjects);
    all.iter_mut().for_each(|problem| problem.locate(&found));
    all
}

/// Returns the number of problems.
pub(super) fn count(state: &AdminState, table: &Table) -> usize {
    let by_kind = by_kind(state, table).into_iter();
    by_kind.map(|(_, count)| count as usize).sum()
}

/// Returns the number of problems of each kind.
pub(super) fn by_kind(state: &AdminState, table: &Table) -> Vec<(&'static str, u64)> {
    let mut counts = vec![0; Kind::ALL.len()];
    let mut add = |kind: Kind| counts[kind as usize] += 1;
    in_service(state, table).iter().for_each(|it| add(it.kind));
    state.files.load().iter().for_each(|it| add(it.kind));
    let reported = state.report.load().reported_problems();
    reported.iter().for_each(|it| add(kind_of(it.reason)));
    let warnings = state.warnings.load();
    warnings.iter().for_each(|it| add(kind_of_warning(it)));
    let names = Kind::ALL.iter().map(|kind| kind.name());
    names.zip(counts).collect()
}

fn in_service(state: &AdminState, table: &Table) -> Vec<Problem> {
    troubles::of(&InService {
        table,
        stats: &state.stats,
        before: &state.recent.before(),
        dropped: state.dropped_lines(),
        memory: MemoryUse::now(),
        now: Timestamp::now(),
    })
}

fn of_object(problem: ReportedProblem, report: &StatusReport) -> Problem {
    let ReportedProblem {
        object,
        reason,
        message,
        remedy,
    } = problem;
    let message = with_remedy(advised(report, message), remedy);
    Problem::of_configuration(kind_of(reason), &object, message)
}

fn with_remedy(message: String, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{message}; {remedy}"),
        None => message,
    }
}

fn kind_of(reason: Option<Reason>) -> Kind {
    match reason {
        Some(Reason::PortUnavailable) => Kind::Port,
        Some(_) => Kind::Object,
        None => Kind::Note,
    }
}

fn of_warning(warning: &Warning) -> Problem {
    let message = with_remedy(warning.message.clone(), warning.kind.remedy());
    Problem::of_configuration(kind_of_warning(warning), &warning.object, message)
}

fn kind_of_warning(warning: &Warning) -> Kind {
    match warning.kind {
        WarningKind::Unforwarded => Kind::Route,
        WarningKind::Hostname => Kind::Hostname,
        WarningKind::SignIn => Kind::SignIn,
        WarningKind::Policy => Kind::Policy,
        WarningKind::Shadowed => Kind::Shadowed,
    }
}
