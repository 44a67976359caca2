//! Which of several policies applies: for every pair of policies, and for any number.

mod permitted;

use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};

use super::*;
use crate::api::Kind;
use crate::ir::ListenerKey;
use crate::snapshot::Snapshot;
use crate::translate::consumer::Consumer;
use crate::translate::input::Options;
use crate::translate::registry::Registry;

/// Returns policies on requests to Service `app/svc` port `https`, which rule `rule` of route `edge/route` sends from
/// listener `http` of ListenerSet `edge/set` of Gateway `edge/gw`. They are in order of precedence.
fn candidates() -> Vec<(&'static str, Value)> {
    let from = |kind: &str, name: &str, section: Option<&str>| {
        let mut from = json!({"kind": kind, "name": name});
        if let Some(section) = section {
            from["sectionName"] = section.into();
        }
        Some(from)
    };
    let senders = [
        ("edge", from("HTTPRoute", "route", Some("rule"))),
        ("edge", from("HTTPRoute", "route", None)),
        ("edge", from("ListenerSet", "set", Some("http"))),
        ("edge", from("ListenerSet", "set", None)),
        ("edge", from("Gateway", "gw", None)),
        ("edge", None),
        ("app", None),
    ];
    let mut candidates = Vec::new();
    for (namespace, from) in senders {
        for section in [Some("https"), None] {
            let mut target = json!({
                "group": "", "kind": "Service", "name": "svc", "namespace": "app", "sectionName": section,
            });
            if let Some(from) = &from {
                target["from"] = from.clone();
            }
            candidates.push((namespace, target));
        }
    }
    candidates
}

fn policy(name: &str, namespace: &str, target: &Value, mode: &str) -> Value {
    with_spec(name, namespace, target, json!({"mode": mode}))
}

fn with_spec(name: &str, namespace: &str, target: &Value, mut spec: Value) -> Value {
    spec["targetRefs"] = json!([target]);
    json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendTLSOverride",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

fn named(index: usize) -> String {
    format!("p{index:02}")
}

/// Returns the name of the policy that applies.
fn winner(policies: &[Value]) -> Option<String> {
    with_requests(policies, &Options::default(), |known, service, requests| {
        let winner = known.winner(service, Some("https"), &requests.path());
        winner.map(|it| it.policy.name.name.to_string())
    })
}

/// Calls `use_policies` with these policies and the requests that they apply to.
fn with_requests<T>(
    policies: &[Value],
    options: &Options,
    use_policies: impl FnOnce(&TlsPolicies, &ObjectRef, &Requests<'_>) -> T,
) -> T {
    let mut snapshot = Snapshot::default();
    let kind = Kind::find("portcullis.dev/v1alpha1", "BackendTLSOverride").unwrap();
    for policy in policies {
        snapshot.insert(kind.decode(policy).unwrap());
    }
    let mut known = TlsPolicies::default();
    let input = Input::new(&snapshot, None, options, &Registry);
    let mut changes = Changes::between(Snapshot::default(), &snapshot);
    known.step(&input, &mut changes);
    let consumer = Consumer {
        gateway: ObjectRef::gateway_api("Gateway", "edge", "gw"),
        listener: ListenerKey {
            origin: ObjectRef::gateway_api("ListenerSet", "edge", "set"),
            name: "http".into(),
        },
        client_certificate: None,
        passes_tls_through: false,
        permits_priorities: false,
    };
    let route = ObjectRef::gateway_api("HTTPRoute", "edge", "route");
    let requests = Requests {
        kind: crate::ir::RouteKind::Http,
        route: &route,
        rule: Some("rule"),
        consumer: Some(&consumer),
        of_all_listeners: None,
    };
    let service = ObjectRef::core("Service", "app", "svc");
    use_policies(&known, &service, &requests)
}

#[test]
fn more_specific_policy_applies_of_each_pair() {
    let candidates = candidates();
    for (better, (namespace, target)) in candidates.iter().enumerate() {
        for (worse, (other, rival)) in candidates.iter().enumerate().skip(better + 1) {
            // Between levels, neither age nor name matters: here the worse policy is older, and its name comes first.
            let mut old = policy("a", other, rival, "None");
            old["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
            let mut new = policy("b", namespace, target, "None");
            new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            let found = winner(&[old, new]);
            assert_eq!(found.as_deref(), Some("b"), "{better} over {worse}");
        }
    }
}

#[test]
fn invalid_policy_takes_precedence_like_a_valid_one() {
    let candidates = candidates();
    let (namespace, target) = &candidates[0];
    let broken = policy("broken", namespace, target, "Sideways");
    let (namespace, target) = &candidates[1];
    let good = policy("good", namespace, target, "None");
    assert_eq!(winner(&[broken, good]).as_deref(), Some("broken"));
}

#[test]
fn unrelated_policies_do_not_apply() {
    let target = |from: Value| json!({"group": "", "kind": "Service", "name": "svc", "namespace": "app", "from": from});
    let rows = [
        ("third", target(json!({"kind": "Gateway", "name": "gw"}))),
        (
            "third",
            target(json!({"kind": "HTTPRoute", "name": "route"})),
        ),
        ("edge", target(json!({"kind": "Gateway", "name": "other"}))),
        ("app", target(json!({"kind": "Gateway", "name": "gw"}))),
        (
            "edge",
            target(json!({"kind": "GRPCRoute", "name": "route"})),
        ),
        (
            "edge",
            target(json!({"kind": "HTTPRoute", "name": "route", "sectionName": "else"})),
        ),
        (
            "edge",
            target(json!({"kind": "ListenerSet", "name": "set", "sectionName": "else"})),
        ),
        // The listener belongs to the ListenerSet, not to the Gateway itself.
        (
            "edge",
            target(json!({"kind": "Gateway", "name": "gw", "sectionName": "http"})),
        ),
        (
            "edge",
            target(json!({"group": "example.com", "kind": "Gateway", "name": "gw"})),
        ),
    ];
    for (namespace, target) in rows {
        let policy = policy("p", namespace, &target, "None");
        assert_eq!(winner(&[policy]), None, "{namespace}: {target}");
    }
}

proptest! {
    #[test]
    fn less_specific_policy_never_changes_which_one_applies(
        (chosen, ages) in (subsequence((0..14_usize).collect::<Vec<_>>(), 1..14), proptest::collection::vec(0..9_u8, 14)),
    ) {
        let candidates = candidates();
        let policies: Vec<_> = chosen
            .iter()
            .map(|index| {
                let (namespace, target) = &candidates[*index];
                let mut policy = policy(&named(*index), namespace, target, "None");
                let created = format!("2026-01-0{}T00:00:00Z", ages[*index] + 1);
                policy["metadata"]["creationTimestamp"] = created.into();
                policy
            })
            .collect();
        let best = named(chosen[0]);
        for count in 1..=policies.len() {
            let found = winner(&policies[..count]);
            prop_assert_eq!(found.as_deref(), Some(best.as_str()));
        }
    }
}
