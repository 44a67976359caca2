//! The work queue of Gateways: why each is reconciled, and a pause after too many repairs.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::inventory::ChildKey;
use crate::cluster::work_queue::{Limits, WorkQueue};
use crate::ir::ObjectRef;
use crate::runtime::backoff::Backoff;

/// Limits of concurrent reconciliations.
const LIMITS: Limits = Limits {
    total: 16,
    in_namespace: 4,
};
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
/// Number of repairs of one object in a row before its Gateway backs off, because another client keeps
/// undoing the changes.
const MAX_REPAIRS: u32 = 5;
/// Repairs that are further apart do not count as consecutive.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

/// Result of a reconciliation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reconciled {
    /// All objects were as desired.
    Unchanged,
    /// These objects were written.
    Written(Vec<ChildKey>),
    /// An object could not be written.
    Failed,
}

/// Queued and running Gateways.
pub(super) struct Queue {
    work: WorkQueue,
    repairs: HashMap<ObjectRef, Repairs>,
}

/// The repairs of a Gateway: writes that no change of its desired state has caused.
#[derive(Default)]
struct Repairs {
    /// The number of consecutive repairs of each object, and when the last one ended.
    objects: HashMap<ChildKey, (u32, Instant)>,
    /// Whether the desired state has changed since the last reconciliation began.
    is_desired_changed: bool,
    /// Whether the reconciliation under way is one without such a change.
    is_repair: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            work: WorkQueue::new(LIMITS, BACKOFF),
            repairs: HashMap::new(),
        }
    }
}

impl Queue {
    /// Queues a Gateway whose desired state has changed, and ends its back-off.
    pub(super) fn push(&mut self, gateway: &ObjectRef) {
        let repairs = Repairs {
            is_desired_changed: true,
            ..Repairs::default()
        };
        self.repairs.insert(gateway.clone(), repairs);
        self.work.reset(gateway);
    }

    /// Queues a Gateway whose existing objects may have changed, after its back-off.
    pub(super) fn touch(&mut self, gateway: &ObjectRef) {
        self.work.touch(gateway);
    }

    /// Forgets the repairs of a Gateway.
    pub(super) fn forget(&mut self, gateway: &ObjectRef) {
        self.repairs.remove(gateway);
    }

    /// Returns the end of the earliest back-off.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.work.next_deadline()
    }

    /// Pops the next Gateway within the concurrency limits and marks it as running.
    pub(super) fn next(&mut self) -> Option<ObjectRef> {
        let gateway = self.work.pop()?;
        let repairs = self.repairs.entry(gateway.clone()).or_default();
        repairs.is_repair = !std::mem::take(&mut repairs.is_desired_changed);
        Some(gateway)
    }

    /// Marks a Gateway as finished. After a failure, it is queued again when its back-off ends.
    /// Returns whether this is the repair that starts a back-off.
    pub(super) fn finish(&mut self, gateway: &ObjectRef, result: &Reconciled) -> bool {
        let repairs = self.repairs.get_mut(gateway);
        // A push during the reconciliation has reset the repairs.
        let repairs = repairs.filter(|repairs| !repairs.is_desired_changed);
        let excess = match (result, repairs) {
            (Reconciled::Failed, _) => {
                self.work.failed(gateway);
                return false;
            }
            (Reconciled::Written(objects), Some(repairs)) => repairs.count(objects, Instant::now()),
            _ => None,
        };
        match excess {
            Some(excess) => self.work.rest(gateway, BACKOFF.after(excess)),
            None => self.work.done(gateway),
        }
        excess == Some(0)
    }
}

impl Repairs {
    /// Counts a write of these objects. Returns by how many repairs the one that was repaired most often exceeds
    /// [`MAX_REPAIRS`]; the first excess is 0.
    fn count(&mut self, objects: &[ChildKey], now: Instant) -> Option<u32> {
        if !self.is_repair {
            self.objects.clear();
            return None;
        }
        let counts = objects.iter().map(|object| {
            let (count, last) = self.objects.entry(object.clone()).or_insert((0, now));
            *count = match now - *last < REPAIR_INTERVAL {
                true => count.saturating_add(1),
                false => 1,
            };
            *last = now;
            *count
        });
        counts.max()?.checked_sub(MAX_REPAIRS + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::child::ChildKind;

    fn gateway() -> ObjectRef {
        ObjectRef::gateway_api("Gateway", "shop", "web")
    }

    fn written(kind: ChildKind) -> Reconciled {
        Reconciled::Written(vec![ChildKey {
            kind,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        }])
    }

    #[tokio::test(start_paused = true)]
    async fn new_desired_state_ends_backoff() {
        let mut queue = Queue::default();
        queue.push(&gateway());
        let mut waits = Vec::new();
        for _ in 0..3 {
            tokio::time::advance(BACKOFF.longest).await;
            assert_eq!(queue.next(), Some(gateway()));
            queue.finish(&gateway(), &Reconciled::Failed);
            queue.touch(&gateway());
            assert_eq!(queue.next(), None);
            waits.push((queue.next_deadline().unwrap() - Instant::now()).as_secs());
        }
        assert_eq!(waits, [1, 2, 4]);
        queue.push(&gateway());
        assert_eq!(queue.next(), Some(gateway()));
        assert_eq!(queue.next_deadline(), None);
        queue.finish(&gateway(), &Reconciled::Failed);
        let wait = queue.next_deadline().unwrap() - Instant::now();
        assert_eq!(wait, BACKOFF.first);
    }

    #[tokio::test(start_paused = true)]
    async fn repairs_of_different_objects_do_not_start_a_backoff() {
        let mut queue = Queue::default();
        for kind in ChildKind::ALL.into_iter().chain(ChildKind::ALL) {
            queue.touch(&gateway());
            assert_eq!(queue.next(), Some(gateway()), "{kind:?}");
            assert!(!queue.finish(&gateway(), &written(kind)), "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeatedly_repaired_gateway_backs_off() {
        let mut queue = Queue::default();
        queue.push(&gateway());
        queue.next();
        queue.finish(&gateway(), &written(ChildKind::Service));
        let mut excesses = Vec::new();
        for _ in 0..MAX_REPAIRS + 2 {
            queue.touch(&gateway());
            tokio::time::advance(BACKOFF.longest).await;
            assert_eq!(queue.next(), Some(gateway()));
            excesses.push(queue.finish(&gateway(), &written(ChildKind::Service)));
        }
        // Reported once.
        let expected: Vec<_> = (0..MAX_REPAIRS + 2)
            .map(|repair| repair == MAX_REPAIRS)
            .collect();
        assert_eq!(excesses, expected);
        queue.touch(&gateway());
        assert_eq!(queue.next(), None);
        assert!(queue.next_deadline().is_some());
    }
}
