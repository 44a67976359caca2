//! A number that tells versions of a value apart, within one process.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns the fingerprint of a value.
///
/// Must not be stored or sent: the standard library may change the algorithm of `DefaultHasher` in any release, and the
/// compiler the layout of enum discriminants.
pub fn of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
