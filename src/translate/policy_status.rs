//! What the status of all kinds of policies has in common: one entry per Gateway that sends requests to a target, and the
//! condition Accepted.

use std::collections::BTreeMap;

use crate::ir::ObjectRef;
use crate::status::{AncestorStatus, Condition, Note, ParentRef};

use super::reason::{ConditionType, Fault, Reason, judge, merge};
use super::{Input, Mode};

/// The statuses of policies.
pub(super) type PolicyStatuses = BTreeMap<ObjectRef, Vec<AncestorStatus>>;

/// A Gateway, as status names it.
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

/// The entries of a policy, with its conditions for each Gateway.
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

/// The condition Accepted of a policy for a Gateway that sends requests to `targets` of its targets: false when it cannot be
/// applied, or when each of these has a fault.
pub(super) fn accepted(
    unusable: Option<&Fault>,
    faults: &[Fault],
    targets: usize,
    generation: i64,
) -> Condition {
    let kind = ConditionType::Accepted;
    match (unusable, merge(faults)) {
        (Some(fault), _) => fault.against(kind, generation),
        // It applies to the other targets.
        (None, Some(fault)) if faults.len() < targets => {
            let holds = Condition::holds(kind, Reason::Accepted, generation);
            holds.with_message(&fault.message)
        }
        (None, fault) => judge(kind, Reason::Accepted, fault.as_ref(), generation),
    }
}

/// Notes on policies without a status, in a folder of ours: there is no other controller that they could be for.
pub(super) fn unused<'a>(
    input: &Input<'_>,
    policies: impl Iterator<Item = &'a ObjectRef>,
    statuses: &PolicyStatuses,
) -> Vec<Note> {
    if input.options.mode != Mode::Standalone {
        return Vec::new();
    }
    let unused = policies.filter(|name| !statuses.contains_key(*name));
    let message = "without effect: none of the routes that are served here sends requests that spec.targetRefs mean";
    let note = |name: &ObjectRef| Note {
        object: name.clone(),
        message: message.to_owned(),
    };
    unused.map(note).collect()
}
