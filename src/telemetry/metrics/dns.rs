//! Counters of DNS lookups.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ir::named::named;

/// Counters of lookups of backend hostnames.
#[derive(Debug, Default)]
pub struct DnsStats {
    lookups: [AtomicU64; LookupResult::ALL.len()],
    refused: AtomicU64,
}

named! {
    /// Result of a lookup.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LookupResult {
        /// The name has addresses.
        Found = "found",
        /// The name does not exist or has no address.
        NoAddress = "no_address",
        /// No name server answered.
        Failed = "failed",
    }
}

impl DnsStats {
    /// Counts a lookup.
    pub fn looked_up(&self, result: LookupResult) {
        self.lookups[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts resolved addresses that are neither public nor allowed.
    pub fn refused(&self, addresses: usize) {
        self.refused.fetch_add(addresses as u64, Ordering::Relaxed);
    }

    /// Number of lookups by result.
    pub fn lookups(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let results = LookupResult::ALL.into_iter();
        results.map(|result| {
            let count = self.lookups[result as usize].load(Ordering::Relaxed);
            (result.name(), count)
        })
    }

    /// Number of refused addresses.
    pub fn refused_addresses(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
