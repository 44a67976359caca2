//! Statuses of Gateways and ListenerSets that belong to another controller or to none, in case this controller wrote
//! their present status. Must not know what is stored.

use crate::api::Resource;
use crate::api::gateway::{Gateway, GatewayClass, ListenerSet};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::status::{Condition, GatewayStatus, ListenerSetStatus};

use super::gateway::is_our_class;
use crate::translate::input::{Input, Mode};
use crate::translate::reason::{ConditionType, Reason};

/// Why this controller does not manage an object.
enum Why {
    /// Nobody can: it refers to what does not exist.
    Orphaned(String),
    /// Another controller does.
    Foreign(String),
}

/// Returns the status of a Gateway of another controller; `None` outside of clusters in which this controller writes
/// statuses.
pub(super) fn of_gateway(input: &Input<'_>, gateway: &Gateway) -> Option<GatewayStatus> {
    let is_written = input.options.mode == Mode::Dedicated;
    let why = is_written.then(|| gateway_is_released(input, gateway));
    why.flatten().map(|why| gateway_status(gateway, why))
}

/// Returns the status of a ListenerSet that belongs to no Gateway of this controller; `None` as above.
pub(super) fn of_set(input: &Input<'_>, set: &ListenerSet) -> Option<ListenerSetStatus> {
    let is_written = input.options.mode == Mode::Dedicated;
    is_written.then(|| set_status(set, set_is_released(input, set)))
}

fn gateway_is_released(input: &Input<'_>, gateway: &Gateway) -> Option<Why> {
    let name = &gateway.spec.gateway_class_name;
    if is_our_class(input, name) {
        return None;
    }
    Some(match input.get::<GatewayClass>("", name) {
        None => {
            let class = ObjectRef::new(GATEWAY_GROUP, GatewayClass::KIND, "", name);
            Why::Orphaned(format!("{class} {}", input.absence(&class)))
        }
        Some(class) => Why::Foreign(format!(
            "GatewayClass {name} belongs to controller {}",
            class.spec.controller_name
        )),
    })
}

fn set_is_released(input: &Input<'_>, set: &ListenerSet) -> Why {
    let parent = set.spec.parent_ref.object_ref(&set.metadata.namespace);
    if *parent.group != *GATEWAY_GROUP || *parent.kind != *Gateway::KIND {
        return Why::Foreign(format!("spec.parentRef names {parent}"));
    }
    let Some(gateway) = input.find::<Gateway>(&parent) else {
        return Why::Orphaned(format!("{parent} {}", input.absence(&parent)));
    };
    match gateway_is_released(input, gateway) {
        Some(Why::Foreign(why)) => Why::Foreign(why),
        Some(Why::Orphaned(why)) => Why::Orphaned(format!("{parent} is not accepted: {why}")),
        None => Why::Foreign(format!("{parent} is not served yet")),
    }
}

fn gateway_status(gateway: &Gateway, why: Why) -> GatewayStatus {
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

fn set_status(set: &ListenerSet, why: Why) -> ListenerSetStatus {
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
