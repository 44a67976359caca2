//! The monotonic clock of the state that all workers share.

use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the milliseconds since the first call in this process, plus one.
pub fn now() -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(START.elapsed().as_millis() as u64)
}

/// Returns the nanoseconds since the first call in this process, plus one.
pub fn nanos() -> u64 {
    START.elapsed().as_nanos() as u64 + 1
}
