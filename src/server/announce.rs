//! Logs problems of the configuration, each once when it appears.

use std::collections::HashSet;
use std::sync::Arc;

use crate::api::Severity;
use crate::provider::Load;
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
    pub(super) fn announce(&mut self, load: &Arc<Load>, report: &Arc<StatusReport>) -> usize {
        let known: HashSet<_> = self.load.problems.iter().collect();
        let problems = load.problems.iter();
        for problem in problems.filter(|problem| !known.contains(problem)) {
            match problem.severity {
                Severity::Error => tracing::error!("{problem}"),
                Severity::Warning => tracing::warn!("{problem}"),
            }
        }
        let changes = report.problem_changes(&self.report);
        for (object, message) in changes.new {
            tracing::warn!("{object}: {message}");
        }
        *self = Self {
            load: load.clone(),
            report: report.clone(),
            reported: self.reported.saturating_add_signed(changes.increase),
        };
        self.load.problems.len() + self.reported
    }
}
