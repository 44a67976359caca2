//! A number that tells versions of a value apart, within one process.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The fingerprint of a value.
///
/// Neither the hasher's algorithm nor the layout of what is hashed is promised: it must not be kept or sent.
pub fn of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
