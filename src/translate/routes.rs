//! Incremental translation of routes: which of them must be translated or attached again, and the totals of all routes.
//! A new kind of route is a file with a [`RouteObject`] and a line in [`KINDS`].

mod defaults;
mod entry;
mod referrers;
mod senders;
mod shadows;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use rustc_hash::FxHashSet;

use crate::api::Key;
use crate::api::grpc_route::GrpcRoute;
use crate::api::http_route::HttpRoute;
use crate::ir::ObjectRef;
use crate::snapshot::{Change, Snapshot};
use crate::status::RouteStatuses;

use self::entry::{Entry, Work};
use self::referrers::Referrers;
use self::shadows::Shadows;
pub(super) use self::totals::{OnListener, Totals};
use super::Input;
use super::attachment::Parents;
use super::backend::Backends;
use super::listener::Protocol;
use super::patterns::PatternBudgets;
use super::route::{Built, RouteObject};

/// The kinds of routes that are served.
const KINDS: &[Kind] = &[Kind::of::<HttpRoute>(), Kind::of::<GrpcRoute>()];

/// A kind of route.
struct Kind {
    name: &'static str,
    protocols: &'static [Protocol],
    follower: fn() -> Box<dyn Follow + Send>,
}

impl Kind {
    const fn of<R: RouteObject>() -> Self {
        Self {
            name: R::KIND,
            protocols: R::PROTOCOLS,
            follower: || Box::new(RoutesOf::<R>::new()),
        }
    }
}

/// Returns the kinds of routes that can attach to a listener of this protocol.
pub(super) fn kinds_of(protocol: Protocol) -> Vec<&'static str> {
    let kinds = KINDS.iter();
    kinds
        .filter(|kind| kind.protocols.contains(&protocol))
        .map(|kind| kind.name)
        .collect()
}

/// All routes with their translations.
pub(super) struct Routes {
    kinds: Vec<Box<dyn Follow + Send>>,
    pub(super) totals: Totals,
    shadows: Shadows,
    budgets: PatternBudgets,
    /// Includes routes of unserved kinds.
    pub(super) statuses: RouteStatuses,
}

/// Keeps the routes of one kind current.
trait Follow {
    /// Applies a change. Returns whether any route was processed.
    fn follow(&mut self, change: &RouteChange<'_>, outputs: &mut Outputs<'_>) -> bool;

    /// Attaches a route again, if it is of this kind, after a decision about it in the same change.
    fn attach_again(
        &mut self,
        change: &RouteChange<'_>,
        route: &ObjectRef,
        outputs: &mut Outputs<'_>,
    );

    /// Returns the translation of an object.
    fn entry(&self, object: &ObjectRef) -> Option<&Entry>;

    /// Returns the routes that refer to an object.
    fn referrers_of<'a>(
        &'a self,
        object: &'a ObjectRef,
    ) -> Box<dyn Iterator<Item = &'a Entry> + 'a>;

    /// Returns the objects with a status that routes refer to as backends.
    fn backends_with_status(&self) -> Box<dyn Iterator<Item = &ObjectRef> + '_>;
}

/// The routes of one kind.
struct RoutesOf<R> {
    entries: BTreeMap<Key, Entry>,
    /// Routes by the objects that their references name.
    referrers: Referrers,
    /// Routes by backends with a status.
    with_status: Referrers,
    kind: PhantomData<fn() -> R>,
}

/// A change that affects routes.
pub(super) struct RouteChange<'a> {
    pub(super) input: &'a Input<'a>,
    /// The snapshot before `input.snapshot`.
    pub(super) before: &'a Snapshot,
    pub(super) around: &'a Changed,
    pub(super) parents: &'a Parents,
}

/// What follows from all routes together.
struct Outputs<'a> {
    backends: &'a mut Backends,
    totals: &'a mut Totals,
    shadows: &'a mut Shadows,
    budgets: &'a mut PatternBudgets,
}

/// Changes other than those of routes.
pub(super) struct Changed {
    /// Objects that references may name.
    pub(super) objects: FxHashSet<ObjectRef>,
    /// Namespaces with changed ReferenceGrants.
    pub(super) granting: BTreeSet<String>,
    /// Namespaces with changed labels.
    pub(super) labelled: BTreeSet<String>,
    /// Whether Gateways or their listeners changed.
    pub(super) parents: bool,
}

impl Routes {
    /// Returns an empty set of routes.
    pub(super) fn new() -> Self {
        Self {
            kinds: KINDS.iter().map(|kind| (kind.follower)()).collect(),
            totals: Totals::default(),
            shadows: Shadows::default(),
            budgets: PatternBudgets::default(),
            statuses: RouteStatuses::new(),
        }
    }

    /// Applies a change. Returns whether any route was processed.
    pub(super) fn follow(&mut self, change: &RouteChange<'_>, backends: &mut Backends) -> bool {
        if change.around.parents {
            // Indices of listeners change, so every route is attached again.
            self.totals = Totals::of(change.parents.listeners.len());
            self.shadows = Shadows::of(change.parents);
        }
        let mut outputs = Outputs {
            backends,
            totals: &mut self.totals,
            shadows: &mut self.shadows,
            budgets: &mut self.budgets,
        };
        let mut any = false;
        for kind in &mut self.kinds {
            any |= kind.follow(change, &mut outputs);
        }
        outputs.shadows.end_first_attachment();
        for route in outputs.budgets.decide() {
            for kind in &mut self.kinds {
                kind.attach_again(change, &route, &mut outputs);
            }
        }
        self.replace_statuses();
        any
    }

    fn replace_statuses(&mut self) {
        for name in self.shadows.take_changed() {
            let entry = self.entry(&name);
            let status = entry.and_then(|entry| self.shadows.status(entry));
            match status {
                // Keep an equal status, so that later comparisons see the same pointer.
                Some(status) if self.statuses.get(&name) == Some(&status) => {}
                Some(status) => drop(self.statuses.insert(name, status)),
                None => drop(self.statuses.remove(&name)),
            }
        }
    }

    /// Replaces the conditions of routes of unserved kinds.
    pub(super) fn replace_unserved(&mut self, before: &RouteStatuses, now: &RouteStatuses) {
        if before != now {
            for (name, _) in before {
                self.statuses.remove(name);
            }
            let now = now.iter();
            self.statuses
                .extend(now.map(|(name, status)| (name.clone(), status.clone())));
        }
    }
}

impl<R: RouteObject> Follow for RoutesOf<R> {
    fn follow(&mut self, change: &RouteChange<'_>, outputs: &mut Outputs<'_>) -> bool {
        let routes = R::all(change.input.snapshot);
        let changes = routes.changes_since(R::all(change.before));
        let around = self.affected(change.around, &changes);
        let any = !changes.is_empty() || !around.is_empty();
        let around = around.into_iter().map(|(key, work)| {
            let object = routes.get(&key.namespace, &key.name);
            (key, object, work)
        });
        let changed = changes
            .iter()
            .map(|change| (change.key.clone(), change.after, Work::Translate));
        for (key, object, work) in around.chain(changed) {
            // Indices of listeners of another list of parents mean nothing.
            let is_attached = !change.around.parents;
            self.replace(
                change,
                key,
                object.map(|it| &**it),
                work,
                is_attached,
                outputs,
            );
        }
        any
    }

    fn attach_again(
        &mut self,
        change: &RouteChange<'_>,
        route: &ObjectRef,
        outputs: &mut Outputs<'_>,
    ) {
        let key = Key::new(&route.namespace, &route.name);
        let object = R::all(change.input.snapshot).get(&key.namespace, &key.name);
        if let Some(object) = object.filter(|_| self.entry(route).is_some()) {
            self.replace(change, key, Some(object), Work::Attach, true, outputs);
        }
    }

    fn entry(&self, object: &ObjectRef) -> Option<&Entry> {
        let is_kind = &*object.group == R::GROUP && &*object.kind == R::KIND;
        let key = is_kind.then(|| Key::new(&object.namespace, &object.name));
        self.entries.get(&key?)
    }

    fn referrers_of<'a>(
        &'a self,
        object: &'a ObjectRef,
    ) -> Box<dyn Iterator<Item = &'a Entry> + 'a> {
        let keys = self.referrers.of(object);
        Box::new(keys.filter_map(|key| self.entries.get(key)))
    }

    fn backends_with_status(&self) -> Box<dyn Iterator<Item = &ObjectRef> + '_> {
        Box::new(self.with_status.objects())
    }
}

impl<R: RouteObject> RoutesOf<R> {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            referrers: Referrers::default(),
            with_status: Referrers::default(),
            kind: PhantomData,
        }
    }

    /// Replaces a route. `is_attached` says whether the former version is among `outputs`.
    fn replace(
        &mut self,
        change: &RouteChange<'_>,
        key: Key,
        object: Option<&R>,
        work: Work,
        is_attached: bool,
        outputs: &mut Outputs<'_>,
    ) {
        let Outputs {
            backends,
            totals,
            shadows,
            budgets,
        } = outputs;
        let former = self.entries.remove(&key);
        let known = former.as_ref();
        let entry = object.map(|it| Entry::new(change, it, known, work, backends, budgets));
        let attached = known.filter(|_| is_attached);
        totals.replace(attached, entry.as_ref());
        shadows.replace(attached, entry.as_ref());
        shadows.mark_changed(known.or(entry.as_ref()));
        if let Some(either) = entry.as_ref().or(known) {
            let demand = entry.as_ref().and_then(|entry| entry.demand.clone());
            budgets.replace(&either.name, demand);
        }
        self.index(&key, known, entry.as_ref());
        // Claim before release: a backend that both versions use must not be dropped in between.
        if let Some(entry) = &entry {
            let claims = entry.claims();
            claims.for_each(|id| backends.claim(id, entry.is_served));
        }
        if let Some(former) = &former {
            let claims = former.claims();
            claims.for_each(|id| backends.release(id, former.is_served));
        }
        self.entries.extend(entry.map(|entry| (key, entry)));
    }

    fn index(&mut self, key: &Key, former: Option<&Entry>, entry: Option<&Entry>) {
        fn built(entry: Option<&Entry>, objects: fn(&Built) -> &[ObjectRef]) -> &[ObjectRef] {
            entry.and_then(Entry::any_variant).map_or(&[], objects)
        }
        let references = |entry| built(entry, |it| &it.references);
        let with_status = |entry| built(entry, |it| &it.with_status);
        let of = (references(former), references(entry));
        self.referrers.replace(key, of.0, of.1);
        let of = (with_status(former), with_status(entry));
        self.with_status.replace(key, of.0, of.1);
    }

    /// Returns the routes that are affected by other changes, except those that changed themselves.
    fn affected(&self, around: &Changed, changes: &[Change<'_, R>]) -> Vec<(Key, Work)> {
        if around.is_nothing() {
            return Vec::new();
        }
        let mut affected = BTreeMap::new();
        if around.parents || !around.labelled.is_empty() || !around.granting.is_empty() {
            for (key, entry) in &self.entries {
                if entry.refers_into(key, &around.granting) {
                    affected.insert(key, Work::Translate);
                } else if around.parents || around.labelled.contains(&key.namespace) {
                    affected.insert(key, Work::Attach);
                }
            }
        }
        let referrers = around.objects.iter().flat_map(|it| self.referrers.of(it));
        affected.extend(referrers.map(|key| (key, Work::Translate)));
        for change in changes {
            affected.remove(change.key);
        }
        let affected = affected.into_iter();
        affected.map(|(key, work)| (key.clone(), work)).collect()
    }
}

impl Changed {
    fn is_nothing(&self) -> bool {
        let Self {
            objects,
            granting,
            labelled,
            parents,
        } = self;
        objects.is_empty() && granting.is_empty() && labelled.is_empty() && !parents
    }
}
