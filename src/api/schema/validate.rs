//! Validates a value against its schema and collects all violations, with the messages of an API server. Does not
//! evaluate CEL rules.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::format::Format;
use super::hint;
use super::node::{ListType, Node, Schema, Type};
use super::path::Path;
use super::pattern::Pattern;
use crate::api::violation::Violation;

/// Maximum number of characters of a value in a message.
const SHOWN: usize = 200;

/// Collects the violations of a value and of all nested values.
pub(super) fn check<'a>(
    schema: &'a Schema,
    node: &'a Node,
    value: &'a Value,
    path: &mut Path<'a>,
    findings: &mut Vec<Violation>,
) {
    let node = schema.resolve(node);
    if !has_type(node, value) {
        let (is, expected) = (
            type_name(value),
            node.kind.map_or("integer or string", Type::name),
        );
        let pattern = node.pattern.as_ref().map(Pattern::source);
        let advice = hint::other_type(node.kind, pattern, value);
        let message = format!("Invalid value: {is:?}: must be of type {expected}{advice}");
        return findings.push(finding(path, message, format!("type: {expected}")));
    }
    let mut report = |message: String, rule: String| findings.push(finding(path, message, rule));
    any_type(schema, node, value, &mut report);
    match value {
        Value::String(text) => string(node, text, &mut report),
        Value::Number(_) => number(node, value, &mut report),
        Value::Array(items) => list(node, items, &mut report),
        Value::Object(map) => {
            object(node, map, &mut report);
            names(node, map, path, findings);
        }
        Value::Null | Value::Bool(_) => {}
    }
    node.each(value, path, |node, value, path| {
        check(schema, node, value, path, findings);
    });
}

fn finding(path: &Path<'_>, message: String, rule: String) -> Violation {
    Violation {
        rule,
        ..Violation::error(path.to_string(), message)
    }
}

fn has_type(node: &Node, value: &Value) -> bool {
    if node.is_int_or_string {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    match node.kind {
        None => true,
        Some(_) if value.is_null() => node.nullable,
        Some(Type::Object) => value.is_object(),
        Some(Type::Array) => value.is_array(),
        Some(Type::String) => value.is_string(),
        Some(Type::Integer) => value.is_i64() || value.is_u64(),
        Some(Type::Number) => value.is_number(),
        Some(Type::Boolean) => value.is_boolean(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks the keywords that apply to values of every type.
fn any_type(schema: &Schema, node: &Node, value: &Value, report: &mut impl FnMut(String, String)) {
    if !node.allowed.is_empty() && !node.allowed.contains(value) {
        let allowed = node
            .allowed
            .iter()
            .map(Value::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        report(
            format!(
                "Unsupported value: {}: supported values: {allowed}",
                shown(value)
            ),
            format!("enum: {allowed}"),
        );
    }
    if let Some(format) = node.format.filter(|format| !format.admits(value)) {
        let name = format.name();
        // Most values in Base64 are those of Secrets, which no message may contain.
        let message = match format == Format::Byte {
            true => format!(
                "Invalid value: must be of format {name}{}",
                hint::NOT_BASE64
            ),
            false => format!("Invalid value: {}: must be of format {name}", shown(value)),
        };
        report(message, format!("format: {name}"));
    }
    let holds = |node: &Node| {
        let mut found = Vec::new();
        check(schema, node, value, &mut Path::default(), &mut found);
        found.is_empty()
    };
    if node.one_of.len() > 1 && node.one_of.iter().filter(|node| holds(node)).count() != 1 {
        report(
            format!(
                "Invalid value: {}: must validate one and only one schema",
                shown(value)
            ),
            "oneOf".to_owned(),
        );
    }
    if !node.any_of.is_empty() && !node.any_of.iter().any(holds) {
        report(
            format!(
                "Invalid value: {}: must validate at least one schema",
                shown(value)
            ),
            "anyOf".to_owned(),
        );
    }
    if !node.all_of.iter().all(holds) {
        report(
            format!(
                "Invalid value: {}: must validate all the schemas",
                shown(value)
            ),
            "allOf".to_owned(),
        );
    }
    if node.not.as_deref().is_some_and(holds) {
        report(
            format!(
                "Invalid value: {}: must not validate the schema",
                shown(value)
            ),
            "not".to_owned(),
        );
    }
}

fn string(node: &Node, text: &str, report: &mut impl FnMut(String, String)) {
    // Lengths count Unicode code points.
    let length = if node.min_length.is_some() || node.max_length.is_some() {
        text.chars().count()
    } else {
        0
    };
    if let Some(limit) = node.max_length.filter(|limit| length > *limit) {
        report(
            format!("Too long: may not be more than {limit} bytes"),
            format!("maxLength: {limit}"),
        );
    }
    if let Some(limit) = node.min_length.filter(|limit| length < *limit) {
        let message = format!(
            "Invalid value: {}: should be at least {limit} chars long",
            quoted(text)
        );
        report(message, format!("minLength: {limit}"));
    }
    if let Some(pattern) = &node.pattern
        && pattern.is_match(text) != Some(true)
    {
        let source = pattern.source();
        report(
            format!(
                "Invalid value: {}: should match '{source}'{}",
                quoted(text),
                hint::correction(source, text)
            ),
            format!("pattern: {source}"),
        );
    }
}

fn number(node: &Node, value: &Value, report: &mut impl FnMut(String, String)) {
    let Some(number) = value.as_f64() else { return };
    if let Some(limit) = node.maximum.filter(|limit| number > *limit) {
        report(
            format!("Invalid value: {value}: should be less than or equal to {limit}"),
            format!("maximum: {limit}"),
        );
    }
    if let Some(limit) = node.minimum.filter(|limit| number < *limit) {
        let message = format!("Invalid value: {value}: should be greater than or equal to {limit}");
        report(message, format!("minimum: {limit}"));
    }
}

fn list(node: &Node, items: &[Value], report: &mut impl FnMut(String, String)) {
    let length = items.len();
    if let Some(limit) = node.max_items.filter(|limit| length > *limit) {
        report(
            format!("Too many: {length}: must have at most {limit} items"),
            format!("maxItems: {limit}"),
        );
    }
    if let Some(limit) = node.min_items.filter(|limit| length < *limit) {
        report(
            format!("Invalid value: {length}: should have at least {limit} items"),
            format!("minItems: {limit}"),
        );
    }
    let mut seen = HashSet::new();
    for item in items {
        let key = match node.list_type {
            ListType::Atomic => return,
            ListType::Set => item.to_string(),
            ListType::Map => key_of(node, item),
        };
        if !seen.insert(key.clone()) {
            let rule = match node.list_type {
                ListType::Map => format!(
                    "x-kubernetes-list-map-keys: {}",
                    node.list_map_keys.join(", ")
                ),
                ListType::Atomic | ListType::Set => "x-kubernetes-list-type: set".to_owned(),
            };
            report(format!("Duplicate value: {}", cut(&key)), rule);
        }
    }
}

/// Returns the keys of a list item as a JSON object, as in messages of an API server.
fn key_of(node: &Node, item: &Value) -> String {
    let keys = node
        .list_map_keys
        .iter()
        .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
    Value::Object(keys.collect()).to_string()
}

fn object(node: &Node, map: &Map<String, Value>, report: &mut impl FnMut(String, String)) {
    let length = map.len();
    if let Some(limit) = node.max_properties.filter(|limit| length > *limit) {
        report(
            format!("Too many: {length}: must have at most {limit} items"),
            format!("maxProperties: {limit}"),
        );
    }
    if let Some(limit) = node.min_properties.filter(|limit| length < *limit) {
        let message = format!("Invalid value: {length}: should have at least {limit} properties");
        report(message, format!("minProperties: {limit}"));
    }
}

fn names<'a>(
    node: &'a Node,
    map: &'a Map<String, Value>,
    path: &mut Path<'a>,
    findings: &mut Vec<Violation>,
) {
    for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
        findings.push(Violation {
            rule: "required".to_owned(),
            ..Violation::error(path.field(name), "Required value")
        });
    }
    let Some(rules) = node.property_names.as_deref() else {
        return;
    };
    for name in map.keys() {
        path.push_key(name);
        let mut report =
            |message: String, rule: String| findings.push(finding(path, message, rule));
        string(rules, name, &mut report);
        path.pop();
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) | Value::Object(_) => format!("{:?}", type_name(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Quotes text, and truncates it to [`SHOWN`] characters.
fn quoted(text: &str) -> String {
    let shown = cut(text);
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

/// Truncates text to [`SHOWN`] characters.
fn cut(text: &str) -> &str {
    text.char_indices()
        .nth(SHOWN)
        .map_or(text, |(end, _)| &text[..end])
}
