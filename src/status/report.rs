//! The status of every object after one translation, and the effect of binding sockets on it. Plain
//! data.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::Serialize;

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use super::release_backend::ReleaseBackendStatuses;
use crate::ir::{Bind, BindReport, ObjectRef};

/// Conditions of routes, by name. Backed by a persistent map: clones share unchanged entries.
pub type RouteStatuses = OrdMap<ObjectRef, Arc<[ParentStatus]>>;

/// Status of all objects that this controller manages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// Conditions of GatewayClasses.
    pub gateway_classes: BTreeMap<ObjectRef, Vec<Condition>>,
    /// Gateways.
    pub gateways: BTreeMap<ObjectRef, GatewayStatus>,
    /// ListenerSets.
    pub listener_sets: BTreeMap<ObjectRef, ListenerSetStatus>,
    /// Routes of all kinds: one entry per parentRef to a managed object.
    pub routes: RouteStatuses,
    /// Policies of all kinds: one entry per Gateway that the policy applies to.
    pub policies: BTreeMap<ObjectRef, Vec<AncestorStatus>>,
    /// XBackends: one entry per Gateway that sends requests to it.
    pub backends: BTreeMap<ObjectRef, Vec<ParentStatus>>,
    /// ReleaseBackends.
    pub release_backends: ReleaseBackendStatuses,
    /// Gateways and ListenerSets of other controllers or of none. A Gateway may change to another class, and a ListenerSet
    /// may lose its Gateway: these statuses replace those that this controller wrote before, and no other ones.
    #[serde(skip_serializing_if = "Released::is_empty")]
    pub released: Released,
    /// Problems that no condition can hold, such as a Gateway that no controller serves.
    pub notes: Vec<Note>,
}

/// Statuses of objects that this controller does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Gateways.
    pub gateways: BTreeMap<ObjectRef, GatewayStatus>,
    /// ListenerSets.
    pub listener_sets: BTreeMap<ObjectRef, ListenerSetStatus>,
}

impl Released {
    fn is_empty(&self) -> bool {
        self.gateways.is_empty() && self.listener_sets.is_empty()
    }
}

/// Status of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Conditions of the Gateway.
    pub conditions: Vec<Condition>,
    /// Addresses where clients reach the Gateway, if known: usable requested addresses, or those
    /// that a cluster assigned.
    pub addresses: Vec<Address>,
    /// Number of accepted ListenerSets.
    pub attached_listener_sets: usize,
    /// Listeners, in spec order.
    pub listeners: Vec<ListenerStatus>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "type", content = "value")]
pub enum Address {
    /// An IP address.
    IPAddress(IpAddr),
    /// A DNS name.
    Hostname(Arc<str>),
}

/// Status of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSetStatus {
    /// Conditions of the ListenerSet.
    pub conditions: Vec<Condition>,
    /// Listeners, in spec order; empty while the ListenerSet is not attached.
    pub listeners: Vec<ListenerStatus>,
}

/// Status of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// Name.
    pub name: Arc<str>,
    /// Number of accepted routes.
    pub attached_routes: usize,
    /// Kinds of routes that may attach.
    pub supported_kinds: Vec<RouteKind>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Sockets to bind before the listener is programmed; empty if it cannot be served.
    #[serde(skip)]
    pub binds: Vec<Bind>,
}

/// Group and kind of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteKind {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

/// Status of a route for one of its parents, or of an XBackend for one of the Gateways that send
/// requests to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The parentRef, exactly as in the route. For an XBackend: the Gateway.
    pub parent_ref: ParentRef,
    /// Name of the controller that owns the entry.
    pub controller_name: Arc<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Status of a policy for one of its ancestor Gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AncestorStatus {
    /// The ancestorRef.
    pub ancestor_ref: ParentRef,
    /// Name of the controller that owns the entry.
    pub controller_name: Arc<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A reference to a Gateway or ListenerSet: a route's parentRef or a policy's ancestorRef.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace, if the route sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Listener name, if the route sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port, if the route sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A note about an object whose status this controller does not write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The object.
    pub object: ObjectRef,
    /// Note text.
    pub message: String,
}

/// The difference between the problems of two reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemChanges {
    /// Problems that only this report contains, each with the object that needs a change.
    pub new: Vec<(ObjectRef, String)>,
    /// Problems that only the report before contains.
    pub resolved: Vec<(ObjectRef, String)>,
    /// By how many the number of problems grows.
    pub increase: isize,
}

impl StatusReport {
    /// Returns the report after binding: listeners without a bound socket are not programmed.
    #[must_use]
    pub fn with_binds(mut self, binds: &BindReport) -> Self {
        for gateway in self.gateways.values_mut() {
            apply_binds_to_listeners(&mut gateway.listeners, binds);
            apply_binds_to_object(&mut gateway.conditions, &gateway.listeners, Reason::Invalid);
            apply_binds_to_addresses(gateway, binds);
        }
        for set in self.listener_sets.values_mut() {
            apply_binds_to_listeners(&mut set.listeners, binds);
            apply_binds_to_object(&mut set.conditions, &set.listeners, Reason::PortUnavailable);
        }
        self.apply_gateways_to_release_backends();
        self
    }

    /// Adds the condition SupportedVersion to GatewayClasses, for the given version of the
    /// installed Gateway API CRDs. All 1.x versions are supported.
    #[must_use]
    pub fn with_bundle_version(mut self, version: Option<&str>) -> Self {
        let Some(version) = version else {
            return self;
        };
        for conditions in self.gateway_classes.values_mut() {
            let generation = conditions
                .first()
                .map_or(0, |first| first.observed_generation);
            let kind = ConditionType::SupportedVersion;
            let is_supported = version
                .strip_prefix('v')
                .unwrap_or(version)
                .starts_with("1.");
            conditions.push(if is_supported {
                Condition::holds(kind, Reason::SupportedVersion, generation)
            } else {
                let message = format!(
                    "the installed Gateway API CRDs have version {version}; only 1.x is supported"
                );
                Condition::fails(kind, Reason::UnsupportedVersion, &message, generation)
            });
        }
        self
    }

    /// Returns all problems in order of objects, each with the object that needs a change.
    pub fn problems(&self) -> impl Iterator<Item = (ObjectRef, String)> + use<> {
        self.problems_unlike(&Self::default()).into_iter()
    }

    /// Returns the difference from the problems of `before`. Skips routes that share their conditions with `before`.
    pub fn problem_changes(&self, before: &Self) -> ProblemChanges {
        let (before, now) = (before.problems_unlike(self), self.problems_unlike(before));
        let increase = now.len() as isize - before.len() as isize;
        ProblemChanges {
            new: missing(&now, &before),
            resolved: missing(&before, &now),
            increase,
        }
    }

    /// Returns all problems, except those of routes that share their conditions with `other`.
    fn problems_unlike(&self, other: &Self) -> Vec<(ObjectRef, String)> {
        let mut problems = Vec::new();
        for (object, conditions) in &self.gateway_classes {
            collect(&mut problems, object, "", conditions);
        }
        for (object, status) in &self.gateways {
            collect(&mut problems, object, "", &status.conditions);
            collect_listeners(&mut problems, object, &status.listeners);
        }
        for (object, status) in &self.listener_sets {
            collect(&mut problems, object, "", &status.conditions);
            collect_listeners(&mut problems, object, &status.listeners);
        }
        let is_bad = |parent: &&ParentStatus| parent.conditions.iter().any(Condition::is_problem);
        for item in other.routes.diff(&self.routes) {
            let (DiffItem::Add(object, parents)
            | DiffItem::Update {
                new: (object, parents),
                ..
            }) = item
            else {
                continue;
            };
            for parent in parents.iter().filter(is_bad) {
                let place = format!("parent {}: ", parent.parent_ref.shown());
                collect(&mut problems, object, &place, &parent.conditions);
            }
        }
        for (object, ancestors) in &self.policies {
            for ancestor in ancestors {
                let place = format!("for {}: ", ancestor.ancestor_ref.shown());
                collect(&mut problems, object, &place, &ancestor.conditions);
            }
        }
        for (object, parents) in &self.backends {
            for parent in parents {
                let place = format!("for {}: ", parent.parent_ref.shown());
                collect(&mut problems, object, &place, &parent.conditions);
            }
        }
        for (object, status) in &self.release_backends {
            // `Programmed` repeats other conditions, or only says that nothing refers to the backend yet.
            let faults = status.conditions.iter();
            let faults = faults.filter(|it| it.kind != ConditionType::Programmed);
            let faults: Vec<_> = faults.cloned().collect();
            collect(&mut problems, object, "", &faults);
        }
        let notes = self.notes.iter();
        problems.extend(notes.map(|note| (note.object.clone(), note.message.clone())));
        problems
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IPAddress(ip) => ip.fmt(f),
            Self::Hostname(name) => f.write_str(name),
        }
    }
}

impl ParentRef {
    fn shown(&self) -> String {
        let mut shown = format!("{} {}", self.kind, self.name);
        if let Some(section) = &self.section_name {
            shown.push_str(&format!(" listener {section}"));
        }
        if let Some(port) = self.port {
            shown.push_str(&format!(" port {port}"));
        }
        shown
    }
}

/// Returns the problems that are not in `others`.
fn missing(
    problems: &[(ObjectRef, String)],
    others: &[(ObjectRef, String)],
) -> Vec<(ObjectRef, String)> {
    let others: HashSet<_> = others.iter().collect();
    let missing = problems.iter().filter(|problem| !others.contains(problem));
    missing.cloned().collect()
}

fn collect(
    problems: &mut Vec<(ObjectRef, String)>,
    object: &ObjectRef,
    place: &str,
    conditions: &[Condition],
) {
    let mut messages: Vec<&str> = Vec::new();
    for condition in conditions.iter().filter(|condition| condition.is_problem()) {
        // Accepted and Programmed often fail for the same cause: report each message once.
        if !messages.contains(&condition.message.as_str()) {
            problems.push((object.clone(), format!("{place}{condition}")));
            messages.push(&condition.message);
        }
    }
}

fn collect_listeners(
    problems: &mut Vec<(ObjectRef, String)>,
    object: &ObjectRef,
    listeners: &[ListenerStatus],
) {
    for listener in listeners {
        let place = format!("listener {}: ", listener.name);
        collect(problems, object, &place, &listener.conditions);
    }
}

fn programmed(conditions: &mut [Condition]) -> Option<&mut Condition> {
    let holds = |condition: &&mut Condition| {
        condition.kind == ConditionType::Programmed && condition.status == ConditionStatus::True
    };
    conditions.iter_mut().find(holds)
}

fn apply_binds_to_listeners(listeners: &mut [ListenerStatus], binds: &BindReport) {
    for listener in listeners {
        let Some(condition) = programmed(&mut listener.conditions) else {
            continue;
        };
        let outcomes = listener.binds.iter().map(|bind| (bind, binds.get(bind)));
        let (mut bound, mut failures) = (false, Vec::new());
        for (bind, outcome) in outcomes {
            match outcome {
                Some(Ok(_)) => bound = true,
                Some(Err(error)) => failures.push(format!("cannot bind {bind}: {error}")),
                None => {}
            }
        }
        let generation = condition.observed_generation;
        let failures = failures.join("; ");
        if bound {
            condition.message = failures;
        } else if failures.is_empty() {
            let message = "its port is not bound yet";
            *condition = Condition::fails(condition.kind, Reason::Pending, message, generation);
        } else {
            let message = format!("{failures}; retrying");
            let reason = Reason::PortUnavailable;
            *condition = Condition::fails(condition.kind, reason, &message, generation);
        }
    }
}

fn apply_binds_to_object(
    conditions: &mut [Condition],
    listeners: &[ListenerStatus],
    failed: Reason,
) {
    let Some(condition) = programmed(conditions) else {
        return;
    };
    let state = |listener: &ListenerStatus| {
        let conditions = listener.conditions.iter();
        let mut programmed = conditions.filter(|one| one.kind == ConditionType::Programmed);
        programmed.next().map(|one| (one.status, one.reason))
    };
    let states: Vec<_> = listeners.iter().filter_map(state).collect();
    let generation = condition.observed_generation;
    if states
        .iter()
        .any(|(status, _)| *status == ConditionStatus::True)
    {
        return;
    }
    if states.iter().any(|(_, reason)| *reason == Reason::Pending) {
        let message = "none of its ports is bound yet";
        *condition = Condition::fails(condition.kind, Reason::Pending, message, generation);
    } else {
        let message = "none of its listeners is programmed: see their conditions";
        *condition = Condition::fails(condition.kind, failed, message, generation);
    }
}

/// Keeps only the requested addresses on which a socket is bound (status.addresses).
fn apply_binds_to_addresses(gateway: &mut GatewayStatus, binds: &BindReport) {
    let unusable = |address: &Address| {
        let on_address =
            |bind: &&Bind| bind.address.map(Address::IPAddress).as_ref() == Some(address);
        let all = gateway
            .listeners
            .iter()
            .flat_map(|listener| &listener.binds);
        let mut outcomes = all
            .filter(on_address)
            .map(|bind| binds.get(bind))
            .peekable();
        outcomes.peek().is_some() && outcomes.all(|outcome| matches!(outcome, Some(Err(_))))
    };
    let (bad, good): (Vec<_>, Vec<_>) = gateway.addresses.iter().cloned().partition(unusable);
    gateway.addresses = good;
    if bad.is_empty() {
        return;
    }
    let of_programmed = |condition: &&mut Condition| condition.kind == ConditionType::Programmed;
    if let Some(condition) = gateway.conditions.iter_mut().find(of_programmed) {
        let failure = |address: &Address| {
            let mut failed = binds.iter().filter_map(|(bind, result)| {
                let is_own = bind.address.map(Address::IPAddress).as_ref() == Some(address);
                is_own.then_some((bind.port, result.as_ref().err()?))
            });
            let (port, error) = failed.next()?;
            Some(format!(
                "no port is bound on {address}: port {port}: {error}"
            ))
        };
        let failures: Vec<_> = bad.iter().filter_map(failure).collect();
        let message = format!("spec.addresses: {}", failures.join("; "));
        let generation = condition.observed_generation;
        *condition = Condition::fails(
            condition.kind,
            Reason::AddressNotUsable,
            &message,
            generation,
        );
    }
}
