//! An object of each kind that has every field of its schema, for tests that must reach them all. Must not know the types.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::node::{Node, Schema, Type};
use super::of_kind;
use crate::api::{Kind, Object};

/// Returns an object of a kind with every field, whose lists have one item, and the paths of the fields that refer to other
/// objects by name: each refers to an object that is named as the path. `None` if no field does.
pub(crate) fn sample_of(kind: &Kind) -> Option<(Object, BTreeSet<String>)> {
    let schema = of_kind(kind).expect("the schema is valid");
    let spec = schema.root.properties.get("spec")?;
    let mut references = BTreeSet::new();
    let spec = value(&schema, spec, "spec", &mut references);
    let object = json!({"metadata": {"namespace": "own", "name": "own"}, "spec": spec});
    (!references.is_empty()).then(|| (kind.decode(&object).expect(kind.kind), references))
}

fn value(schema: &Schema, node: &Node, path: &str, references: &mut BTreeSet<String>) -> Value {
    let node = schema.resolve(node);
    if let Some(allowed) = node.allowed.first() {
        return allowed.clone();
    }
    match node.kind {
        Some(Type::Array) => {
            let items = node.items.iter();
            items
                .map(|item| value(schema, item, &format!("{path}[0]"), references))
                .collect()
        }
        Some(Type::String) => json!("a"),
        Some(Type::Integer | Type::Number) => json!(1),
        Some(Type::Boolean) => json!(true),
        None if node.is_int_or_string => json!(1),
        Some(Type::Object) | None => {
            let mut fields = Map::new();
            for (name, member) in node.properties.iter() {
                let member = value(schema, member, &format!("{path}.{name}"), references);
                fields.insert(name.to_owned(), member);
            }
            if let Some(member) = &node.additional_properties {
                let member = value(schema, member, &format!("{path}.a"), references);
                fields.insert("a".to_owned(), member);
            }
            if refers(node, path) {
                references.insert(path.to_owned());
                fields.insert("name".to_owned(), json!(path));
            }
            Value::Object(fields)
        }
    }
}

/// Reports whether a field has the shape of a reference: a name, with a kind or in a field that is named so.
fn refers(node: &Node, path: &str) -> bool {
    let has = |field: &str| node.properties.contains_key(field);
    let named_so = ["Ref", "Refs[0]"].iter().any(|end| path.ends_with(end));
    // What permits references refers to nothing, and what pods refer to is for the kubelet.
    let is_other = path == "spec.to[0]" || path.starts_with("spec.workload.");
    has("name") && (has("kind") || named_so) && !is_other
}
