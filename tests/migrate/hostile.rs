//! Input that is wrong: errors name object and field, and restrictions never open.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use portcullis::migrate::{Migration, Outcome, Settings, migrate, unchecked};
use portcullis::provider::file::written::{self, Written};
use serde_json::{Value, json};

use crate::{migrated, name, settings};

pub(crate) fn ingress(annotations: &str, path: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  namespace: shop\n  annotations: {annotations}\n\
         spec:\n  ingressClassName: nginx\n  rules:\n  - host: a.example.com\n    http:\n      paths:\n      - {path}\n"
    )
}

pub(crate) const ROOT: &str =
    "{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}";

pub(crate) fn annotation(name: &str, value: &str) -> String {
    format!("{{nginx.ingress.kubernetes.io/{name}: {}}}", json!(value))
}

#[test]
fn wrong_types_name_object_and_field() {
    for (text, expected) in [
        (
            ingress("{a: 1}", ROOT),
            "Ingress shop/web: metadata.annotations.a: must be text",
        ),
        (ingress("[]", ROOT), "metadata.annotations: must be a map"),
        (
            ingress("{}", "{path: /, backend: {}}"),
            "spec.rules[0].http.paths[0].backend: must have service or resource",
        ),
        (
            ingress("{}", "{path: x, backend: {}}"),
            "spec.rules[0].http.paths[0].path: must begin with `/`",
        ),
        (
            ingress("{}", "text"),
            "spec.rules[0].http.paths[0]: must be a map",
        ),
        (
            ingress("{}", "{path: /, pathType: Glob}"),
            "pathType: must be Exact, Prefix or ImplementationSpecific",
        ),
        (
            ingress("{}", ROOT).replace("number: 80", "number: 80000"),
            "port.number: must be a port",
        ),
        (
            ingress("{}", ROOT).replace("name: web\n", "name: ../web\n"),
            "metadata.name: must be a name",
        ),
        (
            ingress("{}", ROOT).replace("a.example.com", "'a b'"),
            "spec.rules[0].host: must be a DNS name",
        ),
        (
            ingress("{}", ROOT).replace("/v1\n", "/v1beta1\n"),
            "apiVersion: must be networking.k8s.io/v1",
        ),
    ] {
        let (objects, problems) = written::of_text(Path::new("input.yaml"), &text).unwrap();
        assert_eq!(problems, []);
        let problems = migrate(&objects, &settings()).unwrap_err();
        let shown = problems[0].to_string();
        assert!(
            shown.contains(expected) && shown.contains("input.yaml:1"),
            "{shown}"
        );
    }
}

#[test]
fn duplicate_keys_and_objects_are_errors() {
    let text = ingress("{a: b, a: c}", ROOT);
    let (_, problems) = written::of_text(Path::new("input.yaml"), &text).unwrap();
    assert!(problems[0].to_string().contains("twice"), "{problems:?}");
    let one = ingress("{}", ROOT);
    let (objects, _) = written::of_text(Path::new("i"), &format!("{one}---\n{one}")).unwrap();
    let problems = migrate(&objects, &settings()).unwrap_err();
    assert!(
        problems[0]
            .to_string()
            .contains("Ingress shop/web: appears twice")
    );
}

/// Reports whether the routes of an Ingress refuse all requests.
pub(crate) fn is_closed(migration: &Migration, name: &str) -> bool {
    migration.output.objects().any(|object| {
        object["kind"] == "AccessPolicy"
            && object["spec"]["authorization"] == json!({"default": "Deny"})
            && object["spec"]["targetRefs"][0]["name"] == name
    })
}

#[test]
fn restrictions_of_a_host_close_the_routes_of_all_of_its_ingresses() {
    let path = ROOT.replace("path: /,", "path: /other,");
    for (name, value, expected) in [
        ("server-snippet", "location /other { deny all; }", true),
        ("auth-tls-secret", "shop/ca", true),
        ("server-snippet", "more_set_headers 'X-A: b';", false),
        // nginx has this one for a path.
        ("configuration-snippet", "deny all;", false),
    ] {
        let one = ingress(&annotation(name, value), ROOT);
        let other = ingress("{}", &path).replace("name: web\n", "name: other\n");
        let elsewhere = other.replace("name: other\n", "name: elsewhere\n");
        let elsewhere = elsewhere.replace("a.example.com", "b.example.com");
        let text = [one, other, elsewhere].join("---\n");
        let migration = migrated(&text, &settings());
        assert_eq!(is_closed(&migration, "other"), expected, "{name}: {value}");
        assert!(!is_closed(&migration, "elsewhere"), "{name}: {value}");
        let lines = &migration.report.lines;
        let is_said = lines.iter().any(|line| {
            line.object == "Ingress shop/other" && line.outcome == Outcome::NotPossible
        });
        assert_eq!(is_said, expected, "{name}: {value}");
    }
}

#[test]
fn hosts_without_an_entry_of_tls_are_reported() {
    let rule = "  - host: b.example.com\n    http:\n      paths:\n      - ";
    let text = format!(
        "{}{rule}{ROOT}\n  tls:\n  - {{hosts: [a.example.com], secretName: a}}\n",
        ingress("{}", ROOT)
    );
    let default = Settings {
        default_certificate: Some(name("shop/default")),
        ..settings()
    };
    for (settings, expected) in [
        (settings(), Outcome::NotPossible),
        (default, Outcome::ChangedMeaning),
    ] {
        let migration = migrated(&text, &settings);
        let mut lines = migration.report.lines.iter();
        let line = lines.find(|line| line.setting == "tls").unwrap();
        assert!(line.text.starts_with("b.example.com"), "{line}");
        assert_eq!(line.outcome, expected, "{line}");
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}

#[test]
fn restrictions_that_cannot_be_converted_close_the_routes() {
    for (name, value) in [
        ("whitelist-source-range", "10.0.0.0/8, office"),
        ("whitelist-source-range", ""),
        ("allowlist-source-range", ","),
        ("denylist-source-range", "10.0.0.0/33"),
        ("auth-type", "digest"),
        ("auth-type", "basic"),
        ("auth-url", "https://login.example.com/check"),
        ("auth-url", "http://$host/check"),
        ("auth-tls-secret", "shop/ca"),
        (
            "configuration-snippet",
            "if ($http_x != \"y\") { return 403; }",
        ),
        ("configuration-snippet", "deny all;"),
        ("server-snippet", "allow 10.0.0.0/8; deny all;"),
        ("server-snippet", "location /admin { deny all; }"),
        ("server-snippet", "deny all"),
    ] {
        let migration = migrated(&ingress(&annotation(name, value), ROOT), &settings());
        assert!(is_closed(&migration, "web"), "{name}: {value}");
        assert!(
            migration.report.count(Outcome::NotPossible) > 0,
            "{name}: {value}"
        );
        assert_eq!(
            migration.report.faults,
            Vec::<String>::new(),
            "{name}: {value}"
        );
    }
}

/// Values that hardly any annotation is for.
const VALUES: [&str; 35] = [
    "",
    " ",
    "true",
    "false",
    "0",
    "-1",
    "99999999999999999999",
    "*",
    "$",
    "${",
    "\\",
    "\"",
    "{",
    "}",
    ";",
    "a\nb",
    "\u{0}",
    "é",
    "a/b/c",
    "//",
    "/$1",
    "(",
    "[",
    "10.0.0.0/8",
    ",,,",
    "http://",
    "https://a.b:99999/",
    "a: b",
    "basic",
    "cookie",
    "HTTPS",
    "GRPC",
    "always",
    "/a?b#c",
    "~^(.*)$",
];

/// Annotations that others have an effect with.
const ENABLING: &[(&str, &str)] = &[
    ("affinity", "cookie"),
    ("auth-type", "basic"),
    ("auth-url", "http://auth.login.svc.cluster.local/verify"),
    ("backend-protocol", "HTTPS"),
    ("enable-cors", "true"),
    ("limit-rps", "5"),
    ("proxy-ssl-verify", "on"),
    ("rewrite-target", "/x"),
];

/// Number of Ingresses that are checked together.
const CHECKED_TOGETHER: usize = 40;

/// An Ingress of which nothing but the annotations changes.
struct Template(Written);

impl Template {
    /// Creates one whose names have a number.
    fn new(number: usize) -> Self {
        let text = ingress("{}", ROOT).replace("web", &format!("web-{number}"));
        let text = text.replace("a.example", &format!("a{number}.example"));
        let (mut objects, problems) = written::of_text(Path::new("input.yaml"), &text).unwrap();
        assert_eq!(problems, []);
        Self(objects.remove(0))
    }

    fn with(&self, annotations: &Annotations) -> Written {
        let mut object = self.0.clone();
        object.value["metadata"]["annotations"] = json!(annotations);
        object
    }
}

/// Names with the prefix, and values.
type Annotations = BTreeMap<String, String>;

/// Calls with each value of each annotation, alone and beside those that enable it.
fn each_value(mut act: impl FnMut(&'static str, Annotations)) {
    let full = |name: &str| format!("nginx.ingress.kubernetes.io/{name}");
    let long = "a".repeat(100_000);
    for row in portcullis::migrate::annotations::ANNOTATIONS {
        for with in [&ENABLING[..0], ENABLING] {
            for value in VALUES.into_iter().chain([long.as_str()]) {
                let with = with.iter();
                let with = with.map(|(name, value)| (full(name), (*value).to_owned()));
                let mut annotations: Annotations = with.collect();
                annotations.insert(full(row.name), value.to_owned());
                act(row.name, annotations);
            }
        }
    }
}

/// Each value is converted. Most do nothing, and the faults of an output depend on the output alone, so that equal ones are
/// checked once.
#[test]
fn no_value_of_an_annotation_is_a_fault_or_a_panic() {
    let (template, settings) = (Template::new(0), settings());
    let (mut seen, mut different) = (HashSet::new(), Vec::new());
    each_value(|name, annotations| {
        let migration = unchecked(&[template.with(&annotations)], &settings).unwrap();
        let objects: Vec<&Value> = migration.output.objects().collect();
        if seen.insert(json!(objects).to_string()) {
            different.push((name, annotations));
        }
    });
    let mut faults = Vec::new();
    for chunk in different.chunks(CHECKED_TOGETHER) {
        let ingresses = chunk.iter().enumerate();
        let ingresses = ingresses.map(|(number, (_, it))| Template::new(number).with(it));
        let ingresses: Vec<Written> = ingresses.collect();
        let found = migrate(&ingresses, &settings).unwrap().report.faults;
        let names: Vec<_> = chunk.iter().map(|(name, _)| name).collect();
        faults.extend(found.iter().map(|fault| format!("{fault} (of {names:?})")));
    }
    assert!(different.len() > 100, "{} outputs", different.len());
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn no_path_is_a_fault_or_a_panic() {
    for path in [
        "/", "//", "/a//b", "/../x", "/a b", "/é", "/(", "/[", "/\\", "/a|b", "/%2f", "/{}", "/$",
        "/a/", "/*", "/.*",
    ] {
        for kind in ["Exact", "Prefix", "ImplementationSpecific"] {
            for annotations in [
                "{}".to_owned(),
                annotation("use-regex", "true"),
                annotation("rewrite-target", "/$1"),
                annotation("whitelist-source-range", "10.0.0.0/8"),
            ] {
                let path = format!(
                    "{{path: {}, pathType: {kind}, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}",
                    json!(path)
                );
                let migration = migrated(&ingress(&annotations, &path), &settings());
                assert_eq!(
                    migration.report.faults,
                    Vec::<String>::new(),
                    "{path} {annotations}"
                );
            }
        }
    }
}

#[test]
fn many_paths_fit_the_limits_of_routes() {
    let paths: Vec<String> = (0..300)
        .map(|number| format!("{{path: /p{number}(.*), pathType: ImplementationSpecific, backend: {{service: {{name: s{number}, port: {{number: 80}}}}}}}}"))
        .collect();
    let text = ingress(
        &annotation("rewrite-target", "/$1"),
        &paths.join("\n      - "),
    );
    let migration = migrated(&text, &settings());
    assert_eq!(migration.report.faults, Vec::<String>::new());
    let routes = migration
        .output
        .objects()
        .filter(|it| it["kind"] == "HTTPRoute");
    assert_eq!(routes.count(), 19);
}
