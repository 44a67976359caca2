//! What is new waits for the end of policies that were deleted before: such a policy may permit more than others, such as one
//! for a route below those of its Gateway.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::order::{answer, has_policy, protecting, published};
use super::removal::{later, targets, with_targets};
use super::*;
use crate::provider::fixtures::runner;

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
            true => BTreeSet::from([Key::new("default", "p")]),
            false => BTreeSet::new(),
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

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The route or the policy is written if it does not exist, and otherwise deleted.
    Write(&'static str),
    /// The next write of the kind arrives.
    Arrive(&'static str),
    /// The policies that exist are listed, and what is asked for is answered.
    Answer,
    /// Deleted policies have been in force for long enough.
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = || prop_oneof![Just("HTTPRoute"), Just("AccessPolicy")];
    let step = prop_oneof![
        4 => kind().prop_map(Step::Write),
        5 => kind().prop_map(Step::Arrive),
        3 => Just(Step::Answer),
        2 => Just(Step::Pass),
    ];
    vec(step, 1..80)
}

/// A route `a` and a policy for it in a cluster, and a store that follows it.
struct Followed {
    store: Store,
    /// The number of each write, by kind, in order. Writes and deletions take turns.
    writes: BTreeMap<&'static str, Vec<u64>>,
    arrived: BTreeMap<&'static str, usize>,
    last: u64,
    /// The number of policies that had arrived before the route that arrived last.
    policies_before: usize,
    passed: u32,
    is_served: bool,
    /// How often the route was served that was not before.
    served: usize,
}

impl Followed {
    fn new() -> Self {
        Self {
            store: published(),
            writes: BTreeMap::from([("HTTPRoute", Vec::new()), ("AccessPolicy", Vec::new())]),
            arrived: BTreeMap::from([("HTTPRoute", 0), ("AccessPolicy", 0)]),
            last: 0,
            policies_before: 0,
            passed: 0,
            is_served: false,
            served: 0,
        }
    }

    /// Takes a step. Returns whether it serves the route, new, under a policy that was deleted before the route was written.
    fn take(&mut self, step: Step) -> bool {
        match step {
            Step::Write(kind) => {
                self.last += 1;
                self.writes.get_mut(kind).unwrap().push(self.last);
            }
            Step::Arrive(kind) => self.arrive(kind),
            Step::Answer => self.answer(),
            Step::Pass => self.passed += 1,
        }
        self.store.release(later(self.passed));
        let was_served = std::mem::replace(&mut self.is_served, has(&self.store, "HTTPRoute", "a"));
        let is_new = self.is_served && !was_served;
        self.served += usize::from(is_new);
        is_new && self.is_under_deleted_policy()
    }

    /// Creations have an even place, and the deletion follows.
    fn arrive(&mut self, kind: &'static str) {
        let place = self.arrived[kind];
        let Some(number) = self.writes[kind].get(place).copied() else {
            return;
        };
        self.arrived.insert(kind, place + 1);
        if kind == "HTTPRoute" {
            self.policies_before = self.arrived["AccessPolicy"].div_ceil(2);
        }
        let change = match place.is_multiple_of(2) {
            true => Change::Applied(created(kind, number)),
            false => Change::Deleted(Key::new("default", "a"), Some(number)),
        };
        self.store.apply(index(kind), change);
    }

    fn answer(&mut self) {
        let Some(moment) = self.store.take_moment() else {
            return;
        };
        let of_policy = &self.writes["AccessPolicy"];
        let existing = of_policy
            .last()
            .filter(|_| of_policy.len() % 2 == 1)
            .copied();
        for scope in protecting() {
            let newest = existing.filter(|_| scope == index("AccessPolicy"));
            let keys = newest.map(|_| Key::new("default", "a")).into_iter();
            let existed = Message::Existed(scope, self.last, keys.collect());
            self.store.apply_message(existed);
            let answer = Message::Newest(scope, moment, newest);
            self.store.apply_message(answer);
        }
    }

    fn is_under_deleted_policy(&self) -> bool {
        let snapshot = self.store.load().unwrap().snapshot;
        let route = snapshot.http_routes.get("default", "a").unwrap();
        let Some(policy) = snapshot.access_policies.get("default", "a") else {
            return false;
        };
        let mut lives = self.writes["AccessPolicy"]
            .chunks(2)
            .take(self.policies_before);
        lives.any(|life| {
            let [written, deleted] = life else {
                return false;
            };
            policy.metadata.generation == *written as i64
                && *deleted < route.metadata.generation as u64
        })
    }
}

/// Returns a version of the route or the policy, whose generation is the number of the write.
fn created(kind: &str, number: u64) -> ParsedObject {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "a"});
    let spec = match kind {
        "HTTPRoute" => json!({"hostnames": ["a.example"]}),
        _ => json!({"targetRefs": [target], "ipRules": {"allow": ["0.0.0.0/0"]}}),
    };
    let value = json!({
        "metadata": {"namespace": "default", "name": "a", "generation": number}, "spec": spec,
    });
    let known = Kind::all().iter().find(|known| known.kind == kind);
    ParsedObject {
        content: Content::Parsed(Ok(known.unwrap().decode(&value).unwrap())),
        version: Some(number),
        ..parsed(kind, "a", &spec)
    }
}

#[test]
fn no_new_route_is_served_under_a_policy_that_was_deleted_before_in_any_order_of_events() {
    let served = Cell::new(0);
    let result = runner(100).run(&steps(), |steps| {
        let mut followed = Followed::new();
        for step in steps {
            prop_assert!(!followed.take(step), "{:?}", step);
        }
        // In the end, all that is written is served, and nothing else.
        for kind in ["HTTPRoute", "AccessPolicy"] {
            while followed.arrived[kind] < followed.writes[kind].len() {
                followed.take(Step::Arrive(kind));
            }
        }
        for _ in 0..4 {
            followed.take(Step::Pass);
            followed.take(Step::Answer);
        }
        for kind in ["HTTPRoute", "AccessPolicy"] {
            let exists = followed.writes[kind].len() % 2 == 1;
            prop_assert_eq!(has(&followed.store, kind, "a"), exists, "{}", kind);
        }
        served.set(served.get() + followed.served);
        Ok(())
    });
    result.unwrap();
    assert!(served.get() > 0);
}
