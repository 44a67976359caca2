//! Changes that wait for the publisher: a bounded number, of which those of one namespace take no places that others need.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::notice::{EventReason, Notice};
use crate::ir::ObjectRef;

/// Capacity. Beyond it, a change is dropped, since conditions and the log have the same facts: the last one of the namespace
/// with most.
pub(super) const QUEUE: usize = 256;

/// A change of what there is to say.
#[derive(Debug)]
pub(super) enum Change {
    /// Something has happened.
    Raise(Vec<Notice>),
    /// The cause of a notice has ended.
    Clear(ObjectRef, EventReason),
}

impl Change {
    /// Returns the namespace of the first object; an empty one if there is none.
    fn namespace(&self) -> &str {
        match self {
            Self::Raise(notices) => notices.first().map_or("", |it| &*it.object.namespace),
            Self::Clear(object, _) => &object.namespace,
        }
    }
}

/// The queue. Shared by the handles and the publisher.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiting>);

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// In the order of their arrival.
    pub(super) changes: VecDeque<Change>,
    /// Number of those that were dropped.
    pub(super) dropped: u64,
}

impl Queue {
    /// Adds a change. Drops one if there are too many.
    pub(super) fn push(&self, change: Change) {
        let mut waiting = self.lock();
        waiting.changes.push_back(change);
        if waiting.changes.len() > QUEUE {
            waiting.drop_one();
        }
    }

    /// Takes all that waits.
    pub(super) fn take(&self) -> Waiting {
        mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Drops the last change of the namespace with most.
    #[cold]
    fn drop_one(&mut self) {
        let namespaces = self.changes.iter().map(Change::namespace);
        let Some(largest) = largest(namespaces) else {
            return;
        };
        let last = (self.changes.iter()).rposition(|it| it.namespace() == largest);
        if let Some(last) = last {
            self.changes.remove(last);
            self.dropped += 1;
        }
    }
}

/// Returns the namespace that is there most often.
pub(super) fn largest<'a>(namespaces: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts = BTreeMap::<_, usize>::new();
    for namespace in namespaces {
        *counts.entry(namespace).or_default() += 1;
    }
    let largest = counts.into_iter().max_by_key(|(_, count)| *count);
    largest.map(|(namespace, _)| namespace)
}
