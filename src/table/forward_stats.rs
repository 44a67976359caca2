//! Counters of the connections and sessions that a rule forwards as they are: each worker has its own, and they are summed
//! when they are read.

use crate::runtime::per_worker::{Count, PerWorker, WorkerId};

/// Counters of what a rule of a TCPRoute, TLSRoute or UDPRoute forwards. Those of another rule take no memory of their own.
#[derive(Debug, Default)]
pub struct ForwardStats(PerWorker<ForwardCounts>);

/// Counters of what one worker has forwarded.
#[derive(Debug, Default)]
struct ForwardCounts {
    open: Count,
    total: Count,
    failed: Count,
    received: Count,
    sent: Count,
}

/// The counts of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardTotals {
    /// Connections or sessions that are open.
    pub open: u64,
    /// Those that have begun.
    pub total: u64,
    /// Those that failed, and sessions that could not begin.
    pub failed: u64,
    /// Bytes of clients that were forwarded.
    pub received: u64,
    /// Bytes that clients were sent.
    pub sent: u64,
}

impl ForwardStats {
    /// Counts a connection or session in.
    pub fn enter(&self, worker: WorkerId) {
        let counts = self.0.of(worker);
        counts.open.add(1);
        counts.total.add(1);
    }

    /// Counts it out.
    pub fn leave(&self, worker: WorkerId) {
        self.0.of(worker).open.subtract_one();
    }

    /// Counts one that failed, or that could not begin.
    pub fn failed(&self, worker: WorkerId) {
        self.0.of(worker).failed.add(1);
    }

    /// Counts bytes of clients that were forwarded, and bytes that clients were sent.
    pub fn moved(&self, worker: WorkerId, received: u64, sent: u64) {
        let counts = self.0.of(worker);
        counts.received.add(received);
        counts.sent.add(sent);
    }

    /// Returns the counts of all workers.
    pub fn totals(&self) -> ForwardTotals {
        ForwardTotals {
            open: self.0.sum(|it| &it.open),
            total: self.0.sum(|it| &it.total),
            failed: self.0.sum(|it| &it.failed),
            received: self.0.sum(|it| &it.received),
            sent: self.0.sum(|it| &it.sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_counts_of_all_workers() {
        let (first, second) = (WorkerId::new(0, 2), WorkerId::new(1, 2));
        let stats = ForwardStats::default();
        assert_eq!(stats.totals(), ForwardTotals::default());
        stats.enter(first);
        stats.enter(second);
        stats.moved(first, 5, 0);
        stats.moved(second, 1, 3);
        stats.failed(second);
        stats.leave(second);
        let expected = ForwardTotals {
            open: 1,
            total: 2,
            failed: 1,
            received: 6,
            sent: 3,
        };
        assert_eq!(stats.totals(), expected);
    }
}
