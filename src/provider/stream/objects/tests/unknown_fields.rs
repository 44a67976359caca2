//! Policies of a later version.

use super::*;

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
        let expected = "later: unknown field; the rest of it has an effect";
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
