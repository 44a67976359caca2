//! Decodes an object that another program has validated, perhaps one that knows later versions of its kind. Unknown fields are
//! left out, but not those of a policy that protects requests: they may be what protects them.

use serde::de::Error as _;
use serde_json::Value;

use super::admission::admit;
use super::object::{Kind, Object};
use super::unreadable::protects;

/// Decodes an object. Fails if a field cannot be read, or if the object protects requests and its `spec` has a field that this
/// version does not know, unless requests would not be refused for it.
pub fn decode_whole(kind: &Kind, value: &Value) -> Result<Object, serde_json::Error> {
    let object = kind.decode(value)?;
    if protects(kind)
        && let Some(field) = lost_field(&value["spec"], &object.to_value()?["spec"], "spec")
        && admit(value.clone()).stand_in.is_some()
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
    use std::path::{Path, PathBuf};
    use std::{fs, iter};

    use serde_json::json;

    use super::*;

    const SOURCES: &str = env!("CARGO_MANIFEST_DIR");

    /// Returns the valid objects of a text that protect requests.
    fn valid(text: &str) -> Vec<(&'static Kind, Value)> {
        let documents = text.split("\n---\n");
        let objects = documents.filter_map(|text| serde_saphyr::from_str::<Value>(text).ok());
        let known = objects.filter_map(|object| {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let kind = Kind::find(text("apiVersion"), text("kind"))?;
            let is_valid = protects(kind) && admit(object.clone()).object.is_some();
            is_valid.then_some((kind, object))
        });
        known.collect()
    }

    fn with_every_field() -> Vec<(&'static Kind, Value)> {
        let valid = valid(include_str!("schema/tests.yaml"));
        let kinds: BTreeSet<_> = valid.iter().map(|(kind, _)| kind.kind).collect();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        valid
    }

    /// Returns the texts of a directory and those below.
    fn texts(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| match path.is_dir() {
            true => texts(&path),
            false => fs::read_to_string(path).into_iter().collect(),
        };
        paths.flat_map(read).collect()
    }

    /// Returns the places of all values in a value, as JSON pointers.
    fn places(value: &Value, place: String) -> Vec<String> {
        let below: Vec<_> = match value {
            Value::Object(fields) => fields.iter().map(|(name, it)| (name.clone(), it)).collect(),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(i, it)| (i.to_string(), it))
                .collect(),
            _ => Vec::new(),
        };
        let below = below.into_iter();
        let below: Vec<_> = below
            .flat_map(|(name, it)| places(it, format!("{place}/{name}")))
            .collect();
        iter::once(place).chain(below).collect()
    }

    #[test]
    fn valid_policies_are_decoded_as_an_api_server_sends_them() {
        let mut valid = with_every_field();
        for directory in ["tests/golden", "config"] {
            let texts = texts(&Path::new(SOURCES).join(directory));
            valid.extend(texts.iter().flat_map(|text| self::valid(text)));
        }
        assert!(valid.len() >= 200, "{}", valid.len());
        for (kind, object) in valid {
            let defaulted = admit(object.clone()).object.unwrap().to_value().unwrap();
            assert!(decode_whole(kind, &defaulted).is_ok(), "{defaulted}");
            let mut served = object;
            served["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {}}]);
            served["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            served["status"] = json!({"ancestors": [], "later": {}});
            assert!(decode_whole(kind, &served).is_ok(), "{served}");
            for place in places(&served["spec"], "/spec".to_owned()) {
                let replaced = served.pointer(&place).unwrap();
                let empty = match replaced {
                    Value::Object(_) => json!({}),
                    Value::Array(_) => json!([]),
                    _ => Value::Null,
                };
                for empty in [empty, Value::Null] {
                    let mut changed = served.clone();
                    *changed.pointer_mut(&place).unwrap() = empty;
                    let is_legal = admit(changed.clone()).object.is_some();
                    let is_read = decode_whole(kind, &changed).is_ok();
                    assert!(is_read || !is_legal, "{place} {changed}");
                }
            }
        }
    }

    #[test]
    fn no_policy_with_an_unknown_field_is_decoded_if_requests_are_refused_for_it() {
        let mut refused = 0;
        for (kind, object) in with_every_field() {
            let spec = places(&object["spec"], "/spec".to_owned()).into_iter();
            for place in spec.filter(|it| object.pointer(it).unwrap().is_object()) {
                let mut changed = object.clone();
                changed.pointer_mut(&place).unwrap()["later"] = "a".into();
                let is_refused = admit(changed.clone()).stand_in.is_some();
                let decoded = decode_whole(kind, &changed);
                assert_eq!(decoded.is_err(), is_refused, "{place}");
                refused += usize::from(is_refused);
            }
        }
        assert!(refused >= 50, "{refused}");
    }
}
