//! No publication is less protected since what an object refers to is not known yet. The tests fetch nothing unless they
//! say so.

use serde_json::{Value, json};

use super::*;

/// Returns objects with a reference to the Secret or ConfigMap `NAME`, each with whether it is a policy.
fn cases() -> Vec<(&'static str, bool, Value)> {
    let access = access_policies().into_iter();
    let access = access.map(|spec| ("AccessPolicy", true, spec));
    let map = json!({"name": "NAME", "key": "a", "keys": [{"key": "a", "mediaType": "text/html"}]});
    let route_policy = json!({
        "targetRefs": target(), "requestBody": {"maxSize": "1Ki"},
        "errorPages": [{"codes": [500], "configMapRef": map}],
    });
    let tls = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "shop"}],
        "validation": {"hostname": "a.example", "caCertificateRefs": authority()},
    });
    let policies = [
        ("BackendTLSPolicy", true, tls.clone()),
        ("BackendTLSOverride", true, tls.clone()),
        ("RoutePolicy", true, route_policy),
    ];
    let xbackend = json!({
        "type": "ExternalHostname", "port": {"port": 443},
        "tls": {"mode": "ServerOnly", "validation": tls["validation"]},
    });
    let filter = json!({"directResponse": {"status": 403, "configMapRef": map}});
    let others = [
        ("RouteFilter", false, filter),
        ("XBackend", false, xbackend),
    ];
    let all = access.chain(policies).chain(others);
    all.chain(with_listeners()).collect()
}

fn target() -> Value {
    json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "shop"}])
}

fn authority() -> Value {
    json!([{"group": "", "kind": "ConfigMap", "name": "NAME"}])
}

fn access_policies() -> Vec<Value> {
    let access = |section: &str, value: Value| json!({"targetRefs": target(), section: value});
    let jwt = |jwks: Value| {
        let provider = json!({"issuer": "https://a.example", "jwks": jwks});
        access("jwt", json!({"providers": [provider]}))
    };
    let from = json!([{"type": "Header", "name": "key"}]);
    let oidc = json!({
        "issuer": "https://a.example", "clientID": "a", "clientSecretRef": {"name": "NAME"},
    });
    let remote = json!({"uri": "https://a.example/keys", "caConfigMapRef": {"name": "NAME"}});
    vec![
        access("basic", json!({"secretRef": {"name": "NAME"}})),
        access(
            "apiKey",
            json!({"secretRefs": [{"name": "NAME"}], "from": from}),
        ),
        jwt(json!({"configMapRef": {"name": "NAME"}})),
        jwt(json!({"secretRef": {"name": "NAME"}})),
        jwt(json!({"remote": remote})),
        access("oidc", oidc),
    ]
}

fn with_listeners() -> [(&'static str, bool, Value); 3] {
    let listener =
        |tls: Value| json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": tls}]);
    let listeners = listener(json!({"certificateRefs": [{"name": "NAME"}]}));
    let certificates = json!({"gatewayClassName": "c", "listeners": listeners});
    let clients = json!({
        "gatewayClassName": "c", "listeners": listener(Value::Null),
        "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": authority()}}}},
    });
    let set = json!({"parentRef": {"name": "parent"}, "listeners": listeners});
    [
        ("Gateway", false, certificates),
        ("Gateway", false, clients),
        ("ListenerSet", false, set),
    ]
}

/// Returns a store that has published a configuration with the parent of ListenerSets.
fn published() -> Store {
    let mut store = listed();
    let parent = json!({"gatewayClassName": "c", "listeners": []});
    let parent = Change::Applied(parsed("Gateway", "parent", &parent));
    assert!(store.apply(index("Gateway"), parent));
    store.published();
    store
}

/// Applies an object `a` that refers to a name. Returns whether it is published at once.
fn apply(store: &mut Store, kind: &str, spec: &Value, reference: &str) -> bool {
    let spec = spec.to_string().replace("NAME", reference);
    let spec = serde_json::from_str(&spec).unwrap();
    let change = Change::Applied(parsed(kind, "a", &spec));
    let is_published = store.apply(index(kind), change);
    assert_eq!(store.problems.iter().next(), None);
    is_published
}

/// Fetches everything that is wanted: nothing of it exists.
fn fetch_nothing(store: &mut Store) {
    store.referenced.recheck();
    for (name, _) in store.take_wanted() {
        store.apply_message(Message::Fetched(name, None));
    }
    store.release(Instant::now());
}

/// Returns the published object `a` as JSON.
fn served(store: &Store, kind: &str) -> Option<String> {
    let kind = Kind::all().iter().find(|known| known.kind == kind)?;
    let snapshot = store.load().unwrap().snapshot;
    let object = snapshot.object(&kind.object_ref("default", "a"))?;
    Some(object.to_value().unwrap().to_string())
}

#[test]
fn every_kind_that_refers_to_secrets_has_a_case() {
    let kinds: BTreeSet<_> = cases().into_iter().map(|(kind, ..)| kind).collect();
    let known = Kind::all().iter().filter(|kind| kind.uses_contents);
    assert_eq!(kinds, known.map(|kind| kind.kind).collect());
}

#[test]
fn new_policy_is_published_before_what_it_refers_to_is_known() {
    for (kind, is_policy, spec) in cases() {
        let mut store = published();
        assert_eq!(apply(&mut store, kind, &spec, "one"), is_policy, "{spec}");
        assert_eq!(served(&store, kind).is_some(), is_policy, "{spec}");
        fetch_nothing(&mut store);
        assert!(served(&store, kind).is_some(), "{spec}");
    }
}

#[test]
fn policy_that_takes_the_place_of_another_one_is_published_before_the_other_is_deleted() {
    for (kind, _, spec) in cases().into_iter().filter(|(_, is_policy, _)| *is_policy) {
        let mut store = published();
        let other = spec.to_string().replace("NAME", "known");
        let other = parsed(kind, "other", &serde_json::from_str(&other).unwrap());
        store.apply(index(kind), Change::Applied(other));
        fetch_nothing(&mut store);
        apply(&mut store, kind, &spec, "new");
        store.apply(index(kind), deleted("other"));
        assert!(served(&store, kind).is_some(), "{spec}");
    }
}

#[test]
fn previous_version_is_published_while_only_references_differ() {
    for (kind, _, spec) in cases() {
        let mut store = published();
        apply(&mut store, kind, &spec, "one");
        fetch_nothing(&mut store);
        let before = served(&store, kind);
        assert!(!apply(&mut store, kind, &spec, "two"), "{spec}");
        assert_eq!(served(&store, kind), before);
        fetch_nothing(&mut store);
        assert!(served(&store, kind).unwrap().contains(r#""two""#), "{spec}");
    }
}

/// Versions that protect less than a later one.
#[test]
fn version_that_protects_differently_does_not_wait() {
    for (kind, _, spec) in cases() {
        let mut weaker = spec.clone();
        match kind {
            "AccessPolicy" => {
                let sections = weaker.as_object_mut().unwrap();
                sections.retain(|section, _| section == "targetRefs");
                weaker["ipRules"] = json!({"deny": ["192.0.2.1"]});
            }
            "BackendTLSPolicy" | "BackendTLSOverride" | "RoutePolicy" => {
                weaker["targetRefs"][0]["name"] = json!("other");
            }
            "RouteFilter" => weaker = json!({"regexRewrite": {"pattern": "a", "replacement": "b"}}),
            "XBackend" => weaker["tls"] = Value::Null,
            "Gateway" if weaker["tls"].is_object() => weaker["tls"] = Value::Null,
            "Gateway" | "ListenerSet" => {
                let everywhere = json!({"namespaces": {"from": "All"}});
                weaker["listeners"][0]["allowedRoutes"] = everywhere;
            }
            other => panic!("{other}"),
        }
        let mut store = published();
        apply(&mut store, kind, &weaker, "one");
        fetch_nothing(&mut store);
        assert!(apply(&mut store, kind, &spec, "two"), "{spec}");
        assert!(served(&store, kind).unwrap().contains(r#""two""#), "{spec}");
        // Even if a version that differs in references alone waits already.
        let mut store = published();
        apply(&mut store, kind, &weaker, "one");
        fetch_nothing(&mut store);
        apply(&mut store, kind, &weaker, "two");
        assert!(apply(&mut store, kind, &spec, "three"), "{spec}");
        assert!(
            served(&store, kind).unwrap().contains(r#""three""#),
            "{spec}"
        );
        assert!(store.deferred.is_empty());
    }
}

#[test]
fn new_listener_waits_for_its_certificate() {
    let mut store = published();
    let listener = |name: &str| {
        let tls = json!({"certificateRefs": [{"name": name}]});
        json!({"name": name, "port": 443, "protocol": "HTTPS", "tls": tls})
    };
    let gateway = |listeners: &[Value]| json!({"gatewayClassName": "c", "listeners": listeners});
    apply(
        &mut store,
        "Gateway",
        &gateway(&[listener("one")]),
        "unused",
    );
    fetch_nothing(&mut store);
    let both = gateway(&[listener("one"), listener("two")]);
    assert!(!apply(&mut store, "Gateway", &both, "unused"));
    assert!(!served(&store, "Gateway").unwrap().contains(r#""two""#));
}

#[test]
fn policies_stay_while_their_kind_is_not_served() {
    for kind in Kind::all().iter().filter(|kind| is_policy(kind)) {
        let mut store = published();
        let policy = parsed(kind.kind, "a", &json!({"targetRefs": []}));
        assert!(store.apply(index(kind.kind), Change::Applied(policy)));
        assert!(!store.apply(index(kind.kind), Change::Absent));
        assert!(served(&store, kind.kind).is_some(), "{}", kind.kind);
        store.apply(index(kind.kind), Change::Listing);
        assert!(store.apply(index(kind.kind), Change::Complete));
        assert!(served(&store, kind.kind).is_none(), "{}", kind.kind);
    }
    let kinds = Kind::all().iter().filter(|kind| is_policy(kind));
    assert!(kinds.count() >= 8);
}
