//! Passive health checks: when failures eject an endpoint, for how long, and how it returns. Uses lock-free counters
//! that all workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::RngExt;

use crate::ir::backend_policy::Passive;
use crate::runtime::monotonic;
use crate::table::{Backend, Endpoint, Health};

/// Maximum duration of an ejection, as a multiple of the first one.
const MAX_EJECTION: u32 = 30;
/// Jitter as a fraction of the duration, so that an endpoint does not return in all replicas at the same time.
const JITTER: f64 = 0.2;
/// Interval of the probes after an ejection. A probe may take as long as its request does, so that it does not delay
/// the next one.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the current time on the clock of [`Health`] in milliseconds; never 0.
pub(super) fn now() -> u64 {
    monotonic::now().get()
}

/// Returns the maximum number of ejected endpoints: half of them by default, so that the others are not overloaded and no
/// client can eject all.
fn max_ejected(endpoints: usize, passive: &Passive) -> usize {
    endpoints * passive.max_ejected_percent as usize / 100
}

/// Reports whether the endpoint may get a request at `now`.
pub(super) fn is_eligible(health: &Health, now: u64) -> bool {
    let until = health.avoided_until.load(Relaxed);
    until == 0 || (until <= now && health.next_probe.load(Relaxed) <= now)
}

/// Makes the next request to an ejected endpoint a probe. Returns false if it is not due, because another worker has
/// just begun one.
pub(super) fn begin_probe(health: &Health, now: u64) -> bool {
    let due = health.next_probe.load(Relaxed);
    let next = now + PROBE_INTERVAL.as_millis() as u64;
    due <= now
        && health
            .next_probe
            .compare_exchange(due, next, Relaxed, Relaxed)
            .is_ok()
}

/// Ends long ejections early if more than [`max_ejected`] of these endpoints are ejected, because others were removed.
pub(super) fn limit_ejections(endpoints: &[Arc<Endpoint>], passive: &Passive, now: u64) {
    let ejected = || endpoints.iter().filter(|it| it.health.is_avoided());
    if ejected().count() > max_ejected(endpoints.len(), passive) {
        let end = now + passive.ejection.as_millis() as u64;
        for endpoint in ejected().filter(|it| !it.health.has_failed_checks()) {
            endpoint.health.avoided_until.fetch_min(end, Relaxed);
        }
    }
}

/// Reports whether so few of these endpoints are healthy that all get requests.
pub(super) fn is_panic(endpoints: &[Arc<Endpoint>], passive: &Passive) -> bool {
    let least = passive.panic_percent as usize;
    if least == 0 {
        return false;
    }
    let healthy = endpoints.iter().filter(|it| !it.health.is_avoided());
    healthy.count() * 100 < least * endpoints.len()
}

/// Records a response.
pub(super) fn on_response(health: &Health) {
    if health.strikes.load(Relaxed) != 0 {
        health.strikes.store(0, Relaxed);
    }
    if health.is_avoided() {
        health.end_ejection();
    }
}

/// Records a failed request. Returns whether that ejects the endpoint.
pub(super) fn on_request_failure(backend: &Backend, endpoint: &Endpoint) -> bool {
    let strikes = endpoint.health.strikes.fetch_add(1, Relaxed) + 1;
    let is_due = strikes >= backend.passive().consecutive_errors || endpoint.health.is_avoided();
    is_due && eject(backend, endpoint, now())
}

/// Records a failed connect. Returns whether that ejects the endpoint.
pub(super) fn on_connect_failure(backend: &Backend, endpoint: &Endpoint) -> bool {
    eject(backend, endpoint, now())
}

/// Ejects the endpoint, unless it is already ejected or [`max_ejected`] others of its backend or release are.
/// Concurrent failures count once. Returns whether the endpoint is ejected now.
///
/// A failed connect ejects at once. So does a connect that a later, much faster one overtakes. Failed requests eject
/// after [`Passive::consecutive_errors`] in succession: a connection that closes before a response, an invalid response, or a timeout,
/// unless the request also fails at another endpoint. An ejection lasts [`Passive::ejection`] and doubles each time up to
/// [`MAX_EJECTION`] times. Then the endpoint gets one request per [`PROBE_INTERVAL`] as a probe, until one succeeds. A
/// response of any status is a success.
fn eject(backend: &Backend, endpoint: &Endpoint, now: u64) -> bool {
    let health = &endpoint.health;
    let until = health.avoided_until.load(Relaxed);
    if until > now {
        return false;
    }
    let passive = backend.passive();
    let endpoints = backend.endpoints();
    let peers = endpoints.peers(endpoint);
    let is_other = |one: &&Arc<Endpoint>| one.id != endpoint.id && one.health.is_avoided();
    let is_full = || peers.iter().filter(is_other).count() >= max_ejected(peers.len(), &passive);
    let ejections = health.ejections.load(Relaxed);
    let time = match (until, is_full()) {
        (0, true) => return false,
        (_, true) => passive.ejection,
        (_, false) => backoff(passive.ejection, ejections),
    };
    let next = now + time.as_millis() as u64;
    let won = health
        .avoided_until
        .compare_exchange(until, next, Relaxed, Relaxed);
    if won.is_err() {
        return false;
    }
    if until == 0 && is_full() {
        // Another worker has ejected the last permitted endpoint meanwhile.
        let _ = health
            .avoided_until
            .compare_exchange(next, 0, Relaxed, Relaxed);
        return false;
    }
    health.ejections.store(ejections + 1, Relaxed);
    health.strikes.store(0, Relaxed);
    backend.stats.ejected();
    tracing::debug!(backend = %backend.id, endpoint = %endpoint.address, "avoiding an endpoint");
    true
}

fn backoff(first: Duration, ejections: u32) -> Duration {
    let factor = 1_u32 << ejections.min(16);
    let time = first.saturating_mul(factor.min(MAX_EJECTION));
    time.mul_f64(rand::rng().random_range(1.0 - JITTER..1.0 + JITTER))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ir;
    use crate::ir::backend_policy::BackendPolicy;
    use crate::table::Transport;

    /// Returns a backend with endpoints on loopback.
    pub(crate) fn backend(endpoints: u16) -> Backend {
        let ir = ir::Backend::plain(
            (1..=endpoints)
                .map(|port| ([127, 0, 0, 1], port).into())
                .collect(),
        );
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
        for _ in 0..3 {
            on_request_failure(&backend, endpoint);
        }
        assert!(endpoint.health.is_avoided());
    }

    #[test]
    fn probes_once_per_interval_whatever_the_probe_does() {
        let backend = backend(2);
        let health = &backend.endpoints()[0].health;
        eject(&backend, &backend.endpoints()[0], 1);
        let end = health.avoided_until.load(Relaxed);
        for round in 0..3 {
            let now = end + round * 1_000;
            assert!(is_eligible(health, now));
            assert!(begin_probe(health, now));
            assert!(!begin_probe(health, now));
            assert!(!is_eligible(health, now + 999));
        }
    }

    #[test]
    fn ejects_at_most_half_of_the_endpoints() {
        for (endpoints, most) in [(1, 0), (2, 1), (3, 1), (10, 5), (11, 5)] {
            let backend = backend(endpoints);
            for endpoint in backend.endpoints().iter() {
                on_connect_failure(&backend, endpoint);
                for _ in 0..9 {
                    on_request_failure(&backend, endpoint);
                }
            }
            let ejected = |it: &&Arc<Endpoint>| it.health.is_avoided();
            assert_eq!(backend.endpoints().iter().filter(ejected).count(), most);
        }
    }

    #[test]
    fn long_ejections_end_when_more_than_half_are_ejected() {
        let backend = backend(4);
        for endpoint in &backend.endpoints()[..2] {
            endpoint.health.ejections.store(9, Relaxed);
            eject(&backend, endpoint, 1);
        }
        let until = |index: usize| {
            let endpoints = backend.endpoints();
            endpoints[index].health.avoided_until.load(Relaxed)
        };
        limit_ejections(&backend.endpoints(), &Passive::DEFAULT, 1);
        assert!(until(0) > 20_000 && until(1) > 20_000);
        let left: Vec<_> = [1, 2, 3].map(|port| ([127, 0, 0, 1], port).into()).into();
        backend.set_endpoints(&left);
        limit_ejections(&backend.endpoints(), &Passive::DEFAULT, 1);
        assert_eq!([until(0), until(1), until(2)], [1_001, 1_001, 0]);
        // A failed probe keeps the endpoint out, but not for long.
        eject(&backend, &backend.endpoints()[0], 2_000);
        assert_eq!(until(0), 3_000);
    }

    #[test]
    fn failed_checks_outlive_responses_and_ejections() {
        let backend = backend(4);
        let endpoints = backend.endpoints();
        let health = &endpoints[0].health;
        health.fail_checks();
        on_response(health);
        on_connect_failure(&backend, &endpoints[0]);
        endpoints[1..].iter().for_each(|it| it.health.fail_checks());
        limit_ejections(&endpoints, &Passive::DEFAULT, 1);
        assert!(endpoints.iter().all(|it| it.health.has_failed_checks()));
        assert!(!is_eligible(health, u64::MAX - 1));
        health.pass_checks();
        assert!(is_eligible(health, 1) && !health.is_avoided());
    }

    #[test]
    fn ejection_by_requests_outlives_checks_that_pass() {
        let backend = backend(2);
        on_connect_failure(&backend, &backend.endpoints()[0]);
        let health = &backend.endpoints()[0].health;
        health.pass_checks();
        assert!(health.is_avoided());
    }

    #[test]
    fn policy_replaces_defaults() {
        let policy = BackendPolicy {
            passive: Passive {
                consecutive_errors: 2,
                ejection: Duration::from_secs(10),
                max_ejected_percent: 100,
                panic_percent: 50,
            },
            ..BackendPolicy::without_settings(ir::ObjectRef::core("Policy", "ns", "one"))
        };
        let ir = ir::Backend {
            policy: Some(Arc::new(policy)),
            ..ir::Backend::plain((1..=4).map(|port| ([127, 0, 0, 1], port).into()).collect())
        };
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let endpoints = backend.endpoints();
        for (index, endpoint) in endpoints.iter().enumerate() {
            assert_eq!(is_panic(&endpoints, &backend.passive()), index > 2);
            on_request_failure(&backend, endpoint);
            assert!(!endpoint.health.is_avoided());
            on_request_failure(&backend, endpoint);
            let left = endpoint.health.avoided_until.load(Relaxed) - now();
            assert!((7_000..=12_000).contains(&left), "{left}");
        }
    }

    #[test]
    fn never_ejects_the_only_endpoint() {
        let backend = backend(1);
        let endpoint = &backend.endpoints()[0];
        on_connect_failure(&backend, endpoint);
        assert!(!endpoint.health.is_avoided());
    }
}
