//! What policies are told: one entry per Gateway that sends requests to a target. Knows nothing of how TLS is set up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::ServicePort;
use crate::ir::ObjectRef;
use crate::status::{AncestorStatus, Condition, Note, ParentRef};

use super::super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::super::{Input, Mode};
use super::{Policy, Target, TlsPolicies};

/// The Gateways that have routes to a Service.
pub(in crate::translate) type Uses = BTreeMap<Key, BTreeSet<ObjectRef>>;

/// The entries of every policy.
pub(in crate::translate) fn statuses(
    input: &Input<'_>,
    policies: &TlsPolicies,
    uses: &Uses,
) -> BTreeMap<ObjectRef, Vec<AncestorStatus>> {
    let of_policy = |policy: &Arc<Policy>| {
        let used = policy.targets.iter().filter_map(|it| uses.get(&it.service));
        let gateways: BTreeSet<&ObjectRef> = used.flatten().collect();
        let entry = |gateway: &&ObjectRef| AncestorStatus {
            ancestor_ref: reference(gateway),
            controller_name: input.options.controller_name.clone(),
            conditions: conditions(input, policies, policy, |service| {
                uses.get(service).is_some_and(|it| it.contains(*gateway))
            }),
        };
        let entries: Vec<_> = gateways.iter().map(entry).collect();
        (policy.name.clone(), entries)
    };
    let all = policies.by_name.values().map(of_policy);
    all.filter(|(_, entries)| !entries.is_empty()).collect()
}

/// What to say of policies that nothing here uses: in a folder of ours that is a slip of the pen.
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
        message: "without effect: no route that is served here has a Service among spec.targetRefs as its backend"
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

/// The conditions of a policy for a Gateway that uses some of its targets.
fn conditions(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    is_used: impl Fn(&Key) -> bool,
) -> Vec<Condition> {
    let targets = policy.targets.iter().filter(|it| is_used(&it.service));
    let faults: Vec<_> = targets
        .map(|target| fault_of(input, policies, policy, target))
        .collect();
    let found: Vec<Fault> = faults.iter().flatten().cloned().collect();
    let merged = merge(&found);
    let generation = policy.generation;
    let accepted = match (&policy.unusable, &merged) {
        (Some(fault), _) => fault.against(ConditionType::Accepted, generation),
        // It applies to the other targets.
        (None, Some(fault)) if found.len() < faults.len() => {
            let holds = Condition::holds(ConditionType::Accepted, Reason::Accepted, generation);
            holds.telling(&fault.message)
        }
        (None, fault) => {
            let fault = fault.as_ref();
            judge(ConditionType::Accepted, Reason::Accepted, fault, generation)
        }
    };
    let resolved = judge(
        ConditionType::ResolvedRefs,
        Reason::ResolvedRefs,
        policy.unresolved.as_ref(),
        generation,
    );
    vec![accepted, resolved]
}

/// Why a policy does not apply to one of its targets.
fn fault_of(
    input: &Input<'_>,
    policies: &TlsPolicies,
    policy: &Policy,
    target: &Target,
) -> Option<Fault> {
    let Target { service, section } = target;
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
        .find(|rival| rival.targets.contains(target))?;
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
