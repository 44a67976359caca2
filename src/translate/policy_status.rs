//! Status that all kinds of policies share: one entry per Gateway that sends requests to a target, and the condition
//! `Accepted`.

use std::collections::BTreeMap;

use crate::ir::ObjectRef;
use crate::status::merge::MAX_ANCESTORS;
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

/// Returns notes on policies that apply to more Gateways than their status has room for.
pub(super) fn crowded(statuses: &PolicyStatuses) -> Vec<Note> {
    let crowded = statuses
        .iter()
        .filter(|(_, ancestors)| ancestors.len() > MAX_ANCESTORS);
    let note = |(name, ancestors): (&ObjectRef, &Vec<AncestorStatus>)| Note {
        object: name.clone(),
        message: format!(
            "it applies to {} Gateways, and the API permits {MAX_ANCESTORS} entries in status.ancestors: the conditions of the \
             others are not written; target fewer Services with one policy",
            ancestors.len()
        ),
    };
    crowded.map(note).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_of_more_gateways_than_its_status_has_room_for_gets_a_note() {
        let statuses = |count: usize| -> PolicyStatuses {
            let entry = |index: usize| AncestorStatus {
                ancestor_ref: parent_ref(&ObjectRef::gateway_api(
                    "Gateway",
                    "infra",
                    &index.to_string(),
                )),
                controller_name: "example.com/ours".into(),
                conditions: Vec::new(),
            };
            let policy = ObjectRef::gateway_api("BackendTLSPolicy", "shop", "tls");
            [(policy, (0..count).map(entry).collect())].into()
        };
        assert!(crowded(&statuses(16)).is_empty());
        let notes = crowded(&statuses(17));
        assert!(notes[0].message.contains("17 Gateways"), "{notes:?}");
    }
}
