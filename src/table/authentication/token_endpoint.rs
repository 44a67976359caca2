//! How requests to the token endpoint of a policy have ended, and when it is asked again after failures. Survives changes of the
//! policy. Must not know how it is asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt;

use crate::ir::named::named;
use crate::runtime::backoff::Backoff;

/// Number of failures in a row after which requests are made one at a time.
const MAX_FAILURES: u32 = 3;
/// Time between these. The pods of a Gateway do not keep to the same times.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
const JITTER: std::ops::Range<f64> = 0.8..1.0;

/// The state of the token endpoint of a policy: its counters and its failures.
#[derive(Debug, Default)]
pub struct TokenEndpoint {
    counts: [[AtomicU64; TokenOutcome::ALL.len()]; GrantType::ALL.len()],
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    /// Number of failures in a row.
    count: u32,
    /// When the last one was known, and when the endpoint is asked again, in milliseconds.
    last: u64,
    next: u64,
    /// Whether a request runs that the back-off has admitted.
    is_probed: bool,
}

named! {
    /// What tokens are asked for: the `grant_type` of RFC 6749.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GrantType {
        /// The code of a sign-in.
        Code = "authorization_code",
        /// The refresh token of a session.
        RefreshToken = "refresh_token",
    }
}

named! {
    /// What asking for tokens leads to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TokenOutcome {
        /// Tokens that are valid.
        Issued = "issued",
        /// The code or the refresh token is not accepted.
        Denied = "denied",
        /// The client or its request is not accepted.
        Rejected = "rejected",
        /// Tokens or a response that cannot be used.
        Invalid = "invalid",
        /// An ID token of a key that is unknown.
        UnknownKey = "unknown_key",
        /// No response, or one that says that the provider is not available.
        Unavailable = "unavailable",
        /// The provider is not asked, since it has failed before.
        Deferred = "deferred",
        /// The provider is not asked, since too many requests wait.
        Busy = "busy",
    }
}

/// A request that may be made.
#[derive(Debug)]
pub struct Attempt {
    endpoint: Arc<TokenEndpoint>,
    began: u64,
    is_probe: bool,
}

impl TokenEndpoint {
    /// Admits a request. The error is for how many seconds no other one is made.
    ///
    /// # Errors
    /// After failures, unless it is time for the next request.
    pub fn admit(self: &Arc<Self>, now: u64) -> Result<Attempt, u64> {
        let mut failures = self.failures();
        let is_probe = failures.count >= MAX_FAILURES;
        if is_probe && (failures.is_probed || now < failures.next) {
            let wait = failures.next.saturating_sub(now);
            return Err(wait.div_ceil(1000).max(1));
        }
        failures.is_probed |= is_probe;
        drop(failures);
        Ok(Attempt {
            endpoint: self.clone(),
            began: now,
            is_probe,
        })
    }

    /// Counts what asking for tokens has led to.
    pub fn count(&self, grant: GrantType, outcome: TokenOutcome) {
        self.counts[grant as usize][outcome as usize].fetch_add(1, Relaxed);
    }

    /// Returns how often each outcome occurred that has occurred.
    pub fn counts(&self) -> impl Iterator<Item = (GrantType, TokenOutcome, u64)> + '_ {
        let grants = GrantType::ALL.into_iter();
        let all = grants.flat_map(|grant| TokenOutcome::ALL.map(|outcome| (grant, outcome)));
        let counted = all.map(|(grant, outcome)| {
            let count = &self.counts[grant as usize][outcome as usize];
            (grant, outcome, count.load(Relaxed))
        });
        counted.filter(|(_, _, count)| *count > 0)
    }

    /// Forgets failures: the policy names another endpoint, or trusts others.
    pub(super) fn forget_failures(&self) {
        let mut failures = self.failures();
        failures.count = 0;
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// The endpoint has responded, with any outcome.
    pub fn responded(self) {
        self.endpoint.forget_failures();
    }

    /// The endpoint is away. Those that began before the last failure was known say nothing new.
    pub fn failed(self, now: u64) {
        let mut failures = self.endpoint.failures();
        if failures.count >= MAX_FAILURES && self.began < failures.last {
            return;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let delay = BACKOFF.after(failures.count.saturating_sub(MAX_FAILURES));
        let delay = delay.mul_f64(rand::rng().random_range(JITTER));
        failures.next = now.saturating_add(delay.as_millis() as u64);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.is_probe {
            self.endpoint.failures().is_probed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an endpoint whose requests have failed so often that it is asked once at a time, at 0.
    fn failing() -> Arc<TokenEndpoint> {
        let endpoint = Arc::<TokenEndpoint>::default();
        for _ in 0..MAX_FAILURES {
            endpoint.admit(0).unwrap().failed(0);
        }
        endpoint
    }

    #[test]
    fn failing_endpoint_is_asked_once_at_a_time_and_less_and_less() {
        let endpoint = failing();
        let mut now = 0;
        for delay in [1, 2, 4, 8, 16, 30, 30] {
            let wait = endpoint.admit(now).unwrap_err();
            assert!((1..=delay).contains(&wait), "{wait} of {delay}");
            assert!(endpoint.admit(now + delay * 790).is_err(), "{delay}");
            now += delay * 1000;
            let probe = endpoint.admit(now).unwrap();
            assert_eq!(endpoint.admit(now).unwrap_err(), 1);
            probe.failed(now);
        }
        now += 30_000;
        endpoint.admit(now).unwrap().responded();
        let many: Vec<_> = (0..100).map(|_| endpoint.admit(now)).collect();
        assert!(many.iter().all(Result::is_ok));
    }

    #[test]
    fn single_failures_defer_nothing() {
        let endpoint = Arc::<TokenEndpoint>::default();
        for _ in 0..10 {
            endpoint.admit(0).unwrap().failed(0);
            endpoint.admit(0).unwrap().failed(0);
            endpoint.admit(0).unwrap().responded();
        }
        assert!(endpoint.admit(0).is_ok());
    }

    #[test]
    fn requests_that_run_while_the_endpoint_goes_away_count_as_one_failure() {
        let endpoint = Arc::<TokenEndpoint>::default();
        let running: Vec<_> = (0..32).map(|_| endpoint.admit(0).unwrap()).collect();
        for attempt in running {
            attempt.failed(10_000);
        }
        assert!(endpoint.admit(11_000).is_ok());
    }

    #[test]
    fn probe_that_is_lost_makes_room_for_the_next() {
        let endpoint = failing();
        drop(endpoint.admit(1000).unwrap());
        assert!(endpoint.admit(1000).is_ok());
    }

    #[test]
    fn counts_what_has_occurred() {
        let endpoint = TokenEndpoint::default();
        endpoint.count(GrantType::Code, TokenOutcome::Denied);
        endpoint.count(GrantType::RefreshToken, TokenOutcome::Busy);
        endpoint.count(GrantType::Code, TokenOutcome::Denied);
        let counts: Vec<_> = endpoint.counts().collect();
        assert_eq!(
            counts,
            [
                (GrantType::Code, TokenOutcome::Denied, 2),
                (GrantType::RefreshToken, TokenOutcome::Busy, 1),
            ]
        );
    }
}
