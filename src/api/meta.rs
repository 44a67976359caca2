//! Parts that all objects share: metadata, and the trait for kinds.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use thin_vec::ThinVec;

use crate::ir::ObjectRef;
use crate::ir::object_ref::Key;
use crate::ir::sharing::{Text, TextMap};
use crate::ir::time::Time;

/// The parts of `metadata` that Portcullis reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name; validation ensures that it is not empty.
    pub name: Text,
    /// Namespace; empty for cluster-scoped kinds. In files, `default` replaces a missing one.
    pub namespace: Text,
    /// Labels.
    pub labels: TextMap,
    /// Annotations, except the copy of the object that `kubectl apply` makes.
    #[serde(deserialize_with = "without_last_applied")]
    pub annotations: TextMap,
    /// Creation time. In files it may be absent, which means oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Time of the deletion request. The object exists until its finalizers are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Generation of the spec; 0 in files.
    pub generation: i64,
    /// UID; empty in files.
    pub uid: Text,
    /// Fields of the object that a reader of it does not know. Not a field of Kubernetes.
    #[serde(skip_serializing_if = "UnknownFields::is_empty")]
    pub unknown_fields: UnknownFields,
}

/// Annotation with a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn without_last_applied<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextMap, D::Error> {
    let mut annotations = BTreeMap::deserialize(deserializer)?;
    annotations.remove(LAST_APPLIED);
    Ok(annotations.into())
}

/// Fields of an object that a reader of it does not know: the first one in each part that is refused because of it, and some
/// others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct UnknownFields(ThinVec<Box<str>>);

impl UnknownFields {
    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns their paths.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|field| &**field)
    }

    /// Adds a field, unless it is in the list.
    pub(super) fn push(&mut self, field: Box<str>) {
        if !self.0.contains(&field) {
            self.0.push(field);
        }
    }
}

/// An object of one kind. The table of kinds implements it.
pub trait Resource {
    /// API group, empty for the core group.
    const GROUP: &'static str;
    /// Kind.
    const KIND: &'static str;

    /// Returns the object's metadata.
    fn meta(&self) -> &ObjectMeta;

    /// Returns the object's key.
    fn key(&self) -> Key {
        let ObjectMeta {
            namespace, name, ..
        } = self.meta();
        Key {
            namespace: namespace.clone(),
            name: name.clone(),
        }
    }

    /// Returns the object's full name.
    fn object_ref(&self) -> ObjectRef {
        ObjectRef::new(
            Self::GROUP,
            Self::KIND,
            &self.meta().namespace,
            &self.meta().name,
        )
    }
}
