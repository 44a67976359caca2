//! What the process did in the last five minutes, in steps of five seconds, for the page. Requests are not counted for it: each
//! step is the difference of two looks at the counters.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::totals::Totals;
use crate::table::{DURATION_BOUNDS_MICROS, quantile};

/// Time between two looks at the counters.
pub(super) const STEP: Duration = Duration::from_secs(5);
/// Maximum number of steps: those of five minutes.
pub(super) const MAX_STEPS: usize = 60;

/// The steps until now.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    /// The counters at the last sample.
    last: Option<(Instant, Totals)>,
    /// The oldest first.
    steps: VecDeque<Step>,
}

/// What the process did in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// `None` if it is not known, because rules with requests were removed together with their counters.
    pub(super) rates: Option<Rates>,
    /// Open connections at its end.
    pub(super) connections: u64,
}

/// The requests of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) requests_per_second: f64,
    /// Those with a 5xx.
    pub(super) failed_per_second: f64,
    /// An estimate, in seconds; `None` without requests.
    pub(super) p99: Option<f64>,
}

impl History {
    /// Adds what happened since the last sample. A late one counts for all of its steps; one that is too early is left out.
    pub(super) fn sample(&self, totals: Totals, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((then, before)) = known.last else {
            known.last = Some((now, totals));
            return;
        };
        let elapsed = now.saturating_duration_since(then).as_secs_f64();
        let steps = (elapsed / STEP.as_secs_f64()).round() as usize;
        if steps == 0 {
            return;
        }
        known.last = Some((now, totals));
        let step = Step {
            rates: Rates::between(&before, &totals, elapsed),
            connections: totals.connections,
        };
        let new = iter::repeat_n(step, steps.min(MAX_STEPS));
        known.steps.extend(new);
        let surplus = known.steps.len().saturating_sub(MAX_STEPS);
        known.steps.drain(..surplus);
    }

    /// Returns the steps, the oldest first.
    pub(super) fn steps(&self) -> Vec<Step> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.steps.iter().copied().collect()
    }
}

impl Rates {
    fn between(before: &Totals, now: &Totals, seconds: f64) -> Option<Self> {
        let classes = differences(&before.classes, &now.classes)?;
        let durations = differences(&before.durations.buckets, &now.durations.buckets)?;
        let per_second = |count: u64| count as f64 / seconds;
        let bounds = DURATION_BOUNDS_MICROS.map(|micros| micros as f64 / 1e6);
        Some(Self {
            requests_per_second: per_second(classes.iter().sum()),
            failed_per_second: per_second(classes[4]),
            p99: quantile(0.99, &bounds, &durations),
        })
    }
}

/// Returns by how much each counter is higher than before; `None` if one is lower.
fn differences<const N: usize>(before: &[u64; N], now: &[u64; N]) -> Option<[u64; N]> {
    let mut all = *now;
    for (now, before) in all.iter_mut().zip(before) {
        *now = now.checked_sub(*before)?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters with this many requests of at most 0.5 ms, of which some have failed.
    fn totals(requests: u64, failed: u64) -> Totals {
        let mut totals = Totals {
            classes: [0, requests - failed, 0, 0, failed],
            connections: requests / 10,
            ..Totals::default()
        };
        totals.durations.buckets[0] = requests;
        totals
    }

    /// The requests per second of each step.
    fn requests(history: &History) -> Vec<Option<f64>> {
        let steps = history.steps().into_iter();
        let rates = steps.map(|step| step.rates.map(|rates| rates.requests_per_second));
        rates.collect()
    }

    #[test]
    fn step_has_what_happened_since_the_look_before() {
        let (history, start) = (History::default(), Instant::now());
        history.sample(totals(100, 10), start);
        assert!(history.steps().is_empty());
        history.sample(totals(150, 15), start + STEP);
        history.sample(totals(150, 15), start + 2 * STEP);
        let steps = history.steps();
        let busy = steps[0].rates.unwrap();
        assert_eq!(
            (busy.requests_per_second, busy.failed_per_second),
            (10.0, 1.0)
        );
        let p99 = busy.p99.unwrap();
        assert!(p99 > 0.0004 && p99 <= 0.0005, "{p99}");
        let idle = Rates {
            requests_per_second: 0.0,
            failed_per_second: 0.0,
            p99: None,
        };
        assert_eq!((steps[1].rates, steps[1].connections), (Some(idle), 15));
        assert_eq!(steps.len(), 2);
    }

    #[test]
    fn oldest_steps_make_room() {
        let (history, start) = (History::default(), Instant::now());
        for look in 0..200_u32 {
            history.sample(totals(u64::from(look * look), 0), start + STEP * look);
        }
        let steps = requests(&history);
        assert_eq!(steps.len(), MAX_STEPS);
        // The squares of 139 and 140, and of 198 and 199.
        let [first, last] = [279.0 / 5.0, 397.0 / 5.0].map(Some);
        assert_eq!((steps[0], steps[MAX_STEPS - 1]), (first, last));
    }

    #[test]
    fn late_look_stands_for_all_of_its_steps() {
        let (history, start) = (History::default(), Instant::now());
        history.sample(totals(0, 0), start);
        history.sample(totals(150, 0), start + 3 * STEP);
        assert_eq!(requests(&history), [Some(10.0); 3]);
        history.sample(totals(150, 0), start + 1_000_000 * STEP);
        assert_eq!(requests(&history), [Some(0.0); MAX_STEPS]);
    }

    #[test]
    fn look_that_is_too_early_is_left_out() {
        let (history, start) = (History::default(), Instant::now());
        history.sample(totals(0, 0), start);
        history.sample(totals(40, 0), start);
        history.sample(totals(45, 0), start + STEP / 5);
        assert!(history.steps().is_empty());
        history.sample(totals(50, 0), start + STEP);
        assert_eq!(requests(&history), [Some(10.0)]);
    }

    #[test]
    fn requests_are_unknown_when_counters_went_away() {
        let (history, start) = (History::default(), Instant::now());
        history.sample(totals(100, 0), start);
        history.sample(totals(40, 0), start + STEP);
        history.sample(totals(90, 0), start + 2 * STEP);
        assert_eq!(requests(&history), [None, Some(10.0)]);
        assert_eq!(history.steps()[0].connections, 4);
    }
}
