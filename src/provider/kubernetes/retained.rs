//! Policies that protect requests and were deleted, or no longer have some of their targets. For these they stay in force until
//! all else has arrived that was written before: the deletion of a route that had the policy, or another policy that takes its
//! place. Owns that they keep their rules, since a later version may permit what both these and the policy in their place refuse,
//! and that too many of them leave their namespace refused and not open. Must not know why a policy was deleted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use tokio::time::Instant;

use super::deferrals::{Deferrals, Released, late_problem};
use super::moments::{Moment, Moments, REMEDY};
use super::scope::Scope;
use super::timing::Timing;
use crate::api::backend_tls_policy::{BackendTlsOverride, BackendTlsPolicy};
use crate::api::core::Namespace;
use crate::api::reference::Role;
use crate::api::{Kind, Object, ObjectRef, Resource, Text, refusing};
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// Maximum number of versions of a policy with the same rules. The next one gets the targets of the first.
const MAX_VERSIONS: usize = 8;
/// Maximum number of versions of the policies of a namespace. While more have to stay, which is long where a kind of policies
/// cannot be listed, all requests of the namespace are refused instead.
const MAX_RETAINED: usize = 1024;

/// The policies that stay in force.
pub(super) struct Retained {
    /// By namespace, the published versions of each, the last one at the end.
    all: BTreeMap<Text, BTreeMap<ObjectRef, VecDeque<Version>>>,
    /// Namespaces that are refused, each until the last of its policies would have ended.
    refused: BTreeMap<Text, Stay>,
    /// Policies that no longer stay, since their namespace is refused.
    dropped: Vec<ObjectRef>,
    /// Whether another namespace is refused.
    is_changed: bool,
    /// The last number of a version.
    last: u64,
    timing: Timing,
}

/// A version of a policy that was published.
struct Version {
    policy: Object,
    /// Distinguishes it from others.
    number: u64,
    /// The number of the first version whose targets it has.
    since: u64,
    /// Number of versions whose targets it has.
    count: usize,
    stay: Stay,
}

/// How long something stays.
struct Stay {
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
            refused: BTreeMap::new(),
            dropped: Vec::new(),
            is_changed: false,
            last: 0,
            timing,
        }
    }

    /// Reports whether no policy stays, and no namespace is refused.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.refused.is_empty()
    }

    /// Returns the versions of a policy that are in force for targets that a later version lacks.
    pub(super) fn versions(&self, name: &ObjectRef) -> impl Iterator<Item = &Object> {
        let own = self.all.get(&name.namespace);
        let versions = own.and_then(|own| own.get(name)).into_iter().flatten();
        versions.map(|version| &version.policy)
    }

    /// Returns the number of the last version up to this number that is in force for one of these objects; `None` if there is none.
    pub(super) fn in_force(&self, objects: &[ObjectRef], last: u64) -> Option<u64> {
        let namespaces: BTreeSet<_> = objects.iter().map(|it| &it.namespace).collect();
        let policies = namespaces.into_iter().filter_map(|it| self.all.get(it));
        let versions = policies.flat_map(BTreeMap::values).flatten();
        let earlier = versions.filter(|it| it.since <= last && it.is_for(objects));
        earlier.map(|it| it.since).max()
    }

    /// Leaves the published version of a policy in force for the targets that the next one lacks.
    pub(super) fn add(&mut self, name: ObjectRef, policy: Object) {
        let stay = Stay::new(&self.timing);
        if let Some(refused) = self.refused.get_mut(&name.namespace) {
            *refused = stay;
            self.dropped.push(name);
            return;
        }
        if self.count(&name.namespace) >= MAX_RETAINED {
            self.refuse(&name.namespace, stay);
            self.dropped.push(name);
            return;
        }
        self.last += 1;
        let own = self.all.entry(name.namespace.clone()).or_default();
        let versions = own.entry(name.clone()).or_default();
        versions.retain_mut(|earlier| {
            // Its other targets had the rules of this version, which stays for at least as long.
            let rest = earlier.policy.for_targets_without(&policy, &name.name);
            let stays = rest.is_some();
            if let Some(rest) = rest {
                earlier.policy = rest;
            }
            stays
        });
        versions.push_back(Version {
            policy,
            number: self.last,
            since: self.last,
            count: 1,
            stay,
        });
        if versions.len() > MAX_VERSIONS
            && let [first, next, ..] = versions.make_contiguous()
            && let Some(policy) = next.policy.with_targets_of(&first.policy)
        {
            next.policy = policy;
            next.count += first.count;
            next.since = first.since;
            versions.pop_front();
        }
    }

    /// Returns the number of versions of the policies of a namespace.
    fn count(&self, namespace: &Text) -> usize {
        let own = self.all.get(namespace).into_iter();
        let versions = own.flat_map(BTreeMap::values).flatten();
        versions.map(|version| version.count).sum()
    }

    /// Refuses all requests of a namespace, in place of its policies.
    fn refuse(&mut self, namespace: &Text, stay: Stay) {
        let own = self.all.remove(namespace).unwrap_or_default();
        self.dropped.extend(own.into_keys());
        self.refused.insert(namespace.clone(), stay);
        self.is_changed = true;
    }

    /// Ends what has stayed long enough. `is_terminating` says of which namespaces all objects are being deleted: there, the
    /// policies may be deleted first.
    pub(super) fn release(
        &mut self,
        now: Instant,
        moments: &mut Moments,
        deferred: &Deferrals,
        is_terminating: impl Fn(&str) -> bool,
    ) -> Released {
        let mut released = Released {
            names: mem::take(&mut self.dropped),
            is_changed: mem::take(&mut self.is_changed),
            ..Released::default()
        };
        let (timing, first) = (&self.timing, deferred.first());
        let mut stays = |namespace: &str, stay: &mut Stay| {
            let was_late = stay.is_late;
            let terminates = || is_terminating(namespace);
            let stays = stay.continues(now, timing, moments, first, terminates);
            released.is_changed |= !stays || was_late != stay.is_late;
            stays
        };
        self.refused
            .retain(|namespace, stay| stays(namespace, stay));
        let mut ended = Vec::new();
        self.all.retain(|namespace, own| {
            own.retain(|name, versions| {
                versions.retain_mut(|version| stays(namespace, &mut version.stay));
                if versions.is_empty() {
                    ended.push(name.clone());
                }
                !versions.is_empty()
            });
            !own.is_empty()
        });
        released.names.extend(ended);
        released
    }

    /// Returns when the next policy has stayed long enough, or is late.
    pub(super) fn next(&self) -> Option<Instant> {
        let versions = self.all.values().flat_map(BTreeMap::values).flatten();
        let stays = versions.map(|version| &version.stay);
        let waiting = stays
            .chain(self.refused.values())
            .filter(|stay| !stay.is_late);
        let times = waiting.map(|stay| match stay.after {
            None => stay.until,
            Some(_) => stay.late(&self.timing),
        });
        times.min()
    }

    /// Problems of policies that should have ended, and of namespaces that are refused.
    pub(super) fn problems(
        &self,
        moments: &Moments,
        deferred: &Deferrals,
        scopes: &BTreeMap<usize, Scope>,
    ) -> impl Iterator<Item = Problem> {
        let first = deferred.first();
        let versions = self.all.values().flatten().flat_map(|(name, versions)| {
            let late = versions.iter().find(|version| version.stay.is_late);
            late.map(|version| (name, version))
        });
        let late = versions.filter_map(move |(name, version)| {
            let state = ("was deleted or has lost targets", "it is in force still");
            let generation = version.policy.meta().generation;
            let (why, remedy) = version.stay.why(moments, first, scopes)?;
            Some(late_problem(name, generation, state, (&*why, remedy)))
        });
        let refused = self.refused.iter().map(move |(namespace, stay)| {
            let name = ObjectRef::new(Namespace::GROUP, Namespace::KIND, "", namespace);
            let why = stay.why(moments, first, scopes).filter(|_| stay.is_late);
            let (why, remedy) = why.unwrap_or_default();
            let separator = if why.is_empty() { "" } else { ": " };
            let problem = Problem::of_object(name, 0, format!("{TOO_MANY}{separator}{why}"));
            problem.with_remedy(remedy)
        });
        late.chain(refused)
    }

    /// Puts the policies into a snapshot, or what later versions of them lack.
    pub(super) fn restore(&self, snapshot: &mut Snapshot) {
        for (name, versions) in self.all.values().flatten() {
            for version in versions.iter().rev() {
                let policy = match snapshot.object(name) {
                    Some(policy) => version.beside(&policy),
                    None => Some(version.policy.clone()),
                };
                if let Some(policy) = policy {
                    snapshot.insert(policy);
                }
            }
        }
        for namespace in self.refused.keys() {
            refuse_within(namespace, snapshot);
        }
    }
}

/// Why a namespace is refused.
const TOO_MANY: &str = "too many policies of the namespace were deleted or have lost targets at once: requests to its Gateways, \
                        routes and backends are refused until all else is known that was written before";

/// Refuses all requests of a namespace in a snapshot.
fn refuse_within(namespace: &Text, snapshot: &mut Snapshot) {
    // Of these, one for a port would take precedence.
    for kind in Kind::all().iter().filter(|it| is_of_backends(it)) {
        for key in snapshot.keys(kind) {
            if key.namespace == *namespace {
                snapshot.remove(&kind.object_ref(&key.namespace, &key.name));
            }
        }
    }
    let policies = refusing(namespace, TOO_MANY, |kind| snapshot.keys(kind));
    for policy in policies {
        snapshot.insert(policy);
    }
}

/// Reports whether objects of a kind say which backends get no plain text.
fn is_of_backends(kind: &Kind) -> bool {
    matches!(kind.kind, BackendTlsPolicy::KIND | BackendTlsOverride::KIND)
}

/// Says that a change of an object may be older than the end of a policy.
fn not_served(object: &ObjectRef) -> String {
    format!(
        "a change of {object} may have been written before that is not served yet, since it changes often or waits for what it \
         refers to"
    )
}

impl Version {
    /// Reports whether one of these objects is a target.
    fn is_for(&self, objects: &[ObjectRef]) -> bool {
        let (own, mut is_for) = (&self.policy.meta().namespace, false);
        self.policy.references(&mut |field| {
            is_for |= field.role == Role::Target && objects.contains(&field.object_ref(own));
        });
        is_for
    }

    /// Returns what has to be published beside a later version: that one with more targets, if both have the same rules, and
    /// otherwise a policy for these targets alone; `None` if the later one has all targets.
    fn beside(&self, later: &Object) -> Option<Object> {
        let joined = later.with_targets_of(&self.policy);
        joined.or_else(|| {
            let name = ObjectRef::earlier_name(&self.policy.meta().name, self.number);
            self.policy.for_targets_without(later, &name)
        })
    }
}

impl Stay {
    fn new(timing: &Timing) -> Self {
        Self {
            until: Instant::now() + timing.removal_wait,
            after: None,
            is_late: false,
        }
    }

    /// Reports whether it has not ended, and records whether it should have. `first` is the first change that is not published.
    fn continues(
        &mut self,
        now: Instant,
        timing: &Timing,
        moments: &mut Moments,
        first: Option<(Moment, &ObjectRef)>,
        is_terminating: impl Fn() -> bool,
    ) -> bool {
        if self.after.is_none() && now >= self.until {
            if is_terminating() {
                self.until = now + timing.removal_wait;
                return true;
            }
            self.after = Some(moments.next());
        }
        // Of an object that changes often, the last change that is older may be published later.
        let is_published = |after| first.is_none_or(|(moment, _)| moment > after);
        let ends = |after| moments.is_past(after) && is_published(after);
        let ends = self.after.is_some_and(ends);
        self.is_late = self.after.is_some() && now >= self.late(timing);
        !ends
    }

    /// Says what it waits for, and what to do about it; `None` if it does not wait.
    fn why(
        &self,
        moments: &Moments,
        first: Option<(Moment, &ObjectRef)>,
        scopes: &BTreeMap<usize, Scope>,
    ) -> Option<(String, &'static str)> {
        let after = self.after?;
        let older = first.filter(|(moment, _)| *moment <= after);
        let why = moments.why_not_past(after, scopes);
        why.map(|why| (why, REMEDY))
            .or_else(|| older.map(|(_, object)| (not_served(object), "")))
    }

    /// The time from which it should have ended.
    fn late(&self, timing: &Timing) -> Instant {
        self.until + timing.fetch_wait
    }
}

#[cfg(test)]
mod tests;
