//! How long a client connection may be used, if policies limit that: its number of requests, and its age.

use std::cell::Cell;
use std::time::Duration;

use rand::RngExt;

use crate::ir::client::ConnectionSettings;
use crate::runtime::clock::Clock;

/// By which part of the maximum age a connection may end earlier, so that those that were opened together do not end
/// together.
const JITTER: u64 = 10;

/// The limits of one connection.
#[derive(Debug)]
pub(in crate::proxy) struct Lifetime {
    /// Number of further requests.
    requests_left: Cell<Option<u32>>,
    /// The time of the clock at which it has its maximum age.
    ends_at: Option<u64>,
}

impl Lifetime {
    /// Returns the limits of a connection that begins now; `None` without any.
    pub(in crate::proxy) fn new(settings: &ConnectionSettings, clock: &Clock) -> Option<Self> {
        let (requests, age) = (settings.max_requests, settings.max_age);
        (requests.is_some() || age.is_some()).then(|| Self {
            requests_left: Cell::new(requests),
            ends_at: age.map(|age| clock.now() + shortened(age)),
        })
    }

    /// Counts a request.
    pub(in crate::proxy) fn on_request(&self) {
        if let Some(left) = self.requests_left.get() {
            self.requests_left.set(Some(left.saturating_sub(1)));
        }
    }

    /// Reports whether the connection has had all requests that it may have.
    pub(in crate::proxy) fn is_spent(&self) -> bool {
        self.requests_left.get() == Some(0)
    }

    /// Returns the time until the connection has its maximum age, if it has one.
    pub(in crate::proxy) fn left(&self, clock: &Clock) -> Option<Duration> {
        let ends_at = self.ends_at?;
        Some(Duration::from_millis(ends_at.saturating_sub(clock.now())))
    }
}

/// Returns an age in milliseconds, less a random part.
fn shortened(age: Duration) -> u64 {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX / 2);
    age - rand::rng().random_range(0..=age / JITTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(max_requests: Option<u32>, max_age: Option<u64>) -> ConnectionSettings {
        ConnectionSettings {
            max_requests,
            max_age: max_age.map(Duration::from_secs),
            ..ConnectionSettings::default()
        }
    }

    #[test]
    fn ages_differ_by_up_to_a_tenth() {
        let clock = Clock::new();
        clock.advance(5_000);
        let lefts = (0..200).map(|_| {
            let lifetime = Lifetime::new(&settings(None, Some(100)), &clock).unwrap();
            lifetime.left(&clock).unwrap().as_millis()
        });
        let lefts: Vec<_> = lefts.collect();
        assert!(lefts.iter().all(|it| (90_000..=100_000).contains(it)));
        assert!(lefts.iter().any(|it| *it != lefts[0]));
        let lifetime = Lifetime::new(&settings(None, Some(1)), &clock).unwrap();
        clock.advance(6_000);
        assert_eq!(lifetime.left(&clock), Some(Duration::ZERO));
        assert!(!lifetime.is_spent());
    }

    #[test]
    fn connection_without_limits_has_no_lifetime() {
        let clock = Clock::new();
        assert!(Lifetime::new(&settings(None, None), &clock).is_none());
        let lifetime = Lifetime::new(&settings(Some(1), None), &clock).unwrap();
        assert_eq!(lifetime.left(&clock), None);
        lifetime.on_request();
        assert!(lifetime.is_spent());
    }
}
