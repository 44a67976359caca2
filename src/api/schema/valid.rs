//! Remembers values that satisfied all checks of a schema or a node. Objects of a kind are often alike, and whether a
//! value is valid depends on nothing else. Must not know the checks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};

use serde_json::Value;

/// Number of values that are remembered at a time: the digest selects the place.
const PLACES: usize = 1024;

/// Digest of a value. No author of a value can make one with the digest of another: its key is a secret of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    /// Returns the digest of a value.
    pub(super) fn of(value: &Value) -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        // Zero is an empty place.
        Self(KEY.hash_one(value).max(1))
    }
}

/// Digests of valid values, the latest of each place.
#[derive(Debug, Default)]
pub(super) struct ValidValues(OnceLock<Box<[AtomicU64]>>);

impl ValidValues {
    /// Reports whether a value is known to be valid.
    pub(super) fn contains(&self, Digest(digest): Digest) -> bool {
        let places = self.0.get();
        places.is_some_and(|places| places[place(digest)].load(Relaxed) == digest)
    }

    /// Remembers a valid value.
    pub(super) fn insert(&self, Digest(digest): Digest) {
        let empty = || (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        self.0.get_or_init(empty)[place(digest)].store(digest, Relaxed);
    }
}

fn place(digest: u64) -> usize {
    digest as usize % PLACES
}
