//! Traffic policies: at random for the properties, and the closures that contain one.

use proptest::arbitrary::any;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prop_oneof;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, route, service};
use crate::objects::{metadata, named, target_name};

pub(crate) fn traffic_policy() -> impl Strategy<Value = Value> {
    let external = named("x").prop_map(|name| ("gateway.networking.x-k8s.io", "XBackend", name));
    let target = prop_oneof![4 => target_name(), 1 => external];
    let target =
        target.prop_map(|(group, kind, name)| json!({"group": group, "kind": kind, "name": name}));
    let spec = (vec(target, 1..3), of(0..=100), any::<bool>());
    (metadata("t"), spec).prop_map(|(metadata, (targets, percent, persists))| {
        let constraint = percent.map(|percent| json!({"budget": {"percent": percent}}));
        json!({
            "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackendTrafficPolicy",
            "metadata": metadata,
            "spec": {
                "targetRefs": targets, "retryConstraint": constraint,
                "sessionPersistence": persists.then(|| json!({})),
            },
        })
    })
}

#[test]
fn traffic_policy_is_in_closures_of_gateways_that_send_requests_to_its_targets() {
    let target =
        |group: &str, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name});
    let external = "gateway.networking.x-k8s.io";
    let targets = json!([
        target("", "Service", "app"),
        target(external, "XBackend", "x"),
        target("", "ConfigMap", "other"),
    ]);
    let policy = |namespace: &str| {
        let spec = json!({"targetRefs": targets, "retryConstraint": {}});
        object("XBackendTrafficPolicy", namespace, "p", spec)
    };
    let spec = json!({"type": "ExternalHostname", "externalHostname": {"hostname": "x.example"}, "port": {"port": 80}});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        http("three"),
        route("apps", "r", "one", json!({"name": "app", "port": 80})),
        route(
            "apps",
            "s",
            "two",
            json!({"group": external, "kind": "XBackend", "name": "x"}),
        ),
        route("apps", "t", "three", json!({"name": "other", "port": 80})),
        service("apps", "app"),
        service("apps", "other"),
        object("XBackend", "apps", "x", spec),
    ]);
    let change = |sign| {
        let of = |gateway| format!("{gateway}: {sign}XBackendTrafficPolicy apps/p");
        [of("one"), of("two")]
    };
    // A policy of another namespace targets other objects.
    assert!(followed.put(&policy("infra")).is_empty());
    assert_eq!(followed.put(&policy("apps")), change("+"));
    assert_eq!(followed.delete(&policy("apps")), change("-"));
}
