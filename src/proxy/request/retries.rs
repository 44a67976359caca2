//! The retries that a rule allows (GEP-1731): after which failures, how many, and after what delay. The backend's
//! traffic policy may deny them (GEP-3388).

use std::time::Duration;

use http::{Method, StatusCode};
use rand::RngExt;
use tokio::time::sleep;

use crate::ir::route::Retry;
use crate::proxy::error::Error;
use crate::table::{Backend, Traffic, UpstreamFault};
use crate::upstream::{Attempts, SendError};

/// Maximum delay, as a multiple of the rule's backoff. The delay doubles with each retry.
const MAX_BACKOFF: u32 = 10;

/// The retries of one request so far.
#[derive(Default)]
pub(in crate::proxy) struct Retries {
    count: u32,
    /// Whether the backend's budget has counted the request.
    is_counted: bool,
}

/// The retries of one request that its rule still allows.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Allowed<'a> {
    policy: Option<&'a Retry>,
    count: u32,
}

impl Retries {
    /// Returns what the policy of the rule still allows.
    pub(in crate::proxy) fn allowed<'a>(&self, policy: Option<&'a Retry>) -> Allowed<'a> {
        let count = self.count;
        Allowed { policy, count }
    }

    /// Counts the request for the backend's budget, before the first attempt.
    pub(in crate::proxy) fn begin(&mut self, traffic: Option<&Traffic>) {
        if let Some(traffic) = traffic.filter(|_| !self.is_counted) {
            traffic.count_request();
            self.is_counted = true;
        }
    }

    /// Counts a retry that the rule allows for the backend's budget.
    ///
    /// # Errors
    /// When the budget does not allow it.
    pub(super) fn admit(backend: &Backend, traffic: Option<&Traffic>) -> Result<(), Error> {
        if traffic.is_none_or(Traffic::try_retry) {
            return Ok(());
        }
        backend.stats.retry_refused();
        Err(Error::RetryBudget)
    }

    /// Permits the retry of a request with a safe method to a rule without `retry`, at once: the retry budget of the
    /// backend's traffic policy counts it, or else the default budget.
    ///
    /// # Errors
    /// When the budget does not permit it: `error` if it is the default one.
    pub(super) fn admit_by_default(
        backend: &Backend,
        traffic: Option<&Traffic>,
        attempts: &mut Attempts,
        error: SendError,
    ) -> Result<(), Error> {
        if traffic.is_some_and(Traffic::has_retry_budget) {
            return Self::admit(backend, traffic);
        }
        match attempts.try_default_retry(backend) {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    /// Counts a retry and waits before it. The delay is the rule's backoff, doubled with each retry, plus up to half of
    /// it as jitter, so that requests that failed together are not retried together.
    pub(in crate::proxy) async fn wait(&mut self, policy: Option<&Retry>) {
        let allowed = self.allowed(policy);
        let delay = allowed.delay(rand::rng().random_range(0.0..0.5));
        self.count += 1;
        // Boxed, since few requests need this future but every request would reserve memory for it.
        Box::pin(sleep(delay)).await;
    }
}

impl<'a> Allowed<'a> {
    /// Reports whether the rule configures retries. Then all retries are its own.
    pub(super) fn are_of_rule(&self) -> bool {
        self.policy.is_some()
    }

    /// Reports whether the policy allows another retry.
    pub(super) fn are_left(&self) -> bool {
        self.remaining().is_some()
    }

    /// Reports whether to retry after a response with this status.
    pub(super) fn allow_status(&self, status: StatusCode) -> bool {
        self.remaining()
            .is_some_and(|policy| policy.codes.contains(&status.as_u16()))
    }

    /// Reports whether to retry after an error: its status is in `codes`, or the connection failed and the request
    /// either cannot have had an effect or has an idempotent method (RFC 9110, 9.2.2).
    pub(super) fn allow_error(&self, error: SendError, method: &Method) -> bool {
        let SendError::Backend(fault, _) = error else {
            return false;
        };
        let is_connection_failure = match fault {
            UpstreamFault::Connect
            | UpstreamFault::ConnectTimeout
            | UpstreamFault::Refused
            | UpstreamFault::Local => true,
            UpstreamFault::Reset | UpstreamFault::Timeout => method.is_idempotent(),
            UpstreamFault::Protocol
            | UpstreamFault::NoEndpoint
            | UpstreamFault::Descriptors
            | UpstreamFault::Overloaded => false,
        };
        self.are_left() && (is_connection_failure || self.allow_status(Error::Send(error).status()))
    }

    fn delay(&self, jitter: f64) -> Duration {
        let backoff = self.policy.map_or(Duration::ZERO, |policy| policy.backoff);
        let factor = 1_u32.checked_shl(self.count).unwrap_or(MAX_BACKOFF);
        (backoff * factor.min(MAX_BACKOFF)).mul_f64(1.0 + jitter)
    }

    fn remaining(&self) -> Option<&'a Retry> {
        self.policy.filter(|policy| self.count < policy.attempts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(attempts: u32, codes: &[u16]) -> Retry {
        Retry {
            attempts,
            codes: codes.to_vec(),
            backoff: Duration::from_millis(100),
        }
    }

    fn error(fault: UpstreamFault) -> SendError {
        SendError::Backend(fault, "")
    }

    #[test]
    fn delay_doubles_up_to_ten_times_the_backoff() {
        let policy = policy(40, &[]);
        let delay = |count, jitter| {
            let policy = Some(&policy);
            Allowed { policy, count }.delay(jitter).as_millis()
        };
        let delays = [0, 1, 2, 3, 4, 39].map(|count| delay(count, 0.0));
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(delay(0, 0.5), 150);
    }

    #[test]
    fn only_listed_statuses_are_retried_until_attempts_are_used_up() {
        let policy = policy(2, &[500, 503]);
        let mut retries = Retries::default();
        let allowed = retries.allowed(Some(&policy));
        assert!(allowed.allow_status(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(!allowed.allow_status(StatusCode::BAD_GATEWAY));
        retries.count = 2;
        let allowed = retries.allowed(Some(&policy));
        assert!(!allowed.are_left());
        assert!(!allowed.allow_status(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(!Retries::default().allowed(None).are_left());
    }

    #[test]
    fn request_that_may_have_had_an_effect_is_retried_only_for_listed_codes() {
        let by_default = policy(1, &[]);
        let retries = Retries::default().allowed(Some(&by_default));
        let post = |fault| retries.allow_error(error(fault), &Method::POST);
        assert!(post(UpstreamFault::Connect) && post(UpstreamFault::Refused));
        assert!(!post(UpstreamFault::Reset) && !post(UpstreamFault::Timeout));
        assert!(!post(UpstreamFault::NoEndpoint) && !post(UpstreamFault::Protocol));
        assert!(retries.allow_error(error(UpstreamFault::Reset), &Method::PUT));
        assert!(!retries.allow_error(SendError::RequestBody, &Method::GET));
        let by_code = policy(1, &[502, 504]);
        let retries = Retries::default().allowed(Some(&by_code));
        let post = |fault| retries.allow_error(error(fault), &Method::POST);
        assert!(post(UpstreamFault::Reset) && post(UpstreamFault::Timeout));
        assert!(!post(UpstreamFault::NoEndpoint));
    }
}
