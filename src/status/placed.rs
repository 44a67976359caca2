//! All conditions of a report in one list, each with its object and its place in the object's status.

use serde::Serialize;

use super::condition::Condition;
use super::report::{AncestorStatus, ListenerStatus, ParentRef, ParentStatus, StatusReport};
use crate::ir::ObjectRef;

/// Conditions of an object, or of a part of its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacedConditions<'a> {
    /// The object.
    pub object: &'a ObjectRef,
    /// The part of its status, such as `listener http`; empty for the object itself.
    pub place: String,
    /// The conditions.
    pub conditions: &'a [Condition],
}

impl StatusReport {
    /// Returns the conditions of all objects. Those of one object follow each other, its own first.
    pub fn all_conditions(&self) -> Vec<PlacedConditions<'_>> {
        // Destructured, so that a new kind fails to compile until it is handled here.
        let Self {
            gateway_classes,
            gateways,
            listener_sets,
            routes,
            policies,
            backends,
            release_backends,
            // Of objects that this controller does not manage.
            released: _,
            notes: _,
        } = self;
        let mut all = Vec::new();
        for (object, conditions) in gateway_classes {
            all.push(placed(object, String::new(), conditions));
        }
        for (object, status) in gateways {
            all.push(placed(object, String::new(), &status.conditions));
            of_listeners(object, &status.listeners, &mut all);
        }
        for (object, status) in listener_sets {
            all.push(placed(object, String::new(), &status.conditions));
            of_listeners(object, &status.listeners, &mut all);
        }
        for (object, parents) in routes {
            of_parents(object, "on", parents, &mut all);
        }
        for (object, ancestors) in policies {
            let of = |it: &'_ AncestorStatus| format!("for {}", shown(&it.ancestor_ref));
            let entries = ancestors.iter();
            all.extend(entries.map(|it| placed(object, of(it), &it.conditions)));
        }
        for (object, parents) in backends {
            of_parents(object, "for", parents, &mut all);
        }
        for (object, status) in release_backends {
            all.push(placed(object, String::new(), &status.conditions));
        }
        all
    }
}

fn placed<'a>(
    object: &'a ObjectRef,
    place: String,
    conditions: &'a [Condition],
) -> PlacedConditions<'a> {
    PlacedConditions {
        object,
        place,
        conditions,
    }
}

fn of_listeners<'a>(
    object: &'a ObjectRef,
    listeners: &'a [ListenerStatus],
    all: &mut Vec<PlacedConditions<'a>>,
) {
    for listener in listeners {
        let routes = listener.attached_routes;
        let place = format!("listener {} ({routes} routes)", listener.name);
        all.push(placed(object, place, &listener.conditions));
    }
}

fn of_parents<'a>(
    object: &'a ObjectRef,
    preposition: &str,
    parents: &'a [ParentStatus],
    all: &mut Vec<PlacedConditions<'a>>,
) {
    for parent in parents {
        let place = format!("{preposition} {}", shown(&parent.parent_ref));
        all.push(placed(object, place, &parent.conditions));
    }
}

fn shown(parent: &ParentRef) -> String {
    let listeners = match (&parent.section_name, parent.port) {
        (Some(section), None) => format!("listener {section}"),
        (Some(section), Some(port)) => format!("listener {section}, port {port}"),
        (None, Some(port)) => format!("port {port}"),
        (None, None) => "all listeners".to_owned(),
    };
    format!("{} {} ({listeners})", parent.kind, parent.name)
}
