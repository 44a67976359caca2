//! Inherited policies: at random for the properties, and the closures that contain one.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::contents::{Followed, class, grant, http, object, route, service, slice};
use crate::objects::{from, metadata, named, other_namespace, secret_ref};

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
    let server = proptest::option::of((named("v"), other_namespace()));
    let client = proptest::option::of(secret_ref());
    let all = (basic, api_key, jwks, require, server, client);
    all.prop_map(|(basic, api_key, jwks, require, server, client)| {
        let mut spec = json!({});
        if let Some(secret) = client {
            spec["oidc"] =
                json!({"issuer": "https://a.com", "clientID": "a", "clientSecretRef": secret});
        }
        if let Some((name, namespace)) = server {
            let server = json!({"name": name, "namespace": namespace, "port": 80});
            spec["external"] = json!({"protocol": "HTTP", "backendRef": server});
        }
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
    let pages = named("cm").prop_map(|name| {
        let keys = json!([{"key": "ca.crt", "mediaType": "text/html"}]);
        json!({"errorPages": [{"codes": [404], "configMapRef": {"name": name, "keys": keys}}]})
    });
    let servers = (named("v"), other_namespace()).prop_map(|(name, namespace)| {
        let server = json!({"name": name, "namespace": namespace, "port": 80});
        json!({"errorPages": [{"codes": [404], "backendRef": server}]})
    });
    let sections = prop_oneof![
        pages,
        servers,
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
        Just(json!({"http3": {}})),
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

#[test]
fn closure_includes_the_authorization_server_of_a_policy() {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"});
    let server = json!({"name": "auth", "namespace": "login", "port": 80});
    let external = json!({"protocol": "HTTP", "backendRef": server});
    let spec = json!({"targetRefs": [target], "external": external});
    let policy = object("AccessPolicy", "apps", "p", spec);
    let to = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", to.clone()),
        route("apps", "s", "two", to),
        service("apps", "app"),
        service("login", "auth"),
        slice("login", "auth", "10.0.0.1"),
    ]);
    // Without a grant, the pods get nothing of the other namespace.
    assert_eq!(followed.put(&policy), ["one: +AccessPolicy apps/p"]);
    let change = "one: +Service login/auth +EndpointSlice login/auth-x +ReferenceGrant login/AccessPolicy-Service";
    let grant = grant("login", ("AccessPolicy", "apps"), "Service");
    assert_eq!(followed.put(&grant), [change]);
}

#[test]
fn closure_includes_config_maps_with_error_pages() {
    let page = |name: &str| {
        let keys = json!([{"key": "a.html", "mediaType": "text/html"}]);
        json!({"codes": [404], "configMapRef": {"name": name, "keys": keys}})
    };
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"});
    let policy = |name: &str| {
        let spec = json!({"targetRefs": [target], "errorPages": [page(name)]});
        object("RoutePolicy", "apps", "p", spec)
    };
    let map = |namespace: &str, name: &str| {
        let mut map = object("ConfigMap", namespace, name, Value::Null);
        map["data"] = json!({"a.html": "a"});
        map
    };
    let to = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", to.clone()),
        route("apps", "s", "two", to),
        service("apps", "app"),
        map("apps", "pages"),
        map("apps", "others"),
        map("infra", "pages"),
    ]);
    let change = "one: +ConfigMap apps/pages +RoutePolicy apps/p";
    assert_eq!(followed.put(&policy("pages")), [change]);
    let change = "one: +ConfigMap apps/others -ConfigMap apps/pages +RoutePolicy apps/p";
    assert_eq!(followed.put(&policy("others")), [change]);
}

#[test]
fn closure_includes_servers_of_error_pages() {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"});
    let server = json!({"name": "pages", "namespace": "errors", "port": 80});
    let pages = json!([{"codes": [404], "backendRef": server}]);
    let spec = json!({"targetRefs": [target], "errorPages": pages});
    let policy = object("RoutePolicy", "infra", "p", spec);
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        service("errors", "pages"),
        slice("errors", "pages", "10.0.0.1"),
        service("errors", "other"),
    ]);
    assert_eq!(followed.put(&policy), ["one: +RoutePolicy infra/p"]);
    let change = "one: +Service errors/pages +EndpointSlice errors/pages-x +ReferenceGrant errors/RoutePolicy-Service";
    let grant = grant("errors", ("RoutePolicy", "infra"), "Service");
    assert_eq!(followed.put(&grant), [change]);
}

#[test]
fn closure_includes_the_fetched_keys_of_its_policies() {
    let remote = json!({"uri": "https://a.com/keys", "caConfigMapRef": {"name": "ca"}});
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"});
    let providers = json!([{"issuer": "a", "jwks": {"remote": remote}}]);
    let spec = json!({"targetRefs": [target], "jwt": {"providers": providers}});
    let map = |namespace: &str| {
        let mut map = object("ConfigMap", namespace, "ca", Value::Null);
        map["data"] = json!({"ca.crt": "a", "other": "b"});
        map
    };
    let set = |namespace: &str, name: &str, keys: &str| {
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet",
            "metadata": {"name": name, "namespace": namespace}, "keys": keys,
        })
    };
    let policy = object("AccessPolicy", "infra", "p", spec);
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        policy.clone(),
        map("infra"),
        map("other"),
    ]);
    assert_eq!(
        followed.of("one"),
        ["AccessPolicy infra/p", "ConfigMap infra/ca"]
    );
    let name = "https://a.com/keys#ca";
    let of_one = ["one: +KeySet infra/https://a.com/keys#ca"];
    assert!(
        followed
            .put(&set("infra", "https://a.com/keys", "k"))
            .is_empty()
    );
    assert!(followed.put(&set("other", name, "k")).is_empty());
    assert_eq!(followed.put(&set("infra", name, "k")), of_one);
    assert_eq!(followed.put(&set("infra", name, "l")), of_one);
    let gone = "one: -ConfigMap infra/ca -AccessPolicy infra/p -KeySet infra/https://a.com/keys#ca";
    assert_eq!(followed.delete(&policy), [gone]);
}

#[test]
fn closure_includes_the_service_with_the_keys_of_its_policies() {
    let backend = json!({"name": "keys", "port": 80});
    let remote = json!({"uri": "http://a.com/keys", "backendRef": backend});
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"});
    let providers = json!([{"issuer": "a", "jwks": {"remote": remote}}]);
    let spec = json!({"targetRefs": [target], "jwt": {"providers": providers}});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        service("infra", "keys"),
        service("apps", "keys"),
    ]);
    let policy = object("AccessPolicy", "infra", "p", spec);
    let change = "one: +Service infra/keys +AccessPolicy infra/p";
    assert_eq!(followed.put(&policy), [change]);
    let set = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet", "keys": "k",
        "metadata": {"name": "http://a.com/keys##/keys:80", "namespace": "infra"},
    });
    let change = "one: +KeySet infra/http://a.com/keys##/keys:80";
    assert_eq!(followed.put(&set), [change]);
}

#[test]
fn closure_includes_what_sign_ins_need() {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"});
    let oidc = json!({
        "issuer": "https://a.com", "clientID": "a", "clientSecretRef": {"name": "s"},
        "caConfigMapRef": {"name": "ca"},
    });
    let policy = object(
        "AccessPolicy",
        "infra",
        "p",
        json!({"targetRefs": [target], "oidc": oidc}),
    );
    let mut secret = object("Secret", "infra", "s", Value::Null);
    secret["stringData"] = json!({"client-secret": "a", "other": "b"});
    let mut map = object("ConfigMap", "infra", "ca", Value::Null);
    map["data"] = json!({"ca.crt": "a", "other": "b"});
    let mut followed = Followed::new([class(), http("one"), policy, secret, map]);
    let expected = [
        "AccessPolicy infra/p",
        "ConfigMap infra/ca",
        "Secret infra/s",
    ];
    assert_eq!(followed.of("one"), expected);
    let set = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet",
        "metadata": {"name": "openid:https://a.com#ca", "namespace": "infra"}, "keys": "k",
        "discovery": {"authorizationEndpoint": "https://a.com/a", "tokenEndpoint": "https://a.com/t"},
    });
    assert_eq!(
        followed.put(&set),
        ["one: +KeySet infra/openid:https://a.com#ca"]
    );
    let snapshot = followed.snapshot("one");
    let secret = snapshot.secrets.iter().next().expect("a Secret");
    let keys: Vec<_> = secret
        .data
        .keys()
        .chain(secret.string_data.keys())
        .collect();
    assert_eq!(keys, ["client-secret"]);
    let set = snapshot.key_sets.iter().next().expect("a KeySet");
    assert!(set.discovery.is_some());
}
