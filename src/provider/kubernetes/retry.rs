//! Failures of requests to the API server, and the retry policy: exponential back-off with jitter,
//! and rate-limited logging.

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::cluster::api_server::{describe, retry_after};
use crate::runtime::backoff::Backoff;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};
/// Maximum `Retry-After` that is honored. Leaves room for jitter below the maximum of [`BACKOFF`].
const MAX_RETRY_AFTER: Duration = Duration::from_secs(4);
/// Time without failures after which the back-off resets. If it were shorter, a request that fails
/// every other time would be retried at full rate.
const RESET_AFTER: Duration = Duration::from_secs(10);
/// Interval of log messages about the same failure, and about different failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const SHORT_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Why a request has to be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The API server is unreachable or rejects the request.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// There was no response in time.
    #[error("no response within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The API server ends watches too early.
    #[error("watches end immediately after they begin")]
    ShortWatch,
    /// A list is older than the served state.
    #[error("a list has resourceVersion {listed}, which is older than the served {served}")]
    StaleList { listed: u64, served: u64 },
    /// A list lacks most of the known objects.
    #[error("a list has only {listed} of {known} known objects; a second list has to confirm this")]
    LostObjects { listed: usize, known: usize },
}

impl Failure {
    /// The status of the API server's response, if there is one.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// Returns why the API server does not permit a verb; `None` if the request failed for another reason.
    pub(super) fn refusal(&self, verb: &str) -> Option<String> {
        let is_refused = matches!(self.status(), Some(401 | 403));
        is_refused.then(|| {
            let why = describe(self);
            format!("the API server does not permit the verb {verb}: {why}")
        })
    }

    /// Reports whether another attempt may succeed soon.
    pub(super) fn is_transient(&self) -> bool {
        match self.status() {
            Some(status) => status == 410 || status == 429 || status >= 500,
            None => retry_after(self).is_some(),
        }
    }

    /// Minimum delay before a retry.
    pub(super) fn minimum(&self) -> Duration {
        match self {
            // Time for a transient failure to end: the next list is trusted.
            Self::LostObjects { .. } => Duration::from_secs(1),
            _ => retry_after(self).unwrap_or_default().min(MAX_RETRY_AFTER),
        }
    }
}

/// Retry state of one subject.
pub(super) struct Retry {
    /// What fails, such as `HTTPRoute`.
    subject: String,
    /// The operation as a participle, such as `watched`.
    participle: &'static str,
    failures: u32,
    /// When the last delay ended.
    last: Option<Instant>,
    logged: Option<(Instant, String)>,
    is_logged_failing: bool,
    refusal: Option<String>,
}

impl Retry {
    pub(super) fn new(subject: String, participle: &'static str) -> Self {
        Self {
            subject,
            participle,
            failures: 0,
            last: None,
            logged: None,
            is_logged_failing: false,
            refusal: None,
        }
    }

    /// Waits until the next retry.
    pub(super) async fn wait_after(&mut self, failure: &Failure) {
        let now = Instant::now();
        self.log(describe(failure), now);
        sleep(self.next(failure.minimum(), now)).await;
    }

    /// Records a success.
    pub(super) fn on_success(&mut self) {
        if std::mem::take(&mut self.is_logged_failing) {
            tracing::info!("{} is {} again", self.subject, self.participle);
        }
    }

    /// Records why the API server refuses requests, if it does. Returns whether that is new.
    pub(super) fn is_new_refusal(&mut self, why: Option<&str>) -> bool {
        let is_new = self.refusal.as_deref() != why;
        if is_new {
            self.refusal = why.map(str::to_owned);
        }
        is_new
    }

    fn next(&mut self, minimum: Duration, now: Instant) -> Duration {
        if self.last.is_some_and(|last| last + RESET_AFTER < now) {
            self.failures = 0;
        }
        let delay = delay(self.failures, minimum);
        self.failures += 1;
        self.last = Some(now + delay);
        delay
    }

    fn log(&mut self, text: String, now: Instant) {
        let is_logged = self.logged.as_ref().is_some_and(|(when, logged)| {
            let silence = if *logged == text {
                LOG_INTERVAL
            } else {
                SHORT_LOG_INTERVAL
            };
            *when + silence > now
        });
        if !is_logged {
            tracing::warn!(
                "{} cannot be {}: {text}; the last known state stays in service",
                self.subject,
                self.participle
            );
            self.logged = Some((now, text));
            self.is_logged_failing = true;
        }
    }
}

/// Delay after a number of failures, with jitter.
fn delay(failures: u32, minimum: Duration) -> Duration {
    let longest = BACKOFF.after(failures);
    let from = (longest / 2).max(minimum);
    let until = longest.max(minimum.mul_f64(1.2));
    from + (until - from).mul_f64(rand::rng().random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::api_server::RetryAfter;

    fn overloaded(seconds: u64) -> Failure {
        let after = Duration::from_secs(seconds);
        let asked = RetryAfter { status: 429, after };
        Failure::Api(kube::Error::Service(Box::new(asked)))
    }

    #[test]
    fn only_missing_rights_are_refusals() {
        let refusal = |code| {
            let status = kube::core::Status {
                code,
                message: "cannot watch resource".to_owned(),
                reason: "Forbidden".to_owned(),
                ..kube::core::Status::default()
            };
            Failure::Api(kube::Error::Api(Box::new(status))).refusal("watch")
        };
        let why =
            "the API server does not permit the verb watch: cannot watch resource (403 Forbidden)";
        assert_eq!(refusal(403).as_deref(), Some(why));
        assert!(
            [404, 410, 429, 500]
                .iter()
                .all(|code| refusal(*code).is_none())
        );
        assert_eq!(Failure::ShortWatch.refusal("watch"), None);
    }

    #[test]
    fn doubles_delays_within_bounds() {
        for failures in 0..100 {
            let longest = Duration::from_millis(100 << failures.min(10)).min(BACKOFF.longest);
            let delay = delay(failures, Duration::ZERO);
            assert!(delay >= longest / 2 && delay <= longest, "{delay:?}");
        }
    }

    #[test]
    fn honors_retry_after_up_to_a_bound() {
        assert_eq!(Failure::ShortWatch.minimum(), Duration::ZERO);
        assert_eq!(overloaded(2).minimum(), Duration::from_secs(2));
        let least = overloaded(3600).minimum();
        assert_eq!(least, MAX_RETRY_AFTER);
        for failures in 0..20 {
            let delay = delay(failures, least);
            assert!(delay >= least && delay <= BACKOFF.longest, "{delay:?}");
        }
    }

    #[test]
    fn resets_backoff_only_after_a_time_without_failures() {
        let mut pause = Retry::new(String::new(), "");
        let mut now = Instant::now();
        for _ in 0..10 {
            now += pause.next(Duration::ZERO, now);
        }
        now += RESET_AFTER / 2;
        let delay = pause.next(Duration::ZERO, now);
        assert!(delay >= BACKOFF.longest / 2);
        now += delay + RESET_AFTER * 2;
        assert!(pause.next(Duration::ZERO, now) <= BACKOFF.first);
    }

    #[test]
    fn rate_limits_log_messages() {
        let mut pause = Retry::new(String::new(), "");
        let start = Instant::now();
        let mut lines = 0;
        for failure in 0..600_u32 {
            let text = format!("for the reason {}", failure % 2);
            pause.log(text, start + Duration::from_millis(100) * failure);
            lines += u32::from(pause.is_logged_failing);
            pause.on_success();
        }
        assert_eq!(lines, 12);
    }
}
