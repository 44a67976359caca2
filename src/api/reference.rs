//! References between objects: one type for each shape, shared by all kinds that use it, and what objects are referred to for.
//! Must not know which kinds have which references: each says it beside its fields.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize};
use thin_vec::ThinVec;

use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::sharing::{Shared, Text};

pub(super) fn gateway_group<T: From<&'static str>>() -> T {
    GATEWAY_GROUP.into()
}

fn gateway_kind() -> Text {
    "Gateway".into()
}

pub(super) fn service_kind() -> Text {
    "Service".into()
}

fn secret_kind() -> Text {
    "Secret".into()
}

fn one() -> u32 {
    1
}

/// What an object refers to another one for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has parameters of the object.
    Parameters,
    /// The object is attached to it.
    Parent,
    /// The policy applies to it.
    Target,
    /// The policy applies to requests that it sends.
    Sender,
    /// It gets the requests of a rule.
    Backend,
    /// It gets copies of requests, or requests of Portcullis itself.
    Server,
    /// Keys are fetched from it.
    KeyServer,
    /// It is a filter of a rule.
    Filter,
    /// A Secret or a ConfigMap is used for this.
    Contents(Purpose),
    /// Credentials are read from a Secret or a ConfigMap.
    Credential(Credential),
}

impl Role {
    /// Reports whether contents of Secrets and ConfigMaps are used.
    pub fn uses_contents(self) -> bool {
        matches!(self, Self::Contents(_) | Self::Credential(_))
    }
}

/// What a Secret or a ConfigMap is used for, apart from credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A certificate with its key.
    Certificate,
    /// Certificates of authorities.
    Authority,
    /// Texts that responses are made of.
    Texts,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Self; 3] = [Self::Certificate, Self::Authority, Self::Texts];
}

/// What a policy reads from a Secret or a ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Users with passwords.
    Users,
    /// API keys of clients.
    ApiKeys,
    /// A key that issuers of tokens have, too.
    SharedKey,
    /// The secret of a client of an OpenID provider.
    ClientSecret,
    /// Public keys of an issuer of tokens.
    KeySet,
    /// Certificates of the authorities of a server that keys are fetched from.
    Authorities,
}

/// A field that refers to another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceField<'a> {
    /// What for.
    pub role: Role,
    /// Group.
    pub group: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Namespace; `None` means the namespace of the object with the field.
    pub namespace: Option<&'a str>,
    /// Name.
    pub name: &'a str,
    /// Port.
    pub port: Option<u16>,
}

/// Takes the fields of an object that refer to others.
pub type Found<'f> = dyn FnMut(ReferenceField<'_>) + 'f;

impl<'a> ReferenceField<'a> {
    /// Creates a reference to a ConfigMap in the namespace of the object.
    pub(super) fn config_map(role: Role, name: &'a str) -> Self {
        Self {
            role,
            group: "",
            kind: "ConfigMap",
            namespace: None,
            name,
            port: None,
        }
    }

    /// Reports whether it names this kind of the core group.
    pub fn is_core(&self, kind: &str) -> bool {
        self.group.is_empty() && self.kind == kind
    }

    /// Returns the name of the other object, for an object in namespace `own`.
    pub fn object_ref(&self, own: &str) -> ObjectRef {
        let namespace = self.namespace.unwrap_or(own);
        ObjectRef::new(self.group, self.kind, namespace, self.name)
    }
}

/// Declares how the namespace and the port of references of a type are read.
macro_rules! shapes {
    ($($type:ty $(, $filter:ident)?: $reference:ident => $namespace:expr, $port:expr;)+) => {
        $(
            impl$(<$filter>)? $type {
                /// Returns the reference as one in this role.
                pub fn in_role(&self, role: Role) -> ReferenceField<'_> {
                    let $reference = self;
                    ReferenceField {
                        role,
                        group: &$reference.group,
                        kind: &$reference.kind,
                        namespace: $namespace,
                        name: &$reference.name,
                        port: $port,
                    }
                }

                /// Returns the name of the other object, for an object in namespace `own`.
                pub fn object_ref(&self, own: &str) -> $crate::ir::ObjectRef {
                    self.in_role(Role::Target).object_ref(own)
                }
            }
        )+
    };
}
pub(super) use shapes;

shapes! {
    ParentRef: it => it.namespace.as_deref(), it.port;
    BackendObjectRef: it => it.namespace.as_deref(), it.port;
    BackendRef<F>, F: it => it.namespace.as_deref(), it.port;
    SecretRef: it => it.namespace.as_deref(), None;
    ObjectReference: it => it.namespace.as_deref(), None;
    LocalObjectReference: it => None, None;
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

impl ConfigMapRef {
    /// Returns the reference as one in this role.
    pub fn in_role(&self, role: Role) -> ReferenceField<'_> {
        ReferenceField::config_map(role, &self.name)
    }
}
