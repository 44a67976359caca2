//! `/config`: the served configuration as JSON. Never contains private keys. Values that may be
//! credentials are included only on request.

use serde_json::{Map, Value, json};

use crate::table::Table;

/// Placeholder for a redacted value.
const REDACTED: &str = "<redacted>";

/// Serializes the configuration. Without `with_values` it names the modified headers and the
/// matched headers and query parameters, but redacts their values. Backends with a hostname include
/// their current addresses.
pub(super) fn json(table: &Table, with_values: bool) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(&*table.ir)?;
    for backend in table.backends() {
        let shown = value["backends"].get_mut(backend.id.to_string());
        let endpoints = shown.and_then(|shown| shown["endpoints"].as_object_mut());
        if let Some(endpoints) = endpoints.filter(|shown| shown.contains_key("hostname")) {
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

/// Whether the query string requests values.
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

/// Header modifications: names with values under `set` and `add`.
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

/// Matches on headers or query parameters, each with a name and a value.
fn redact_matches(matches: &mut [Value]) {
    let values = matches.iter_mut().filter_map(|one| one.get_mut("value"));
    values.for_each(|value| *value = REDACTED.into());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ir::{Backend, Endpoints, Ir, Release, Releases};

    #[test]
    fn shows_releases_as_configured() {
        let backend = Backend::plain(Endpoints::Releases(Releases {
            cookie: Some("rel".into()),
            releases: vec![Release {
                name: "v1".into(),
                weight: 90,
                token: "0123".into(),
                addresses: vec![([10, 0, 0, 1], 8080).into()],
            }],
        }));
        let ir = Ir {
            ports: Vec::new(),
            backends: [Arc::new(backend)].into(),
            ..Ir::default()
        };
        let shown = json(&Table::build(Arc::new(ir), None), false).unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(
            shown["backends"]["Service ns/one:80"]["endpoints"],
            json!({
                "cookie": "rel",
                "releases": [{
                    "name": "v1", "weight": 90, "token": "0123", "endpoints": ["10.0.0.1:8080"],
                }],
            })
        );
    }
}
