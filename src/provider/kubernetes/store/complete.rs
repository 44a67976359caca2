//! Whether the objects are complete, what is lacking, and the state that is published.

use std::sync::Arc;

use super::super::moments::{Moment, REMEDY};
use super::super::scope::Scope;
use super::Store;
use crate::provider::Load;

impl Store {
    /// Scopes that have never been listed.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Scope> {
        let awaited = self.awaited.iter();
        awaited.filter_map(|number| self.scopes.get(number))
    }

    /// Says what the first load lacks; `None` if it lacks nothing.
    pub(in super::super) fn missing(&self) -> Option<String> {
        if !self.awaited.is_empty() {
            let awaited: Vec<_> = self.awaited().map(ToString::to_string).collect();
            return Some(format!("still waiting for {}", awaited.join(", ")));
        }
        let why = self.moments.why_not_past(self.first?, &self.scopes)?;
        Some(format!("{why}; {REMEDY}"))
    }

    /// Reports whether all kinds that can reference Secrets and ConfigMaps have been listed.
    pub(in super::super) fn has_all_referrers(&self) -> bool {
        self.awaited().all(|scope| !scope.kind.uses_contents)
    }

    /// Reports whether waiting for a list is worthwhile, or for fetches before the first publication.
    pub(in super::super) fn is_waiting(&self) -> bool {
        let is_late = |after: &Option<Moment>| after.is_none_or(|it| !self.moments.is_past(it));
        self.expected.values().any(is_late) || (!self.is_published && self.referenced.is_waiting())
    }

    /// Returns the complete state, once every scope has been listed and all policies are known that are as old as that.
    pub(in super::super) fn load(&self) -> Option<Load> {
        let is_complete = self.first.is_some_and(|first| self.moments.is_past(first));
        if !is_complete || !self.awaited.is_empty() {
            return None;
        }
        let mut snapshot = self.snapshot.clone();
        self.deferred.restore(&mut snapshot);
        self.retained.restore(&mut snapshot);
        let late = self
            .deferred
            .problems(&self.snapshot, &self.moments, &self.scopes);
        let late = late.chain(
            self.retained
                .problems(&self.moments, &self.deferred, &self.scopes),
        );
        Some(Load {
            position: None,
            snapshot: Arc::new(snapshot),
            problems: self.problems.iter().cloned().chain(late).collect(),
            waiting: self
                .deferred
                .late_versions(&self.snapshot, &self.moments)
                .collect(),
        })
    }
}
