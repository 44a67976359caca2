//! HTTPRoutes from one translation to the next: which of them have to be translated or attached again, and what all of
//! them add up to. Knows nothing of what a route says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::http_route::HttpRoute;
use crate::api::{Key, Resource};
use crate::ir::{AttachedRoute, BackendId, Hostname, ObjectRef};
use crate::snapshot::{Change, Snapshot};
use crate::status::{Note, ParentStatus};

use super::attachment::{self, Candidate, Parents, Place};
use super::backend::Backends;
use super::http_route::{self, Built};
use super::{Input, report};

/// The conditions of routes, as a report has them.
pub(super) type Statuses = BTreeMap<ObjectRef, Arc<[ParentStatus]>>;

/// All HTTPRoutes, with what came of each.
#[derive(Default)]
pub(super) struct Routes {
    entries: BTreeMap<Key, Entry>,
    /// Those of routes of other kinds are among them.
    pub(super) statuses: Arc<Statuses>,
}

/// What came of a route.
struct Entry {
    name: ObjectRef,
    /// The route itself; nothing while no parent is ours.
    built: Option<Arc<Built>>,
    /// The listeners that it is attached to, each once.
    attached: Vec<(Place, Arc<AttachedRoute>)>,
    /// Whether it counts as attached there.
    is_usable: bool,
    /// Whether one of them is served, so that its backends are part of the configuration.
    is_served: bool,
    /// Its conditions, if one of its parents is ours.
    status: Option<Arc<[ParentStatus]>>,
    notes: Vec<Note>,
}

/// What changed around routes since they were looked at.
pub(super) struct Touched {
    /// Objects that references may name.
    pub(super) objects: FxHashSet<Key>,
    /// Namespaces with other ReferenceGrants.
    pub(super) granting: BTreeSet<String>,
    /// Namespaces with other labels.
    pub(super) labelled: BTreeSet<String>,
    /// Whether it is what routes attach to.
    pub(super) parents: bool,
}

/// What has to be done with a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Its parents or their answer changed.
    Attach,
    /// It changed itself, or something that its references reach.
    Translate,
}

/// What all routes add up to.
pub(super) struct Sum {
    /// The routes of each listener.
    pub(super) routes: Vec<Vec<Arc<AttachedRoute>>>,
    /// How many of them are accepted.
    pub(super) counts: Vec<usize>,
    pub(super) notes: Vec<Note>,
}

impl Routes {
    /// Follows the change from `before` to the snapshot of `input`. Returns whether any route had to be looked at.
    pub(super) fn follow(
        &mut self,
        input: &Input<'_>,
        before: &Snapshot,
        touched: &Touched,
        parents: &Parents,
        backends: &mut Backends,
    ) -> bool {
        let routes = &input.snapshot.http_routes;
        let changes = routes.changes_since(&before.http_routes);
        let around = self.affected(touched, &changes);
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
            let entry =
                object.map(|object| Entry::new(input, object, known, work, parents, backends));
            self.replace_status(known, entry.as_ref());
            // What both versions use must not be let go in between.
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

    /// Takes the conditions of routes of other kinds over.
    pub(super) fn replace_unserved(&mut self, before: &Statuses, now: &Statuses) {
        if before != now {
            let statuses = Arc::make_mut(&mut self.statuses);
            statuses.retain(|name, _| !before.contains_key(name));
            statuses.extend(
                now.iter()
                    .map(|(name, status)| (name.clone(), status.clone())),
            );
        }
    }

    /// Adds all routes up, for so many listeners.
    pub(super) fn sum(&self, listeners: usize) -> Sum {
        let mut sum = Sum {
            routes: vec![Vec::new(); listeners],
            counts: vec![0; listeners],
            notes: Vec::new(),
        };
        for entry in self.entries.values() {
            for (place, route) in &entry.attached {
                sum.routes[*place].push(route.clone());
                sum.counts[*place] += usize::from(entry.is_usable);
            }
            sum.notes.extend_from_slice(&entry.notes);
        }
        sum
    }

    /// The routes that something around them affects, without those that changed themselves.
    fn affected(&self, touched: &Touched, changes: &[Change<'_, HttpRoute>]) -> Vec<(Key, Work)> {
        if touched.is_nothing() {
            return Vec::new();
        }
        let changed: FxHashSet<&Key> = changes.iter().map(|change| change.key).collect();
        let unchanged = self
            .entries
            .iter()
            .filter(|(key, _)| !changed.contains(key));
        let work = |(key, entry): (&Key, &Entry)| {
            let around = touched.parents || touched.labelled.contains(&key.namespace);
            let work = if entry.refers_to(key, touched) {
                Work::Translate
            } else {
                Some(Work::Attach).filter(|_| around)?
            };
            Some((key.clone(), work))
        };
        unchanged.filter_map(work).collect()
    }

    /// Copies the conditions of all routes only when those of one are different.
    fn replace_status(&mut self, former: Option<&Entry>, entry: Option<&Entry>) {
        let before = former.and_then(|former| former.status.as_ref());
        let now = entry.and_then(|entry| entry.status.as_ref());
        if before == now {
            return;
        }
        let statuses = Arc::make_mut(&mut self.statuses);
        match (former, entry, now) {
            (_, Some(entry), Some(now)) => drop(statuses.insert(entry.name.clone(), now.clone())),
            (Some(former), _, _) => drop(statuses.remove(&former.name)),
            _ => {}
        }
    }
}

impl Touched {
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

impl Entry {
    /// Attaches a route and translates it where its former version will not do.
    fn new(
        input: &Input<'_>,
        object: &HttpRoute,
        former: Option<&Self>,
        work: Work,
        parents: &Parents,
        backends: &mut Backends,
    ) -> Self {
        let name = former.map_or_else(|| object.object_ref(), |former| former.name.clone());
        let hostnames = object.spec.hostnames.iter();
        let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
        let candidate = Candidate {
            name: &name,
            hostnames: &hostnames,
        };
        let reached: Vec<_> = object
            .spec
            .parent_refs
            .iter()
            .filter_map(|parent| Some((parent, parents.attach(input, &candidate, parent)?)))
            .collect();
        let mut entry = Self {
            notes: report::orphan_route(input, &name, &object.spec.parent_refs),
            built: None,
            attached: Vec::new(),
            is_usable: false,
            is_served: false,
            status: None,
            name,
        };
        if reached.is_empty() {
            return entry;
        }
        let known = former.and_then(|former| former.built.as_ref());
        let built = match known {
            Some(known) if work == Work::Attach => known.clone(),
            _ => {
                let built = http_route::build(input, object, &entry.name, backends);
                Arc::new(built.like(known.map(AsRef::as_ref)))
            }
        };
        let places = reached
            .iter()
            .filter_map(|(_, attachment)| attachment.as_ref().ok());
        for (place, hostnames) in places.flatten() {
            entry.attach(*place, hostnames, &built, former);
        }
        entry.is_usable = built.unusable.is_none();
        let mut places = entry.attached.iter().map(|(place, _)| *place);
        entry.is_served = places.any(|place| parents.listeners[place].is_served);
        let status = reached.iter().map(|(parent, attachment)| ParentStatus {
            parent_ref: attachment::reported(parent),
            controller_name: input.options.controller_name.clone(),
            conditions: built.conditions(attachment, parents, object.metadata.generation),
        });
        let status: Arc<[_]> = status.collect();
        let known = former.and_then(|former| former.status.as_ref());
        // What is equal stays the same node, so that whoever compares need not look into it.
        let same = known.filter(|known| **known == status).cloned();
        entry.status = Some(same.unwrap_or(status));
        entry.built = Some(built);
        entry
    }

    /// Two parentRefs may reach one listener; it holds the route once. A route without rules is on none.
    fn attach(
        &mut self,
        place: Place,
        hostnames: &[Hostname],
        built: &Built,
        former: Option<&Self>,
    ) {
        let is_known = self.attached.iter().any(|(known, _)| *known == place);
        if is_known || built.route.rules.is_empty() {
            return;
        }
        let route = AttachedRoute::new(hostnames.to_vec(), built.route.clone());
        let known = former.into_iter().flat_map(|former| &former.attached);
        let same = known
            .map(|(_, known)| known)
            .find(|known| ***known == route);
        let route = same.cloned().unwrap_or_else(|| Arc::new(route));
        self.attached.push((place, route));
    }

    fn claims(&self) -> impl Iterator<Item = &BackendId> {
        self.built.iter().flat_map(|built| &built.backends)
    }

    /// Whether the route, of this key, has a reference whose answer may be different now.
    fn refers_to(&self, key: &Key, touched: &Touched) -> bool {
        let references = self.built.iter().flat_map(|built| &built.references);
        references.into_iter().any(|target| {
            let is_foreign = target.namespace != key.namespace;
            touched.objects.contains(target)
                || is_foreign && touched.granting.contains(&target.namespace)
        })
    }
}
