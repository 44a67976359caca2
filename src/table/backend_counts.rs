//! What a backend or an endpoint with limits gets at the same time, counted for all workers. Survives changes of the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::runtime::monotonic;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Requests in progress.
    Requests,
    /// Requests that wait for a new connection.
    Pending,
    /// Open connections.
    Connections,
}

/// There is as much of it as the policy of the backend permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded;

/// The counts of one backend, or of one endpoint.
#[derive(Debug, Default)]
pub struct BackendCounts {
    counts: [AtomicU32; 3],
    /// When a connection was refused last, in milliseconds of [`monotonic`]; 0 is never.
    refused: AtomicU64,
}

/// Counts as a request of a backend until it is dropped.
pub type RequestSlot = Slot<{ Counted::Requests as usize }>;
/// Counts as a request that waits until it is dropped.
pub type PendingSlot = Slot<{ Counted::Pending as usize }>;
/// Counts as a connection until it is dropped.
pub type ConnectionSlot = Slot<{ Counted::Connections as usize }>;

/// Counts as one of the kind until it is dropped.
#[derive(Debug)]
pub struct Slot<const KIND: usize>(Arc<BackendCounts>);

impl<const KIND: usize> Slot<KIND> {
    /// Takes one of `max` slots; `None` if there is none.
    pub(super) fn take(counts: &Arc<BackendCounts>, max: u32) -> Option<Self> {
        let count = &counts.counts[KIND];
        let add = |count: u32| (count < max).then_some(count + 1);
        count.fetch_update(Relaxed, Relaxed, add).ok()?;
        Some(Self(counts.clone()))
    }

    /// Reports whether it is one of this backend.
    pub fn is_of(&self, counts: &Arc<BackendCounts>) -> bool {
        Arc::ptr_eq(&self.0, counts)
    }
}

impl ConnectionSlot {
    /// Returns the counts that it belongs to.
    pub fn counts(&self) -> &Arc<BackendCounts> {
        &self.0
    }
}

impl<const KIND: usize> Drop for Slot<KIND> {
    fn drop(&mut self) {
        self.0.counts[KIND].fetch_sub(1, Relaxed);
    }
}

impl BackendCounts {
    /// Reports whether connections were refused since this time, for want of slots.
    pub fn is_wanted(&self, since: u64) -> bool {
        self.refused.load(Relaxed) > since
    }

    /// Notes that a connection was refused.
    pub(super) fn want(&self) {
        self.refused.store(monotonic::now().get(), Relaxed);
    }

    /// Returns the number of open connections.
    pub(super) fn connections(&self) -> u32 {
        self.counts[Counted::Connections as usize].load(Relaxed)
    }

    /// Counts a connection. Notes that one was refused if there are as many as `max`.
    pub(super) fn connect(self: &Arc<Self>, max: u32) -> Result<ConnectionSlot, Overloaded> {
        Slot::take(self, max).ok_or_else(|| {
            self.want();
            Overloaded
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_limited_and_come_back() {
        let counts = Arc::<BackendCounts>::default();
        let first = RequestSlot::take(&counts, 2).unwrap();
        let second = RequestSlot::take(&counts, 2).unwrap();
        assert!(RequestSlot::take(&counts, 2).is_none());
        assert!(PendingSlot::take(&counts, 1).is_some(), "counted apart");
        drop(first);
        assert!(second.is_of(&counts) && RequestSlot::take(&counts, 2).is_some());
    }
}
