//! What is in force between two versions of a policy that protects requests.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::Value;

use super::order::{answer, answer_at, published};
use super::removal::{Namespaced, later};
use super::*;
use crate::api::access_policy::AccessPolicy;

const X: &str = "192.0.2.1";
const Y: &str = "192.0.2.2";
const Z: &str = "192.0.2.3";

/// Returns a version of a policy with a target of its own.
fn version((kind, namespace, name): (&str, &str, &str), spec: &Value, number: u64) -> Change {
    let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
    let target = match kind.kind {
        "BackendTLSPolicy" | "BackendTLSOverride" => json!({"group": "", "kind": "Service"}),
        _ => json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}),
    };
    let metadata = json!({"namespace": namespace, "name": name, "generation": number});
    let mut policy = json!({"metadata": metadata, "spec": spec});
    policy["spec"]["targetRefs"] = json!([target]);
    policy["spec"]["targetRefs"][0]["name"] = json!("shop");
    Change::Applied(ParsedObject {
        generation: number as i64,
        key: Key::new(namespace, name),
        content: Content::Parsed(Ok(kind.decode(&policy).unwrap())),
        version: Some(number),
        observed: None,
    })
}

/// Returns a version of an AccessPolicy `a`, which denies these addresses.
fn denying(denied: &[&str], number: u64) -> Change {
    let spec = json!({"ipRules": {"deny": denied}});
    version(("AccessPolicy", "default", "a"), &spec, number)
}

/// Returns the published AccessPolicy `a`.
fn policy(store: &Store) -> Option<Arc<AccessPolicy>> {
    let snapshot = store.load().unwrap().snapshot;
    match snapshot.object(&name("AccessPolicy"))? {
        Object::AccessPolicy(policy) => Some(policy),
        other => panic!("{}", other.kind().kind),
    }
}

fn name(kind: &str) -> ObjectRef {
    let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
    kind.object_ref("default", "a")
}

fn denied(store: &Store) -> Vec<String> {
    let rules = policy(store).and_then(|it| it.spec.ip_rules.clone());
    rules.map(|it| it.deny).unwrap_or_default()
}

/// The policy that takes over is one of the Gateway in another namespace, and was written first.
#[test]
fn what_an_edit_permits_waits_for_policies_that_were_written_before() {
    let mut namespaced = Namespaced::new();
    let (own, other) = (namespaced.policies("default"), namespaced.policies("infra"));
    assert!(namespaced.store.apply(own, denying(&[X, Y], 5)));
    assert!(!namespaced.store.apply(own, denying(&[Y], 10)));
    namespaced.answer(Some((other, 9)));
    assert!(!namespaced.store.release(Instant::now()));
    assert_eq!(denied(&namespaced.store), [X, Y]);
    let spec = json!({"ipRules": {"deny": [X]}});
    let next = version(("AccessPolicy", "infra", "b"), &spec, 9);
    namespaced.store.apply(other, next);
    assert!(namespaced.store.release(Instant::now()));
    assert_eq!(denied(&namespaced.store), [Y]);
    let snapshot = namespaced.store.load().unwrap().snapshot;
    assert!(snapshot.access_policies.get("infra", "b").is_some());
}

/// The policy that takes over may be one of another kind.
#[test]
fn less_protecting_versions_of_all_kinds_wait_for_other_kinds() {
    let tls = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
    let tls = json!({"validation": tls});
    let plain = json!({"mode": "None"});
    let limit = |most: u32| json!({"rules": [{"name": "one", "concurrent": most}]});
    let deny = |cidr: &str| json!({"ipRules": {"deny": [cidr]}});
    let cases = [
        ("AccessPolicy", deny("192.0.2.0/24"), json!({})),
        ("RateLimitPolicy", limit(5), limit(9)),
        ("BackendTLSPolicy", tls.clone(), plain.clone()),
        ("BackendTLSOverride", tls, plain),
    ];
    for (kind, strict, loose) in cases {
        let (mut store, number) = (published(), index(kind));
        let generation = |store: &Store| {
            let policy = store.load().unwrap().snapshot.object(&name(kind));
            policy.unwrap().meta().generation
        };
        let of_kind = (kind, "default", "a");
        assert!(store.apply(number, version(of_kind, &strict, 1)), "{kind}");
        assert!(!store.apply(number, version(of_kind, &loose, 2)), "{kind}");
        assert!(!store.release(Instant::now()));
        assert_eq!(generation(&store), 1, "{kind}");
        answer(&mut store);
        assert!(store.release(Instant::now()));
        assert_eq!(generation(&store), 2, "{kind}");
        // The reverse takes effect at once.
        assert!(store.apply(number, version(of_kind, &strict, 3)), "{kind}");
        assert_eq!(generation(&store), 3, "{kind}");
        assert!(store.deferred.is_empty() && store.take_moment().is_none());
    }
}

#[test]
fn what_an_edit_refuses_takes_effect_at_once() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X, Y], 1));
    assert!(store.apply(policies, denying(&[Y, Z], 2)));
    assert_eq!(denied(&store), [X, Y, Z]);
    // Also while another edit waits, of which nothing is left then.
    assert!(store.apply(policies, denying(&[X, Y, Z], 3)));
    assert_eq!(policy(&store).unwrap().metadata.generation, 3);
    assert!(store.deferred.is_empty());
    // What is tightened of a version that waits is not opened with it.
    store.apply(policies, denying(&[], 4));
    assert!(!store.apply(policies, denying(&[X], 5)));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(denied(&store), [X]);
}

#[test]
fn edits_that_do_not_change_what_is_refused_wait_for_nothing() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X], 1));
    assert!(store.apply(policies, denying(&[X], 2)));
    assert_eq!(policy(&store).unwrap().metadata.generation, 2);
    assert!(store.deferred.is_empty() && store.take_moment().is_none());
}

/// One version is published, and at most two wait, each of which becomes due.
#[test]
fn edits_without_end_delay_none_for_ever() {
    let all: Vec<_> = (1..60).map(|last| format!("192.0.2.{last}")).collect();
    let from = |first: usize| -> Vec<&str> { all[first..].iter().map(|it| &**it).collect() };
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&from(0), 1));
    let mut last = 1;
    store.apply(policies, denying(&from(last), 2));
    for _ in 0..10 {
        let waiting = last;
        let moment = store.take_moment().unwrap();
        for _ in 0..3 {
            last += 1;
            let edit = denying(&from(last), last as u64 + 1);
            assert!(!store.apply(policies, edit));
        }
        answer_at(&mut store, moment);
        assert!(store.release(Instant::now()));
        assert_eq!(denied(&store), from(waiting));
        assert!(store.retained.is_empty());
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(denied(&store), from(last));
    assert!(store.deferred.is_empty());
}

#[test]
fn policy_that_is_deleted_while_its_edit_waits_leaves_what_was_in_force() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X, Y], 1));
    store.apply(policies, denying(&[Y], 2));
    assert!(!store.apply(policies, deleted("a")));
    assert_eq!(denied(&store), [X, Y]);
    store.release(later(1));
    answer(&mut store);
    assert!(store.release(later(1)));
    assert!(policy(&store).is_none() && store.retained.is_empty());
}

/// As by `kubectl replace --force`.
#[test]
fn policy_that_is_created_again_is_an_edit_of_the_one_that_was_deleted() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X, Y], 1));
    store.apply(policies, deleted("a"));
    store.apply(policies, denying(&[Y, Z], 3));
    assert_eq!(denied(&store), [X, Y, Z]);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(denied(&store), [Y, Z]);
}

#[test]
fn target_that_comes_back_keeps_its_rules_until_then() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    let with = |denied: &[&str], target: &str, number: u64| {
        let target =
            json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": target});
        let spec = json!({"targetRefs": [target], "ipRules": {"deny": denied}});
        Change::Applied(ParsedObject {
            version: Some(number),
            ..parsed("AccessPolicy", "a", &spec)
        })
    };
    store.apply(policies, with(&[X], "one", 1));
    store.apply(policies, with(&[Y], "two", 2));
    // Nothing of the former rules is for the new target.
    assert_eq!(denied(&store), [Y]);
    store.apply(policies, with(&[Z], "one", 3));
    assert_eq!(denied(&store), [X, Z]);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(denied(&store), [Z]);
}

/// Its requests would get 500 otherwise.
#[test]
fn secret_of_a_section_that_stays_is_held() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    let of_kind = ("AccessPolicy", "default", "a");
    let basic = json!({"basic": {"secretRef": {"name": "staff"}}});
    store.apply(policies, version(of_kind, &basic, 1));
    let secret = ObjectRef::core("Secret", "default", "staff");
    store.apply_message(Message::Fetched(secret.clone(), None));
    for number in 2..5 {
        let denied = format!("192.0.2.{number}");
        store.apply(policies, denying(&[&denied], number));
        store.drop_unreferenced();
        assert!(store.referenced.has(&secret));
        assert!(policy(&store).unwrap().spec.basic.is_some());
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert!(policy(&store).unwrap().spec.basic.is_none());
    assert!(!store.referenced.has(&secret));
}

#[test]
fn version_that_cannot_be_read_refuses_although_an_edit_waits() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X, Y], 1));
    store.apply(policies, denying(&[Y], 2));
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "shop"});
    let broken = json!({"targetRefs": [target], "ipRules": 7});
    let broken = parsed("AccessPolicy", "a", &broken);
    assert!(store.apply(policies, Change::Applied(broken)));
    assert!(policy(&store).unwrap().unreadable.is_some());
    assert!(store.deferred.is_empty());
}

/// The one before refuses all.
#[test]
fn version_that_can_be_read_again_waits_for_policies_that_were_written_before() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    let target = |name: &str| json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name});
    let broken = |targets: &[Value]| {
        let spec = json!({"targetRefs": targets, "ipRules": 7});
        Change::Applied(parsed("AccessPolicy", "a", &spec))
    };
    let refuses_all = |store: &Store| policy(store).unwrap().unreadable.is_some();
    store.apply(policies, broken(&[target("shop")]));
    store.apply(policies, denying(&[X], 2));
    assert!(refuses_all(&store));
    answer(&mut store);
    assert!(store.release(Instant::now()) && !refuses_all(&store));
    assert_eq!(denied(&store), [X]);
    // A target that the one before does not have is protected at once.
    store.apply(policies, broken(&[target("other")]));
    store.apply(policies, denying(&[X], 4));
    assert_eq!(denied(&store), [X]);
}

#[test]
fn edit_that_waits_for_long_is_a_problem() {
    let (mut store, policies) = (published(), index("AccessPolicy"));
    store.apply(policies, denying(&[X], 1));
    store.apply(policies, denying(&[], 2));
    let late = store.next_release().unwrap();
    assert!(store.release(late));
    let load = store.load().unwrap();
    assert!(matches!(&load.waiting[..], [Object::AccessPolicy(_)]));
    let problem = load.problems[0].to_string();
    let state =
        "warning: AccessPolicy default/a: has changed: policies may have been written before";
    assert!(problem.starts_with(state), "{problem}");
    let effect = "what it permits beyond its previous version is not in force yet";
    assert_eq!(load.problems[0].effect, effect);
    assert_eq!(denied(&store), [X]);
    answer(&mut store);
    assert!(store.release(late));
    assert!(store.load().unwrap().problems.is_empty() && denied(&store).is_empty());
}

/// Number of addresses that the versions of a policy deny or not, each by its bit.
const ADDRESSES: u8 = 4;
/// All of them.
const ALL: u8 = 0b1111;

fn denies(bits: u8, bit: u8) -> bool {
    (bits >> bit) & 1 == 1
}

fn denying_bits(bits: u8, number: u64) -> Change {
    let denied = (0..ADDRESSES).filter(|bit| denies(bits, *bit));
    let denied: Vec<_> = denied.map(|bit| format!("192.0.2.{bit}")).collect();
    denying(&denied.iter().map(|it| &**it).collect::<Vec<_>>(), number)
}

/// Says for all kinds that there were no policies at a moment, and releases what waits for it.
fn pass(store: &mut Store, moment: Moment) {
    answer_at(store, moment);
    store.release(Instant::now());
}

proptest! {
    /// A step is an edit, or else asks for the newest policies, or answers if it is asked.
    #[test]
    fn addresses_pass_that_all_versions_permit_since_a_moment_that_is_past(
        steps in vec(option::of(0..=ALL), 1..50),
    ) {
        let (mut store, policies) = (published(), index("AccessPolicy"));
        let mut versions = vec![ALL];
        store.apply(policies, denying_bits(versions[0], 1));
        // The number of the last version when it was asked, and when the last moment was that is past.
        let (mut asked, mut past) = (None, 0);
        for step in steps {
            match (step, asked) {
                (Some(bits), _) => {
                    versions.push(bits);
                    store.apply(policies, denying_bits(bits, versions.len() as u64));
                }
                (None, Some((moment, last))) => {
                    pass(&mut store, moment);
                    (asked, past) = (None, last);
                }
                (None, None) => {
                    asked = store.take_moment().map(|it| (it, versions.len() - 1));
                }
            }
            let denied = denied(&store);
            for bit in (0..ADDRESSES).filter(|bit| !denied.contains(&format!("192.0.2.{bit}"))) {
                let last_denial = versions.iter().rposition(|bits| denies(*bits, bit));
                let permitted_since = last_denial.map_or(0, |it| it + 1);
                prop_assert!(permitted_since <= past, "{}: {:?}", bit, versions);
            }
        }
        if let Some((moment, _)) = asked {
            pass(&mut store, moment);
        }
        if let Some(moment) = store.take_moment() {
            pass(&mut store, moment);
        }
        prop_assert!(store.deferred.is_empty() && store.retained.is_empty());
        let last = policy(&store).unwrap().metadata.generation;
        prop_assert_eq!(last, versions.len() as i64);
    }
}
