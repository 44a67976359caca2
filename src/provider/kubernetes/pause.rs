//! What can go wrong between us and the API server, and how long to wait until the next try: longer each time, never
//! the same for all, and told in few lines of log. Knows not what is tried.

use std::error::Error;
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

/// The first wait after a failure; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The longest wait that an API server can ask for. Leaves room below [`LONGEST_WAIT`] for clients that come apart.
const LONGEST_ASKED: Duration = Duration::from_secs(4);
/// A time without failures after which the next one counts as the first again: what fails, works and fails in turns
/// must not be tried as fast as it fails.
const CALM: Duration = Duration::from_secs(10);
/// How long the log is silent about the same failure, and about another one.
const SILENCE: Duration = Duration::from_secs(60);
const SHORT_SILENCE: Duration = Duration::from_secs(5);
/// Characters of a failure that are told: some servers answer with a page.
const SHOWN: usize = 300;

/// Why something has to be tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The API server cannot be reached or says no.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// It says nothing.
    #[error("no answer within {} s", .0.as_secs_f32())]
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
            _ => asked(self).unwrap_or_default().min(LONGEST_ASKED),
        }
    }

    /// What is wrong, on one line.
    fn text(&self) -> String {
        match self {
            // Its own words are the status twice, once with all its fields.
            Self::Api(kube::Error::Api(status)) => {
                line(&format!("status {}: {}", status.code, status.message))
            }
            _ => line(&chain(self)),
        }
    }
}

/// The API server wants to be left alone for a while.
#[derive(Debug, thiserror::Error)]
#[error("status {status}, try again in {} s", .after.as_secs())]
pub(super) struct RetryAfter {
    pub(super) status: u16,
    pub(super) after: Duration,
}

/// How long a failure asks to wait.
fn asked(failure: &(dyn Error + 'static)) -> Option<Duration> {
    let mut cause = Some(failure);
    while let Some(error) = cause {
        if let Some(asked) = error.downcast_ref::<RetryAfter>() {
            return Some(asked.after);
        }
        cause = error.source();
    }
    None
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
    told: Option<(Instant, String)>,
    is_told_failing: bool,
}

impl Pause {
    pub(super) fn new(subject: String, done: &'static str) -> Self {
        Self {
            subject,
            done,
            failures: 0,
            last: None,
            told: None,
            is_told_failing: false,
        }
    }

    /// Waits until it may be tried again.
    pub(super) async fn after(&mut self, failure: &Failure) {
        let now = Instant::now();
        self.tell(failure.text(), now);
        sleep(self.next(failure.at_least(), now)).await;
    }

    /// It works, for now.
    pub(super) fn over(&mut self) {
        if std::mem::take(&mut self.is_told_failing) {
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

    fn tell(&mut self, text: String, now: Instant) {
        let is_told = self.told.as_ref().is_some_and(|(when, told)| {
            let silence = if *told == text {
                SILENCE
            } else {
                SHORT_SILENCE
            };
            *when + silence > now
        });
        if !is_told {
            tracing::warn!(
                "{} cannot be {}: {text}; what was known of it is served until it can",
                self.subject,
                self.done
            );
            self.told = Some((now, text));
            self.is_told_failing = true;
        }
    }
}

/// How long to wait after so many failures, at random within what that comes to.
fn wait(failures: u32, at_least: Duration) -> Duration {
    let longest = FIRST_WAIT
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_WAIT);
    let from = (longest / 2).max(at_least);
    let until = longest.max(at_least.mul_f64(1.2));
    from + (until - from).mul_f64(rand::rng().random_range(0.0..1.0))
}

/// An error with its causes, each told once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Text from outside on one line and in bounds.
fn line(text: &str) -> String {
    let plain = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    let mut line: String = text.chars().take(SHOWN).map(plain).collect();
    if text.chars().nth(SHOWN).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overloaded(seconds: u64) -> Failure {
        let after = Duration::from_secs(seconds);
        let asked = RetryAfter { status: 429, after };
        Failure::Api(kube::Error::Service(Box::new(asked)))
    }

    #[test]
    fn waits_grow_and_stay_in_bounds() {
        for failures in 0..100 {
            let longest = Duration::from_millis(100 << failures.min(10)).min(LONGEST_WAIT);
            let wait = wait(failures, Duration::ZERO);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
        }
    }

    #[test]
    fn what_an_api_server_asks_for_is_granted_up_to_a_bound() {
        assert_eq!(Failure::Brief.at_least(), Duration::ZERO);
        assert_eq!(overloaded(2).at_least(), Duration::from_secs(2));
        let least = overloaded(3600).at_least();
        assert_eq!(least, LONGEST_ASKED);
        for failures in 0..20 {
            let wait = wait(failures, least);
            assert!(wait >= least && wait <= LONGEST_WAIT, "{wait:?}");
        }
    }

    #[test]
    fn what_works_in_between_does_not_make_it_faster_at_once() {
        let mut pause = Pause::new(String::new(), "");
        let mut now = Instant::now();
        for _ in 0..10 {
            now += pause.next(Duration::ZERO, now);
        }
        now += CALM / 2;
        let wait = pause.next(Duration::ZERO, now);
        assert!(wait >= LONGEST_WAIT / 2);
        now += wait + CALM * 2;
        assert!(pause.next(Duration::ZERO, now) <= FIRST_WAIT);
    }

    #[test]
    fn failures_that_come_in_numbers_are_told_in_few_lines() {
        let mut pause = Pause::new(String::new(), "");
        let start = Instant::now();
        let mut lines = 0;
        for failure in 0..600_u32 {
            let text = format!("for the reason {}", failure % 2);
            pause.tell(text, start + Duration::from_millis(100) * failure);
            lines += u32::from(pause.is_told_failing);
            pause.over();
        }
        assert_eq!(lines, 12);
    }

    #[test]
    fn pages_are_told_as_one_short_line() {
        let page = format!("<html>\n<body>{}", "x".repeat(10_000));
        let status = kube::core::Status::failure(&page, "Failed").with_code(502);
        let text = Failure::Api(kube::Error::Api(status.boxed())).text();
        assert!(
            text.chars().count() <= SHOWN + 1 && !text.contains('\n'),
            "{text}"
        );
    }
}
