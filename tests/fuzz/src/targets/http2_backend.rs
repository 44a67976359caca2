//! Feeds frames of a backend to what reads them before h2's client does, and to both.

use crate::http2;

/// Checks one input.
pub fn check(data: &[u8]) {
    http2::check(data, false);
}
