//! Fields with the value null, which stand for absent ones.

use serde_json::Value;

/// Removes fields that are null, because they mean the same as absent ones.
pub(super) fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(without_nulls),
        _ => {}
    }
}
