//! Which endpoints are avoided because of what requests met with, for how long, and how they come back. Reads and writes
//! the figures of an endpoint, which all workers share without a lock. Knows no connection.
//!
//! A connect that fails or that a later and much faster one overtakes makes an endpoint avoided at once; a connection that
//! breaks off before a response, a response that cannot be read and an attempt that times out do when there are
//! [`STRIKES`] in a row.
//! It is avoided for [`FIRST`], twice as long each time, at most [`LONGEST`]. Then it gets one request at a time, until
//! one succeeds. A response of any status is a success.

use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::table::{Backend, Endpoint, Health};

/// Failures of requests in a row that make an endpoint avoided.
const STRIKES: u32 = 3;
/// How long an endpoint is avoided at first.
const FIRST: Duration = Duration::from_secs(1);
/// How long an endpoint is avoided at most.
const LONGEST: Duration = Duration::from_secs(30);
/// Times are varied by this part of them, so that workers and replicas do not come back at one time.
const JITTER: f64 = 0.2;

/// Now, on the clock of [`Health`]: milliseconds, never 0.
pub(super) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64 + 1
}

/// Whether the endpoint may get a request at `now`.
pub(super) fn is_eligible(health: &Health, now: u64) -> bool {
    let until = health.avoided_until.load(Relaxed);
    until == 0 || (until <= now && !health.is_probed.load(Relaxed))
}

/// Makes the next request the one that finds out whether the endpoint works again; false when there is one already.
pub(super) fn begin_probe(health: &Health) -> bool {
    !health.is_probed.swap(true, Relaxed)
}

/// The request that was to find out is over.
pub(super) fn end_probe(health: &Health) {
    health.is_probed.store(false, Relaxed);
}

/// The endpoint answered.
pub(super) fn on_response(health: &Health) {
    if health.strikes.load(Relaxed) != 0 {
        health.strikes.store(0, Relaxed);
    }
    if health.is_avoided() {
        health.avoided_until.store(0, Relaxed);
        health.ejections.store(0, Relaxed);
    }
}

/// A request failed at the endpoint.
pub(super) fn on_strike(backend: &Backend, endpoint: &Endpoint) {
    let strikes = endpoint.health.strikes.fetch_add(1, Relaxed) + 1;
    if strikes >= STRIKES || endpoint.health.is_avoided() {
        avoid(backend, endpoint, now());
    }
}

/// The endpoint could not be connected to.
pub(super) fn on_connect_failure(backend: &Backend, endpoint: &Endpoint) {
    avoid(backend, endpoint, now());
}

/// Avoids the endpoint for a while, for longer each time. Failures of requests that were under way count once.
fn avoid(backend: &Backend, endpoint: &Endpoint, now: u64) {
    let health = &endpoint.health;
    let until = health.avoided_until.load(Relaxed);
    // The only endpoint gets every request anyway.
    if until > now || backend.endpoints().len() < 2 {
        return;
    }
    let ejections = health.ejections.load(Relaxed);
    let next = now + backoff(ejections).as_millis() as u64;
    let won = health
        .avoided_until
        .compare_exchange(until, next, Relaxed, Relaxed);
    if won.is_ok() {
        health.ejections.store(ejections + 1, Relaxed);
        health.strikes.store(0, Relaxed);
        backend.stats.ejected();
        tracing::debug!(backend = %backend.id, endpoint = %endpoint.address, "avoiding an endpoint");
    }
}

fn backoff(ejections: u32) -> Duration {
    let time = FIRST.saturating_mul(1 << ejections.min(16)).min(LONGEST);
    time.mul_f64(rand::rng().random_range(1.0 - JITTER..1.0 + JITTER))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ir;
    use crate::ir::{BackendId, ObjectRef, UpstreamProtocol};
    use crate::table::Transport;

    fn backend(endpoints: u16) -> Backend {
        let ir = ir::Backend {
            id: BackendId {
                object: ObjectRef::core("Service", "ns", "one"),
                port: 80,
                tls: None,
            },
            protocol: UpstreamProtocol::Http1,
            tls: None,
            endpoints: (1..=endpoints)
                .map(|port| ([127, 0, 0, 1], port).into())
                .collect(),
        };
        Backend::new(&ir, Transport::Plain, Arc::default())
    }

    #[test]
    fn avoids_endpoint_for_growing_times_until_a_response() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        let mut now = 1;
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            avoid(&backend, endpoint, now);
            let until = endpoint.health.avoided_until.load(Relaxed);
            let time = (until - now) as f64 / 1000.0;
            let expected = f64::from(expected);
            assert!(
                (expected * 0.79..=expected * 1.21).contains(&time),
                "{time}"
            );
            assert!(!is_eligible(&endpoint.health, until - 1));
            assert!(is_eligible(&endpoint.health, until));
            now = until;
        }
        assert_eq!(backend.stats.ejections(), 7);
        on_response(&endpoint.health);
        assert!(is_eligible(&endpoint.health, 1));
        avoid(&backend, endpoint, now);
        assert!(endpoint.health.avoided_until.load(Relaxed) - now <= 1_200);
    }

    #[test]
    fn counts_concurrent_failures_once() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        for _ in 0..10 {
            avoid(&backend, endpoint, 1);
        }
        assert_eq!(backend.stats.ejections(), 1);
    }

    #[test]
    fn avoids_endpoint_after_three_strikes_in_a_row() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        for _ in 0..5 {
            on_strike(&backend, endpoint);
            on_strike(&backend, endpoint);
            on_response(&endpoint.health);
        }
        assert!(!endpoint.health.is_avoided());
        (0..3).for_each(|_| on_strike(&backend, endpoint));
        assert!(endpoint.health.is_avoided());
    }

    #[test]
    fn admits_one_request_at_a_time_on_probation() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        avoid(&backend, endpoint, 1);
        let later = endpoint.health.avoided_until.load(Relaxed);
        assert!(is_eligible(&endpoint.health, later));
        assert!(begin_probe(&endpoint.health));
        assert!(!begin_probe(&endpoint.health));
        assert!(!is_eligible(&endpoint.health, later));
        end_probe(&endpoint.health);
        assert!(is_eligible(&endpoint.health, later));
    }

    #[test]
    fn never_avoids_the_only_endpoint() {
        let backend = backend(1);
        let endpoint = &backend.endpoints()[0];
        on_connect_failure(&backend, endpoint);
        assert!(!endpoint.health.is_avoided());
    }
}
