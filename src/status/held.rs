//! Which statuses are held back until data planes confirm a change: each one until they serve the revision that contains its
//! own change. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::condition::Condition;
use super::report::StatusReport;
use super::status_map::names_changed_since;
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;

/// The objects whose statuses must not be written yet. Each waits for revisions of its Gateways.
pub type Held = OrdMap<ObjectRef, Arc<BTreeMap<ObjectRef, u64>>>;

/// The progress of a data plane that is expected to confirm a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The latest revision.
    pub wanted: u64,
    /// The last revision that all ready replicas have reached.
    pub reached: Option<u64>,
}

/// The statuses that are held back, from one report to the next. A change costs what it touches.
#[derive(Debug, Default)]
pub struct HeldStatuses {
    seen: Seen,
    held: Held,
    /// The same by Gateway, in the order of revisions.
    waiting: BTreeMap<ObjectRef, BTreeSet<(u64, ObjectRef)>>,
}

/// The last report, and the Gateway of each ListenerSet.
#[derive(Debug, Default)]
struct Seen {
    report: StatusReport,
    parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
}

impl HeldStatuses {
    /// Returns which statuses of a report are held back. `changed` are the objects that have changed since the last report,
    /// and `awaited` the Gateways whose data planes are expected to confirm a change.
    pub fn follow(
        &mut self,
        report: &StatusReport,
        parents: &OrdMap<ObjectRef, Arc<ObjectRef>>,
        changed: &[ObjectRef],
        awaited: &BTreeMap<ObjectRef, Awaited>,
    ) -> Held {
        let now = Seen {
            report: report.clone(),
            parents: parents.clone(),
        };
        let previous = std::mem::replace(&mut self.seen, now);
        let mut others = report.objects_unlike(&previous.report);
        // The status of a route does not say that its ListenerSet has another Gateway.
        for set in names_changed_since(parents, &previous.parents) {
            let waiting = self.waiting.get(&previous.gateway(&set));
            let objects = waiting.into_iter().flatten();
            others.extend(objects.map(|(_, object)| object.clone()));
        }
        others.retain(|it| self.seen.confirmed_part(it) != previous.confirmed_part(it));
        for object in changed.iter().chain(&others) {
            self.hold(object, awaited);
        }
        self.release(awaited);
        self.held.clone()
    }

    /// Makes an object wait for the latest revisions of its Gateways, instead of those that contained an earlier change.
    fn hold(&mut self, object: &ObjectRef, awaited: &BTreeMap<ObjectRef, Awaited>) {
        if let Some(former) = self.held.get(object).cloned() {
            for (gateway, revision) in &*former {
                if let Some(waiting) = self.waiting.get_mut(gateway) {
                    waiting.remove(&(*revision, object.clone()));
                }
            }
            self.held.remove(object);
        }
        let gateways = self.seen.gateways(object).into_iter();
        let revisions = gateways.filter_map(|gateway| {
            let wanted = awaited.get(&gateway)?.wanted;
            Some((gateway, wanted))
        });
        let revisions: BTreeMap<_, _> = revisions.collect();
        for (gateway, revision) in &revisions {
            let waiting = self.waiting.entry(gateway.clone()).or_default();
            waiting.insert((*revision, object.clone()));
        }
        if !revisions.is_empty() {
            self.held.insert(object.clone(), Arc::new(revisions));
        }
    }

    /// Releases the objects whose revisions are reached, and those of Gateways that are no longer awaited.
    fn release(&mut self, awaited: &BTreeMap<ObjectRef, Awaited>) {
        let held = &mut self.held;
        self.waiting.retain(|gateway, waiting| {
            let awaited = awaited.get(gateway);
            let is_over = |(revision, _): &(u64, ObjectRef)| {
                awaited.is_none_or(|it| it.reached >= Some(*revision))
            };
            while waiting.first().is_some_and(is_over)
                && let Some((_, object)) = waiting.pop_first()
            {
                stop_waiting(held, &object, gateway);
            }
            !waiting.is_empty()
        });
    }
}

/// Releases an object if it waits for no other Gateway.
fn stop_waiting(held: &mut Held, object: &ObjectRef, gateway: &ObjectRef) {
    let Some(revisions) = held.get_mut(object) else {
        return;
    };
    Arc::make_mut(revisions).remove(gateway);
    if revisions.is_empty() {
        held.remove(object);
    }
}

impl Seen {
    /// Returns what data planes confirm of a status: the conditions of each place, and for which Gateways. The rest are
    /// counts, such as that of attached routes, and addresses.
    fn confirmed_part(
        &self,
        object: &ObjectRef,
    ) -> (BTreeSet<ObjectRef>, Vec<(String, &[Condition])>) {
        (self.gateways(object), self.report.conditions_of(object))
    }

    /// Returns the Gateways whose data planes confirm the status of an object.
    fn gateways(&self, object: &ObjectRef) -> BTreeSet<ObjectRef> {
        let report = &self.report;
        if let Some(parents) = report.routes.get(object) {
            let references = parents.iter().map(|it| &it.parent_ref);
            return self.behind(object, references).collect();
        }
        if let Some(ancestors) = report.policies.get(object) {
            let references = ancestors.iter().map(|it| &it.ancestor_ref);
            return self.behind(object, references).collect();
        }
        if let Some(backend) = report.release_backends.get(object) {
            return backend.gateways.iter().cloned().collect();
        }
        [self.gateway(object)].into()
    }

    /// Returns the Gateways behind references of an object to Gateways and ListenerSets.
    fn behind<'a>(
        &self,
        object: &ObjectRef,
        references: impl Iterator<Item = &'a ParentRef>,
    ) -> impl Iterator<Item = ObjectRef> {
        references.map(move |to| gateway_behind(&self.parents, object, to))
    }

    /// Returns the Gateway of a ListenerSet; any other name itself.
    fn gateway(&self, name: &ObjectRef) -> ObjectRef {
        gateway_of(&self.parents, name)
    }
}

/// Returns the Gateway behind a reference of an object to a Gateway or ListenerSet. `parents` are the Gateways of ListenerSets.
pub(super) fn gateway_behind(
    parents: &OrdMap<ObjectRef, Arc<ObjectRef>>,
    object: &ObjectRef,
    to: &ParentRef,
) -> ObjectRef {
    let namespace = to.namespace.as_deref().unwrap_or(&object.namespace);
    let name = ObjectRef::new(&to.group, &to.kind, namespace, &to.name);
    gateway_of(parents, &name)
}

fn gateway_of(parents: &OrdMap<ObjectRef, Arc<ObjectRef>>, name: &ObjectRef) -> ObjectRef {
    let gateway = parents.get(name);
    gateway.map_or(name, |gateway| gateway).clone()
}

#[cfg(test)]
mod tests;
