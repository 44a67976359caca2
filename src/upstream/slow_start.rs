//! Slow start: a newly added endpoint gets a share of the requests that grows with its age. Chooses between two
//! endpoints by time, age and load alone.

use std::sync::Arc;

use rand::RngExt;

use super::health;
use super::in_flight::WorkerEndpoints;
use crate::table::{Backend, Endpoint};

/// Initial share of an added endpoint, relative to its full share.
const INITIAL: f64 = 0.1;

/// The slow start of a backend at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// Duration in milliseconds.
    window: u64,
    /// Time of [`health::now`].
    now: u64,
}

impl SlowStart {
    /// Returns the slow start of a backend at the current time. `None` if it has none.
    pub(super) fn of(backend: &Backend) -> Option<Self> {
        let window = backend.slow_start()?.as_millis() as u64;
        let now = health::now();
        Some(Self { window, now })
    }

    /// Returns the share of an endpoint, relative to its full share: from [`INITIAL`] to 1.
    fn share(self, endpoint: &Endpoint) -> f64 {
        let Some(added_at) = endpoint.added_at else {
            return 1.0;
        };
        let age = self.now.saturating_sub(added_at.get());
        if age >= self.window {
            return 1.0;
        }
        INITIAL + (1.0 - INITIAL) * age as f64 / self.window as f64
    }

    /// Chooses one of two endpoints in random order: the one with fewer requests in flight relative to its share,
    /// unless its low share passes the request to the other one.
    pub(super) fn choose<'a>(
        self,
        worker: &WorkerEndpoints,
        first: &'a Arc<Endpoint>,
        second: &'a Arc<Endpoint>,
    ) -> &'a Arc<Endpoint> {
        let (one, other) = (self.share(first), self.share(second));
        let load = |endpoint: &Arc<Endpoint>| worker.load(endpoint) as f64;
        // Multiplies by the share of the other endpoint instead of dividing by its own.
        let (selected, left, ratio) = if load(second) * one < load(first) * other {
            (second, first, other / one)
        } else {
            (first, second, one / other)
        };
        // With few requests, loads are equal, and only this draw produces the shares.
        if ratio < 1.0 && !rand::rng().random_bool(ratio) {
            left
        } else {
            selected
        }
    }
}

#[cfg(test)]
mod tests;
