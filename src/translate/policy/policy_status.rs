//! Status that all kinds of policies share: one entry per Gateway that sends requests to a target, and the condition
//! `Accepted`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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
    statuses: Memo<Status>,
    /// Why a policy has no effect.
    unused: &'static str,
}

/// What a policy does.
pub(in crate::translate) struct Effect {
    /// Its conditions, for each Gateway that sends requests to its targets.
    pub(in crate::translate) of_gateways: BTreeMap<ObjectRef, Vec<Condition>>,
    /// The objects that it names as targets.
    pub(in crate::translate) targets: Vec<ObjectRef>,
}

/// The status of a policy.
struct Status {
    /// One entry for each Gateway.
    entries: Arc<[AncestorStatus]>,
    /// What is worth a note, if there is no Gateway.
    unused: Option<Box<str>>,
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

    /// Updates the statuses of these policies and of those of which a source has changed. `of_policy` returns what a policy
    /// does; `None` if it does not exist. Earlier versions of policies are no objects, and have no status.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        changed: Vec<ObjectRef>,
        of_policy: impl Fn(&ObjectRef) -> Option<Effect>,
        report: &mut Report,
    ) {
        let mut names = self.statuses.outdated(changes);
        names.extend(changed);
        for name in names.into_iter().filter(|it| it.earlier().is_none()) {
            let computed = input.reading(|| {
                input.read(|| Source::Object(name.clone()));
                let Effect {
                    of_gateways,
                    targets,
                } = of_policy(&name)?;
                let is_noted = of_gateways.is_empty() && notes_unused(input, &name);
                let unused = is_noted.then(|| unused(input, self.unused, &targets).into());
                let entries = entries(input, of_gateways);
                Some(Status { entries, unused })
            });
            self.statuses.replace(&name, computed);
            let status = self.statuses.get(&name);
            let note = status.and_then(|status| note(&name, status));
            report.notes.replace(&name, note.into_iter().collect());
            let entries = status.map(|status| &status.entries);
            let entries = entries.filter(|entries| !entries.is_empty());
            put(&mut report.statuses.policies, &name, entries.cloned());
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

/// Returns the fault of a target that does not exist.
pub(in crate::translate) fn missing_target(input: &Input<'_>, target: &ObjectRef) -> Fault {
    let message = format!("spec.targetRefs: {target} {}", input.absence(target));
    Fault::new(Reason::TargetNotFound, message)
}

/// Returns the fault of a policy for a target to which `winner` applies instead.
pub(in crate::translate) fn conflict(winner: &ObjectRef, target: impl fmt::Display) -> Fault {
    let message = format!(
        "spec.targetRefs: conflicts with {winner}, which takes precedence (older, or first by name) for the same target: {target}"
    );
    Fault::new(Reason::Conflicted, message)
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

/// Reports whether a policy without effect is worth a note. In a folder, no other controller can use a policy of ours, nor
/// any of a proxy that is alone.
fn notes_unused(input: &Input<'_>, policy: &ObjectRef) -> bool {
    let is_alone = input.options.mode == Mode::Standalone;
    is_alone || input.options.is_judged_alone && *policy.group == *parameters::GROUP
}

/// Returns why a policy has no effect: its targets are not there, or what `unused` says.
fn unused(input: &Input<'_>, unused: &str, targets: &[ObjectRef]) -> String {
    let targets: BTreeSet<_> = targets.iter().collect();
    let absent = targets.iter().filter_map(|target| {
        let is_absent = !input.exists(target);
        is_absent.then(|| format!("{target} {}", input.absence(target)))
    });
    let absent: Vec<_> = absent.collect();
    let rest = (absent.len() < targets.len() || absent.is_empty()).then_some(unused);
    let absent = (!absent.is_empty()).then(|| format!("spec.targetRefs: {}", absent.join(", ")));
    let parts: Vec<_> = rest.into_iter().chain(absent.as_deref()).collect();
    parts.join("; ")
}

/// Returns the note on a policy that applies to more Gateways than its status has room for, or to none.
fn note(policy: &ObjectRef, status: &Status) -> Option<Note> {
    let message = match (status.entries.len(), &status.unused) {
        (_, Some(unused)) => format!("without effect: {unused}"),
        (count, None) if count > MAX_ANCESTORS => format!(
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
            Status {
                entries: entries(&input, of_gateways.collect()),
                unused: None,
            }
        };
        assert_eq!(note(&policy, &of_gateways(16)), None);
        let note = note(&policy, &of_gateways(17)).unwrap();
        assert!(note.message.contains("17 Gateways"), "{note:?}");
    }
}
