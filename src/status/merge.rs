//! Merges desired conditions into an object's stored status, condition by condition and parent by
//! parent. Entries of other controllers stay unchanged. Pure; the caller passes the time.

use serde_json::{Map, Value, json};

use super::condition::{Condition, ConditionType};
use super::release_backend::ReleaseBackendStatus;
use super::report::{
    AncestorStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, ParentStatus,
};
use crate::api::reference::ParentRef;

/// Maximum length of a condition's message (`maxLength` 32768 in the CRDs).
const MAX_MESSAGE: usize = 32_768;
/// Maximum number of conditions of an object, a listener, a parent or an ancestor (`maxItems` in the CRDs).
const MAX_CONDITIONS: usize = 8;
/// Maximum number of parents in the status of a route or a backend (`maxItems` in the CRDs).
const MAX_PARENTS: usize = 32;
/// Maximum number of ancestors in a policy's status (`maxItems` in the CRDs).
pub const MAX_ANCESTORS: usize = 16;

/// A status list with one entry per controller and Gateway or ListenerSet.
#[derive(Clone, Copy)]
struct List {
    /// Name of the field that refers to the Gateway or ListenerSet.
    reference: &'static str,
    max: usize,
}

const PARENTS: List = List {
    reference: "parentRef",
    max: MAX_PARENTS,
};
const ANCESTORS: List = List {
    reference: "ancestorRef",
    max: MAX_ANCESTORS,
};

/// One entry of such a list.
type Entry<'a> = (&'a ParentRef, &'a [Condition]);

/// The desired status of one object.
#[derive(Clone, Copy, Debug)]
pub enum DesiredStatus<'a> {
    /// A GatewayClass: conditions and supported features.
    GatewayClass(&'a [Condition], &'a [&'a str]),
    /// A Gateway.
    Gateway(&'a GatewayStatus),
    /// A ListenerSet.
    ListenerSet(&'a ListenerSetStatus),
    /// An XListenerSet, whose listeners have ports in their status.
    ExperimentalListenerSet(&'a ListenerSetStatus),
    /// A route or a backend: the entries of the named controller; may be empty.
    Parents(&'a str, &'a [ParentStatus]),
    /// A policy: the entries of the named controller; may be empty.
    Policy(&'a str, &'a [AncestorStatus]),
    /// A ReleaseBackend.
    ReleaseBackend(&'a ReleaseBackendStatus),
}

/// The stored status has a newer `observedGeneration`: the desired status was computed from an
/// outdated object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleStatus;

/// Returns the fields of `status` to replace, or `None` if the stored status is as desired. `now`
/// is the `lastTransitionTime` of conditions that change their status (RFC 3339).
///
/// # Errors
/// When a stored condition of this controller has a later `observedGeneration` than the desired
/// one.
pub fn merge(
    stored: &Value,
    desired: DesiredStatus<'_>,
    now: &str,
) -> Result<Option<Value>, StaleStatus> {
    let merged = match desired {
        DesiredStatus::GatewayClass(conditions, features) => json!({
            "conditions": merge_conditions(&stored["conditions"], conditions, now)?,
            "supportedFeatures": features.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        }),
        DesiredStatus::Gateway(status) => json!({
            "addresses": status.addresses,
            "attachedListenerSets": status.attached_listener_sets,
            "conditions": merge_conditions(&stored["conditions"], &status.conditions, now)?,
            "listeners": merge_listeners(&stored["listeners"], &status.listeners, now)?,
        }),
        DesiredStatus::ListenerSet(status) => json!({
            "conditions": merge_conditions(&stored["conditions"], &status.conditions, now)?,
            "listeners": merge_listeners(&stored["listeners"], &status.listeners, now)?,
        }),
        DesiredStatus::ExperimentalListenerSet(status) => {
            // The CRD refuses port 0. Such a listener is not accepted, which the conditions of the set say.
            let shown = status.listeners.iter().filter(|it| it.port > 0);
            let listeners: Vec<_> = shown.cloned().collect();
            let mut merged = merge_listeners(&stored["listeners"], &listeners, now)?;
            for (listener, status) in merged.as_array_mut().into_iter().flatten().zip(&listeners) {
                listener["port"] = status.port.into();
            }
            json!({
                "conditions": merge_conditions(&stored["conditions"], &status.conditions, now)?,
                "listeners": merged,
            })
        }
        DesiredStatus::Parents(controller, parents) => {
            let entries: Vec<_> = parents
                .iter()
                .map(|it| (&it.parent_ref, &*it.conditions))
                .collect();
            json!({"parents": merge_entries(&stored["parents"], PARENTS, controller, &entries, now)?})
        }
        DesiredStatus::Policy(controller, ancestors) => {
            let entries: Vec<_> = ancestors
                .iter()
                .map(|it| (&it.ancestor_ref, &*it.conditions))
                .collect();
            json!({"ancestors": merge_entries(&stored["ancestors"], ANCESTORS, controller, &entries, now)?})
        }
        DesiredStatus::ReleaseBackend(status) => json!({
            "conditions": merge_conditions(&stored["conditions"], &status.conditions, now)?,
            "releases": status.releases,
        }),
    };
    Ok(differs(stored, &merged).then_some(merged))
}

/// Reports whether any merged field differs from the stored one. A missing list equals an empty one.
fn differs(stored: &Value, merged: &Value) -> bool {
    let is_same = |(name, value): (&String, &Value)| match stored.get(name) {
        Some(stored) => stored == value,
        None => value.as_array().is_some_and(Vec::is_empty) || *value == 0,
    };
    !merged
        .as_object()
        .is_some_and(|members| members.iter().all(is_same))
}

/// Replaces this controller's conditions in place and keeps conditions of other types. The last desired ones are omitted if
/// they have no room: an API server would refuse the whole status.
fn merge_conditions(
    stored: &Value,
    desired: &[Condition],
    now: &str,
) -> Result<Value, StaleStatus> {
    let own = |old: &Value| old["type"].as_str().and_then(ConditionType::parse);
    let foreign = items(stored).map(own).filter(Option::is_none).count();
    let room = MAX_CONDITIONS.saturating_sub(foreign);
    let desired = &desired[..desired.len().min(room)];
    let mut merged = Vec::new();
    let mut written = Vec::new();
    for old in items(stored) {
        let Some(kind) = own(old) else {
            merged.push(old.clone());
            continue;
        };
        let Some(condition) = desired.iter().find(|condition| condition.kind == kind) else {
            continue;
        };
        // A missing generation counts as older: `None` is less than any `Some`.
        if old["observedGeneration"].as_i64() > Some(condition.observed_generation) {
            return Err(StaleStatus);
        }
        let has_turned = old["status"] != json!(condition.status);
        let since = old["lastTransitionTime"].as_str().filter(|_| !has_turned);
        merged.push(render(condition, since.unwrap_or(now)));
        written.push(kind);
    }
    let new = desired
        .iter()
        .filter(|condition| !written.contains(&condition.kind));
    merged.extend(new.map(|condition| render(condition, now)));
    Ok(Value::Array(merged))
}

fn render(condition: &Condition, since: &str) -> Value {
    let message: String = condition.message.chars().take(MAX_MESSAGE).collect();
    json!({
        "type": condition.kind,
        "status": condition.status,
        "reason": condition.reason,
        "message": message,
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": since,
    })
}

/// Merges listeners. An entry belongs to this controller, but others may have added conditions to it.
fn merge_listeners(
    stored: &Value,
    desired: &[ListenerStatus],
    now: &str,
) -> Result<Value, StaleStatus> {
    let listener = |listener: &ListenerStatus| {
        let old = items(stored).find(|old| old["name"].as_str() == Some(&*listener.name));
        let conditions = &old.unwrap_or(&Value::Null)["conditions"];
        Ok(json!({
            "name": listener.name,
            "attachedRoutes": listener.attached_routes,
            "supportedKinds": listener.supported_kinds,
            "conditions": merge_conditions(conditions, &listener.conditions, now)?,
        }))
    };
    desired
        .iter()
        .map(listener)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
}

/// Keeps entries of other controllers in their places, and makes this controller's entries the
/// desired ones.
fn merge_entries(
    stored: &Value,
    list: List,
    controller: &str,
    desired: &[Entry<'_>],
    now: &str,
) -> Result<Value, StaleStatus> {
    let render = |(reference, conditions): &Entry<'_>, stored: &Value| {
        let mut entry = json!({
            "controllerName": controller,
            "conditions": merge_conditions(stored, conditions, now)?,
        });
        entry[list.reference] = json!(reference);
        Ok(entry)
    };
    let mut merged = Vec::new();
    let mut written = Vec::new();
    let mut omitted = 0;
    for old in items(stored) {
        if old["controllerName"] != *controller {
            merged.push(old.clone());
            continue;
        }
        let found = desired
            .iter()
            .position(|(reference, _)| is_same_parent(&old[list.reference], reference));
        if let Some(index) = found.filter(|index| !written.contains(index)) {
            merged.push(render(&desired[index], &old["conditions"])?);
            written.push(index);
        }
    }
    for (index, entry) in desired.iter().enumerate() {
        if written.contains(&index) {
            continue;
        }
        match merged.len() < list.max {
            true => merged.push(render(entry, &Value::Null)?),
            false => omitted += 1,
        }
    }
    if omitted > 0 {
        note_omitted(&mut merged, list, controller, omitted);
    }
    Ok(Value::Array(merged))
}

/// Says in the first condition of this controller's last entry how many entries have no room.
fn note_omitted(entries: &mut [Value], list: List, controller: &str, omitted: usize) {
    let mut ours = entries.iter_mut().rev();
    let Some(last) = ours.find(|entry| entry["controllerName"] == *controller) else {
        return;
    };
    let message = last["conditions"][0]["message"].as_str();
    let message = message.filter(|message| !message.is_empty());
    let before = message.map(|message| format!("{message}; "));
    let all = format!(
        "{}it applies to {omitted} more, whose conditions have no room: the API permits {} entries",
        before.unwrap_or_default(),
        list.max
    );
    if let Some(message) = last.pointer_mut("/conditions/0/message") {
        *message = json!(all.chars().take(MAX_MESSAGE).collect::<String>());
    }
}

/// Reports whether both references are identical, field by field.
fn is_same_parent(stored: &Value, desired: &ParentRef) -> bool {
    let empty = Map::new();
    let desired = json!(desired);
    let (stored, desired) = (
        stored.as_object().unwrap_or(&empty),
        desired.as_object().unwrap_or(&empty),
    );
    let names = ["group", "kind", "namespace", "name", "sectionName", "port"];
    names
        .iter()
        .all(|name| stored.get(*name) == desired.get(*name))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::status::{Address, ConditionStatus, Percent, Reason, ReleaseStatus, RouteKind};

    const OURS: &str = "portcullis.dev/gateway-controller";
    const BEFORE: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-02-02T00:00:00Z";

    fn accepted(generation: i64) -> Condition {
        Condition::holds(ConditionType::Accepted, Reason::Accepted, generation)
    }

    fn stored(kind: &str, status: &str, generation: i64) -> Value {
        json!({
            "type": kind, "status": status, "reason": kind, "message": "",
            "observedGeneration": generation, "lastTransitionTime": BEFORE,
        })
    }

    fn parent(name: &str, generation: i64) -> ParentStatus {
        ParentStatus {
            parent_ref: ParentRef {
                group: "gateway.networking.k8s.io".into(),
                kind: "Gateway".into(),
                namespace: None,
                name: name.into(),
                section_name: None,
                port: None,
            },
            controller_name: OURS.into(),
            conditions: vec![accepted(generation)],
        }
    }

    fn entry(controller: &str, name: &str, generation: i64) -> Value {
        json!({
            "parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name},
            "controllerName": controller,
            "conditions": [stored("Accepted", "True", generation)],
        })
    }

    fn class(stored: &Value, conditions: &[Condition]) -> Option<Value> {
        merge(
            stored,
            DesiredStatus::GatewayClass(conditions, &["Gateway"]),
            NOW,
        )
        .unwrap()
    }

    fn route(stored: &Value, parents: &[ParentStatus]) -> Option<Value> {
        merge(stored, DesiredStatus::Parents(OURS, parents), NOW).unwrap()
    }

    #[test]
    fn unchanged_status_needs_no_write() {
        let conditions = json!([stored("Accepted", "True", 3)]);
        let status = json!({"conditions": conditions, "supportedFeatures": [{"name": "Gateway"}]});
        assert_eq!(class(&status, &[accepted(3)]), None);
        let parents = json!({"parents": [entry(OURS, "a", 3)]});
        assert_eq!(route(&parents, &[parent("a", 3)]), None);
        assert_eq!(route(&Value::Null, &[]), None);
    }

    #[test]
    fn keeps_last_transition_time_until_the_status_changes() {
        let status = json!({"conditions": [stored("Accepted", "True", 3)]});
        let merged = class(&status, &[accepted(4)]).unwrap();
        assert_eq!(merged["conditions"][0]["observedGeneration"], 4);
        assert_eq!(merged["conditions"][0]["lastTransitionTime"], BEFORE);
        let refused = Condition::fails(ConditionType::Accepted, Reason::InvalidParameters, "", 4);
        let merged = class(&status, &[refused]).unwrap();
        assert_eq!(
            merged["conditions"][0]["status"],
            json!(ConditionStatus::False)
        );
        assert_eq!(merged["conditions"][0]["lastTransitionTime"], NOW);
    }

    #[test]
    fn removes_own_obsolete_conditions_and_keeps_those_of_others() {
        let foreign = stored("example.com/Ready", "True", 1);
        let status = json!({"conditions": [
            stored("Conflicted", "True", 1), foreign, stored("Accepted", "True", 1),
            stored("portcullis.dev/Shadowed", "True", 1),
        ]});
        let merged = class(&status, &[accepted(1)]).unwrap();
        assert_eq!(
            merged["conditions"],
            json!([foreign, stored("Accepted", "True", 1)])
        );
    }

    #[test]
    fn last_conditions_are_omitted_where_they_have_no_room() {
        let kinds = [
            ConditionType::Accepted,
            ConditionType::Programmed,
            ConditionType::ResolvedRefs,
            ConditionType::InsecureFrontendValidationMode,
            ConditionType::DefaultGateway,
            ConditionType::AccessPolicyAffected,
            ConditionType::ClientPolicyAffected,
            ConditionType::RateLimitPolicyAffected,
            ConditionType::RoutePolicyAffected,
        ];
        let desired = kinds.map(|kind| Condition::holds(kind, Reason::Accepted, 1));
        let types = |merged: &Value| -> Value {
            let conditions = items(&merged["conditions"]);
            conditions.map(|it| it["type"].clone()).collect()
        };
        let mut status = class(&Value::Null, &desired).unwrap();
        assert_eq!(types(&status), json!(&kinds[..8]));
        assert_eq!(class(&status, &desired), None);
        // Others have taken two places, one of them that of a condition that comes first.
        status["conditions"][2] = stored("example.com/Checked", "True", 1);
        status["conditions"][7] = stored("example.com/Ready", "True", 1);
        let merged = class(&status, &desired).unwrap();
        let expected = json!([
            "Accepted",
            "Programmed",
            "example.com/Checked",
            "InsecureFrontendValidationMode",
            "DefaultGateway",
            "portcullis.dev/AccessPolicyAffected",
            "example.com/Ready",
            "ResolvedRefs",
        ]);
        assert_eq!(types(&merged), expected);
        assert_eq!(class(&merged, &desired), None);
    }

    #[test]
    fn never_overwrites_conditions_of_a_later_generation() {
        let status = json!({"conditions": [stored("Accepted", "True", 5)]});
        let desired = [accepted(4)];
        assert_eq!(
            merge(&status, DesiredStatus::GatewayClass(&desired, &[]), NOW),
            Err(StaleStatus)
        );
        let status = json!({"parents": [entry(OURS, "a", 5)]});
        assert_eq!(
            merge(
                &status,
                DesiredStatus::Parents(OURS, &[parent("a", 4)]),
                NOW
            ),
            Err(StaleStatus)
        );
        // A later generation in an entry of another controller has no effect.
        let status = json!({"parents": [entry("other.example/controller", "a", 5)]});
        assert!(route(&status, &[parent("a", 4)]).is_some());
    }

    #[test]
    fn keeps_entries_of_other_controllers_in_place() {
        let other = |name| entry("other.example/controller", name, 1);
        let status = json!({"parents": [other("a"), entry(OURS, "b", 1), other("c")]});
        let merged = route(&status, &[parent("c", 1)]).unwrap();
        let parents = merged["parents"].as_array().unwrap();
        assert_eq!(parents[..2], [other("a"), other("c")]);
        assert_eq!(parents[2]["parentRef"]["name"], "c");
        assert_eq!(parents.len(), 3);
        assert_eq!(
            route(&status, &[]).unwrap()["parents"],
            json!([other("a"), other("c")])
        );
    }

    #[test]
    fn keeps_entries_of_a_pool_that_name_no_controller() {
        let mut unnamed = entry("", "a", 1);
        unnamed
            .as_object_mut()
            .and_then(|it| it.remove("controllerName"));
        let status = json!({"parents": [unnamed, entry(OURS, "a", 1)]});
        assert_eq!(route(&status, &[parent("a", 1)]), None);
        assert_eq!(route(&status, &[]).unwrap()["parents"], json!([unnamed]));
    }

    #[test]
    fn removes_duplicate_entries() {
        let status = json!({"parents": [entry(OURS, "a", 1), entry(OURS, "a", 1)]});
        let merged = route(&status, &[parent("a", 1)]).unwrap();
        assert_eq!(merged["parents"], json!([entry(OURS, "a", 1)]));
    }

    #[test]
    fn bounds_status_by_the_limits_of_the_crds() {
        let others: Vec<_> = (0..MAX_PARENTS)
            .map(|index| entry("other", &index.to_string(), 1))
            .collect();
        assert_eq!(route(&json!({"parents": others}), &[parent("a", 1)]), None);
        let long = "é".repeat(MAX_MESSAGE + 1);
        let refused = Condition::fails(ConditionType::Accepted, Reason::Invalid, &long, 1);
        let merged = class(&Value::Null, &[refused]).unwrap();
        let message = merged["conditions"][0]["message"].as_str().unwrap();
        assert_eq!(message.chars().count(), MAX_MESSAGE);
    }

    #[test]
    fn merges_policy_ancestors_like_route_parents() {
        let ancestor = |name: &str| AncestorStatus {
            ancestor_ref: parent(name, 1).parent_ref,
            controller_name: OURS.into(),
            conditions: vec![accepted(1)],
        };
        let of = |count: usize| -> Vec<_> {
            (0..count)
                .map(|index| ancestor(&index.to_string()))
                .collect()
        };
        let mut other = entry("other", "a", 1);
        other["ancestorRef"] = other["parentRef"].take();
        let merge = |status: &Value, desired: &[AncestorStatus]| {
            merge(status, DesiredStatus::Policy(OURS, desired), NOW).unwrap()
        };
        let stored = json!({"ancestors": [other]});
        let merged = merge(&stored, &of(MAX_ANCESTORS + 4)).unwrap();
        let ancestors = merged["ancestors"].as_array().unwrap();
        assert_eq!(ancestors.len(), MAX_ANCESTORS);
        assert_eq!(
            (&ancestors[0], &ancestors[1]["ancestorRef"]["name"]),
            (&other, &json!("0"))
        );
        let said = |index: usize| ancestors[index]["conditions"][0]["message"].as_str();
        let omitted =
            "it applies to 5 more, whose conditions have no room: the API permits 16 entries";
        assert_eq!(said(MAX_ANCESTORS - 1), Some(omitted));
        assert_eq!(said(MAX_ANCESTORS - 2), Some(""));
        assert_eq!(merge(&merged, &of(MAX_ANCESTORS + 4)), None);
        assert_eq!(merge(&merged, &[]), Some(stored));
    }

    #[test]
    fn replaces_listeners_and_keeps_conditions_of_others() {
        let foreign = stored("example.com/Ready", "True", 1);
        let listener = ListenerStatus {
            name: "http".into(),
            attached_routes: 2,
            supported_kinds: [RouteKind {
                group: "gateway.networking.k8s.io".into(),
                kind: "HTTPRoute".into(),
            }]
            .into(),
            conditions: Arc::new(vec![accepted(1)]),
            port: 80,
            hostname: crate::ir::Hostname::Any,
            binds: Vec::new(),
        };
        let gateway = GatewayStatus {
            conditions: vec![accepted(1)],
            addresses: vec![Address::Hostname(Arc::from("lb.example"))],
            attached_listener_sets: 0,
            listeners: vec![listener],
        };
        let status = json!({"listeners": [
            {"name": "gone", "conditions": []}, {"name": "http", "conditions": [foreign]},
        ]});
        let merged = merge(&status, DesiredStatus::Gateway(&gateway), NOW)
            .unwrap()
            .unwrap();
        assert_eq!(
            merged["addresses"],
            json!([{"type": "Hostname", "value": "lb.example"}])
        );
        let listeners = merged["listeners"].as_array().unwrap();
        assert_eq!(listeners.len(), 1);
        assert_eq!(listeners[0]["attachedRoutes"], 2);
        assert_eq!(listeners[0]["conditions"][0], foreign);
        assert_eq!(listeners[0]["conditions"][1]["type"], "Accepted");
    }

    #[test]
    fn replaces_releases_and_keeps_conditions_of_a_release_backend() {
        let desired = |ready| ReleaseBackendStatus {
            conditions: vec![accepted(1)],
            releases: vec![ReleaseStatus {
                value: "v1".into(),
                ready,
                weight: 1,
                effective_percent: Percent::of(1, 3),
            }],
            gateways: Vec::new(),
        };
        let foreign = stored("example.com/Ready", "True", 1);
        let status =
            json!({"conditions": [foreign, stored("Accepted", "True", 1)], "releases": []});
        let of = |status: &Value, ready| {
            merge(status, DesiredStatus::ReleaseBackend(&desired(ready)), NOW).unwrap()
        };
        let merged = of(&status, 2).unwrap();
        assert_eq!(merged["conditions"][0], foreign);
        assert_eq!(merged["conditions"][1]["lastTransitionTime"], BEFORE);
        let release = json!({"value": "v1", "ready": 2, "weight": 1, "effectivePercent": 33.33});
        assert_eq!(merged["releases"], json!([release]));
        assert_eq!(of(&merged, 2), None);
        let changed = of(&merged, 3).unwrap();
        assert_eq!(changed["releases"][0]["ready"], 3);
        assert_eq!(changed["conditions"], merged["conditions"]);
    }
}
