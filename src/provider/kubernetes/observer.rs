//! What the API server holds of an object beside what is served: its status and the numbers that a write of status needs.

use kube::api::DynamicObject;
use serde_json::Value;

use crate::api::backend_tls_override::BackendTlsOverride;
use crate::api::gateway::Gateway;
use crate::api::xbackend::XBackend;
use crate::api::{Kind, ObjectRef, Resource};

/// Is told of every object that can have a status of ours, also of those that cannot be read.
///
/// Called by one thread, in the order of what happens, and before a snapshot with the object is published: whoever has
/// a snapshot has been told of all its objects.
pub trait Observer: Send + Sync {
    /// An object is there, or has changed; perhaps only its status.
    fn seen(&self, object: &ObjectRef, observed: Observed);

    /// An object is gone. May be told of objects that were never seen.
    fn gone(&self, object: &ObjectRef);
}

/// An object as the API server holds it. Small: there may be many thousand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// `metadata.resourceVersion`.
    pub resource_version: Box<str>,
    /// `metadata.generation`, 0 where nothing counts it.
    pub generation: i64,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `status` as JSON text, which takes less memory than a [`Value`].
    status: Box<str>,
}

impl Observed {
    /// What is to be told of an object.
    pub(super) fn of(object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let status = object.data.get("status").unwrap_or(&Value::Null);
        Self {
            resource_version: text(metadata.resource_version.as_deref()),
            generation: metadata.generation.unwrap_or_default(),
            uid: text(metadata.uid.as_deref()),
            status: status.to_string().into(),
        }
    }

    /// `status`, null when there is none.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.status).unwrap_or_default()
    }
}

fn text(text: Option<&str>) -> Box<str> {
    text.unwrap_or_default().into()
}

/// Whether observers are told of a kind.
pub(super) fn is_observed(kind: &Kind) -> bool {
    let others = [BackendTlsOverride::KIND, XBackend::KIND];
    others.contains(&kind.kind) || kind.group == Gateway::GROUP && kind.kind != "ReferenceGrant"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tells_what_a_write_of_status_needs() {
        let status = json!({"conditions": [{"type": "Accepted", "status": "True"}]});
        let object = json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "generation": 3},
            "status": status,
        });
        let observed = Observed::of(&serde_json::from_value(object).unwrap());
        assert_eq!((&*observed.uid, &*observed.resource_version), ("u", "7"));
        assert_eq!((observed.generation, observed.status()), (3, status));
    }

    #[test]
    fn an_object_without_status_has_a_null() {
        let object = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let observed = Observed::of(&object);
        assert_eq!((observed.generation, observed.status()), (0, Value::Null));
    }

    #[test]
    fn only_kinds_with_a_status_of_the_gateway_api_are_observed() {
        let observed: Vec<_> = Kind::all()
            .iter()
            .filter(|kind| is_observed(kind))
            .collect();
        for one in ["ListenerSet", "XBackend"] {
            assert!(observed.iter().any(|kind| kind.kind == one));
        }
        for other in ["Service", "Namespace", "ReferenceGrant"] {
            assert!(observed.iter().all(|kind| kind.kind != other));
        }
    }
}
