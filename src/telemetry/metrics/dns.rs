//! Numbers of lookups in DNS.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of lookups of the names of backends.
#[derive(Debug, Default)]
pub struct DnsStats {
    lookups: [AtomicU64; LookupResult::ALL.len()],
    refused: AtomicU64,
}

/// What a lookup came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// Addresses.
    Found,
    /// The name does not exist, or has no address.
    NoAddress,
    /// No name server gave an answer.
    Failed,
}

impl LookupResult {
    const ALL: [Self; 3] = [Self::Found, Self::NoAddress, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NoAddress => "no_address",
            Self::Failed => "failed",
        }
    }
}

impl DnsStats {
    /// Counts a lookup.
    pub fn looked_up(&self, result: LookupResult) {
        self.lookups[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts addresses of a lookup that no request is sent to.
    pub fn refused(&self, addresses: usize) {
        self.refused.fetch_add(addresses as u64, Ordering::Relaxed);
    }

    /// Lookups so far, by what they came to.
    pub fn lookups(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let results = LookupResult::ALL.into_iter();
        results.map(|result| {
            let count = self.lookups[result as usize].load(Ordering::Relaxed);
            (result.name(), count)
        })
    }

    /// Addresses so far that were found and refused.
    pub fn refused_addresses(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
