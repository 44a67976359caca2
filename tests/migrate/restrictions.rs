//! What restricts access, annotation by annotation, and what protects headers that backends trust: it is converted, or it
//! closes the routes. What is not read is named.

use std::collections::BTreeMap;

use portcullis::migrate::annotations::ANNOTATIONS;
use portcullis::migrate::{Migration, Outcome};
use serde_json::{Value, json};

use crate::controller::{controller, controller_settings, with_controller};
use crate::hostile::{ROOT, ingress, is_closed};
use crate::{migrated, settings};

/// Names without the prefix, and values.
type Annotations<'a> = &'a [(&'a str, &'a str)];

const SERVER: (&str, &str) = ("auth-url", "http://auth.login.svc/verify");
const AUTHORITY: (&str, &str) = ("auth-tls-secret", "shop/ca");
const USERS: (&str, &str) = ("auth-secret", "users");

/// The annotations with which ingress-nginx refuses requests, with what they need for that.
const RESTRICTING: &[Annotations<'static>] = &[
    &[("allowlist-source-range", "10.0.0.0/8")],
    &[("whitelist-source-range", "10.0.0.0/8")],
    &[("denylist-source-range", "10.0.0.0/8")],
    &[("auth-type", "basic"), USERS],
    &[("auth-type", "digest"), USERS],
    &[SERVER],
    &[("auth-url", "https://login.example.com/")],
    &[SERVER, ("auth-method", "POST")],
    &[SERVER, ("auth-snippet", "proxy_set_header X-A b;")],
    &[SERVER, ("auth-proxy-set-headers", "shop/headers")],
    &[SERVER, ("enable-global-auth", "false")],
    &[AUTHORITY],
    &[AUTHORITY, ("auth-tls-verify-client", "optional")],
    &[AUTHORITY, ("auth-tls-match-cn", "CN=shop")],
    &[("configuration-snippet", "deny all;")],
    &[("server-snippet", "deny all;")],
    &[
        ("enable-modsecurity", "true"),
        ("modsecurity-snippet", "SecRuleEngine On"),
    ],
    &[("limit-connections", "5")],
    &[("limit-rpm", "5")],
    &[("limit-rps", "5")],
];

/// Returns annotations as YAML.
fn yaml(annotations: Annotations<'_>) -> String {
    let full = |name: &str| format!("nginx.ingress.kubernetes.io/{name}");
    let named = annotations.iter().map(|(name, value)| (full(name), *value));
    json!(named.collect::<BTreeMap<_, _>>()).to_string()
}

/// Returns the request header filter of the HTTPRoute.
fn request_headers(migration: &Migration) -> Value {
    let mut objects = migration.output.objects();
    let route = objects.find(|object| object["kind"] == "HTTPRoute");
    route.unwrap()["spec"]["rules"][0]["filters"][0]["requestHeaderModifier"].clone()
}

#[test]
fn what_restricts_is_converted_or_closes_the_routes() {
    for annotations in RESTRICTING {
        let migration = migrated(&ingress(&yaml(annotations), ROOT), &settings());
        let restricts = |object: &Value| {
            let kind = object["kind"].as_str().unwrap_or_default();
            ["AccessPolicy", "RateLimitPolicy"].contains(&kind)
                && object["spec"]["targetRefs"][0]["name"] == "web"
        };
        let mut objects = migration.output.objects();
        assert!(objects.any(restricts), "{annotations:?}");
        assert_eq!(
            migration.report.faults,
            Vec::<String>::new(),
            "{annotations:?}"
        );
    }
    let closing = ANNOTATIONS
        .iter()
        .filter(|row| row.text.contains("refuse all requests (403)"));
    for row in closing {
        let mut all = RESTRICTING.iter().copied().flatten();
        assert!(all.any(|(name, _)| *name == row.name), "{}", row.name);
    }
}

#[test]
fn a_firewall_closes_the_routes_of_which_it_may_refuse_requests() {
    let on = ("enable-modsecurity", "true");
    let off = ("enable-modsecurity", "false");
    let rules = ("modsecurity-snippet", "SecRuleEngine On");
    let core = ("enable-owasp-core-rules", "true");
    let cases: [(Annotations<'_>, Annotations<'_>, bool); 9] = [
        (&[on, rules], &[], true),
        (&[on, core], &[], false),
        (&[rules], &[], false),
        (&[], &[on, rules], true),
        (&[rules], &[on], true),
        (&[on], &[rules], false),
        (&[off], &[on, rules], false),
        (&[off, rules], &[on, rules], false),
        (&[], &[rules], false),
    ];
    for (annotations, data, expected) in cases {
        let text = with_controller(&yaml(annotations), data);
        let migration = migrated(&text, &controller_settings());
        let is_closed = is_closed(&migration, "web");
        assert_eq!(is_closed, expected, "{annotations:?} {data:?}");
    }
}

#[test]
fn tls_is_not_passed_by_restrictions() {
    let passed = ("ssl-passthrough", "true");
    let addresses = ("whitelist-source-range", "10.0.0.0/8");
    let cases: [(Annotations<'_>, Annotations<'_>, Annotations<'_>, bool); 5] = [
        (&[passed], &[], &[], true),
        (&[passed, addresses], &[], &[], false),
        (&[passed], &[addresses], &[], false),
        (&[passed], &[], &[("block-cidrs", "192.0.2.0/24")], false),
        (&[passed], &[], &[("block-referers", "spam.example")], false),
    ];
    let path = ROOT.replace("path: /,", "path: /other,");
    for (annotations, of_other, data, expected) in cases {
        let other = ingress(&yaml(of_other), &path).replace("name: web\n", "name: other\n");
        let text = format!("{}---\n{other}", with_controller(&yaml(annotations), data));
        let migration = migrated(&text, &controller_settings());
        let mut objects = migration.output.objects();
        let is_passed = objects.any(|object| object["kind"] == "TLSRoute");
        let place = format!("{annotations:?} {of_other:?} {data:?}");
        assert_eq!(is_passed, expected, "{place}");
        assert_eq!(migration.report.needs_hand(), !expected, "{place}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{place}");
    }
}

/// Returns a snippet that sets so many headers for backends.
fn setting(count: usize, value: &str) -> String {
    let lines = (0..count).map(|number| format!("proxy_set_header X-User-{number} {value};"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn headers_that_a_filter_has_no_room_for_are_not_those_of_clients() {
    let none: Annotations<'_> = &[];
    let basic: Annotations<'_> = &[("auth-type", "basic"), USERS];
    for (count, value, others, expected) in [
        (16, "$remote_user", none, false),
        (17, "$remote_user", none, true),
        (15, "$remote_user", basic, false),
        (16, "$remote_user", basic, true),
        (17, "nobody", none, false),
        (32, "nobody", none, false),
        (33, "nobody", none, true),
    ] {
        let snippet = setting(count, value);
        let mut all = others.to_vec();
        all.push(("configuration-snippet", snippet.as_str()));
        let migration = migrated(&ingress(&yaml(&all), ROOT), &settings());
        let place = format!("{count} {value} {others:?}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{place}");
        assert_eq!(is_closed(&migration, "web"), expected, "{place}");
        let changes = request_headers(&migration);
        let length = |field: &str| changes[field].as_array().map_or(0, Vec::len);
        // Authorization is one more.
        let wanted = count + others.len() / 2;
        let are_all_there = length("set") + length("remove") == wanted;
        assert_eq!(are_all_there, !expected, "{place}: {changes}");
        if !others.is_empty() {
            assert_eq!(changes["remove"][0], "Authorization", "{place}");
        }
    }
}

#[test]
fn headers_with_the_certificate_are_not_those_of_clients() {
    for (value, expected) in [("on", true), ("off", false)] {
        let annotations = yaml(&[AUTHORITY, ("auth-tls-verify-client", value)]);
        let migration = migrated(&ingress(&annotations, ROOT), &settings());
        assert_eq!(is_closed(&migration, "web"), expected, "{value}");
        let removed = request_headers(&migration)["remove"].clone();
        let removed = removed.as_array().unwrap();
        assert!(removed.contains(&json!("ssl-client-verify")), "{value}");
        assert_eq!(removed.len(), 4, "{value}");
    }
}

#[test]
fn headers_of_a_server_that_do_not_fit_are_not_those_of_clients() {
    for (count, expected) in [(64, false), (65, true)] {
        let names = (0..count).map(|number| format!("X-A-{number}"));
        let names = names.collect::<Vec<_>>().join(",");
        let annotations = yaml(&[SERVER, ("auth-response-headers", names.as_str())]);
        let migration = migrated(&ingress(&annotations, ROOT), &settings());
        assert_eq!(is_closed(&migration, "web"), expected, "{count}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{count}");
    }
}

#[test]
fn headers_of_responses_that_do_not_fit_close_nothing() {
    let lines = (0..17).map(|number| format!("more_set_headers 'X-A-{number}: b';"));
    let snippet = lines.collect::<Vec<_>>().join("\n");
    let text = ingress(&yaml(&[("configuration-snippet", snippet.as_str())]), ROOT);
    let migration = migrated(&text, &settings());
    assert!(!is_closed(&migration, "web"));
    let mut lines = migration.report.lines.iter();
    assert!(lines.any(|line| line.setting == "headers" && line.outcome == Outcome::NotPossible));
}

#[test]
fn headers_that_the_controller_sets_are_not_those_of_clients() {
    let text = with_controller("{}", &[("proxy-set-headers", "ingress-nginx/headers")]);
    let settings = controller_settings();
    let migration = migrated(&text, &settings);
    assert!(is_closed(&migration, "web"), "the ConfigMap is missing");
    assert!(migration.report.needs_hand());
    for (value, expected, needs_hand) in [
        ("$remote_user", json!({"remove": ["X-User"]}), true),
        ("", json!({"remove": ["X-User"]}), false),
        (
            "nobody",
            json!({"set": [{"name": "X-User", "value": "nobody"}]}),
            false,
        ),
    ] {
        let headers = controller(&[("X-User", value)]).replace("name: controller", "name: headers");
        let migration = migrated(&format!("{text}---\n{headers}"), &settings);
        assert!(!is_closed(&migration, "web"), "{value}");
        assert_eq!(request_headers(&migration), expected, "{value}");
        assert_eq!(migration.report.needs_hand(), needs_hand, "{value}");
    }
}

#[test]
fn restrictions_of_a_controller_that_is_not_read_are_named_once() {
    let own = ingress("{}", ROOT);
    let restricting = with_controller("{}", &[("global-auth-url", "http://auth.login.svc/")]);
    let other = with_controller("{}", &[("server-snippet", ""), ("proxy-body-size", "8m")]);
    let of_config_map = |migration: &Migration| {
        let lines = migration.report.lines.iter();
        let lines = lines.filter(|line| line.object == "ConfigMap ingress-nginx/controller");
        lines
            .map(|line| (line.outcome, line.text.clone()))
            .collect::<Vec<_>>()
    };
    for (text, expected) in [(&own, false), (&restricting, true), (&other, false)] {
        let migration = migrated(text, &settings());
        let named = migration.report.notices.iter();
        let named = named.filter(|notice| notice.contains("global-auth-url"));
        assert_eq!(named.count(), 1, "{text}");
        assert_eq!(of_config_map(&migration).len(), usize::from(expected));
        assert_eq!(migration.report.needs_hand(), expected, "{text}");
    }
    let missing = migrated(&own, &controller_settings());
    let lines = of_config_map(&missing);
    let [(outcome, text)] = &*lines else {
        panic!("{}", missing.report.text());
    };
    assert_eq!(*outcome, Outcome::NotPossible);
    assert!(text.contains("not in the input") && text.contains("global-auth-url"));
    let read = migrated(&restricting, &controller_settings());
    assert_eq!(read.report.notices, Vec::<String>::new());
}

#[test]
fn a_realm_that_no_policy_can_have_is_left_out() {
    for (length, is_kept) in [(128, true), (129, false)] {
        let realm = "a".repeat(length);
        let annotations = [("auth-type", "basic"), USERS, ("auth-realm", &*realm)];
        let migration = migrated(&ingress(&yaml(&annotations), ROOT), &settings());
        let mut objects = migration.output.objects();
        let policy = objects.find(|object| object["kind"] == "AccessPolicy");
        let found = &policy.unwrap()["spec"]["basic"]["realm"];
        assert_eq!(found.is_string(), is_kept, "{length}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{length}");
    }
}
