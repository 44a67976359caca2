//! Statuses of Gateways and ListenerSets that belong to another controller or to none, in case this controller wrote
//! their present status. Must not know what is stored.

use std::collections::BTreeSet;

use crate::api::Resource;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::status::{Condition, GatewayStatus, ListenerSetStatus, Released};

use super::gateway::Classes;
use super::listener_set::{SetDraft, parent_name};
use super::reason::{ConditionType, Reason};
use super::{Input, Mode};

/// Why this controller does not manage an object.
enum Why {
    /// Nobody can: it refers to what does not exist.
    Orphaned(String),
    /// Another controller does.
    Foreign(String),
}

/// Returns the statuses; none outside of clusters in which this controller writes statuses.
pub(super) fn statuses(input: &Input<'_>, classes: &Classes, sets: &[SetDraft]) -> Released {
    let mut released = Released::default();
    if input.options.mode != Mode::Dedicated {
        return released;
    }
    for gateway in input.snapshot.gateways.iter() {
        if let Some(why) = gateway_is_released(input, classes, gateway) {
            let status = of_gateway(gateway, why);
            released.gateways.insert(gateway.object_ref(), status);
        }
    }
    let managed: BTreeSet<&ObjectRef> = sets.iter().map(|draft| &draft.name).collect();
    for set in input.snapshot.listener_sets.iter() {
        let name = set.object_ref();
        if !managed.contains(&name) {
            let status = of_set(set, set_is_released(input, classes, set));
            released.listener_sets.insert(name, status);
        }
    }
    released
}

fn gateway_is_released(input: &Input<'_>, classes: &Classes, gateway: &Gateway) -> Option<Why> {
    let name = &gateway.spec.gateway_class_name;
    if classes.are_ours(name) {
        return None;
    }
    Some(match input.snapshot.gateway_classes.get("", name) {
        None => Why::Orphaned(format!("GatewayClass {name} does not exist")),
        Some(class) => Why::Foreign(format!(
            "GatewayClass {name} belongs to controller {}",
            class.spec.controller_name
        )),
    })
}

fn set_is_released(input: &Input<'_>, classes: &Classes, set: &ListenerSet) -> Why {
    let parent: ObjectRef = parent_name(set);
    if *parent.group != *GATEWAY_GROUP || *parent.kind != *Gateway::KIND {
        return Why::Foreign(format!("spec.parentRef names {parent}"));
    }
    let gateways = &input.snapshot.gateways;
    let Some(gateway) = gateways.get(&parent.namespace, &parent.name) else {
        return Why::Orphaned(format!("{parent} does not exist"));
    };
    match gateway_is_released(input, classes, gateway) {
        Some(Why::Foreign(why)) => Why::Foreign(why),
        Some(Why::Orphaned(why)) => Why::Orphaned(format!("{parent} is not accepted: {why}")),
        None => Why::Foreign(format!("{parent} is not served yet")),
    }
}

fn of_gateway(gateway: &Gateway, why: Why) -> GatewayStatus {
    let generation = gateway.metadata.generation;
    let conditions = match why {
        Why::Orphaned(why) => {
            let message = format!("no controller serves the Gateway: {why}");
            vec![
                Condition::unknown(ConditionType::Accepted, &message, generation),
                Condition::fails(
                    ConditionType::Programmed,
                    Reason::Pending,
                    &message,
                    generation,
                ),
            ]
        }
        Why::Foreign(why) => unknown(&why, generation),
    };
    GatewayStatus {
        conditions,
        ..GatewayStatus::default()
    }
}

fn of_set(set: &ListenerSet, why: Why) -> ListenerSetStatus {
    let generation = set.metadata.generation;
    let fails = |kind, reason, why: &str| Condition::fails(kind, reason, why, generation);
    let conditions = match why {
        Why::Orphaned(why) => vec![
            fails(ConditionType::Accepted, Reason::ParentNotAccepted, &why),
            fails(ConditionType::Programmed, Reason::ParentNotProgrammed, &why),
        ],
        Why::Foreign(why) => unknown(&why, generation),
    };
    ListenerSetStatus {
        conditions,
        listeners: Vec::new(),
    }
}

/// Returns what the API server sets in a new object, so that the other controller finds it as if it were new.
fn unknown(why: &str, generation: i64) -> Vec<Condition> {
    let message = format!("waiting for its controller: {why}");
    let kinds = [ConditionType::Accepted, ConditionType::Programmed];
    kinds
        .map(|kind| Condition::unknown(kind, &message, generation))
        .to_vec()
}
