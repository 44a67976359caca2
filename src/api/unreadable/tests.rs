//! What is read of policies that are not valid.

use serde_json::json;

use super::*;
use crate::api::admit;

fn stand_in(kind: &str, spec: &Value) -> Option<Object> {
    let admission = admit(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": kind,
        "metadata": {"name": "a", "namespace": "team", "labels": {"b": "c"}}, "spec": spec,
    }));
    assert!(admission.object.is_none(), "{spec}");
    admission.stand_in.map(|object| *object)
}

fn access(spec: &Value) -> AccessPolicy {
    match stand_in("AccessPolicy", spec) {
        Some(Object::AccessPolicy(policy)) => AccessPolicy::clone(&policy),
        other => panic!("{other:?}"),
    }
}

/// Returns the targets of a policy as text.
fn targets_of(target_refs: &Value) -> Vec<String> {
    let policy = access(&json!({"targetRefs": target_refs, "ipRules": {"allow": [7]}}));
    let targets = policy.spec.target_refs.iter();
    let text = |it: &SectionTargetRef| {
        assert_eq!(it.group, GATEWAY_GROUP);
        let section = it.section_name.as_deref().unwrap_or("*");
        format!("{} {} {section}", it.kind, it.name)
    };
    targets.map(text).collect()
}

#[test]
fn targets_are_read_as_far_as_they_have_a_name() {
    let group = GATEWAY_GROUP;
    let all: Vec<_> = TARGETS.iter().map(|kind| format!("{kind} b *")).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    for (targets, expected) in [
        (
            json!([{"group": group, "kind": "HTTPRoute", "name": "b", "sectionName": "c"}]),
            vec!["HTTPRoute b c"],
        ),
        (
            json!([{"kind": "HttpRoute", "name": "b"}]),
            vec!["HTTPRoute b *"],
        ),
        (
            json!([{"kind": "TCPRoute", "name": "b", "sectionName": 7}]),
            vec!["TCPRoute b *"],
        ),
        (json!({"kind": "Gateway", "name": "b"}), vec!["Gateway b *"]),
        (json!([{"group": group, "name": "b"}]), all.clone()),
        (
            json!([{"kind": "Service", "name": "b"}, {"name": "b"}]),
            all,
        ),
        (
            json!([{"kind": "Gateway"}, "b", null, {"kind": "Gateway", "name": 7}, {"kind": "Gateway", "name": "b"}]),
            vec!["Gateway b *"],
        ),
        (json!("b"), vec![]),
        (
            json!([{"kind": "Gateway", "name": "b".repeat(254)}]),
            vec![],
        ),
    ] {
        assert_eq!(targets_of(&targets), expected, "{targets}");
    }
    let many: Vec<_> = (0..10_000)
        .map(|at| json!({"name": at.to_string()}))
        .collect();
    let read = targets_of(&many.into());
    assert_eq!(read.len(), MAX_TARGETS * TARGETS.len());
}

#[test]
fn sections_and_strategy_are_read_as_they_are_written() {
    let target = json!([{"group": GATEWAY_GROUP, "kind": "Gateway", "name": "b"}]);
    for (strategy, expected) in [
        (Value::Null, Strategy::Defaults),
        (json!("Defaults"), Strategy::Defaults),
        (json!("Overrides"), Strategy::Overrides),
        (json!("Override"), Strategy::Overrides),
        (json!(7), Strategy::Overrides),
    ] {
        let policy = access(&json!({
            "targetRefs": target, "strategy": strategy, "basic": {}, "jwks": 7, "oidc": null,
        }));
        assert_eq!(policy.spec.strategy, expected, "{strategy}");
        let unreadable = policy.unreadable.unwrap();
        assert_eq!(unreadable.sections, ["basic", "jwks"]);
        assert!(unreadable.reason.starts_with("spec."), "{unreadable:?}");
        assert_eq!(policy.metadata.labels.keys().collect::<Vec<_>>(), ["b"]);
    }
    assert!(access(&Value::Null).spec.target_refs.is_empty());
}

#[test]
fn only_policies_that_refuse_requests_have_stand_ins() {
    let target = json!([{"group": GATEWAY_GROUP, "kind": "TCPRoute", "name": "b"}]);
    let limits = |modes: &[&str]| {
        let rules = modes.iter().map(|mode| json!({"name": "A", "mode": mode}));
        let spec = json!({"targetRefs": target, "rules": rules.collect::<Vec<_>>()});
        stand_in("RateLimitPolicy", &spec)
    };
    let Some(Object::RateLimitPolicy(policy)) = limits(&["Audit", "Enforce"]) else {
        panic!("no limits");
    };
    let kinds: Vec<_> = policy.spec.target_refs.iter().map(|it| &*it.kind).collect();
    assert_eq!(kinds, TARGETS[..HTTP_TARGETS]);
    assert!(limits(&[]).is_some());
    assert_eq!(limits(&["Audit", "Audit"]), None);
    for other in ["RoutePolicy", "TelemetryPolicy"] {
        assert_eq!(stand_in(other, &json!({"targetRefs": 7})), None, "{other}");
    }
}

#[test]
fn client_policies_have_stand_ins_if_they_may_say_where_addresses_come_from() {
    let target = json!([{"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": "b"}]);
    for (sections, expected) in [
        (json!({"clientIP": 7}), true),
        (json!({"proxyProtocol": {}}), true),
        (json!({"timeouts": 7, "clientIP": {}}), true),
        (json!({"clientIp": {}}), true),
        (json!({}), true),
        (json!({"timeouts": 7}), false),
        (json!({"timeouts": 7, "tls": {}, "clientIP": null}), false),
    ] {
        let mut spec = sections.clone();
        spec["targetRefs"] = target.clone();
        let found = stand_in("ClientPolicy", &spec);
        assert_eq!(found.is_some(), expected, "{sections}");
        let Some(found) = found else { continue };
        assert!(found.refused().contains("IP rules") && found.unreadable().is_some());
        let Object::ClientPolicy(policy) = found else {
            panic!("{found:?}");
        };
        let kinds: Vec<_> = policy.spec.target_refs.iter().map(|it| &*it.kind).collect();
        assert_eq!(kinds, ["Gateway", "ListenerSet"]);
    }
}

#[test]
fn names_that_could_be_those_of_another_namespace_have_no_stand_in() {
    for (namespace, name, expected) in [
        ("team", "Office_1", true),
        ("team", "a/b", false),
        ("team/a", "b", false),
        ("team", "a b", false),
    ] {
        let admission = admit(json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
            "metadata": {"name": name, "namespace": namespace, "labels": 7},
        }));
        let stand_in = admission.stand_in.as_deref();
        assert_eq!(stand_in.is_some(), expected, "{namespace} {name}");
        let meta = stand_in.map(Object::meta);
        assert!(meta.is_none_or(|it| it.name == *name && it.namespace == *namespace));
    }
}

#[test]
fn policies_on_tls_refuse_each_kind_of_backend_that_they_may_target() {
    let all = ["Service a", "ServiceImport a", "ReleaseBackend a"];
    let cases = [
        ("Service", vec![all[0]]),
        ("ServiceImport", vec![all[1]]),
        ("ReleaseBackend", vec![all[2]]),
        ("Other", all.to_vec()),
    ];
    for (kind, expected) in cases {
        let target = json!({"group": "portcullis.dev", "kind": kind, "name": "a"});
        let policy = stand_in(
            "BackendTLSOverride",
            &json!({"targetRefs": [target], "validation": 7}),
        );
        let Some(Object::BackendTlsOverride(policy)) = policy else {
            panic!("{policy:?}");
        };
        let targets = policy.spec.target_refs.iter();
        let targets: Vec<_> = targets
            .map(|it| format!("{} {}", it.kind, it.name))
            .collect();
        assert_eq!(targets, expected, "{kind}");
    }
}

/// A Gateway of another namespace may lock all sections of AccessPolicies: limits hold there nevertheless.
#[test]
fn namespace_is_refused_by_a_policy_of_each_kind_that_its_routes_can_have() {
    let keys = |_: &Kind| ["team", "other"].map(|of| Key::new(of, "a")).to_vec();
    let policies = refusing(&Text::from("team"), "too many", keys);
    for policy in &policies {
        let unreadable = policy.unreadable().unwrap();
        assert!(unreadable.reason == "too many" && unreadable.sections.is_empty());
        assert!(policy.refused().contains("500"), "{policy:?}");
    }
    let [
        Object::AccessPolicy(access),
        Object::ClientPolicy(clients),
        Object::RateLimitPolicy(limits),
        Object::BackendTlsOverride(tls),
    ] = policies
    else {
        panic!("{policies:?}");
    };
    let of_routes = [
        (
            &access.spec.target_refs,
            access.spec.strategy,
            TARGETS.len(),
        ),
        (
            &clients.spec.target_refs,
            clients.spec.strategy,
            LISTENER_TARGETS,
        ),
        (&limits.spec.target_refs, limits.spec.strategy, HTTP_TARGETS),
    ];
    for (targets, strategy, count) in of_routes {
        let mut kinds: Vec<_> = targets.iter().map(|it| &*it.kind).collect();
        kinds.sort_unstable();
        let mut expected = TARGETS[..count].to_vec();
        expected.sort_unstable();
        assert_eq!((kinds, strategy), (expected, Strategy::Overrides));
    }
    let targets = tls.spec.target_refs.iter();
    let targets: Vec<_> = targets.map(|it| it.namespace.as_deref()).collect();
    assert_eq!(targets.len(), BACKENDS.len() * 2);
    assert!(targets.contains(&Some("other")));
}
