//! A work queue of objects: deduplicated, one worker per object, with back-off after failures. Namespaces take turns and
//! have a limit each, so that one with many objects or with hanging requests does not delay others.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ir::ObjectRef;
use crate::ir::sharing::Text;
use crate::runtime::backoff::Backoff;

/// Objects that wait for a worker, that workers process, and that back off.
#[derive(Debug)]
pub struct WorkQueue {
    limits: Limits,
    backoff: Backoff,
    /// By name, which is empty for cluster-scoped objects. Contains only namespaces with waiting or running objects.
    namespaces: HashMap<Text, Namespace>,
    /// Namespaces with a waiting object that may run, in the order of their turns.
    turns: VecDeque<Text>,
    waiting: HashSet<ObjectRef>,
    /// Objects that are being processed, and whether to process them again.
    running: HashMap<ObjectRef, Option<Again>>,
    /// Objects to queue at the end of their back-off.
    delayed: BTreeSet<(Instant, ObjectRef)>,
    backoffs: HashMap<ObjectRef, Failures>,
}

/// How many objects are processed at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum in total.
    pub total: usize,
    /// Maximum in one namespace.
    pub in_namespace: usize,
}

#[derive(Debug, Default)]
struct Namespace {
    waiting: VecDeque<ObjectRef>,
    running: usize,
    /// Whether it is in `turns`.
    has_turn: bool,
}

/// How to queue an object that was queued again while it was being processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Now,
    AfterBackoff,
}

/// The back-off of one object.
#[derive(Debug)]
struct Failures {
    /// Number of consecutive failures.
    count: u32,
    until: Instant,
}

impl WorkQueue {
    /// Creates an empty queue.
    pub fn new(limits: Limits, backoff: Backoff) -> Self {
        Self {
            limits,
            backoff,
            namespaces: HashMap::new(),
            turns: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashMap::new(),
            delayed: BTreeSet::new(),
            backoffs: HashMap::new(),
        }
    }

    /// Queues an object, even if it backs off.
    pub fn push(&mut self, object: &ObjectRef) {
        if let Some(failures) = self.backoffs.get(object) {
            self.delayed.remove(&(failures.until, object.clone()));
        }
        if let Some(again) = self.running.get_mut(object) {
            *again = Some(Again::Now);
        } else if self.waiting.insert(object.clone()) {
            let namespace = self.namespaces.entry(object.namespace.clone());
            namespace.or_default().waiting.push_back(object.clone());
            self.offer_turn(&object.namespace);
        }
    }

    /// Queues an object, and forgets its failures.
    pub fn reset(&mut self, object: &ObjectRef) {
        self.forget(object);
        self.push(object);
    }

    /// Queues an object when its back-off ends.
    pub fn touch(&mut self, object: &ObjectRef) {
        if let Some(again) = self.running.get_mut(object) {
            again.get_or_insert(Again::AfterBackoff);
            return;
        }
        let backoff = self.backoffs.get(object).map(|failures| failures.until);
        match backoff.filter(|until| *until > Instant::now()) {
            Some(until) if !self.waiting.contains(object) => {
                self.delayed.insert((until, object.clone()));
            }
            _ => self.push(object),
        }
    }

    /// Pops the next object within the limits and marks it as being processed.
    pub fn pop(&mut self) -> Option<ObjectRef> {
        let now = Instant::now();
        while self.delayed.first().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, object)) = self.delayed.pop_first() {
                self.push(&object);
            }
        }
        if self.is_full() {
            return None;
        }
        let name = self.turns.pop_front()?;
        let namespace = self.namespaces.get_mut(&name)?;
        namespace.has_turn = false;
        let object = namespace.waiting.pop_front()?;
        namespace.running += 1;
        self.waiting.remove(&object);
        self.running.insert(object.clone(), None);
        self.offer_turn(&name);
        Some(object)
    }

    /// Marks an object as processed.
    pub fn done(&mut self, object: &ObjectRef) {
        self.forget(object);
        if self.end(object).is_some() {
            self.push(object);
        }
    }

    /// Marks processing as failed and queues the object again after a back-off.
    pub fn failed(&mut self, object: &ObjectRef) {
        if self.end(object) == Some(Again::Now) {
            return self.push(object);
        }
        let count = self.backoffs.get(object).map_or(0, |it| it.count);
        let until = self.back_off(object, count.saturating_add(1), self.backoff.after(count));
        self.delayed.insert((until, object.clone()));
    }

    /// Marks an object as processed. It is not processed again within `delay`, except after a push.
    pub fn rest(&mut self, object: &ObjectRef, delay: Duration) {
        match self.end(object) {
            Some(Again::Now) => self.push(object),
            again => {
                self.back_off(object, 0, delay);
                if again.is_some() {
                    self.touch(object);
                }
            }
        }
    }

    /// Returns the end of the earliest back-off after which an object is queued.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// Completes when an object may be ready to pop; never while there is none.
    pub async fn ready(&self) {
        match self.next_deadline() {
            _ if self.is_full() => std::future::pending().await,
            _ if !self.turns.is_empty() => {}
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn forget(&mut self, object: &ObjectRef) {
        if let Some(failures) = self.backoffs.remove(object) {
            self.delayed.remove(&(failures.until, object.clone()));
        }
    }

    fn is_full(&self) -> bool {
        self.running.len() >= self.limits.total
    }

    fn back_off(&mut self, object: &ObjectRef, count: u32, delay: Duration) -> Instant {
        let until = Instant::now() + delay;
        self.backoffs
            .insert(object.clone(), Failures { count, until });
        until
    }

    /// Appends a namespace to `turns`, unless it is there, has no waiting object or is at its limit.
    fn offer_turn(&mut self, name: &Text) {
        let Some(namespace) = self.namespaces.get_mut(name) else {
            return;
        };
        let may_run = !namespace.waiting.is_empty() && namespace.running < self.limits.in_namespace;
        if may_run && !namespace.has_turn {
            namespace.has_turn = true;
            self.turns.push_back(name.clone());
        }
    }

    /// Frees the worker of an object. Returns how to queue the object again.
    fn end(&mut self, object: &ObjectRef) -> Option<Again> {
        let again = self.running.remove(object)?;
        if let Some(namespace) = self.namespaces.get_mut(&object.namespace) {
            namespace.running -= 1;
            if namespace.running == 0 && namespace.waiting.is_empty() {
                self.namespaces.remove(&object.namespace);
            }
        }
        self.offer_turn(&object.namespace);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        total: 16,
        in_namespace: 4,
    };

    fn queue() -> WorkQueue {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
        };
        WorkQueue::new(LIMITS, backoff)
    }

    fn object(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::gateway_api("Gateway", namespace, name)
    }

    fn assert_empty(queue: &WorkQueue) {
        assert!(queue.running.is_empty() && queue.waiting.is_empty());
        assert!(queue.namespaces.is_empty() && queue.turns.is_empty());
        assert!(queue.delayed.is_empty() && queue.backoffs.is_empty());
    }

    #[tokio::test]
    async fn deduplicates_objects_and_processes_each_once_at_a_time() {
        let (a, b) = (object("shop", "a"), object("shop", "b"));
        let mut queue = queue();
        for pushed in [&a, &b, &a] {
            queue.push(pushed);
        }
        assert_eq!(queue.pop().as_ref(), Some(&a));
        queue.push(&a);
        queue.touch(&a);
        assert_eq!(queue.pop().as_ref(), Some(&b));
        assert_eq!(queue.pop(), None);
        queue.done(&a);
        assert_eq!(queue.pop().as_ref(), Some(&a));
        queue.touch(&a);
        queue.done(&a);
        assert_eq!(queue.pop().as_ref(), Some(&a));
        queue.done(&a);
        queue.done(&b);
        assert_eq!(queue.pop(), None);
        assert_empty(&queue);
    }

    #[tokio::test]
    async fn namespaces_take_turns() {
        let mut queue = queue();
        for number in 0..1000 {
            queue.push(&object("busy", &number.to_string()));
        }
        for name in ["a", "b"] {
            queue.push(&object("quiet", name));
        }
        queue.push(&object("", "class"));
        let popped: Vec<_> = (0..6).filter_map(|_| queue.pop()).collect();
        let namespaces: Vec<_> = popped.iter().map(|one| &*one.namespace).collect();
        assert_eq!(namespaces, ["busy", "quiet", "", "busy", "quiet", "busy"]);
        assert_eq!(popped[4], object("quiet", "b"));
        popped.iter().for_each(|one| queue.done(one));
        while let Some(one) = queue.pop() {
            queue.done(&one);
        }
        assert_empty(&queue);
    }

    #[tokio::test]
    async fn limits_concurrency_by_namespace_and_in_total() {
        let run =
            |queue: &mut WorkQueue| -> Vec<_> { std::iter::from_fn(|| queue.pop()).collect() };
        let mut queue = queue();
        for number in 0..10 {
            queue.push(&object("slow", &number.to_string()));
        }
        let slow = run(&mut queue);
        assert_eq!(slow.len(), LIMITS.in_namespace);
        for number in 0..LIMITS.total {
            queue.push(&object(&format!("n{number}"), "web"));
        }
        let others = run(&mut queue);
        assert_eq!(others.len(), LIMITS.total - LIMITS.in_namespace);
        assert!(others.iter().all(|one| &*one.namespace != "slow"));
        assert!(futures_util::FutureExt::now_or_never(queue.ready()).is_none());
        for one in others {
            queue.done(&one);
        }
        queue.done(&slow[0]);
        let namespaces: Vec<_> = run(&mut queue)
            .into_iter()
            .map(|one| one.namespace.clone())
            .collect();
        assert_eq!(namespaces.len(), LIMITS.in_namespace + 1);
        assert_eq!(namespaces.iter().filter(|one| &***one == "slow").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_failed_object_after_backoff() {
        let mut queue = queue();
        let web = object("shop", "web");
        queue.push(&web);
        let mut waits = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            queue.ready().await;
            waits.push(start.elapsed().as_secs());
            assert_eq!(queue.pop().as_ref(), Some(&web));
            queue.failed(&web);
            // Events do not shorten the back-off.
            queue.touch(&web);
            assert_eq!(queue.pop(), None);
        }
        assert_eq!(waits, [0, 1, 2]);
        queue.reset(&web);
        assert_eq!(queue.pop().as_ref(), Some(&web));
        assert_eq!(queue.next_deadline(), None);
    }

    #[tokio::test]
    async fn forgets_failures_after_success() {
        let mut queue = queue();
        let web = object("shop", "web");
        queue.push(&web);
        for _ in 0..3 {
            assert_eq!(queue.pop().as_ref(), Some(&web));
            queue.failed(&web);
            assert_eq!(queue.delayed.len(), 1);
            // A new push does not wait for the back-off.
            queue.push(&web);
        }
        queue.ready().await;
        assert_eq!(queue.pop().as_ref(), Some(&web));
        queue.done(&web);
        assert_eq!(queue.pop(), None);
        assert_empty(&queue);
    }

    #[tokio::test]
    async fn push_while_running_overrides_a_failure() {
        let mut queue = queue();
        let web = object("shop", "web");
        queue.push(&web);
        assert_eq!(queue.pop().as_ref(), Some(&web));
        queue.push(&web);
        queue.failed(&web);
        assert_eq!(queue.pop().as_ref(), Some(&web));
        queue.done(&web);
        assert_empty(&queue);
    }
}
