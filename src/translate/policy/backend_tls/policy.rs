//! A parsed policy: its targets, the requests that it selects, and its rank (GEP-3875). Must not know other policies.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use crate::api::ObjectMeta;
use crate::api::backend_tls_policy::{FromRef, TlsPolicy};
use crate::ir::Time;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{ListenerKey, ObjectRef};
use crate::settings::permissions::PolicyLevel;

use super::criterion::Criterion;
use super::settings::{self, ReadSettings, Settings, Weakening};
use crate::translate::input::Input;
use crate::translate::policy::index::TargetPolicy;
use crate::translate::policy::policy_status::unreadable_fault;
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

/// A parsed policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    created: Option<Time>,
    pub(super) targets: Vec<PolicyTarget>,
    /// Its settings, or why it cannot be applied, which makes `Accepted` false.
    pub(super) settings: Result<Settings, Fault>,
    /// Makes `ResolvedRefs` false.
    pub(super) unresolved: Option<Fault>,
    /// The lowest level at which the operator permits settings that weaken TLS.
    floor: PolicyLevel,
}

/// A backend that a policy applies to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PolicyTarget {
    pub(super) backend: ObjectRef,
    /// The name of one port.
    pub(super) section: Option<String>,
    /// The sender whose requests are selected; `None` selects all.
    pub(super) from: Option<From>,
    /// Why no settings apply, if only a later version of the policy has it, which is not valid.
    pub(super) pending: Option<Fault>,
}

/// An object of the policy's namespace whose requests are selected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct From {
    pub(super) object: ObjectRef,
    /// A listener, or a rule of a route.
    section: Option<String>,
}

/// The requests of one rule through one listener, or those that the process sends itself for an object.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    pub(super) route: &'a ObjectRef,
    pub(super) rule: Option<&'a str>,
    /// The namespace of the consumer, whose policies count beside those of the backend's.
    pub(super) consumer: Option<&'a str>,
    /// The Gateway, and its listener or that of a ListenerSet, if the requests come through one alone.
    pub(super) through: Option<(&'a ObjectRef, Option<&'a ListenerKey>)>,
}

/// The precedence of a policy: the lesser rank applies. The order of the fields is the order of precedence, because
/// `Ord` is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) level: PolicyLevel,
    /// Whether `from` selects the whole object rather than a listener or rule of it.
    is_from_whole: bool,
    /// Whether the target is every port.
    is_for_every_port: bool,
}

impl Rank {
    /// Returns the criterion by which the other one takes precedence; `None` if they are equal.
    pub(super) fn criterion(&self, other: &Self) -> Option<Criterion> {
        Criterion::first([
            (Criterion::Level, self.level.cmp(&other.level)),
            (
                Criterion::FromSection,
                self.is_from_whole.cmp(&other.is_from_whole),
            ),
            (
                Criterion::Port,
                self.is_for_every_port.cmp(&other.is_for_every_port),
            ),
        ])
    }
}

/// A policy that selects requests.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) policy: &'a Policy,
    pub(super) target: &'a PolicyTarget,
    pub(super) rank: Rank,
}

impl<'a> Candidate<'a> {
    /// Returns the settings that apply, or why the policy cannot be applied.
    pub(super) fn settings(&self) -> Result<&'a Settings, Fault> {
        let pending = self.target.pending.clone();
        match pending.or_else(|| self.policy.forbidden(self.target)) {
            Some(fault) => Err(fault),
            None => self.policy.settings.as_ref().map_err(Fault::clone),
        }
    }
}

impl TargetPolicy for Policy {
    fn name(&self) -> &ObjectRef {
        &self.name
    }

    fn backends(&self) -> BTreeSet<&ObjectRef> {
        self.targets.iter().map(|target| &target.backend).collect()
    }

    fn source(backend: ObjectRef) -> Source {
        Source::Backend(backend)
    }

    fn created(&self) -> Option<Time> {
        self.created
    }

    fn by_age(&self, other: &Self) -> Ordering {
        let age = |policy: &Self| (policy.created, policy.name.key());
        let kinds = || self.name.kind.cmp(&other.name.kind);
        age(self).cmp(&age(other)).then_with(kinds)
    }
}

impl Policy {
    pub(super) fn read<P: TlsPolicy>(input: &Input<'_>, object: &P) -> Self {
        let ObjectMeta {
            namespace,
            generation,
            creation_timestamp,
            ..
        } = object.meta();
        let kinds = &input.options.permissions.backend_kinds;
        let targets = object
            .targets()
            .filter(|(it, _)| input.kinds.is_target(kinds, &it.group, &it.kind));
        let targets = targets.map(|(target, unreadable)| PolicyTarget {
            backend: target.object_ref(namespace),
            section: named(target.section_name.as_ref()),
            from: target.from.as_ref().map(|from| From::new(namespace, from)),
            pending: unreadable.map(unreadable_fault),
        });
        let targets = targets.collect();
        let read = match object.unreadable() {
            None => settings::read(input, namespace, object.spec()),
            Some(unreadable) => ReadSettings {
                settings: Err(unreadable_fault(unreadable)),
                unresolved: None,
            },
        };
        Self {
            name: object.object_ref(),
            generation: *generation,
            created: *creation_timestamp,
            targets,
            settings: read.settings,
            unresolved: read.unresolved,
            floor: input.options.permissions.backend_tls_floor,
        }
    }

    /// Returns how it weakens TLS, if it does.
    pub(super) fn weakening(&self) -> Option<Weakening> {
        self.settings.as_ref().ok()?.weakening()
    }

    /// Returns why the operator does not permit its settings at the level of a target.
    pub(super) fn forbidden(&self, target: &PolicyTarget) -> Option<Fault> {
        let weakening = self.weakening().filter(|_| target.pending.is_none())?;
        let (level, floor) = (self.level(target), self.floor);
        let message = || {
            format!(
                "{} is not permitted at level {level}; --backend-tls-floor={floor} permits {}",
                weakening.asked_at("spec.validation"),
                floor.permitted()
            )
        };
        (level < floor).then(|| Fault::new(Reason::NotAllowed, message()))
    }

    /// Reports whether the next policy applies instead of this one. Only a forbidden policy for plain text is passed
    /// over: any other policy protects requests at least as well. A forbidden policy for TLS is not passed over,
    /// because the next one may protect requests less.
    pub(super) fn is_passed_over(&self, target: &PolicyTarget) -> bool {
        self.weakening() == Some(Weakening::Plain) && self.forbidden(target).is_some()
    }

    /// Returns the level of a target.
    pub(super) fn level(&self, target: &PolicyTarget) -> PolicyLevel {
        match &target.from {
            Some(from) => from.level(),
            None if *self.name.namespace == *target.backend.namespace => PolicyLevel::Producer,
            None => PolicyLevel::Consumer,
        }
    }

    /// Reports whether both have the same age, so that namespace and name decide.
    pub(super) fn has_age_of(&self, other: &Self) -> bool {
        self.created == other.created
    }

    /// Reports whether a target names this port of a backend.
    pub(super) fn names_port(&self, backend: &ObjectRef, port: &str) -> bool {
        let mut targets = self.targets.iter().filter(|it| it.backend == *backend);
        targets.any(|target| target.section.as_deref() == Some(port))
    }

    /// Reports whether it selects requests of a Gateway to a port by the listener that they come through. `has_set` says which
    /// ListenerSets the Gateway has.
    pub(super) fn selects_by_listener(
        &self,
        (backend, port): (&ObjectRef, Option<&str>),
        gateway: &ObjectRef,
        has_set: &dyn Fn(&ObjectRef) -> bool,
    ) -> bool {
        let own = &self.name.namespace;
        if *own != backend.namespace && *own != gateway.namespace {
            return false;
        }
        let mut senders = self
            .targets_at(backend, port)
            .filter_map(|target| target.from.as_ref());
        senders.any(|from| from.selects_by_listener(gateway, has_set))
    }

    /// Returns the targets for requests to a port with this name or without one.
    fn targets_at(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
    ) -> impl Iterator<Item = &PolicyTarget> {
        let targets = self.targets.iter();
        targets.filter(move |it| {
            let is_of_port = it.section.is_none() || it.section.as_deref() == port;
            it.backend == *backend && is_of_port && !self.is_passed_over(it)
        })
    }

    /// Returns the target with the best rank for requests to a port with this name or without one; `None` if no target
    /// selects them.
    pub(super) fn candidate(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Option<Candidate<'_>> {
        let targets = self.targets_at(backend, port);
        let candidates = targets.filter_map(|target| {
            Some(Candidate {
                policy: self,
                target,
                rank: self.rank_of(target, path)?,
            })
        });
        candidates.min_by_key(|candidate| candidate.rank)
    }

    /// Returns the rank of a target for requests to any of its ports; `None` if it does not select them.
    pub(super) fn rank_of(&self, target: &PolicyTarget, path: &Path<'_>) -> Option<Rank> {
        let own = &*self.name.namespace;
        let is_producer = own == &*target.backend.namespace;
        let is_consumer = path.consumer == Some(own);
        if !is_producer && !is_consumer {
            return None;
        }
        if target.from.as_ref().is_some_and(|from| !from.selects(path)) {
            return None;
        }
        Some(Rank {
            level: self.level(target),
            is_from_whole: target.from.as_ref().is_none_or(|it| it.section.is_none()),
            is_for_every_port: target.section.is_none(),
        })
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, section } = self;
        match (section, self.level()) {
            (None, _) => write!(f, "{object}"),
            (Some(section), PolicyLevel::Route) => write!(f, "{object} rule {section}"),
            (Some(section), _) => write!(f, "{object} listener {section}"),
        }
    }
}

impl From {
    fn new(namespace: &str, from: &FromRef) -> Self {
        Self {
            object: ObjectRef::new(&from.group, &from.kind, namespace, &from.name),
            section: named(from.section_name.as_ref()),
        }
    }

    fn level(&self) -> PolicyLevel {
        match &*self.object.kind {
            "Gateway" => PolicyLevel::Gateway,
            "ListenerSet" => PolicyLevel::ListenerSet,
            _ => PolicyLevel::Route,
        }
    }

    /// Reports whether it selects requests.
    pub(super) fn selects(&self, path: &Path<'_>) -> bool {
        let object = &self.object;
        let Some((gateway, listener)) = path.through else {
            return false;
        };
        let section = self.section.as_deref();
        let own = listener.filter(|listener| listener.origin == *object);
        let is_listener =
            || section.is_none_or(|name| own.is_some_and(|listener| *listener.name == *name));
        let is_selected = match self.level() {
            PolicyLevel::Gateway => gateway == object && is_listener(),
            PolicyLevel::ListenerSet => own.is_some() && is_listener(),
            _ => path.route == object && (section.is_none() || section == path.rule),
        };
        &*object.group == GATEWAY_GROUP && is_selected
    }

    /// Reports whether it selects requests of a Gateway by the listener that they come through.
    fn selects_by_listener(
        &self,
        gateway: &ObjectRef,
        has_set: &dyn Fn(&ObjectRef) -> bool,
    ) -> bool {
        if &*self.object.group != GATEWAY_GROUP {
            return false;
        }
        match self.level() {
            PolicyLevel::Gateway => self.object == *gateway && self.section.is_some(),
            PolicyLevel::ListenerSet => has_set(&self.object),
            _ => false,
        }
    }
}

fn named(name: Option<&String>) -> Option<String> {
    name.filter(|name| !name.is_empty()).cloned()
}
