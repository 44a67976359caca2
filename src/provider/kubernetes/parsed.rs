//! Parses an object of the API server, or returns why it is invalid. Does no I/O.

use kube::api::DynamicObject;

use super::observer::{Observed, is_observed};
use crate::api::{Key, Kind, Object};
use crate::provider::problem::unreadable;

/// Annotation that contains a copy of the whole object. It is dropped.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A parsed object, or why it cannot be parsed.
#[derive(Debug)]
pub(super) struct ParsedObject {
    pub(super) key: Key,
    pub(super) generation: i64,
    /// Numeric resourceVersion; `None` if it is not comparable.
    pub(super) version: Option<u64>,
    pub(super) object: Result<Object, String>,
    /// Data for the observer, if there is one and it observes the kind.
    pub(super) observed: Option<Observed>,
}

impl ParsedObject {
    /// Parses the known fields of an object and drops the rest.
    pub(super) fn of(kind: &'static Kind, mut object: DynamicObject, observes: bool) -> Self {
        let observed = (observes && is_observed(kind)).then(|| Observed::of(&object));
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        Self {
            key: key(&object),
            generation: object.metadata.generation.unwrap_or_default(),
            version: object
                .metadata
                .resource_version
                .as_deref()
                .and_then(version),
            observed,
            object: decode(kind, object),
        }
    }
}

/// Namespace and name of an object.
pub(super) fn key(object: &DynamicObject) -> Key {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    Key::new(
        object.metadata.namespace.as_deref().unwrap_or_default(),
        name,
    )
}

/// Parses a resourceVersion as a number. Numeric versions of one kind are comparable.
pub(super) fn version(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn decode(kind: &'static Kind, object: DynamicObject) -> Result<Object, String> {
    let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    // Items of a list have no `apiVersion` and `kind`.
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.into();
    kind.decode(&value)
        .map_err(|error| unreadable(value, &error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(name: &str, spec: &Value) -> ParsedObject {
        let mut kinds = Kind::all().iter();
        let kind = kinds.find(|kind| kind.kind == name).unwrap();
        let object = json!({
            "metadata": {
                "name": "a", "namespace": "default", "resourceVersion": "7",
                "annotations": {LAST_APPLIED: "{}", "other": "stays"},
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": spec,
        });
        ParsedObject::of(kind, serde_json::from_value(object).unwrap(), true)
    }

    #[test]
    fn drops_unknown_fields() {
        let parsed = parsed("HTTPRoute", &json!({"hostnames": ["a.example"]}));
        assert_eq!(parsed.key, Key::new("default", "a"));
        assert_eq!(parsed.version, Some(7));
        assert!(parsed.observed.is_some());
        let object = parsed.object.unwrap();
        let annotations: Vec<_> = object.meta().annotations.keys().collect();
        assert_eq!(annotations, ["other"]);
    }

    #[test]
    fn names_the_field_that_cannot_be_read() {
        let parsed = parsed("HTTPRoute", &json!({"hostnames": 7}));
        let reason = parsed.object.unwrap_err();
        assert!(reason.starts_with("spec.hostnames: "), "{reason}");
    }

    #[test]
    fn routes_keep_their_kind() {
        let Object::UnservedRoute(route) = parsed("TLSRoute", &json!({})).object.unwrap() else {
            panic!("not a route");
        };
        assert_eq!(route.kind, "TLSRoute");
    }

    #[test]
    fn only_numeric_versions_are_comparable() {
        assert_eq!(version("18446744073709551615"), Some(u64::MAX));
        for other in ["", "a1", "-1", "18446744073709551616", "1.0"] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
