//! Decodes an object that another program has validated, perhaps one that knows later versions of its kind: the object says
//! which of its fields this version does not know.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::meta::{ObjectMeta, UnknownFields};
use super::object::{Event, Kind, Object};
use super::protection::protects;
use super::unknown_fields::{self, is_compared};

/// Decodes an object. Fails if a field cannot be read, or if the object protects requests and has a field that this version does
/// not know.
pub fn decode_whole(kind: &Kind, value: &Value) -> Result<Object, serde_json::Error> {
    let object = kind.decode(value)?;
    let unknown = unknown_fields::of(kind, &value["spec"], &object);
    match unknown.iter().next() {
        None => Ok(object),
        Some(field) if protects(kind) => {
            let message = format!("{field}: unknown field");
            Err(serde_json::Error::custom(message))
        }
        Some(_) => decode_with(kind, value.clone(), &unknown),
    }
}

/// Decodes the object of a watch event in the same way. Faster, since the rest of the text, which may be most of it, is only
/// skipped.
pub fn decode_whole_event(kind: &Kind, event: &[u8]) -> Result<Object, serde_json::Error> {
    if !is_compared(kind) {
        return kind.decode_event(event);
    }
    let written: Event<Written> = serde_json::from_slice(event)?;
    let Written { metadata, spec } = written.object;
    let metadata = serde_json::to_value(metadata)?;
    let mut object = Map::from_iter([("metadata".to_owned(), metadata)]);
    object.extend(spec.map(|spec| ("spec".to_owned(), spec)));
    decode_whole(kind, &object.into())
}

/// The parts of an object that are read, if its kind is compared with its schema.
#[derive(Deserialize)]
struct Written {
    metadata: ObjectMeta,
    /// May be null, as in the text.
    #[serde(default, deserialize_with = "present")]
    spec: Option<Value>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Returns the unknown fields that an object has come with: those that its sender does not know.
pub fn unknown_to_sender(value: &Value) -> UnknownFields {
    UnknownFields::deserialize(&value["metadata"]["unknownFields"]).unwrap_or_default()
}

fn decode_with(
    kind: &Kind,
    mut value: Value,
    unknown: &UnknownFields,
) -> Result<Object, serde_json::Error> {
    let mut all = unknown_to_sender(&value);
    unknown.iter().for_each(|field| all.push(field.into()));
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    let metadata = metadata.ok_or_else(|| serde_json::Error::custom("metadata: not an object"))?;
    metadata.insert("unknownFields".to_owned(), serde_json::to_value(all)?);
    kind.decode(&value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::iter;

    use serde_json::json;

    use super::*;
    use crate::api::admit;

    /// Returns valid objects that are compared with their schemas, of all kinds and with every field.
    fn valid() -> Vec<(&'static Kind, Value)> {
        let objects = serde_saphyr::from_multiple::<Value>(include_str!("schema/tests.yaml"));
        let known = objects.unwrap().into_iter().filter_map(|object| {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let kind = Kind::find(text("apiVersion"), text("kind"))?;
            is_compared(kind).then_some((kind, object))
        });
        let valid: Vec<_> = known.collect();
        let kinds: BTreeSet<_> = valid.iter().map(|(kind, _)| kind.kind).collect();
        let compared = Kind::all().iter().filter(|kind| is_compared(kind));
        assert_eq!(kinds.len(), compared.count(), "{kinds:?}");
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

    /// Reports whether this version knows all fields of an object, and decodes it. A policy that protects requests is not
    /// decoded otherwise.
    fn is_known(kind: &Kind, object: &Value) -> bool {
        match decode_whole(kind, object) {
            Ok(object) => {
                let is_known = object.meta().unknown_fields.is_empty();
                assert!(is_known || !protects(kind));
                is_known
            }
            Err(error) => {
                assert!(error.to_string().contains("unknown field"), "{error}");
                assert!(protects(kind), "{error}");
                false
            }
        }
    }

    /// A folder refuses the objects with the same fields.
    #[test]
    fn object_says_which_of_its_fields_are_unknown() {
        let mut unknown = BTreeSet::new();
        let mut count = 0;
        for (kind, mut object) in valid() {
            object["status"] = json!({"later": {}});
            object["metadata"]["later"] = json!({});
            assert!(is_known(kind, &object), "{object}");
            for place in objects(&object["spec"], "/spec") {
                let mut changed = object.clone();
                changed.pointer_mut(&place).unwrap()["later"] = "a".into();
                let admission = admit(changed.clone());
                let mut findings = admission.findings.iter();
                let is_unknown = findings.any(|it| {
                    it.message.starts_with("unknown field") && it.field.starts_with("spec")
                });
                let is_known = is_known(kind, &changed);
                assert_eq!(is_known, !is_unknown, "{} {place}", kind.kind);
                if is_unknown {
                    unknown.insert(kind.kind);
                    count += 1;
                    // A field that is null is absent.
                    changed.pointer_mut(&place).unwrap()["later"] = Value::Null;
                    assert!(self::is_known(kind, &changed), "{place}");
                }
            }
        }
        assert!(unknown.len() >= 23 && count >= 200, "{count} {unknown:?}");
    }

    #[test]
    fn objects_of_events_are_decoded_like_those_of_lists() {
        for (kind, mut object) in valid() {
            object["status"] = json!({"later": {}});
            object["metadata"]["managedFields"] = json!([{"manager": "a"}]);
            object["metadata"]["labels"] = json!({"a": "b"});
            object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            let mut later = object.clone();
            later["spec"]["later"] = json!(1);
            let (mut without_spec, mut null) = (object.clone(), object.clone());
            null["spec"] = Value::Null;
            without_spec.as_object_mut().unwrap().remove("spec");
            let mut unnamed = object.clone();
            unnamed.as_object_mut().unwrap().remove("metadata");
            for object in [object, later, null, without_spec, unnamed] {
                let event = json!({"type": "ADDED", "object": object}).to_string();
                let of_event = decode_whole_event(kind, event.as_bytes()).ok();
                assert_eq!(of_event, decode_whole(kind, &object).ok(), "{object}");
            }
        }
    }

    /// Pods compare with the schema what a controller has written.
    #[test]
    fn objects_are_written_with_fields_of_their_schema() {
        for (kind, object) in valid() {
            let object = decode_whole(kind, &object).unwrap();
            let written = object.to_value().unwrap();
            let read = decode_whole(kind, &written);
            assert_eq!(read.unwrap(), object, "{written}");
        }
    }

    /// A pod that does not know a field gets an object from a controller that knows it, or the other way round.
    #[test]
    fn unknown_fields_of_the_sender_stay_with_the_object() {
        let kind = Kind::find("gateway.networking.k8s.io/v1", "HTTPRoute").unwrap();
        let mut object = json!({
            "metadata": {"name": "a", "unknownFields": ["spec.rules[0].first"]},
            "spec": {"rules": [{}, {"second": 1}]},
        });
        let decoded = decode_whole(kind, &object).unwrap();
        let fields: Vec<_> = decoded.meta().unknown_fields.iter().collect();
        assert_eq!(fields, ["spec.rules[0].first", "spec.rules[1].second"]);
        let of_sender = unknown_to_sender(&object);
        assert!(of_sender.iter().eq(["spec.rules[0].first"]));
        let mut copy = decoded.to_value().unwrap();
        assert_eq!(decode_whole(kind, &copy).unwrap(), decoded);
        object["spec"]["rules"][1]["second"] = Value::Null;
        copy = decode_whole(kind, &object).unwrap().to_value().unwrap();
        assert_eq!(
            copy["metadata"]["unknownFields"],
            json!(["spec.rules[0].first"])
        );
    }

    /// An earlier version refuses a policy with a field that it does not know, also where nobody uses the field. So a field
    /// that is added is left out while it has no value.
    #[test]
    fn policies_are_written_without_fields_that_are_not_used() {
        let protecting = valid().into_iter().filter(|(kind, _)| protects(kind));
        for (kind, object) in protecting {
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
