//! The monotonic clock of the state that all workers share, in milliseconds.

use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::time::Instant;

/// Returns the milliseconds since the first call in this process, plus one.
pub fn now() -> NonZeroU64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    NonZeroU64::MIN.saturating_add(START.elapsed().as_millis() as u64)
}
