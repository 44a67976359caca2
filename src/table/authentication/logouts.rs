//! Logout tokens that this pod has got from providers, and that the other pods of the Gateway are to hear of. Must not know how pods
//! talk to each other. Pure: the caller passes the time, in nanoseconds of the monotonic clock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ir::ObjectRef;

/// For how long pods that are away, or that become ready, hear of a token, in nanoseconds: about as long as it counts.
const KEPT: u64 = 300_000_000_000;
/// Maximum bytes of the tokens of a namespace. The oldest leave.
const MAX_BYTES: usize = 4 << 20;
/// Bytes of a token beside its text.
const OVERHEAD: usize = 256;

/// A logout token that has ended sessions.
pub struct Logout {
    /// Tokens that come later have larger numbers.
    pub number: u64,
    /// The policy whose provider has sent it.
    pub policy: ObjectRef,
    /// Its text. Never to be printed.
    pub token: Box<str>,
    /// When it has ended sessions, in microseconds since 1970.
    pub at: u64,
    /// Until when it is kept.
    until: u64,
}

impl fmt::Debug for Logout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logout").finish_non_exhaustive()
    }
}

/// The logout tokens of the last minutes.
#[derive(Debug, Default)]
pub struct Logouts {
    last: AtomicU64,
    /// In order of their numbers.
    kept: Mutex<VecDeque<Arc<Logout>>>,
}

impl Logouts {
    /// Adds a token that has ended sessions at a time, in microseconds since 1970.
    pub fn add(&self, policy: &ObjectRef, token: &str, at: u64, now: u64) {
        let mut kept = self.lock();
        kept.retain(|it| now < it.until);
        let is_neighbour = |it: &Logout| *it.policy.namespace == *policy.namespace;
        let neighbours = kept.iter().filter(|it| is_neighbour(it));
        let taken: usize = neighbours.map(|it| size(&it.token)).sum();
        let mut excess = (taken + size(token)).saturating_sub(MAX_BYTES);
        kept.retain(|it| {
            let leaves = excess > 0 && is_neighbour(it);
            if leaves {
                excess = excess.saturating_sub(size(&it.token));
            }
            !leaves
        });
        let number = self.last() + 1;
        kept.push_back(Arc::new(Logout {
            number,
            policy: policy.clone(),
            token: token.into(),
            at,
            until: now.saturating_add(KEPT),
        }));
        self.last.store(number, Relaxed);
    }

    /// Returns the number of the last token; 0 if there was none.
    pub fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }

    /// Returns the tokens that other pods are to hear of, in order of their numbers.
    pub fn current(&self, now: u64) -> Vec<Arc<Logout>> {
        let mut kept = self.lock();
        kept.retain(|it| now < it.until);
        kept.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Logout>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(token: &str) -> usize {
    OVERHEAD + token.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespace: &str) -> ObjectRef {
        ObjectRef::new("portcullis.dev", "AccessPolicy", namespace, "policy")
    }

    fn numbers(logouts: &Logouts, now: u64) -> Vec<u64> {
        logouts.current(now).iter().map(|it| it.number).collect()
    }

    #[test]
    fn tokens_are_kept_for_some_minutes() {
        let logouts = Logouts::default();
        assert_eq!((logouts.last(), numbers(&logouts, 0)), (0, vec![]));
        logouts.add(&policy("a"), "one", 7, 0);
        logouts.add(&policy("a"), "two", 8, KEPT / 2);
        assert_eq!(numbers(&logouts, KEPT - 1), [1, 2]);
        assert_eq!(numbers(&logouts, KEPT), [2]);
        assert_eq!(numbers(&logouts, 2 * KEPT), Vec::<u64>::new());
        assert_eq!(logouts.last(), 2);
        logouts.add(&policy("a"), "three", 9, 2 * KEPT);
        let current = logouts.current(2 * KEPT);
        assert_eq!((&*current[0].token, current[0].at), ("three", 9));
        assert!(!format!("{logouts:?}").contains("three"));
    }

    #[test]
    fn oldest_tokens_of_a_namespace_leave_for_its_own_alone() {
        let logouts = Logouts::default();
        logouts.add(&policy("quiet"), "one", 0, 0);
        let long = "x".repeat(16 * 1024);
        let room = MAX_BYTES / size(&long);
        for _ in 0..room + 3 {
            logouts.add(&policy("loud"), &long, 0, 0);
        }
        let expected: Vec<u64> = std::iter::once(1).chain(5..room as u64 + 5).collect();
        assert_eq!(numbers(&logouts, 0), expected);
    }
}
