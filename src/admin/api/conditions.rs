//! Conditions in documents, and the documents of conditions: of all objects, and of policies.

use serde_json::{Value, json};

use super::query::Query;
use crate::status::{Condition, PlacedConditions, StatusReport};

/// The policies with the Gateways, ListenerSets and Services for which they have conditions.
pub(super) fn policies(report: &StatusReport, query: &Query) -> Value {
    let is_policy = |it: &PlacedConditions<'_>| report.policies.get(it.object).is_some();
    let (policies, total) = part(report, query, "policy", is_policy);
    json!({"total": total, "policies": policies})
}

/// All objects that have conditions, with the parts of them.
pub(super) fn all(report: &StatusReport, query: &Query) -> Value {
    let (conditions, total) = part(report, query, "object", |_| true);
    json!({"total": total, "conditions": conditions})
}

/// Returns the objects that a query asks for, and how many there are. `name` is the member for the name of the object.
fn part(
    report: &StatusReport,
    query: &Query,
    name: &str,
    is_shown: impl Fn(&PlacedConditions<'_>) -> bool,
) -> (Vec<Value>, usize) {
    let text = |placed: &PlacedConditions<'_>| {
        let mut text = format!("{} {}", placed.object, placed.place);
        for condition in placed.conditions {
            text.push_str(&format!(" {condition}"));
        }
        text
    };
    let view = |placed: PlacedConditions<'_>| {
        json!({
            name: placed.object.to_string(),
            "for": placed.place.to_string(),
            "conditions": conditions(&placed),
        })
    };
    let objects = report.conditions().into_iter().filter(is_shown);
    let part = query.part(objects, text, view);
    (part.items, part.total)
}

/// The conditions of an object, or of a part of it.
pub(super) fn conditions(placed: &PlacedConditions<'_>) -> Vec<Value> {
    let condition = |it: &Condition| {
        json!({
            "type": it.kind, "status": it.status, "reason": it.reason, "message": it.message,
            "problem": placed.is_problem(it),
        })
    };
    placed.conditions.iter().map(condition).collect()
}
