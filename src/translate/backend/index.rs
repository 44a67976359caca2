//! An index from backends to their EndpointSlices, updated from one snapshot to the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::EndpointSlice;
use crate::ir::ObjectRef;
use crate::ir::packed::pack;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::source::Source;

/// EndpointSlices by owner, each list in order of names.
#[derive(Default)]
pub(super) struct SlicesByOwner(BTreeMap<ObjectRef, Vec<Arc<EndpointSlice>>>);

impl SlicesByOwner {
    /// Returns the EndpointSlices of an object.
    pub(super) fn of(&self, owner: &ObjectRef) -> &[Arc<EndpointSlice>] {
        self.0.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Stores them in as few nodes as possible.
    pub(super) fn pack(&mut self) {
        pack(&mut self.0);
    }

    /// Updates what has changed. `owners` names the objects of a slice. Announces the objects whose EndpointSlices
    /// changed.
    pub(super) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        owners: impl Fn(&EndpointSlice) -> Vec<ObjectRef>,
    ) {
        for name in changes.of::<EndpointSlice>() {
            if let Some(previous) = changes.previous::<EndpointSlice>(&name) {
                for owner in owners(&previous) {
                    self.remove(&owner, &name.name);
                    changes.announce(Source::EndpointsOf(owner));
                }
            }
            if let Some(slice) = input.find::<EndpointSlice>(&name) {
                for owner in owners(slice) {
                    self.insert(owner.clone(), slice);
                    changes.announce(Source::EndpointsOf(owner));
                }
            }
        }
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
            slices.reserve_exact(1);
            slices.insert(at, slice.clone());
        }
    }
}
