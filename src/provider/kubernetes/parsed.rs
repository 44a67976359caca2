//! Parses an object of the API server, or returns why it is invalid. Does no I/O.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::head::Head;
use super::observer::{Observed, is_observed};
use crate::api::{Key, Kind, Object, ObjectMeta, decode_whole, decode_whole_event};
use crate::provider::problem::{Unparsed, unreadable};

/// An object whose head is parsed.
#[derive(Debug)]
pub(super) struct ParsedObject {
    pub(super) key: Key,
    pub(super) generation: i64,
    /// Numeric resourceVersion; `None` if it is not comparable.
    pub(super) version: Option<u64>,
    pub(super) content: Content,
    /// Data for the observer, if there is one and it observes the kind.
    pub(super) observed: Option<Observed>,
}

/// The known fields of an object.
#[derive(Debug)]
pub(super) enum Content {
    /// The fields, or why they cannot be parsed.
    Parsed(Result<Object, Unparsed>),
    /// They are not parsed yet.
    Event(Event),
}

/// The object of a watch event.
#[derive(Debug)]
pub(super) struct Event {
    kind: &'static Kind,
    metadata: ObjectMeta,
    text: Vec<u8>,
}

impl ParsedObject {
    /// Parses an object that may lack its kind, such as an item of a list. Fails if it is not an object of Kubernetes.
    pub(super) fn of(
        kind: &'static Kind,
        object: Value,
        observes: bool,
    ) -> Result<Self, serde_json::Error> {
        let mut value = with_kind(kind, Map::deserialize(object)?);
        let head = Head::deserialize(&value)?;
        // Nobody reads them, and they may be most of the text that the object is decoded from.
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let object = parse(kind, value);
        Ok(Self::new(kind, head, |_| Content::Parsed(object), observes))
    }

    /// Returns the object of a watch event with this head, without parsing it.
    pub(super) fn of_event(kind: &'static Kind, head: Head, text: Vec<u8>, observes: bool) -> Self {
        let content = |metadata| {
            Content::Event(Event {
                kind,
                metadata,
                text,
            })
        };
        Self::new(kind, head, content, observes)
    }

    fn new(
        kind: &'static Kind,
        head: Head,
        content: impl FnOnce(ObjectMeta) -> Content,
        observes: bool,
    ) -> Self {
        let metadata = &head.metadata;
        Self {
            key: head.key(),
            generation: metadata.kept.generation,
            version: metadata.resource_version.as_deref().and_then(version),
            observed: (observes && is_observed(kind)).then(|| Observed::of(&head)),
            content: content(head.metadata.kept),
        }
    }
}

impl Content {
    /// Reports whether the known fields are those of a version, which is known without parsing them.
    pub(super) fn is_same_as(&self, version: &Object) -> bool {
        match self {
            Self::Parsed(_) => false,
            Self::Event(event) => event.is_same_as(version),
        }
    }

    /// Returns the known fields, or why they cannot be parsed.
    pub(super) fn parse(self) -> Result<Object, Unparsed> {
        match self {
            Self::Parsed(object) => object,
            Self::Event(event) => event.parse(),
        }
    }
}

impl Event {
    /// Reports whether at most the status has changed, which does not change the generation. Kinds with an observed status
    /// are read without it.
    fn is_same_as(&self, version: &Object) -> bool {
        is_observed(self.kind) && self.metadata.generation > 0 && self.metadata == *version.meta()
    }

    fn parse(self) -> Result<Object, Unparsed> {
        let object = decode_whole_event(self.kind, &self.text);
        object.map_err(|error| unreadable(self.object(), &error))
    }

    fn object(&self) -> Value {
        let event: Value = serde_json::from_slice(&self.text).unwrap_or_default();
        let fields = Map::deserialize(&event["object"]).unwrap_or_default();
        with_kind(self.kind, fields)
    }
}

fn parse(kind: &Kind, object: Value) -> Result<Object, Unparsed> {
    decode_whole(kind, &object).map_err(|error| unreadable(object, &error))
}

fn with_kind(kind: &Kind, mut fields: Map<String, Value>) -> Value {
    fields.insert("apiVersion".to_owned(), kind.api_version().into());
    fields.insert("kind".to_owned(), kind.kind.into());
    fields.into()
}

/// Parses a resourceVersion as a number. Numeric versions of one kind are comparable.
pub(super) fn version(text: &str) -> Option<u64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &'static Kind, object: &Value) -> ParsedObject {
        let event = json!({"type": "ADDED", "object": object}).to_string();
        let head = Head::deserialize(object).unwrap();
        ParsedObject::of_event(kind, head, event.into(), true)
    }

    /// Parses an object, both as one of a list and as one of an event.
    fn parsed(name: &str, spec: &Value) -> [ParsedObject; 2] {
        let mut kinds = Kind::all().iter();
        let kind = kinds.find(|kind| kind.kind == name).unwrap();
        let object = json!({
            "apiVersion": kind.api_version(),
            "kind": name,
            "metadata": {
                "name": "a", "namespace": "default", "resourceVersion": "7", "generation": 3,
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "other": "stays"},
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": spec,
        });
        let event = event(kind, &object);
        [ParsedObject::of(kind, object, true).unwrap(), event]
    }

    #[test]
    fn drops_fields_of_metadata_that_are_not_read() {
        for parsed in parsed("HTTPRoute", &json!({"hostnames": ["a.example"]})) {
            assert_eq!(parsed.key, Key::new("default", "a"));
            assert_eq!((parsed.version, parsed.generation), (Some(7), 3));
            assert!(parsed.observed.is_some());
            let object = parsed.content.parse().unwrap();
            let annotations: Vec<_> = object.meta().annotations.keys().collect();
            assert_eq!(annotations, ["other"]);
        }
    }

    #[test]
    fn other_objects_say_which_fields_are_unknown() {
        let spec = json!({"rules": [{"filters": [{"type": "CORS", "cors": {"later": "a"}}]}]});
        for parsed in parsed("HTTPRoute", &spec) {
            let object = parsed.content.parse().unwrap();
            let fields: Vec<_> = object.meta().unknown_fields.iter().collect();
            assert_eq!(fields, ["spec.rules[0].filters[0].cors.later"]);
        }
    }

    #[test]
    fn policies_that_protect_have_no_unknown_field() {
        for spec in [
            json!({"later": {}}),
            json!({"ipRules": {"deny": [], "later": []}}),
        ] {
            for parsed in parsed("AccessPolicy", &spec) {
                let reason = parsed.content.parse().unwrap_err().reason;
                assert!(reason.ends_with("later: unknown field"), "{reason}");
            }
        }
    }

    #[test]
    fn names_the_field_that_cannot_be_read() {
        for parsed in parsed("HTTPRoute", &json!({"hostnames": 7})) {
            let reason = parsed.content.parse().unwrap_err().reason;
            assert!(reason.starts_with("spec.hostnames: "), "{reason}");
        }
    }

    #[test]
    fn knows_a_change_of_the_status() {
        let kind = Kind::find("gateway.networking.k8s.io/v1", "HTTPRoute").unwrap();
        let object = json!({
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "generation": 2, "annotations": {"a": "b"}},
            "spec": {"hostnames": ["a.example"]},
        });
        let known = kind.decode(&object).unwrap();
        let is_same = |field: &str, value: Value| {
            let mut changed = object.clone();
            *changed.pointer_mut(field).unwrap() = value;
            changed["status"] = json!({"parents": []});
            changed["metadata"]["resourceVersion"] = "8".into();
            changed["metadata"]["managedFields"] = json!([{"manager": "other"}]);
            event(kind, &changed).content.is_same_as(&known)
        };
        assert!(is_same("/metadata/name", json!("a")));
        assert!(!is_same("/metadata/generation", json!(3)));
        assert!(!is_same("/metadata/uid", json!("other")));
        assert!(!is_same("/metadata/annotations", json!({})));
        // Its status is read.
        let service = Kind::find("v1", "Service").unwrap();
        let known = service.decode(&object).unwrap();
        assert!(!event(service, &object).content.is_same_as(&known));
    }

    #[test]
    fn only_objects_are_parsed() {
        for other in [json!([]), json!("a"), json!({"metadata": 7})] {
            assert!(ParsedObject::of(&Kind::all()[0], other, false).is_err());
        }
    }

    #[test]
    fn only_numeric_versions_are_comparable() {
        assert_eq!(version("18446744073709551615"), Some(u64::MAX));
        for other in ["", "a1", "-1", "18446744073709551616", "1.0"] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
