//! Status that all kinds of policies share: one entry per Gateway that sends requests to a target, and the condition
//! `Accepted`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::inherited_policy::Unreadable;
use crate::api::parameters;
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;
use crate::status::merge::MAX_ANCESTORS;
use crate::status::{AncestorStatus, Condition, Note};

use crate::translate::changes::Changes;
use crate::translate::input::{Input, Mode};
use crate::translate::memo::Memo;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::report::{Report, put};
use crate::translate::source::Source;

/// The statuses of the policies of a kind.
pub(in crate::translate) struct PolicyStatuses {
    statuses: Memo<Arc<[AncestorStatus]>>,
    /// Why a policy has no effect.
    unused: &'static str,
}

impl Default for PolicyStatuses {
    fn default() -> Self {
        Self::unused_means("no served route sends requests that spec.targetRefs select")
    }
}

impl PolicyStatuses {
    /// Creates an empty set. `unused` says why a policy without status has no effect.
    pub(in crate::translate) fn unused_means(unused: &'static str) -> Self {
        Self {
            statuses: Memo::default(),
            unused,
        }
    }

    /// Updates the statuses of these policies and of those of which a source has changed. `of_policy` returns the
    /// conditions of a policy for each Gateway that sends requests to its targets; `None` if it does not exist.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        changed: Vec<ObjectRef>,
        of_policy: impl Fn(&ObjectRef) -> Option<BTreeMap<ObjectRef, Vec<Condition>>>,
        report: &mut Report,
    ) {
        let mut names = self.statuses.outdated(changes);
        names.extend(changed);
        for name in names {
            let computed = input.reading(|| {
                input.read(|| Source::Object(name.clone()));
                Some(entries(input, of_policy(&name)?))
            });
            self.statuses.replace(&name, computed);
            let status = self.statuses.get(&name);
            let note = status.and_then(|status| note(input, (&name, self.unused), status));
            report.notes.replace(&name, note.into_iter().collect());
            let status = status.filter(|status| !status.is_empty());
            put(&mut report.statuses.policies, &name, status.cloned());
        }
    }
}

/// Returns the entries of a policy, one for each Gateway.
fn entries(
    input: &Input<'_>,
    of_gateways: BTreeMap<ObjectRef, Vec<Condition>>,
) -> Arc<[AncestorStatus]> {
    let entry = |(gateway, conditions): (ObjectRef, Vec<Condition>)| AncestorStatus {
        ancestor_ref: ParentRef::to(&gateway),
        controller_name: input.options.controller_name.clone(),
        conditions,
    };
    of_gateways.into_iter().map(entry).collect()
}

/// Returns the fault of each part of a policy that is not valid.
pub(in crate::translate) fn unreadable_fault(unreadable: &Unreadable) -> Fault {
    let message = format!("the policy is not valid: {}", unreadable.reason);
    Fault::new(Reason::Invalid, message)
}

/// Returns the condition `Accepted` of a policy for a Gateway that sends requests to `targets` of its targets. It is
/// False if the policy is unusable, or if each of these targets has a fault.
pub(in crate::translate) fn accepted(
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

/// Returns the note on a policy that applies to more Gateways than its status has room for, or to none. In a folder, no
/// other controller can use a policy of ours, nor any of a proxy that is alone.
fn note(
    input: &Input<'_>,
    (policy, unused): (&ObjectRef, &str),
    ancestors: &[AncestorStatus],
) -> Option<Note> {
    let is_alone = input.options.mode == Mode::Standalone;
    let is_ours = input.options.is_judged_alone && *policy.group == *parameters::GROUP;
    let message = match ancestors.len() {
        0 if is_alone || is_ours => format!("without effect: {unused}"),
        count if count > MAX_ANCESTORS => format!(
            "it applies to {count} Gateways, and the API permits {MAX_ANCESTORS} entries in status.ancestors: the conditions of the \
             others are not written; target fewer Services with one policy"
        ),
        _ => return None,
    };
    Some(Note {
        object: policy.clone(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshot;
    use crate::translate::input::Options;
    use crate::translate::registry::Registry;

    #[test]
    fn policy_of_more_gateways_than_its_status_has_room_for_gets_a_note() {
        let (snapshot, options) = (Snapshot::default(), Options::default());
        let input = Input::new(&snapshot, None, &options, &Registry);
        let policy = ObjectRef::gateway_api("BackendTLSPolicy", "shop", "tls");
        let of_gateways = |count: usize| {
            let gateway =
                |index: usize| ObjectRef::gateway_api("Gateway", "infra", &index.to_string());
            let of_gateways = (0..count).map(|index| (gateway(index), Vec::new()));
            entries(&input, of_gateways.collect())
        };
        assert_eq!(note(&input, (&policy, ""), &of_gateways(16)), None);
        let note = note(&input, (&policy, ""), &of_gateways(17)).unwrap();
        assert!(note.message.contains("17 Gateways"), "{note:?}");
    }
}
