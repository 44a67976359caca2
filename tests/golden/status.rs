//! The form of a status report in goldens: of each object only what differs from a healthy one.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::differing::differing;
use crate::healthy::HEALTHY;

const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// The listeners in an IR with the numbers of their routes, by the object that declares them.
type Served = BTreeMap<String, Vec<(String, usize)>>;

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn served(ir: &Value) -> Served {
    let mut served = Served::new();
    for listener in items(ir, "ports").flat_map(|port| items(port, "listeners")) {
        let text = |field: &str| listener["key"][field].as_str().map(str::to_owned);
        if let (Some(origin), Some(name)) = (text("origin"), text("name")) {
            let listeners = served.entry(origin).or_default();
            if listeners.iter().all(|(known, _)| *known != name) {
                listeners.push((name, items(listener, "routes").count()));
            }
        }
    }
    served
}

/// Shortens a report. Healthy listeners are those of `ir`.
pub(crate) fn short_status(report: &Value, ir: &Value) -> Value {
    short_report(report, &served(ir))
}

fn short_report(report: &Value, served: &Served) -> Value {
    let Value::Object(fields) = report else {
        return report.clone();
    };
    let mut shown = Map::new();
    for (field, value) in fields {
        match value {
            Value::Object(objects) if HEALTHY[field].is_object() => {
                for (name, status) in objects {
                    let kind = name.split(' ').next().unwrap_or_default();
                    let healthy = &HEALTHY[field][kind];
                    if healthy.is_object() {
                        let listeners = served.get(name).map(Vec::as_slice);
                        let listeners = listeners.unwrap_or_default();
                        shown.insert(
                            name.clone(),
                            short_object(status, field, healthy, listeners),
                        );
                    } else {
                        let others = shown.entry(field).or_insert_with(|| json!({}));
                        others[name] = status.clone();
                    }
                }
            }
            Value::Object(_) if field == "released" => {
                shown.insert(field.clone(), short_report(value, served));
            }
            Value::Array(notes) if field == "notes" && notes.is_empty() => {}
            Value::Array(notes) if field == "notes" => {
                shown.insert(field.clone(), notes.iter().map(short_note).collect());
            }
            other => drop(shown.insert(field.clone(), other.clone())),
        }
    }
    Value::Object(shown)
}

fn short_note(note: &Value) -> Value {
    match (&note["object"], &note["message"]) {
        (Value::String(object), message)
            if *note == json!({"object": object, "message": message}) =>
        {
            json!({object: message})
        }
        _ => note.clone(),
    }
}

fn short_object(status: &Value, field: &str, healthy: &Value, served: &[(String, usize)]) -> Value {
    match status {
        Value::Array(_) if field == "gatewayClasses" => {
            short_fields(&json!({"conditions": status}), healthy.clone())
        }
        Value::Array(entries) => {
            let parent = match field {
                "policies" => "ancestorRef",
                _ => "parentRef",
            };
            let entries = entries.iter();
            entries
                .map(|entry| short_entry(entry, parent, healthy))
                .collect()
        }
        Value::Object(fields) if fields.contains_key("listeners") => {
            let mut status = status.clone();
            status["listeners"] = short_listeners(&status["listeners"], served);
            let mut healthy = healthy.clone();
            let listeners = served.iter().map(|(name, _)| json!({name: "healthy"}));
            healthy["listeners"] = listeners.collect();
            short_fields(&status, healthy)
        }
        _ => short_fields(status, healthy.clone()),
    }
}

/// Shortens the entry for a parent or an ancestor.
fn short_entry(entry: &Value, parent: &str, healthy: &Value) -> Value {
    match short_reference(&entry[parent]) {
        Some(name) => json!({name: short_fields(&without(entry, parent), healthy.clone())}),
        None => short_fields(entry, healthy.clone()),
    }
}

fn without(object: &Value, field: &str) -> Value {
    let mut object = object.clone();
    object
        .as_object_mut()
        .and_then(|fields| fields.remove(field));
    object
}

/// Returns `Gateway namespace/name listener http port 80`, unless the reference has other fields or is of another group.
fn short_reference(reference: &Value) -> Option<String> {
    let mut fields = reference.as_object()?.clone();
    let is_word = |text: &str| !text.is_empty() && !text.contains([' ', '/']);
    let mut take = |field: &str| match fields.remove(field) {
        Some(Value::String(text)) => Some(text).filter(|text| is_word(text)),
        Some(Value::Number(port)) => Some(port.to_string()),
        _ => None,
    };
    let is_known = take("group").is_some_and(|group| group == GATEWAY_GROUP);
    let (kind, name) = (take("kind")?, take("name")?);
    let namespace = take("namespace").map(|namespace| namespace + "/");
    let section = take("sectionName").map(|section| format!(" listener {section}"));
    let port = take("port").map(|port| format!(" port {port}"));
    let [namespace, section, port] = [namespace, section, port].map(Option::unwrap_or_default);
    (is_known && fields.is_empty()).then(|| format!("{kind} {namespace}{name}{section}{port}"))
}

/// Shortens a status to `healthy`, to its conditions, or to the fields that differ.
fn short_fields(status: &Value, mut healthy: Value) -> Value {
    let Value::Object(fields) = status else {
        return status.clone();
    };
    let types: Vec<&str> = healthy["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut fields = fields.clone();
    if let Some(conditions) = fields.get_mut("conditions") {
        *conditions = short_conditions(conditions, &types);
    }
    healthy["conditions"] = json!([]);
    let left = differing(fields, &healthy);
    match left.get("conditions") {
        None if left.is_empty() => json!("healthy"),
        Some(conditions) if left.len() == 1 && conditions.is_array() => conditions.clone(),
        _ => Value::Object(left),
    }
}

fn short_listeners(listeners: &Value, served: &[(String, usize)]) -> Value {
    let Some(listeners) = listeners.as_array() else {
        return listeners.clone();
    };
    let short = |listener: &Value| {
        let Some(name) = listener["name"].as_str() else {
            return listener.clone();
        };
        let mut healthy = HEALTHY["listeners"]["listener"].clone();
        let routes = served.iter().find(|(known, _)| known == name);
        healthy["attachedRoutes"] = json!(routes.map_or(0, |(_, routes)| *routes));
        let mut listener = without(listener, "name");
        if let Some(kinds) = listener.get_mut("supportedKinds") {
            *kinds = short_kinds(kinds);
        }
        json!({name: short_fields(&listener, healthy)})
    };
    listeners.iter().map(short).collect()
}

/// Omits the group of the Gateway API.
fn short_kinds(kinds: &Value) -> Value {
    let Some(kinds) = kinds.as_array() else {
        return kinds.clone();
    };
    let short = |kind: &Value| match &kind["kind"] {
        Value::String(name) if *kind == json!({"group": GATEWAY_GROUP, "kind": name}) => {
            json!(name)
        }
        _ => kind.clone(),
    };
    kinds.iter().map(short).collect()
}

/// Returns the conditions that are not healthy. If a healthy one is missing or another one is not behind them all, returns
/// every condition, after a line for each that is missing.
fn short_conditions(conditions: &Value, healthy: &[&str]) -> Value {
    let Some(conditions) = conditions.as_array() else {
        return conditions.clone();
    };
    let types = conditions.iter().map(|condition| &condition["type"]);
    let types: Vec<_> = types.map(|it| it.as_str().unwrap_or_default()).collect();
    let others = types.strip_prefix(healthy);
    let lines = conditions.iter().map(condition_line);
    if others.is_some_and(|others| others.iter().all(|other| !healthy.contains(other))) {
        let is_healthy = |line: &Value| healthy.iter().any(|it| *line == format!("{it} True {it}"));
        return lines.filter(|line| !is_healthy(line)).collect();
    }
    let missing = healthy.iter().filter(|it| !types.contains(it));
    let missing = missing.map(|it| json!(format!("{it} missing")));
    missing.chain(lines).collect()
}

/// Returns `Type Status Reason @generation: message`.
fn condition_line(condition: &Value) -> Value {
    let text = |field: &str| condition[field].as_str().unwrap_or_default();
    let (kind, status, reason) = (text("type"), text("status"), text("reason"));
    let generation = &condition["observedGeneration"];
    let known = json!({
        "type": kind, "status": status, "reason": reason,
        "message": text("message"), "observedGeneration": generation,
    });
    let is_word = |word: &str| !word.is_empty() && !word.contains([' ', ':', '@']);
    if *condition != known
        || !generation.is_i64()
        || ![kind, status, reason].into_iter().all(is_word)
    {
        return condition.clone();
    }
    let mut line = format!("{kind} {status} {reason}");
    if *generation != 0 {
        line.push_str(&format!(" @{generation}"));
    }
    if !text("message").is_empty() {
        line.push_str(&format!(": {}", text("message")));
    }
    json!(line)
}
