//! Incremental translation of routes: which of them must be translated or attached again, and the totals of all routes.
//! A new kind of route is a file with a [`RouteObject`] and a line in [`KINDS`].

mod defaults;
mod kind_conflicts;
mod place;
mod policies;
pub(in crate::translate) mod requests;
mod shadows;
mod totals;
mod translated_route;
mod versions;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::api::grpc_route::GrpcRoute;
use crate::api::http_route::HttpRoute;
use crate::api::l4_route::{TcpRoute, TlsRoute, UdpRoute};
use crate::ir::packed::pack;
use crate::ir::{Hostname, ObjectRef};
use crate::status::Unattached;

pub(in crate::translate) use self::kind_conflicts::{Claim, KindConflicts, hosts};
use self::shadows::Shadows;
pub(in crate::translate) use self::totals::Totals;
use self::translated_route::{Decisions, Last, RouteReads, TranslatedRoute, Work};
use super::route::RouteObject;
use crate::translate::backend::Backends;
use crate::translate::changes::Changes;
use crate::translate::gateway::attachment::Parents;
use crate::translate::input::Input;
use crate::translate::memo::Readers;
use crate::translate::patterns::PatternBudgets;
use crate::translate::policy::inherited::InheritedPolicies;
use crate::translate::protocol::Protocol;
use crate::translate::report::{Notes, Report, put};
use crate::translate::source::Source;

/// The kinds of routes that are served.
const KINDS: &[Kind] = &[
    Kind::of::<HttpRoute>(),
    Kind::of::<GrpcRoute>(),
    Kind::of::<TlsRoute>(),
    Kind::of::<TcpRoute>(),
    Kind::of::<UdpRoute>(),
];

/// A kind of route.
struct Kind {
    name: &'static str,
    protocols: &'static [Protocol],
    step: fn() -> Box<dyn Step + Send>,
}

impl Kind {
    const fn of<R: RouteObject>() -> Self {
        Self {
            name: R::KIND,
            protocols: R::PROTOCOLS,
            step: || Box::new(RoutesOf::<R>::new()),
        }
    }
}

/// Returns the kinds of routes that can attach to a listener of this protocol.
pub(in crate::translate) fn kinds_of(protocol: Protocol) -> Vec<&'static str> {
    let kinds = KINDS.iter();
    kinds
        .filter(|kind| kind.protocols.contains(&protocol))
        .map(|kind| kind.name)
        .collect()
}

/// All routes with their translations.
pub(in crate::translate) struct Routes {
    kinds: Vec<Box<dyn Step + Send>>,
    pub(in crate::translate) totals: Totals,
    shadows: Shadows,
    budgets: PatternBudgets,
    conflicts: KindConflicts,
}

/// The step of one kind of route.
trait Step {
    /// Translates and attaches again what has changed.
    fn step(&mut self, outer: &mut Outer<'_, '_>);

    /// Attaches a route again, if it is of this kind, after a decision about it.
    fn attach_again(&mut self, route: &ObjectRef, outer: &mut Outer<'_, '_>);

    /// Returns the translation of an object.
    fn translated(&self, object: &ObjectRef) -> Option<&TranslatedRoute>;

    /// Returns the routes that refer to an object as a backend.
    fn referrers_of(&self, object: &ObjectRef) -> Box<dyn Iterator<Item = &TranslatedRoute> + '_>;

    /// Returns what is reported of a route of this kind that is not attached to a parent. `has_notes` is whether notes on it
    /// tell why, where this controller manages no parent.
    fn unattached(
        &self,
        input: &Input<'_>,
        object: &ObjectRef,
        has_notes: bool,
    ) -> Option<Unattached>;
}

/// The routes of one kind.
struct RoutesOf<R> {
    /// In boxes, since the nodes of the map are half empty.
    entries: BTreeMap<ObjectRef, Box<TranslatedRoute>>,
    last: Last,
    /// What the routes are attached from.
    attachments: Readers<ObjectRef>,
    /// What they are translated from.
    translations: Readers<ObjectRef>,
    kind: PhantomData<fn() -> R>,
}

/// What the routes of a kind are computed from, and what follows from all routes together.
struct Outer<'a, 'i> {
    input: &'a Input<'i>,
    parents: &'a Parents,
    policies: &'a InheritedPolicies,
    backends: &'a mut Backends,
    changes: &'a mut Changes,
    notes: &'a mut Notes,
    totals: &'a mut Totals,
    shadows: &'a mut Shadows,
    budgets: &'a mut PatternBudgets,
    conflicts: &'a mut KindConflicts,
}

impl Routes {
    /// Returns an empty set of routes.
    pub(in crate::translate) fn new() -> Self {
        Self {
            kinds: KINDS.iter().map(|kind| (kind.step)()).collect(),
            totals: Totals::default(),
            shadows: Shadows::default(),
            budgets: PatternBudgets::default(),
            conflicts: KindConflicts::default(),
        }
    }

    /// Translates and attaches again what has changed. Announces other attachments, and other requests to backends.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        parents: &Parents,
        policies: &InheritedPolicies,
        backends: &mut Backends,
        changes: &mut Changes,
        report: &mut Report,
    ) {
        policies::on_listeners(&mut self.totals, policies, parents, changes);
        let mut outer = Outer {
            input,
            parents,
            policies,
            backends,
            changes,
            notes: &mut report.notes,
            totals: &mut self.totals,
            shadows: &mut self.shadows,
            budgets: &mut self.budgets,
            conflicts: &mut self.conflicts,
        };
        for kind in &mut self.kinds {
            kind.step(&mut outer);
        }
        outer.shadows.end_first_attachment();
        // Budgets first: a route that exceeds one conflicts with no other.
        for decide in [
            |outer: &mut Outer<'_, '_>| outer.budgets.decide(),
            |outer: &mut Outer<'_, '_>| outer.conflicts.decide(),
        ] {
            for route in decide(&mut outer) {
                for kind in &mut self.kinds {
                    kind.attach_again(&route, &mut outer);
                }
            }
        }
        for name in self.shadows.take_changed() {
            let entry = self.translated(&name);
            let status = entry.and_then(|entry| self.shadows.status(entry, parents));
            put(&mut report.statuses.routes, &name, status);
            let mut kinds = self.kinds.iter();
            let has_notes = report.notes.are_on(&name);
            let unattached = kinds.find_map(|kind| kind.unattached(input, &name, has_notes));
            let unattached = unattached.map(Arc::new);
            put(&mut report.statuses.unattached, &name, unattached);
        }
    }
}

impl<R: RouteObject> Step for RoutesOf<R> {
    fn step(&mut self, outer: &mut Outer<'_, '_>) {
        let mut work: BTreeMap<ObjectRef, Work> = BTreeMap::new();
        let touched = outer.policies.touched().iter();
        let touched = touched.filter(|it| &*it.kind == R::KIND && &*it.group == R::GROUP);
        work.extend(touched.map(|name| (name.clone(), Work::Attach)));
        // In order of work: a route that must be translated again is also attached again.
        for (readers, kind) in [
            (&self.attachments, Work::Attach),
            (&self.translations, Work::Translate),
        ] {
            let outdated = readers.outdated(outer.changes).into_iter();
            work.extend(outdated.map(|name| (name, kind)));
        }
        let changed = outer.changes.of::<R>().into_iter();
        work.extend(changed.map(|name| (name, Work::Translate)));
        let is_first = self.entries.is_empty();
        for (name, work) in work {
            self.replace(&name, work, outer);
        }
        if is_first && !self.entries.is_empty() {
            pack(&mut self.entries);
            outer.conflicts.pack();
        }
    }

    fn attach_again(&mut self, route: &ObjectRef, outer: &mut Outer<'_, '_>) {
        if self.entries.contains_key(route) {
            self.replace(route, Work::Attach, outer);
        }
    }

    fn translated(&self, object: &ObjectRef) -> Option<&TranslatedRoute> {
        self.entries.get(object).map(Box::as_ref)
    }

    fn referrers_of(&self, object: &ObjectRef) -> Box<dyn Iterator<Item = &TranslatedRoute> + '_> {
        let names = self.translations.of(&Source::Backend(object.clone()));
        Box::new(names.filter_map(|name| self.translated(name)))
    }

    fn unattached(
        &self,
        input: &Input<'_>,
        object: &ObjectRef,
        has_notes: bool,
    ) -> Option<Unattached> {
        let entry = self.translated(object)?;
        let places = entry.reached.iter().enumerate();
        let parents: Box<[usize]> = places
            .filter(|(_, listeners)| listeners.is_empty())
            .map(|(place, _)| place)
            .collect();
        if parents.is_empty() && !(has_notes && entry.attached.is_empty()) {
            return None;
        }
        let spec = input.find::<R>(object)?.spec();
        let hostnames = match &spec.hostnames[..] {
            [] => [Hostname::Any].into(),
            names => names.iter().map(|name| Hostname::new(name)).collect(),
        };
        Some(Unattached {
            kind: R::ROUTE_KIND,
            hostnames,
            parents,
        })
    }
}

impl<R: RouteObject> RoutesOf<R> {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            last: Last::default(),
            attachments: Readers::default(),
            translations: Readers::default(),
            kind: PhantomData,
        }
    }

    /// Replaces a route by its present version.
    fn replace(&mut self, name: &ObjectRef, work: Work, outer: &mut Outer<'_, '_>) {
        let Outer {
            input,
            parents,
            policies,
            backends,
            changes,
            notes,
            totals,
            shadows,
            budgets,
            conflicts,
        } = outer;
        let removed = self.entries.remove(name);
        let previous = removed.as_deref();
        let object = input.find::<R>(name);
        let decisions = Decisions {
            budgets,
            conflicts,
            policies,
        };
        let (computed, reads) = input.reading(|| {
            let object: &R = object?;
            let computed =
                TranslatedRoute::new(input, parents, object, previous, work, backends, &decisions);
            Some(computed)
        });
        let (mut entry, follows) = computed.unzip();
        let follows = follows.unwrap_or_default();
        if let Some(entry) = &mut entry {
            let is_new = previous.is_none_or(|previous| previous.status != entry.status);
            self.last.share(entry, is_new);
        }
        let entry = entry.map(Box::new);
        let now = entry.as_deref();
        totals.replace(previous, now);
        shadows.replace(previous, now);
        shadows.mark_changed(name);
        budgets.replace(name, follows.demand);
        conflicts.replace(name, follows.claim);
        notes.replace(name, follows.notes);
        versions::announce_changes(name, previous, now, changes);
        // Claim before release: a backend that both versions use must not be dropped in between.
        if let Some(entry) = now {
            let claims = entry.claims();
            claims.for_each(|id| backends.claim(id, entry.is_served));
        }
        if let Some(previous) = previous {
            let claims = previous.claims();
            claims.for_each(|id| backends.release(id, previous.is_served));
        }
        let known = removed.map_or_else(RouteReads::default, |previous| previous.reads);
        let reads = (reads, follows.translation_reads);
        let is_translated = now.is_some_and(TranslatedRoute::is_translated);
        let reads = self.note_reads(name, work, is_translated, known, reads);
        if let Some(mut entry) = entry {
            entry.reads = reads;
            self.entries.insert(name.clone(), entry);
        }
    }

    /// Notes what a route was attached and translated from, in this order, unless its translation was reused.
    fn note_reads(
        &mut self,
        name: &ObjectRef,
        work: Work,
        is_translated: bool,
        mut known: RouteReads,
        (attachment, translation): (Vec<Source>, Vec<Source>),
    ) -> RouteReads {
        let of_attachment = &mut known.of_attachment;
        self.attachments.replace(name, of_attachment, attachment);
        let of_translation = &mut known.of_translation;
        let readers = &mut self.translations;
        if work == Work::Translate || !is_translated {
            readers.replace(name, of_translation, translation);
        } else if !translation.is_empty() {
            readers.extend(name, of_translation, translation);
        }
        known
    }
}
