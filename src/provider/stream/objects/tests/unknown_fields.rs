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
