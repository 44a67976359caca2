//! Counters of responses by class of status: each worker has its own, and they are summed when they are read.

use super::outcomes::{CLASSES, Outcome};
use crate::runtime::per_worker::{Count, PerWorker, WorkerId};

/// Responses by class of status.
#[derive(Debug, Default)]
pub struct ClassCounts(PerWorker<[Count; CLASSES]>);

impl ClassCounts {
    /// Counts a response. A status outside 100 to 599 counts as 5xx.
    #[inline]
    pub fn record(&self, worker: WorkerId, status: u16) {
        self.0.of(worker)[Outcome::of_status(status).class()].add(1);
    }

    /// Returns the responses by class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; CLASSES] {
        let sum = |class: usize| self.0.iter().map(|it| it[class].get()).sum();
        std::array::from_fn(sum)
    }
}
