//! A policy as it was read: its targets, whose requests it is for, and how precisely it means them (GEP-3875). Knows
//! nothing of other policies.

use std::fmt;

use crate::api::ObjectMeta;
use crate::api::policy::{FromRef, TlsPolicy};
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{ListenerKey, ObjectRef};
use crate::permissions::PolicyLevel;

use super::super::reason::{Fault, Reason};
use super::super::{Input, backend};
use super::explanation::Criterion;
use super::settings::{self, Settings, Weakening};

/// A policy, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    created: Option<jiff::Timestamp>,
    pub(super) targets: Vec<Target>,
    /// What it asks for, or why it cannot be applied, which makes `Accepted` false.
    pub(super) settings: Result<Settings, Fault>,
    /// Makes `ResolvedRefs` false.
    pub(super) unresolved: Option<Fault>,
    /// ConfigMaps and Secrets that it refers to.
    pub(super) authorities: Vec<ObjectRef>,
    /// The most precise level at which the operator permits what it asks for.
    floor: PolicyLevel,
}

/// A backend that a policy applies to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) backend: ObjectRef,
    /// The name of one port.
    pub(super) section: Option<String>,
    /// Whose requests are meant.
    pub(super) from: Option<From>,
}

/// Objects of the policy's namespace whose requests are meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct From {
    pub(super) object: ObjectRef,
    /// A listener, or a rule of a route.
    section: Option<String>,
}

/// The requests of one rule that come through one listener.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    pub(super) route: &'a ObjectRef,
    pub(super) rule: Option<&'a str>,
    /// The Gateway and its listener, or that of a ListenerSet.
    pub(super) through: Option<(&'a ObjectRef, &'a ListenerKey)>,
}

/// Which of two policies applies: the one of the lesser rank. The order of the fields is the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) level: PolicyLevel,
    /// All of the object is meant, and not a listener or rule of it.
    is_from_whole: bool,
    /// All ports are meant.
    is_for_every_port: bool,
}

impl Rank {
    /// By what the other one goes before this one; `None` when they are equal.
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

/// A policy that means requests.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) policy: &'a Policy,
    pub(super) target: &'a Target,
    pub(super) rank: Rank,
}

impl Policy {
    pub(super) fn read<P: TlsPolicy>(input: &Input<'_>, object: &P) -> Self {
        let ObjectMeta {
            namespace,
            generation,
            creation_timestamp,
            ..
        } = object.meta();
        let spec = object.spec();
        let kinds = &input.options.permissions.backend_kinds;
        let backends = spec.target_refs.iter();
        let backends = backends.filter(|it| backend::is_target(kinds, &it.group, &it.kind));
        let targets = backends.map(|target| Target {
            backend: target.object_ref(namespace),
            section: named(target.section_name.as_ref()),
            from: target.from.as_ref().map(|from| From::new(namespace, from)),
        });
        let targets = targets.collect();
        let read = settings::read(input, namespace, spec);
        Self {
            name: object.object_ref(),
            generation: *generation,
            created: *creation_timestamp,
            targets,
            settings: read.settings,
            unresolved: read.unresolved,
            authorities: read.references,
            floor: input.options.permissions.backend_tls_floor,
        }
    }

    /// How it weakens TLS, if it does.
    pub(super) fn weakening(&self) -> Option<Weakening> {
        self.settings.as_ref().ok()?.weakening()
    }

    /// Why the operator does not permit what it asks for at the level of a target.
    pub(super) fn forbidden(&self, target: &Target) -> Option<Fault> {
        let weakening = self.weakening()?;
        let (level, floor) = (self.level(target), self.floor);
        let message = || {
            format!(
                "{} is not permitted at the level {level}, only from the level {floor} on (--backend-tls-floor={floor})",
                weakening.asked_at("spec.validation")
            )
        };
        (level < floor).then(|| Fault::new(Reason::NotAllowed, message()))
    }

    /// Whether other policies take the place of this one where it goes over them: nothing that they come to protects
    /// requests less than the plain text that it asks for. One that asks for TLS is not passed over, since the next may ask
    /// for less than it does.
    pub(super) fn is_passed_over(&self, target: &Target) -> bool {
        self.weakening() == Some(Weakening::Plain) && self.forbidden(target).is_some()
    }

    /// How precisely a target means requests.
    pub(super) fn level(&self, target: &Target) -> PolicyLevel {
        match &target.from {
            Some(from) => from.level(),
            None if *self.name.namespace == *target.backend.namespace => PolicyLevel::Producer,
            None => PolicyLevel::Consumer,
        }
    }

    /// Of two equal policies the older one applies, and then the one whose namespace and name come first.
    pub(super) fn age(&self) -> impl Ord + use<'_> {
        let ObjectRef {
            namespace,
            name,
            kind,
            ..
        } = &self.name;
        (self.created, namespace, name, kind)
    }

    /// Whether namespace and name decide between this one and an equal one.
    pub(super) fn has_age_of(&self, other: &Self) -> bool {
        self.created == other.created
    }

    /// The most precise of its targets for requests to a port of this name, or of none, of a backend; `None` when they are
    /// not meant.
    pub(super) fn candidate(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Option<Candidate<'_>> {
        let targets = self.targets.iter().filter(|it| it.backend == *backend);
        let targets = targets.filter(|it| it.section.is_none() || it.section.as_deref() == port);
        let targets = targets.filter(|it| !self.is_passed_over(it));
        let candidates = targets.filter_map(|target| {
            Some(Candidate {
                policy: self,
                target,
                rank: self.rank_of(target, path)?,
            })
        });
        candidates.min_by_key(|candidate| candidate.rank)
    }

    /// The rank of a target for requests to any of its ports.
    pub(super) fn rank_of(&self, target: &Target, path: &Path<'_>) -> Option<Rank> {
        let own = &*self.name.namespace;
        let is_producer = own == &*target.backend.namespace;
        let is_consumer = path.through.is_some_and(|(it, _)| &*it.namespace == own);
        if !is_producer && !is_consumer {
            return None;
        }
        if target.from.as_ref().is_some_and(|from| !from.means(path)) {
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

    /// Whether requests are meant.
    pub(super) fn means(&self, path: &Path<'_>) -> bool {
        let object = &self.object;
        let Some((gateway, listener)) = path.through else {
            return false;
        };
        let section = self.section.as_deref();
        let is_listener =
            || section.is_none_or(|name| listener.origin == *object && *listener.name == *name);
        let is_meant = match self.level() {
            PolicyLevel::Gateway => gateway == object && is_listener(),
            PolicyLevel::ListenerSet => listener.origin == *object && is_listener(),
            _ => path.route == object && (section.is_none() || section == path.rule),
        };
        &*object.group == GATEWAY_GROUP && is_meant
    }
}

fn named(name: Option<&String>) -> Option<String> {
    name.filter(|name| !name.is_empty()).cloned()
}
