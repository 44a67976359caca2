//! Values of which every worker has its own, so that no two workers write to the same memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thin_vec::ThinVec;

/// Identifies a worker among those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId {
    index: usize,
    count: usize,
}

impl WorkerId {
    /// The worker of a process, test or tool that has only one.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns the worker `index` of `count`.
    pub const fn new(index: usize, count: usize) -> Self {
        Self { index, count }
    }

    /// Returns the number of the worker, from 0.
    pub const fn index(self) -> usize {
        self.index
    }
}

/// One value for each worker, created when the worker first needs it. Takes two words before that.
#[derive(Debug)]
pub struct PerWorker<T>(OnceLock<ThinVec<Slot<T>>>);

/// The value has a place of its own, so that it shares no cache line with that of another worker.
type Slot<T> = OnceLock<Box<Padded<T>>>;

/// A cache line, and the one that processors fetch with it.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T> Default for PerWorker<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> PerWorker<T> {
    /// Returns the value of a worker, which `create` makes if there is none. All callers have to
    /// agree about the number of workers; those that do not may share values.
    #[inline]
    pub fn get(&self, worker: WorkerId, create: impl FnOnce() -> T) -> &T {
        let slots = self.0.get_or_init(|| empty(worker.count.max(1)));
        let slot = match slots.get(worker.index) {
            Some(slot) => slot,
            None => &slots[worker.index % slots.len()],
        };
        &slot.get_or_init(|| Box::new(Padded(create()))).0
    }

    /// Returns the values that exist.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let slots = self.0.get().into_iter().flatten();
        slots.filter_map(|slot| Some(&slot.get()?.0))
    }

    /// Returns the sum of a counter of all workers, modulo 2^64.
    pub fn sum(&self, counter: impl Fn(&T) -> &Count) -> u64 {
        let counts = self.iter().map(|it| counter(it).get());
        counts.fold(0, u64::wrapping_add)
    }
}

impl<T: Default> PerWorker<T> {
    /// Returns the value of a worker, which begins as the default.
    #[inline]
    pub fn of(&self, worker: WorkerId) -> &T {
        self.get(worker, T::default)
    }
}

/// A counter that one worker writes and any thread reads. If two threads write, counts get lost.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to the counter, modulo 2^64. A load and a store are cheaper than an atomic addition.
    #[inline]
    pub fn add(&self, number: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    /// Subtracts one.
    #[inline]
    pub fn subtract_one(&self) {
        self.add(u64::MAX);
    }

    /// Returns its value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cold]
fn empty<T>(count: usize) -> ThinVec<Slot<T>> {
    (0..count).map(|_| OnceLock::new()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_values_of_their_own() {
        let counts = PerWorker::<Count>::default();
        assert_eq!(counts.iter().count(), 0);
        for (index, count) in [(0, 1), (2, 5), (2, 1)] {
            let worker = WorkerId::new(index, 3);
            counts.of(worker).add(count);
        }
        let seen: Vec<_> = counts.iter().map(Count::get).collect();
        assert_eq!(seen, [1, 6]);
        let addresses: Vec<_> = counts
            .iter()
            .map(|it| std::ptr::from_ref(it).addr())
            .collect();
        assert!(addresses[0].abs_diff(addresses[1]) >= 128);
    }

    #[test]
    fn unknown_worker_shares_a_value() {
        let counts = PerWorker::<Count>::default();
        counts.of(WorkerId::new(1, 2)).add(1);
        counts.of(WorkerId::new(3, 4)).add(1);
        counts.of(WorkerId::new(0, 0)).add(1);
        let seen: Vec<_> = counts.iter().map(Count::get).collect();
        assert_eq!(seen, [1, 2]);
    }
}
