//! Objects of different kinds arrive in any order: a new one is published when the policies that were written before it are
//! known.

use super::super::super::moments::{Moments, Requester};
use super::*;
use crate::api::protects;

/// Returns a store in which every kind has been listed.
fn started() -> Store {
    let mut store =
        Store::new(scopes(), &kinds(), Referenced::default(), None).after(Moments::of(&scopes()));
    for kind in 0..scopes().len() {
        store.apply(kind, Change::Listing);
        store.apply(kind, Change::Complete);
    }
    store
}

/// Indices of the kinds of policies that protect.
pub(super) fn protecting() -> Vec<usize> {
    let scopes = scopes();
    let numbered = scopes.iter().enumerate();
    let protecting = numbered.filter(|(_, scope)| protects(scope.kind));
    protecting.map(|(number, _)| number).collect()
}

/// Says for all kinds that there were no policies at the moment that something waits for.
pub(super) fn answer(store: &mut Store) {
    let moment = store.take_moment().expect("something waits");
    answer_at(store, moment);
}

/// Says for all kinds that there were no policies at a moment.
pub(super) fn answer_at(store: &mut Store, moment: Moment) {
    for scope in protecting() {
        store.apply_message(Message::Newest(scope, moment, None));
    }
}

/// Says the same, but that the newest AccessPolicy had version 9.
pub(super) fn answer_with_policy(store: &mut Store) {
    let (policies, moment) = (index("AccessPolicy"), store.take_moment().unwrap());
    for scope in protecting() {
        let newest = (scope == policies).then_some(9);
        store.apply_message(Message::Newest(scope, moment, newest));
    }
}

/// Returns a store that has published a configuration.
pub(super) fn published() -> Store {
    let mut store = started();
    answer(&mut store);
    assert!(store.load().is_some());
    store.published();
    store
}

pub(super) fn policy(name: &str, version: u64) -> Change {
    policy_with(name, version, json!({"ipRules": {"deny": ["192.0.2.1"]}}))
}

fn policy_with(name: &str, version: u64, mut spec: serde_json::Value) -> Change {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name});
    spec["targetRefs"] = json!([target]);
    Change::Applied(ParsedObject {
        version: Some(version),
        ..parsed("AccessPolicy", name, &spec)
    })
}

pub(super) fn has_policy(store: &Store, name: &str) -> bool {
    let snapshot = store.load().unwrap().snapshot;
    snapshot.access_policies.get("default", name).is_some()
}

pub(super) fn is_served(store: &Store, name: &str) -> bool {
    hostname(store, name).is_some()
}

#[test]
fn first_load_has_the_policies_that_are_older_than_the_last_list() {
    let (mut store, policies) = (started(), index("AccessPolicy"));
    assert!(store.load().is_none());
    answer_with_policy(&mut store);
    assert!(store.load().is_none());
    store.apply(policies, policy("a", 9));
    assert!(has_policy(&store, "a"));
}

/// The API server refuses a verb for AccessPolicies, or does so no longer.
fn refused(why: Option<&str>) -> Message {
    let why = why.map(str::to_owned);
    Message::Refused(index("AccessPolicy"), Requester::Watch, why)
}

#[test]
fn first_load_that_is_late_names_the_right_that_is_missing() {
    let (mut store, policies) = (started(), index("AccessPolicy"));
    answer_with_policy(&mut store);
    store.apply_message(refused(Some("no right")));
    let missing = store.missing().unwrap();
    let kind = "the watch of AccessPolicy (no right) has not shown";
    assert!(missing.contains(kind), "{missing}");
    store.apply_message(refused(None));
    let missing = store.missing().unwrap();
    assert!(!missing.contains("no right"), "{missing}");
    store.apply(policies, policy("a", 9));
    assert_eq!(store.missing(), None);
}

#[test]
fn what_waits_for_long_names_the_right_that_is_missing() {
    let (mut store, routes) = (published(), index("HTTPRoute"));
    assert!(!store.apply_message(refused(Some("no right"))));
    store.apply(routes, Change::Applied(route("a", "a.example")));
    let late = store.next_release().unwrap();
    assert!(store.release(late));
    let problem = |store: &Store| store.load().unwrap().problems[0].to_string();
    assert!(problem(&store).contains("AccessPolicy (no right)"));
    assert!(store.apply_message(refused(None)));
    assert!(!problem(&store).contains("no right"));
    assert!(!is_served(&store, "a"));
}

#[test]
fn new_route_is_published_with_the_policy_that_is_older() {
    let (mut store, routes, policies) = (published(), index("HTTPRoute"), index("AccessPolicy"));
    assert!(!store.apply(routes, Change::Applied(route("a", "a.example"))));
    answer_with_policy(&mut store);
    assert!(!store.release(Instant::now()) && !is_served(&store, "a"));
    store.apply(policies, policy("a", 9));
    assert!(store.release(Instant::now()));
    assert!(is_served(&store, "a") && has_policy(&store, "a"));
}

/// Returns the spec of a small object of a kind.
fn spec_of(kind: &Kind) -> serde_json::Value {
    match kind.kind {
        "GatewayClass" => json!({"controllerName": "a"}),
        "Gateway" => json!({"gatewayClassName": "a", "listeners": []}),
        "ListenerSet" => json!({"parentRef": {"name": "a"}, "listeners": []}),
        "ReferenceGrant" => json!({"from": [], "to": []}),
        "ReleaseBackend" => json!({"splitBy": "version"}),
        "XBackend" => json!({"type": "ExternalHostname", "port": {"port": 80}}),
        _ if is_policy(kind) => json!({"targetRefs": []}),
        _ => json!({}),
    }
}

/// A route, what lets it attach, and what its requests go through. Secrets and ConfigMaps have tests of their own.
const OPENING: [&str; 17] = [
    "GatewayClass",
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
    "XBackend",
    "ReleaseBackend",
    "InferencePool",
    "RouteFilter",
    "ServiceImport",
    "ReferenceGrant",
    "GatewayParameters",
    "Namespace",
    "Service",
];

#[test]
fn each_kind_that_can_make_something_served_waits() {
    for kind in kinds().into_iter().filter(|it| OPENING.contains(&it.kind)) {
        let name = kind.object_ref("default", "a");
        let mut store = published();
        let added = Change::Applied(parsed(kind.kind, "a", &spec_of(kind)));
        assert!(!store.apply(index(kind.kind), added), "{name}");
        let is_served = |store: &Store| store.load().unwrap().snapshot.object(&name).is_some();
        assert!(!is_served(&store), "{name}");
        answer(&mut store);
        assert!(store.release(Instant::now()) && is_served(&store), "{name}");
    }
}

#[test]
fn kinds_that_make_nothing_served_do_not_wait() {
    let is_other = |kind: &&Kind| !OPENING.contains(&kind.kind) && kind.kind != "Pod";
    let others = kinds()
        .into_iter()
        .filter(|kind| is_other(kind) && !is_held_by_reference(kind));
    for kind in others {
        let mut store = published();
        let value = json!({
            "metadata": {"name": "a", "namespace": "default"}, "addressType": "IPv4", "spec": spec_of(kind),
        });
        let added = ParsedObject {
            content: Content::Parsed(Ok(kind.decode(&value).unwrap())),
            ..parsed("Namespace", "a", &json!({}))
        };
        assert!(
            store.apply(index(kind.kind), Change::Applied(added)),
            "{}",
            kind.kind
        );
        assert_eq!(store.take_moment(), None, "{}", kind.kind);
    }
}

/// A Gateway's Secret was missing: its listener is served from now on.
#[test]
fn certificate_that_was_missing_waits() {
    let mut store = published();
    assert!(!store.apply(index("Gateway"), gateway("a")));
    answer(&mut store);
    let name = || ObjectRef::core("Secret", "default", "a");
    store.apply_message(Message::Fetched(name(), None));
    assert!(store.release(Instant::now()));
    assert_eq!(certificates(&store).as_deref(), Some("a"));
    assert!(!store.apply(index("Secret"), Change::Applied(secret("a", 1))));
    assert!(held(&store).is_empty());
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(held(&store), ["a"]);
}

/// A new Gateway is not served first without its certificate, and then with it.
#[test]
fn gateway_waits_for_a_certificate_that_waits() {
    let mut store = published();
    store.apply(index("Gateway"), gateway("a"));
    answer(&mut store);
    let name = ObjectRef::core("Secret", "default", "a");
    store.apply_message(Message::Fetched(name, Some(secret("a", 1))));
    assert!(!store.release(Instant::now()));
    assert_eq!(certificates(&store), None);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(certificates(&store).as_deref(), Some("a"));
    assert_eq!(held(&store), ["a"]);
}

/// Returns a store that has published a route.
pub(super) fn with_route(hostname: &str) -> Store {
    let mut store = published();
    store.apply(index("HTTPRoute"), Change::Applied(route("a", hostname)));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    store
}

#[test]
fn what_a_change_adds_is_published_with_the_policy_that_is_older() {
    let (mut store, routes) = (with_route("a.example"), index("HTTPRoute"));
    let policies = index("AccessPolicy");
    assert!(!store.apply(routes, Change::Applied(route("a", "b.example"))));
    answer_with_policy(&mut store);
    assert!(!store.release(Instant::now()));
    assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
    store.apply(policies, policy("a", 9));
    assert!(store.release(Instant::now()) && has_policy(&store, "a"));
    assert_eq!(hostname(&store, "a").as_deref(), Some("b.example"));
}

#[test]
fn change_that_adds_nothing_does_not_wait() {
    let (mut store, routes) = (with_route("a.example"), index("HTTPRoute"));
    let header =
        json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["x"]}}]);
    let changed = |rules: &serde_json::Value| {
        let spec = json!({"hostnames": ["a.example"], "rules": rules});
        Change::Applied(parsed("HTTPRoute", "a", &spec))
    };
    assert!(!store.apply(routes, changed(&json!([{"matches": []}]))));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let filtered = json!([{"matches": [], "filters": header}]);
    assert!(store.apply(routes, changed(&filtered)));
    assert_eq!(store.take_moment(), None);
}

/// Each change waits for its own moment, and the one before is published meanwhile.
#[test]
fn changes_without_end_delay_none_for_ever() {
    let (mut store, routes) = (with_route("0.example"), index("HTTPRoute"));
    store.apply(routes, Change::Applied(route("a", "1.example")));
    for round in 1..10 {
        let moment = store.take_moment().unwrap();
        for more in 0..3 {
            let name = format!("{round}-{more}.example");
            store.apply(routes, Change::Applied(route("a", &name)));
        }
        let name = format!("{}.example", round + 1);
        store.apply(routes, Change::Applied(route("a", &name)));
        answer_at(&mut store, moment);
        assert!(store.release(Instant::now()));
        assert_eq!(hostname(&store, "a"), Some(format!("{round}.example")));
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(hostname(&store, "a").as_deref(), Some("10.example"));
}

/// Applies a version of a Gateway whose certificate does not exist.
pub(super) fn change_gateway(store: &mut Store, certificate: &str) {
    store.apply(index("Gateway"), gateway(certificate));
    let name = ObjectRef::core("Secret", "default", certificate);
    store.apply_message(Message::Fetched(name, None));
}

/// The same of an object with references: those of the version whose turn comes are held until then.
#[test]
fn changes_of_a_gateway_without_end_delay_none_for_ever() {
    let mut store = published();
    let has = |store: &Store, certificate: &str| {
        let name = ObjectRef::core("Secret", "default", certificate);
        store.referenced.has(&name)
    };
    change_gateway(&mut store, "0");
    for round in 0..9 {
        let moment = store.take_moment().unwrap();
        change_gateway(&mut store, "between");
        change_gateway(&mut store, &(round + 1).to_string());
        answer_at(&mut store, moment);
        assert!(store.release(Instant::now()));
        let round = round.to_string();
        assert_eq!(certificates(&store), Some(round.clone()));
        assert!(has(&store, &round) && !has(&store, "between"));
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(certificates(&store).as_deref(), Some("9"));
    assert!(has(&store, "9") && !has(&store, "8"));
}

#[test]
fn certificate_of_a_deleted_gateway_is_held_while_it_is_served() {
    let mut store = published();
    change_gateway(&mut store, "a");
    answer(&mut store);
    assert!(store.release(Instant::now()));
    store.apply(index("Gateway"), deleted("edge"));
    change_gateway(&mut store, "b");
    assert_eq!(certificates(&store).as_deref(), Some("a"));
    let a = ObjectRef::core("Secret", "default", "a");
    store.drop_unreferenced();
    assert!(store.referenced.has(&a));
    answer(&mut store);
    assert!(store.release(Instant::now()) && !store.referenced.has(&a));
    assert_eq!(certificates(&store).as_deref(), Some("b"));
}

#[test]
fn change_of_a_route_that_waits_is_published_with_it() {
    let (mut store, routes) = (published(), index("HTTPRoute"));
    store.apply(routes, Change::Applied(route("a", "a.example")));
    assert!(!store.apply(routes, Change::Applied(route("a", "b.example"))));
    assert!(!is_served(&store, "a"));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(hostname(&store, "a").as_deref(), Some("b.example"));
}

#[test]
fn route_that_is_deleted_while_it_waits_is_never_published() {
    let (mut store, routes) = (published(), index("HTTPRoute"));
    store.apply(routes, Change::Applied(route("a", "a.example")));
    store.apply(routes, deleted("a"));
    answer(&mut store);
    assert!(!store.release(Instant::now()));
    assert!(!is_served(&store, "a"));
}

#[test]
fn what_waits_for_long_is_a_problem_and_is_not_published() {
    let (mut store, routes) = (published(), index("HTTPRoute"));
    store.apply(routes, Change::Applied(route("a", "a.example")));
    assert!(store.load().unwrap().waiting.is_empty());
    let late = store.next_release().unwrap();
    assert!(store.release(late) && !store.release(late));
    assert_eq!(store.next_release(), None);
    let load = store.load().unwrap();
    assert!(matches!(&load.waiting[..], [Object::HttpRoute(_)]));
    let problem = load.problems[0].to_string();
    let state = "warning: HTTPRoute default/a: is new: policies may have been written before";
    assert!(problem.starts_with(state), "{problem}");
    assert!(problem.contains("AccessPolicy"), "{problem}");
    assert_eq!(load.problems[0].effect, "it is not served yet");
    let remedy =
        "; check that this process may list and watch these, and that the API server responds";
    assert!(problem.ends_with(remedy), "{problem}");
    assert!(!is_served(&store, "a"));
    answer(&mut store);
    assert!(store.release(late) && is_served(&store, "a"));
    let load = store.load().unwrap();
    assert!(load.problems.is_empty() && load.waiting.is_empty());
}
