//! What a pod has used up of keys that other pods own. A bounded number of keys, which all workers share without a lock.
//! Workers mark keys that lack tokens, and one thread asks for these. Marks are sequentially consistent: a worker that finds
//! one must not miss that it is removed. Must not know who is asked.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::pace::Pace;

/// Places of a set.
const WAYS: usize = 8;
/// Keys of a word of marks.
const BITS: usize = u64::BITS as usize;

/// Keys that other pods own.
#[derive(Debug)]
pub(super) struct Leases {
    entries: Box<[Lease]>,
    /// One bit for each entry that lacks tokens.
    marks: Box<[AtomicU64]>,
    /// Whether there may be a mark.
    is_marked: AtomicBool,
}

/// What is used up of a key.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// 0 if the place is free.
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

impl Leases {
    /// Creates room for a number of keys, rounded up to a power of two of whole sets.
    pub(super) fn new(keys: usize) -> Self {
        let keys = keys.next_power_of_two().max(WAYS);
        let words = keys.div_ceil(BITS);
        Self {
            entries: std::iter::repeat_with(Lease::default).take(keys).collect(),
            marks: std::iter::repeat_with(AtomicU64::default)
                .take(words)
                .collect(),
            is_marked: AtomicBool::new(false),
        }
    }

    /// Returns the place of a key, which takes that of the key that has not been used for longest if it has none. `evicted`
    /// counts keys that lacked tokens.
    fn place(&self, key: u64, now: u64, evicted: &AtomicU64) -> usize {
        let first = self.first(key);
        let set = &self.entries[first..first + WAYS];
        let known = |entry: &Lease| entry.key.load(Relaxed) == key;
        if let Some(at) = set.iter().position(known) {
            set[at].used.store(now, Relaxed);
            return first + at;
        }
        let mut oldest = 0;
        for (at, entry) in set.iter().enumerate().skip(1) {
            if entry.used.load(Relaxed) < set[oldest].used.load(Relaxed) {
                oldest = at;
            }
        }
        let entry = &set[oldest];
        let previous = entry.key.load(Relaxed);
        let taken = entry.key.compare_exchange(previous, key, Relaxed, Relaxed);
        // If another worker was first, both keys count together until one is evicted.
        if taken.is_ok() {
            if entry.spent.swap(0, Relaxed) > 0 && previous != 0 {
                evicted.fetch_add(1, Relaxed);
            }
            entry.due.store(0, Relaxed);
            entry.gone.store(0, Relaxed);
            entry.accrues.store(0, Relaxed);
        }
        entry.used.store(now, Relaxed);
        first + oldest
    }

    fn first(&self, key: u64) -> usize {
        let sets = self.entries.len() / WAYS;
        // The lowest bit is that of every key.
        ((key >> 1) as usize % sets) * WAYS
    }

    /// Returns what there is of a key.
    pub(super) fn get(&self, key: u64) -> Option<&Lease> {
        let first = self.first(key);
        let mut set = self.entries[first..first + WAYS].iter();
        set.find(|entry| entry.key.load(Relaxed) == key)
    }

    /// Returns what there is at a place, if it is that of a key.
    pub(super) fn at(&self, place: usize, key: u64) -> Option<&Lease> {
        let entry = self.entries.get(place)?;
        (entry.key.load(Relaxed) == key).then_some(entry)
    }

    /// Takes a token of a key that has `reserve`. Returns the key's state, and how many tokens it still has, if it has any.
    pub(super) fn take(
        &self,
        key: u64,
        now: u64,
        reserve: u64,
        evicted: &AtomicU64,
    ) -> (&Lease, Option<u64>) {
        let place = self.place(key, now, evicted);
        let entry = &self.entries[place];
        let take = |spent| (spent < reserve).then_some(spent + 1);
        let taken = entry.spent.fetch_update(SeqCst, Relaxed, take);
        self.mark(place);
        (entry, taken.ok().map(|spent| reserve - spent - 1))
    }

    /// Gives back a token of a key, unless a lease has replaced it meanwhile.
    pub(super) fn give_back(&self, key: u64) {
        if let Some(entry) = self.get(key) {
            let give = |spent: u64| spent.checked_sub(1);
            let _ = entry.spent.fetch_update(SeqCst, Relaxed, give);
        }
    }

    /// Takes an amount from a key, however large, until `max` is used.
    pub(super) fn charge(&self, key: u64, now: u64, amount: u64, max: u64, evicted: &AtomicU64) {
        let place = self.place(key, now, evicted);
        let add = |spent: u64| Some(spent.saturating_add(amount).min(max.max(spent)));
        // Always `Some`, so that it cannot fail.
        let _ = self.entries[place].spent.fetch_update(SeqCst, Relaxed, add);
        self.mark(place);
    }

    fn mark(&self, place: usize) {
        let (word, bit) = (&self.marks[place / BITS], 1 << (place % BITS));
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
        if !self.is_marked.load(SeqCst) {
            self.is_marked.store(true, SeqCst);
        }
    }

    /// Calls `each` with the keys that lack tokens, from the place `start` on and around. Those that lack none are no longer
    /// marked after that. Only one thread may call this.
    pub(super) fn each_lacking(&self, start: usize, mut each: impl FnMut(usize, u64, &Lease)) {
        if !self.is_marked.swap(false, SeqCst) {
            return;
        }
        let words = self.marks.len();
        let mut is_marked = false;
        for word in (0..words).map(|at| (start + at) % words) {
            let mut bits = self.marks[word].load(SeqCst);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let place = word * BITS + bit;
                let entry = &self.entries[place];
                let key = entry.key.load(Relaxed);
                if entry.spent.load(Relaxed) > 0 {
                    each(place, key, entry);
                }
                if entry.spent.load(Relaxed) == 0 {
                    entry.accrues.store(0, Relaxed);
                    self.marks[word].fetch_and(!(1 << bit), SeqCst);
                    // A worker that used a token meanwhile may have found the mark.
                    if entry.spent.load(SeqCst) > 0 {
                        self.mark(place);
                    }
                }
                is_marked |= entry.spent.load(Relaxed) > 0;
            }
        }
        if is_marked {
            self.is_marked.store(true, SeqCst);
        }
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

    fn lacking(leases: &Leases) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        leases.each_lacking(0, |_, key, lease| all.push((key, lease.spent())));
        all
    }

    #[test]
    fn key_lacks_tokens_until_they_are_replaced() {
        let (leases, evicted) = (Leases::new(100), AtomicU64::new(0));
        assert!(lacking(&leases).is_empty());
        for left in [Some(1), Some(0), None] {
            assert_eq!(leases.take(9, 1, 2, &evicted).1, left);
        }
        for _ in 0..2 {
            assert_eq!(lacking(&leases), [(9, 2)]);
        }
        let lease = leases.get(9).unwrap();
        assert_eq!((lease.replace(1), lease.replace(7)), (1, 1));
        assert!(lacking(&leases).is_empty());
        assert_eq!(leases.take(9, 1, 2, &evicted).1, Some(1));
        assert_eq!(lacking(&leases), [(9, 1)]);
        leases.charge(9, 1, u64::MAX, 1_000, &evicted);
        assert_eq!(lacking(&leases), [(9, 1_000)]);
        assert_eq!(evicted.into_inner(), 0);
    }

    #[test]
    fn number_of_keys_is_bounded_and_the_oldest_leaves() {
        let (leases, evicted) = (Leases::new(8), AtomicU64::new(0));
        for key in 0..9 {
            leases.take(2 * key + 1, key + 1, 1, &evicted);
        }
        assert!(leases.get(1).is_none() && leases.get(3).is_some());
        assert_eq!(evicted.load(Relaxed), 1);
        let mut places = 0;
        leases.each_lacking(5, |place, key, _| {
            assert!(leases.at(place, key).is_some());
            places += 1;
        });
        assert_eq!(places, 8);
    }
}
