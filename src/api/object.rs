//! An object of any watched kind, and the table of those kinds: group, versions, scope, type and schema.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access_policy::AccessPolicy;
use super::backend_policy::BackendPolicy;
use super::backend_tls_override::BackendTlsOverride;
use super::client_policy::ClientPolicy;
use super::core::{ConfigMap, EndpointSlice, Namespace, Secret, Service};
use super::gateway::{Gateway, GatewayClass, ListenerSet, ReferenceGrant};
use super::grpc_route::GrpcRoute;
use super::http_route::HttpRoute;
use super::key_set::KeySet;
use super::l4_route::{TcpRoute, TlsRoute, UdpRoute};
use super::meta::{ObjectMeta, Resource};
use super::parameters::{self, GatewayParameters};
use super::pod::Pod;
use super::policy::BackendTlsPolicy;
use super::rate_limit_policy::RateLimitPolicy;
use super::release_backend::ReleaseBackend;
use super::route_filter::RouteFilter;
use super::route_policy::RoutePolicy;
use super::service_import::{MULTICLUSTER_GROUP, ServiceImport};
use super::telemetry_policy::TelemetryPolicy;
use super::traffic_policy::BackendTrafficPolicy;
use super::xbackend::{EXPERIMENTAL_GROUP, XBackend};
use crate::ir::ObjectRef;
use crate::ir::object_ref::{GATEWAY_GROUP, api_version, group_and_version};

/// An object of a watched kind. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named after its kind")]
pub enum Object {
    GatewayClass(Arc<GatewayClass>),
    Gateway(Arc<Gateway>),
    ListenerSet(Arc<ListenerSet>),
    HttpRoute(Arc<HttpRoute>),
    GrpcRoute(Arc<GrpcRoute>),
    TlsRoute(Arc<TlsRoute>),
    TcpRoute(Arc<TcpRoute>),
    UdpRoute(Arc<UdpRoute>),
    BackendTlsPolicy(Arc<BackendTlsPolicy>),
    BackendTlsOverride(Arc<BackendTlsOverride>),
    BackendTrafficPolicy(Arc<BackendTrafficPolicy>),
    XBackend(Arc<XBackend>),
    ReleaseBackend(Arc<ReleaseBackend>),
    AccessPolicy(Arc<AccessPolicy>),
    BackendPolicy(Arc<BackendPolicy>),
    ClientPolicy(Arc<ClientPolicy>),
    RateLimitPolicy(Arc<RateLimitPolicy>),
    /// RoutePolicy.
    RoutePolicy(Arc<RoutePolicy>),
    /// RouteFilter.
    RouteFilter(Arc<RouteFilter>),
    ServiceImport(Arc<ServiceImport>),
    TelemetryPolicy(Arc<TelemetryPolicy>),
    ReferenceGrant(Arc<ReferenceGrant>),
    GatewayParameters(Arc<GatewayParameters>),
    Namespace(Arc<Namespace>),
    Service(Arc<Service>),
    Pod(Arc<Pod>),
    EndpointSlice(Arc<EndpointSlice>),
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    /// KeySet.
    KeySet(Arc<KeySet>),
}

/// Evaluates an expression with the object of any variant.
macro_rules! with_object {
    ($this:expr, $object:ident => $value:expr) => {
        match $this {
            Object::GatewayClass($object) => $value,
            Object::Gateway($object) => $value,
            Object::ListenerSet($object) => $value,
            Object::HttpRoute($object) => $value,
            Object::GrpcRoute($object) => $value,
            Object::TlsRoute($object) => $value,
            Object::TcpRoute($object) => $value,
            Object::UdpRoute($object) => $value,
            Object::BackendTlsPolicy($object) => $value,
            Object::BackendTlsOverride($object) => $value,
            Object::BackendTrafficPolicy($object) => $value,
            Object::XBackend($object) => $value,
            Object::ReleaseBackend($object) => $value,
            Object::AccessPolicy($object) => $value,
            Object::BackendPolicy($object) => $value,
            Object::ClientPolicy($object) => $value,
            Object::RateLimitPolicy($object) => $value,
            Object::RoutePolicy($object) => $value,
            Object::RouteFilter($object) => $value,
            Object::ServiceImport($object) => $value,
            Object::TelemetryPolicy($object) => $value,
            Object::ReferenceGrant($object) => $value,
            Object::GatewayParameters($object) => $value,
            Object::Namespace($object) => $value,
            Object::Service($object) => $value,
            Object::Pod($object) => $value,
            Object::EndpointSlice($object) => $value,
            Object::Secret($object) => $value,
            Object::ConfigMap($object) => $value,
            Object::KeySet($object) => $value,
        }
    };
}

/// Returns the group and the kind of an object.
fn group_kind<T: Resource>(_: &Arc<T>) -> (&'static str, &'static str) {
    (T::GROUP, T::KIND)
}

impl Object {
    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        with_object!(self, object => object.meta())
    }

    /// Returns the kind.
    pub fn kind(&self) -> &'static Kind {
        let (group, kind) = with_object!(self, object => group_kind(object));
        let known = |known: &&Kind| known.group == group && known.kind == kind;
        Kind::streamed().find(known).unwrap_or(&KINDS[0])
    }
}

/// A watched kind.
#[derive(Debug)]
pub struct Kind {
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
    /// Schema of the kind, as compact JSON.
    pub(super) schema: &'static str,
    decode: fn(&Value) -> Result<Object, serde_json::Error>,
    decode_event: fn(&[u8]) -> Result<Object, serde_json::Error>,
}

/// Group, version and kind of an experimental kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExperimentalKind {
    /// API group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
}

impl Kind {
    /// Returns the watched kind with this `apiVersion` and `kind`, also if it is named as it was before its release.
    pub fn find(api_version: &str, kind: &str) -> Option<&'static Self> {
        let (group, version) = group_and_version(api_version);
        KINDS.iter().find(|known| {
            known.group == group && known.kind == kind && known.versions.contains(&version)
                || known
                    .experimental
                    .is_some_and(|it| (it.group, it.version, it.kind) == (group, version, kind))
        })
    }

    /// Returns the watched kind of an object.
    pub fn of(object: &ObjectRef) -> Option<&'static Self> {
        let name = (&*object.group, &*object.kind);
        KINDS.iter().find(|kind| (kind.group, kind.kind) == name)
    }

    /// Returns all watched kinds.
    pub fn all() -> &'static [Self] {
        KINDS
    }

    /// Returns the kinds of all objects that pods can be sent: the watched ones, and those that only Portcullis itself creates.
    pub fn streamed() -> impl Iterator<Item = &'static Self> {
        KINDS.iter().chain([&KEY_SET])
    }

    /// Returns the kind of an object that a controller sends.
    pub fn find_streamed(api_version: &str, kind: &str) -> Option<&'static Self> {
        let is_own = |own: &&Self| own.kind == kind && own.api_version() == api_version;
        Self::find(api_version, kind).or_else(|| Some(&KEY_SET).filter(is_own))
    }

    /// Returns the `apiVersion` of the released shape.
    pub fn api_version(&self) -> String {
        self.group_version(self.versions.first().copied().unwrap_or("v1"))
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
        (self.decode)(value)
    }

    /// Decodes the object of a watch event, which is JSON. Faster than [`Kind::decode`], which needs a [`Value`].
    pub fn decode_event(&self, event: &[u8]) -> Result<Object, serde_json::Error> {
        (self.decode_event)(event)
    }
}

/// A watch event, of which only the object is read.
#[derive(Deserialize)]
struct Event<T> {
    object: T,
}

fn read<T: DeserializeOwned>(
    value: &Value,
    wrap: fn(Arc<T>) -> Object,
) -> Result<Object, serde_json::Error> {
    T::deserialize(value).map(|object| wrap(Arc::new(object)))
}

fn read_event<T: DeserializeOwned>(
    event: &[u8],
    wrap: fn(Arc<T>) -> Object,
) -> Result<Object, serde_json::Error> {
    let Event { object } = serde_json::from_slice(event)?;
    Ok(wrap(Arc::new(object)))
}

/// Creates an entry of [`KINDS`] that is decoded into a variant of [`Object`].
macro_rules! kind {
    ($group:expr, $kind:literal, $versions:expr, $namespaced:literal, $schema:literal, $variant:ident) => {
        kind!(
            $group,
            $kind,
            $versions,
            $namespaced,
            $schema,
            $variant,
            None
        )
    };
    ($group:expr, $kind:literal, $versions:expr, $namespaced:literal, $schema:literal, $variant:ident, $experimental:expr) => {
        Kind {
            group: $group,
            kind: $kind,
            versions: &$versions,
            namespaced: $namespaced,
            experimental: $experimental,
            schema: include_str!(concat!("schema/", $schema, ".json")),
            decode: |value| read(value, Object::$variant),
            decode_event: |event| read_event(event, Object::$variant),
        }
    };
}

/// KeySets, which neither clusters nor folders have.
static KEY_SET: Kind = Kind {
    group: parameters::GROUP,
    kind: "KeySet",
    versions: &["v1alpha1"],
    namespaced: true,
    experimental: None,
    schema: "{}",
    decode: |value| read(value, Object::KeySet),
    decode_event: |event| read_event(event, Object::KeySet),
};

static KINDS: &[Kind] = &[
    kind!(
        GATEWAY_GROUP,
        "GatewayClass",
        ["v1", "v1beta1"],
        false,
        "gatewayclass",
        GatewayClass
    ),
    kind!(
        GATEWAY_GROUP,
        "Gateway",
        ["v1", "v1beta1"],
        true,
        "gateway",
        Gateway
    ),
    kind!(
        GATEWAY_GROUP,
        "ListenerSet",
        ["v1"],
        true,
        "listenerset",
        ListenerSet,
        Some(ExperimentalKind {
            group: EXPERIMENTAL_GROUP,
            version: "v1alpha1",
            kind: "XListenerSet",
        })
    ),
    kind!(
        GATEWAY_GROUP,
        "HTTPRoute",
        ["v1", "v1beta1"],
        true,
        "httproute",
        HttpRoute
    ),
    kind!(
        GATEWAY_GROUP,
        "GRPCRoute",
        ["v1"],
        true,
        "grpcroute",
        GrpcRoute
    ),
    kind!(
        GATEWAY_GROUP,
        "TLSRoute",
        ["v1"],
        true,
        "tlsroute",
        TlsRoute
    ),
    kind!(
        GATEWAY_GROUP,
        "TCPRoute",
        ["v1"],
        true,
        "tcproute",
        TcpRoute
    ),
    kind!(
        GATEWAY_GROUP,
        "UDPRoute",
        ["v1"],
        true,
        "udproute",
        UdpRoute
    ),
    kind!(
        GATEWAY_GROUP,
        "BackendTLSPolicy",
        ["v1"],
        true,
        "backendtlspolicy",
        BackendTlsPolicy
    ),
    kind!(
        GATEWAY_GROUP,
        "ReferenceGrant",
        ["v1", "v1beta1"],
        true,
        "referencegrant",
        ReferenceGrant
    ),
    kind!(
        parameters::GROUP,
        "GatewayParameters",
        ["v1alpha1"],
        true,
        "gatewayparameters",
        GatewayParameters
    ),
    kind!(
        parameters::GROUP,
        "BackendTLSOverride",
        ["v1alpha1"],
        true,
        "backendtlsoverride",
        BackendTlsOverride
    ),
    kind!(
        parameters::GROUP,
        "TelemetryPolicy",
        ["v1alpha1"],
        true,
        "telemetrypolicy",
        TelemetryPolicy
    ),
    kind!(
        EXPERIMENTAL_GROUP,
        "XBackend",
        ["v1alpha1"],
        true,
        "xbackend",
        XBackend
    ),
    kind!(
        EXPERIMENTAL_GROUP,
        "XBackendTrafficPolicy",
        ["v1alpha1"],
        true,
        "xbackendtrafficpolicy",
        BackendTrafficPolicy
    ),
    kind!(
        parameters::GROUP,
        "ReleaseBackend",
        ["v1alpha1"],
        true,
        "releasebackend",
        ReleaseBackend
    ),
    kind!(
        parameters::GROUP,
        "AccessPolicy",
        ["v1alpha1"],
        true,
        "accesspolicy",
        AccessPolicy
    ),
    kind!(
        parameters::GROUP,
        "BackendPolicy",
        ["v1alpha1"],
        true,
        "backendpolicy",
        BackendPolicy
    ),
    kind!(
        parameters::GROUP,
        "ClientPolicy",
        ["v1alpha1"],
        true,
        "clientpolicy",
        ClientPolicy
    ),
    kind!(
        parameters::GROUP,
        "RateLimitPolicy",
        ["v1alpha1"],
        true,
        "ratelimitpolicy",
        RateLimitPolicy
    ),
    kind!(
        parameters::GROUP,
        "RoutePolicy",
        ["v1alpha1"],
        true,
        "routepolicy",
        RoutePolicy
    ),
    kind!(
        parameters::GROUP,
        "RouteFilter",
        ["v1alpha1"],
        true,
        "routefilter",
        RouteFilter
    ),
    kind!(
        MULTICLUSTER_GROUP,
        "ServiceImport",
        ["v1alpha1", "v1beta1"],
        true,
        "serviceimport",
        ServiceImport
    ),
    kind!("", "Namespace", ["v1"], false, "namespace", Namespace),
    kind!("", "Service", ["v1"], true, "service", Service),
    kind!("", "Pod", ["v1"], true, "pod", Pod),
    kind!(
        "discovery.k8s.io",
        "EndpointSlice",
        ["v1"],
        true,
        "endpointslice",
        EndpointSlice
    ),
    kind!("", "Secret", ["v1"], true, "secret", Secret),
    kind!("", "ConfigMap", ["v1"], true, "configmap", ConfigMap),
];
