//! Traffic policies: at random for the properties, and the closures that contain one.

use proptest::arbitrary::any;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prop_oneof;
use proptest::sample::select;
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

pub(crate) fn backend_policy() -> impl Strategy<Value = Value> {
    let method = select(vec![
        json!({"type": "RoundRobin"}),
        json!({"slowStart": "10s"}),
        json!({"type": "ConsistentHash", "consistentHash": {"key": [{"type": "ClientIP"}]}}),
        json!({"type": "ConsistentHash"}),
    ]);
    let section = of(select(vec!["o", "none"]));
    let spec = (
        target_name(),
        section,
        of(method),
        any::<bool>(),
        any::<bool>(),
    );
    (metadata("bp"), spec).prop_map(|(metadata, (target, section, method, limits, persists))| {
        let (group, kind, name) = target;
        let target = json!({"group": group, "kind": kind, "name": name, "sectionName": section});
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendPolicy", "metadata": metadata,
            "spec": {
                "targetRefs": [target], "loadBalancing": method,
                "retryConstraint": limits.then(|| json!({"budget": {"percent": 10}})),
                "sessionPersistence": persists.then(|| json!({})),
            },
        })
    })
}

#[test]
fn backend_policy_is_in_closures_of_gateways_that_send_requests_to_its_targets() {
    let policy = |namespace: &str| {
        let target = json!({"group": "", "kind": "Service", "name": "app", "sectionName": "o"});
        let spec = json!({"targetRefs": [target], "loadBalancing": {"type": "Random"}});
        object("BackendPolicy", namespace, "p", spec)
    };
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", json!({"name": "app", "port": 80})),
        route("apps", "s", "two", json!({"name": "other", "port": 80})),
        service("apps", "app"),
        service("apps", "other"),
    ]);
    // A policy of another namespace targets other objects.
    assert!(followed.put(&policy("infra")).is_empty());
    assert_eq!(
        followed.put(&policy("apps")),
        ["one: +BackendPolicy apps/p"]
    );
    assert_eq!(
        followed.delete(&policy("apps")),
        ["one: -BackendPolicy apps/p"]
    );
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
