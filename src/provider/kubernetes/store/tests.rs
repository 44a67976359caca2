//! Effects of watch events and fetches on the store.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::super::observer::Observed;
use super::*;
use crate::provider::problem::unreadable;

mod edits;
mod endpoints;
mod ends;
mod later;
mod listeners;
mod order;
mod protecting;
mod removal;
mod time;

fn kinds() -> Vec<&'static Kind> {
    Kind::all().iter().collect()
}

fn scopes() -> Vec<Scope> {
    Scope::all(&kinds(), None, &BTreeSet::new())
}

fn index(kind: &str) -> usize {
    let scopes = scopes();
    let mut scopes = scopes.iter();
    scopes.position(|scope| scope.kind.kind == kind).unwrap()
}

fn parsed(kind: &str, name: &str, spec: &serde_json::Value) -> ParsedObject {
    let value =
        json!({"kind": kind, "metadata": {"namespace": "default", "name": name}, "spec": spec});
    let known = Kind::all().iter().find(|known| known.kind == kind);
    let object = known.unwrap().decode(&value);
    let unparsed = |error| unreadable(with_kind(known.unwrap(), &value), &error);
    ParsedObject {
        generation: 1,
        key: Key::new("default", name),
        content: Content::Parsed(object.map_err(unparsed)),
        version: None,
        observed: None,
    }
}

fn with_kind(kind: &Kind, value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    value["apiVersion"] = kind.api_version().into();
    value
}

fn deleted(name: &str) -> Change {
    Change::Deleted(Key::new("default", name), None)
}

fn route(name: &str, hostname: &str) -> ParsedObject {
    parsed("HTTPRoute", name, &json!({"hostnames": [hostname]}))
}

fn broken(name: &str) -> ParsedObject {
    parsed("HTTPRoute", name, &json!({"hostnames": 7}))
}

/// Returns a store in which every kind has been listed.
fn listed() -> Store {
    listed_for(None)
}

fn listed_for(observer: Option<Arc<dyn Observer>>) -> Store {
    let mut store = Store::new(scopes(), &kinds(), Referenced::default(), observer);
    for kind in 0..scopes().len() {
        assert!(store.load().is_none());
        store.apply(kind, Change::Listing);
        assert!(store.apply(kind, Change::Complete));
    }
    store
}

fn hostname(store: &Store, name: &str) -> Option<String> {
    let load = store.load().unwrap();
    let route = load.snapshot.http_routes.get("default", name)?;
    route.spec.hostnames.first().map(ToString::to_string)
}

#[test]
fn publishes_nothing_before_every_kind_is_listed() {
    let mut store = Store::new(scopes(), &kinds(), Referenced::default(), None);
    let routes = index("HTTPRoute");
    for kind in 0..scopes().len() {
        if kind != routes {
            store.apply(kind, Change::Absent);
        }
    }
    store.apply(routes, Change::Listing);
    store.apply(routes, Change::Listed(route("a", "a.example")));
    assert!(store.load().is_none());
    assert_eq!(store.awaited().count(), 1);
    assert!(store.apply(routes, Change::Complete));
    assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
}

#[test]
fn complete_list_applies_missed_deletions() {
    let (mut store, routes) = (listed(), index("HTTPRoute"));
    assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
    assert!(store.apply(routes, Change::Applied(broken("c"))));
    store.apply(routes, Change::Listing);
    store.apply(routes, Change::Listed(route("b", "b.example")));
    assert!(hostname(&store, "a").is_some() && hostname(&store, "b").is_none());
    assert!(store.apply(routes, Change::Complete));
    assert!(hostname(&store, "a").is_none() && hostname(&store, "b").is_some());
    assert!(store.load().unwrap().problems.is_empty());
}

#[test]
fn unchanged_object_does_not_change_the_snapshot() {
    let (mut store, routes) = (listed(), index("HTTPRoute"));
    assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
    assert!(!store.apply(routes, Change::Applied(route("a", "a.example"))));
    store.apply(routes, Change::Listing);
    store.apply(routes, Change::Listed(route("a", "a.example")));
    assert!(!store.apply(routes, Change::Complete));
    assert!(!store.apply(routes, deleted("b")));
}

#[test]
fn unparsable_object_keeps_its_last_version() {
    let (mut store, routes) = (listed(), index("HTTPRoute"));
    store.apply(routes, Change::Applied(route("a", "a.example")));
    assert!(store.apply(routes, Change::Applied(broken("a"))));
    assert!(!store.apply(routes, Change::Applied(broken("a"))));
    assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
    let problems = store.load().unwrap().problems;
    assert!(
        problems[0]
            .to_string()
            .starts_with("error: HTTPRoute default/a: cannot be read: ")
    );
    assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
    assert!(store.load().unwrap().problems.is_empty());
}

#[test]
fn unparsable_policy_refuses_its_targets() {
    let (mut store, policies) = (listed(), index("AccessPolicy"));
    let policy = |strategy: &serde_json::Value| {
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "b"});
        let rules = json!({"deny": ["192.0.2.1"]});
        let spec = json!({"targetRefs": [target], "strategy": strategy, "ipRules": rules});
        Change::Applied(parsed("AccessPolicy", "a", &spec))
    };
    let (broken, valid) = (json!("Later"), json!("Defaults"));
    let refuses = |store: &Store| {
        let load = store.load().unwrap();
        let policy = load.snapshot.access_policies.get("default", "a").cloned();
        policy.map(|it| (it.unreadable.is_some(), it.spec.target_refs.len()))
    };
    assert!(store.apply(policies, policy(&broken)));
    assert!(!store.apply(policies, policy(&broken)));
    assert_eq!(refuses(&store), Some((true, 1)));
    let effect = store.load().unwrap().problems[0].effect.clone();
    assert_eq!(
        effect,
        "requests to its targets get 500 until it can be read"
    );
    assert!(store.apply(policies, policy(&valid)));
    assert_eq!(refuses(&store), Some((false, 1)));
    // The previous version may permit what this one denies.
    assert!(store.apply(policies, policy(&broken)));
    assert_eq!(refuses(&store), Some((true, 1)));
    assert!(store.apply(policies, deleted("a")));
    assert!(store.load().unwrap().problems.is_empty());
    // The deletion of a target may have been written before.
    assert_eq!(refuses(&store), Some((true, 1)));
    assert!(store.release(Instant::now() + Timing::default().removal_wait));
    assert_eq!(refuses(&store), None);
}

/// Records its calls.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Observer for Log {
    fn served(&self, kind: &'static Kind, is_experimental: bool) {
        let line = format!("{} is experimental: {is_experimental}", kind.kind);
        self.0.lock().unwrap().push(line);
    }

    fn observed(&self, object: &ObjectRef, observed: Observed) {
        let version = observed.resource_version;
        self.0.lock().unwrap().push(format!("{object} {version}"));
    }

    fn deleted(&self, object: &ObjectRef) {
        self.0.lock().unwrap().push(format!("{object} gone"));
    }
}

fn versioned(parsed: ParsedObject, version: u64) -> ParsedObject {
    let object = json!({"metadata": {"resourceVersion": version.to_string()}});
    ParsedObject {
        observed: Some(Observed::of(&serde_json::from_value(object).unwrap())),
        ..parsed
    }
}

#[test]
fn observer_sees_every_event() {
    let log = Arc::new(Log::default());
    let (mut store, routes) = (listed_for(Some(log.clone())), index("HTTPRoute"));
    let messages = || log.0.lock().unwrap().join(", ");
    store.apply(
        routes,
        Change::Applied(versioned(route("a", "a.example"), 1)),
    );
    let only_status = Change::Applied(versioned(route("a", "a.example"), 2));
    assert!(!store.apply(routes, only_status));
    store.apply(routes, Change::Applied(versioned(broken("b"), 3)));
    let mut expected =
        "HTTPRoute default/a 1, HTTPRoute default/a 2, HTTPRoute default/b 3".to_owned();
    assert_eq!(messages(), expected);
    store.apply(routes, Change::Listing);
    store.apply(routes, Change::Listed(versioned(broken("c"), 4)));
    assert_eq!(messages(), expected);
    store.apply(routes, Change::Complete);
    store.apply(routes, deleted("c"));
    expected += ", HTTPRoute default/a gone, HTTPRoute default/b gone, HTTPRoute default/c 4";
    expected += ", HTTPRoute default/c gone";
    assert_eq!(messages(), expected);
    store.apply(index("Service"), deleted("other"));
    assert_eq!(messages(), expected);
}

#[test]
fn list_of_one_namespace_does_not_affect_others() {
    let namespaces = ["default", "other"].map(str::to_owned);
    let scopes = Scope::all(&kinds(), None, &BTreeSet::from(namespaces));
    let number = |namespace: &str| {
        let is_it = |scope: &Scope| {
            scope.kind.kind == "HTTPRoute" && scope.namespace.as_deref() == Some(namespace)
        };
        scopes.iter().position(is_it).unwrap()
    };
    let mut store = Store::new(scopes.clone(), &kinds(), Referenced::default(), None);
    for scope in 0..scopes.len() {
        assert!(store.apply(scope, Change::Absent));
    }
    store.apply(number("default"), Change::Applied(route("a", "a.example")));
    store.apply(number("other"), Change::Listing);
    assert!(!store.apply(number("other"), Change::Complete));
    assert!(!store.apply(number("other"), Change::Absent));
    assert!(hostname(&store, "a").is_some());
    assert!(store.apply(number("default"), Change::Absent));
    assert!(hostname(&store, "a").is_none());
}

fn gateway(certificate: &str) -> Change {
    let reference = json!({"certificateRefs": [{"name": certificate}]});
    let listener = json!({"name": "l", "port": 443, "protocol": "HTTPS", "tls": reference});
    let spec = json!({"gatewayClassName": "c", "listeners": [listener]});
    Change::Applied(parsed("Gateway", "edge", &spec))
}

fn secret(name: &str, version: u64) -> ParsedObject {
    ParsedObject {
        version: Some(version),
        ..parsed("Secret", name, &json!({}))
    }
}

fn held(store: &Store) -> Vec<String> {
    let load = store.load().unwrap();
    let keys = load.snapshot.secrets.keys();
    keys.map(|key| key.name.to_string()).collect()
}

fn wanted(store: &mut Store) -> Vec<String> {
    store.referenced.recheck();
    let changes = store.take_wanted();
    let wanted = changes.iter().filter(|(_, of)| !of.is_empty());
    let wanted: BTreeSet<_> = wanted.map(|(name, _)| name.to_string()).collect();
    wanted.into_iter().collect()
}

#[test]
fn holds_secrets_only_while_referenced() {
    let (mut store, gateways, secrets) = (listed(), index("Gateway"), index("Secret"));
    assert!(!store.apply(secrets, Change::Applied(secret("a", 1))));
    assert!(store.apply(gateways, gateway("b")));
    assert!(!store.apply(secrets, Change::Applied(secret("a", 2))));
    assert!(store.apply(secrets, Change::Applied(secret("b", 3))));
    assert!(held(&store) == ["b"] && wanted(&mut store).is_empty());
    store.apply(secrets, Change::Listing);
    store.apply(secrets, Change::Listed(secret("a", 2)));
    store.apply(secrets, Change::Listed(secret("b", 3)));
    assert!(!store.apply(secrets, Change::Complete));
    assert_eq!(held(&store), ["b"]);
    assert!(store.apply(gateways, deleted("edge")));
    assert!(wanted(&mut store).is_empty());
    assert!(held(&store).is_empty());
}

#[test]
fn fetches_a_dropped_secret_when_referenced_again() {
    let (mut store, gateways) = (listed(), index("Gateway"));
    let a = ObjectRef::core("Secret", "default", "a");
    store.apply(gateways, gateway("a"));
    assert_eq!(wanted(&mut store), ["Secret default/a"]);
    assert!(store.is_waiting());
    assert!(store.apply_message(Message::Fetched(a.clone(), Some(secret("a", 5)))));
    assert!(held(&store) == ["a"] && wanted(&mut store).is_empty());
    assert_eq!(store.take_fetched(), std::slice::from_ref(&a));
    let secrets = index("Secret");
    let before = Change::Deleted(Key::new("default", "a"), Some(4));
    assert!(!store.apply(secrets, before));
    assert_eq!(held(&store), ["a"]);
    // A list that is older than the Secret does not contain it: it stays until a fetch confirms that it is deleted.
    store.apply(secrets, Change::Listing);
    assert!(!store.apply(secrets, Change::Complete));
    assert_eq!(
        (held(&store), wanted(&mut store)),
        (vec!["a".into()], vec![a.to_string()])
    );
    assert!(store.apply_message(Message::Fetched(a, None)));
    assert!(!store.is_waiting() && held(&store).is_empty());
}

fn certificates(store: &Store) -> Option<String> {
    let load = store.load().unwrap();
    let gateway = load.snapshot.gateways.get("default", "edge")?;
    let tls = gateway.spec.listeners[0].tls.as_ref()?;
    Some(tls.certificate_refs[0].name.to_string())
}

#[test]
fn change_waits_for_its_own_references_only() {
    let (mut store, gateways, routes) = (listed(), index("Gateway"), index("HTTPRoute"));
    store.published();
    let fetched = |name: &str, version: Option<u64>| {
        let parsed = version.map(|version| secret(name, version));
        Message::Fetched(ObjectRef::core("Secret", "default", name), parsed)
    };
    assert!(!store.apply(gateways, gateway("a")));
    assert!(!store.release(Instant::now()));
    assert_eq!(certificates(&store), None);
    assert!(store.apply(routes, Change::Applied(route("r", "r.example"))));
    assert!(!store.is_waiting() && hostname(&store, "r").is_some());
    assert!(store.apply_message(fetched("a", Some(1))));
    assert!(store.release(Instant::now()) && store.next_release().is_none());
    assert_eq!(certificates(&store).as_deref(), Some("a"));
    // The previous version and its Secret are served until the new reference is known, even if it does not exist.
    assert!(!store.apply(gateways, gateway("b")));
    assert_eq!(wanted(&mut store), ["Secret default/b"]);
    assert_eq!(certificates(&store).as_deref(), Some("a"));
    assert_eq!(held(&store), ["a"]);
    assert!(!store.apply_message(fetched("b", None)));
    assert!(store.release(Instant::now()));
    assert_eq!(certificates(&store).as_deref(), Some("b"));
    assert!(wanted(&mut store).is_empty() && held(&store).is_empty());
}

#[test]
fn change_waits_only_for_a_while_even_if_it_is_repeated() {
    let (mut store, gateways) = (listed(), index("Gateway"));
    store.published();
    store.apply(gateways, gateway("a"));
    let deadline = store.next_release().unwrap();
    store.apply(gateways, gateway("b"));
    assert_eq!(store.next_release(), Some(deadline));
    assert!(!store.release(deadline - Duration::from_millis(1)));
    assert!(store.release(deadline));
    assert_eq!(certificates(&store).as_deref(), Some("b"));
    assert!(!store.apply(gateways, gateway("c")));
    assert!(store.apply(gateways, deleted("edge")));
    assert!(store.next_release().is_none() && certificates(&store).is_none());
}

#[test]
fn fetches_nothing_before_its_kind_is_listed() {
    let (gateways, secrets) = (index("Gateway"), index("Secret"));
    let mut store = Store::new(scopes(), &kinds(), Referenced::default(), None);
    for scope in 0..scopes().len() {
        if scope != secrets {
            store.apply(scope, Change::Absent);
        }
    }
    assert!(store.has_all_referrers());
    store.apply(gateways, gateway("a"));
    assert!(wanted(&mut store).is_empty());
    store.apply(secrets, Change::Listing);
    store.apply(secrets, Change::Listed(secret("a", 1)));
    store.apply(secrets, Change::Complete);
    assert!(held(&store) == ["a"] && wanted(&mut store).is_empty());
}

fn release_backend(name: &str) -> ParsedObject {
    let spec = json!({"splitBy": "app.kubernetes.io/version"});
    parsed("ReleaseBackend", name, &spec)
}

fn pods(store: &Store) -> usize {
    store.load().unwrap().snapshot.pods.len()
}

/// Returns the numbers of the scopes that were added, and of those that were removed.
fn follow_pods(store: &mut Store, is_published: bool) -> (Vec<usize>, Vec<usize>) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for change in store.follow_pods(is_published) {
        match change {
            ScopeChange::Added(number, scope) => {
                assert_eq!(scope.to_string(), "Pod in default");
                added.push(number);
            }
            ScopeChange::Removed(number) => removed.push(number),
        }
    }
    (added, removed)
}

#[test]
fn watches_pods_only_while_their_namespace_has_a_release_backend() {
    let mut store = listed();
    assert_eq!(follow_pods(&mut store, true), (vec![], vec![]));
    let backends = index("ReleaseBackend");
    store.apply(backends, Change::Applied(release_backend("one")));
    let first = scopes().len();
    assert_eq!(follow_pods(&mut store, true), (vec![first], vec![]));
    store.apply(backends, Change::Applied(release_backend("two")));
    assert_eq!(follow_pods(&mut store, true), (vec![], vec![]));
    store.apply(first, Change::Applied(parsed("Pod", "a", &json!({}))));
    assert_eq!(pods(&store), 1);
    store.apply(backends, deleted("one"));
    assert_eq!(follow_pods(&mut store, true), (vec![], vec![]));
    store.apply(backends, deleted("two"));
    assert_eq!(follow_pods(&mut store, true), (vec![], vec![first]));
    assert_eq!(pods(&store), 0);
    // A change that was still in the queue when the watch ended.
    assert!(!store.apply(first, Change::Applied(parsed("Pod", "a", &json!({})))));
    assert_eq!(pods(&store), 0);
    store.apply(backends, Change::Applied(release_backend("one")));
    assert_eq!(follow_pods(&mut store, true), (vec![first + 1], vec![]));
}

#[test]
fn scope_is_gone_when_its_watch_ends() {
    let (mut store, backends) = (listed(), index("ReleaseBackend"));
    for _ in 0..3 {
        store.apply(backends, Change::Applied(release_backend("one")));
        let (added, _) = follow_pods(&mut store, true);
        assert_eq!(store.scopes.len(), scopes().len() + 1);
        store.apply(backends, deleted("one"));
        assert_eq!(follow_pods(&mut store, true), (vec![], added));
        assert_eq!(store.scopes.len(), scopes().len());
    }
}

#[test]
fn first_publication_waits_for_the_pods_of_release_backends() {
    let mut store = Store::new(scopes(), &kinds(), Referenced::default(), None);
    for kind in 0..scopes().len() {
        store.apply(kind, Change::Listing);
        if kind == index("ReleaseBackend") {
            store.apply(kind, Change::Listed(release_backend("one")));
        }
        store.apply(kind, Change::Complete);
    }
    let (added, _) = follow_pods(&mut store, false);
    assert!(store.load().is_none());
    store.apply(added[0], Change::Listing);
    store.apply(added[0], Change::Complete);
    assert!(store.load().is_some());
}

#[test]
fn later_publication_waits_for_pods_only_for_a_while() {
    let mut store = listed();
    let backends = index("ReleaseBackend");
    store.apply(backends, Change::Applied(release_backend("one")));
    let (added, _) = follow_pods(&mut store, true);
    assert!(store.is_waiting());
    assert!(store.load().is_some());
    store.apply_message(Message::ListLate(added[0]));
    assert!(!store.is_waiting());
}

#[test]
fn pods_are_not_watched_without_the_kind() {
    let kinds: Vec<_> = kinds().into_iter().filter(|it| it.kind != "Pod").collect();
    let mut store = Store::new(scopes(), &kinds, Referenced::default(), None);
    let backends = index("ReleaseBackend");
    store.apply(backends, Change::Applied(release_backend("one")));
    assert!(store.follow_pods(true).is_empty());
}
