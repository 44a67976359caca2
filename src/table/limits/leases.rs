//! What a pod has used up of keys that other pods own, in a table that all workers share without a lock.
//! Workers mark keys that lack tokens, and one thread asks for these. Marks are sequentially consistent: a worker that finds
//! one must not miss that it is removed. Must not know who is asked.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::memory::LimitMemory;
use super::pace::Pace;
use super::parts::{ANY, Entry, KeySlot, Parts};

/// Keys that other pods own.
#[derive(Debug)]
pub(super) struct Leases {
    keys: Parts<Lease>,
    /// Whether there may be a mark.
    is_marked: AtomicBool,
}

/// What is used up of a key.
#[derive(Debug, Default)]
pub(super) struct Lease {
    key: AtomicU64,
    /// Time of the last use.
    used: AtomicU64,
    /// Tokens that are used and not replaced by a lease.
    spent: AtomicU64,
    /// Time before which the owner has no tokens.
    pub(super) due: AtomicU64,
    /// Tokens that the owner has used or granted, as far as it has said so, and one more; [`UNSERVED`] if it is not the owner.
    pub(super) gone: AtomicU64,
    /// Since when tokens come by time, without the owner; 0 if they do not.
    pub(super) accrues: AtomicU64,
}

/// The owner does not serve the key.
pub(super) const UNSERVED: u64 = u64::MAX;

impl Entry for Lease {
    const HAS_MARKS: bool = true;

    fn load(&self) -> (u64, u64) {
        // The key first: if another one takes the place meanwhile, `replace` finds that.
        (self.key.load(Acquire), self.spent())
    }

    fn rank(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn replace(&self, (previous, _): (u64, u64), was_in_use: bool, key: u64) -> bool {
        let replaced = self.key.compare_exchange(previous, key, Relaxed, Relaxed);
        if replaced.is_ok() {
            self.due.store(0, Relaxed);
            self.gone.store(0, Relaxed);
            self.accrues.store(0, Relaxed);
        }
        if replaced.is_ok() && was_in_use {
            self.spent.store(0, Relaxed);
        }
        replaced.is_ok()
    }
}

impl Leases {
    pub(super) fn new(max_keys: usize, memory: &Arc<LimitMemory>) -> Self {
        Self {
            keys: Parts::new(max_keys, memory),
            is_marked: AtomicBool::new(false),
        }
    }

    /// Calls `then` with what there is of a key.
    pub(super) fn get<R>(&self, key: u64, then: impl FnOnce(&Lease) -> R) -> Option<R> {
        self.keys.get(key, ANY, |place| then(place.entry))
    }

    /// Takes a token of a key that has `reserve`. Calls `then` with the key's state, and how many tokens it still has, if it
    /// has any.
    pub(super) fn take<R>(
        &self,
        key: u64,
        now: u64,
        reserve: u64,
        then: impl FnOnce(&Lease, Option<u64>) -> R,
    ) -> R {
        self.keys.find(key, ANY, |place| {
            let take = |spent| (spent < reserve).then_some(spent + 1);
            let taken = place.entry.spent.fetch_update(SeqCst, Relaxed, take);
            self.use_at(&place, now);
            let left = taken.ok().map(|spent| reserve - spent - 1);
            then(place.entry, left)
        })
    }

    /// Gives back a token of a key, unless a lease has replaced it meanwhile.
    pub(super) fn give_back(&self, key: u64) {
        self.get(key, |lease| {
            let give = |spent: u64| spent.checked_sub(1);
            let _ = lease.spent.fetch_update(SeqCst, Relaxed, give);
        });
    }

    /// Takes an amount from a key, however large, until `max` is used.
    pub(super) fn charge(&self, key: u64, now: u64, amount: u64, max: u64) {
        self.keys.find(key, ANY, |place| {
            let add = |spent: u64| Some(spent.saturating_add(amount).min(max.max(spent)));
            // Always `Some`, so that it cannot fail.
            let _ = place.entry.spent.fetch_update(SeqCst, Relaxed, add);
            self.use_at(&place, now);
        });
    }

    fn use_at(&self, place: &KeySlot<'_, Lease>, now: u64) {
        place.entry.used.store(now, Relaxed);
        self.mark(place);
    }

    fn mark(&self, place: &KeySlot<'_, Lease>) {
        place.mark();
        if !self.is_marked.load(SeqCst) {
            self.is_marked.store(true, SeqCst);
        }
    }

    /// Calls `each` with the keys that lack tokens, from the place `start` on and around. Those that lack none are no longer
    /// marked after that. Only one thread may call this.
    pub(super) fn each_lacking(&self, start: usize, mut each: impl FnMut(u64, &Lease)) {
        if !self.is_marked.swap(false, SeqCst) {
            return;
        }
        let mut is_marked = false;
        self.keys.for_each_marked(start, |place| {
            let lease = place.entry;
            if lease.spent() > 0 {
                each(place.key, lease);
            }
            if lease.spent() == 0 {
                lease.accrues.store(0, Relaxed);
                place.unmark();
                // A worker that used a token meanwhile may have found the mark.
                if lease.spent.load(SeqCst) > 0 {
                    self.mark(place);
                }
            }
            is_marked |= lease.spent() > 0;
        });
        if is_marked {
            self.is_marked.store(true, SeqCst);
        }
    }

    /// Gives back memory of keys that lack no tokens.
    pub(super) fn sweep(&self) {
        self.keys.sweep(ANY);
    }

    /// Gives back memory beyond the share of the limit, with keys in use.
    pub(super) fn shed(&self) {
        self.keys.shed(ANY);
    }
}

impl Lease {
    /// Returns the tokens that are used and not replaced.
    pub(super) fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    /// Returns for how many nanoseconds it has no tokens, if it has none.
    pub(super) fn wait(&self, pace: Pace, now: u64) -> u64 {
        match self.due.load(Relaxed).checked_sub(now) {
            Some(wait) if wait > 0 => wait,
            _ => pace.interval(),
        }
    }

    /// Returns how many tokens the owner has of `capacity`, as far as it has said so.
    pub(super) fn left_at_owner(&self, capacity: u64) -> u64 {
        let gone = self.gone.load(Relaxed).saturating_sub(1);
        capacity.saturating_sub(gone)
    }

    /// Replaces tokens. Returns how many.
    pub(super) fn replace(&self, tokens: u64) -> u64 {
        let replace = |spent: u64| Some(spent.saturating_sub(tokens));
        match self.spent.fetch_update(Relaxed, Relaxed, replace) {
            Ok(spent) | Err(spent) => spent.min(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(max_keys: usize) -> (Leases, Arc<LimitMemory>) {
        let memory = LimitMemory::new(Arc::default());
        (Leases::new(max_keys, &memory), memory)
    }

    fn lacking(leases: &Leases) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        leases.each_lacking(0, |key, lease| all.push((key, lease.spent())));
        all
    }

    fn take(leases: &Leases, key: u64, now: u64, reserve: u64) -> Option<u64> {
        leases.take(key, now, reserve, |_, left| left)
    }

    #[test]
    fn key_lacks_tokens_until_they_are_replaced() {
        let (leases, memory) = leases(100);
        assert!(lacking(&leases).is_empty());
        for left in [Some(1), Some(0), None] {
            assert_eq!(take(&leases, 9, 1, 2), left);
        }
        for _ in 0..2 {
            assert_eq!(lacking(&leases), [(9, 2)]);
        }
        let replaced = leases.get(9, |lease| (lease.replace(1), lease.replace(7)));
        assert_eq!(replaced, Some((1, 1)));
        assert!(lacking(&leases).is_empty());
        assert_eq!(take(&leases, 9, 1, 2), Some(1));
        assert_eq!(lacking(&leases), [(9, 1)]);
        leases.charge(9, 1, u64::MAX, 1_000);
        assert_eq!(lacking(&leases), [(9, 1_000)]);
        assert_eq!(memory.evicted.load(Relaxed), 0);
    }

    #[test]
    fn number_of_keys_is_bounded_and_the_oldest_leaves() {
        let (leases, memory) = leases(8);
        for key in 0..9 {
            take(&leases, 2 * key + 1, key + 1, 1);
        }
        assert_eq!(leases.get(1, |_| ()), None);
        assert_eq!(leases.get(3, |_| ()), Some(()));
        assert_eq!(memory.evicted.load(Relaxed), 1);
        let mut places = 0;
        leases.each_lacking(5, |_, _| places += 1);
        assert_eq!(places, 8);
    }

    #[test]
    fn keys_of_all_parts_lack_tokens_from_any_place_on() {
        let (leases, _) = leases(4_096);
        // Spread over the sets as hashes are.
        let keys: Vec<_> = (1..=1_000).map(|key| key * (u64::MAX / 1_000)).collect();
        for key in &keys {
            take(&leases, *key, 1, 1);
        }
        for start in [0, 1, 7, usize::MAX] {
            let mut lacking = Vec::new();
            leases.each_lacking(start, |key, _| lacking.push(key));
            lacking.sort_unstable();
            assert_eq!(lacking, keys);
        }
    }
}
