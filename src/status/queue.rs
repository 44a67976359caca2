//! A work queue of objects: namespaces in turn, first in first out in each, deduplicated, one worker
//! per object, with back-off after failures.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::ir::ObjectRef;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// A queue of objects to process.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Queued objects of each namespace, which is empty for cluster-scoped objects. Without empty queues.
    by_namespace: HashMap<Arc<str>, VecDeque<ObjectRef>>,
    /// The namespaces of `by_namespace`, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    queued: HashSet<ObjectRef>,
    under_way: HashSet<ObjectRef>,
    /// Objects that were pushed while they were being processed.
    requeue: HashSet<ObjectRef>,
    timers: BTreeSet<(Instant, ObjectRef)>,
    failures: HashMap<ObjectRef, Failures>,
}

/// Consecutive failures of one object.
#[derive(Debug)]
struct Failures {
    count: u32,
    /// End of the back-off.
    until: Instant,
}

impl Queue {
    /// Adds an object, unless it is already queued.
    pub(super) fn push(&mut self, object: ObjectRef) {
        if self.under_way.contains(&object) {
            self.requeue.insert(object);
        } else if self.queued.insert(object.clone()) {
            let namespace = &object.namespace;
            if !self.by_namespace.contains_key(namespace) {
                self.turns.push_back(namespace.clone());
            }
            let queue = self.by_namespace.entry(namespace.clone()).or_default();
            queue.push_back(object);
        }
    }

    /// Pops the next object and marks it as being processed.
    pub(super) fn pop(&mut self) -> Option<ObjectRef> {
        let now = Instant::now();
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, object)) = self.timers.pop_first() {
                self.push(object);
            }
        }
        let object = self.next_in_turn()?;
        self.queued.remove(&object);
        self.under_way.insert(object.clone());
        Some(object)
    }

    /// Returns the first object of the namespace whose turn it is, so that one with many objects does not delay others.
    fn next_in_turn(&mut self) -> Option<ObjectRef> {
        let namespace = self.turns.pop_front()?;
        let queue = self.by_namespace.get_mut(&namespace)?;
        let object = queue.pop_front();
        if queue.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        object
    }

    /// Marks an object as processed.
    pub(super) fn done(&mut self, object: &ObjectRef) {
        if let Some(failures) = self.failures.remove(object) {
            self.timers.remove(&(failures.until, object.clone()));
        }
        self.end(object);
    }

    /// Marks processing as failed and requeues the object after a back-off.
    pub(super) fn failed(&mut self, object: &ObjectRef) {
        let now = Instant::now();
        let failures = self.failures.entry(object.clone());
        let failures = failures.or_insert(Failures {
            count: 0,
            until: now,
        });
        self.timers.remove(&(failures.until, object.clone()));
        failures.until = now + BACKOFF.after(failures.count);
        failures.count += 1;
        self.timers.insert((failures.until, object.clone()));
        self.end(object);
    }

    /// Completes when an object may be ready to pop; never while the queue is empty.
    pub(super) async fn ready(&self) {
        match self.timers.first() {
            _ if !self.turns.is_empty() => {}
            Some((at, _)) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    fn end(&mut self, object: &ObjectRef) {
        self.under_way.remove(object);
        if self.requeue.remove(object) {
            self.push(object.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str) -> ObjectRef {
        ObjectRef::gateway_api("HTTPRoute", "default", name)
    }

    #[tokio::test]
    async fn deduplicates_objects_and_processes_each_once_at_a_time() {
        let mut queue = Queue::default();
        queue.push(route("a"));
        queue.push(route("b"));
        queue.push(route("a"));
        assert_eq!(queue.pop(), Some(route("a")));
        queue.push(route("a"));
        assert_eq!(queue.pop(), Some(route("b")));
        assert_eq!(queue.pop(), None);
        queue.done(&route("a"));
        assert_eq!(queue.pop(), Some(route("a")));
        queue.done(&route("a"));
        assert_eq!(queue.pop(), None);
    }

    #[tokio::test]
    async fn namespaces_take_turns() {
        let object =
            |namespace: &str, name: &str| ObjectRef::gateway_api("Gateway", namespace, name);
        let mut queue = Queue::default();
        for number in 0..1000 {
            queue.push(object("busy", &number.to_string()));
        }
        for name in ["a", "b"] {
            queue.push(object("quiet", name));
        }
        queue.push(object("", "class"));
        let popped: Vec<_> = (0..6).filter_map(|_| queue.pop()).collect();
        let namespaces: Vec<_> = popped.iter().map(|one| &*one.namespace).collect();
        assert_eq!(namespaces, ["busy", "quiet", "", "busy", "quiet", "busy"]);
        assert_eq!(popped[4], object("quiet", "b"));
        while queue.pop().is_some() {}
        assert!(queue.by_namespace.is_empty() && queue.turns.is_empty());
    }

    #[tokio::test]
    async fn retries_failed_object_after_backoff() {
        let mut queue = Queue::default();
        queue.push(route("a"));
        assert_eq!(queue.pop(), Some(route("a")));
        queue.failed(&route("a"));
        assert_eq!(queue.pop(), None);
        queue.ready().await;
        assert_eq!(queue.pop(), Some(route("a")));
    }

    #[tokio::test]
    async fn forgets_failures_after_success() {
        let mut queue = Queue::default();
        queue.push(route("a"));
        for _ in 0..3 {
            assert_eq!(queue.pop(), Some(route("a")));
            queue.failed(&route("a"));
            assert_eq!(queue.timers.len(), 1);
            // A new push does not wait for the back-off.
            queue.push(route("a"));
        }
        queue.ready().await;
        assert_eq!(queue.pop(), Some(route("a")));
        queue.done(&route("a"));
        assert!(queue.timers.is_empty() && queue.failures.is_empty());
        assert!(queue.queued.is_empty() && queue.under_way.is_empty() && queue.requeue.is_empty());
        assert_eq!(queue.pop(), None);
    }
}
