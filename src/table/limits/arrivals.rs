//! Theoretical arrival times of keys, in nanoseconds, which all workers share without a lock, and what requests take of them by
//! GCRA. In a full table, a new key takes the place of that which has not been used for longest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::parts::{Entry, Parts};

/// Arrival times by key. Those that have passed are not in use.
pub(super) type Arrivals = Parts<Arrival>;

/// A key with its arrival time.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    key: AtomicU64,
    pub(super) time: AtomicU64,
}

impl Entry for Arrival {
    const HAS_MARKS: bool = false;

    fn load(&self) -> (u64, u64) {
        // The key first: if another one takes the place meanwhile, `replace` finds that. Who sees a time that is in use sees the
        // key that uses it next.
        (self.key.load(Acquire), self.time.load(Acquire))
    }

    fn rank(&self) -> u64 {
        self.time.load(Relaxed)
    }

    fn replace(&self, (previous, _): (u64, u64), was_in_use: bool, key: u64) -> bool {
        let replaced = self.key.compare_exchange(previous, key, Relaxed, Relaxed);
        if replaced.is_ok() && was_in_use {
            self.time.store(0, Relaxed);
        }
        replaced.is_ok()
    }
}

/// Takes a token of GCRA at `now`: a request each `interval`, and as many at once as `tolerance` covers, in nanoseconds.
/// Returns how far the next theoretical arrival is ahead, or the time until the request may be sent again.
pub(super) fn take_token(
    arrival: &AtomicU64,
    now: u64,
    interval: u64,
    tolerance: u64,
) -> Result<u64, u64> {
    let mut known = arrival.load(Relaxed);
    loop {
        let base = known.max(now);
        let ahead = base - now;
        if ahead > tolerance {
            return Err(ahead - tolerance);
        }
        let next = base.saturating_add(interval);
        match arrival.compare_exchange_weak(known, next, Release, Relaxed) {
            Ok(_) => return Ok(next - now),
            Err(other) => known = other,
        }
    }
}

/// Gives back a token of GCRA at `now`, if its key was not evicted meanwhile.
pub(super) fn give_token(arrivals: &Arrivals, key: u64, now: u64, interval: u64) {
    arrivals.get(key, now, |place| {
        // Nothing is left to give back once its time has passed.
        let give = |known: u64| (known > now).then(|| known.saturating_sub(interval));
        let _ = place.entry.time.fetch_update(Relaxed, Relaxed, give);
    });
}

/// Takes up to `wanted` tokens of GCRA at `now`. `tokens` of a time, and `time` of tokens, are those of its rate. Returns how
/// many, and how far the next theoretical arrival is ahead.
pub(super) fn take_tokens(
    arrival: &AtomicU64,
    now: u64,
    tolerance: u64,
    wanted: u64,
    (tokens, time): (impl Fn(u64) -> u64, impl Fn(u64) -> u64),
) -> (u64, u64) {
    let mut known = arrival.load(Relaxed);
    loop {
        let base = known.max(now);
        let ahead = base - now;
        let taken = match tolerance.checked_sub(ahead) {
            Some(room) => tokens(room).saturating_add(1).min(wanted),
            None => 0,
        };
        if taken == 0 {
            return (0, ahead);
        }
        let next = base.saturating_add(time(taken).max(1));
        match arrival.compare_exchange_weak(known, next, Release, Relaxed) {
            Ok(_) => return (taken, next - now),
            Err(other) => known = other,
        }
    }
}

/// Returns for how long a key with this theoretical arrival is to be refused at `now`: until its debt is within `tolerance`,
/// in nanoseconds.
pub(super) fn check_debt(arrival: u64, now: u64, tolerance: u64) -> Result<(), u64> {
    let ahead = arrival.saturating_sub(now);
    match ahead <= tolerance {
        true => Ok(()),
        false => Err(ahead - tolerance),
    }
}

/// Adds a cost that is known only at `now`, however large, up to a debt of `max`, in nanoseconds.
pub(super) fn add_debt(arrival: &AtomicU64, now: u64, cost: u64, max: u64) {
    let latest = now.saturating_add(max);
    let add = |known: u64| Some(known.max(now).saturating_add(cost).min(latest.max(known)));
    // Always `Some`, so that it cannot fail.
    let _ = arrival.fetch_update(Release, Relaxed, add);
}
