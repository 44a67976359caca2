//! The form of a translation in goldens: short, with the first difference from another one.

use std::collections::{BTreeMap, BTreeSet};

use portcullis::ir::BindReport;
use portcullis::translate::Translation;
use serde_json::{Map, Value, json};

pub(crate) fn difference(expected: &str, actual: &str) -> String {
    let first = expected
        .lines()
        .zip(actual.lines())
        .position(|(one, two)| one != two);
    let from = first.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    let part = |text: &str| {
        let lines: Vec<_> = text.lines().skip(from.saturating_sub(3)).take(12).collect();
        lines.join("\n")
    };
    format!("expected\n{}\nbut got\n{}", part(expected), part(actual))
}

pub(crate) fn shown(translation: &Translation, binds: &Option<BindReport>) -> Value {
    let ir = serde_json::to_value(&translation.ir).expect("an IR is serializable");
    let report = match binds {
        Some(binds) => translation.report.clone().with_binds(binds),
        None => translation.report.clone(),
    };
    let status = serde_json::to_value(&report).expect("a report is serializable");
    let problems: Vec<_> = report
        .problems()
        .map(|(object, problem)| format!("{object}: {problem}"))
        .collect();
    let planes = translation.data_planes.iter();
    let planes: BTreeMap<_, _> = planes
        .map(|(name, plane)| (name.to_string(), plane))
        .collect();
    let shown =
        json!({"dataPlanes": planes, "ir": ir, "status": status, "problems": problems.len()});
    shorten(shown).unwrap_or(Value::Null)
}

/// Omits empty parts, and writes some objects on one line. `None` if nothing is left.
fn shorten(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let items = items
                .into_iter()
                .map(|item| shorten(item).unwrap_or(json!({})));
            Some(Value::Array(items.collect()))
        }
        Value::Object(fields) => {
            if let Some(line) = one_line(&fields) {
                return Some(Value::String(line));
            }
            let kept: Map<_, _> = fields
                .into_iter()
                .filter(|(name, value)| !(name == "attachedListenerSets" && *value == 0))
                .filter_map(|(name, value)| {
                    let value = match name.as_str() {
                        "sha256" | "not_after" => return None,
                        "ir" | "status" => shorten(value).unwrap_or(json!({})),
                        // Empty values of these fields have a meaning: 500, 503, no route at all.
                        "Forward" | "endpoints" | "supportedKinds" => {
                            shorten(value).unwrap_or(json!([]))
                        }
                        _ => shorten(value)?,
                    };
                    Some((name, value))
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        leaf => Some(leaf),
    }
}

fn one_line(fields: &Map<String, Value>) -> Option<String> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let names: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
    if names == BTreeSet::from(["index", "name", "route"]) {
        let name = text("name")
            .map(|name| format!(" {name}"))
            .unwrap_or_default();
        return Some(format!("{}{name}", fields["index"]));
    }
    if names == BTreeSet::from(["name", "origin"]) {
        return Some(format!("{} listener {}", text("origin")?, text("name")?));
    }
    if names == BTreeSet::from(["group", "kind"]) {
        return text("kind").map(str::to_owned);
    }
    if names.contains("observedGeneration") {
        let mut line = format!("{} {} {}", text("type")?, text("status")?, text("reason")?);
        if fields["observedGeneration"] != 0 {
            line.push_str(&format!(" @{}", fields["observedGeneration"]));
        }
        if let Some(message) = text("message").filter(|message| !message.is_empty()) {
            line.push_str(&format!(": {message}"));
        }
        return Some(line);
    }
    None
}
