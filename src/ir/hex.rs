//! Bytes in hexadecimal.

use std::fmt::Write;

/// Returns two lower-case digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
