//! When each key set is fetched. Pure: the caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::{Key, Text};
use crate::runtime::backoff::Backoff;
use crate::translate::{KeySetSource, WantedKeySet};

/// Delay before a retry after a failure.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};
/// Time between two fetches of a key set that tokens ask for: clients choose the keys that tokens name.
const ASK_PERIOD: Duration = Duration::from_secs(10);
/// The parts of its time after which a key set is fetched again, so that those that began together do not stay together.
const REFRESH: std::ops::Range<f64> = 0.8..0.95;
/// Maximum number of concurrent fetches, for a namespace and in total. A slow issuer delays its own namespace only.
const CONCURRENT: (usize, usize) = (4, 128);

/// The key sets and when they are fetched.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    sets: BTreeMap<Key, Set>,
    /// Number of running fetches by namespace, and of all.
    running: BTreeMap<Text, usize>,
    total: usize,
    /// Number of the last fetch.
    last: u64,
}

/// A fetch that begins.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) key: Key,
    /// Its number, for its end.
    pub(super) number: u64,
    pub(super) source: KeySetSource,
}

/// State of a key set.
#[derive(Debug)]
struct Set {
    wanted: WantedKeySet,
    /// When it is fetched next.
    due: Instant,
    /// The number of the running fetch.
    running: Option<u64>,
    /// When the last fetch began.
    began: Option<Instant>,
    /// When the last successful fetch ended, in milliseconds since 1970.
    fetched: Option<u64>,
    /// Number of failures in a row.
    failures: u32,
}

impl Schedule {
    /// Adds a key set, or changes where it is. It is due at once: what a running fetch returns is of another source.
    pub(super) fn set(&mut self, key: &Key, wanted: &WantedKeySet, now: Instant) {
        match self.sets.get_mut(key) {
            Some(set) => {
                set.wanted = wanted.clone();
                set.due = now;
                set.running = None;
            }
            None => {
                let set = Set {
                    wanted: wanted.clone(),
                    due: now,
                    running: None,
                    began: None,
                    fetched: None,
                    failures: 0,
                };
                self.sets.insert(key.clone(), set);
            }
        }
    }

    /// Changes from which endpoints a key set is fetched. It is due at once if it cannot be fetched from the others.
    pub(super) fn set_endpoints(&mut self, key: &Key, wanted: &WantedKeySet, now: Instant) {
        if let Some(set) = self.sets.get_mut(key) {
            set.wanted = wanted.clone();
            if set.failures > 0 {
                set.due = now;
            }
        }
    }

    /// Removes a key set.
    pub(super) fn remove(&mut self, key: &Key) {
        self.sets.remove(key);
    }

    /// Returns the key sets to fetch now, those that are due for the longest time first, and when the next one is due.
    pub(super) fn start(&mut self, now: Instant) -> (Vec<Started>, Option<Instant>) {
        let waiting = || self.sets.iter().filter(|(_, set)| set.running.is_none());
        let mut due: Vec<_> = waiting()
            .filter(|(_, set)| set.due <= now)
            .map(|(key, set)| (set.due, key.clone()))
            .collect();
        // Those beyond the limits start when a fetch ends.
        let next = waiting().map(|(_, set)| set.due);
        let next = next.filter(|due| *due > now).min();
        due.sort();
        let mut started = Vec::new();
        for (_, key) in due {
            let of_namespace = self.running.entry(key.namespace.clone()).or_default();
            if *of_namespace >= CONCURRENT.0 || self.total >= CONCURRENT.1 {
                continue;
            }
            if let Some(set) = self.sets.get_mut(&key) {
                *of_namespace += 1;
                self.total += 1;
                self.last += 1;
                set.running = Some(self.last);
                set.began = Some(now);
                started.push(Started {
                    key,
                    number: self.last,
                    source: set.wanted.source.clone(),
                });
            }
        }
        (started, next)
    }

    /// Takes the end of a fetch. Returns whether the one before it had failed; `None` if nothing needs its result any more.
    pub(super) fn finish(
        &mut self,
        (key, number): (&Key, u64),
        is_good: bool,
        (now, time): (Instant, u64),
    ) -> Option<bool> {
        self.total = self.total.saturating_sub(1);
        if let Some(running) = self.running.get_mut(&key.namespace) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.running.remove(&key.namespace);
            }
        }
        let set = self.sets.get_mut(key)?;
        set.running.take_if(|running| *running == number)?;
        let was_failing = set.failures > 0;
        let cache_duration = set.wanted.cache_duration;
        if is_good {
            set.failures = 0;
            set.fetched = Some(time);
            set.due = now + cache_duration.mul_f64(rand::random_range(REFRESH));
        } else {
            let delay = BACKOFF.after(set.failures).min(cache_duration);
            set.failures = set.failures.saturating_add(1);
            set.due = now + delay.mul_f64(rand::random_range(REFRESH));
        }
        Some(was_failing)
    }

    /// A token names a key that a key set lacks. Returns whether the key set is due sooner for that.
    pub(super) fn ask(&mut self, key: &Key) -> bool {
        if let Some(set) = self.sets.get_mut(key)
            && let Some(began) = set.began
            && began + ASK_PERIOD < set.due
        {
            set.due = began + ASK_PERIOD;
            return true;
        }
        false
    }

    /// Returns when the key set was fetched that was fetched first, in milliseconds since 1970.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.sets.values().filter_map(|set| set.fetched).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::tls::Authorities;

    fn wanted(seconds: u64) -> WantedKeySet {
        WantedKeySet {
            source: KeySetSource {
                uri: "https://a.com".parse().unwrap(),
                authorities: Authorities::System,
                provider: None,
                server: None,
            },
            cache_duration: Duration::from_secs(seconds),
        }
    }

    fn started(schedule: &mut Schedule, now: Instant) -> usize {
        schedule.start(now).0.len()
    }

    /// Ends the running fetch of a key set.
    fn finish(
        schedule: &mut Schedule,
        key: &Key,
        is_good: bool,
        at: (Instant, u64),
    ) -> Option<bool> {
        let number = schedule.sets.get(key).and_then(|set| set.running);
        schedule.finish((key, number.unwrap_or_default()), is_good, at)
    }

    fn at(base: Instant, seconds: u64) -> Instant {
        base + Duration::from_secs(seconds)
    }

    #[test]
    fn fetches_again_before_the_time_ends() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let key = Key::new("one", "a");
        schedule.set(&key, &wanted(100), now);
        assert_eq!(started(&mut schedule, now), 1);
        assert_eq!(started(&mut schedule, at(now, 200)), 0);
        assert_eq!(finish(&mut schedule, &key, true, (now, 7)), Some(false));
        assert_eq!(schedule.oldest(), Some(7));
        let next = schedule.start(now).1.unwrap();
        assert!((80..=95).contains(&(next - now).as_secs()));
        assert_eq!(started(&mut schedule, at(now, 79)), 0);
        assert_eq!(started(&mut schedule, at(now, 95)), 1);
        schedule.remove(&key);
        assert_eq!(finish(&mut schedule, &key, true, (now, 7)), None);
    }

    #[test]
    fn failures_delay_the_next_fetch() {
        let (mut schedule, mut now) = (Schedule::default(), Instant::now());
        let key = Key::new("one", "a");
        schedule.set(&key, &wanted(300), now);
        for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(started(&mut schedule, now), 1);
            finish(&mut schedule, &key, false, (now, 0));
            let half = now + Duration::from_millis(delay * 500);
            assert_eq!(started(&mut schedule, half), 0);
            now = at(now, delay);
        }
        assert_eq!(started(&mut schedule, now), 1);
        assert_eq!(finish(&mut schedule, &key, true, (now, 0)), Some(true));
    }

    #[test]
    fn tokens_ask_once_in_ten_seconds() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let key = Key::new("one", "a");
        schedule.set(&key, &wanted(3600), now);
        assert!(!schedule.ask(&key));
        assert_eq!(started(&mut schedule, now), 1);
        finish(&mut schedule, &key, true, (now, 0));
        assert!(schedule.ask(&key));
        assert!(!schedule.ask(&key), "it is due in 10 s for the first");
        assert!(!schedule.ask(&Key::new("one", "other")));
        assert_eq!(started(&mut schedule, at(now, 9)), 0);
        assert_eq!(started(&mut schedule, at(now, 10)), 1);
        finish(&mut schedule, &key, true, (at(now, 10), 0));
        schedule.ask(&key);
        assert_eq!(started(&mut schedule, at(now, 19)), 0);
        assert_eq!(started(&mut schedule, at(now, 20)), 1);
        finish(&mut schedule, &key, true, (at(now, 20), 0));
        assert_eq!(started(&mut schedule, at(now, 600)), 0);
    }

    #[test]
    fn slow_issuers_delay_their_namespace_alone() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let keys: Vec<_> = (0..9).map(|it| Key::new("one", &it.to_string())).collect();
        keys.iter()
            .for_each(|key| schedule.set(key, &wanted(60), now));
        assert_eq!(started(&mut schedule, now), CONCURRENT.0);
        schedule.set(&Key::new("two", "a"), &wanted(60), at(now, 1));
        assert_eq!(started(&mut schedule, at(now, 1)), 1);
        schedule.remove(&keys[0]);
        finish(&mut schedule, &keys[0], false, (now, 0));
        assert_eq!(started(&mut schedule, at(now, 2)), 1);
    }

    #[test]
    fn changed_source_is_fetched_at_once_and_the_running_fetch_is_ignored() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let key = Key::new("one", "a");
        schedule.set(&key, &wanted(3600), now);
        let [first] = &schedule.start(now).0[..] else {
            panic!("one is due");
        };
        schedule.set(&key, &wanted(60), now);
        let [second] = &schedule.start(now).0[..] else {
            panic!("one is due");
        };
        assert_eq!(schedule.finish((&key, first.number), true, (now, 1)), None);
        assert_eq!(started(&mut schedule, at(now, 1)), 0);
        let end = schedule.finish((&key, second.number), true, (now, 2));
        assert_eq!((end, schedule.oldest()), (Some(false), Some(2)));
        assert_eq!(schedule.total, 0);
        // One that is removed and added again is another one.
        let [third] = &schedule.start(at(now, 60)).0[..] else {
            panic!("one is due");
        };
        schedule.remove(&key);
        schedule.set(&key, &wanted(60), now);
        assert_eq!(schedule.finish((&key, third.number), true, (now, 3)), None);
        assert_eq!(started(&mut schedule, now), 1);
    }
}
