//! A policy as it was read: its targets, whose requests it is for, and how precisely it means them (GEP-3875). Knows
//! nothing of other policies.

use crate::api::policy::{FromRef, TlsPolicy};
use crate::api::{Key, ObjectMeta};
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{ListenerKey, ObjectRef};

use super::super::Input;
use super::super::reason::Fault;
use super::settings::{self, Settings};

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
}

/// A Service that a policy applies to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) service: Key,
    /// The name of one port.
    pub(super) section: Option<String>,
    /// Whose requests are meant.
    from: Option<From>,
}

/// Objects of the policy's namespace whose requests are meant.
#[derive(Debug, PartialEq, Eq)]
struct From {
    object: ObjectRef,
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

/// How precisely a policy means requests, the most precise first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Those of a route.
    Route,
    /// Those of a ListenerSet.
    ListenerSet,
    /// Those of a Gateway.
    Gateway,
    /// Those of every Gateway of the policy's namespace, to Services of other namespaces.
    Consumer,
    /// All requests to Services of the policy's namespace.
    Producer,
}

/// Which of two policies applies: the one of the lesser rank. The order of the fields is the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) level: Level,
    /// All of the object is meant, and not a listener or rule of it.
    is_from_whole: bool,
    /// All ports are meant.
    is_for_every_port: bool,
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
        let services = spec.target_refs.iter().filter(|it| it.is_service());
        let targets = services.map(|target| Target {
            service: target.key(namespace),
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

    /// The rank for requests to a port of this name, or of none, of a Service; `None` when they are not meant.
    pub(super) fn rank(&self, service: &Key, port: Option<&str>, path: &Path<'_>) -> Option<Rank> {
        let targets = self.targets.iter().filter(|it| it.service == *service);
        let targets = targets.filter(|it| it.section.is_none() || it.section.as_deref() == port);
        let ranks = targets.filter_map(|target| self.rank_of(target, path));
        ranks.min()
    }

    /// The rank of a target for requests to any of its ports.
    pub(super) fn rank_of(&self, target: &Target, path: &Path<'_>) -> Option<Rank> {
        let own = &*self.name.namespace;
        let is_producer = own == target.service.namespace;
        let is_consumer = path.through.is_some_and(|(it, _)| &*it.namespace == own);
        if !is_producer && !is_consumer {
            return None;
        }
        let level = match &target.from {
            Some(from) => from.level(path)?,
            None if is_producer => Level::Producer,
            None => Level::Consumer,
        };
        Some(Rank {
            level,
            is_from_whole: target.from.as_ref().is_none_or(|it| it.section.is_none()),
            is_for_every_port: target.section.is_none(),
        })
    }
}

impl From {
    fn new(namespace: &str, from: &FromRef) -> Self {
        Self {
            object: ObjectRef::new(&from.group, &from.kind, namespace, &from.name),
            section: named(from.section_name.as_ref()),
        }
    }

    /// The level of requests that are meant.
    fn level(&self, path: &Path<'_>) -> Option<Level> {
        let (gateway, listener) = path.through?;
        let object = &self.object;
        if &*object.group != GATEWAY_GROUP {
            return None;
        }
        let section = self.section.as_deref();
        let is_listener =
            || section.is_none_or(|name| listener.origin == *object && *listener.name == *name);
        let (level, is_meant) = match &*object.kind {
            "Gateway" => (Level::Gateway, gateway == object && is_listener()),
            "ListenerSet" => {
                let is_of_set = listener.origin == *object;
                (Level::ListenerSet, is_of_set && is_listener())
            }
            _ => {
                let is_rule = section.is_none() || section == path.rule;
                (Level::Route, path.route == object && is_rule)
            }
        };
        is_meant.then_some(level)
    }
}

fn named(name: Option<&String>) -> Option<String> {
    name.filter(|name| !name.is_empty()).cloned()
}
