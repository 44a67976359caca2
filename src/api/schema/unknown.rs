//! The fields of an object that the schema of its kind does not have. Changes nothing, unlike the defaults: must not know what
//! follows from such a field.

use serde_json::Value;

use super::node::{Node, Schema};
use super::path::Path;

/// The field of objects that is compared. The others are those of all kinds, and what controllers write.
const SPEC: &str = "spec";

/// A field that a schema does not have.
pub(in crate::api) struct UnknownField<'a, 'p> {
    parent: &'p Path<'a>,
    name: &'a str,
    value: &'a Value,
}

impl UnknownField<'_, '_> {
    /// Returns its path.
    pub(in crate::api) fn path(&self) -> String {
        self.parent.field(self.name)
    }

    /// Reports whether another object has this field with the same value.
    pub(in crate::api) fn is_in(&self, object: &Value) -> bool {
        let parent = self.parent.value_in(object);
        parent.and_then(|parent| parent.get(self.name)) == Some(self.value)
    }

    /// Reports whether its value says nothing.
    pub(in crate::api) fn is_empty(&self) -> bool {
        match self.value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) => false,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        }
    }
}

/// Visits each field of a spec that the schema does not have.
pub(super) fn visit<'a>(
    schema: &Schema,
    spec: &'a Value,
    found: &mut dyn FnMut(&UnknownField<'a, '_>),
) {
    if let Some(node) = schema.root.properties.get(SPEC) {
        let mut path = Path::default();
        path.push_field(SPEC);
        below(schema, node, spec, &mut path, found);
    }
}

fn below<'a>(
    schema: &Schema,
    node: &Node,
    value: &'a Value,
    path: &mut Path<'a>,
    found: &mut dyn FnMut(&UnknownField<'a, '_>),
) {
    let node = schema.resolve(node);
    match value {
        Value::Object(fields) => {
            let is_closed = node.is_closed();
            for (name, value) in fields {
                if let Some(member) = node.properties.get(name) {
                    path.push_field(name);
                    below(schema, member, value, path, found);
                    path.pop();
                } else if let Some(member) = node.additional_properties.as_deref() {
                    path.push_key(name);
                    below(schema, member, value, path, found);
                    path.pop();
                } else if is_closed && !value.is_null() {
                    found(&UnknownField {
                        parent: path,
                        name,
                        value,
                    });
                }
            }
        }
        Value::Array(items) => {
            let Some(node) = &node.items else { return };
            for (index, item) in items.iter().enumerate() {
                path.push_index(index);
                below(schema, node, item, path, found);
                path.pop();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
