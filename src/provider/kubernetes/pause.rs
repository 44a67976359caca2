//! What can go wrong between us and the API server, and how long to wait until the next try: longer each time, at
//! random, and logged in few lines.

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::api_server::{describe, retry_after};
use crate::backoff::Backoff;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};
/// The longest wait that an API server can ask for. Leaves room below the longest of [`BACKOFF`] for jitter.
const LONGEST_ASKED: Duration = Duration::from_secs(4);
/// A time without failures after which the next one counts as the first again. Shorter, and what fails every other time
/// would be retried as fast as it fails.
const CALM: Duration = Duration::from_secs(10);
/// How long the log is silent about the same failure, and about another one.
const SILENCE: Duration = Duration::from_secs(60);
const SHORT_SILENCE: Duration = Duration::from_secs(5);

/// Why something has to be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The API server cannot be reached or says no.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// It does not respond.
    #[error("no response within {} s", .0.as_secs_f32())]
    Silence(Duration),
    /// It ends watches.
    #[error("watches end as soon as they begin")]
    Brief,
    /// It is behind.
    #[error("a list is older, {listed}, than what is served, {served}")]
    Older { listed: u64, served: u64 },
    /// It has lost much, or so it seems.
    #[error("a list has {listed} objects of {known}, which another one is to confirm")]
    Loss { listed: usize, known: usize },
}

impl Failure {
    /// The least that is to be waited.
    fn at_least(&self) -> Duration {
        match self {
            // As good as any answer, if it is no longer the same glitch.
            Self::Loss { .. } => Duration::from_secs(1),
            _ => retry_after(self).unwrap_or_default().min(LONGEST_ASKED),
        }
    }
}

/// Waits between failures of one thing.
pub(super) struct Pause {
    /// What fails, such as `HTTPRoute`.
    subject: String,
    /// What cannot be done with it, such as `watched`.
    done: &'static str,
    failures: u32,
    /// When the last wait ended.
    last: Option<Instant>,
    logged: Option<(Instant, String)>,
    is_logged_failing: bool,
}

impl Pause {
    pub(super) fn new(subject: String, done: &'static str) -> Self {
        Self {
            subject,
            done,
            failures: 0,
            last: None,
            logged: None,
            is_logged_failing: false,
        }
    }

    /// Waits until it may be retried.
    pub(super) async fn after(&mut self, failure: &Failure) {
        let now = Instant::now();
        self.log(describe(failure), now);
        sleep(self.next(failure.at_least(), now)).await;
    }

    /// It works, for now.
    pub(super) fn over(&mut self) {
        if std::mem::take(&mut self.is_logged_failing) {
            tracing::info!("{} is {} again", self.subject, self.done);
        }
    }

    fn next(&mut self, at_least: Duration, now: Instant) -> Duration {
        if self.last.is_some_and(|last| last + CALM < now) {
            self.failures = 0;
        }
        let wait = wait(self.failures, at_least);
        self.failures += 1;
        self.last = Some(now + wait);
        wait
    }

    fn log(&mut self, text: String, now: Instant) {
        let is_logged = self.logged.as_ref().is_some_and(|(when, logged)| {
            let silence = if *logged == text {
                SILENCE
            } else {
                SHORT_SILENCE
            };
            *when + silence > now
        });
        if !is_logged {
            tracing::warn!(
                "{} cannot be {}: {text}; its last known state is served",
                self.subject,
                self.done
            );
            self.logged = Some((now, text));
            self.is_logged_failing = true;
        }
    }
}

/// How long to wait after so many failures, at random within what that comes to.
fn wait(failures: u32, at_least: Duration) -> Duration {
    let longest = BACKOFF.after(failures);
    let from = (longest / 2).max(at_least);
    let until = longest.max(at_least.mul_f64(1.2));
    from + (until - from).mul_f64(rand::rng().random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::RetryAfter;

    fn overloaded(seconds: u64) -> Failure {
        let after = Duration::from_secs(seconds);
        let asked = RetryAfter { status: 429, after };
        Failure::Api(kube::Error::Service(Box::new(asked)))
    }

    #[test]
    fn doubles_waits_within_bounds() {
        for failures in 0..100 {
            let longest = Duration::from_millis(100 << failures.min(10)).min(BACKOFF.longest);
            let wait = wait(failures, Duration::ZERO);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
        }
    }

    #[test]
    fn waits_as_long_as_the_api_server_asks_up_to_a_bound() {
        assert_eq!(Failure::Brief.at_least(), Duration::ZERO);
        assert_eq!(overloaded(2).at_least(), Duration::from_secs(2));
        let least = overloaded(3600).at_least();
        assert_eq!(least, LONGEST_ASKED);
        for failures in 0..20 {
            let wait = wait(failures, least);
            assert!(wait >= least && wait <= BACKOFF.longest, "{wait:?}");
        }
    }

    #[test]
    fn keeps_backoff_until_it_has_worked_for_a_while() {
        let mut pause = Pause::new(String::new(), "");
        let mut now = Instant::now();
        for _ in 0..10 {
            now += pause.next(Duration::ZERO, now);
        }
        now += CALM / 2;
        let wait = pause.next(Duration::ZERO, now);
        assert!(wait >= BACKOFF.longest / 2);
        now += wait + CALM * 2;
        assert!(pause.next(Duration::ZERO, now) <= BACKOFF.first);
    }

    #[test]
    fn logs_repeated_failures_in_few_lines() {
        let mut pause = Pause::new(String::new(), "");
        let start = Instant::now();
        let mut lines = 0;
        for failure in 0..600_u32 {
            let text = format!("for the reason {}", failure % 2);
            pause.log(text, start + Duration::from_millis(100) * failure);
            lines += u32::from(pause.is_logged_failing);
            pause.over();
        }
        assert_eq!(lines, 12);
    }
}
