//! Pruning and defaulting, which an API server does before it validates: removes nulls, sets defaults, and refuses unknown
//! fields, as with strict field validation, the default of `kubectl apply`.

use serde_json::{Map, Value};

use super::hint;
use super::node::{Node, Schema};
use super::path::Path;
use crate::api::violation::Violation;

/// Prunes a value and sets defaults. Reports unknown fields.
pub(super) fn apply<'a>(
    schema: &'a Schema,
    node: &'a Node,
    value: &mut Value,
    path: &mut Path<'a>,
    findings: &mut Vec<Violation>,
) {
    let node = schema.resolve(node);
    match value {
        Value::Object(map) => object(schema, node, map, path, findings),
        Value::Array(items) => {
            let Some(item_node) = &node.items else { return };
            for (index, item) in items.iter_mut().enumerate() {
                path.push_index(index);
                apply(schema, item_node, item, path, findings);
                path.pop();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn object<'a>(
    schema: &'a Schema,
    node: &'a Node,
    map: &mut Map<String, Value>,
    path: &mut Path<'a>,
    findings: &mut Vec<Violation>,
) {
    let is_closed = node.is_closed();
    map.retain(
        |name, value| match node.member(name).map(|member| schema.resolve(member)) {
            Some(member) => !value.is_null() || member.nullable,
            None if is_closed => {
                let message = hint::unknown_field(name, &node.properties);
                findings.push(Violation::error(path.field(name), message));
                false
            }
            None => true,
        },
    );
    for (name, member) in node.properties.iter() {
        if let (Some(default), false) = (&schema.resolve(member).default, map.contains_key(name)) {
            map.insert(name.to_owned(), default.clone());
        }
        if let Some(value) = map.get_mut(name) {
            path.push_field(name);
            apply(schema, member, value, path, findings);
            path.pop();
        }
    }
    if let Some(member) = node.additional_properties.as_deref() {
        let additional = map
            .iter_mut()
            .filter(|(name, _)| !node.properties.contains_key(name));
        additional.for_each(|(name, value)| nested(schema, member, name, value, path, findings));
    }
}

/// Applies defaults to an entry of a map. [`Path`] borrows names from the schema, but the key belongs to the object,
/// which is borrowed mutably. So the entry starts with an empty path, and findings get the prefix afterwards.
fn nested<'a>(
    schema: &'a Schema,
    node: &'a Node,
    key: &str,
    value: &mut Value,
    path: &Path<'a>,
    findings: &mut Vec<Violation>,
) {
    let from = findings.len();
    apply(schema, node, value, &mut Path::default(), findings);
    for finding in &mut findings[from..] {
        let separator = if finding.field.starts_with('[') {
            ""
        } else {
            "."
        };
        finding.field = format!("{path}[{key}]{separator}{}", finding.field);
    }
}
