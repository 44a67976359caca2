//! Changed objects whose previous versions are published: until what they refer to is known, for a limited time, and new ones
//! and what changes add until the policies of a moment are known, without a limit. New ones also wait for the end of deleted
//! policies. Nothing else waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::moments::{Moment, Moments, REMEDY};
use super::referenced::{Earlier, Referenced};
use super::references::{References, is_held_name};
use super::scope::Scope;
use crate::api::{Object, ObjectRef, protects};
use crate::finding::Severity;
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// The objects that wait.
pub(super) struct Deferrals {
    all: BTreeMap<ObjectRef, Deferred>,
    /// Maximum time that an object waits for what it refers to. What waits for policies longer is late.
    wait: Duration,
}

/// What an object waits for.
pub(super) struct Wait {
    references: Vec<References>,
    /// This number of references, counted from the first, is known.
    known: usize,
    /// All policies have to be known that are as old as this.
    pub(super) after: Moment,
    /// Deleted policies have to end that are in force for one of these objects, up to the version with this number.
    targets: Vec<ObjectRef>,
    last_version: u64,
}

/// An object that waits.
struct Deferred {
    previous: Option<Object>,
    /// A version that is older than the last one, and is published after its own wait: changes without end delay it no longer.
    next: Option<(Object, Wait)>,
    since: Instant,
    wait: Wait,
    /// The first change that is not published waits for this moment, or for a later one.
    first: Moment,
    is_late: bool,
    /// Whether a version waits for nothing but the end of a policy.
    awaits_end: bool,
}

/// What no longer waits.
#[derive(Default)]
pub(super) struct Released {
    pub(super) names: Vec<ObjectRef>,
    /// Objects whose next version is published while the last one waits.
    pub(super) advanced: Vec<ObjectRef>,
    /// Whether another version is published, or something else is late from now on.
    pub(super) is_changed: bool,
}

impl Deferrals {
    /// Returns no objects. They will wait so long for what they refer to.
    pub(super) fn new(wait: Duration) -> Self {
        Self {
            all: BTreeMap::new(),
            wait,
        }
    }

    /// Reports whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the published version of an object that waits and the moment that it waits for; `None` if it does not wait.
    pub(super) fn published(&self, name: &ObjectRef) -> Option<(Option<&Object>, Moment)> {
        let deferred = self.all.get(name)?;
        Some((deferred.previous.as_ref(), deferred.wait.after))
    }

    /// Returns the version of an object that is published before the last one; `None` if that is next.
    pub(super) fn next_version(&self, name: &ObjectRef) -> Option<&Object> {
        let (next, _) = self.all.get(name)?.next.as_ref()?;
        Some(next)
    }

    /// Returns the published versions of the objects that wait, from this name on in the order of names.
    pub(super) fn published_from(
        &self,
        first: ObjectRef,
    ) -> impl Iterator<Item = (&ObjectRef, Option<&Object>)> {
        let waiting = self.all.range(first..);
        waiting.map(|(name, deferred)| (name, deferred.previous.as_ref()))
    }

    /// Makes a version of an object wait, which had another one before. If that waits already, the published version remains,
    /// and the time counts from the first. Returns what the version before is from now on; `None` if it is never published.
    pub(super) fn hold(
        &mut self,
        name: ObjectRef,
        previous: Option<Object>,
        wait: Wait,
    ) -> Option<Earlier> {
        let Some(deferred) = self.all.get_mut(&name) else {
            self.all.insert(name, Deferred::new(previous, wait));
            return Some(Earlier::Published);
        };
        let own = deferred.replace_wait(wait)?;
        deferred.next = Some((previous?, own));
        Some(Earlier::Next)
    }

    /// Makes a version of an object wait of which this part is published meanwhile, and then `next`, when the first version that
    /// waits already would be; with `None`, nothing until its own wait ends. Neither the published version nor one that was to be
    /// published next remains: both may have what the new version lacks. The time counts from the first version that waits.
    pub(super) fn hold_part(
        &mut self,
        name: &ObjectRef,
        part: Option<Object>,
        next: Option<Object>,
        wait: Wait,
    ) {
        let Some(deferred) = self.all.get_mut(name) else {
            self.all.insert(name.clone(), Deferred::new(part, wait));
            return;
        };
        let replaced = deferred.replace_wait(wait);
        let of_next = deferred.next.take().map(|(_, wait)| wait);
        deferred.previous = part;
        deferred.next = next.zip(of_next.or(replaced));
    }

    /// Reports whether an object waits for policies.
    pub(super) fn is_behind(&self, name: &ObjectRef, moments: &Moments) -> bool {
        let deferred = self.all.get(name);
        deferred.is_some_and(|it| !moments.is_past(it.wait.after))
    }

    /// Returns how many objects wait for policies.
    pub(super) fn waiting(&self, moments: &Moments) -> usize {
        let waits = self.all.values().map(|it| it.wait.after);
        waits.filter(|after| !moments.is_past(*after)).count()
    }

    /// Returns the first moment that a change waits for, and its object, of which neither this change is published nor a later one.
    /// What waits for nothing but the end of a policy does not count: they end together.
    pub(super) fn first(&self) -> Option<(Moment, &ObjectRef)> {
        let changes = self.all.iter();
        let changes = changes.filter(|(_, it)| it.wait.after > 0 && !it.awaits_end);
        changes.map(|(name, it)| (it.first, name)).min()
    }

    /// Ends the wait of an object.
    pub(super) fn remove(&mut self, name: &ObjectRef) {
        self.all.remove(name);
    }

    /// Ends the wait of what is complete, or has waited too long for what it refers to. `in_force` returns the last version up to
    /// a number of the deleted policies that are in force for one of these objects.
    pub(super) fn release(
        &mut self,
        now: Instant,
        referenced: &Referenced,
        moments: &Moments,
        in_force: impl Fn(&[ObjectRef], u64) -> Option<u64>,
    ) -> Released {
        let mut released = Released::default();
        let held = self.all.keys().filter(|name| is_held_name(name));
        let behind: BTreeSet<_> = held
            .filter(|name| self.is_behind(name, moments))
            .cloned()
            .collect();
        self.all.retain(|name, deferred| {
            let is_due = now.saturating_duration_since(deferred.since) >= self.wait;
            let mut awaits_end = false;
            let mut ends = |wait: &mut Wait| {
                let is_complete = wait.has_references(referenced, |name| behind.contains(name));
                let is_ready = moments.is_past(wait.after) && (is_complete || is_due);
                let ends = is_ready && wait.has_ends(&in_force);
                awaits_end |= is_ready && !ends;
                ends
            };
            if ends(&mut deferred.wait) {
                released.names.push(name.clone());
                return false;
            }
            let next = deferred.next.take_if(|(_, wait)| ends(wait));
            deferred.awaits_end = awaits_end;
            if let Some((next, wait)) = next {
                deferred.previous = Some(next);
                deferred.first = wait.after + 1;
                (deferred.since, deferred.is_late) = (now, false);
                released.advanced.push(name.clone());
                released.is_changed = true;
                return true;
            }
            let was_late = mem::replace(&mut deferred.is_late, is_due);
            released.is_changed |= is_due && !was_late;
            true
        });
        released
    }

    /// Returns when the next object has waited too long for what it refers to, or is late.
    pub(super) fn next(&self, moments: &Moments) -> Option<Instant> {
        let ends = self.all.values().filter(|it| !it.awaits_end);
        let ends = ends.filter(|it| !it.is_late || moments.is_past(it.wait.after));
        ends.map(|it| it.since + self.wait).min()
    }

    /// Puts the previous versions into a snapshot.
    pub(super) fn restore(&self, snapshot: &mut Snapshot) {
        for (name, deferred) in &self.all {
            match &deferred.previous {
                Some(previous) => snapshot.insert(previous.clone()),
                None => snapshot.remove(name),
            };
        }
    }

    /// Returns the last versions of objects that are late. `snapshot` has the versions that wait.
    pub(super) fn late_versions(
        &self,
        snapshot: &Snapshot,
        moments: &Moments,
    ) -> impl Iterator<Item = Object> {
        let late = self.all.iter().filter(|(_, it)| it.is_late);
        let late = late.filter(|(_, it)| !moments.is_past(it.wait.after));
        late.filter_map(|(name, _)| snapshot.object(name))
    }

    /// Problems of objects that are late. `snapshot` has the versions that wait.
    pub(super) fn problems(
        &self,
        snapshot: &Snapshot,
        moments: &Moments,
        scopes: &BTreeMap<usize, Scope>,
    ) -> impl Iterator<Item = Problem> {
        let late = self.all.iter().filter(|(_, it)| it.is_late);
        late.filter_map(|(name, it)| {
            let why = moments.why_not_past(it.wait.after, scopes)?;
            let object = snapshot.object(name);
            let generation = object.as_ref().map_or(0, |it| it.meta().generation);
            let state = match (&object, &it.previous) {
                (None, _) => ("was deleted", "it is served still"),
                (Some(_), None) => ("is new", "it is not served yet"),
                (Some(object), Some(_)) if protects(object.kind()) => (
                    "has changed",
                    "what it permits beyond its previous version is not in force yet",
                ),
                (Some(_), Some(_)) => ("has changed", "its previous version is served"),
            };
            Some(late_problem(name, generation, state, (&*why, REMEDY)))
        })
    }
}

impl Deferred {
    fn new(previous: Option<Object>, wait: Wait) -> Self {
        Self {
            previous,
            next: None,
            since: Instant::now(),
            first: wait.after,
            wait,
            is_late: false,
            awaits_end: false,
        }
    }

    /// Replaces what the last version waits for. Returns the wait of the version before if that can be published next: none is
    /// yet, and the last one waits for longer.
    fn replace_wait(&mut self, wait: Wait) -> Option<Wait> {
        let is_next = self.next.is_none() && wait.after > self.wait.after;
        let own = mem::replace(&mut self.wait, wait);
        is_next.then_some(own)
    }
}

/// A problem of an object that is late, with its state and what that does, and with what it waits for and what to do about that.
pub(super) fn late_problem(
    name: &ObjectRef,
    generation: i64,
    (state, effect): (&str, &str),
    (why, remedy): (&str, &str),
) -> Problem {
    let problem = Problem::of_object(name.clone(), generation, format!("{state}: {why}"));
    Problem {
        severity: Severity::Warning,
        ..problem.with_effect(effect).with_remedy(remedy)
    }
}

impl Released {
    /// Adds what no longer waits since then.
    pub(super) fn extend(&mut self, later: Self) {
        self.names.extend(later.names);
        self.advanced.extend(later.advanced);
        self.is_changed |= later.is_changed;
    }
}

impl Wait {
    /// Returns the wait for these references, and for the policies of a moment.
    pub(super) fn new(references: Vec<References>, after: Moment) -> Self {
        Self {
            references,
            known: 0,
            after,
            targets: Vec::new(),
            last_version: u64::MAX,
        }
    }

    /// Adds the wait for the end of the deleted policies that are in force for an object, or for what it refers to.
    pub(super) fn with_ends(self, object: &Object) -> Self {
        let (kind, meta) = (object.kind(), object.meta());
        let mut targets = vec![kind.object_ref(&meta.namespace, &meta.name)];
        object.references(&mut |field| targets.push(field.object_ref(&meta.namespace)));
        Self { targets, ..self }
    }

    /// Reports whether these policies have ended. Those that were deleted since they were looked for first do not count.
    pub(super) fn has_ends(&mut self, in_force: impl Fn(&[ObjectRef], u64) -> Option<u64>) -> bool {
        match in_force(&self.targets, self.last_version) {
            Some(last) => {
                self.last_version = last;
                false
            }
            None => true,
        }
    }

    /// Reports whether all references are known, and none of these objects waits itself.
    pub(super) fn has_references(
        &mut self,
        referenced: &Referenced,
        waits: impl Fn(&ObjectRef) -> bool,
    ) -> bool {
        let names = self.references.iter().flat_map(|it| &*it.names);
        let known = names
            .skip(self.known)
            .take_while(|name| referenced.is_known(name) && !waits(name));
        self.known += known.count();
        let names = self.references.iter().map(|it| it.names.len());
        self.known == names.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Kind;

    /// Returns a version of an EndpointSlice with this address.
    fn version(address: &str) -> Option<Object> {
        let slice = json!({
            "metadata": {"name": "app", "namespace": "default"}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}], "ports": [{"port": 80}],
        });
        let kind = Kind::find("discovery.k8s.io/v1", "EndpointSlice").unwrap();
        Some(kind.decode(&slice).unwrap())
    }

    /// An address that the new version lacks gets no requests, although a version waits that has it.
    #[test]
    fn parts_of_a_new_version_replace_the_versions_before() {
        let name = ObjectRef::new("discovery.k8s.io", "EndpointSlice", "default", "app");
        let mut deferrals = Deferrals::new(Duration::ZERO);
        let wait = |after| Wait::new(Vec::new(), after);
        let [one, two, three] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(version);
        deferrals.hold_part(&name, one.clone(), None, wait(1));
        deferrals.hold_part(&name, one, two.clone(), wait(2));
        assert_eq!(deferrals.next_version(&name), two.as_ref());
        deferrals.hold_part(&name, two.clone(), three.clone(), wait(3));
        assert_eq!(deferrals.published(&name), Some((two.as_ref(), 3)));
        assert_eq!(deferrals.next_version(&name), three.as_ref());
        deferrals.hold_part(&name, None, None, wait(4));
        assert_eq!(deferrals.published(&name), Some((None, 4)));
        assert_eq!(deferrals.next_version(&name), None);
    }
}
