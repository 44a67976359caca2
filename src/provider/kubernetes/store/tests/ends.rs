//! What is new waits for the end of policies that were deleted before: such a policy may permit more than others, such as one
//! for a route below those of its Gateway.

use super::order::{answer, has_policy, protecting, published};
use super::removal::{later, targets, with_targets};
use super::*;

/// Returns the target `a` of the policies of a kind, which is new.
fn new_target(kind: &Kind) -> (&'static str, Change) {
    let (target, spec) = match kind.kind {
        "ClientPolicy" => ("Gateway", json!({"gatewayClassName": "a", "listeners": []})),
        "BackendTLSPolicy" | "BackendTLSOverride" => ("Service", json!({})),
        _ => ("HTTPRoute", json!({"hostnames": ["a.example"]})),
    };
    (target, Change::Applied(parsed(target, "a", &spec)))
}

fn has(store: &Store, kind: &str, name: &str) -> bool {
    let known = Kind::all().iter().find(|known| known.kind == kind).unwrap();
    let snapshot = store.load().unwrap().snapshot;
    snapshot
        .object(&known.object_ref("default", name))
        .is_some()
}

/// The watch of the target may be before the one of the policy, or behind it.
#[test]
fn new_target_is_not_served_under_a_policy_that_was_deleted_or_has_lost_it_before() {
    let scopes = scopes();
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    for (number, (is_first, is_deleted)) in protecting()
        .into_iter()
        .flat_map(|number| cases.map(|case| (number, case)))
    {
        let kind = scopes[number].kind;
        let mut store = published();
        store.apply(number, with_targets(kind, &["a"]));
        let (target, new) = new_target(kind);
        let end = match is_deleted {
            true => deleted("a"),
            false => with_targets(kind, &["b"]),
        };
        let changes = match is_first {
            true => [(index(target), new), (number, end)],
            false => [(number, end), (index(target), new)],
        };
        for (number, change) in changes {
            store.apply(number, change);
        }
        answer(&mut store);
        assert!(!store.release(Instant::now()), "{}", kind.kind);
        assert!(!has(&store, target, "a"), "{}", kind.kind);
        assert!(!store.release(later(1)) && !has(&store, target, "a"));
        answer(&mut store);
        assert!(store.release(later(1)) && has(&store, target, "a"));
        let rest = (!is_deleted).then_some(1);
        assert_eq!(targets(&store, kind), rest, "{}", kind.kind);
        assert!(store.deferred.is_empty() && store.retained.is_empty());
    }
}

/// Returns a version of a route of the Gateway `a` with these labels.
fn labelled(label: &str) -> Change {
    let value = json!({
        "metadata": {"namespace": "default", "name": "r", "labels": {"a": label}},
        "spec": {"parentRefs": [{"name": "a"}], "hostnames": ["r.example"]},
    });
    let kind = Kind::all().iter().find(|it| it.kind == "HTTPRoute");
    Change::Applied(ParsedObject {
        content: Content::Parsed(Ok(kind.unwrap().decode(&value).unwrap())),
        ..parsed("HTTPRoute", "r", &json!({}))
    })
}

/// Returns a change of the AccessPolicy `p` of the Gateway `a`.
fn of_gateway() -> Change {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a"});
    let spec = json!({"targetRefs": [target], "ipRules": {"allow": ["192.0.2.0/24"]}});
    Change::Applied(parsed("AccessPolicy", "p", &spec))
}

#[test]
fn new_route_waits_for_the_end_of_policies_of_its_parents_whatever_else_of_it_changes() {
    let (mut store, routes, policies) = (published(), index("HTTPRoute"), index("AccessPolicy"));
    store.apply(policies, of_gateway());
    store.apply(policies, deleted("p"));
    store.apply(routes, labelled("1"));
    answer(&mut store);
    store.apply(routes, labelled("2"));
    store.release(Instant::now());
    store.apply(routes, labelled("3"));
    assert!(!has(&store, "HTTPRoute", "r") && has_policy(&store, "p"));
    store.release(later(1));
    answer(&mut store);
    // Nothing else wakes the store than the end of the policy.
    assert!(store.release(later(1)));
    assert!(has(&store, "HTTPRoute", "r") && !has_policy(&store, "p"));
    assert!(store.deferred.is_empty() && store.next_release().is_none());
}

#[test]
fn new_route_does_not_wait_for_policies_of_others_nor_for_those_that_are_deleted_later() {
    let (mut store, routes, policies) = (published(), index("HTTPRoute"), index("AccessPolicy"));
    store.apply(policies, of_gateway());
    store.apply(policies, deleted("p"));
    let other = parsed("HTTPRoute", "o", &json!({"parentRefs": [{"name": "b"}]}));
    store.apply(routes, Change::Applied(other));
    store.apply(routes, labelled("1"));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert!(has(&store, "HTTPRoute", "o") && !has(&store, "HTTPRoute", "r"));
    store.release(later(1));
    store.apply(policies, of_gateway());
    store.apply(policies, deleted("p"));
    answer(&mut store);
    assert!(store.release(later(1)));
    assert!(has(&store, "HTTPRoute", "r") && has_policy(&store, "p"));
}

/// Nothing tells whether the policy was deleted before the route was written, except that it no longer existed when the policies
/// were listed that the route waits for.
#[test]
fn new_route_waits_for_deletions_that_have_not_arrived() {
    let spec = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "a"}], "mode": "None",
    });
    let kind = "BackendTLSPolicy";
    for exists in [false, true] {
        let (mut store, routes, policies) = (published(), index("HTTPRoute"), index(kind));
        let written = ParsedObject {
            version: Some(9),
            ..parsed(kind, "p", &spec)
        };
        store.apply(policies, Change::Applied(written));
        store.apply(routes, labelled("1"));
        let keys = match exists {
            true => vec![Key::new("default", "p")],
            false => Vec::new(),
        };
        store.apply_message(Message::Existed(policies, 20, keys));
        answer(&mut store);
        assert_eq!(store.release(Instant::now()), exists);
        assert_eq!(has(&store, "HTTPRoute", "r"), exists);
        let end = Change::Deleted(Key::new("default", "p"), Some(15));
        store.apply(policies, end);
        store.release(Instant::now());
        assert!(has(&store, "HTTPRoute", "r") && !has(&store, kind, "p"));
    }
}
