//! Objects of a later version.

use super::*;
use crate::api::unknown_fields;

/// A controller of a later version sends sections and fields that the pod does not know, which may be all that protects.
#[test]
fn policy_with_unknown_fields_refuses_its_targets_and_is_reported() {
    for (kind, spec, field) in [
        ("AccessPolicy", json!({"later": {}}), "spec.later"),
        (
            "AccessPolicy",
            json!({"ipRules": {"deny": [], "later": ["a"]}}),
            "spec.ipRules.later",
        ),
        (
            "RateLimitPolicy",
            json!({"rules": [{"name": "a", "concurrent": 9, "later": 1}]}),
            "spec.rules[0].later",
        ),
    ] {
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "b"});
        let mut object = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "a", "namespace": "default"}, "spec": spec,
        });
        object["spec"]["targetRefs"] = json!([target]);
        let mut state = GatewayObjects::default();
        take_all(
            &mut state,
            [begin("a", None), Update::Put(object), commit(1)],
        )
        .unwrap();
        let name = ObjectRef::new("portcullis.dev", kind, "default", "a");
        let served = state.snapshot.object(&name).unwrap();
        assert!(
            served.unreadable().is_some() && !served.is_without_targets(),
            "{field}"
        );
        let problem = state.load().problems[0].to_string();
        assert!(
            problem.contains(&format!("{field}: unknown field")),
            "{problem}"
        );
        let mut copy = GatewayObjects::default();
        take_all(&mut copy, state.updates().unwrap()).unwrap();
        assert_eq!(copy, state);
    }
}

/// What refuses nothing has an effect, as far as it is known, and the rest is reported.
#[test]
fn known_part_of_a_policy_that_refuses_nothing_has_an_effect() {
    let audit = json!({"name": "a", "mode": "Audit", "concurrent": 9});
    for (kind, mut spec, later) in [
        (
            "ClientPolicy",
            json!({"tls": {"minVersion": "TLS13"}}),
            "/tls",
        ),
        (
            "ClientPolicy",
            json!({"path": {"mergeSlashes": true}}),
            "/path",
        ),
        ("RateLimitPolicy", json!({"rules": [audit]}), ""),
    ] {
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "b"});
        spec["targetRefs"] = json!([target]);
        let put = |spec: &Value| {
            Update::Put(json!({
                "apiVersion": "portcullis.dev/v1alpha1", "kind": kind,
                "metadata": {"name": "a", "namespace": "default"}, "spec": spec,
            }))
        };
        let mut whole = GatewayObjects::default();
        take_all(&mut whole, [begin("a", None), put(&spec), commit(1)]).unwrap();
        assert!(
            whole.load().problems.is_empty(),
            "{:?}",
            whole.load().problems
        );
        spec.pointer_mut(later).unwrap()["later"] = json!("a");
        let mut state = GatewayObjects::default();
        take_all(&mut state, [begin("a", None), put(&spec), commit(1)]).unwrap();
        assert_eq!(state.snapshot, whole.snapshot, "{kind}");
        let problem = state.load().problems[0].to_string();
        let expected = "later: unknown field: the rest of it has an effect";
        assert!(problem.contains(expected), "{problem}");
        let mut copy = GatewayObjects::default();
        take_all(&mut copy, state.updates().unwrap()).unwrap();
        assert_eq!(copy, state);
    }
}

/// A controller of a later version may have a later version of the kind as well.
#[test]
fn policy_of_an_unknown_version_refuses_its_targets_until_a_known_one_takes_its_place() {
    let policy = |version: &str| {
        json!({
            "apiVersion": format!("portcullis.dev/{version}"), "kind": "AccessPolicy",
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "b"}],
                "ipRules": {"allow": ["192.0.2.1"]},
            },
        })
    };
    let name = ObjectRef::new("portcullis.dev", "AccessPolicy", "default", "a");
    let mut state = GatewayObjects::default();
    let later = Update::Put(policy("v9"));
    take_all(&mut state, [begin("a", None), later.clone(), commit(1)]).unwrap();
    let served = state.snapshot.object(&name).unwrap();
    assert!(served.unreadable().is_some() && !served.is_without_targets());
    let problems = state.load().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("v9"), "{}", problems[0]);

    let known = Update::Put(policy("v1alpha1"));
    take_all(&mut state, [begin("a", Some(1)), known, commit(2)]).unwrap();
    assert!(state.snapshot.has_valid(&name) && state.load().problems.is_empty());
    // The previous version may permit what the later one denies.
    take_all(&mut state, [begin("a", Some(2)), later, commit(3)]).unwrap();
    let served = state.snapshot.object(&name).unwrap();
    assert!(served.unreadable().is_some() && !served.is_without_targets());
    assert_eq!(state.load().problems.len(), 1);
    // One whose targets cannot be read takes the place of none that protects something.
    let mut without = policy("v9");
    without["spec"]["targetRefs"] = json!("later");
    let without = Update::Put(without);
    take_all(&mut state, [begin("a", Some(3)), without, commit(4)]).unwrap();
    let served = state.snapshot.object(&name).unwrap();
    assert!(served.unreadable().is_some() && !served.is_without_targets());
    assert!(!state.load().problems[0].leaves_open);
    let mut copy = GatewayObjects::default();
    take_all(&mut copy, state.updates().unwrap()).unwrap();
    assert_eq!(copy, state);
}

/// Of other objects, what is known has an effect, and each part that the field may narrow is refused.
#[test]
fn known_part_of_another_object_has_an_effect() {
    let put = |spec: &Value| {
        Update::Put(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "a", "namespace": "default", "generation": 3}, "spec": spec,
        }))
    };
    let name = ObjectRef::gateway_api("HTTPRoute", "default", "a");
    let mut spec =
        json!({"rules": [{"name": "one"}, {"name": "two", "timeouts": {"later": "1s"}}]});
    let mut state = GatewayObjects::default();
    take_all(&mut state, [begin("a", None), put(&spec), commit(1)]).unwrap();
    let problem = state.load().problems[0].to_string();
    let expected = "HTTPRoute default/a: spec.rules[1].timeouts.later: unknown field; the rest of it has an effect";
    assert!(problem.contains(expected), "{problem}");

    spec["rules"][0]["matches"] = json!([{"later": {}}]);
    let before = state.clone();
    take_all(&mut state, [begin("a", Some(1)), put(&spec), commit(2)]).unwrap();
    assert!(state.snapshot.has_valid(&name));
    let route = state.snapshot.http_routes.get("default", "a").unwrap();
    assert_eq!(route.spec.rules[1].name.as_deref(), Some("two"));
    let refused = |rule| unknown_fields::refusing(&**route, rule);
    assert_eq!(
        refused("spec.rules[0]"),
        Some("spec.rules[0].matches[0].later")
    );
    assert_eq!(refused("spec.rules[1]"), None);
    let problems = state.load().problems;
    assert_eq!((problems.len(), problems[0].generation), (1, 3));
    let problem = problems[0].to_string();
    let expected =
        "spec.rules[0].matches[0].later: unknown field; requests of the rule are refused";
    assert!(problem.contains(expected), "{problem}");
    // A copy, and a pod that follows this one, get the fields as well: their version may know them.
    let mut copy = GatewayObjects::default();
    take_all(&mut copy, state.updates().unwrap()).unwrap();
    assert_eq!(copy, state);
    let changes = state.updates_since(&before).unwrap();
    let mut follower = before;
    let begin = begin("a", Some(1));
    take_all(&mut follower, [begin].into_iter().chain(changes)).unwrap();
    assert_eq!(follower, state);

    let known = put(&json!({"rules": [{"name": "one"}]}));
    take_all(&mut state, [self::begin("a", Some(2)), known, commit(3)]).unwrap();
    assert!(state.load().problems.is_empty());
    let route = state.snapshot.http_routes.get("default", "a").unwrap();
    assert!(route.metadata.unknown_fields.is_empty());
}

/// The controller of an earlier version reports what it does not know. Its pods refuse the same, and have no problem.
#[test]
fn field_that_the_controller_does_not_know_refuses_the_same_in_a_pod() {
    let put = Update::Put(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "a", "namespace": "default", "unknownFields": ["spec.rules[0].later"]},
        "spec": {"rules": [{"name": "one"}]},
    }));
    let mut state = GatewayObjects::default();
    take_all(&mut state, [begin("a", None), put, commit(1)]).unwrap();
    let route = state.snapshot.http_routes.get("default", "a").unwrap();
    let refused = unknown_fields::refusing(&**route, "spec.rules[0]");
    assert_eq!(refused, Some("spec.rules[0].later"));
    assert!(state.load().problems.is_empty());
}
