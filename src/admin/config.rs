//! `/config`: what is served, as JSON. Keys are in no answer; values that may be credentials are in one only when they are
//! asked for.

use serde_json::{Map, Value, json};

use crate::table::Table;

/// What is shown in place of a value.
const REDACTED: &str = "<redacted>";

/// The configuration. Without `with_values` it tells which headers are changed and which headers and query parameters are
/// matched, but not their values. Backends at hostnames are shown with the addresses that these have now.
pub(super) fn json(table: &Table, with_values: bool) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(&*table.ir)?;
    for backend in table.backends() {
        let shown = value["backends"].get_mut(backend.id.to_string());
        let endpoints = shown.and_then(|shown| shown["endpoints"].as_object_mut());
        if let Some(endpoints) = endpoints {
            let addresses = backend.endpoints();
            let addresses: Vec<_> = addresses.iter().map(|it| it.address.ip()).collect();
            endpoints.insert("addresses".to_owned(), json!(addresses));
        }
    }
    if !with_values {
        redact(&mut value);
    }
    serde_json::to_string_pretty(&value)
}

/// Whether a query asks for values.
pub(super) fn asks_for_values(query: Option<&str>) -> bool {
    let parts = query.unwrap_or_default().split('&');
    parts.into_iter().any(|part| part == "values=true")
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("RequestHeaders" | "ResponseHeaders", Value::Object(changes)) => {
                        redact_changes(changes);
                    }
                    ("headers" | "query", Value::Array(matches)) => redact_matches(matches),
                    (_, value) => redact(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        _ => {}
    }
}

/// Changes of headers: names with values under `set` and `add`.
fn redact_changes(changes: &mut Map<String, Value>) {
    let added = changes
        .iter_mut()
        .filter(|(name, _)| ["set", "add"].contains(&name.as_str()));
    for value in added.filter_map(|(_, fields)| fields.as_object_mut()) {
        value
            .values_mut()
            .for_each(|value| *value = REDACTED.into());
    }
}

/// Conditions on headers or query parameters: each a name and a value.
fn redact_matches(matches: &mut [Value]) {
    let values = matches.iter_mut().filter_map(|one| one.get_mut("value"));
    values.for_each(|value| *value = REDACTED.into());
}
