//! Logs problems of the configuration, each once when it appears, with the location of its object, and once when it is
//! resolved, and routes that are removed.

use std::collections::HashSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use crate::api::Severity;
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
            match problem.severity {
                Severity::Error => tracing::error!("{problem}"),
                Severity::Warning => tracing::warn!("{problem}"),
                Severity::Note => tracing::info!("{problem}"),
            }
        }
        self.announce_resolved(load);
        let changes = report.problem_changes(&self.report);
        let found = locations.find(changes.new.iter().map(|(object, _)| object));
        for (object, message) in &changes.new {
            tracing::warn!("{}", found.locate(object, message));
        }
        for (object, message) in changes.resolved {
            tracing::info!("resolved: {object}: {message}");
        }
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

/// Logs routes that exist no longer. Skips those that share their conditions.
fn announce_routes(previous: &StatusReport, now: &StatusReport) {
    for item in previous.routes.diff(&now.routes) {
        if let DiffItem::Remove(route, _) = item {
            tracing::info!("{route} was removed");
        }
    }
}
