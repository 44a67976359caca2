//! What policies are told: one entry per Gateway whose requests they are for. Knows nothing of how TLS is set up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::ServicePort;
use crate::ir::{ListenerKey, ObjectRef};
use crate::status::{AncestorStatus, Condition, Note, ParentRef};

use super::super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::super::{Input, Mode};
use super::TlsPolicies;
use super::policy::{Path, Policy, Target};
use super::settings::Settings;

/// Requests to a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::translate) struct Use {
    /// The Gateway that sends them.
    pub(in crate::translate) gateway: ObjectRef,
    /// The listener that they come through.
    pub(in crate::translate) listener: ListenerKey,
    /// The route that they match, and the name of its rule.
    pub(in crate::translate) route: ObjectRef,
    pub(in crate::translate) rule: Option<Arc<str>>,
}

/// The requests to Services.
pub(in crate::translate) type Uses = BTreeMap<Key, BTreeSet<Use>>;

impl Use {
    fn path(&self) -> Path<'_> {
        Path {
            route: &self.route,
            rule: self.rule.as_deref(),
            through: Some((&self.gateway, &self.listener)),
        }
    }
}

/// The targets of a policy that one Gateway sends requests to, each with those that the policy means.
type Meant<'a> = Vec<(&'a Target, Vec<&'a Use>)>;

/// The entries of every policy.
pub(in crate::translate) fn statuses(
    input: &Input<'_>,
    policies: &TlsPolicies,
    uses: &Uses,
) -> BTreeMap<ObjectRef, Vec<AncestorStatus>> {
    let of_policy = |policy: &Arc<Policy>| {
        let meant = meant_by_gateway(policy, uses).into_iter();
        let entry = |(gateway, meant): (&ObjectRef, Meant<'_>)| AncestorStatus {
            ancestor_ref: reference(gateway),
            controller_name: input.options.controller_name.clone(),
            conditions: conditions(input, policies, policy, &meant),
        };
        (policy.name.clone(), meant.map(entry).collect::<Vec<_>>())
    };
    let all = policies.by_name.values().map(of_policy);
    all.filter(|(_, entries)| !entries.is_empty()).collect()
}

fn meant_by_gateway<'a>(policy: &'a Policy, uses: &'a Uses) -> BTreeMap<&'a ObjectRef, Meant<'a>> {
    let mut by_gateway: BTreeMap<&ObjectRef, Meant<'a>> = BTreeMap::new();
    for target in &policy.targets {
        let all = uses.get(&target.service).into_iter().flatten();
        let mut of_target: BTreeMap<&ObjectRef, Vec<&Use>> = BTreeMap::new();
        for one in all.filter(|one| policy.rank_of(target, &one.path()).is_some()) {
            of_target.entry(&one.gateway).or_default().push(one);
        }
        for (gateway, meant) in of_target {
            by_gateway.entry(gateway).or_default().push((target, meant));
        }
    }
    by_gateway
}

/// What to say of policies that mean nothing here: in a folder of ours that is a slip of the pen.
pub(in crate::translate) fn unused(
    input: &Input<'_>,
    policies: &TlsPolicies,
    statuses: &BTreeMap<ObjectRef, Vec<AncestorStatus>>,
) -> Vec<Note> {
    if input.options.mode != Mode::Standalone {
        return Vec::new();
    }
    let names = policies.by_name.keys();
    let unused = names.filter(|name| !statuses.contains_key(*name));
    let note = |name: &ObjectRef| {
        Note {
        object: name.clone(),
        message: "without effect: none of the routes that are served here sends requests that spec.targetRefs mean"
            .to_owned(),
    }
    };
    unused.map(note).collect()
}

fn reference(gateway: &ObjectRef) -> ParentRef {
    ParentRef {
        group: gateway.group.to_string(),
        kind: gateway.kind.to_string(),
        namespace: Some(gateway.namespace.to_string()),
        name: gateway.name.to_string(),
        section_name: None,
        port: None,
    }
}

/// The conditions of a policy for one Gateway.
fn conditions(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    meant: &Meant<'_>,
) -> Vec<Condition> {
    let faults = meant
        .iter()
        .filter_map(|(target, _)| fault_of(input, policies, policy, target));
    let faults: Vec<Fault> = faults.collect();
    let merged = merge(&faults);
    let generation = policy.generation;
    let accepted = match (&policy.settings, &merged) {
        (Err(fault), _) => fault.against(ConditionType::Accepted, generation),
        // It applies to the other targets.
        (Ok(_), Some(fault)) if faults.len() < meant.len() => {
            let holds = Condition::holds(ConditionType::Accepted, Reason::Accepted, generation);
            holds.with_message(&fault.message)
        }
        (Ok(_), fault) => {
            let fault = fault.as_ref();
            judge(ConditionType::Accepted, Reason::Accepted, fault, generation)
        }
    };
    let is_accepted = accepted.reason == Reason::Accepted;
    let resolved = judge(
        ConditionType::ResolvedRefs,
        Reason::ResolvedRefs,
        policy.unresolved.as_ref(),
        generation,
    );
    let mut conditions = vec![accepted, resolved];
    let overridden = overridden(policies, policy, meant);
    if !overridden.is_empty() {
        let kind = ConditionType::Overridden;
        let condition = Condition::holds(kind, Reason::Overridden, generation);
        conditions.push(condition.with_message(overridden.join("; ")));
    }
    if is_accepted && policy.settings == Ok(Settings::Plain) {
        let kind = ConditionType::PlaintextToBackend;
        let condition = Condition::holds(kind, Reason::ModeNone, generation);
        conditions.push(condition.with_message("spec.mode is None: requests go out in plain text"));
    }
    conditions
}

/// For which routes policies of the same namespace mean the requests more precisely. Those of other namespaces are not
/// for the author of this one to know.
fn overridden(policies: &TlsPolicies, policy: &Policy, meant: &Meant<'_>) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (target, uses) in meant {
        let rivals = policies.by_service.get(&target.service);
        let rivals = rivals.into_iter().flatten();
        let own = |rival: &&Arc<Policy>| {
            rival.name != policy.name && rival.name.namespace == policy.name.namespace
        };
        for rival in rivals.filter(own) {
            for one in uses {
                let path = one.path();
                let level = policy.rank_of(target, &path).map(|rank| rank.level);
                let port = target.section.as_deref();
                let other = rival.rank(&target.service, port, &path);
                if other.map(|rank| rank.level) < level && other.is_some() {
                    found.insert((&one.route, &rival.name));
                }
            }
        }
    }
    let shown = |(route, rival): (&ObjectRef, &ObjectRef)| format!("for {route} by {rival}");
    found.into_iter().map(shown).collect()
}

/// Why a policy does not apply to one of its targets.
fn fault_of(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    target: &Target,
) -> Option<Fault> {
    let Target {
        service, section, ..
    } = target;
    let services = &input.snapshot.services;
    let Some(object) = services.get(&service.namespace, &service.name) else {
        let message = format!("spec.targetRefs: Service {service} does not exist");
        return Some(Fault::new(Reason::TargetNotFound, message));
    };
    let is_meant = |port: &&ServicePort| {
        let section = section.as_deref();
        section.is_none_or(|section| port.name.as_deref() == Some(section))
    };
    let mut ports = object.spec.ports.iter().filter(is_meant).peekable();
    if let (None, Some(section)) = (ports.peek(), section) {
        let message = format!("spec.targetRefs: Service {service} has no port named {section}");
        return Some(Fault::new(Reason::TargetNotFound, message));
    }
    if ports.peek().is_some() && ports.all(|port| port.protocol.as_deref() == Some("UDP")) {
        let message =
            format!("spec.targetRefs: Service {service} has no such port for TCP, which TLS needs");
        return Some(Fault::new(Reason::Invalid, message));
    }
    let rivals = policies.by_service.get(service)?.iter();
    let older = rivals
        .take_while(|rival| rival.name != policy.name)
        .find(|it| it.name.namespace == policy.name.namespace && it.targets.contains(target))?;
    let message = format!(
        "spec.targetRefs: {} is older, or its name comes first, and has the same target: Service {service}{}",
        older.name,
        section
            .as_ref()
            .map(|it| format!(" port {it}"))
            .unwrap_or_default()
    );
    Some(Fault::new(Reason::Conflicted, message))
}
