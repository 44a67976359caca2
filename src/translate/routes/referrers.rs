//! An index from objects to the routes that refer to them, updated as routes change.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::api::Key;
use crate::ir::ObjectRef;

/// The keys of the routes of one kind by the objects that they refer to.
#[derive(Default)]
pub(super) struct Referrers(FxHashMap<ObjectRef, BTreeSet<Key>>);

impl Referrers {
    /// Returns the routes that refer to an object, in order.
    pub(super) fn of<'a>(&'a self, object: &ObjectRef) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.0.get(object).into_iter().flatten()
    }

    /// Returns the objects that routes refer to.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.0.keys()
    }

    /// Replaces the references of a route.
    pub(super) fn replace(&mut self, route: &Key, before: &[ObjectRef], now: &[ObjectRef]) {
        if before == now {
            return;
        }
        for object in before {
            if let Some(routes) = self.0.get_mut(object) {
                routes.remove(route);
                if routes.is_empty() {
                    self.0.remove(object);
                }
            }
        }
        for object in now {
            match self.0.get_mut(object) {
                Some(routes) => drop(routes.insert(route.clone())),
                None => drop(self.0.insert(object.clone(), [route.clone()].into())),
            }
        }
    }
}
