//! How an object differs from the expected one.

use serde_json::{Map, Value};

/// Returns the fields whose value is not the expected one, which is null where `expected` has none. A missing field is the
/// same as one that is null.
pub(crate) fn differing(mut fields: Map<String, Value>, expected: &Value) -> Map<String, Value> {
    for name in expected.as_object().into_iter().flat_map(Map::keys) {
        fields.entry(name).or_insert(Value::Null);
    }
    fields.retain(|name, value| *value != expected[name]);
    fields
}
