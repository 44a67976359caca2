//! The memory of the keys of limits: one budget for each namespace, of which all tables of all its limits take, on all workers
//! and across configuration changes. Must not know what tables hold.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Bytes of the keys of all limits of a namespace.
pub(super) const BUDGET: usize = 64 << 20;
/// Bytes that limits share evenly: those that need more take nothing of them, so that each limit gets its share at any time.
const EVEN: usize = BUDGET / 2;

/// The budget of a namespace.
#[derive(Debug, Default)]
pub(super) struct Budget {
    taken: AtomicUsize,
    /// Number of limits that share it.
    limits: AtomicUsize,
}

/// What a limit takes of the budget of its namespace.
#[derive(Debug)]
pub(super) struct LimitMemory {
    budget: Arc<Budget>,
    taken: AtomicUsize,
    /// Keys in use that others took the place of.
    pub(super) evicted: AtomicU64,
}

/// Bytes that are taken until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    memory: Arc<LimitMemory>,
    bytes: usize,
}

impl LimitMemory {
    pub(super) fn new(budget: Arc<Budget>) -> Arc<Self> {
        budget.limits.fetch_add(1, Relaxed);
        Arc::new(Self {
            budget,
            taken: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Takes bytes that each limit needs, also beyond the budget.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.budget.taken.fetch_add(bytes, Relaxed);
        self.reservation(bytes)
    }

    /// Takes bytes of the share of the limit, or of what no limit has a share of. Returns `None` if neither has as many.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let share = EVEN / self.budget.limits.load(Relaxed).max(1);
        let max = match self.taken.load(Relaxed).saturating_add(bytes) <= share {
            true => BUDGET,
            false => BUDGET - EVEN,
        };
        let take = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= max);
        let taken = self.budget.taken.fetch_update(Relaxed, Relaxed, take);
        taken.ok().map(|_| self.reservation(bytes))
    }

    fn reservation(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.taken.fetch_add(bytes, Relaxed);
        Reservation {
            memory: self.clone(),
            bytes,
        }
    }
}

impl Drop for LimitMemory {
    fn drop(&mut self) {
        self.budget.limits.fetch_sub(1, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.taken.fetch_sub(self.bytes, Relaxed);
        self.memory.budget.taken.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
impl Budget {
    /// Returns the bytes that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 64 << 10;

    fn limits(budget: &Arc<Budget>, count: usize) -> Vec<Arc<LimitMemory>> {
        let limits = std::iter::repeat_with(|| LimitMemory::new(budget.clone()));
        limits.take(count).collect()
    }

    /// Takes what there is.
    fn fill(memory: &Arc<LimitMemory>) -> Vec<Reservation> {
        std::iter::from_fn(|| memory.try_take(PART)).collect()
    }

    #[test]
    fn limit_takes_half_of_the_budget_and_each_other_one_its_share() {
        let budget = Arc::<Budget>::default();
        let limits = limits(&budget, 128);
        let greedy = fill(&limits[0]);
        assert_eq!(greedy.len() * PART, BUDGET / 2);
        let others: Vec<_> = limits[1..].iter().map(fill).collect();
        for parts in &others {
            assert_eq!(parts.len() * PART, BUDGET / 2 / 128);
        }
        assert!(budget.taken() <= BUDGET);
        drop((greedy, others));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn budget_holds_when_limits_are_added() {
        let budget = Arc::<Budget>::default();
        let mut all = Vec::new();
        for count in [1, 15, 112, 2_432] {
            let added = limits(&budget, count);
            all.extend(added.iter().map(|memory| {
                let first = memory.take(100);
                (first, fill(memory))
            }));
            assert!(budget.taken() <= BUDGET + 100 * all.len());
        }
        drop(all);
        assert_eq!(budget.taken(), 0);
        assert_eq!(budget.limits.load(Relaxed), 0);
    }
}
