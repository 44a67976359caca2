//! What stays published of deleted objects, and until when.

use super::order::{
    answer, answer_at, answer_with_policy, change_gateway, has_policy, is_served, policy,
    protecting, published, with_route,
};
use super::time::version;
use super::*;
use crate::api::protects;
use crate::provider::fixtures::{CLIENTS, Judge, PLAIN_TEXT, World, endpoints};

/// What was written before a policy was deleted has arrived after this time.
pub(super) fn later(waits: u32) -> Instant {
    Instant::now() + Timing::default().removal_wait * waits
}

/// A store with a watch for each of two namespaces, which has published a configuration.
pub(super) struct Namespaced {
    pub(super) store: Store,
    scopes: Vec<Scope>,
}

impl Namespaced {
    pub(super) fn new() -> Self {
        let namespaces = BTreeSet::from(["default", "infra"].map(str::to_owned));
        let scopes = Scope::all(&kinds(), None, &namespaces);
        let store = Store::new(scopes.clone(), &kinds(), Referenced::default(), None);
        let mut store = store.after(Moments::of(&scopes));
        for number in 0..scopes.len() {
            store.apply(number, Change::Listing);
            store.apply(number, Change::Complete);
        }
        let mut namespaced = Self { store, scopes };
        namespaced.answer(None);
        assert!(namespaced.store.load().is_some());
        namespaced.store.published();
        namespaced
    }

    /// Returns the number of the watch of AccessPolicies in a namespace.
    pub(super) fn policies(&self, namespace: &str) -> usize {
        let is_watch = |scope: &Scope| {
            scope.kind.kind == "AccessPolicy" && scope.namespace.as_deref() == Some(namespace)
        };
        self.scopes.iter().position(is_watch).unwrap()
    }

    /// Says for all watches of policies that there were none at the moment that something waits for; but for one of them, what
    /// the newest version was.
    pub(super) fn answer(&mut self, newest: Option<(usize, u64)>) {
        let moment = self.store.take_moment().expect("something waits");
        let numbered = self.scopes.iter().enumerate();
        for (number, _) in numbered.filter(|(_, scope)| protects(scope.kind)) {
            let of_scope = newest.filter(|(scope, _)| *scope == number);
            let version = of_scope.map(|(_, version)| version);
            let answer = Message::Newest(number, moment, version);
            self.store.apply_message(answer);
        }
    }
}

/// The policy that takes its place, such as one of the Gateway in another namespace, arrives on another watch.
#[test]
fn deleted_policy_stays_until_the_watches_of_all_namespaces_have_shown_what_is_older() {
    let mut namespaced = Namespaced::new();
    let (own, other) = (namespaced.policies("default"), namespaced.policies("infra"));
    namespaced.store.apply(own, policy("a", 5));
    namespaced.store.apply(own, deleted("a"));
    namespaced.store.release(later(1));
    namespaced.answer(Some((other, 9)));
    assert!(!namespaced.store.release(later(1)));
    assert!(has_policy(&namespaced.store, "a"));
    let target = target("Gateway", "edge");
    let policy = json!({
        "metadata": {"name": "b", "namespace": "infra"},
        "spec": {"targetRefs": [target], "ipRules": {"deny": ["192.0.2.1"]}},
    });
    let kind = namespaced.scopes[other].kind;
    let written = ParsedObject {
        generation: 1,
        key: Key::new("infra", "b"),
        content: Content::Parsed(Ok(kind.decode(&policy).unwrap())),
        version: Some(9),
        observed: None,
    };
    namespaced.store.apply(other, Change::Applied(written));
    assert!(namespaced.store.release(later(1)));
    assert!(!has_policy(&namespaced.store, "a"));
    let snapshot = namespaced.store.load().unwrap().snapshot;
    assert!(snapshot.access_policies.get("infra", "b").is_some());
}

/// Returns the number of targets of the published policy `a` of a kind.
pub(super) fn targets(store: &Store, kind: &Kind) -> Option<usize> {
    let snapshot = store.load().unwrap().snapshot;
    Some(match snapshot.object(&kind.object_ref("default", "a"))? {
        Object::AccessPolicy(it) => it.spec.target_refs.len(),
        Object::ClientPolicy(it) => it.spec.target_refs.len(),
        Object::RateLimitPolicy(it) => it.spec.target_refs.len(),
        Object::BackendTlsPolicy(it) => it.spec.target_refs.len(),
        Object::BackendTlsOverride(it) => it.spec.target_refs.len(),
        other => panic!("{} does not protect", other.kind().kind),
    })
}

/// Returns a change of the policy `a` of a kind, with these targets.
pub(super) fn with_targets(kind: &Kind, names: &[&str]) -> Change {
    let (group, target) = match kind.kind {
        "ClientPolicy" => ("gateway.networking.k8s.io", "Gateway"),
        "BackendTLSPolicy" | "BackendTLSOverride" => ("", "Service"),
        _ => ("gateway.networking.k8s.io", "HTTPRoute"),
    };
    let targets = names.iter();
    let targets = targets.map(|name| json!({"group": group, "kind": target, "name": name}));
    let spec = json!({
        "targetRefs": targets.collect::<serde_json::Value>(), "validation": {"hostname": "a.example"},
    });
    Change::Applied(ParsedObject {
        version: Some(9),
        ..parsed(kind.kind, "a", &spec)
    })
}

/// A route may have been deleted before, or another policy written that takes its place.
#[test]
fn deleted_policy_stays_in_force_until_what_was_written_before_is_published() {
    let scopes = scopes();
    for number in protecting() {
        let kind = scopes[number].kind;
        let mut store = with_route("a.example");
        store.apply(number, with_targets(kind, &["a"]));
        assert!(!store.apply(number, deleted("a")), "{}", kind.kind);
        store.apply(index("HTTPRoute"), deleted("a"));
        assert!(!store.release(later(1)) && targets(&store, kind) == Some(1));
        assert!(is_served(&store, "a"));
        answer(&mut store);
        assert!(store.release(later(1)));
        assert!(targets(&store, kind).is_none() && !is_served(&store, "a"));
        assert!(store.deferred.is_empty() && store.retained.is_empty());
    }
}

#[test]
fn policy_that_loses_targets_stays_in_force_for_them() {
    let scopes = scopes();
    for number in protecting() {
        let kind = scopes[number].kind;
        let mut store = published();
        store.apply(number, with_targets(kind, &["a", "b"]));
        assert!(store.apply(number, with_targets(kind, &["b", "c"])));
        assert_eq!(targets(&store, kind), Some(3), "{}", kind.kind);
        // Nothing that is there again is there twice, and a deletion leaves all of them.
        store.apply(number, with_targets(kind, &["a"]));
        assert_eq!(targets(&store, kind), Some(3));
        store.apply(number, deleted("a"));
        assert_eq!(targets(&store, kind), Some(3));
        store.apply(number, with_targets(kind, &["d"]));
        assert_eq!(targets(&store, kind), Some(4));
        store.release(later(1));
        answer(&mut store);
        assert!(store.release(later(1)));
        assert_eq!(targets(&store, kind), Some(1));
        assert!(store.retained.is_empty());
    }
}

/// Returns a store that has published the world of the tests of time, in which the first application has an endpoint.
fn with_world() -> Store {
    let (mut store, world) = (published(), World::new());
    let endpoint = endpoints(0, 0, &[("192.0.2.9", true)]);
    for write in world.first.iter().chain([&endpoint]) {
        let change = Change::Applied(version(write, None).unwrap());
        store.apply(index(write.kind.kind), change);
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    store
}

fn target(kind: &str, name: &str) -> serde_json::Value {
    let group = match kind {
        "Service" => "",
        _ => "gateway.networking.k8s.io",
    };
    json!({"group": group, "kind": kind, "name": name})
}

/// A policy with a target that it loses while it permits more for another one.
struct Losing {
    kind: &'static str,
    lost: serde_json::Value,
    kept: serde_json::Value,
    strict: serde_json::Value,
    loose: serde_json::Value,
    /// The policy that applies to the lost target afterwards, with its kind and its rules.
    next: (&'static str, serde_json::Value, serde_json::Value),
    /// What nobody may have meanwhile.
    opened: (&'static str, &'static str),
}

fn losing() -> [Losing; 2] {
    let allow = |clients: &str| json!({"ipRules": {"allow": [clients]}});
    let tls = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
    let tls = json!({"validation": tls});
    let few = allow("198.51.100.0/24");
    [
        Losing {
            kind: "AccessPolicy",
            lost: target("HTTPRoute", "r0"),
            kept: target("HTTPRoute", "r4"),
            strict: few.clone(),
            loose: allow("192.0.2.0/24"),
            next: ("AccessPolicy", target("Gateway", "edge"), few),
            opened: ("r0", CLIENTS),
        },
        Losing {
            kind: "BackendTLSOverride",
            lost: target("Service", "s0"),
            kept: target("Service", "s4"),
            strict: tls.clone(),
            loose: json!({"mode": "None"}),
            next: ("BackendTLSPolicy", target("Service", "s0"), tls),
            opened: ("s0", PLAIN_TEXT),
        },
    ]
}

/// Returns a version of a policy with these targets.
fn version_for(
    (kind, name): (&str, &str),
    targets: &[&serde_json::Value],
    rules: &serde_json::Value,
) -> Change {
    let mut spec = rules.clone();
    spec["targetRefs"] = json!(targets);
    Change::Applied(parsed(kind, name, &spec))
}

/// The version before refuses what the new one permits, and so does the policy that applies afterwards.
#[test]
fn target_that_a_policy_loses_never_gets_its_new_rules() {
    let cases = losing();
    let cases = cases.iter().flat_map(|case| [(case, true), (case, false)]);
    for (case, is_late) in cases {
        let (mut store, mut judge) = (with_world(), Judge::new());
        let mut is_open = |store: &Store| {
            let (object, purpose) = case.opened;
            let open = judge.open(&store.load().unwrap().snapshot);
            open.contains(&(object.to_owned(), purpose))
        };
        assert!(is_open(&store), "{}", case.kind);
        let number = index(case.kind);
        let strict = || version_for((case.kind, "a"), &[&case.lost, &case.kept], &case.strict);
        let loose = || version_for((case.kind, "a"), &[&case.kept], &case.loose);
        let (of_next, target, rules) = &case.next;
        let next = || version_for((*of_next, "z"), &[target], rules);
        if !is_late {
            store.apply(index(of_next), next());
        }
        store.apply(number, strict());
        for change in [loose(), deleted("a"), loose()] {
            assert!(!is_open(&store), "{}", case.kind);
            store.apply(number, change);
        }
        assert!(!is_open(&store), "{}", case.kind);
        if is_late {
            store.apply(index(of_next), next());
        }
        store.release(later(1));
        answer(&mut store);
        assert!(store.release(later(1)) && store.retained.is_empty());
        assert!(!is_open(&store), "{}", case.kind);
    }
}

#[test]
fn permission_of_plain_text_ends_at_once() {
    for kind in ["BackendTLSPolicy", "BackendTLSOverride"] {
        let mut store = published();
        let target = json!({"group": "", "kind": "Service", "name": "a"});
        let spec = json!({"targetRefs": [target], "mode": "None"});
        store.apply(index(kind), Change::Applied(parsed(kind, "a", &spec)));
        assert!(store.apply(index(kind), deleted("a")) && store.retained.is_empty());
    }
}

/// The namespace controller deletes the objects of a namespace kind by kind, in any order.
#[test]
fn policies_of_a_namespace_that_is_deleted_go_last() {
    let (mut store, policies) = (with_route("a.example"), index("AccessPolicy"));
    let namespace = |deletion: Option<&str>| {
        let metadata = json!({"name": "default", "deletionTimestamp": deletion});
        let kind = Kind::all()
            .iter()
            .find(|it| it.kind == "Namespace")
            .unwrap();
        let object = kind.decode(&json!({"metadata": metadata})).unwrap();
        Change::Applied(ParsedObject {
            key: Key::new("", "default"),
            content: Content::Parsed(Ok(object)),
            ..parsed("Namespace", "default", &json!({}))
        })
    };
    store.apply(index("Namespace"), namespace(None));
    answer(&mut store);
    store.apply(policies, policy("a", 9));
    store.apply(index("Namespace"), namespace(Some("2026-01-01T00:00:00Z")));
    store.apply(policies, deleted("a"));
    for waits in 1..5 {
        store.release(later(waits));
        assert_eq!(store.take_moment(), None);
        assert!(has_policy(&store, "a"));
    }
    store.apply(index("HTTPRoute"), deleted("a"));
    store.apply(
        index("Namespace"),
        Change::Deleted(Key::new("", "default"), None),
    );
    store.release(later(6));
    answer(&mut store);
    assert!(store.release(later(6)));
    assert!(!has_policy(&store, "a") && !is_served(&store, "a"));
}

/// A policy may have been written before for the one that takes its requests from now on.
#[test]
fn deleted_route_is_published_until_the_policies_are_known_that_were_written_before() {
    let (mut store, policies) = (with_route("a.example"), index("AccessPolicy"));
    assert!(!store.apply(index("HTTPRoute"), deleted("a")));
    assert!(is_served(&store, "a"));
    answer_with_policy(&mut store);
    assert!(!store.release(Instant::now()) && is_served(&store, "a"));
    store.apply(policies, policy("b", 9));
    assert!(store.release(Instant::now()));
    assert!(has_policy(&store, "b") && !is_served(&store, "a"));
}

/// Another Gateway may take the port, and another route the requests.
#[test]
fn deleted_class_or_namespace_is_published_until_the_policies_are_known_that_were_written_before() {
    for kind in ["GatewayClass", "Namespace"] {
        let (mut store, spec) = (published(), json!({"controllerName": "example.com/a"}));
        let known = Kind::all().iter().find(|it| it.kind == kind).unwrap();
        let object = known.decode(&json!({"metadata": {"name": "a"}, "spec": spec}));
        let written = ParsedObject {
            key: Key::new("", "a"),
            content: Content::Parsed(Ok(object.unwrap())),
            ..parsed(kind, "a", &spec)
        };
        store.apply(index(kind), Change::Applied(written));
        answer(&mut store);
        assert!(store.release(Instant::now()));
        let is_published = |store: &Store| {
            let snapshot = store.load().unwrap().snapshot;
            snapshot.object(&known.object_ref("", "a")).is_some()
        };
        let end = Change::Deleted(Key::new("", "a"), None);
        assert!(!store.apply(index(kind), end) && is_published(&store));
        answer(&mut store);
        assert!(store.release(Instant::now()) && !is_published(&store));
    }
}

/// A ReleaseBackend finds its Service by a label: without one of two, it uses the other one.
#[test]
fn deleted_service_is_published_while_its_end_may_leave_one() {
    let services = index("Service");
    let by_name = json!({"v1.Service": {"name": "a"}});
    let by_label = json!({});
    for (load_balancer, waits) in [(by_label, true), (by_name, false)] {
        let mut store = published();
        let spec = json!({"splitBy": "version", "loadBalancer": load_balancer});
        let backend = parsed("ReleaseBackend", "app", &spec);
        store.apply(index("ReleaseBackend"), Change::Applied(backend));
        let service = parsed("Service", "a", &json!({}));
        store.apply(services, Change::Applied(service));
        answer(&mut store);
        assert!(store.release(Instant::now()));
        let has_service = |store: &Store| {
            let snapshot = store.load().unwrap().snapshot;
            snapshot.services.get("default", "a").is_some()
        };
        assert_eq!(store.apply(services, deleted("a")), !waits);
        assert_eq!(has_service(&store), waits);
        if waits {
            answer(&mut store);
            assert!(store.release(Instant::now()));
        }
        assert!(!has_service(&store));
    }
}

#[test]
fn policy_that_stays_for_long_is_a_problem() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, policy("a", 9));
    store.apply(policies, deleted("a"));
    assert!(!store.release(later(1)));
    let late = store.next_release().unwrap();
    assert!(store.release(late) && !store.release(late));
    assert_eq!(store.next_release(), None);
    let problem = store.load().unwrap().problems[0].to_string();
    assert!(
        problem.contains("AccessPolicy default/a: was deleted"),
        "{problem}"
    );
    answer(&mut store);
    assert!(store.release(late));
    assert!(store.load().unwrap().problems.is_empty());
}

/// Whoever changes an object without end would otherwise keep all deleted policies in force, also those of others.
#[test]
fn gateway_that_changes_without_end_keeps_no_policy_in_force() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, policy("a", 9));
    change_gateway(&mut store, "0");
    store.apply(policies, deleted("a"));
    store.release(later(1));
    let moment = store.take_moment().unwrap();
    change_gateway(&mut store, "1");
    answer_at(&mut store, moment);
    assert!(store.release(later(1)) && !has_policy(&store, "a"));
}

/// The moment is past that the policy waits for, but not the one of the next change of the route.
#[test]
fn policy_that_stays_for_an_object_that_changes_often_names_it() {
    let (mut store, routes) = (with_route("0.example"), index("HTTPRoute"));
    let policies = index("AccessPolicy");
    let change = |store: &mut Store, hostname| {
        store.apply(routes, Change::Applied(route("a", hostname)));
    };
    store.apply(policies, policy("a", 9));
    change(&mut store, "1.example");
    let first = store.take_moment().unwrap();
    change(&mut store, "2.example");
    store.apply(policies, deleted("a"));
    assert!(!store.release(later(1)));
    let second = store.take_moment().unwrap();
    change(&mut store, "3.example");
    for moment in [first, second] {
        answer_at(&mut store, moment);
    }
    assert!(store.release(later(10)) && has_policy(&store, "a"));
    let problem = store.load().unwrap().problems[0].to_string();
    assert_eq!(
        problem,
        "warning: AccessPolicy default/a: was deleted or has lost targets: a change of HTTPRoute default/a \
         may have been written before that is not served yet, since it changes often or waits for what it refers to: it is in \
         force still"
    );
    answer(&mut store);
    assert!(store.release(later(10)) && !has_policy(&store, "a"));
    assert!(store.load().unwrap().problems.is_empty());
}
