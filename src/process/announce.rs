//! Logs problems of the configuration, each once when it appears, with the location of its object, and once when it is
//! resolved, and routes that are removed.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use crate::finding::{Finding, Severity};
use crate::provider::Load;
use crate::provider::file::Locations;
use crate::status::StatusReport;

/// The problems that have been logged.
#[derive(Debug, Default)]
pub(super) struct Announced {
    load: Arc<Load>,
    report: Arc<StatusReport>,
    /// Number of problems in `report`.
    reported: usize,
}

impl Announced {
    /// Logs the problems that are new since the last call. Returns the number of all problems.
    pub(super) fn announce(
        &mut self,
        load: &Arc<Load>,
        report: &Arc<StatusReport>,
        locations: &Locations,
    ) -> usize {
        let known: HashSet<_> = self.load.problems.iter().collect();
        let problems = load.problems.iter();
        for problem in problems.filter(|problem| !known.contains(problem)) {
            log(problem.severity, problem);
        }
        self.announce_resolved(load);
        let changes = report.problem_changes(&self.report);
        log_changes(changes.new, &changes.resolved, locations);
        announce_routes(&self.report, report);
        *self = Self {
            load: load.clone(),
            report: report.clone(),
            reported: self.reported.saturating_add_signed(changes.increase),
        };
        let problems = self.load.problems.iter();
        problems.filter(|problem| problem.is_fault()).count() + self.reported
    }

    /// Logs the problems that are resolved.
    fn announce_resolved(&self, load: &Load) {
        let known: HashSet<_> = load.problems.iter().collect();
        let previous = self.load.problems.iter();
        let previous = previous.filter(|problem| problem.is_fault());
        for problem in previous.filter(|problem| !known.contains(problem)) {
            tracing::info!("resolved: {problem}");
        }
    }
}

/// Logs findings that are new, with the locations of their objects, and those that are resolved.
pub(super) fn log_changes<'a>(
    mut new: Vec<Finding>,
    resolved: impl IntoIterator<Item = &'a Finding>,
    locations: &Locations,
) {
    locations.locate(&mut new);
    for finding in &new {
        log(finding.severity, finding);
    }
    for finding in resolved {
        tracing::info!("resolved: {finding}");
    }
}

fn log(severity: Severity, text: &impl fmt::Display) {
    match severity {
        Severity::Error => tracing::error!("{text}"),
        Severity::Warning => tracing::warn!("{text}"),
        Severity::Note => tracing::info!("{text}"),
    }
}

/// Logs routes that exist no longer. Skips those that share their conditions.
fn announce_routes(previous: &StatusReport, now: &StatusReport) {
    for item in previous.routes.diff(&now.routes) {
        if let DiffItem::Remove(route, _) = item {
            tracing::info!("{route} was removed");
        }
    }
}
