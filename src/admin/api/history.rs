//! The document of the last minutes: a list of each value, with one for each step.

use serde_json::{Value, json};

use crate::admin::history::{History, MAX_STEPS, Rates, STEP, Step};

/// The lists, the oldest step first. What is not known is null.
pub(super) fn lists(history: &History) -> Value {
    let steps = history.steps();
    let connections = steps.iter().map(|step| step.connections);
    json!({
        "stepSeconds": STEP.as_secs(),
        "maxSteps": MAX_STEPS,
        "requestsPerSecond": of_rates(&steps, |it| Some(rounded(it.requests_per_second, 1e3))),
        "failedPerSecond": of_rates(&steps, |it| Some(rounded(it.failed_per_second, 1e3))),
        "p99Seconds": of_rates(&steps, |it| it.p99.map(|seconds| rounded(seconds, 1e6))),
        "connections": connections.collect::<Vec<_>>(),
    })
}

fn of_rates(steps: &[Step], value: impl Fn(&Rates) -> Option<f64>) -> Vec<Option<f64>> {
    let rates = steps.iter().map(|step| step.rates.as_ref());
    rates.map(|rates| rates.and_then(&value)).collect()
}

/// Rounds a value to a part of one, so that the document is small.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::admin::totals::Totals;

    /// Counters with this many requests of at most 0.5 ms, and as many that have failed after less than 1 ms.
    fn totals(requests: u64, connections: u64) -> Totals {
        let mut totals = Totals {
            classes: [0, requests, 0, 0, requests],
            connections,
            ..Totals::default()
        };
        totals.durations.buckets[..2].fill(requests);
        totals
    }

    #[test]
    fn lists_have_a_value_for_each_step_and_null_for_what_is_not_known() {
        let (history, start) = (History::default(), Instant::now());
        let expected = |requests: Value, failed: Value, p99: Value, connections: Value| {
            json!({
                "stepSeconds": 5, "maxSteps": 60, "requestsPerSecond": requests,
                "failedPerSecond": failed, "p99Seconds": p99, "connections": connections,
            })
        };
        history.sample(totals(300, 1), start);
        let none = || json!([]);
        assert_eq!(lists(&history), expected(none(), none(), none(), none()));
        for (at, (requests, connections)) in (1_u32..).zip([(350, 2), (350, 3), (0, 4)]) {
            history.sample(totals(requests, connections), start + STEP * at);
        }
        let shown = lists(&history);
        let wanted = expected(
            json!([20.0, 0.0, null]),
            json!([10.0, 0.0, null]),
            json!([0.00099, null, null]),
            json!([2, 3, 4]),
        );
        assert_eq!(shown, wanted);
    }

    #[test]
    fn full_lists_are_small() {
        let (history, start) = (History::default(), Instant::now());
        for look in 0..=60_u32 {
            let requests = u64::from(look) * 1_234_567;
            history.sample(totals(requests, requests), start + STEP * look);
        }
        let shown = lists(&history);
        assert_eq!(shown["p99Seconds"].as_array().unwrap().len(), MAX_STEPS);
        let bytes = shown.to_string().len();
        assert!(bytes < 4096, "{bytes}");
    }
}
