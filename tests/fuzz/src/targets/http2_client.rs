//! Feeds frames of a client to what reads them before h2's server does, and to both.

use crate::http2;

/// Checks one input.
pub fn check(data: &[u8]) {
    http2::check(data, true);
}
