//! The problems of a cluster's objects, at most one for each.

use std::collections::BTreeMap;

use crate::api::{Key, Kind, ObjectRef};
use crate::provider::Problem;

/// Problems by object.
#[derive(Default)]
pub(super) struct Problems(BTreeMap<ObjectRef, Problem>);

impl Problems {
    /// Replaces or removes the problem of an object. Returns whether it differs from the previous one.
    pub(super) fn set(&mut self, name: &ObjectRef, problem: Option<Problem>) -> bool {
        let Some(problem) = problem else {
            return self.0.remove(name).is_some();
        };
        if self.0.get(name) == Some(&problem) {
            return false;
        }
        self.0.insert(name.clone(), problem);
        true
    }

    /// Reports whether an object has a problem.
    pub(super) fn has(&self, name: &ObjectRef) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the keys of the objects of a kind with a problem.
    pub(super) fn keys(&self, kind: &Kind) -> impl Iterator<Item = Key> {
        let of_kind = |name: &&ObjectRef| (&*name.group, &*name.kind) == (kind.group, kind.kind);
        let names = self.0.keys().filter(of_kind);
        names.map(|name| name.key())
    }

    /// Returns all problems, in the order of the objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.values()
    }
}
