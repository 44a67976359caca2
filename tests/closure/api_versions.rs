//! The API version of each kind.

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// Returns the `apiVersion` of objects of a kind.
pub(crate) fn api_version(kind: &str) -> &'static str {
    match kind {
        "Service" | "Pod" | "Secret" | "ConfigMap" | "Namespace" => "v1",
        "AccessPolicy" | "BackendPolicy" | "BackendTLSOverride" | "ClientPolicy"
        | "RateLimitPolicy" | "ReleaseBackend" | "RouteFilter" | "RoutePolicy"
        | "TelemetryPolicy" => "portcullis.dev/v1alpha1",
        "XBackend" | "XBackendTrafficPolicy" => "gateway.networking.x-k8s.io/v1alpha1",
        "InferencePool" => "inference.networking.k8s.io/v1",
        "ServiceImport" => "multicluster.x-k8s.io/v1alpha1",
        _ => GATEWAY_API,
    }
}
