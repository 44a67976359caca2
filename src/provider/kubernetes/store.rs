//! The objects of a cluster, as the watches of its kinds tell of them. Owns which version of an object is served when a
//! new one cannot be read, and that nothing is published before every kind is known. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::observer::{Observer, is_observed};
use super::reading::Reading;
use super::referenced::{Referenced, can_name, is_held_by_name};
use super::scope::Scope;
use crate::api::{Key, Kind, ObjectRef};
use crate::provider::{Load, Problem};
use crate::snapshot::Snapshot;

/// What happens in a cluster.
#[derive(Debug)]
pub(super) enum Message {
    /// In the scope of this number.
    Watched(usize, Change),
    /// An object was asked for: here it is, or it is not there.
    Fetched(ObjectRef, Option<Reading>),
    /// An object was asked for, and the answer takes too long to be waited for.
    Late(ObjectRef),
}

/// What a watch tells of its scope.
#[derive(Debug)]
pub(super) enum Change {
    /// The scope is listed from the beginning.
    Listing,
    /// One object of the list.
    Listed(Reading),
    /// The list is complete: what it did not have is gone.
    Complete,
    /// An object is new or has changed.
    Applied(Reading),
    /// An object is gone, as of a version.
    Deleted(Key, Option<u64>),
    /// The cluster does not know the kind.
    Absent,
}

/// All objects of all kinds.
pub(super) struct Store {
    scopes: Vec<Scope>,
    snapshot: Snapshot,
    problems: BTreeMap<ObjectRef, Problem>,
    /// Lists that are not complete yet, by scope. Of what nothing names, only the key.
    staged: BTreeMap<usize, BTreeMap<Key, Option<Reading>>>,
    /// Scopes that have never been listed.
    awaited: BTreeSet<usize>,
    referenced: Referenced,
    /// Whether what names others has changed.
    is_outdated: bool,
    observer: Option<Arc<dyn Observer>>,
}

impl Store {
    /// A store that waits for every scope.
    pub(super) fn new(
        scopes: Vec<Scope>,
        referenced: Referenced,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self {
            snapshot: Snapshot::default(),
            problems: BTreeMap::new(),
            staged: BTreeMap::new(),
            awaited: (0..scopes.len()).collect(),
            referenced,
            is_outdated: false,
            scopes,
            observer,
        }
    }

    /// Takes note of what happened, and tells whether there is something new to serve.
    pub(super) fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Watched(scope, change) => self.apply(scope, change),
            Message::Fetched(name, reading) => {
                self.refer();
                let version = reading.as_ref().and_then(|reading| reading.version);
                let is_news = self.referenced.is_fetched(&name, version);
                is_news && reading.is_some_and(|reading| self.insert(name, reading))
            }
            Message::Late(name) => {
                self.referenced.is_late(&name);
                false
            }
        }
    }

    fn apply(&mut self, number: usize, change: Change) -> bool {
        let kind = self.scopes[number].kind;
        if is_held_by_name(kind) {
            self.refer();
        }
        let is_news = match change {
            Change::Listing => {
                self.staged.insert(number, BTreeMap::new());
                false
            }
            Change::Listed(reading) => {
                self.stage(number, reading);
                false
            }
            Change::Complete => {
                let staged = self.staged.remove(&number).unwrap_or_default();
                self.replace(number, staged) | self.awaited.remove(&number)
            }
            Change::Applied(reading) => self.put(kind, reading),
            Change::Deleted(key, version) => self.remove(kind, &key, version),
            Change::Absent => {
                self.staged.remove(&number);
                self.replace(number, BTreeMap::new()) | self.awaited.remove(&number)
            }
        };
        self.is_outdated |= is_news && can_name(kind);
        is_news
    }

    /// Scopes that have never been listed.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Scope> {
        self.awaited.iter().map(|number| &self.scopes[*number])
    }

    /// Whether everything has been listed that can name Secrets and ConfigMaps.
    pub(super) fn knows_referrers(&self) -> bool {
        self.awaited().all(|scope| !can_name(scope.kind))
    }

    /// The objects that are named and have to be fetched, since their watch will not tell of them.
    pub(super) fn wanted(&mut self) -> BTreeSet<ObjectRef> {
        self.refer();
        let is_listed =
            |name: &&ObjectRef| self.awaited().all(|scope| scope.kind.kind != &*name.kind);
        self.referenced
            .wanted()
            .filter(is_listed)
            .cloned()
            .collect()
    }

    /// Whether any of them is worth waiting for.
    pub(super) fn is_waiting(&self) -> bool {
        self.referenced.is_waiting()
    }

    /// Everything, once every scope has been listed.
    pub(super) fn load(&self) -> Option<Load> {
        self.awaited.is_empty().then(|| Load {
            position: None,
            snapshot: Arc::new(self.snapshot.clone()),
            problems: self.problems.values().cloned().collect(),
        })
    }

    /// Finds out anew what is named, if that may have changed, and lets go of what no longer is.
    fn refer(&mut self) {
        if !std::mem::take(&mut self.is_outdated) {
            return;
        }
        self.referenced.update(&self.snapshot);
        for kind in Kind::all().iter().filter(|kind| is_held_by_name(kind)) {
            for key in self.known(kind) {
                let name = kind.object_ref(&key.namespace, &key.name);
                if !self.referenced.has(&name) {
                    self.forget(kind, &name);
                }
            }
        }
    }

    fn stage(&mut self, number: usize, reading: Reading) {
        let kind = self.scopes[number].kind;
        let key = reading.key.clone();
        let is_held = !is_held_by_name(kind)
            || self
                .referenced
                .has(&kind.object_ref(&key.namespace, &key.name));
        let staged = self.staged.entry(number).or_default();
        staged.insert(key, is_held.then_some(reading));
    }

    fn replace(&mut self, number: usize, listed: BTreeMap<Key, Option<Reading>>) -> bool {
        let kind = self.scopes[number].kind;
        let mut changed = false;
        for key in self.known(kind) {
            if self.scopes[number].has(&key) && !listed.contains_key(&key) {
                let name = kind.object_ref(&key.namespace, &key.name);
                self.referenced.is_unlisted(&name);
                changed |= self.forget(kind, &name);
            }
        }
        for reading in listed.into_values().flatten() {
            changed |= self.put(kind, reading);
        }
        changed
    }

    /// The objects of a kind. What never could be read is in no snapshot.
    fn known(&self, kind: &Kind) -> BTreeSet<Key> {
        let unreadable = self
            .problems
            .keys()
            .filter(|object| (&*object.group, &*object.kind) == (kind.group, kind.kind))
            .map(|object| Key::new(&object.namespace, &object.name));
        let readable = self.snapshot.keys(kind);
        readable.into_iter().chain(unreadable).collect()
    }

    /// Puts an object in its place, unless nothing names it.
    fn put(&mut self, kind: &Kind, reading: Reading) -> bool {
        let name = kind.object_ref(&reading.key.namespace, &reading.key.name);
        if is_held_by_name(kind) && !self.referenced.is_watched(&name, reading.version) {
            return false;
        }
        self.insert(name, reading)
    }

    /// Puts an object in its place. One that cannot be read leaves the version before it there.
    fn insert(&mut self, name: ObjectRef, reading: Reading) -> bool {
        if let (Some(observer), Some(observed)) = (&self.observer, reading.observed) {
            observer.seen(&name, observed);
        }
        match reading.object {
            Ok(object) => {
                let was_unreadable = self.problems.remove(&name).is_some();
                self.snapshot.insert(object) | was_unreadable
            }
            Err(error) => {
                let message =
                    format!("cannot be read: {error}; its previous version, if any, stays");
                let problem = Problem::of_object(name.clone(), reading.generation, message);
                let former = self.problems.insert(name, problem.clone());
                former.as_ref() != Some(&problem)
            }
        }
    }

    /// Takes an object out, unless a newer one is there.
    fn remove(&mut self, kind: &Kind, key: &Key, version: Option<u64>) -> bool {
        let name = kind.object_ref(&key.namespace, &key.name);
        if is_held_by_name(kind) && !self.referenced.is_watched(&name, version) {
            return false;
        }
        self.forget(kind, &name)
    }

    fn forget(&mut self, kind: &Kind, name: &ObjectRef) -> bool {
        if let Some(observer) = self.observer.as_ref().filter(|_| is_observed(kind)) {
            observer.gone(name);
        }
        let was_unreadable = self.problems.remove(name).is_some();
        self.snapshot.remove(name) | was_unreadable
    }
}

#[cfg(test)]
mod tests;
