//! The closures that contain a telemetry policy, and its collector.

use proptest::collection::vec;
use proptest::option::of;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, service};
use crate::objects::{metadata, named, namespace_name, target_name};

pub(crate) fn telemetry_policy() -> impl Strategy<Value = Value> {
    let target = named("g").prop_map(
        |name| json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name}),
    );
    let collector = (target_name(), of(namespace_name()));
    let spec = (vec(target, 1..3), collector);
    (metadata("y"), spec).prop_map(|(metadata, (targets, (collector, namespace)))| {
        let (group, kind, name) = collector;
        let reference =
            json!({"group": group, "kind": kind, "name": name, "namespace": namespace, "port": 80});
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "TelemetryPolicy", "metadata": metadata,
            "spec": {"targetRefs": targets, "tracing": {"provider": {"backendRef": reference}}},
        })
    })
}

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
    let change = |sign| {
        [format!(
            "one: {sign}Service infra/otel {sign}TelemetryPolicy infra/p"
        )]
    };
    assert_eq!(followed.put(&policy("infra")), change("+"));
    assert_eq!(followed.delete(&policy("infra")), change("-"));
}
