//! Counters of a bounded number of keys, which all workers share without a lock. In a set of places, a new key takes that
//! of the least value: of a rate, the key that has not been used for longest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Places of a set.
const WAYS: usize = 8;

/// Counters by key.
#[derive(Debug)]
pub(super) struct Counters(Box<[Entry]>);

/// A key with its counter.
#[derive(Debug, Default)]
struct Entry {
    /// 0 if the place is free.
    key: AtomicU64,
    value: AtomicU64,
}

impl Counters {
    /// Creates counters for a number of keys, rounded up to a power of two of whole sets. For one key, there is one.
    pub(super) fn new(keys: usize) -> Self {
        let entries = match keys {
            0 | 1 => keys,
            _ => keys.next_power_of_two().max(WAYS),
        };
        let entries = std::iter::repeat_with(Entry::default).take(entries);
        Self(entries.collect())
    }

    /// Returns the counter of a key, which has the lowest bit set. A new key takes a place, with the counter 0. A counter below `used` is that of a key
    /// that nothing would differ for if it were new; otherwise `evicted` counts it.
    pub(super) fn find(&self, key: u64, used: u64, evicted: &AtomicU64) -> &AtomicU64 {
        let set = self.set(key);
        let known = |entry: &&Entry| entry.key.load(Relaxed) == key;
        if let Some(entry) = set.iter().find(known) {
            return &entry.value;
        }
        let mut oldest = &set[0];
        for entry in &set[1..] {
            if entry.value.load(Relaxed) < oldest.value.load(Relaxed) {
                oldest = entry;
            }
        }
        let previous = oldest.key.load(Relaxed);
        let taken = oldest.key.compare_exchange(previous, key, Relaxed, Relaxed);
        // If another worker was first, both keys count together until one is evicted: fewer requests are admitted.
        if taken.is_ok() && oldest.value.swap(0, Relaxed) >= used && previous != 0 {
            evicted.fetch_add(1, Relaxed);
        }
        &oldest.value
    }

    /// Returns the keys that have a place, with their counters.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let read = |entry: &Entry| (entry.key.load(Relaxed), entry.value.load(Relaxed));
        self.0.iter().map(read).filter(|(key, _)| *key != 0)
    }

    /// Returns the number of keys that have room.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the counter of a key that has a place.
    pub(super) fn get(&self, key: u64) -> Option<&AtomicU64> {
        let mut set = self.set(key).iter();
        let entry = set.find(|entry| entry.key.load(Relaxed) == key)?;
        Some(&entry.value)
    }

    fn set(&self, key: u64) -> &[Entry] {
        if self.0.len() <= WAYS {
            return &self.0;
        }
        let sets = self.0.len() / WAYS;
        // The lowest bit is that of every key.
        let set = (key >> 1) as usize % sets;
        &self.0[set * WAYS..(set + 1) * WAYS]
    }
}

/// Takes one of `max` places for requests in progress. Returns whether there is one.
pub(super) fn take_slot(count: &AtomicU64, max: u64) -> bool {
    let taken = count.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1));
    taken.is_ok()
}

/// Gives back a place for a request in progress, if its key was not evicted meanwhile.
pub(super) fn release(counters: &Counters, key: u64) {
    if let Some(count) = counters.get(key) {
        // An evicted key may have come back with fewer requests.
        let _ = count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
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
        match arrival.compare_exchange_weak(known, next, Relaxed, Relaxed) {
            Ok(_) => return Ok(next - now),
            Err(other) => known = other,
        }
    }
}

/// Gives back a token of GCRA at `now`, if its key was not evicted meanwhile.
pub(super) fn give_token(counters: &Counters, key: u64, now: u64, interval: u64) {
    if let Some(arrival) = counters.get(key) {
        // Nothing is left to give back once its time has passed.
        let give = |known: u64| (known > now).then(|| known.saturating_sub(interval));
        let _ = arrival.fetch_update(Relaxed, Relaxed, give);
    }
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
        match arrival.compare_exchange_weak(known, next, Relaxed, Relaxed) {
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
    let _ = arrival.fetch_update(Relaxed, Relaxed, add);
}
