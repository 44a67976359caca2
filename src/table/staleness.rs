//! Whether the endpoints of all backends may be out of date, because the source of objects is lost. Holds for the whole
//! process, which has one source of objects.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of times that the source of objects was lost or found; odd while it is lost.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Records whether endpoints may be out of date. Only one thread may call this.
pub fn set_stale(is_stale: bool) {
    if is_stale != loss().is_some() {
        CHANGES.fetch_add(1, Relaxed);
    }
}

/// Returns the number of the present loss; `None` while endpoints are up to date.
pub(super) fn loss() -> Option<u64> {
    Some(CHANGES.load(Relaxed)).filter(|changes| changes % 2 == 1)
}
