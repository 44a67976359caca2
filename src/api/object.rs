//! An object of any kind of the table, and what is known of each kind: group, versions, scope, schema, and how its objects
//! are decoded.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use super::inherited_policy::targets;
use super::kind::{ExperimentalKind, StatusShape, X_LISTENER_SET, kinds};
use super::meta::{ObjectMeta, Resource};
use super::reference::{Found, ParentRef};
use crate::ir::ObjectRef;
use crate::ir::object_ref::{api_version, group_and_version};

/// Declares [`Object`], [`KindName`] and [`KINDS`].
macro_rules! objects {
    ($($objects:ident: $module:ident::$type:ident {
        $group:expr, $kind:literal, $versions:expr, $schema:literal $(, $field:ident: $value:expr)*
    },)+) => {
        $(use super::$module::$type;)+

        /// An object. Cheap to clone.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is named after its type")]
        pub enum Object {
            $($type(Arc<$type>),)+
        }

        /// Names of the kinds. A `match` does not compile until it decides on each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is named after its type")]
        pub enum KindName {
            $($type,)+
        }

        impl Object {
            /// Returns the object's metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self {
                    $(Self::$type(object) => object.meta(),)+
                }
            }

            /// Returns the kind.
            pub fn kind(&self) -> &'static Kind {
                match self {
                    $(Self::$type(_) => const { &$type::ROW },)+
                }
            }
        }

        $(
            impl From<Arc<$type>> for Object {
                fn from(object: Arc<$type>) -> Self {
                    Self::$type(object)
                }
            }

            impl Row for $type {
                const ROW: Kind = Kind {
                    versions: &$versions,
                    $($field: $value,)*
                    ..row::<Self>(KindName::$type, include_str!(concat!("schema/", $schema, ".json")))
                };
            }
        )+

        /// All kinds, in the order of the table.
        static KINDS: &[Kind] = &[$($type::ROW),+];
    };
}
kinds!(objects);

impl Object {
    /// Returns the parents of a route, as it names them; none of an object of another kind.
    pub fn parent_refs(&self) -> &[ParentRef] {
        match self {
            Self::HttpRoute(route) => &route.spec.parent_refs,
            Self::GrpcRoute(route) => &route.spec.parent_refs,
            Self::TlsRoute(route) => &route.spec.parent_refs,
            Self::TcpRoute(route) => &route.spec.parent_refs,
            Self::UdpRoute(route) => &route.spec.parent_refs,
            _ => &[],
        }
    }

    /// Visits the fields that refer to other objects by name.
    pub fn references(&self, found: &mut Found<'_>) {
        match self {
            Self::GatewayClass(class) => class.spec.references(found),
            Self::Gateway(gateway) => gateway.spec.references(found),
            Self::ListenerSet(set) => set.spec.references(found),
            Self::HttpRoute(route) => route.spec.references(found),
            Self::GrpcRoute(route) => route.spec.references(found),
            Self::TlsRoute(route) => route.spec.references(found),
            Self::TcpRoute(route) => route.spec.references(found),
            Self::UdpRoute(route) => route.spec.references(found),
            Self::BackendTlsPolicy(policy) => policy.spec.references(found),
            Self::BackendTlsOverride(policy) => policy.spec.references(found),
            Self::BackendTrafficPolicy(policy) => policy.spec.references(found),
            Self::BackendPolicy(policy) => targets(&policy.spec.target_refs, found),
            Self::TelemetryPolicy(policy) => policy.spec.references(found),
            Self::XBackend(backend) => backend.spec.references(found),
            Self::InferencePool(pool) => pool.spec.references(found),
            Self::AccessPolicy(policy) => policy.spec.references(found),
            Self::ClientPolicy(policy) => targets(&policy.spec.target_refs, found),
            Self::RateLimitPolicy(policy) => targets(&policy.spec.target_refs, found),
            Self::RoutePolicy(policy) => policy.spec.references(found),
            Self::RouteFilter(filter) => filter.spec.references(found),
            // A test compares all with the schemas. What GatewayParameters refer to is for pods.
            Self::ReferenceGrant(_)
            | Self::GatewayParameters(_)
            | Self::Namespace(_)
            | Self::Pod(_)
            | Self::Service(_)
            | Self::ServiceImport(_)
            | Self::EndpointSlice(_)
            | Self::ReleaseBackend(_)
            | Self::Secret(_)
            | Self::ConfigMap(_)
            | Self::KeySet(_) => {}
        }
    }
}

/// A type of the table.
trait Row {
    /// Its kind.
    const ROW: Kind;
}

/// Returns the kind of a type, with the values of most kinds.
const fn row<T>(name: KindName, schema: &'static str) -> Kind
where
    T: Resource + DeserializeOwned,
    Arc<T>: Into<Object>,
{
    Kind {
        name,
        group: T::GROUP,
        kind: T::KIND,
        versions: &[],
        namespaced: true,
        experimental: None,
        status: None,
        uses_contents: false,
        is_watched: true,
        schema,
        decode: decode::<T>,
        decode_event: decode_event::<T>,
    }
}

/// A kind.
#[derive(Debug)]
pub struct Kind {
    /// Name in a `match`.
    pub name: KindName,
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Versions with the same shape, the released one first.
    pub versions: &'static [&'static str],
    /// Whether the kind is namespaced rather than cluster-scoped.
    pub namespaced: bool,
    /// The experimental kind that this one was before its release, with the same fields. It is read as this kind where the
    /// cluster does not serve this one.
    pub experimental: Option<ExperimentalKind>,
    /// What a controller writes into the status; `None` if nothing.
    pub status: Option<StatusShape>,
    /// Whether objects of the kind can refer to Secrets and ConfigMaps, and use their contents.
    pub uses_contents: bool,
    /// Whether clusters and folders have objects of the kind. Those of others are created by Portcullis itself.
    is_watched: bool,
    /// Schema of the kind, as compact JSON.
    pub(super) schema: &'static str,
    decode: fn(&[u8]) -> Result<Object, serde_json::Error>,
    decode_event: fn(&[u8]) -> Result<Object, serde_json::Error>,
}

impl Kind {
    /// Returns the watched kind with this `apiVersion` and `kind`, also if it is named as it was before its release.
    pub fn find(api_version: &str, kind: &str) -> Option<&'static Self> {
        Self::find_streamed(api_version, kind).filter(|found| found.is_watched)
    }

    /// Returns the watched kind of an object.
    pub fn of(object: &ObjectRef) -> Option<&'static Self> {
        let name = (&*object.group, &*object.kind);
        let mut kinds = Self::all().iter();
        kinds.find(|kind| (kind.group, kind.kind) == name)
    }

    /// Returns all watched kinds.
    pub fn all() -> &'static [Self] {
        // The others are the last ones.
        let (watched, _) = KINDS.split_at(KINDS.partition_point(|kind| kind.is_watched));
        watched
    }

    /// Returns the kinds of all objects that pods can be sent: the watched ones, and those that only Portcullis itself creates.
    pub fn streamed() -> impl Iterator<Item = &'static Self> {
        KINDS.iter()
    }

    /// Returns the kind of an object that a controller sends.
    pub fn find_streamed(api_version: &str, kind: &str) -> Option<&'static Self> {
        let (group, version) = group_and_version(api_version);
        Self::streamed().find(|known| {
            known.group == group && known.kind == kind && known.versions.contains(&version)
                || known
                    .experimental
                    .is_some_and(|it| (it.group, it.version, it.kind) == (group, version, kind))
        })
    }

    /// Returns the version of the released shape.
    pub fn version(&self) -> &'static str {
        self.versions.first().copied().unwrap_or("v1")
    }

    /// Returns the `apiVersion` of the released shape.
    pub fn api_version(&self) -> String {
        self.group_version(self.version())
    }

    /// Returns the `apiVersion` for a version of the kind's group.
    pub fn group_version(&self, version: &str) -> String {
        api_version(self.group, version)
    }

    /// Returns the name of an object of this kind.
    pub fn object_ref(&self, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::new(self.group, self.kind, namespace, name)
    }

    /// Decodes an object that satisfies the kind's schema.
    pub fn decode(&self, value: &Value) -> Result<Object, serde_json::Error> {
        // As text, as it arrives in events: code that reads a type from a `Value`, too, would be as long again.
        (self.decode)(&serde_json::to_vec(value)?).map_err(|error| {
            // The position is one in a text that nobody has written.
            let reason = error.to_string();
            let reason = reason.rsplit_once(" at line ").map_or(&*reason, |it| it.0);
            serde_json::Error::custom(reason)
        })
    }

    /// Decodes the object of a watch event, which is JSON. Faster than [`Kind::decode`], which needs a [`Value`].
    pub(super) fn decode_event(&self, event: &[u8]) -> Result<Object, serde_json::Error> {
        (self.decode_event)(event)
    }
}

/// A watch event, of which only the object is read.
#[derive(Deserialize)]
pub(super) struct Event<T> {
    pub(super) object: T,
}

fn decode<T>(text: &[u8]) -> Result<Object, serde_json::Error>
where
    T: DeserializeOwned,
    Arc<T>: Into<Object>,
{
    serde_json::from_slice::<T>(text).map(|object| Arc::new(object).into())
}

fn decode_event<T>(event: &[u8]) -> Result<Object, serde_json::Error>
where
    T: DeserializeOwned,
    Arc<T>: Into<Object>,
{
    let Event { object } = serde_json::from_slice::<Event<T>>(event)?;
    Ok(Arc::new(object).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::sample_of;

    #[test]
    fn references_are_those_of_the_schema() {
        let mut kinds = 0;
        for kind in Kind::all() {
            let Some((object, expected)) = sample_of(kind) else {
                continue;
            };
            kinds += 1;
            let mut references = BTreeSet::new();
            object.references(&mut |it| {
                assert!(references.insert(it.name.to_owned()), "{} twice", it.name);
            });
            assert_eq!(references, expected, "{}", kind.kind);
        }
        assert_eq!(kinds, 20);
    }

    #[test]
    fn routes_of_all_kinds_have_parents() {
        for kind in Kind::all() {
            let Some((object, _)) = sample_of(kind) else {
                continue;
            };
            let is_route = kind.status == Some(StatusShape::Route);
            assert_eq!(!object.parent_refs().is_empty(), is_route, "{}", kind.kind);
        }
    }

    #[test]
    fn errors_have_no_position_in_a_text_that_nobody_has_written() {
        let value = serde_json::json!({"metadata": {"name": 7}});
        let error = KINDS[0].decode(&value).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid type: integer `7`, expected a string"
        );
    }

    #[test]
    fn kinds_that_are_only_streamed_are_the_last_ones() {
        assert!(KINDS.is_sorted_by_key(|kind| !kind.is_watched));
        assert_eq!(Kind::streamed().count(), Kind::all().len() + 1);
    }
}
