//! Which endpoint of a backend a try goes to: of two chosen by chance, the one with fewer requests in flight.
//! Knows nothing of connections.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::RngExt;

use crate::table::{Endpoint, Endpoints};

/// A request's place at an endpoint, counted until dropped.
pub(super) struct InFlight(Arc<Endpoint>);

impl InFlight {
    /// The endpoint.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Chooses an endpoint whose id is not among `avoid`, and counts the request in. `None` when there is none left.
pub(super) fn pick(endpoints: &Endpoints, avoid: &[u64]) -> Option<InFlight> {
    let endpoint = match (&**endpoints, avoid) {
        ([], _) => return None,
        ([only], []) => only,
        (all, []) => less_loaded(all.len(), |index| &all[index]),
        (all, avoid) => {
            let left: Vec<_> = all
                .iter()
                .filter(|endpoint| !avoid.contains(&endpoint.id))
                .collect();
            match &*left {
                [] => return None,
                [only] => only,
                left => less_loaded(left.len(), |index| left[index]),
            }
        }
    };
    endpoint.in_flight.fetch_add(1, Relaxed);
    Some(InFlight(endpoint.clone()))
}

/// The power of two choices among `count` endpoints, at least two.
fn less_loaded<'a>(count: usize, at: impl Fn(usize) -> &'a Arc<Endpoint>) -> &'a Arc<Endpoint> {
    let mut random = rand::rng();
    let first = random.random_range(0..count);
    let second = (first + random.random_range(1..count)) % count;
    let (first, second) = (at(first), at(second));
    if second.in_flight.load(Relaxed) < first.in_flight.load(Relaxed) {
        second
    } else {
        first
    }
}
