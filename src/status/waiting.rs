//! Which objects wait until data planes have reached the revisions that contain their last changes. A change costs what it
//! touches. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use crate::ir::ObjectRef;

/// The progress of a data plane that is expected to confirm a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The latest revision.
    pub wanted: u64,
    /// The last revision that all ready replicas have reached.
    pub reached: Option<u64>,
}

/// The objects that wait. They wait for the Gateways with a progress alone.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The objects of each Gateway in the order of the revisions that they wait for.
    pub(super) by_gateway: BTreeMap<ObjectRef, BTreeSet<(u64, ObjectRef)>>,
    /// The revision of each Gateway that an object waits for. Clones share unchanged entries.
    pub(super) by_object: OrdMap<ObjectRef, Arc<BTreeMap<ObjectRef, u64>>>,
}

impl Waiting {
    /// Makes an object wait for the latest revisions of its Gateways, instead of those that contained an earlier change.
    pub(super) fn add(
        &mut self,
        object: &ObjectRef,
        gateways: impl IntoIterator<Item = ObjectRef>,
        progress: impl Fn(&ObjectRef) -> Option<Awaited>,
    ) {
        self.forget(object);
        let gateways = gateways.into_iter();
        let revisions = gateways.filter_map(|gateway| {
            let wanted = progress(&gateway)?.wanted;
            Some((gateway, wanted))
        });
        let revisions: BTreeMap<_, _> = revisions.collect();
        for (gateway, revision) in &revisions {
            let waiting = self.by_gateway.entry(gateway.clone()).or_default();
            waiting.insert((*revision, object.clone()));
        }
        if !revisions.is_empty() {
            self.by_object.insert(object.clone(), Arc::new(revisions));
        }
    }

    fn forget(&mut self, object: &ObjectRef) {
        // `imbl` copies the shared nodes on the path to a key, even if nothing changes.
        let Some(revisions) = self.by_object.get(object).cloned() else {
            return;
        };
        self.by_object.remove(object);
        for (gateway, revision) in &*revisions {
            if let Some(waiting) = self.by_gateway.get_mut(gateway) {
                waiting.remove(&(*revision, object.clone()));
            }
        }
    }

    /// Releases the objects whose revisions are reached, and those of Gateways without progress.
    pub(super) fn release(&mut self, progress: impl Fn(&ObjectRef) -> Option<Awaited>) {
        let by_object = &mut self.by_object;
        self.by_gateway.retain(|gateway, waiting| {
            let progress = progress(gateway);
            let is_over = |(revision, _): &(u64, ObjectRef)| {
                progress.is_none_or(|it| it.reached >= Some(*revision))
            };
            while waiting.first().is_some_and(is_over)
                && let Some((_, object)) = waiting.pop_first()
            {
                stop_waiting(by_object, &object, gateway);
            }
            !waiting.is_empty()
        });
    }
}

/// Releases an object if it waits for no other Gateway.
fn stop_waiting(
    by_object: &mut OrdMap<ObjectRef, Arc<BTreeMap<ObjectRef, u64>>>,
    object: &ObjectRef,
    gateway: &ObjectRef,
) {
    let Some(revisions) = by_object.get_mut(object) else {
        return;
    };
    Arc::make_mut(revisions).remove(gateway);
    if revisions.is_empty() {
        by_object.remove(object);
    }
}
