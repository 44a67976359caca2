//! Objects by the Services that they belong to, kept current from one snapshot to the next. Knows nothing of what the
//! objects say beyond that.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL};
use crate::api::{Key, Resource};
use crate::snapshot::Objects;

/// An object that belongs to Services of its namespace.
pub(in crate::translate) trait OfServices: Resource + Eq {
    /// The Services; one may come more than once.
    fn services(&self) -> impl Iterator<Item = Key>;
}

impl OfServices for EndpointSlice {
    fn services(&self) -> impl Iterator<Item = Key> {
        let service = self.metadata.labels.get(SERVICE_NAME_LABEL);
        service
            .map(|service| Key::new(&self.metadata.namespace, service))
            .into_iter()
    }
}

/// The objects of one kind by Service, each list in order of names.
pub(super) struct ByService<T>(BTreeMap<Key, Vec<Arc<T>>>);

impl<T> Default for ByService<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: OfServices> ByService<T> {
    /// The objects of a Service.
    pub(super) fn of(&self, service: &Key) -> &[Arc<T>] {
        self.0.get(service).map_or(&[], Vec::as_slice)
    }

    /// Follows the change from `before` to `now`, and returns the Services whose objects changed; one may come more than
    /// once.
    pub(super) fn follow(&mut self, before: &Objects<T>, now: &Objects<T>) -> Vec<Key> {
        let mut touched = Vec::new();
        for change in now.changes_since(before) {
            for service in change
                .before
                .into_iter()
                .flat_map(|object| object.services())
            {
                self.take_out(&service, &change.key.name);
                touched.push(service);
            }
            for (service, object) in change
                .after
                .into_iter()
                .flat_map(|object| object.services().map(move |service| (service, object)))
            {
                self.put_in(service.clone(), object);
                touched.push(service);
            }
        }
        touched
    }

    fn take_out(&mut self, service: &Key, name: &str) {
        if let Some(objects) = self.0.get_mut(service) {
            objects.retain(|object| object.meta().name != name);
            if objects.is_empty() {
                self.0.remove(service);
            }
        }
    }

    fn put_in(&mut self, service: Key, object: &Arc<T>) {
        let name = object.meta().name.as_str();
        let objects = self.0.entry(service).or_default();
        let at = objects.partition_point(|known| known.meta().name.as_str() < name);
        if objects
            .get(at)
            .is_none_or(|known| known.meta().name != name)
        {
            objects.insert(at, object.clone());
        }
    }
}
