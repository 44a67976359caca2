//! What every object has: metadata, and a kind that knows its own name. Holds nothing of a single kind.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ir::ObjectRef;

/// The parts of `metadata` that Portcullis reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, never empty once validated.
    pub name: String,
    /// Namespace; empty for cluster-scoped kinds. Files may leave it out of namespaced kinds: `default` is filled in.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// RFC 3339 time of creation. Absent in a file means oldest.
    pub creation_timestamp: Option<jiff::Timestamp>,
    /// RFC 3339 time at which the object was told to go; it stays until its finalizers are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<jiff::Timestamp>,
    /// Generation of the spec, 0 where nothing counts it.
    pub generation: i64,
    /// Unique id, empty in files.
    pub uid: String,
}

/// Namespace and name: the key of an object among those of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace, empty when cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key of the two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An object of one watched kind.
pub trait Resource {
    /// API group, empty for the core group.
    const GROUP: &'static str;
    /// Kind.
    const KIND: &'static str;
    /// False for cluster-scoped kinds.
    const NAMESPACED: bool = true;

    /// The object's metadata.
    fn meta(&self) -> &ObjectMeta;

    /// The object's key among those of its kind.
    fn key(&self) -> Key {
        Key::new(&self.meta().namespace, &self.meta().name)
    }

    /// The object's full name.
    fn object_ref(&self) -> ObjectRef {
        ObjectRef::new(
            Self::GROUP,
            Self::KIND,
            &self.meta().namespace,
            &self.meta().name,
        )
    }
}

/// Implements [`Resource`] for a type with a `metadata` field.
macro_rules! resource {
    ($type:ty, $group:expr, $kind:expr $(, namespaced: $namespaced:expr)?) => {
        impl $crate::api::meta::Resource for $type {
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            $(const NAMESPACED: bool = $namespaced;)?

            fn meta(&self) -> &$crate::api::meta::ObjectMeta {
                &self.metadata
            }
        }
    };
}
pub(crate) use resource;
