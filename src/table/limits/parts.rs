//! A table of a bounded number of keys, which all workers share without a lock. It grows part by part, each with memory that it
//! has taken of the budget before, and gives back parts whose keys are not in use. Without memory, a new key takes the place of
//! another one. Must not know what is counted.

use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwapOption;

use super::memory::{LimitMemory, Reservation};

/// Places that a key may have in a part: those of a set.
const WAYS: usize = 8;
/// By how much a part multiplies the number of keys.
const GROWTH: usize = 4;
/// Entries of a word of marks.
const BITS: usize = u64::BITS as usize;
/// The least use of a key that counts what is in use at present.
pub(super) const ANY: u64 = 1;

/// What a table holds for a key.
pub(super) trait Entry: Default {
    /// Whether places have marks.
    const HAS_MARKS: bool;

    /// Returns the key, 0 if the place is free, and how much the key uses. A key that uses less than it takes to be in use is as
    /// good as a new one.
    fn load(&self) -> (u64, u64);

    /// Returns what decides which of several keys leaves: that of the least rank.
    fn rank(&self) -> u64;

    /// Gives the place to another key, whose usage is 0 if the previous one was in use. Returns whether it was still as loaded.
    fn replace(&self, loaded: (u64, u64), was_in_use: bool, key: u64) -> bool;
}

/// A table that grows.
#[derive(Debug)]
pub(super) struct Parts<E> {
    /// The newest part, which has the older ones; `None` without keys.
    newest: ArcSwapOption<Part<E>>,
    max_keys: usize,
    memory: Arc<LimitMemory>,
}

/// A part of a table, and all older ones.
#[derive(Debug)]
struct Part<E> {
    entries: Box<[E]>,
    /// One bit for each entry, if entries have marks.
    marks: Box<[AtomicU64]>,
    older: Option<Arc<Self>>,
    /// Keys that it has room for, with older parts.
    capacity: usize,
    /// Whether keys that are not in use get places in older parts only, so that it can be given back.
    is_closed: AtomicBool,
    _memory: Reservation,
}

/// The place of a key.
#[derive(Debug)]
pub(super) struct KeySlot<'a, E> {
    /// The key that had it when it was found, and how much that used.
    pub(super) key: u64,
    usage: u64,
    /// What it holds.
    pub(super) entry: &'a E,
    part: &'a Part<E>,
    index: usize,
}

impl<E: Entry> Parts<E> {
    /// Creates a table, which takes no memory before the first key.
    pub(super) fn new(max_keys: usize, memory: &Arc<LimitMemory>) -> Self {
        Self {
            newest: ArcSwapOption::empty(),
            max_keys,
            memory: memory.clone(),
        }
    }

    /// Calls `then` with the place of a key, which is not 0. A new key gets one that no key uses, or else that of
    /// the least rank; keys that use `in_use` or more are then counted as evicted.
    pub(super) fn find<R>(
        &self,
        key: u64,
        in_use: u64,
        then: impl FnOnce(KeySlot<'_, E>) -> R,
    ) -> R {
        loop {
            let newest = self.newest.load();
            let parts = newest.as_deref();
            if let Some(place) = known(parts, key, in_use) {
                return then(place);
            }
            let mut place = unused(parts, key, in_use);
            if place.is_none() {
                if self.grow(&newest) {
                    continue;
                }
                place = places(parts, key).min_by_key(|place| place.entry.rank());
            }
            // If another worker was first, its key may be the same one: it has this place, or one that was passed over since it
            // is in use.
            if let Some(place) = known(parts, key, in_use) {
                return then(place);
            }
            if let Some(place) = place.filter(|place| self.replace(place, key, in_use)) {
                return then(place);
            }
        }
    }

    /// Calls `then` with the place of a key that has one.
    pub(super) fn get<R>(
        &self,
        key: u64,
        in_use: u64,
        then: impl FnOnce(KeySlot<'_, E>) -> R,
    ) -> Option<R> {
        let newest = self.newest.load();
        known(newest.as_deref(), key, in_use).map(then)
    }

    /// Calls `each` with each key that has a place, and how much it uses.
    pub(super) fn for_each(&self, mut each: impl FnMut(u64, u64)) {
        let newest = self.newest.load_full();
        for entry in chain(newest.as_deref()).flat_map(|part| &part.entries) {
            let (key, usage) = entry.load();
            if key != 0 {
                each(key, usage);
            }
        }
    }

    /// Calls `each` with the places that have a mark, from the place `start` of their words on and around.
    pub(super) fn for_each_marked(&self, start: usize, mut each: impl FnMut(&KeySlot<'_, E>)) {
        let newest = self.newest.load_full();
        let words = chain(newest.as_deref())
            .flat_map(|part| (0..part.marks.len()).map(move |word| (part, word)));
        let count = words.clone().count();
        let rotated = words.cycle().skip(start % count.max(1)).take(count);
        for (part, word) in rotated {
            let mut bits = part.marks[word].load(SeqCst);
            while bits != 0 {
                let index = word * BITS + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                each(&part.place(index, &part.entries[index]));
            }
        }
    }

    /// Gives back the parts that an earlier call has closed and that no key uses any more, and closes those that the keys in
    /// use do not need.
    ///
    /// A request that has just found an idle key in such a part is not counted.
    pub(super) fn sweep(&self, in_use: u64) {
        loop {
            let newest = self.newest.load();
            let unused = |part: &&Arc<Part<E>>| part.is_closed() && part.count(in_use) == 0;
            let Some(part) = newest.as_ref().filter(unused) else {
                break;
            };
            self.newest.compare_and_swap(&newest, part.older.clone());
        }
        let newest = self.newest.load();
        let used: usize = chain(newest.as_deref()).map(|it| it.count(in_use)).sum();
        for part in chain(newest.as_deref()) {
            let rest = part.older.as_ref().map_or(0, |older| older.capacity);
            if 2 * used > rest {
                break;
            }
            part.is_closed.store(true, SeqCst);
        }
    }

    /// Gives back the newest part if the limit has more memory than its share. The keys of the part leave, also those in use.
    pub(super) fn shed(&self, in_use: u64) {
        let newest = self.newest.load();
        // The first part has the keys that no table lacks.
        let is_spare = |part: &&Arc<Part<E>>| part.older.is_some() && self.memory.is_over();
        let Some(part) = newest.as_ref().filter(is_spare) else {
            return;
        };
        let evicted = part.count(in_use) as u64;
        let previous = self.newest.compare_and_swap(&newest, part.older.clone());
        if previous.as_ref().is_some_and(|it| Arc::ptr_eq(it, part)) {
            self.memory.evicted.fetch_add(evicted, Relaxed);
        }
    }

    /// Adds room for new keys. Returns whether there is more than `newest` has.
    #[cold]
    fn grow(&self, newest: &Option<Arc<Part<E>>>) -> bool {
        let closed = chain(newest.as_deref()).filter(|part| part.is_closed());
        if let Some(smallest) = closed.last() {
            smallest.is_closed.store(false, SeqCst);
            return true;
        }
        let capacity = newest.as_ref().map_or(0, |part| part.capacity);
        if capacity == self.max_keys {
            return false;
        }
        let keys = (capacity * (GROWTH - 1)).max(WAYS);
        let keys = keys.min(self.max_keys - capacity);
        let bytes = Part::<E>::bytes(keys);
        let memory = match capacity {
            0 => Some(self.memory.take_first(bytes)),
            _ => self.memory.try_take(bytes),
        };
        let Some(memory) = memory else {
            return false;
        };
        let part = Part::new(keys, newest.clone(), memory);
        // If another worker was first, its part is as good.
        self.newest.compare_and_swap(newest, Some(Arc::new(part)));
        true
    }

    /// Gives a place to a key, unless another worker was first. Returns whether it has.
    fn replace(&self, place: &KeySlot<'_, E>, key: u64, in_use: u64) -> bool {
        let was_in_use = place.usage >= in_use && place.key != 0;
        let loaded = (place.key, place.usage);
        let is_replaced = place.entry.replace(loaded, was_in_use, key);
        if is_replaced && was_in_use {
            self.memory.evicted.fetch_add(1, Relaxed);
        }
        is_replaced
    }
}

impl<E: Entry> Part<E> {
    fn new(keys: usize, older: Option<Arc<Self>>, memory: Reservation) -> Self {
        let marks = std::iter::repeat_with(AtomicU64::default);
        Self {
            entries: std::iter::repeat_with(E::default).take(keys).collect(),
            marks: marks.take(Self::words(keys)).collect(),
            capacity: keys + older.as_ref().map_or(0, |older| older.capacity),
            older,
            is_closed: AtomicBool::new(false),
            _memory: memory,
        }
    }

    /// Returns the words of the marks of entries.
    fn words(keys: usize) -> usize {
        if E::HAS_MARKS { keys.div_ceil(BITS) } else { 0 }
    }

    /// Returns the bytes of a part: the entries, their marks, and the part itself with the counts of its `Arc`.
    fn bytes(keys: usize) -> usize {
        let itself = size_of::<Self>() + 2 * size_of::<usize>();
        keys * size_of::<E>() + Self::words(keys) * size_of::<u64>() + itself
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Returns the number of keys in use, without older parts.
    fn count(&self, in_use: u64) -> usize {
        let entries = self.entries.iter();
        entries.filter(|entry| entry.load().1 >= in_use).count()
    }

    /// Returns the places of the set of a key, without older parts.
    fn set(&self, key: u64) -> impl Iterator<Item = KeySlot<'_, E>> {
        let sets = (self.entries.len() / WAYS).max(1);
        let first = ((u128::from(key) * sets as u128) >> u64::BITS) as usize * WAYS;
        let entries = self.entries.iter().enumerate().skip(first).take(WAYS);
        entries.map(|(index, entry)| self.place(index, entry))
    }

    fn place<'a>(&'a self, index: usize, entry: &'a E) -> KeySlot<'a, E> {
        let (key, usage) = entry.load();
        KeySlot {
            key,
            usage,
            entry,
            part: self,
            index,
        }
    }
}

impl<E> KeySlot<'_, E> {
    pub(super) fn mark(&self) {
        let (word, bit) = self.bit();
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
    }

    pub(super) fn unmark(&self) {
        let (word, bit) = self.bit();
        word.fetch_and(!bit, SeqCst);
    }

    fn bit(&self) -> (&AtomicU64, u64) {
        let word = &self.part.marks[self.index / BITS];
        (word, 1 << (self.index % BITS))
    }
}

/// Returns a part and all older ones.
fn chain<E>(newest: Option<&Part<E>>) -> impl Iterator<Item = &Part<E>> + Clone {
    std::iter::successors(newest, |part| part.older.as_deref())
}

/// Returns the places that a key may have.
fn places<E: Entry>(newest: Option<&Part<E>>, key: u64) -> impl Iterator<Item = KeySlot<'_, E>> {
    chain(newest).flat_map(move |part| part.set(key))
}

/// Returns the place where a key is in use, or else one that it has in a part that is not closed. A key may have several, after
/// parts were closed, and at most one of them matters.
fn known<E: Entry>(newest: Option<&Part<E>>, key: u64, in_use: u64) -> Option<KeySlot<'_, E>> {
    let mut idle = None;
    for place in places(newest, key).filter(|place| place.key == key) {
        if place.usage >= in_use {
            return Some(place);
        }
        if idle.is_none() && !place.part.is_closed() {
            idle = Some(place);
        }
    }
    idle
}

/// Returns a place for a new key that no key uses.
fn unused<E: Entry>(newest: Option<&Part<E>>, key: u64, in_use: u64) -> Option<KeySlot<'_, E>> {
    let mut open = chain(newest).filter(|part| !part.is_closed());
    open.find_map(|part| {
        let unused = part.set(key).filter(|place| place.usage < in_use);
        unused.min_by_key(|place| place.entry.rank())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::arrivals::Arrival;
    use super::super::group::mixed;
    use super::super::leases::Lease;
    use super::super::memory::NamespaceBudget;
    use super::super::slots::{Slot, Slots, give_slot, take_slot};
    use super::*;

    const MAX_KEYS: usize = 65_536;
    const NOW: u64 = 1_000_000;

    fn table<E: Entry>() -> (Parts<E>, Arc<NamespaceBudget>) {
        let budget = Arc::<NamespaceBudget>::default();
        let memory = LimitMemory::new(budget.clone());
        (Parts::new(MAX_KEYS, &memory), budget)
    }

    /// Returns different keys, spread as hashes are.
    fn keys(count: u64) -> impl Iterator<Item = u64> + Clone {
        (1..=count).map(mixed)
    }

    /// Uses keys until `time`.
    fn fill(arrivals: &Parts<Arrival>, keys: impl Iterator<Item = u64>, now: u64, time: u64) {
        for key in keys {
            arrivals.find(key, now, |place| place.entry.time.store(time, Relaxed));
        }
    }

    fn time(arrivals: &Parts<Arrival>, key: u64) -> Option<u64> {
        arrivals.get(key, NOW, |place| place.entry.time.load(Relaxed))
    }

    /// Returns the bytes of what a table has allocated.
    fn allocated<E: Entry>(table: &Parts<E>) -> usize {
        let newest = table.newest.load_full();
        let bytes = chain(newest.as_deref()).map(|part| {
            let counts = 2 * size_of::<usize>();
            let lists = size_of_val(&*part.entries) + size_of_val(&*part.marks);
            counts + size_of_val(part) + lists
        });
        bytes.sum()
    }

    fn counts_a_full_table<E: Entry>(of_key: usize) {
        let (table, budget) = table::<E>();
        // With this, all places are in use.
        table.find(1, 0, |_| ());
        assert_eq!(budget.taken(), allocated(&table));
        let keys = MAX_KEYS * of_key;
        assert!((keys..keys + 16_384).contains(&budget.taken()));
        drop(table);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn budget_counts_what_a_table_allocates() {
        counts_a_full_table::<Arrival>(16);
        counts_a_full_table::<Slot>(8);
        counts_a_full_table::<Lease>(48);
    }

    #[test]
    fn table_grows_with_its_keys() {
        let (arrivals, budget) = table();
        assert_eq!(budget.taken(), 0);
        for count in [1, 8, 9, 1_000, 20_000, 100_000] {
            fill(&arrivals, keys(count), NOW, NOW);
            assert_eq!(budget.taken(), allocated(&arrivals), "{count} keys");
            let max = 16 * count.max(WAYS as u64) as usize * 16 + 1_024;
            assert!(budget.taken() <= max, "{count} keys: {}", budget.taken());
        }
    }

    #[test]
    fn keys_keep_what_they_use_while_a_table_grows() {
        let (arrivals, _) = table();
        for (index, key) in (1..).zip(keys(20_000)) {
            fill(&arrivals, std::iter::once(key), NOW, NOW + index);
        }
        for (index, key) in (1..).zip(keys(20_000)) {
            assert_eq!(time(&arrivals, key), Some(NOW + index));
        }
        assert_eq!(arrivals.memory.evicted.load(Relaxed), 0);
    }

    #[test]
    fn memory_returns_when_keys_are_no_longer_in_use() {
        let (arrivals, budget) = table();
        fill(&arrivals, keys(3), NOW, NOW + 100);
        let few = budget.taken();
        fill(&arrivals, keys(20_000).skip(3), NOW, NOW + 10);
        let many = budget.taken();
        arrivals.sweep(NOW);
        assert_eq!(budget.taken(), many);
        // One call closes parts, and the next one gives them back.
        (0..2).for_each(|_| arrivals.sweep(NOW + 50));
        assert_eq!(budget.taken(), few);
        for key in keys(3) {
            assert_eq!(time(&arrivals, key), Some(NOW + 100));
        }
        (0..2).for_each(|_| arrivals.sweep(NOW + 101));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn closed_part_takes_keys_again_when_there_are_more() {
        let (arrivals, budget) = table();
        fill(&arrivals, keys(20_000), NOW, NOW + 10);
        let many = budget.taken();
        arrivals.sweep(NOW + 50);
        fill(&arrivals, keys(40_000).skip(20_000), NOW + 50, NOW + 100);
        arrivals.sweep(NOW + 50);
        assert_eq!(budget.taken(), many);
        assert_eq!(arrivals.memory.evicted.load(Relaxed), 0);
        let later = |key: &u64| time(&arrivals, *key) == Some(NOW + 100);
        assert_eq!(keys(40_000).filter(later).count(), 20_000);
    }

    #[test]
    fn without_memory_the_key_that_was_not_used_for_longest_leaves() {
        let (arrivals, _) = table();
        let others = LimitMemory::new(Arc::default());
        let poor = Parts::new(MAX_KEYS, &others);
        let all: Vec<_> = std::iter::from_fn(|| others.try_take(1_000)).collect();
        for (arrivals, kept) in [(&arrivals, 100), (&poor, WAYS)] {
            for (index, key) in (1..).zip(keys(100)) {
                fill(arrivals, std::iter::once(key), NOW, NOW + index);
            }
            let known = keys(100).filter(|key| time(arrivals, *key).is_some());
            assert!(known.eq(keys(100).skip(100 - kept)));
            let evicted = arrivals.memory.evicted.load(Relaxed);
            assert_eq!(evicted as usize, 100 - kept);
        }
        drop(all);
    }

    #[test]
    fn workers_count_in_a_table_that_grows_and_shrinks() {
        let (slots, budget): (Slots, _) = table();
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let slots = &slots;
                scope.spawn(move || {
                    for key in keys(5_000).skip(worker * 1_000) {
                        assert!(take_slot(slots, key, 100));
                    }
                    for key in keys(5_000).skip(worker * 1_000) {
                        give_slot(slots, key);
                    }
                });
            }
            scope.spawn(|| (0..100).for_each(|_| slots.sweep(ANY)));
        });
        let mut used = HashSet::new();
        slots.for_each(|key, usage| used.extend((usage > 0).then_some(key)));
        assert!(used.is_empty(), "{used:?}");
        (0..2).for_each(|_| slots.sweep(ANY));
        assert_eq!(budget.taken(), 0);
    }
}
