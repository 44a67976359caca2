//! Names and bounds of counters, and times, which are the same in all documents.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::table::DURATION_BOUNDS_MICROS;

/// Classes of statuses.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Returns counts by class of status.
pub(super) fn by_class(counts: [u64; CLASSES.len()]) -> BTreeMap<&'static str, u64> {
    CLASSES.into_iter().zip(counts).collect()
}

/// Returns the bounds of durations, in seconds.
pub(super) fn duration_bounds() -> [f64; DURATION_BOUNDS_MICROS.len()] {
    DURATION_BOUNDS_MICROS.map(|micros| micros as f64 / 1e6)
}

/// Returns a time, in seconds since 1970, as text; `None` if it is out of range.
pub(super) fn time(seconds: i64) -> Option<String> {
    Some(Timestamp::from_second(seconds).ok()?.to_string())
}
