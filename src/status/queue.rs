//! A work queue of objects: in order, each once, none twice at a time, and after a failure only after a wait.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::ir::ObjectRef;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<ObjectRef>,
    queued: HashSet<ObjectRef>,
    under_way: HashSet<ObjectRef>,
    /// Objects that were pushed while something was under way for them.
    again: HashSet<ObjectRef>,
    timers: BTreeSet<(Instant, ObjectRef)>,
    failures: HashMap<ObjectRef, u32>,
}

impl Queue {
    /// Puts an object at the end, unless it waits there already.
    pub(super) fn push(&mut self, object: ObjectRef) {
        if self.under_way.contains(&object) {
            self.again.insert(object);
        } else if self.queued.insert(object.clone()) {
            self.order.push_back(object);
        }
    }

    /// Takes out the next object, for which something is under way from now on.
    pub(super) fn pop(&mut self) -> Option<ObjectRef> {
        let now = Instant::now();
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, object)) = self.timers.pop_first() {
                self.push(object);
            }
        }
        let object = self.order.pop_front()?;
        self.queued.remove(&object);
        self.under_way.insert(object.clone());
        Some(object)
    }

    /// What was under way is done.
    pub(super) fn done(&mut self, object: &ObjectRef) {
        self.failures.remove(object);
        self.end(object);
    }

    /// What was under way has failed: it is retried after a wait.
    pub(super) fn failed(&mut self, object: &ObjectRef) {
        let failures = self.failures.entry(object.clone()).or_default();
        let wait = BACKOFF.after(*failures);
        *failures += 1;
        self.timers.insert((Instant::now() + wait, object.clone()));
        self.end(object);
    }

    /// Returns when a wait is over; never when nothing waits.
    pub(super) async fn due(&self) {
        match self.timers.first() {
            Some((at, _)) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    fn end(&mut self, object: &ObjectRef) {
        self.under_way.remove(object);
        if self.again.remove(object) {
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
    async fn holds_an_object_once_and_never_twice_under_way() {
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
    async fn retries_failed_object_after_backoff() {
        let mut queue = Queue::default();
        queue.push(route("a"));
        assert_eq!(queue.pop(), Some(route("a")));
        queue.failed(&route("a"));
        assert_eq!(queue.pop(), None);
        queue.due().await;
        assert_eq!(queue.pop(), Some(route("a")));
    }
}
