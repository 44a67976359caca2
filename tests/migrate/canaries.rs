//! Canaries: which requests they get, and what their Services share with those of the main Ingress.

use portcullis::migrate::Migration;
use serde_json::{Value, json};

use crate::hostile::{ROOT, ingress};
use crate::{migrated, settings};

/// Names without the prefix, and values.
type Annotations<'a> = &'a [(&'a str, &'a str)];

fn yaml(annotations: Annotations<'_>) -> String {
    let mut map = json!({});
    for (name, value) in annotations {
        map[format!("nginx.ingress.kubernetes.io/{name}")] = json!(value);
    }
    map.to_string()
}

/// Migrates an Ingress of Service `web`, and a canary of Service `next`.
fn with_canary(main: Annotations<'_>, canary: Annotations<'_>) -> Migration {
    let canary = [&[("canary", "true")][..], canary].concat();
    let path = ROOT.replace("name: web,", "name: next,");
    let next = ingress(&yaml(&canary), &path).replace("  name: web\n", "  name: next\n");
    let text = [ingress(&yaml(main), ROOT), next].join("---\n");
    let migration = migrated(&text, &settings());
    assert_eq!(migration.report.faults, Vec::<String>::new());
    migration
}

/// Returns the Services of each rule of the route of a kind, and the headers that its matches are for.
fn rules(migration: &Migration, kind: &str) -> Vec<String> {
    let mut objects = migration.output.objects();
    let route = objects.find(|object| object["kind"] == kind).unwrap();
    let shown = |rule: &Value| {
        let backends = rule["backendRefs"].as_array().unwrap().iter();
        let names = backends.map(|it| it["name"].as_str().unwrap());
        let names: Vec<&str> = names.collect();
        let matches = rule["matches"].as_array().unwrap().iter();
        let headers = matches.map(|it| match &it["headers"][0] {
            Value::Null => "any".to_owned(),
            header => format!(
                "{}={}",
                header["name"].as_str().unwrap(),
                header["value"].as_str().unwrap()
            ),
        });
        let headers: Vec<String> = headers.collect();
        format!("{}: {}", names.join("+"), headers.join(" "))
    };
    let rules = route["spec"]["rules"].as_array().unwrap();
    rules.iter().map(shown).collect()
}

/// Of rules that a request meets with as many headers, the first one decides.
#[test]
fn the_header_of_a_canary_comes_before_its_cookie() {
    let canary = [
        ("canary-by-header", "X-Canary"),
        ("canary-by-cookie", "beta"),
        ("canary-weight", "20"),
    ];
    let migration = with_canary(&[], &canary);
    let expected = [
        "next: X-Canary=always",
        "web: X-Canary=never",
        "next: Cookie=(.*; ?)?beta=always(;.*)?",
        "web: Cookie=(.*; ?)?beta=never(;.*)?",
        "web+next: any",
    ];
    assert_eq!(rules(&migration, "HTTPRoute"), expected);
}

#[test]
fn calls_without_the_header_of_a_canary_have_a_rule() {
    let canary = [
        ("canary-by-header", "X-Canary"),
        ("canary-by-header-value", "v2"),
        ("canary-by-cookie", "beta"),
    ];
    let migration = with_canary(&[("backend-protocol", "GRPC")], &canary);
    // A rule without matches is for every call.
    let expected = [
        "next: X-Canary=v2 Cookie=(.*; ?)?beta=always(;.*)?",
        "web: ",
    ];
    assert_eq!(rules(&migration, "GRPCRoute"), expected);
}

#[test]
fn weights_are_percentages_unless_the_total_is_more() {
    for (total, expected) in [
        ("10", json!([95, 5])),
        ("100", json!([95, 5])),
        ("200", json!([195, 5])),
    ] {
        let canary = [("canary-weight", "5"), ("canary-weight-total", total)];
        let migration = with_canary(&[], &canary);
        let mut objects = migration.output.objects();
        let route = objects.find(|object| object["kind"] == "HTTPRoute");
        let backends = &route.unwrap()["spec"]["rules"][0]["backendRefs"];
        let weights: Vec<&Value> = [0_usize, 1]
            .iter()
            .map(|it| &backends[*it]["weight"])
            .collect();
        assert_eq!(json!(weights), expected, "{total}");
    }
}

#[test]
fn the_service_of_a_canary_has_the_policies_of_the_main_one() {
    let main = [("backend-protocol", "HTTPS"), ("affinity", "cookie")];
    let migration = with_canary(&main, &[("canary-weight", "20")]);
    for kind in ["BackendPolicy", "BackendTLSOverride"] {
        let objects = migration.output.objects();
        let policies = objects.filter(|object| object["kind"] == kind);
        let targets = policies.map(|policy| &policy["spec"]["targetRefs"][0]["name"]);
        let targets: Vec<&Value> = targets.collect();
        assert_eq!(json!(targets), json!(["next", "web"]), "{kind}");
    }
}
