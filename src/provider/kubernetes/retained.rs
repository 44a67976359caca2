//! Policies that protect requests and are gone, or no longer have some of their targets. For these they stay in force until all
//! else has arrived that was written before: the deletion of a route that had the policy, or another policy that takes its
//! place. Must not know why a policy is gone.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use tokio::time::Instant;

use super::deferrals::{Deferrals, Released, late_problem};
use super::moments::{Moment, Moments};
use super::scope::Scope;
use super::timing::Timing;
use crate::api::{Object, ObjectRef};
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// Maximum number of versions of a policy whose targets stay. An author who changes them more often loses the first ones.
const MAX_VERSIONS: usize = 8;

/// The policies that stay in force.
pub(super) struct Retained {
    /// Published versions of each, the last one at the end.
    all: BTreeMap<ObjectRef, VecDeque<Version>>,
    timing: Timing,
}

/// A version of a policy that was published.
struct Version {
    policy: Object,
    /// What was written before has arrived by this time.
    until: Instant,
    /// What has arrived by then may wait for this moment.
    after: Option<Moment>,
    is_late: bool,
}

impl Retained {
    /// Returns no policies.
    pub(super) fn new(timing: Timing) -> Self {
        Self {
            all: BTreeMap::new(),
            timing,
        }
    }

    /// Reports whether no policy stays.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Leaves the published version of a policy in force for the targets that the next one lacks.
    pub(super) fn add(&mut self, name: ObjectRef, policy: Object) {
        let versions = self.all.entry(name).or_default();
        versions.push_back(Version {
            policy,
            until: Instant::now() + self.timing.removal_wait,
            after: None,
            is_late: false,
        });
        if versions.len() > MAX_VERSIONS {
            versions.pop_front();
        }
    }

    /// Ends what has stayed long enough. `is_terminating` says of which namespaces all objects are being deleted: there, the
    /// policies may go first.
    pub(super) fn release(
        &mut self,
        now: Instant,
        moments: &mut Moments,
        deferred: &Deferrals,
        is_terminating: impl Fn(&str) -> bool,
    ) -> Released {
        let mut released = Released::default();
        self.all.retain(|name, versions| {
            versions.retain_mut(|version| {
                if version.after.is_none() && now >= version.until {
                    if is_terminating(&name.namespace) {
                        version.until = now + self.timing.removal_wait;
                        return true;
                    }
                    version.after = Some(moments.next());
                }
                // Of an object that changes often, the last change that is older may be published later.
                let is_published =
                    |after| moments.is_past(after) && deferred.first_before(after).is_none();
                let ends = version.after.is_some_and(is_published);
                let is_late = version.after.is_some() && now >= version.late(&self.timing);
                released.is_changed |=
                    ends || is_late != mem::replace(&mut version.is_late, is_late);
                !ends
            });
            if versions.is_empty() {
                released.names.push(name.clone());
            }
            !versions.is_empty()
        });
        released
    }

    /// Returns when the next policy has stayed long enough, or is late.
    pub(super) fn next(&self) -> Option<Instant> {
        let versions = self.all.values().flatten();
        let waiting = versions.filter(|version| !version.is_late);
        let times = waiting.map(|version| match version.after {
            None => version.until,
            Some(_) => version.late(&self.timing),
        });
        times.min()
    }

    /// Problems of policies that should have ended.
    pub(super) fn problems(
        &self,
        moments: &Moments,
        deferred: &Deferrals,
        scopes: &BTreeMap<usize, Scope>,
    ) -> impl Iterator<Item = Problem> {
        let versions = self.all.iter().flat_map(|(name, versions)| {
            let late = versions.iter().find(|version| version.is_late);
            late.map(|version| (name, version))
        });
        versions.filter_map(|(name, version)| {
            let state = "was deleted or has lost targets, and is in force still";
            let generation = version.policy.meta().generation;
            let after = version.after?;
            let why = moments.why_not_past(after, scopes);
            let why = why.or_else(|| deferred.first_before(after).map(not_served))?;
            Some(late_problem(name, generation, state, &why))
        })
    }

    /// Puts the policies into a snapshot, or their targets.
    pub(super) fn restore(&self, snapshot: &mut Snapshot) {
        for (name, versions) in &self.all {
            for version in versions.iter().rev() {
                let policy = match snapshot.object(name) {
                    Some(policy) => policy.with_targets_of(&version.policy),
                    None => Some(version.policy.clone()),
                };
                if let Some(policy) = policy {
                    snapshot.insert(policy);
                }
            }
        }
    }
}

/// Says that a change of an object may be older than the end of a policy.
fn not_served(object: &ObjectRef) -> String {
    format!(
        "a change of {object} may have been written before that is not served yet, since it changes often or waits for what it \
         refers to"
    )
}

impl Version {
    /// The time from which it should have ended.
    fn late(&self, timing: &Timing) -> Instant {
        self.until + timing.fetch_wait
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Kind;

    fn version(generation: usize) -> Object {
        let target = format!("route-{generation}");
        let policy = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
            "metadata": {"name": "one", "namespace": "shop", "generation": generation},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": target}],
                "ipRules": {"deny": ["192.0.2.1"]},
            },
        });
        let kind = Kind::find("portcullis.dev/v1alpha1", "AccessPolicy").unwrap();
        kind.decode(&policy).unwrap()
    }

    #[test]
    fn author_who_changes_a_policy_without_end_loses_the_first_versions() {
        let name = ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", "one");
        let mut retained = Retained::new(Timing::default());
        for generation in 0..100 {
            retained.add(name.clone(), version(generation));
        }
        let versions = retained.all[&name].iter();
        let generations: Vec<_> = versions.map(|it| it.policy.meta().generation).collect();
        assert_eq!(generations, (92..100).collect::<Vec<_>>());
        assert_eq!(generations.len(), MAX_VERSIONS);
    }
}
