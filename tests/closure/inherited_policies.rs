//! Inherited policies: at random for the properties, and the closures that contain one.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, route, service};
use crate::objects::{from, metadata, named, secret_ref};

/// An AccessPolicy on Gateways, ListenerSets, routes and their sections.
pub(crate) fn access_policy() -> impl Strategy<Value = Value> {
    let cidrs = prop_oneof![
        4 => Just(json!(["10.0.0.0/8"])),
        2 => Just(json!(["192.0.2.0/24", "10.1.0.0/16"])),
        1 => Just(json!(["none"])),
    ];
    let rules = (
        proptest::option::of(cidrs.clone()),
        proptest::option::of(cidrs),
    );
    let spec = (
        proptest::collection::vec(from(), 1..3),
        rules,
        proptest::bool::weighted(0.3),
        credentials(),
    );
    (metadata("a"), spec).prop_map(
        |(metadata, (targets, (allow, deny), overrides, mut spec))| {
            spec["targetRefs"] = json!(targets);
            spec["ipRules"] = json!({});
            if let Some(allow) = allow {
                spec["ipRules"]["allow"] = allow;
            }
            if let Some(deny) = deny {
                spec["ipRules"]["deny"] = deny;
            }
            if overrides {
                spec["strategy"] = json!("Overrides");
            }
            json!({
                "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
                "metadata": metadata, "spec": spec,
            })
        },
    )
}

/// The sections of an AccessPolicy with credentials in Secrets, some of which other objects use.
fn credentials() -> impl Strategy<Value = Value> {
    let basic = proptest::option::of(secret_ref());
    let api_key = proptest::option::of(proptest::collection::vec(secret_ref(), 1..3));
    let shared_key = secret_ref().prop_map(|secret| json!({"secretRef": secret}));
    let key_set = named("cm").prop_map(|name| json!({"configMapRef": {"name": name}}));
    let jwks = proptest::option::of(prop_oneof![shared_key, key_set]);
    let require = proptest::option::of(prop_oneof![Just("All"), Just("Any")]);
    (basic, api_key, jwks, require).prop_map(|(basic, api_key, jwks, require)| {
        let mut spec = json!({});
        if let Some(secret) = basic {
            spec["basic"] = json!({"secretRef": secret});
        }
        if let Some(secrets) = api_key {
            let from = json!([{"type": "Header", "name": "x-api-key"}]);
            spec["apiKey"] = json!({"secretRefs": secrets, "from": from});
        }
        if let Some(jwks) = jwks {
            spec["jwt"] = json!({"providers": [{"issuer": "a", "jwks": jwks}]});
        }
        if let Some(require) = require {
            spec["require"] = json!(require);
        }
        spec
    })
}

/// A RateLimitPolicy on the same targets.
pub(crate) fn rate_limit_policy() -> impl Strategy<Value = Value> {
    let scope = prop_oneof![4 => Just("Replica"), 1 => Just("Gateway")];
    let spec = (proptest::collection::vec(from(), 1..3), scope);
    (metadata("l"), spec).prop_map(|(metadata, (targets, scope))| {
        let rules = json!([{"name": "one", "concurrent": 1, "scope": scope}]);
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "RateLimitPolicy",
            "metadata": metadata, "spec": {"targetRefs": targets, "rules": rules},
        })
    })
}

/// A RoutePolicy on the same targets.
pub(crate) fn route_policy() -> impl Strategy<Value = Value> {
    let sections = prop_oneof![
        Just(json!({"requestBody": {"maxSize": "1Mi"}})),
        Just(json!({"requestBody": {"maxSize": "1.5Mi"}, "retry": {"attempts": 0}})),
        Just(json!({"timeouts": {"request": "10s"}, "strategy": "Overrides"})),
    ];
    let spec = (proptest::collection::vec(from(), 1..3), sections);
    (metadata("r"), spec).prop_map(|(metadata, (targets, mut spec))| {
        spec["targetRefs"] = json!(targets);
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "RoutePolicy",
            "metadata": metadata, "spec": spec,
        })
    })
}

/// A ClientPolicy on the same targets, of which only Gateways and ListenerSets are valid.
pub(crate) fn client_policy() -> impl Strategy<Value = Value> {
    let sections = prop_oneof![
        Just(json!({"clientIP": {"xForwardedFor": {"trustedHops": 1}}})),
        Just(json!({"proxyProtocol": {"mode": "Required", "trustedCIDRs": ["10.0.0.0/8"]}})),
        Just(json!({"timeouts": {"idle": "10s"}, "strategy": "Overrides"})),
    ];
    let spec = (proptest::collection::vec(from(), 1..3), sections);
    (metadata("c"), spec).prop_map(|(metadata, (targets, mut spec))| {
        spec["targetRefs"] = json!(targets);
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "ClientPolicy",
            "metadata": metadata, "spec": spec,
        })
    })
}

#[test]
fn inherited_policy_is_in_closures_of_its_targets() {
    let group = "gateway.networking.k8s.io";
    let policy = |namespace: &str| {
        let targets = json!([
            {"group": group, "kind": "HTTPRoute", "name": "r"},
            {"group": group, "kind": "Gateway", "name": "one"},
        ]);
        let spec = json!({"targetRefs": targets, "ipRules": {"deny": ["10.0.0.0/8"]}});
        object("AccessPolicy", namespace, "p", spec)
    };
    let to = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        http("three"),
        route("apps", "r", "two", to.clone()),
        route("apps", "s", "three", to),
        service("apps", "app"),
    ]);
    let of =
        |gateway: &str, namespace: &str| vec![format!("{gateway}: +AccessPolicy {namespace}/p")];
    // Its targets are those of its own namespace.
    assert_eq!(followed.put(&policy("infra")), of("one", "infra"));
    assert_eq!(followed.put(&policy("apps")), of("two", "apps"));
    assert!(followed.put(&policy("other")).is_empty());
}
