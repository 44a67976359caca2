//! Decodes an object that another program has validated, perhaps one that knows later versions of its kind. Unknown fields are
//! left out, but not those of a policy that protects requests: they may be what protects them.

use serde::de::Error as _;
use serde_json::Value;

use super::admission::admit;
use super::object::{Kind, Object};
use super::protection::protects;

/// Decodes an object. Fails if a field cannot be read, or if the object protects requests and its `spec` has a field that this
/// version does not know.
pub fn decode_whole(kind: &Kind, value: &Value) -> Result<Object, serde_json::Error> {
    let object = kind.decode(value)?;
    if protects(kind)
        && let Some(field) = lost_field(&value["spec"], &object.to_value()?["spec"], "spec")
        && admit(value.clone()).has_errors()
    {
        let message = format!("{field}: unknown field");
        return Err(serde_json::Error::custom(message));
    }
    Ok(object)
}

/// Returns the path of a field that is written and was not read.
fn lost_field(written: &Value, read: &Value, path: &str) -> Option<String> {
    let lost = |written: &Value, read: Option<&Value>, path: String| match read {
        Some(read) => lost_field(written, read, &path),
        None => (!written.is_null()).then_some(path),
    };
    match written {
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.find_map(|(name, it)| lost(it, read.get(name), format!("{path}.{name}")))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(place, it)| lost(it, read.get(place), format!("{path}[{place}]")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::iter;

    use serde_json::json;

    use super::*;

    /// Returns valid objects that protect requests, of all kinds and with every field.
    fn valid() -> Vec<(&'static Kind, Value)> {
        let objects = serde_saphyr::from_multiple::<Value>(include_str!("schema/tests.yaml"));
        let known = objects.unwrap().into_iter().filter_map(|object| {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let kind = Kind::find(text("apiVersion"), text("kind"))?;
            protects(kind).then_some((kind, object))
        });
        let valid: Vec<_> = known.collect();
        let kinds: BTreeSet<_> = valid.iter().map(|(kind, _)| kind.kind).collect();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        valid
    }

    /// Returns the places of all objects in a value, as JSON pointers.
    fn objects(value: &Value, place: &str) -> Vec<String> {
        match value {
            Value::Object(fields) => {
                let below = fields.iter().flat_map(|(name, it)| {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    objects(it, &format!("{place}/{name}"))
                });
                iter::once(place.to_owned()).chain(below).collect()
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let below = items.flat_map(|(index, it)| objects(it, &format!("{place}/{index}")));
                below.collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn no_policy_with_an_unknown_field_is_decoded() {
        let mut refused = 0;
        for (kind, mut object) in valid() {
            object["status"] = json!({"later": {}});
            object["metadata"]["later"] = json!({});
            assert!(decode_whole(kind, &object).is_ok(), "{object}");
            let places = objects(&object["spec"], "/spec").into_iter();
            // Options are names of any kind.
            for place in places.filter(|place| place != "/spec/options") {
                let mut changed = object.clone();
                changed.pointer_mut(&place).unwrap()["later"] = "a".into();
                let admission = admit(changed.clone());
                let mut findings = admission.findings.iter();
                let is_unknown = findings.any(|it| it.message.starts_with("unknown field"));
                let decoded = decode_whole(kind, &changed);
                assert_eq!(decoded.is_err(), is_unknown, "{place}");
                refused += usize::from(is_unknown);
            }
        }
        assert!(refused >= 50, "{refused}");
    }

    /// An earlier version refuses a policy with a field that it does not know, also where nobody uses the field. So a field
    /// that is added is left out while it has no value.
    #[test]
    fn policies_are_written_without_fields_that_are_not_used() {
        for (kind, object) in valid() {
            let (used, written) = match kind.kind {
                "BackendTLSPolicy" | "BackendTLSOverride" => (
                    json!({"validation": {"hostname": "a.example"}}),
                    "options targetRefs validation",
                ),
                "RateLimitPolicy" => (json!({}), "rules strategy targetRefs"),
                _ => (json!({}), "strategy targetRefs"),
            };
            let mut minimal = object;
            minimal["spec"] = used;
            let spec = &kind.decode(&minimal).unwrap().to_value().unwrap()["spec"];
            let mut fields: Vec<_> = spec
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            fields.sort_unstable();
            assert_eq!(fields.join(" "), written, "{} {spec}", kind.kind);
        }
    }
}
