//! Tells the operator, in the log, what is wrong with the configuration: every problem once, when it appears. Knows not
//! what is served.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::api::Severity;
use crate::provider::Problem;
use crate::status::StatusReport;

/// What has been told, as hashes of the lines: there may be very many.
#[derive(Debug, Default)]
pub(super) struct Told(HashSet<u64>);

impl Told {
    /// Tells what is new since the last call.
    pub(super) fn tell(&mut self, problems: &[Problem], report: &StatusReport) {
        let mut lines = HashSet::new();
        let mut is_news = |line: &str| {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            let line = hasher.finish();
            lines.insert(line) && !self.0.contains(&line)
        };
        for problem in problems {
            let line = problem.to_string();
            if !is_news(&line) {
                continue;
            }
            match problem.severity {
                Severity::Error => tracing::error!("{line}"),
                Severity::Warning => tracing::warn!("{line}"),
            }
        }
        for (object, message) in report.problems() {
            let line = format!("{object}: {message}");
            if is_news(&line) {
                tracing::warn!("{line}");
            }
        }
        self.0 = lines;
    }
}
