//! Counters of fetched key sets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ir::named::named;

/// Counters of the key sets that policies name.
#[derive(Debug, Default)]
pub struct KeySetStats {
    fetched: AtomicU64,
    failures: [AtomicU64; FetchFailure::ALL.len()],
    current: AtomicU64,
    stale: AtomicU64,
    missing: AtomicU64,
    /// In milliseconds since 1970; 0 without a key set.
    oldest: AtomicU64,
}

named! {
    /// Why a fetch failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FetchFailure {
        /// No address of the issuer is permitted.
        Refused = "refused",
        /// The name, the connection or TLS failed, or took too long.
        Unreachable = "unreachable",
        /// The status of the response is another one than 200.
        Status = "status",
        /// The response is no key set that can be used.
        Invalid = "invalid",
    }
}

/// The number of key sets by state.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeySetTotals {
    /// With keys of the last fetch.
    pub current: u64,
    /// With keys of an earlier fetch, since the last one failed.
    pub stale: u64,
    /// Without keys.
    pub missing: u64,
}

impl KeySetStats {
    /// Counts a fetch, by why it failed, if it did.
    pub fn fetched(&self, failure: Option<FetchFailure>) {
        let counter = match failure {
            None => &self.fetched,
            Some(failure) => &self.failures[failure as usize],
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Records the state of all key sets, and when the oldest one was fetched, in milliseconds since 1970.
    pub fn measured(&self, totals: KeySetTotals, oldest: Option<u64>) {
        let KeySetTotals {
            current,
            stale,
            missing,
        } = totals;
        self.current.store(current, Relaxed);
        self.stale.store(stale, Relaxed);
        self.missing.store(missing, Relaxed);
        self.oldest.store(oldest.unwrap_or_default(), Relaxed);
    }

    /// Number of fetches by result.
    pub fn fetches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let failures = FetchFailure::ALL.into_iter();
        let failures = failures.map(|it| (it.name(), &self.failures[it as usize]));
        let all = [("fetched", &self.fetched)].into_iter().chain(failures);
        all.map(|(result, count)| (result, count.load(Relaxed)))
    }

    /// Number of key sets by state.
    pub fn sets(&self) -> [(&'static str, u64); 3] {
        [
            ("current", self.current.load(Relaxed)),
            ("stale", self.stale.load(Relaxed)),
            ("missing", self.missing.load(Relaxed)),
        ]
    }

    /// When the oldest key set was fetched, in milliseconds since 1970; 0 without a key set.
    pub fn oldest(&self) -> u64 {
        self.oldest.load(Relaxed)
    }
}
