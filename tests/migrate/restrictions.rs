//! What protects headers that backends trust: it is converted, or it closes the routes.

use std::collections::BTreeMap;

use portcullis::migrate::{Migration, Outcome};
use serde_json::{Value, json};

use crate::controller::{controller, controller_settings, with_controller};
use crate::hostile::{ROOT, ingress, is_closed};
use crate::{migrated, settings};

/// Names without the prefix, and values.
type Annotations<'a> = &'a [(&'a str, &'a str)];

const USERS: (&str, &str) = ("auth-secret", "users");

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
