//! What healthy objects report. Goldens print only what differs from this.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// Fields of a healthy status, by the field of the report that holds the objects and by their kind. Conditions are given
/// by their types: each has status True, its type as the reason, no message, and the generation 0. Healthy `listeners` of
/// an object are those that the IR has of it, and their `attachedRoutes` is the number of their routes there.
pub(crate) static HEALTHY: LazyLock<Value> = LazyLock::new(|| {
    let of_controller = |conditions: &[&str]| {
        let controller = "portcullis.dev/gateway-controller";
        json!({"conditions": conditions, "controllerName": controller})
    };
    let route = of_controller(&["Accepted", "ResolvedRefs"]);
    json!({
        "gatewayClasses": {"GatewayClass": {"conditions": ["Accepted"]}},
        "gateways": {"Gateway": {
            "addresses": [],
            "attachedListenerSets": 0,
            "conditions": ["Accepted", "Programmed"],
        }},
        "listenerSets": {"ListenerSet": {"conditions": ["Accepted", "Programmed"]}},
        "listeners": {"listener": {
            "conditions": ["Accepted", "Programmed", "ResolvedRefs"],
            "supportedKinds": ["HTTPRoute", "GRPCRoute"],
        }},
        "routes": {"HTTPRoute": route, "GRPCRoute": route, "TLSRoute": route, "TCPRoute": route, "UDPRoute": route},
        "policies": {
            "AccessPolicy": of_controller(&["Accepted", "ResolvedRefs", "Programmed"]),
            "BackendPolicy": of_controller(&["Accepted", "ResolvedRefs", "Programmed"]),
            "ClientPolicy": of_controller(&["Accepted", "ResolvedRefs", "Programmed"]),
            "RateLimitPolicy": of_controller(&["Accepted", "ResolvedRefs", "Programmed"]),
            "RoutePolicy": of_controller(&["Accepted", "ResolvedRefs", "Programmed"]),
            "BackendTLSPolicy": of_controller(&["Accepted", "ResolvedRefs"]),
            "BackendTLSOverride": of_controller(&["Accepted", "ResolvedRefs"]),
            "TelemetryPolicy": of_controller(&["Accepted", "ResolvedRefs"]),
            "XBackendTrafficPolicy": of_controller(&["Accepted"]),
        },
        "backends": {
            "InferencePool": of_controller(&["Accepted", "ResolvedRefs"]),
            "XBackend": of_controller(&["Accepted", "ResolvedRefs"]),
        },
        "releaseBackends": {"ReleaseBackend": {
            "conditions": ["Accepted", "ResolvedRefs", "Programmed"],
            "releases": [],
        }},
    })
});
