//! An index from backends to their EndpointSlices, updated from one snapshot to the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::EndpointSlice;
use crate::ir::ObjectRef;
use crate::snapshot::Objects;

use super::registry::owners;

/// EndpointSlices by owner, each list in order of names.
#[derive(Default)]
pub(super) struct SlicesByOwner(BTreeMap<ObjectRef, Vec<Arc<EndpointSlice>>>);

impl SlicesByOwner {
    /// Returns the EndpointSlices of an object.
    pub(super) fn of(&self, owner: &ObjectRef) -> &[Arc<EndpointSlice>] {
        self.0.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Applies the changes from `before` to `now`. Returns the objects whose EndpointSlices changed, some of them
    /// repeatedly.
    pub(super) fn follow(
        &mut self,
        before: &Objects<EndpointSlice>,
        now: &Objects<EndpointSlice>,
    ) -> Vec<ObjectRef> {
        let mut changed = Vec::new();
        for change in now.changes_since(before) {
            for owner in change.before.into_iter().flat_map(|slice| owners(slice)) {
                self.remove(&owner, &change.key.name);
                changed.push(owner);
            }
            if let Some(slice) = change.after {
                for owner in owners(slice) {
                    self.insert(owner.clone(), slice);
                    changed.push(owner);
                }
            }
        }
        changed
    }

    fn remove(&mut self, owner: &ObjectRef, name: &str) {
        if let Some(slices) = self.0.get_mut(owner) {
            slices.retain(|slice| slice.metadata.name != name);
            if slices.is_empty() {
                self.0.remove(owner);
            }
        }
    }

    fn insert(&mut self, owner: ObjectRef, slice: &Arc<EndpointSlice>) {
        let name = slice.metadata.name.as_str();
        let slices = self.0.entry(owner).or_default();
        let at = slices.partition_point(|known| known.metadata.name.as_str() < name);
        if slices
            .get(at)
            .is_none_or(|known| known.metadata.name != name)
        {
            slices.insert(at, slice.clone());
        }
    }
}
