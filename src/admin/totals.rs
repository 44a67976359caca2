//! The counters of all rules together, as they are now.

use crate::table::{Histogram, Table};
use crate::telemetry::ProcessStats;

/// The counters of all rules, and the connections of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Requests by class of status, 1xx to 5xx.
    pub(super) classes: [u64; 5],
    pub(super) in_flight: u64,
    pub(super) durations: Histogram,
    /// Open connections of clients.
    pub(super) connections: u64,
}

impl Totals {
    /// Returns the counters as they are.
    pub(super) fn of(table: &Table, stats: &ProcessStats) -> Self {
        let mut totals = Self {
            connections: stats.connections.open(),
            ..Self::default()
        };
        for rule in table.counted_rules() {
            let stats = &rule.state.stats;
            totals.in_flight += stats.in_flight();
            for (sum, count) in totals.classes.iter_mut().zip(stats.classes()) {
                *sum += count;
            }
            totals.durations.add(&stats.durations());
        }
        totals
    }
}
