//! Which statuses are held back until data planes confirm a change: each one until they serve the revision that contains its
//! own change. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::condition::Condition;
use super::report::StatusReport;
use super::status_map::names_changed_since;
use super::waiting::{Awaited, Waiting};
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;

/// The objects whose statuses must not be written yet. Each waits for revisions of its Gateways.
pub type Held = OrdMap<ObjectRef, Arc<BTreeMap<ObjectRef, u64>>>;

/// The statuses that are held back, from one report to the next. A change costs what it touches.
#[derive(Debug, Default)]
pub struct HeldStatuses {
    seen: Seen,
    waiting: Waiting,
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
            let waiting = self.waiting.by_gateway.get(&previous.gateway(&set));
            let objects = waiting.into_iter().flatten();
            others.extend(objects.map(|(_, object)| object.clone()));
        }
        others.retain(|it| self.seen.confirmed_part(it) != previous.confirmed_part(it));
        let progress = |gateway: &ObjectRef| awaited.get(gateway).copied();
        for object in changed.iter().chain(&others) {
            let gateways = self.seen.gateways(object);
            self.waiting.add(object, gateways, progress);
        }
        self.waiting.release(progress);
        self.waiting.by_object.clone()
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
    gateway_of(parents, &to.object_ref(&object.namespace))
}

fn gateway_of(parents: &OrdMap<ObjectRef, Arc<ObjectRef>>, name: &ObjectRef) -> ObjectRef {
    let gateway = parents.get(name);
    gateway.map_or(name, |gateway| gateway).clone()
}

#[cfg(test)]
mod tests;
