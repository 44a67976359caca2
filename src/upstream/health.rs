//! Passive health checks: when failures eject an endpoint, for how long, and how it returns. Uses lock-free counters
//! that all workers share.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::RngExt;

use crate::table::{Backend, Endpoint, Health};
use crate::uptime;

/// Consecutive failures of requests that eject an endpoint.
const MAX_FAILURES: u32 = 3;
/// Duration of the first ejection.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// Maximum duration of an ejection.
const MAX_EJECTION: Duration = Duration::from_secs(30);
/// Jitter as a fraction of the duration, so that an endpoint does not return in all replicas at the same time.
const JITTER: f64 = 0.2;

/// Returns the current time on the clock of [`Health`] in milliseconds; never 0.
pub(super) fn now() -> u64 {
    uptime::now().get()
}

/// Reports whether the endpoint may get a request at `now`.
pub(super) fn is_eligible(health: &Health, now: u64) -> bool {
    let until = health.avoided_until.load(Relaxed);
    until == 0 || (until <= now && !health.is_probed.load(Relaxed))
}

/// Makes the next request a probe. Returns false if a probe is in progress.
pub(super) fn begin_probe(health: &Health) -> bool {
    !health.is_probed.swap(true, Relaxed)
}

/// Ends a probe.
pub(super) fn end_probe(health: &Health) {
    health.is_probed.store(false, Relaxed);
}

/// Records a response.
pub(super) fn on_response(health: &Health) {
    if health.strikes.load(Relaxed) != 0 {
        health.strikes.store(0, Relaxed);
    }
    if health.is_avoided() {
        health.avoided_until.store(0, Relaxed);
        health.ejections.store(0, Relaxed);
    }
}

/// Records a failed request.
pub(super) fn on_request_failure(backend: &Backend, endpoint: &Endpoint) {
    let strikes = endpoint.health.strikes.fetch_add(1, Relaxed) + 1;
    if strikes >= MAX_FAILURES || endpoint.health.is_avoided() {
        eject(backend, endpoint, now());
    }
}

/// Records a failed connect.
pub(super) fn on_connect_failure(backend: &Backend, endpoint: &Endpoint) {
    eject(backend, endpoint, now());
}

/// Ejects the endpoint, unless it is already ejected or is the only one of its backend or release. Concurrent failures
/// count once.
///
/// A failed connect ejects at once. So does a connect that a later, much faster one overtakes. Failed requests eject
/// after [`MAX_FAILURES`] in succession: a connection that closes before a response, an invalid response, or a timeout.
/// An ejection lasts [`FIRST_EJECTION`] and doubles each time up to [`MAX_EJECTION`]. Then the endpoint gets one
/// request at a time as a probe, until one succeeds. A response of any status is a success.
fn eject(backend: &Backend, endpoint: &Endpoint, now: u64) {
    let health = &endpoint.health;
    let until = health.avoided_until.load(Relaxed);
    // A single endpoint gets every request anyway.
    if until > now || !backend.endpoints().has_alternative(endpoint) {
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
    let time = FIRST_EJECTION
        .saturating_mul(1 << ejections.min(16))
        .min(MAX_EJECTION);
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
                for_grpc: false,
            },
            protocol: UpstreamProtocol::Http1,
            tls: None,
            endpoints: (1..=endpoints)
                .map(|port| ([127, 0, 0, 1], port).into())
                .collect(),
            slow_start: None,
            traffic: None,
            fallback: None,
        };
        Backend::new(&ir, Transport::Plain, Arc::default())
    }

    #[test]
    fn ejects_endpoint_for_growing_times_until_a_response() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        let mut now = 1;
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            eject(&backend, endpoint, now);
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
        eject(&backend, endpoint, now);
        assert!(endpoint.health.avoided_until.load(Relaxed) - now <= 1_200);
    }

    #[test]
    fn counts_concurrent_failures_once() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        for _ in 0..10 {
            eject(&backend, endpoint, 1);
        }
        assert_eq!(backend.stats.ejections(), 1);
    }

    #[test]
    fn ejects_endpoint_after_three_consecutive_failures() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        for _ in 0..5 {
            on_request_failure(&backend, endpoint);
            on_request_failure(&backend, endpoint);
            on_response(&endpoint.health);
        }
        assert!(!endpoint.health.is_avoided());
        (0..3).for_each(|_| on_request_failure(&backend, endpoint));
        assert!(endpoint.health.is_avoided());
    }

    #[test]
    fn probes_with_one_request_at_a_time() {
        let backend = backend(2);
        let endpoint = &backend.endpoints()[0];
        eject(&backend, endpoint, 1);
        let later = endpoint.health.avoided_until.load(Relaxed);
        assert!(is_eligible(&endpoint.health, later));
        assert!(begin_probe(&endpoint.health));
        assert!(!begin_probe(&endpoint.health));
        assert!(!is_eligible(&endpoint.health, later));
        end_probe(&endpoint.health);
        assert!(is_eligible(&endpoint.health, later));
    }

    #[test]
    fn never_ejects_the_only_endpoint() {
        let backend = backend(1);
        let endpoint = &backend.endpoints()[0];
        on_connect_failure(&backend, endpoint);
        assert!(!endpoint.health.is_avoided());
    }
}
