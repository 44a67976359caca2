//! Status that all kinds of policies share: one entry per Gateway that sends requests to a target, and the condition
//! `Accepted`.

use std::collections::BTreeMap;

use crate::ir::ObjectRef;
use crate::status::{AncestorStatus, Condition, Note, ParentRef};

use super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::{Input, Mode};

/// The statuses of policies.
pub(super) type PolicyStatuses = BTreeMap<ObjectRef, Vec<AncestorStatus>>;

/// Returns the reference to a Gateway in a status.
pub(super) fn parent_ref(gateway: &ObjectRef) -> ParentRef {
    ParentRef {
        group: gateway.group.to_string(),
        kind: gateway.kind.to_string(),
        namespace: Some(gateway.namespace.to_string()),
        name: gateway.name.to_string(),
        section_name: None,
        port: None,
    }
}

/// Returns the entries of a policy, one for each Gateway.
pub(super) fn entries(
    input: &Input<'_>,
    of_gateways: BTreeMap<ObjectRef, Vec<Condition>>,
) -> Vec<AncestorStatus> {
    let entry = |(gateway, conditions): (ObjectRef, Vec<Condition>)| AncestorStatus {
        ancestor_ref: parent_ref(&gateway),
        controller_name: input.options.controller_name.clone(),
        conditions,
    };
    of_gateways.into_iter().map(entry).collect()
}

/// Returns the condition `Accepted` of a policy for a Gateway that sends requests to `targets` of its targets. It is
/// False if the policy is unusable, or if each of these targets has a fault.
pub(super) fn accepted(
    unusable: Option<&Fault>,
    faults: &[Fault],
    targets: usize,
    generation: i64,
) -> Condition {
    let kind = ConditionType::Accepted;
    match (unusable, merge(faults)) {
        (Some(fault), _) => fault.against(kind, generation),
        // The policy still applies to other targets.
        (None, Some(fault)) if faults.len() < targets => {
            let holds = Condition::holds(kind, Reason::Accepted, generation);
            holds.with_message(&fault.message)
        }
        (None, fault) => judge(kind, Reason::Accepted, fault.as_ref(), generation),
    }
}

/// Returns notes on policies without a status. In a folder, no other controller can use them.
pub(super) fn unused<'a>(
    input: &Input<'_>,
    policies: impl Iterator<Item = &'a ObjectRef>,
    statuses: &PolicyStatuses,
) -> Vec<Note> {
    if input.options.mode != Mode::Standalone {
        return Vec::new();
    }
    let unused = policies.filter(|name| !statuses.contains_key(*name));
    let message = "without effect: no served route sends requests that spec.targetRefs select";
    let note = |name: &ObjectRef| Note {
        object: name.clone(),
        message: message.to_owned(),
    };
    unused.map(note).collect()
}
