//! The table of kinds: a row for each kind, from which everything that lists kinds is made. Must not know what objects mean.

use super::inference_pool::INFERENCE_GROUP;
use super::meta::{ObjectMeta, Resource};
use super::parameters::GROUP;
use super::service_import::MULTICLUSTER_GROUP;
use super::xbackend::EXPERIMENTAL_GROUP;
use super::{
    access_policy, backend_policy, backend_tls_policy, client_policy, core, gateway, grpc_route,
    http_route, inference_pool, key_set, l4_route, parameters, pod, rate_limit_policy,
    release_backend, route_filter, route_policy, service_import, telemetry_policy, traffic_policy,
    xbackend,
};
use crate::ir::object_ref::GATEWAY_GROUP;

/// Passes the table to a macro, which makes its list of it. A row is
///
/// ```text
/// name of its objects in a snapshot: type
///     { group, kind, versions of the same shape (the released one first), schema, what differs from most kinds },
/// ```
///
/// where the last part sets fields of [`Kind`](super::object::Kind). Kinds that are only streamed are the last ones. The
/// macro can take the braces as one token.
macro_rules! kinds {
    ($list:ident) => {
        $list! {
            gateway_classes: gateway::GatewayClass
                { GATEWAY_GROUP, "GatewayClass", ["v1", "v1beta1"], "gatewayclass", namespaced: false, status: Some(StatusShape::GatewayClass) },
            gateways: gateway::Gateway
                { GATEWAY_GROUP, "Gateway", ["v1", "v1beta1"], "gateway", status: Some(StatusShape::Gateway), uses_contents: true },
            listener_sets: gateway::ListenerSet
                { GATEWAY_GROUP, "ListenerSet", ["v1"], "listenerset", status: Some(StatusShape::ListenerSet), experimental: Some(X_LISTENER_SET), uses_contents: true },
            http_routes: http_route::HttpRoute
                { GATEWAY_GROUP, "HTTPRoute", ["v1", "v1beta1"], "httproute", status: Some(StatusShape::Route) },
            grpc_routes: grpc_route::GrpcRoute
                { GATEWAY_GROUP, "GRPCRoute", ["v1"], "grpcroute", status: Some(StatusShape::Route) },
            tls_routes: l4_route::TlsRoute
                { GATEWAY_GROUP, "TLSRoute", ["v1"], "tlsroute", status: Some(StatusShape::Route) },
            tcp_routes: l4_route::TcpRoute
                { GATEWAY_GROUP, "TCPRoute", ["v1"], "tcproute", status: Some(StatusShape::Route) },
            udp_routes: l4_route::UdpRoute
                { GATEWAY_GROUP, "UDPRoute", ["v1"], "udproute", status: Some(StatusShape::Route) },
            backend_tls_policies: backend_tls_policy::BackendTlsPolicy
                { GATEWAY_GROUP, "BackendTLSPolicy", ["v1", "v1alpha3"], "backendtlspolicy", status: Some(StatusShape::Policy), uses_contents: true },
            backend_tls_overrides: backend_tls_policy::BackendTlsOverride
                { GROUP, "BackendTLSOverride", ["v1alpha1"], "backendtlsoverride", status: Some(StatusShape::Policy), uses_contents: true },
            backend_traffic_policies: traffic_policy::BackendTrafficPolicy
                { EXPERIMENTAL_GROUP, "XBackendTrafficPolicy", ["v1alpha1"], "xbackendtrafficpolicy", status: Some(StatusShape::Policy) },
            backend_policies: backend_policy::BackendPolicy
                { GROUP, "BackendPolicy", ["v1alpha1"], "backendpolicy", status: Some(StatusShape::Policy) },
            telemetry_policies: telemetry_policy::TelemetryPolicy
                { GROUP, "TelemetryPolicy", ["v1alpha1"], "telemetrypolicy", status: Some(StatusShape::Policy) },
            xbackends: xbackend::XBackend
                { EXPERIMENTAL_GROUP, "XBackend", ["v1alpha1"], "xbackend", status: Some(StatusShape::Backend), uses_contents: true },
            release_backends: release_backend::ReleaseBackend
                { GROUP, "ReleaseBackend", ["v1alpha1"], "releasebackend", status: Some(StatusShape::ReleaseBackend) },
            inference_pools: inference_pool::InferencePool
                { INFERENCE_GROUP, "InferencePool", ["v1"], "inferencepool", status: Some(StatusShape::Backend) },
            access_policies: access_policy::AccessPolicy
                { GROUP, "AccessPolicy", ["v1alpha1"], "accesspolicy", status: Some(StatusShape::Policy), uses_contents: true },
            client_policies: client_policy::ClientPolicy
                { GROUP, "ClientPolicy", ["v1alpha1"], "clientpolicy", status: Some(StatusShape::Policy) },
            rate_limit_policies: rate_limit_policy::RateLimitPolicy
                { GROUP, "RateLimitPolicy", ["v1alpha1"], "ratelimitpolicy", status: Some(StatusShape::Policy) },
            route_policies: route_policy::RoutePolicy
                { GROUP, "RoutePolicy", ["v1alpha1"], "routepolicy", status: Some(StatusShape::Policy), uses_contents: true },
            route_filters: route_filter::RouteFilter
                { GROUP, "RouteFilter", ["v1alpha1"], "routefilter", uses_contents: true },
            service_imports: service_import::ServiceImport
                { MULTICLUSTER_GROUP, "ServiceImport", ["v1alpha1", "v1beta1"], "serviceimport" },
            reference_grants: gateway::ReferenceGrant
                { GATEWAY_GROUP, "ReferenceGrant", ["v1", "v1beta1"], "referencegrant" },
            gateway_parameters: parameters::GatewayParameters
                { GROUP, "GatewayParameters", ["v1alpha1"], "gatewayparameters" },
            namespaces: core::Namespace
                { "", "Namespace", ["v1"], "namespace", namespaced: false },
            services: core::Service
                { "", "Service", ["v1"], "service" },
            pods: pod::Pod
                { "", "Pod", ["v1"], "pod" },
            endpoint_slices: core::EndpointSlice
                { "discovery.k8s.io", "EndpointSlice", ["v1"], "endpointslice" },
            secrets: core::Secret
                { "", "Secret", ["v1"], "secret" },
            config_maps: core::ConfigMap
                { "", "ConfigMap", ["v1"], "configmap" },
            key_sets: key_set::KeySet
                { GROUP, "KeySet", ["v1alpha1"], "keyset", is_watched: false },
        }
    };
}
pub(crate) use kinds;

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

pub(super) const X_LISTENER_SET: ExperimentalKind = ExperimentalKind {
    group: EXPERIMENTAL_GROUP,
    version: "v1alpha1",
    kind: "XListenerSet",
};

/// What a controller writes into the status of objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusShape {
    /// Conditions, and the features of the controller.
    GatewayClass,
    /// Conditions, addresses and listeners.
    Gateway,
    /// Conditions and listeners.
    ListenerSet,
    /// Conditions for each parent of a route.
    Route,
    /// Conditions for each Gateway that a policy applies to.
    Policy,
    /// Conditions for each Gateway that sends requests to a backend.
    Backend,
    /// Conditions and releases.
    ReleaseBackend,
}

/// Implements [`Resource`] for the types of the table.
macro_rules! resources {
    ($($objects:ident: $module:ident::$type:ident { $group:expr, $kind:literal, $($rest:tt)+ },)+) => {
        $(
            impl Resource for $module::$type {
                const GROUP: &'static str = $group;
                const KIND: &'static str = $kind;

                fn meta(&self) -> &ObjectMeta {
                    &self.metadata
                }
            }
        )+
    };
}
kinds!(resources);
