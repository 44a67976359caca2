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
}

impl Announced {
    /// Logs the problems that are new since the last call.
    pub(super) fn announce(&mut self, load: &Arc<Load>, report: &Arc<StatusReport>) {
        let known: HashSet<_> = self.load.problems.iter().collect();
        let problems = load.problems.iter();
        for problem in problems.filter(|problem| !known.contains(problem)) {
            match problem.severity {
                Severity::Error => tracing::error!("{problem}"),
                Severity::Warning => tracing::warn!("{problem}"),
            }
        }
        for (object, message) in report.new_problems(&self.report) {
            tracing::warn!("{object}: {message}");
        }
        *self = Self {
            load: load.clone(),
            report: report.clone(),
        };
    }
}
