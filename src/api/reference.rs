//! References between objects: one type for each shape, shared by all kinds that use it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize};
use thin_vec::ThinVec;

use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::sharing::{Shared, Text};

fn gateway_group() -> Text {
    GATEWAY_GROUP.into()
}

fn gateway_kind() -> Text {
    "Gateway".into()
}

fn service_kind() -> Text {
    "Service".into()
}

fn secret_kind() -> Text {
    "Secret".into()
}

fn one() -> u32 {
    1
}

/// A reference to a Gateway or ListenerSet: a route's or ListenerSet's to its parent, or a status entry's to the parent or
/// ancestor that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// Group, the Gateway API's by default.
    #[serde(default = "gateway_group")]
    pub group: Text,
    /// Kind, `Gateway` by default.
    #[serde(default = "gateway_kind")]
    pub kind: Text,
    /// Namespace; absent means the namespace of the object that holds the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Name.
    pub name: Text,
    /// Name of one listener; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<Text>,
    /// Port of the listeners; absent means all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl ParentRef {
    /// Creates a reference to a whole object in any namespace.
    pub fn to(object: &ObjectRef) -> Self {
        Self {
            group: Text::from(&object.group),
            kind: Text::from(&object.kind),
            namespace: Some(Text::from(&object.namespace)),
            name: Text::from(&object.name),
            section_name: None,
            port: None,
        }
    }
}

/// The parents of a route. Routes with equal lists share them, such as those of a team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ParentRefs(Arc<Vec<ParentRef>>);

/// The lists of all routes.
static PARENTS: LazyLock<Shared<Arc<Vec<ParentRef>>>> = LazyLock::new(Shared::default);

impl From<Vec<ParentRef>> for ParentRefs {
    fn from(references: Vec<ParentRef>) -> Self {
        Self(PARENTS.list(references))
    }
}

impl Default for ParentRefs {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Deref for ParentRefs {
    type Target = [ParentRef];

    fn deref(&self) -> &[ParentRef] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ParentRefs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

impl fmt::Display for ParentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        if let Some(section) = &self.section_name {
            write!(f, " listener {section}")?;
        }
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        Ok(())
    }
}

/// A reference to a backend without weight or filters, used by mirrors and external authorization.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendObjectRef {
    /// Group, core by default.
    #[serde(default)]
    pub group: Text,
    /// Kind, `Service` by default.
    #[serde(default = "service_kind")]
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Namespace; absent means the namespace of the object that holds the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Port of the Service; required for a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl BackendObjectRef {
    /// Returns the name of the backend, for a reference in namespace `own`.
    pub fn object_ref(&self, own: &str) -> ObjectRef {
        let namespace = self.namespace.as_deref().unwrap_or(own);
        ObjectRef::new(&self.group, &self.kind, namespace, &self.name)
    }
}

/// A weighted reference to a backend. `F` is the filter type of the route kind. It has the fields of [`BackendObjectRef`] itself: within
/// one, they would take 8 bytes more in each rule, and flattening makes serde read each value twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef<F> {
    /// Group, core by default.
    #[serde(default)]
    pub group: Text,
    /// Kind, `Service` by default.
    #[serde(default = "service_kind")]
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Namespace; absent means the namespace of the object that holds the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Port of the Service; required for a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Share of the traffic, 0 to 1,000,000.
    #[serde(default = "one")]
    pub weight: u32,
    /// Filters of requests that go to this backend.
    #[serde(default = "ThinVec::new")]
    pub filters: ThinVec<F>,
}

impl<F> BackendRef<F> {
    /// Returns the backend, without weight and filters.
    pub fn backend(&self) -> BackendObjectRef {
        BackendObjectRef {
            group: self.group.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            port: self.port,
        }
    }
}

/// A reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Group, core by default.
    #[serde(default)]
    pub group: Text,
    /// Kind, `Secret` by default.
    #[serde(default = "secret_kind")]
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Namespace; absent means the namespace of the object that holds the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
}

/// A reference to an object of any kind, in any namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Namespace; absent means the namespace of the object that holds the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
}

/// A reference to an object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalObjectReference {
    /// Group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
}

/// A reference to a ConfigMap in the namespace of the object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ConfigMapRef {
    /// Name.
    pub name: String,
}
