//! All inherited policies by their targets. Parses a policy again when it changes. Must not know which of them have an
//! effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Resource;
use crate::api::access_policy::AccessPolicy;
use crate::api::client_policy::ClientPolicy;
use crate::api::rate_limit_policy::RateLimitPolicy;
use crate::api::route_policy::RoutePolicy;
use crate::ir::ObjectRef;
use crate::ir::sharing::Text;

use super::policy::{Policy, Section, Target};
use super::{access, client, rate_limit, route};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::reason::Fault;
use crate::translate::source::Source;

/// A kind of policies: its group and name, and how one of them is parsed.
type Row = (
    (&'static str, &'static str),
    fn(&Input<'_>, &ObjectRef) -> Option<Policy>,
);

/// The kinds.
const KINDS: [Row; 4] = [
    row::<AccessPolicy>(|input, name| Some(access::read(input, input.find(name)?))),
    row::<ClientPolicy>(|input, name| Some(client::read(input.find(name)?))),
    row::<RateLimitPolicy>(|input, name| Some(rate_limit::read(input.find(name)?))),
    row::<RoutePolicy>(|input, name| Some(route::read(input, input.find(name)?))),
];

const fn row<T: Resource>(read: fn(&Input<'_>, &ObjectRef) -> Option<Policy>) -> Row {
    ((T::GROUP, T::KIND), read)
}

/// Returns the policies of all kinds that have changed.
pub(super) fn changed(changes: &Changes) -> Vec<ObjectRef> {
    let kinds = KINDS.into_iter();
    kinds.flat_map(|(kind, _)| changes.named(kind)).collect()
}

/// Parses a policy as far as it decides which credentials Gateways get.
pub(super) fn outline(input: &Input<'_>, name: &ObjectRef) -> Option<Policy> {
    let is_access = &*name.kind == AccessPolicy::KIND;
    let object = is_access.then(|| input.find::<AccessPolicy>(name))?;
    object.map(|object| access::outline(object))
}

/// Parses a policy of any kind.
pub(super) fn read(input: &Input<'_>, name: &ObjectRef) -> Option<Policy> {
    let mut kinds = KINDS.into_iter();
    let (_, read) =
        kinds.find(|((group, kind), _)| (*group, *kind) == (&*name.group, &*name.kind))?;
    read(input, name)
}

/// All policies.
#[derive(Default)]
pub(super) struct Index {
    policies: Memo<Arc<Policy>>,
    by_target: BTreeMap<Target, OnTarget>,
    /// The policies that name each backend, and whether keys are fetched from it.
    naming: BTreeMap<ObjectRef, BTreeSet<(ObjectRef, bool)>>,
    /// Number of policies about clients.
    clients: usize,
    refusals: Refusals,
}

/// Why policies get no credentials, by policy and Gateway.
pub(in crate::translate) type Refusals = BTreeMap<ObjectRef, BTreeMap<ObjectRef, Fault>>;

/// The policies on a target.
#[derive(Default)]
pub(super) struct OnTarget {
    /// In order of age.
    policies: Vec<Arc<Policy>>,
    /// The oldest one of those that count, for each section. Others have no effect, so that their number costs requests
    /// and other namespaces nothing.
    oldest: BTreeMap<Section, Arc<Policy>>,
}

impl OnTarget {
    /// Returns the policies, in order of age.
    pub(super) fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// Returns the oldest policy that counts, for each section.
    pub(super) fn oldest(&self) -> impl Iterator<Item = (Section, &Arc<Policy>)> {
        self.oldest
            .iter()
            .map(|(section, policy)| (*section, policy))
    }

    fn add(&mut self, policy: &Arc<Policy>) {
        let at = self.policies.partition_point(|it| it.age() < policy.age());
        self.policies.insert(at, policy.clone());
        for section in policy.counting() {
            let oldest = self.oldest.entry(section);
            let oldest = oldest.or_insert_with(|| policy.clone());
            if policy.age() < oldest.age() {
                *oldest = policy.clone();
            }
        }
    }

    fn remove(&mut self, name: &ObjectRef) {
        self.policies.retain(|known| known.name != *name);
        self.oldest.retain(|_, known| known.name != *name);
        for policy in &self.policies {
            for section in policy.counting() {
                let oldest = self.oldest.entry(section);
                oldest.or_insert_with(|| policy.clone());
            }
        }
    }
}

impl Index {
    /// Parses what has changed, with `read`. Returns the objects that are targets of a changed policy.
    pub(super) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        read: impl Fn(&Input<'_>, &ObjectRef) -> Option<Policy>,
    ) -> BTreeSet<ObjectRef> {
        let mut names = self.policies.outdated(changes);
        names.extend(changed(changes));
        let mut touched = BTreeSet::new();
        for name in names {
            let computed = input.reading(|| read(input, &name).map(Arc::new));
            let previous = self.policies.replace(&name, computed).previous;
            let now = self.policies.get(&name).cloned();
            let targets = [&previous, &now].into_iter().flatten();
            touched.extend(targets.flat_map(|policy| policy.objects()).cloned());
            if names_on(previous.as_ref()) != names_on(now.as_ref()) {
                let objects = [previous.as_ref(), now.as_ref()].into_iter();
                for object in objects.flat_map(names_on) {
                    changes.announce(Source::PolicyNamesOn(object.clone()));
                }
            }
            previous.iter().for_each(|policy| self.remove(policy));
            now.iter().for_each(|policy| self.add(policy));
            let named = previous.iter().chain(&now).flat_map(|it| it.named());
            for (backend, _) in named.collect::<BTreeSet<_>>() {
                changes.announce(Source::RequestsTo(backend));
            }
        }
        for object in &touched {
            changes.announce(Source::PoliciesOn(object.clone()));
        }
        touched
    }

    /// Replaces the refusals of these policies. Returns the targets of those that have others now.
    pub(super) fn refuse(&mut self, refusals: Refusals) -> BTreeSet<ObjectRef> {
        let mut touched = BTreeSet::new();
        for (name, now) in refusals {
            let previous = self.refusals.remove(&name).unwrap_or_default();
            if previous != now {
                let targets = self.policies.get(&name).into_iter();
                touched.extend(targets.flat_map(|policy| policy.objects()).cloned());
            }
            if !now.is_empty() {
                self.refusals.insert(name, now);
            }
        }
        touched
    }

    /// Returns why a policy gets no credentials on a Gateway, if it gets none.
    pub(super) fn refusal<'a>(
        &'a self,
        policy: &'a Policy,
        gateway: &ObjectRef,
    ) -> Option<&'a Fault> {
        let decided = || self.refusals.get(&policy.name)?.get(gateway);
        policy.withheld.as_ref().or_else(decided)
    }

    fn remove(&mut self, policy: &Policy) {
        self.clients -= usize::from(policy.is_of_clients());
        for target in &policy.targets {
            if let Some(on_target) = self.by_target.get_mut(target) {
                on_target.remove(&policy.name);
                if on_target.policies.is_empty() {
                    self.by_target.remove(target);
                }
            }
        }
        policy.pending.iter().for_each(|it| self.remove(it));
        for (backend, is_of_keys) in policy.named() {
            if let Some(naming) = self.naming.get_mut(&backend) {
                naming.remove(&(policy.name.clone(), is_of_keys));
                if naming.is_empty() {
                    self.naming.remove(&backend);
                }
            }
        }
    }

    fn add(&mut self, policy: &Arc<Policy>) {
        self.clients += usize::from(policy.is_of_clients());
        for target in &policy.targets {
            let on_target = self.by_target.entry(target.clone()).or_default();
            on_target.add(policy);
        }
        policy.pending.iter().for_each(|it| self.add(it));
        for (backend, is_of_keys) in policy.named() {
            let naming = self.naming.entry(backend).or_default();
            naming.insert((policy.name.clone(), is_of_keys));
        }
    }

    /// Returns the policies that name a backend, and whether keys are fetched from it.
    pub(super) fn naming(&self, backend: &ObjectRef) -> impl Iterator<Item = (&Arc<Policy>, bool)> {
        let naming = self.naming.get(backend).into_iter().flatten();
        naming.filter_map(|(policy, is_of_keys)| Some((self.get(policy)?, *is_of_keys)))
    }

    /// Returns a policy.
    pub(super) fn get(&self, name: &ObjectRef) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// Returns a target with the policies on it; `None` if there are none.
    pub(super) fn on(
        &self,
        object: &ObjectRef,
        section: Option<&Text>,
    ) -> Option<(&Target, &OnTarget)> {
        let target = Target {
            object: object.clone(),
            section: section.cloned(),
        };
        self.by_target.get_key_value(&target)
    }

    /// Returns the targets within an object that have policies, the object itself first.
    pub(super) fn within(&self, object: &ObjectRef) -> impl Iterator<Item = (&Target, &OnTarget)> {
        let first = Target {
            object: object.clone(),
            section: None,
        };
        let targets = self.by_target.range(first..);
        let name = object.clone();
        targets.take_while(move |(target, _)| target.object == name)
    }

    /// Reports whether an object or one of its sections has policies.
    pub(super) fn has(&self, object: &ObjectRef) -> bool {
        self.within(object).next().is_some()
    }

    /// Reports whether there are policies about clients.
    pub(super) fn has_clients(&self) -> bool {
        self.clients > 0
    }

    /// Reports whether there are no policies.
    pub(super) fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }
}

/// Returns the objects whose policies a policy is one of.
fn names_on(policy: Option<&Arc<Policy>>) -> BTreeSet<&ObjectRef> {
    let policy = policy.into_iter();
    policy.flat_map(|policy| policy.objects()).collect()
}
