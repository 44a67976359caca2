//! The work queue of Gateways. Each Gateway has its own back-off. Concurrency is bounded per
//! namespace, so that a namespace with hanging requests does not delay others.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::ir::ObjectRef;

/// Maximum number of concurrent reconciliations.
const CONCURRENT: usize = 16;
/// Maximum number of concurrent reconciliations in one namespace.
const CONCURRENT_IN_NAMESPACE: usize = 4;
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
/// Number of repairs in a row before a Gateway backs off, because another client keeps undoing the
/// changes.
const MAX_REPAIRS: u32 = 5;
/// Repairs that are further apart do not count as consecutive.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

/// Result of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All objects were as desired.
    Unchanged,
    /// At least one object was written.
    Written,
    /// An object could not be written.
    Failed,
}

#[derive(Default)]
struct Entry {
    /// Consecutive failures.
    failures: u32,
    /// Consecutive repairs.
    repairs: u32,
    last_repair: Option<Instant>,
    /// End of the back-off.
    not_before: Option<Instant>,
    /// Whether the desired state has changed since the last reconciliation began.
    is_desired_changed: bool,
}

/// Queued and running Gateways.
#[derive(Default)]
pub(super) struct Queue {
    entries: HashMap<ObjectRef, Entry>,
    /// In order of arrival. Contains the same Gateways as `queued`.
    order: VecDeque<ObjectRef>,
    queued: HashSet<ObjectRef>,
    /// Gateways in back-off.
    delayed: BTreeSet<(Instant, ObjectRef)>,
    /// Gateways being reconciled, and whether a change of the desired state caused it.
    running: HashMap<ObjectRef, bool>,
    running_in: HashMap<Arc<str>, usize>,
}

impl Queue {
    /// Queues a Gateway whose desired state has changed, and ends its back-off.
    pub(super) fn push(&mut self, gateway: &ObjectRef) {
        let entry = self.entries.entry(gateway.clone()).or_default();
        *entry = Entry {
            is_desired_changed: true,
            ..Entry::default()
        };
        self.delayed.retain(|(_, delayed)| delayed != gateway);
        self.enqueue(gateway);
    }

    /// Queues a Gateway whose existing objects may have changed, after its back-off.
    pub(super) fn touch(&mut self, gateway: &ObjectRef) {
        let not_before = self.entries.entry(gateway.clone()).or_default().not_before;
        match not_before.filter(|until| *until > Instant::now()) {
            Some(until) => {
                self.delayed.insert((until, gateway.clone()));
            }
            None => self.enqueue(gateway),
        }
    }

    fn enqueue(&mut self, gateway: &ObjectRef) {
        if self.queued.insert(gateway.clone()) {
            self.order.push_back(gateway.clone());
        }
    }

    /// Forgets the state of a Gateway.
    pub(super) fn forget(&mut self, gateway: &ObjectRef) {
        self.entries.remove(gateway);
    }

    /// Returns the end of the earliest back-off.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// Reports whether any Gateway is queued or running.
    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.order.is_empty()
    }

    /// Pops the next Gateway within the concurrency limits and marks it as running.
    pub(super) fn next(&mut self) -> Option<ObjectRef> {
        self.wake(Instant::now());
        if self.running.len() >= CONCURRENT {
            return None;
        }
        let may_run = |gateway: &ObjectRef| {
            let beside = self.running_in.get(&gateway.namespace);
            !self.running.contains_key(gateway)
                && beside.is_none_or(|running| *running < CONCURRENT_IN_NAMESPACE)
        };
        let place = self.order.iter().position(may_run)?;
        let gateway = self.order.remove(place)?;
        self.queued.remove(&gateway);
        let entry = self.entries.entry(gateway.clone()).or_default();
        let is_desired_changed = std::mem::take(&mut entry.is_desired_changed);
        self.running.insert(gateway.clone(), is_desired_changed);
        *self
            .running_in
            .entry(gateway.namespace.clone())
            .or_default() += 1;
        Some(gateway)
    }

    fn wake(&mut self, now: Instant) {
        while let Some((until, _)) = self.delayed.first()
            && *until <= now
        {
            if let Some((_, gateway)) = self.delayed.pop_first() {
                self.enqueue(&gateway);
            }
        }
    }

    /// Marks a Gateway as finished. After a failure, it is queued again when its back-off ends.
    /// Returns whether this is the repair that starts a back-off.
    pub(super) fn finish(&mut self, gateway: &ObjectRef, outcome: Outcome) -> bool {
        let is_repair = self.running.remove(gateway) == Some(false);
        if let Some(running) = self.running_in.get_mut(&gateway.namespace) {
            *running -= 1;
            if *running == 0 {
                self.running_in.remove(&gateway.namespace);
            }
        }
        let entry = self.entries.get_mut(gateway);
        // A push during the reconciliation has reset the back-off.
        let Some(entry) = entry.filter(|entry| !entry.is_desired_changed) else {
            return false;
        };
        let now = Instant::now();
        let delay = match outcome {
            Outcome::Unchanged => {
                entry.failures = 0;
                None
            }
            Outcome::Written => {
                entry.failures = 0;
                entry.count_repair(is_repair, now)
            }
            Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                Some(BACKOFF.after(entry.failures - 1))
            }
        };
        entry.not_before = delay.map(|delay| now + delay);
        let Some(until) = entry.not_before else {
            return false;
        };
        let is_excess = outcome == Outcome::Written && entry.repairs == MAX_REPAIRS + 1;
        if outcome == Outcome::Failed || self.queued.remove(gateway) {
            self.order.retain(|queued| queued != gateway);
            self.queued.remove(gateway);
            self.delayed.insert((until, gateway.clone()));
        }
        is_excess
    }
}

impl Entry {
    /// Counts a repair. Returns the delay before the next one.
    fn count_repair(&mut self, is_repair: bool, now: Instant) -> Option<Duration> {
        let last = self.last_repair.replace(now);
        let is_in_row = last.is_some_and(|last| now - last < REPAIR_INTERVAL);
        self.repairs = match is_repair {
            true if is_in_row => self.repairs.saturating_add(1),
            true => 1,
            false => 0,
        };
        let excess = self.repairs.checked_sub(MAX_REPAIRS + 1)?;
        Some(BACKOFF.after(excess))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(namespace: &str, number: usize) -> ObjectRef {
        ObjectRef::gateway_api("Gateway", namespace, &format!("g{number}"))
    }

    /// Returns all Gateways that may run now.
    fn run(queue: &mut Queue) -> Vec<ObjectRef> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn limits_concurrency_by_namespace_and_in_total() {
        let mut queue = Queue::default();
        for number in 0..10 {
            queue.push(&gateway("slow", number));
        }
        let slow = run(&mut queue);
        assert_eq!(slow.len(), CONCURRENT_IN_NAMESPACE);
        for number in 0..CONCURRENT {
            queue.push(&gateway(&format!("n{number}"), 0));
        }
        let others = run(&mut queue);
        assert_eq!(others.len(), CONCURRENT - CONCURRENT_IN_NAMESPACE);
        assert!(others.iter().all(|gateway| &*gateway.namespace != "slow"));
        queue.finish(&slow[0], Outcome::Written);
        assert_eq!(run(&mut queue), [gateway("slow", CONCURRENT_IN_NAMESPACE)]);
        assert!(queue.is_busy());
    }

    #[test]
    fn gateway_runs_once_at_a_time_and_again_if_touched() {
        let mut queue = Queue::default();
        let web = gateway("shop", 0);
        queue.push(&web);
        assert_eq!(queue.next(), Some(web.clone()));
        queue.touch(&web);
        queue.touch(&web);
        assert_eq!(queue.next(), None);
        queue.finish(&web, Outcome::Written);
        assert_eq!(run(&mut queue), std::slice::from_ref(&web));
        queue.finish(&web, Outcome::Unchanged);
        assert_eq!(run(&mut queue), []);
        assert!(!queue.is_busy());
    }

    #[test]
    fn events_do_not_shorten_exponential_backoff() {
        let mut queue = Queue::default();
        let web = gateway("shop", 0);
        queue.push(&web);
        let mut waits = Vec::new();
        for _ in 0..3 {
            // Simulates the end of the back-off.
            queue.wake(Instant::now() + BACKOFF.longest);
            assert_eq!(queue.next(), Some(web.clone()));
            let start = Instant::now();
            queue.finish(&web, Outcome::Failed);
            queue.touch(&web);
            assert_eq!(queue.next(), None);
            let wait = queue.next_deadline().unwrap() - start;
            waits.push(wait.as_secs_f64().round() as u64);
        }
        assert_eq!(waits, [1, 2, 4]);
        // A new desired state ends the back-off.
        queue.push(&web);
        assert_eq!(queue.next(), Some(web.clone()));
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn repeatedly_repaired_gateway_backs_off() {
        let mut queue = Queue::default();
        let web = gateway("shop", 0);
        queue.push(&web);
        queue.next();
        queue.finish(&web, Outcome::Written);
        let mut excesses = Vec::new();
        for _ in 0..MAX_REPAIRS + 2 {
            queue.wake(Instant::now() + BACKOFF.longest);
            queue.touch(&web);
            queue.wake(Instant::now() + BACKOFF.longest);
            assert_eq!(queue.next(), Some(web.clone()));
            excesses.push(queue.finish(&web, Outcome::Written));
        }
        // Reported once.
        let expected: Vec<_> = (0..MAX_REPAIRS + 2)
            .map(|repair| repair == MAX_REPAIRS)
            .collect();
        assert_eq!(excesses, expected);
        queue.touch(&web);
        assert_eq!(queue.next(), None);
        assert!(queue.next_deadline().is_some());
    }
}
