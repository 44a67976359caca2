//! The objects of a cluster, built from watch events. Owns which version of an object is served when a new one is
//! invalid, and that nothing is published before every kind has been listed. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::additions::adds;
use super::deferral::{is_policy, may_wait};
use super::deferrals::{Deferrals, Wait};
use super::message::{Change, Message};
use super::moments::{Moment, Moments};
use super::observer::Observer;
use super::parsed::{Content, ParsedObject};
use super::pods;
use super::pods::{PodScopes, ScopeChange, needs_pods};
use super::problems::Problems;
use super::referenced::{Referenced, WantedChanges};
use super::references::{References, is_held_by_reference};
use super::retained::Retained;
use super::scope::{Scope, is_watched_where_needed};
use super::timing::Timing;
use crate::api::{Key, Kind, Object, ObjectRef, UnknownFields, waits};
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// All objects of all kinds.
pub(super) struct Store {
    /// By number. The scope of a watch that has ended is not in it.
    scopes: BTreeMap<usize, Scope>,
    /// The next number. None is used twice: changes of a watch that has ended may still be in the queue.
    next_scope: usize,
    snapshot: Snapshot,
    problems: Problems,
    /// Incomplete lists by scope. Only the keys of unreferenced objects are kept.
    staged: BTreeMap<usize, BTreeMap<Key, Option<ParsedObject>>>,
    /// Scopes that have never been listed. Nothing is published before they are.
    awaited: BTreeSet<usize>,
    /// Scopes that were added later. Publication waits for a short time until they are listed, and for the moment that what
    /// they list waits for.
    expected: BTreeMap<usize, Option<Moment>>,
    pods: PodScopes,
    referenced: Referenced,
    /// Changed objects that wait for what they refer to, and new or changed ones that wait for policies. Nothing else waits for
    /// it.
    deferred: Deferrals,
    /// Deleted policies, and versions whose targets a later version lacks, that are still in force.
    retained: Retained,
    moments: Moments,
    /// The first load is published after this moment; `None` until every scope is listed.
    first: Option<Moment>,
    /// Whether a load was published, so that changes may be deferred.
    is_published: bool,
    /// Objects that were fetched since the last call of [`Store::take_fetched`].
    fetched: Vec<ObjectRef>,
    observer: Option<Arc<dyn Observer>>,
}

impl Store {
    /// Creates a store that waits for the lists of every scope, including scopes that it adds for the objects of
    /// `kinds`.
    pub(super) fn new(
        scopes: Vec<Scope>,
        kinds: &[&'static Kind],
        referenced: Referenced,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self {
            snapshot: Snapshot::default(),
            problems: Problems::default(),
            staged: BTreeMap::new(),
            awaited: (0..scopes.len()).collect(),
            expected: BTreeMap::new(),
            pods: PodScopes {
                kind: kinds.iter().copied().find(|it| is_watched_where_needed(it)),
                numbers: BTreeMap::new(),
                is_outdated: false,
            },
            referenced,
            deferred: Deferrals::new(Timing::default().fetch_wait),
            retained: Retained::new(Timing::default()),
            moments: Moments::default(),
            first: None,
            is_published: false,
            fetched: Vec::new(),
            next_scope: scopes.len(),
            scopes: scopes.into_iter().enumerate().collect(),
            observer,
        }
    }

    /// Applies a message. Returns whether the served state has changed.
    pub(super) fn apply_message(&mut self, message: Message) -> bool {
        match message {
            Message::Watched(scope, change) => self.apply(scope, change),
            Message::Fetched(name, parsed) => {
                self.drop_unreferenced();
                self.fetched.push(name.clone());
                let version = parsed.as_ref().and_then(|parsed| parsed.version);
                if !self.referenced.accept_fetched(&name, version) {
                    return false;
                }
                match parsed {
                    Some(parsed) => self.insert(name, parsed),
                    None => self.forget_held(&name),
                }
            }
            Message::Existed(scope, at, keys) => {
                self.moments.existed(scope, at, &keys);
                false
            }
            Message::Newest(scope, moment, newest) => {
                self.moments.answered(scope, moment, newest);
                false
            }
            Message::Refused(scope, requester, why) => {
                let is_awaited = self.moments.refused(scope, requester, why);
                // The problems of what waits say so.
                is_awaited && !(self.deferred.is_empty() && self.retained.is_empty())
            }
            Message::ListLate(scope) => {
                self.expected.remove(&scope);
                false
            }
        }
    }

    fn apply(&mut self, number: usize, change: Change) -> bool {
        let Some(kind) = self.scopes.get(&number).map(|scope| scope.kind) else {
            return false;
        };
        if is_held_by_reference(kind) {
            self.drop_unreferenced();
        }
        let is_listed = matches!(change, Change::Complete | Change::Absent);
        let is_changed = match change {
            Change::Served { is_experimental } => {
                if let Some(observer) = &self.observer {
                    observer.served(kind, is_experimental);
                }
                false
            }
            Change::Listing => {
                self.staged.insert(number, BTreeMap::new());
                false
            }
            Change::Listed(parsed) => {
                self.stage(kind, number, parsed);
                false
            }
            Change::Complete => {
                let staged = self.staged.remove(&number).unwrap_or_default();
                let listed = staged.values().flatten();
                let versions = listed
                    .clone()
                    .filter_map(|it| Some((it.key.clone(), it.version?)));
                self.moments.lists(number, versions);
                self.moments
                    .listed(number, listed.filter_map(|it| it.version).max());
                let is_changed = self.replace(number, staged);
                if let Some(after) = self.expected.get_mut(&number) {
                    *after = Some(self.moments.next());
                }
                is_changed | self.await_no_more(number)
            }
            Change::Applied(parsed) => {
                self.moments.applied(number, &parsed.key, parsed.version);
                self.put(kind, parsed)
            }
            Change::Deleted(key, version) => {
                self.moments.deleted(number, &key, version);
                self.remove(kind, &key, version)
            }
            Change::Absent => {
                self.staged.remove(&number);
                self.moments.absent(number);
                // An API server that starts may not know the kind yet. Whoever deletes a CRD deletes its objects first, each
                // with an event.
                let is_changed = !is_policy(kind) && self.replace(number, BTreeMap::new());
                is_changed | self.await_no_more(number)
            }
        };
        if is_listed && is_held_by_reference(kind) {
            self.referenced.recheck();
        }
        // Also if the change waits: the list of Pods does not.
        self.pods.is_outdated |= needs_pods(kind);
        is_changed
    }

    /// Records that a scope is listed. Returns whether that was awaited.
    fn await_no_more(&mut self, number: usize) -> bool {
        let was_awaited = self.awaited.remove(&number);
        // Also of scopes that were added before the first load: what they have listed waits for this moment, too.
        if was_awaited && self.awaited.is_empty() {
            self.first = Some(self.moments.next());
        }
        was_awaited
    }

    /// Returns the moment that something waits for: [`Message::Newest`] has to answer for it.
    pub(super) fn take_moment(&mut self) -> Option<Moment> {
        self.moments.take()
    }

    /// Adds a scope for the Pods of each namespace that needs them, and removes the others. The first publication waits
    /// until every added scope is listed.
    pub(super) fn follow_pods(&mut self, is_published: bool) -> Vec<ScopeChange> {
        let Some(kind) = self.pods.kind.filter(|_| self.pods.is_outdated) else {
            return Vec::new();
        };
        self.pods.is_outdated = false;
        let needed = pods::namespaces(&self.snapshot);
        let mut changes = Vec::new();
        let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.pods.numbers)
                .into_iter()
                .partition(|(namespace, _)| needed.contains(namespace));
        self.pods.numbers = kept;
        for number in removed.into_values() {
            self.replace(number, BTreeMap::new());
            self.scopes.remove(&number);
            self.await_no_more(number);
            self.expected.remove(&number);
            self.staged.remove(&number);
            changes.push(ScopeChange::Removed(number));
        }
        for namespace in needed {
            if self.pods.numbers.contains_key(&namespace) {
                continue;
            }
            let (number, scope) = (self.next_scope, pods::scope(kind, &namespace));
            self.next_scope += 1;
            self.scopes.insert(number, scope.clone());
            if is_published {
                self.expected.insert(number, None);
            } else {
                self.awaited.insert(number);
            }
            self.pods.numbers.insert(namespace, number);
            changes.push(ScopeChange::Added(number, scope));
        }
        changes
    }

    /// Returns for which referenced objects the need of a fetch has changed since the last call: their watch will not
    /// report them again.
    pub(super) fn take_wanted(&mut self) -> WantedChanges {
        self.drop_unreferenced();
        let awaited: Vec<_> = self.awaited().map(|scope| scope.kind.kind).collect();
        let is_listed = |name: &ObjectRef| awaited.iter().all(|kind| **kind != *name.kind);
        self.referenced.take_wanted(is_listed)
    }

    /// Overrides how long changes wait.
    pub(super) fn timed(self, timing: Timing) -> Self {
        Self {
            deferred: Deferrals::new(timing.fetch_wait),
            retained: Retained::new(timing),
            ..self
        }
    }

    /// Makes new objects wait for these watches.
    pub(super) fn after(self, moments: Moments) -> Self {
        Self { moments, ..self }
    }

    /// Returns the objects that were fetched since the last call.
    pub(super) fn take_fetched(&mut self) -> Vec<ObjectRef> {
        std::mem::take(&mut self.fetched)
    }

    /// Stores the objects in less memory, before the first load is published.
    pub(super) fn pack(&mut self) {
        self.snapshot.pack();
    }

    /// Records that a load was published.
    pub(super) fn published(&mut self) {
        self.is_published = true;
    }

    /// Drops unreferenced objects.
    fn drop_unreferenced(&mut self) {
        for name in self.referenced.drop_unreferenced() {
            self.forget_held(&name);
        }
    }

    fn forget_held(&mut self, name: &ObjectRef) -> bool {
        Kind::of(name).is_some_and(|kind| self.forget(kind, name))
    }

    fn stage(&mut self, kind: &Kind, number: usize, parsed: ParsedObject) {
        let key = parsed.key.clone();
        let is_held = !is_held_by_reference(kind)
            || self
                .referenced
                .has(&kind.object_ref(&key.namespace, &key.name));
        let staged = self.staged.entry(number).or_default();
        staged.insert(key, is_held.then_some(parsed));
    }

    fn replace(&mut self, number: usize, listed: BTreeMap<Key, Option<ParsedObject>>) -> bool {
        let Some(scope) = self.scopes.get(&number).cloned() else {
            return false;
        };
        let kind = scope.kind;
        let mut changed = false;
        for key in self.known(kind) {
            // Parts of a kind are listed separately. A list says nothing about objects outside of its scope.
            if scope.has(&key) && !listed.contains_key(&key) {
                let name = kind.object_ref(&key.namespace, &key.name);
                // The object may be newer than the list: a fetch decides.
                if !self.referenced.record_unlisted(&name) {
                    changed |= self.forget(kind, &name);
                }
            }
        }
        for parsed in listed.into_values().flatten() {
            changed |= self.put(kind, parsed);
        }
        changed
    }

    /// Returns the keys of all objects of a kind, including those that never had a valid version.
    fn known(&self, kind: &Kind) -> BTreeSet<Key> {
        let readable = self.snapshot.keys(kind).into_iter();
        readable.chain(self.problems.keys(kind)).collect()
    }

    /// Stores an object, unless it is held by reference and not referenced.
    fn put(&mut self, kind: &Kind, parsed: ParsedObject) -> bool {
        let name = kind.object_ref(&parsed.key.namespace, &parsed.key.name);
        if is_held_by_reference(kind) && !self.referenced.accept_watched(&name, parsed.version) {
            return false;
        }
        self.insert(name, parsed)
    }

    /// Stores an object. An invalid one leaves its previous version in service.
    fn insert(&mut self, name: ObjectRef, parsed: ParsedObject) -> bool {
        if let (Some(observer), Some(observed)) = (&self.observer, parsed.observed) {
            observer.observed(&name, observed);
        }
        let known = self.versions(&name);
        let is_same = |last: &Object| parsed.content.is_same_as(last);
        if !self.problems.has(&name) && known.last.as_ref().is_some_and(is_same) {
            return false;
        }
        let published = self.protecting(known.published());
        let is_changed = self.serve(&name, parsed.content, parsed.generation, known);
        is_changed | self.retain_targets(name, published)
    }

    /// Returns the versions of an object that are known.
    fn versions(&self, name: &ObjectRef) -> Versions {
        let held = self.deferred.published(name);
        Versions {
            last: self.snapshot.object(name),
            next: self.deferred.next_version(name).cloned(),
            held: held.map(|(published, after)| (published.cloned(), after)),
        }
    }

    /// Stores what an object has become. Returns whether that is to be published at once.
    fn serve(
        &mut self,
        name: &ObjectRef,
        content: Content,
        generation: i64,
        known: Versions,
    ) -> bool {
        match content.parse() {
            Ok(object) => {
                let problem = Problem::of_unknown_fields(name, &object, &UnknownFields::default());
                let is_other_problem = self.problems.set(name, problem);
                self.replace_version(name, object, known) | is_other_problem
            }
            Err(unparsed) => {
                let (is_changed, problem) = unparsed.serve(name, generation, &mut self.snapshot);
                self.end_wait_of_stand_in(name);
                self.problems.set(name, Some(problem)) | is_changed
            }
        }
    }

    /// Stores a valid version of an object. Returns whether it is to be published at once.
    fn replace_version(&mut self, name: &ObjectRef, object: Object, known: Versions) -> bool {
        let kind = object.kind();
        let may_open = self.first.is_some() && waits(kind);
        if may_open && matches!(object, Object::EndpointSlice(_) | Object::Pod(_)) {
            return self.replace_endpoints(name, &object, &known);
        }
        if let Some(is_changed) = self.hold_edit(name, &object, &known) {
            return is_changed;
        }
        if !kind.uses_contents && !may_open {
            self.deferred.remove(name);
            return self.snapshot.insert(object);
        }
        let own = kind.uses_contents.then(|| References::of(&object));
        if !self.snapshot.insert(object.clone()) {
            return false;
        }
        // A new Gateway brings the references of its ListenerSets.
        let is_new = known.last.is_none();
        let of_sets = self.referenced.of_children(name).filter(|_| is_new);
        let references: Vec<_> = own.iter().chain(of_sets).cloned().collect();
        let after = match known.held {
            _ if may_open && adds(known.last.as_ref(), &object) => self.moments.next(),
            Some((_, after)) if may_open => after,
            _ => 0,
        };
        let mut wait = Wait::new(references, after);
        if may_open && known.published().is_none() {
            wait = wait.with_ends(&object);
        }
        let moments = &self.moments;
        let lacks_references = self.is_published
            && !wait.has_references(&self.referenced, |name| {
                self.deferred.is_behind(name, moments)
            })
            && may_wait(known.published(), &object);
        let in_force = |objects: &[ObjectRef], last| self.retained.in_force(objects, last);
        let is_deferred = lacks_references || !moments.is_past(after) || !wait.has_ends(in_force);
        if is_deferred && let Some(published) = self.protecting(known.published()) {
            self.hold_version(name, &object, (published, None), wait);
            return false;
        }
        let kept = match is_deferred {
            true => self.deferred.hold(name.clone(), known.last, wait),
            false => None,
        };
        if let Some(own) = own {
            self.referenced.replace(name, own, kept);
        }
        if !is_deferred {
            self.deferred.remove(name);
            self.referenced.forget_earlier(name);
        }
        !is_deferred
    }

    /// Removes an object, unless a newer version is stored.
    fn remove(&mut self, kind: &Kind, key: &Key, version: Option<u64>) -> bool {
        let name = kind.object_ref(&key.namespace, &key.name);
        if is_held_by_reference(kind) && !self.referenced.accept_watched(&name, version) {
            return false;
        }
        self.forget(kind, &name)
    }
}

/// The versions of an object that are known.
struct Versions {
    last: Option<Object>,
    /// The version that is published before the last one.
    next: Option<Object>,
    /// The published version and the moment that the last one waits for; `None` if it does not wait.
    held: Option<(Option<Object>, Moment)>,
}

impl Versions {
    fn published(&self) -> Option<&Object> {
        match &self.held {
            Some((published, _)) => published.as_ref(),
            None => self.last.as_ref(),
        }
    }

    /// Returns the first version that waits.
    fn waiting(&self) -> Option<&Object> {
        let last = self.last.as_ref().filter(|_| self.held.is_some());
        self.next.as_ref().or(last)
    }
}

mod complete;
mod edits;
mod endpoints;
mod removal;
#[cfg(test)]
mod tests;
