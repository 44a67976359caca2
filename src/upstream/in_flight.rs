//! Requests in flight to endpoints, as one worker sees them: its own exactly, those of the other workers as of a moment ago.
//! A request writes no memory that workers share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::runtime::clock::Clock;
use crate::runtime::per_worker::{PerWorker, WorkerId};
use crate::table::{Endpoint, KnownLoad};

/// Selections in which the load of the other workers at an endpoint is known, unless the clock ticks before.
const SELECTIONS: u8 = 16;

/// The endpoints that a worker uses.
pub(super) struct WorkerEndpoints {
    worker: WorkerId,
    clock: Rc<Clock>,
    by_id: RefCell<FxHashMap<u64, Rc<WorkerEndpoint>>>,
}

/// An endpoint that a worker uses. Its requests share this reference, since those of an `Arc` would be counted for all
/// workers.
struct WorkerEndpoint {
    endpoint: Arc<Endpoint>,
    worker: WorkerId,
    /// Requests of the other workers in flight, and when they were counted.
    others: Cell<u64>,
    counted: Cell<u64>,
    /// Selections for which that count is still used.
    left: Cell<u8>,
}

impl WorkerEndpoints {
    pub(super) fn new(worker: WorkerId, clock: Rc<Clock>) -> Self {
        Self {
            worker,
            clock,
            by_id: RefCell::default(),
        }
    }

    /// Counts a request in flight.
    #[inline]
    pub(super) fn begin(&self, endpoint: &Arc<Endpoint>) -> InFlight {
        endpoint.load.begin(self.worker);
        let mut by_id = self.by_id.borrow_mut();
        InFlight(
            by_id
                .entry(endpoint.id)
                .or_insert_with(|| self.add(endpoint))
                .clone(),
        )
    }

    /// Returns the requests in flight.
    pub(super) fn load(&self, endpoint: &Arc<Endpoint>) -> u64 {
        let mut by_id = self.by_id.borrow_mut();
        let known = by_id
            .entry(endpoint.id)
            .or_insert_with(|| self.add(endpoint));
        known.load(self.clock.now())
    }

    /// Returns the worker.
    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Returns the mean requests in flight of endpoints, as of a moment ago.
    pub(super) fn mean_load(
        &self,
        endpoints: &[Arc<Endpoint>],
        known: &PerWorker<KnownLoad>,
    ) -> u64 {
        let (known, now) = (known.of(self.worker), self.clock.now());
        known.known(now).unwrap_or_else(|| {
            let all: u64 = endpoints.iter().map(|it| it.load.in_flight()).sum();
            let count = endpoints.len().max(1) as u64;
            let mean = all.div_ceil(count);
            known.store(mean, now, count.max(SELECTIONS.into()));
            mean
        })
    }

    #[cold]
    fn add(&self, endpoint: &Arc<Endpoint>) -> Rc<WorkerEndpoint> {
        Rc::new(WorkerEndpoint {
            endpoint: endpoint.clone(),
            worker: self.worker,
            others: Cell::new(0),
            counted: Cell::new(0),
            left: Cell::new(0),
        })
    }

    /// Forgets endpoints that no configuration and no request uses. Called periodically.
    pub(super) fn sweep(&self) {
        let mut by_id = self.by_id.borrow_mut();
        by_id.retain(|_, known| {
            Rc::strong_count(known) > 1 || Arc::strong_count(&known.endpoint) > 1
        });
    }
}

impl WorkerEndpoint {
    fn load(&self, now: u64) -> u64 {
        let own = self.endpoint.load.in_flight_of(self.worker);
        if self.left.get() == 0 || self.counted.get() != now {
            self.others
                .set(self.endpoint.load.in_flight().saturating_sub(own));
            self.counted.set(now);
            self.left.set(SELECTIONS);
        }
        self.left.set(self.left.get() - 1);
        own + self.others.get()
    }
}

/// A request in flight to an endpoint; counted until dropped.
pub(super) struct InFlight(Rc<WorkerEndpoint>);

impl InFlight {
    /// Returns the endpoint of the request.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0.endpoint
    }

    /// Counts the request as sent, since it has a connection.
    pub(super) fn on_sent(&self) {
        self.0.endpoint.load.sent(self.0.worker);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.endpoint.load.end(self.0.worker);
    }
}

#[cfg(test)]
mod tests {
    use super::super::health::tests::backend;
    use super::*;

    const WORKERS: [WorkerId; 2] = [WorkerId::new(0, 2), WorkerId::new(1, 2)];

    #[test]
    fn own_requests_count_at_once_and_those_of_others_soon() {
        let backend = backend(1);
        let endpoint = &backend.endpoints()[0];
        let clock = Clock::new();
        let [one, other] = WORKERS.map(|id| WorkerEndpoints::new(id, clock.clone()));
        assert_eq!(one.load(endpoint), 0);
        let own = one.begin(endpoint);
        assert_eq!(one.load(endpoint), 1);
        let others: Vec<_> = (0..3).map(|_| other.begin(endpoint)).collect();
        for _ in 2..SELECTIONS {
            assert_eq!(one.load(endpoint), 1);
        }
        assert_eq!(one.load(endpoint), 4);
        drop(others);
        assert_eq!(one.load(endpoint), 4);
        clock.advance(100);
        assert_eq!(one.load(endpoint), 1);
        drop(own);
        assert_eq!(one.load(endpoint), 0);
    }

    #[test]
    fn forgets_endpoints_that_were_removed() {
        let backend = backend(2);
        let worker = WorkerEndpoints::new(WorkerId::ONLY, Clock::new());
        let requests: Vec<_> = backend
            .endpoints()
            .iter()
            .map(|it| worker.begin(it))
            .collect();
        backend.set_endpoints(&[]);
        worker.sweep();
        assert_eq!(worker.by_id.borrow().len(), 2, "requests use them");
        drop(requests);
        worker.sweep();
        assert!(worker.by_id.borrow().is_empty());
    }
}
