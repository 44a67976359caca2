//! Kubernetes Events about what a person may have to act on. Owns deduplication and rate limiting of
//! events. Publishing never blocks and never fails.

mod notice;
mod queue;
mod record;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

pub use self::notice::{EventReason, Notice};
use self::queue::{Change, Queue, Waiting, largest};
use self::record::{Repeat, publish};
use crate::ir::ObjectRef;
use crate::runtime::optional::or_pending;

/// Minimum interval between two events of one object, and between two warnings about those that were dropped.
const INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of remembered objects. Beyond it, the publisher forgets those of the namespace with most of which nothing
/// waits, and may publish again; if something waits of all of them, it forgets all of them.
const REMEMBERED: usize = 10_000;
/// Maximum number of remembered names of events of an object.
const MAX_NAMES: usize = 16;

/// Handle for publishing events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events {
    queue: Arc<Queue>,
    /// Wakes the publisher.
    waker: mpsc::Sender<()>,
}

/// Writes queued events to the API server.
pub struct Publisher {
    queue: Arc<Queue>,
    /// Says that something is queued. Closes with the last handle.
    woken: mpsc::Receiver<()>,
    /// Number of changes that the queue had no room for and that no warning has counted.
    dropped: u64,
    warned: Option<Instant>,
    instance: String,
    objects: HashMap<ObjectRef, OfObject>,
}

/// The events of one object.
#[derive(Default)]
struct OfObject {
    /// Time of the last event.
    last: Option<Instant>,
    topics: BTreeMap<EventReason, Topic>,
    /// Names of published events, and how often each was.
    names: BTreeMap<String, i32>,
}

/// State of one topic of an object.
#[derive(Default)]
struct Topic {
    /// What was published last.
    published: Option<(EventReason, String)>,
    /// What to publish next, and not before when.
    pending: Option<(Notice, Instant)>,
}

impl OfObject {
    fn is_waiting(&self) -> bool {
        self.topics.values().any(|topic| topic.pending.is_some())
    }

    /// Returns when to publish what is pending: `now` or before, if there was no event for the interval.
    fn due(&self, now: Instant) -> Option<Instant> {
        let pending = self.topics.values().filter_map(|it| it.pending.as_ref());
        let first = pending.map(|(_, from)| *from).min()?;
        let free = self.last.map_or(now, |last| last + INTERVAL);
        Some(first.max(free))
    }

    fn raise(&mut self, notice: Notice, now: Instant) {
        let topic = self.topics.entry(notice.reason.topic()).or_default();
        let is_known = (topic.published.as_ref()).is_some_and(|(reason, message)| {
            (reason, message) == (&notice.reason, &notice.message)
        });
        // What has ended before anybody heard of it.
        let was_problem = (topic.published.as_ref()).is_some_and(|(it, _)| it.is_problem());
        let pending = topic.pending.take();
        let ends_unheard = !notice.reason.is_problem()
            && !was_problem
            && pending
                .as_ref()
                .is_some_and(|(it, _)| it.reason.is_problem());
        if !is_known && !ends_unheard {
            let from = pending.map_or(now + notice.reason.patience(), |(_, from)| from);
            topic.pending = Some((notice, from));
        }
    }

    /// Takes what is due, the first reasons first.
    fn take_due(&mut self, now: Instant) -> Vec<Notice> {
        let mut due = Vec::new();
        for topic in self.topics.values_mut() {
            if topic.pending.as_ref().is_some_and(|(_, from)| *from <= now) {
                due.extend(topic.pending.take().map(|(notice, _)| notice));
            }
        }
        due.sort_by_key(|notice| notice.reason);
        due
    }

    /// What an event that the API server has already means.
    fn repeat(&self, notices: &[Notice], name: &str) -> Repeat {
        let was_published = |notice: &Notice| {
            let topic = self.topics.get(&notice.reason.topic());
            topic.is_some_and(|topic| topic.published.is_some())
        };
        let is_found_again = |it: &Notice| it.reason.is_state() && !was_published(it);
        match notices.iter().all(is_found_again) {
            true => Repeat::Known,
            false => Repeat::Counted(self.names.get(name).map_or(2, |count| count + 1)),
        }
    }

    fn published(&mut self, notices: Vec<Notice>, name: String, now: Instant) {
        self.last = Some(now);
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        *self.names.entry(name).or_default() += 1;
        for notice in notices {
            let topic = self.topics.entry(notice.reason.topic()).or_default();
            topic.published = Some((notice.reason, notice.message));
        }
    }
}

/// Creates the handle and the publisher. `instance` is the `reportingInstance` of the events.
pub fn channel(instance: &str) -> (Events, Publisher) {
    let (waker, woken) = mpsc::channel(1);
    let queue = Arc::<Queue>::default();
    let publisher = Publisher {
        queue: queue.clone(),
        woken,
        dropped: 0,
        warned: None,
        instance: instance.to_owned(),
        objects: HashMap::new(),
    };
    (Events { queue, waker }, publisher)
}

impl Events {
    /// Queues a notice. The publisher drops it if the last event of the same object and topic has the
    /// same message, and publishes those of one object together, at most once a minute.
    pub fn notify(&self, notice: Notice) {
        self.notify_all(vec![notice]);
    }

    /// Queues what has happened at once, so that an object has one event about it.
    pub fn notify_all(&self, mut notices: Vec<Notice>) {
        // The publisher remembers what it has published, and an event says no more.
        for notice in &mut notices {
            notice.message = record::truncate(&notice.message);
        }
        self.send(Change::Raise(notices));
    }

    /// Clears a notice whose cause has ended: the next one is published even with the same message.
    pub fn clear(&self, object: &ObjectRef, reason: EventReason) {
        self.send(Change::Clear(object.clone(), reason));
    }

    fn send(&self, change: Change) {
        self.queue.push(change);
        // Fails if the publisher is woken already, or has ended.
        let _ = self.waker.try_send(());
    }
}

impl Publisher {
    /// Publishes events until every [`Events`] handle is dropped.
    pub async fn run(&mut self, client: &Client) {
        loop {
            let now = Instant::now();
            let due = self.objects.values().filter_map(|it| it.due(now)).min();
            tokio::select! {
                woken = self.woken.recv() => match woken {
                    Some(()) => self.take_queued(now),
                    None => return,
                },
                () = or_pending(due.map(sleep_until)) => self.publish_due(client).await,
            }
        }
    }

    fn take_queued(&mut self, now: Instant) {
        let Waiting { changes, dropped } = self.queue.take();
        for change in changes {
            self.take(change, now);
        }
        self.dropped += dropped;
        let is_recent = |warned: Instant| now.duration_since(warned) < INTERVAL;
        if self.dropped > 0 && !self.warned.is_some_and(is_recent) {
            tracing::warn!(
                "{} changes have no Event, since too many came at a time; conditions have them",
                self.dropped
            );
            self.dropped = 0;
            self.warned = Some(now);
        }
    }

    fn take(&mut self, change: Change, now: Instant) {
        match change {
            Change::Raise(notices) => {
                for notice in notices {
                    let is_new = !self.objects.contains_key(&notice.object);
                    if self.objects.len() >= REMEMBERED && is_new {
                        self.forget();
                    }
                    let object = self.objects.entry(notice.object.clone()).or_default();
                    object.raise(notice, now);
                }
            }
            Change::Clear(object, reason) => {
                if let Some(object) = self.objects.get_mut(&object) {
                    object.topics.remove(&reason.topic());
                }
            }
        }
    }

    /// Forgets objects of the namespace with most.
    fn forget(&mut self) {
        let namespaces = self.objects.keys().map(|it| &*it.namespace);
        let largest = largest(namespaces).unwrap_or_default().to_owned();
        let before = self.objects.len();
        self.objects
            .retain(|object, it| it.is_waiting() || *object.namespace != *largest);
        if self.objects.len() == before {
            self.objects
                .retain(|object, _| *object.namespace != *largest);
        }
    }

    async fn publish_due(&mut self, client: &Client) {
        let now = Instant::now();
        for (object, state) in &mut self.objects {
            if state.due(now).is_none_or(|due| due > now) {
                continue;
            }
            let notices = state.take_due(now);
            let name = record::name(&notices);
            let repeat = state.repeat(&notices, &name);
            if let Err(error) = publish(client, &self.instance, &notices, &name, repeat).await {
                tracing::warn!("{object}: cannot write an event: {error}");
            }
            state.published(notices, name, now);
        }
    }
}

#[cfg(test)]
mod tests;
