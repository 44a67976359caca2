//! Status of policies that select no requests because their targets do not exist: which Gateways get an entry, and with
//! which message.

use std::collections::{BTreeMap, BTreeSet};

use super::super::policy_status::missing_target;
use super::policy::{Policy, PolicyTarget};
use super::uses::{Requesters, Uses};
use crate::api::core::ServicePort;
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};

/// Returns the faults of targets that do not exist, by the Gateway that gets the entry. If the object in `from` exists,
/// it is the Gateway that sends its requests. Otherwise it is every Gateway that sends requests to the backend and that
/// the policy could select.
pub(super) fn absent(
    input: &Input<'_>,
    policy: &Policy,
    uses: &Uses,
    requesters: &dyn Requesters,
) -> BTreeMap<ObjectRef, Vec<Fault>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for target in &policy.targets {
        let Some(from) = &target.from else {
            continue;
        };
        let backend = &target.backend;
        let own = &policy.name.namespace;
        let (fault, gateways) = if !exists(input, &from.object) {
            let message = format!(
                "spec.targetRefs.from: {} {}, so no requests to {backend} are selected",
                from.object,
                input.absence(&from.object)
            );
            let all = uses.get(backend).into_iter().flatten();
            let gateways = all.map(|one| &one.gateway);
            let selected = gateways.filter(|it| it.namespace == *own || backend.namespace == *own);
            let selected: BTreeSet<_> = selected.cloned().collect();
            (Fault::new(Reason::TargetNotFound, message), selected)
        } else if let Some(fault) = missing(input, target) {
            (fault, requesters.senders(&from.object))
        } else {
            continue;
        };
        for gateway in gateways {
            found.entry(gateway).or_default().push(fault.clone());
        }
    }
    found
}

fn exists(input: &Input<'_>, from: &ObjectRef) -> bool {
    let is_sender =
        ["Gateway", "ListenerSet"].contains(&&*from.kind) || from.kind.ends_with("Route");
    &*from.group == GATEWAY_GROUP && is_sender && input.exists(from)
}

/// Returns the ports of a target.
pub(super) fn ports<'a>(
    input: &Input<'a>,
    target: &'a PolicyTarget,
) -> Option<impl Iterator<Item = &'a ServicePort>> {
    let PolicyTarget {
        backend, section, ..
    } = target;
    let kinds = &input.options.permissions.backend_kinds;
    let ports = input.kinds.target_ports(input, kinds, backend)?;
    let is_named = |port: &&ServicePort| {
        let section = section.as_deref();
        section.is_none_or(|section| port.name.as_deref() == Some(section))
    };
    Some(ports.iter().filter(is_named))
}

/// Returns the fault of a target that does not exist, or whose port does not.
pub(super) fn missing(input: &Input<'_>, target: &PolicyTarget) -> Option<Fault> {
    let PolicyTarget {
        backend, section, ..
    } = target;
    let Some(mut ports) = ports(input, target) else {
        return Some(missing_target(input, backend));
    };
    let section = section.as_ref().filter(|_| ports.next().is_none())?;
    let message = format!("spec.targetRefs: {backend} has no port named {section}");
    Some(Fault::new(Reason::TargetNotFound, message))
}
