//! The kinds that the API server serves.

/// A served kind: group and version, plural, and whether it is namespaced.
pub(super) struct Kind {
    pub(super) version: &'static str,
    pub(super) name: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
}

const fn kind(
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Kind {
    Kind {
        version,
        name,
        plural,
        namespaced,
    }
}

const GATEWAY: &str = "gateway.networking.k8s.io/v1";
pub(super) const KINDS: &[Kind] = &[
    kind("v1", "Namespace", "namespaces", false),
    kind("v1", "Service", "services", true),
    kind("v1", "Secret", "secrets", true),
    kind("v1", "ConfigMap", "configmaps", true),
    kind("v1", "Pod", "pods", true),
    kind("v1", "ServiceAccount", "serviceaccounts", true),
    kind("apps/v1", "ReplicaSet", "replicasets", true),
    kind("apps/v1", "Deployment", "deployments", true),
    kind("apps/v1", "DaemonSet", "daemonsets", true),
    kind(
        "authentication.k8s.io/v1",
        "TokenReview",
        "tokenreviews",
        false,
    ),
    kind(
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        false,
    ),
    kind(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "endpointslices",
        true,
    ),
    kind("coordination.k8s.io/v1", "Lease", "leases", true),
    kind("events.k8s.io/v1", "Event", "events", true),
    kind(
        "portcullis.dev/v1alpha1",
        "AccessPolicy",
        "accesspolicies",
        true,
    ),
    kind(
        "portcullis.dev/v1alpha1",
        "RouteFilter",
        "routefilters",
        true,
    ),
    kind(GATEWAY, "GatewayClass", "gatewayclasses", false),
    kind(GATEWAY, "Gateway", "gateways", true),
    kind(GATEWAY, "ListenerSet", "listenersets", true),
    kind(GATEWAY, "HTTPRoute", "httproutes", true),
    kind(GATEWAY, "BackendTLSPolicy", "backendtlspolicies", true),
    kind(GATEWAY, "ReferenceGrant", "referencegrants", true),
    kind(
        "gateway.networking.x-k8s.io/v1alpha1",
        "XBackend",
        "xbackends",
        true,
    ),
    kind(
        "gateway.networking.x-k8s.io/v1alpha1",
        "XBackendTrafficPolicy",
        "xbackendtrafficpolicies",
        true,
    ),
    kind(
        "gateway.networking.x-k8s.io/v1alpha1",
        "XListenerSet",
        "xlistenersets",
        true,
    ),
    kind(
        "portcullis.dev/v1alpha1",
        "ReleaseBackend",
        "releasebackends",
        true,
    ),
    kind(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        "inferencepools",
        true,
    ),
    kind(
        "multicluster.x-k8s.io/v1alpha1",
        "ServiceImport",
        "serviceimports",
        true,
    ),
];
