//! Feeds streams and field sections of an HTTP/3 client to what reads them.

use crate::http3;

/// Checks one input.
pub fn check(data: &[u8]) {
    http3::check(data);
}
