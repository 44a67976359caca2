//! Requests in progress of keys, which all workers share without a lock. In a full table, a new key takes the place of that which
//! has fewest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::parts::{ANY, Entry, Parts};

/// Bits of the number of requests. The others are those of the key.
const COUNT: u64 = (1 << 24) - 1;

/// Requests in progress by key.
pub(super) type Slots = Parts<Slot>;

/// A key with the number of its requests, in one word: no request counts for a key that has taken the place meanwhile.
#[derive(Debug, Default)]
pub(super) struct Slot(AtomicU64);

impl Entry for Slot {
    const HAS_MARKS: bool = false;

    fn load(&self) -> (u64, u64) {
        let word = self.0.load(Relaxed);
        (word & !COUNT, word & COUNT)
    }

    fn rank(&self) -> u64 {
        self.load().1
    }

    fn replace(&self, (previous, count): (u64, u64), _: bool, key: u64) -> bool {
        let replaced = (self.0).compare_exchange(previous | count, key, Relaxed, Relaxed);
        replaced.is_ok()
    }
}

/// Takes one of `max` slots of a key. Returns whether there is one.
pub(super) fn take_slot(slots: &Slots, key: u64, max: u64) -> bool {
    let (key, max) = (key & !COUNT, max.min(COUNT));
    loop {
        let taken = slots.find(key, ANY, |place| place.entry.take(key, max));
        if let Some(taken) = taken {
            return taken;
        }
    }
}

/// Gives back a slot of a key, if it was not evicted meanwhile.
pub(super) fn give_slot(slots: &Slots, key: u64) {
    let key = key & !COUNT;
    slots.get(key, ANY, |place| {
        // An evicted key may have come back with fewer requests.
        let give = |word: u64| (word & !COUNT == key && word & COUNT > 0).then(|| word - 1);
        let _ = place.entry.0.fetch_update(Relaxed, Relaxed, give);
    });
}

impl Slot {
    /// Returns whether a slot is taken; `None` if the place is that of another key.
    fn take(&self, key: u64, max: u64) -> Option<bool> {
        let take = |word: u64| (word & !COUNT == key && word & COUNT < max).then_some(word + 1);
        match self.0.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Some(true),
            Err(word) => (word & !COUNT == key).then_some(false),
        }
    }
}
