//! Policies of a kind by the backends that they target. Parses a policy again when one of its sources changes. Must not
//! know what policies are for.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::source::Source;

/// A parsed policy.
pub(in crate::translate) trait TargetPolicy {
    /// Returns the name.
    fn name(&self) -> &ObjectRef;

    /// Returns the backends that it targets.
    fn backends(&self) -> BTreeSet<&ObjectRef>;

    /// Returns what is announced of a backend whose policies may have changed.
    fn source(backend: ObjectRef) -> Source;

    /// Returns the time of creation; `None` counts as oldest.
    fn created(&self) -> Option<Time>;

    /// Compares the ages: of two equal policies the older one applies, then the first by namespace and name.
    fn by_age(&self, other: &Self) -> Ordering {
        (self.created(), self.name()).cmp(&(other.created(), other.name()))
    }
}

/// The policies of a kind.
pub(in crate::translate) struct PolicyIndex<P> {
    policies: Memo<Arc<P>>,
    /// By the backends that they target, in order of age.
    by_backend: BTreeMap<ObjectRef, Vec<Arc<P>>>,
}

impl<P> Default for PolicyIndex<P> {
    fn default() -> Self {
        Self {
            policies: Memo::default(),
            by_backend: BTreeMap::new(),
        }
    }
}

impl<P: TargetPolicy> PolicyIndex<P> {
    /// Parses what has changed. Announces the backends of these policies.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        changed: Vec<ObjectRef>,
        read: impl Fn(&ObjectRef) -> Option<P>,
    ) {
        let mut names = self.policies.outdated(changes);
        names.extend(changed);
        for name in names {
            let computed = input.reading(|| read(&name).map(Arc::new));
            let previous = self.policies.replace(&name, computed).previous;
            for backend in previous.iter().flat_map(|policy| policy.backends()) {
                if let Some(policies) = self.by_backend.get_mut(backend) {
                    policies.retain(|policy| *policy.name() != name);
                    if policies.is_empty() {
                        self.by_backend.remove(backend);
                    }
                }
                changes.announce(P::source(backend.clone()));
            }
            let Some(policy) = self.policies.get(&name) else {
                continue;
            };
            for backend in policy.backends() {
                let policies = self.by_backend.entry(backend.clone()).or_default();
                let at = policies.partition_point(|it| it.by_age(policy) == Ordering::Less);
                policies.insert(at, policy.clone());
                changes.announce(P::source(backend.clone()));
            }
        }
    }

    /// Returns a policy.
    pub(in crate::translate) fn get(&self, name: &ObjectRef) -> Option<&Arc<P>> {
        self.policies.get(name)
    }

    /// Returns the policies that target a backend, in order of age.
    pub(in crate::translate) fn of_backend(&self, backend: &ObjectRef) -> &[Arc<P>] {
        self.by_backend.get(backend).map_or(&[], Vec::as_slice)
    }
}
