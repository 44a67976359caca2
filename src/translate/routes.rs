//! Incremental translation of routes: which of them must be translated or attached again, and the totals of all routes.
//! A new kind of route is a file with a [`RouteObject`] and a line in [`KINDS`].

mod defaults;
mod referrers;
mod senders;
mod shadows;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Key;
use crate::api::grpc_route::GrpcRoute;
use crate::api::http_route::HttpRoute;
use crate::ir::{AttachedRoute, BackendId, Hostname, ObjectRef};
use crate::snapshot::{Change, Snapshot};
use crate::status::{Note, ParentStatus, RouteStatuses};

use self::referrers::Referrers;
use self::shadows::Shadows;
pub(super) use self::totals::{OnListener, Totals};
use super::attachment::{self, Candidate, ListenerIndex, Parents};
use super::backend::Backends;
use super::backend_tls::Consumer;
use super::listener::Protocol;
use super::route::{Built, RouteObject};
use super::{Input, priority};

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
    /// Includes routes of unserved kinds.
    pub(super) statuses: RouteStatuses,
}

/// Keeps the routes of one kind current.
trait Follow {
    /// Applies a change. Returns whether any route was processed.
    fn follow(
        &mut self,
        change: &RouteChange<'_>,
        backends: &mut Backends,
        totals: &mut Totals,
        shadows: &mut Shadows,
    ) -> bool;

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

/// The translations of one route by consumer: one for all consumers, unless something in it depends on the consumer.
#[derive(Default)]
struct Variants(Vec<(Option<Consumer>, Arc<Built>)>);

/// The translation of one route object.
struct Entry {
    name: ObjectRef,
    /// The route for each consumer; empty if this controller manages none of its parents.
    built: Variants,
    /// The listeners that it is attached to, each once.
    attached: Vec<(ListenerIndex, Arc<AttachedRoute>)>,
    /// Whether it counts as attached there.
    is_usable: bool,
    /// Whether one of these listeners is served, so that the route's backends are part of the configuration.
    is_served: bool,
    /// Its conditions without those of [`Shadows`], if this controller manages one of its parents.
    status: Option<Arc<[ParentStatus]>>,
    /// The listeners of each parent in `status`.
    reached: Vec<Vec<ListenerIndex>>,
    notes: Vec<Note>,
}

/// A change that affects routes.
pub(super) struct RouteChange<'a> {
    pub(super) input: &'a Input<'a>,
    /// The snapshot before `input.snapshot`.
    pub(super) before: &'a Snapshot,
    pub(super) around: &'a Changed,
    pub(super) parents: &'a Parents,
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

/// The work that a change requires for a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Attach again: its parents changed, or whether they accept it.
    Attach,
    /// Translate again: the route changed, or an object that it refers to.
    Translate,
}

impl Routes {
    /// Returns an empty set of routes.
    pub(super) fn new() -> Self {
        Self {
            kinds: KINDS.iter().map(|kind| (kind.follower)()).collect(),
            totals: Totals::default(),
            shadows: Shadows::default(),
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
        let mut any = false;
        for kind in &mut self.kinds {
            any |= kind.follow(change, backends, &mut self.totals, &mut self.shadows);
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
    fn follow(
        &mut self,
        change: &RouteChange<'_>,
        backends: &mut Backends,
        totals: &mut Totals,
        shadows: &mut Shadows,
    ) -> bool {
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
            let former = self.entries.remove(&key);
            let known = former.as_ref();
            let entry = object.map(|object| Entry::new(change, &**object, known, work, backends));
            let attached = known.filter(|_| !change.around.parents);
            totals.replace(attached, entry.as_ref());
            shadows.replace(attached, entry.as_ref());
            shadows.mark_changed(known.or(entry.as_ref()));
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
        any
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

impl Variants {
    fn iter(&self) -> impl Iterator<Item = &Arc<Built>> {
        self.0.iter().map(|(_, built)| built)
    }

    /// Returns the route for a consumer. Reuses the known translation, unless `work` requires a new one.
    fn get(
        &mut self,
        consumer: Option<&Consumer>,
        known: &[(Option<Consumer>, Arc<Built>)],
        work: Work,
        build: impl FnOnce() -> Built,
    ) -> Arc<Built> {
        let fits = |(of, built): &&(Option<Consumer>, Arc<Built>)| {
            !built.depends_on_consumer || of.as_ref() == consumer
        };
        if let Some((_, built)) = self.0.iter().find(fits) {
            return built.clone();
        }
        let former = known.iter().find(fits).filter(|_| work == Work::Attach);
        let built = match former {
            Some((_, built)) => built.clone(),
            None => Arc::new(build().like(self.0.iter().chain(known).map(|(_, built)| &**built))),
        };
        // Most routes have one variant.
        self.0.reserve_exact(1);
        self.0.push((consumer.cloned(), built.clone()));
        built
    }
}

impl Entry {
    /// Attaches a route, and translates it unless its former translation can be reused.
    fn new<R: RouteObject>(
        change: &RouteChange<'_>,
        object: &R,
        former: Option<&Self>,
        work: Work,
        backends: &mut Backends,
    ) -> Self {
        let (input, parents) = (change.input, change.parents);
        let name = former.map_or_else(|| object.object_ref(), |former| former.name.clone());
        let hostnames = object.hostnames().iter();
        let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
        let candidate = Candidate {
            name: &name,
            hostnames: &hostnames,
        };
        let defaults = defaults::parents(object, &name, parents);
        let reached: Vec<_> = object
            .parent_refs()
            .iter()
            .chain(&defaults)
            .filter_map(|parent| Some((parent, parents.attach(input, &candidate, parent)?)))
            .collect();
        let mut entry = Self {
            notes: defaults::notes(input, object, &name, parents),
            built: Variants::default(),
            attached: Vec::new(),
            is_usable: false,
            is_served: false,
            status: None,
            reached: Vec::new(),
            name,
        };
        if reached.is_empty() {
            return entry;
        }
        entry
            .notes
            .extend(priority::note(object.meta(), &entry.name));
        let mut variants = Variants::default();
        let known = former.map(|former| &former.built);
        let mut build = |consumer: Option<&Consumer>| {
            let known = known.map_or(&[][..], |known| &known.0);
            variants.get(consumer, known, work, || {
                Built::new(input, object, &entry.name, consumer, backends)
            })
        };
        let mut status = Vec::with_capacity(reached.len());
        let mut attached = Vec::new();
        for (parent, attachment) in &reached {
            let listeners = attachment.as_ref().map_or(&[][..], Vec::as_slice);
            let indices = listeners.iter().map(|(listener, _)| *listener);
            entry.reached.push(indices.collect());
            let mut first: Option<Arc<Built>> = None;
            for (listener, hostnames) in listeners {
                let built = build(Some(&parents.listeners[*listener].consumer));
                attached.push((*listener, hostnames, built.clone()));
                // Report unresolved references of any listener in the status of the parent.
                if first.as_ref().is_none_or(|it| it.unresolved.is_none()) {
                    first = Some(built);
                }
            }
            let built = first.unwrap_or_else(|| build(None));
            status.push(ParentStatus {
                parent_ref: attachment::reported(parent),
                controller_name: input.options.controller_name.clone(),
                conditions: built.conditions(attachment, parents, object.meta().generation),
            });
        }
        for (listener, hostnames, built) in attached {
            entry.is_usable |= built.unusable.is_none();
            entry.attach(listener, hostnames, &built, former);
        }
        let mut listeners = entry.attached.iter().map(|(listener, _)| *listener);
        entry.is_served = listeners.any(|listener| parents.listeners[listener].is_served);
        let status: Arc<[_]> = status.into();
        let known = former.and_then(|former| former.status.as_ref());
        // Reuse the equal status, so that later comparisons see the same pointer.
        let same = known.filter(|known| **known == status).cloned();
        entry.status = Some(same.unwrap_or(status));
        entry.built = variants;
        entry.attached.shrink_to_fit();
        entry.reached.shrink_to_fit();
        entry
    }

    /// Attaches the route to a listener, once even if two parentRefs select it. A route without rules is not attached.
    fn attach(
        &mut self,
        listener: ListenerIndex,
        hostnames: &[Hostname],
        built: &Built,
        former: Option<&Self>,
    ) {
        let is_known = self.attached.iter().any(|(known, _)| *known == listener);
        if is_known || built.route.rules.is_empty() {
            return;
        }
        let route = AttachedRoute {
            hostnames: hostnames.to_vec(),
            route: built.route.clone(),
        };
        let known = former.into_iter().flat_map(|former| &former.attached);
        let same = known
            .map(|(_, known)| known)
            .find(|known| ***known == route);
        let route = same.cloned().unwrap_or_else(|| Arc::new(route));
        self.attached.push((listener, route));
    }

    fn claims(&self) -> impl Iterator<Item = &BackendId> {
        self.built.iter().flat_map(|built| &built.backends)
    }

    /// Returns any variant. All of them refer to the same objects.
    fn any_variant(&self) -> Option<&Built> {
        self.built.iter().next().map(|built| &**built)
    }

    /// Reports whether the route with this key refers to objects in `namespaces` other than its own.
    fn refers_into(&self, key: &Key, namespaces: &BTreeSet<String>) -> bool {
        let references = self.any_variant().map_or(&[][..], |it| &it.references);
        references.iter().any(|target| {
            *target.namespace != *key.namespace && namespaces.contains(&*target.namespace)
        })
    }
}
