//! The closures that contain a telemetry policy, and its collector.

use serde_json::json;

use crate::contents::{Followed, class, http, object, service};

#[test]
fn telemetry_policy_is_in_closures_of_its_gateways_with_its_collector() {
    let mut followed = Followed::new([class(), http("one"), http("two"), service("infra", "otel")]);
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"});
    let spec = json!({
        "targetRefs": [target],
        "tracing": {"provider": {"backendRef": {"name": "otel", "port": 4318}}},
    });
    let policy = |namespace: &str| object("TelemetryPolicy", namespace, "p", spec.clone());
    // A policy of another namespace targets another Gateway.
    assert!(followed.put(&policy("apps")).is_empty());
    let change = |sign| [format!("one: {sign}Service infra/otel {sign}TelemetryPolicy infra/p")];
    assert_eq!(followed.put(&policy("infra")), change("+"));
    assert_eq!(followed.delete(&policy("infra")), change("-"));
}
