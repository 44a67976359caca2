//! Which edits permit more, and what is in force meanwhile.

use std::net::{IpAddr, Ipv4Addr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use super::*;
use crate::api::Kind;

/// Returns a policy of a kind with this spec, which has a target unless it says otherwise.
fn policy(kind: &str, spec: &Value) -> Object {
    let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
    let mut value = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
    if spec["targetRefs"].is_null() {
        value["spec"]["targetRefs"] = json!([target("one")]);
    }
    kind.decode(&value).unwrap()
}

fn target(name: &str) -> Value {
    json!({"group": "", "kind": "Service", "name": name})
}

/// Two versions of a policy, and what is in force between them; null if the second one takes effect at once.
type Case = (Value, Value, Value);

fn check(kind: &str, cases: impl IntoIterator<Item = Case>) {
    for (old, new, expected) in cases {
        let found = meanwhile(&policy(kind, &old), &policy(kind, &new));
        let expected = (!expected.is_null()).then(|| policy(kind, &expected));
        assert_eq!(found, expected, "{old} {new}");
    }
}

/// An edit that only permits more: the old version is in force meanwhile. The reverse takes effect at once.
fn check_order(kind: &str, cases: impl IntoIterator<Item = (Value, Value)>) {
    let both = cases.into_iter().flat_map(|(strict, loose)| {
        let tightens = (loose.clone(), strict.clone(), Value::Null);
        [(strict.clone(), loose, strict), tightens]
    });
    check(kind, both);
}

fn allow(cidrs: &[&str]) -> Value {
    json!({"ipRules": {"allow": cidrs}})
}

fn deny(cidrs: &[&str]) -> Value {
    json!({"ipRules": {"deny": cidrs}})
}

const X: &str = "192.0.2.1";
const Y: &str = "192.0.2.2";

#[test]
fn addresses_that_one_version_refuses_are_refused() {
    check_order(
        "AccessPolicy",
        [
            (deny(&[X, Y]), deny(&[X])),
            (allow(&[X]), allow(&[X, Y])),
            (allow(&["192.0.2.0/25"]), allow(&["192.0.2.0/24"])),
            (json!({"ipRules": {"allow": [X], "deny": [Y]}}), deny(&[Y])),
            (deny(&[X]), json!({})),
        ],
    );
    let both = json!({"ipRules": {"allow": [X], "deny": [Y]}});
    let nested = allow(&["10.1.0.0/16", "192.0.2.0/24"]);
    check(
        "AccessPolicy",
        [
            (deny(&[X]), deny(&[Y]), deny(&[X, Y])),
            (allow(&[X]), deny(&[Y]), both),
            (allow(&[X]), allow(&[Y]), allow(&[])),
            (allow(&["10.0.0.0/8"]), nested, allow(&["10.1.0.0/16"])),
            // Its requests are refused.
            (allow(&[X]), allow(&["nothing"]), Value::Null),
        ],
    );
}

#[test]
fn sections_that_are_gone_stay() {
    let basic = json!({"secretRef": {"name": "one"}});
    let from = json!([{"type": "Header", "name": "key"}]);
    let keys = json!({"secretRefs": [{"name": "two"}], "from": from});
    let rules = |conditions: &Value| {
        let rule = json!({"name": "one", "action": "Deny", "match": conditions});
        json!({"rules": [rule], "default": "Allow"})
    };
    let (of_paths, of_clients) = (
        rules(&json!({"methods": ["PUT"]})),
        rules(&json!({"clients": ["mallory"]})),
    );
    check_order(
        "AccessPolicy",
        [
            (json!({"basic": basic, "require": "All"}), json!({})),
            (
                json!({"basic": basic, "authorization": of_clients}),
                json!({}),
            ),
            (
                json!({"basic": basic, "authorization": of_clients}),
                json!({"basic": basic}),
            ),
            (
                json!({"basic": basic, "authorization": of_paths}),
                json!({"authorization": of_paths}),
            ),
        ],
    );
    check(
        "AccessPolicy",
        [
            (
                json!({"basic": basic, "ipRules": {"deny": [X]}}),
                deny(&[X, Y]),
                json!({"basic": basic, "ipRules": {"deny": [X, Y]}}),
            ),
            (
                json!({"basic": basic, "authorization": of_paths}),
                json!({"apiKey": keys}),
                json!({"apiKey": keys, "authorization": of_paths}),
            ),
        ],
    );
    let at_once = [
        (json!({"basic": basic}), json!({"apiKey": keys})),
        // Where one of them suffices, fewer clients pass.
        (
            json!({"basic": basic, "apiKey": keys, "require": "Any"}),
            json!({"basic": basic, "require": "Any"}),
        ),
        (
            json!({"basic": basic}),
            json!({"authorization": of_clients}),
        ),
        (
            json!({"basic": basic, "authorization": of_clients}),
            json!({"apiKey": keys}),
        ),
        (json!({"basic": basic}), json!({"require": "Any"})),
        // What it locks depends on other policies.
        (json!({"basic": basic, "strategy": "Overrides"}), json!({})),
    ];
    let at_once = at_once.map(|(old, new)| (old, new, Value::Null));
    check("AccessPolicy", at_once);
}

#[test]
fn rules_that_permit_wait_and_rules_that_deny_stay() {
    let rule = |name: &str, action: &str, method: &str| json!({"name": name, "action": action, "match": {"methods": [method]}});
    let (permits, denies) = (rule("one", "Allow", "GET"), rule("two", "Deny", "PUT"));
    let rules = |rules: &[&Value]| json!({"authorization": {"rules": rules}});
    let with_default =
        |default: &str| json!({"authorization": {"rules": [permits], "default": default}});
    check_order(
        "AccessPolicy",
        [
            (rules(&[&denies, &permits]), rules(&[&permits])),
            (rules(&[&denies]), rules(&[&denies, &permits])),
            (rules(&[&denies]), rules(&[&permits])),
            (with_default("Deny"), with_default("Allow")),
        ],
    );
    let other = rule("one", "Allow", "PUT");
    let at_once = [
        (rules(&[&permits]), rules(&[&other])),
        (rules(&[&denies, &permits]), rules(&[&permits, &denies])),
    ];
    let at_once = at_once.map(|(old, new)| (old, new, Value::Null));
    check("AccessPolicy", at_once);
}

#[test]
fn limits_of_both_versions_hold() {
    let rate = |requests: u64, burst: Option<u64>| {
        let mut limit = json!({"requests": requests, "per": "Minute"});
        if let Some(burst) = burst {
            limit["burst"] = json!(burst);
        }
        json!({"name": "one", "limit": limit})
    };
    let with = |rule: &Value, field: &str, value: Value| {
        let mut rule = rule.clone();
        rule[field] = value;
        rule
    };
    let rules = |rules: &[&Value]| json!({"rules": rules});
    let (one, two) = (rate(5, None), json!({"name": "two", "concurrent": 3}));
    let audited = with(&one, "mode", json!("Audit"));
    let exempting = |cidrs: &[&str]| with(&one, "exempt", json!({"cidrs": cidrs}));
    check_order(
        "RateLimitPolicy",
        [
            (rules(&[&one]), rules(&[&rate(9, None)])),
            (rules(&[&rate(5, Some(7))]), rules(&[&rate(5, Some(8))])),
            (rules(&[&one, &two]), rules(&[&one])),
            (
                rules(&[&two]),
                rules(&[&with(&two, "concurrent", json!(4))]),
            ),
            (rules(&[&one]), rules(&[&audited])),
            (rules(&[&one]), rules(&[&exempting(&[X])])),
            (rules(&[&exempting(&[X])]), rules(&[&exempting(&[X, Y])])),
        ],
    );
    let of_hour = json!({"name": "one", "limit": {"requests": 5, "per": "Hour"}});
    let of_host = with(&rate(9, None), "key", json!([{"type": "Hostname"}]));
    check(
        "RateLimitPolicy",
        [
            (
                rules(&[&rate(5, Some(9))]),
                rules(&[&rate(7, Some(7))]),
                rules(&[&rate(5, Some(7))]),
            ),
            (rules(&[&one]), rules(&[&two]), rules(&[&two, &one])),
            (rules(&[&audited]), rules(&[&two]), Value::Null),
            (rules(&[&one]), rules(&[&of_hour]), Value::Null),
            (rules(&[&one]), rules(&[&of_host]), Value::Null),
        ],
    );
}

#[test]
fn tls_stays_for_the_targets_of_both_versions() {
    let targets = |names: &[&str]| names.iter().map(|name| target(name)).collect::<Value>();
    let tls = |names: &[&str]| {
        let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
        json!({"targetRefs": targets(names), "validation": validation})
    };
    let plain = |names: &[&str]| json!({"targetRefs": targets(names), "mode": "None"});
    for kind in ["BackendTLSPolicy", "BackendTLSOverride"] {
        check_order(kind, [(tls(&["one"]), plain(&["one"]))]);
        let one = tls(&["one", "two"]);
        check(
            kind,
            [
                (one, plain(&["two", "three"]), tls(&["two"])),
                (tls(&["one"]), plain(&["two"]), Value::Null),
            ],
        );
    }
}

#[test]
fn version_before_has_the_metadata_of_the_published_one() {
    let strict = policy("AccessPolicy", &deny(&[X]));
    let mut edited = policy("AccessPolicy", &json!({})).to_value().unwrap();
    edited["metadata"]["generation"] = json!(2);
    let edited = strict.kind().decode(&edited).unwrap();
    assert_eq!(meanwhile(&strict, &edited), Some(strict));
}

/// CIDRs of few addresses.
fn cidrs() -> impl Strategy<Value = Vec<String>> {
    let cidr = (0..16_u8, 28..=32_u8);
    vec(
        cidr.prop_map(|(last, length)| format!("10.0.0.{last}/{length}")),
        0..4,
    )
}

fn rules() -> impl Strategy<Value = IpRules> {
    (option::of(cidrs()), cidrs()).prop_map(|(allow, deny)| IpRules { allow, deny })
}

fn permits(rules: &IpRules, address: IpAddr) -> bool {
    let set =
        |cidrs: &[String]| -> CidrSet { cidrs.iter().map(|it| cidr::parse(it).unwrap()).collect() };
    let is_allowed = rules.allow.as_ref();
    let is_allowed = is_allowed.is_none_or(|cidrs| set(cidrs).contains(address));
    is_allowed && !set(&rules.deny).contains(address)
}

proptest! {
    #[test]
    fn addresses_pass_that_pass_both_versions(old in rules(), new in rules()) {
        let between = ip_rules(&old, &new);
        for last in 0..16 {
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            let expected = permits(&old, address) && permits(&new, address);
            prop_assert_eq!(permits(&between, address), expected, "{}", address);
        }
    }
}
