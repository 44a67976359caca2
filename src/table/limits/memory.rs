//! The memory of the keys of limits: one budget of the process, of which namespaces have shares, and limits shares of these, on all
//! workers and across configuration changes. Must not know what tables hold.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Bytes of the keys of all limits. What no constant below is for, any limit may take.
pub(super) const BUDGET: usize = 64 << 20;
/// Bytes for the first keys of each table, which none lacks: those of some 6,000 limits.
const FIRST: usize = 4 << 20;
/// Bytes that namespaces share evenly, and the limits of each its share: those that need more take nothing of them, so that each
/// limit gets its share at any time.
const OF_LIMITS: usize = 32 << 20;
/// Bytes that namespaces share evenly, each for those of its limits that are first.
const OF_NAMESPACES: usize = 14 << 20;

/// The budget of the process.
#[derive(Debug, Default)]
pub(super) struct ProcessBudget {
    /// Without the first keys of tables.
    taken: AtomicUsize,
    /// Of these, what is nobody's share.
    beyond: AtomicUsize,
    /// Of the first keys of tables.
    first: AtomicUsize,
    /// Number of namespaces that share it.
    namespaces: AtomicUsize,
    /// Whether a limit got nothing of its share, because others still have what was theirs before it was added.
    is_short: AtomicBool,
}

/// What a namespace takes of the budget.
#[derive(Debug)]
pub(super) struct NamespaceBudget {
    process: Arc<ProcessBudget>,
    taken: AtomicUsize,
    /// Number of limits that share it.
    limits: AtomicUsize,
}

/// What a limit takes of the budget.
#[derive(Debug)]
pub(super) struct LimitMemory {
    budget: Arc<NamespaceBudget>,
    taken: AtomicUsize,
    /// Keys in use that others took the place of.
    pub(super) evicted: AtomicU64,
}

/// Bytes that are taken until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    memory: Arc<LimitMemory>,
    bytes: usize,
    /// Whether they are those of the first keys of a table.
    is_first: bool,
    /// Whether they are nobody's share.
    is_beyond: bool,
}

impl ProcessBudget {
    /// Reports whether a limit lacked its share since the last call.
    pub(super) fn take_shortage(&self) -> bool {
        self.is_short.swap(false, Relaxed)
    }

    fn namespaces(&self) -> usize {
        self.namespaces.load(Relaxed).max(1)
    }

    /// Takes bytes of the share of a limit or its namespace, or of what is nobody's share.
    fn try_take(&self, bytes: usize, is_share: bool) -> bool {
        let max = BUDGET - self.first.load(Relaxed).clamp(FIRST, BUDGET);
        let of_all = max.saturating_sub(OF_LIMITS + OF_NAMESPACES);
        if !is_share && !take(&self.beyond, bytes, of_all) {
            return false;
        }
        let is_taken = take(&self.taken, bytes, max);
        if !is_taken {
            match is_share {
                true => self.is_short.store(true, Relaxed),
                false => drop(self.beyond.fetch_sub(bytes, Relaxed)),
            }
        }
        is_taken
    }
}

/// Adds bytes to a count, unless that makes it more than `max`.
fn take(counter: &AtomicUsize, bytes: usize, max: usize) -> bool {
    let sum = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
    counter.fetch_update(Relaxed, Relaxed, sum).is_ok()
}

impl NamespaceBudget {
    pub(super) fn new(process: &Arc<ProcessBudget>) -> Self {
        process.namespaces.fetch_add(1, Relaxed);
        Self {
            process: process.clone(),
            taken: AtomicUsize::new(0),
            limits: AtomicUsize::new(0),
        }
    }
}

impl LimitMemory {
    pub(super) fn new(budget: Arc<NamespaceBudget>) -> Arc<Self> {
        budget.limits.fetch_add(1, Relaxed);
        Arc::new(Self {
            budget,
            taken: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Takes bytes of the first keys of a table, also beyond the budget.
    pub(super) fn take_first(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.budget.process.first.fetch_add(bytes, Relaxed);
        self.reservation(bytes, true, false)
    }

    /// Takes bytes of the share of the limit or its namespace, or of what is nobody's share. Returns `None` if none has as many.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let is_share = self.is_share(bytes);
        let is_taken = self.budget.process.try_take(bytes, is_share);
        is_taken.then(|| self.reservation(bytes, false, !is_share))
    }

    /// Reports whether the limit has more than its share, and its namespace, too.
    pub(super) fn is_over(&self) -> bool {
        !self.is_share(0)
    }

    /// Reports whether so many bytes more are within the share of the limit or of its namespace.
    fn is_share(&self, bytes: usize) -> bool {
        let namespaces = self.budget.process.namespaces();
        let limits = self.budget.limits.load(Relaxed).max(1);
        let is_within =
            |taken: &AtomicUsize, share: usize| taken.load(Relaxed).saturating_add(bytes) <= share;
        is_within(&self.taken, OF_LIMITS / namespaces / limits)
            || is_within(&self.budget.taken, OF_NAMESPACES / namespaces)
    }

    fn reservation(self: &Arc<Self>, bytes: usize, is_first: bool, is_beyond: bool) -> Reservation {
        self.taken.fetch_add(bytes, Relaxed);
        self.budget.taken.fetch_add(bytes, Relaxed);
        Reservation {
            memory: self.clone(),
            bytes,
            is_first,
            is_beyond,
        }
    }
}

impl Drop for NamespaceBudget {
    fn drop(&mut self) {
        self.process.namespaces.fetch_sub(1, Relaxed);
    }
}

impl Drop for LimitMemory {
    fn drop(&mut self) {
        self.budget.limits.fetch_sub(1, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let budget = &self.memory.budget;
        self.memory.taken.fetch_sub(self.bytes, Relaxed);
        budget.taken.fetch_sub(self.bytes, Relaxed);
        let of_process = match self.is_first {
            true => &budget.process.first,
            false => &budget.process.taken,
        };
        of_process.fetch_sub(self.bytes, Relaxed);
        if self.is_beyond {
            budget.process.beyond.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
impl ProcessBudget {
    /// Returns the bytes that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed) + self.first.load(Relaxed)
    }
}

#[cfg(test)]
impl NamespaceBudget {
    /// Returns the bytes that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

/// The budget of the only namespace of a process.
#[cfg(test)]
impl Default for NamespaceBudget {
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::mixed;
    use super::*;

    const PART: usize = 64 << 10;

    fn limits(budget: &Arc<NamespaceBudget>, count: usize) -> Vec<Arc<LimitMemory>> {
        let limits = std::iter::repeat_with(|| LimitMemory::new(budget.clone()));
        limits.take(count).collect()
    }

    /// Returns the limits of some namespaces.
    fn namespaces(
        process: &Arc<ProcessBudget>,
        count: usize,
        of_each: usize,
    ) -> Vec<Vec<Arc<LimitMemory>>> {
        let namespace = || limits(&Arc::new(NamespaceBudget::new(process)), of_each);
        std::iter::repeat_with(namespace).take(count).collect()
    }

    /// Takes what there is.
    fn fill(memory: &Arc<LimitMemory>) -> Vec<Reservation> {
        std::iter::from_fn(|| memory.try_take(PART)).collect()
    }

    #[test]
    fn limit_takes_what_is_not_shared_and_each_other_one_its_share() {
        let budget = Arc::<NamespaceBudget>::default();
        let limits = limits(&budget, 128);
        let greedy = fill(&limits[0]);
        assert_eq!(greedy.len() * PART, BUDGET - FIRST - OF_LIMITS);
        let others: Vec<_> = limits[1..].iter().map(fill).collect();
        for parts in &others {
            assert_eq!(parts.len() * PART, OF_LIMITS / 128);
        }
        assert!(budget.taken() <= BUDGET);
        drop((greedy, others));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn namespace_takes_what_is_not_shared_and_each_other_one_its_share() {
        let process = Arc::<ProcessBudget>::default();
        let namespaces = namespaces(&process, 8, 16);
        let greedy = fill(&namespaces[0][0]);
        let of_others = OF_LIMITS + OF_NAMESPACES / 8 * 7;
        assert_eq!(greedy.len() * PART, BUDGET - FIRST - of_others);
        let mut held = vec![greedy];
        for limits in &namespaces[1..] {
            // The first one is as greedy within its namespace.
            let first = fill(&limits[0]);
            assert_eq!(first.len() * PART, OF_NAMESPACES / 8);
            held.push(first);
            for other in &limits[1..] {
                let parts = fill(other);
                assert_eq!(parts.len() * PART, OF_LIMITS / 8 / 16);
                held.push(parts);
            }
        }
        assert!(!process.take_shortage());
    }

    #[test]
    fn no_share_is_refused_and_the_budget_holds_whatever_limits_take() {
        for seed in 0..64 {
            let process = Arc::<ProcessBudget>::default();
            let count = 1 + seed as usize % 20;
            let limits = namespaces(&process, count, 1 + seed as usize % 7).concat();
            let first = limits.iter().map(|memory| memory.take_first(1_000));
            let first: Vec<_> = first.collect();
            let mut held = Vec::new();
            for step in 0..2_000 {
                let random = mixed((seed << 32) | step) as usize;
                // The more likely the lower the index, so that some are greedy.
                let memory = &limits[random % (1 + (random >> 8) % limits.len())];
                let bytes = 1 + (random >> 16) % (1 << 20);
                let is_share = memory.is_share(bytes);
                let taken = memory.try_take(bytes);
                assert!(taken.is_some() || !is_share, "seed {seed}, step {step}");
                held.extend(taken);
                if (random >> 40) & 3 == 0 && !held.is_empty() {
                    held.swap_remove((random >> 44) % held.len());
                }
                assert!(process.taken() <= BUDGET);
            }
            drop((held, first, limits));
            assert_eq!(process.taken(), 0);
            assert_eq!(process.namespaces.load(Relaxed), 0);
        }
    }

    #[test]
    fn budget_holds_when_limits_and_namespaces_are_added() {
        let process = Arc::<ProcessBudget>::default();
        let mut all = Vec::new();
        for (count, of_each) in [(1, 1), (1, 15), (14, 8), (64, 38)] {
            for memory in namespaces(&process, count, of_each).concat() {
                let first = memory.take_first(1_000);
                all.push((first, fill(&memory)));
            }
            assert!(process.taken() <= BUDGET);
        }
        assert!(process.take_shortage() && !process.take_shortage());
        drop(all);
        assert_eq!(process.taken(), 0);
        assert_eq!(process.namespaces.load(Relaxed), 0);
    }
}
