//! What troubles are looked for in: the table and the counters of the process, now and some minutes ago. Also how times are
//! named, and how many troubles.

use std::time::Duration;

use jiff::Timestamp;

use crate::admin::recent::{Counters, DroppedLines};
use crate::table::Table;
use crate::telemetry::ProcessStats;
use crate::telemetry::metrics::MemoryUse;

/// Maximum number of troubles of a kind that are named.
pub(super) const MAX_NAMED: usize = 20;

/// What is looked at.
pub(in crate::admin) struct InService<'a> {
    pub(in crate::admin) table: &'a Table,
    pub(in crate::admin) stats: &'a ProcessStats,
    /// The counters of some minutes ago.
    pub(in crate::admin) before: &'a Counters,
    /// Lines of the logs that were dropped since the start.
    pub(in crate::admin) dropped: DroppedLines,
    /// The memory of the process, if it has a limit.
    pub(in crate::admin) memory: Option<MemoryUse>,
    pub(in crate::admin) now: Timestamp,
}

/// Names the time until now.
pub(super) fn minutes(time: Duration) -> String {
    match time.as_secs().div_ceil(60) {
        0 | 1 => "last minute".to_owned(),
        minutes => format!("last {minutes} minutes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_named_in_minutes() {
        let named = |seconds| minutes(Duration::from_secs(seconds));
        assert_eq!((&*named(0), &*named(60)), ("last minute", "last minute"));
        assert_eq!(named(61), "last 2 minutes");
    }
}
