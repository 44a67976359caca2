//! The data of an object that a status write needs: the stored status and metadata.

use serde_json::Value;

use super::head::Head;
use crate::api::{Kind, ObjectRef};
use crate::cluster::api_server::is_status_ours;

/// Observes every object that can have a status of this controller, including unparsable ones.
///
/// One thread calls it in event order, before a snapshot with the object is published. All objects
/// of a published snapshot have therefore been observed.
pub trait Observer: Send + Sync {
    /// The cluster serves a kind as released, or as the experimental kind that it was before its release. Called for kinds
    /// that have been experimental, before their objects.
    fn served(&self, kind: &'static Kind, is_experimental: bool);

    /// An object was created or changed, possibly only in its status.
    fn observed(&self, object: &ObjectRef, observed: Observed);

    /// An object was deleted. May be called for objects that were never observed.
    fn deleted(&self, object: &ObjectRef);
}

/// An object as the API server stores it. Kept small, since there may be many thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// `metadata.resourceVersion`.
    pub resource_version: Box<str>,
    /// `metadata.generation`; 0 if there is none.
    pub generation: i64,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Whether this controller, and no other client, wrote the condition `Programmed`.
    pub is_status_ours: bool,
    /// `status` as JSON text, which takes less memory than a [`Value`].
    status: Box<str>,
}

impl Observed {
    /// Extracts the observed data of an object.
    pub(super) fn of(object: &Head) -> Self {
        let Head { metadata, status } = object;
        Self {
            resource_version: metadata
                .resource_version
                .as_deref()
                .unwrap_or_default()
                .into(),
            generation: metadata.kept.generation,
            uid: metadata.kept.uid.as_str().into(),
            is_status_ours: is_status_ours(&metadata.managed_fields),
            status: status.to_string().into(),
        }
    }

    /// Returns the status; null if there is none.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.status).unwrap_or_default()
    }
}

/// Reports whether objects of a kind are observed.
pub(super) fn is_observed(kind: &Kind) -> bool {
    kind.status.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contains_what_a_status_write_needs() {
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
    fn missing_status_is_null() {
        let object = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let observed = Observed::of(&object);
        assert_eq!((observed.generation, observed.status()), (0, Value::Null));
    }

    #[test]
    fn observes_only_gateway_api_kinds_with_a_status() {
        let observed: Vec<_> = Kind::all()
            .iter()
            .filter(|kind| is_observed(kind))
            .collect();
        for one in [
            "ListenerSet",
            "XBackend",
            "XBackendTrafficPolicy",
            "ReleaseBackend",
            "TelemetryPolicy",
        ] {
            assert!(observed.iter().any(|kind| kind.kind == one));
        }
        for other in ["Service", "Pod", "Namespace", "ReferenceGrant"] {
            assert!(observed.iter().all(|kind| kind.kind != other));
        }
    }
}
