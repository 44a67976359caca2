//! Input that is wrong: errors name object and field, and restrictions never open.

use std::path::Path;

use portcullis::migrate::{Outcome, migrate};
use portcullis::provider::file::written;
use serde_json::json;

use crate::{migrated, settings};

fn ingress(annotations: &str, path: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  namespace: shop\n  annotations: {annotations}\n\
         spec:\n  ingressClassName: nginx\n  rules:\n  - host: a.example.com\n    http:\n      paths:\n      - {path}\n"
    )
}

const ROOT: &str =
    "{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}";

fn annotation(name: &str, value: &str) -> String {
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

#[test]
fn restrictions_that_cannot_be_converted_close_the_routes() {
    for (name, value) in [
        ("whitelist-source-range", "10.0.0.0/8, office"),
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
        let is_closed = migration.output.objects().any(|object| {
            object["kind"] == "AccessPolicy"
                && object["spec"]["authorization"] == json!({"default": "Deny"})
                && object["spec"]["targetRefs"][0]["name"] == "web"
        });
        assert!(is_closed, "{name}: {value}");
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

#[test]
fn no_value_of_an_annotation_is_a_fault_or_a_panic() {
    let long = "a".repeat(100_000);
    let values = [
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
        long.as_str(),
    ];
    // Those that other annotations have an effect with.
    let enabling = [
        ("affinity", "cookie"),
        ("auth-type", "basic"),
        ("auth-url", "http://auth.login.svc.cluster.local/verify"),
        ("backend-protocol", "HTTPS"),
        ("enable-cors", "true"),
        ("limit-rps", "5"),
        ("proxy-ssl-verify", "on"),
        ("rewrite-target", "/x"),
    ];
    let mut faults = Vec::new();
    for row in portcullis::migrate::annotations::ANNOTATIONS {
        for with in [&enabling[..0], &enabling[..]] {
            let with = with.iter().filter(|(name, _)| *name != row.name);
            let with: String = with
                .map(|(name, value)| {
                    format!(", nginx.ingress.kubernetes.io/{name}: {}", json!(value))
                })
                .collect();
            let texts = values.iter().enumerate().map(|(index, value)| {
                let own = format!("nginx.ingress.kubernetes.io/{}: {}", row.name, json!(value));
                let text = ingress(&format!("{{{own}{with}}}"), ROOT);
                text.replace("web", &format!("web-{index}"))
                    .replace("a.example", &format!("a{index}.example"))
            });
            let texts: Vec<String> = texts.collect();
            let migration = migrated(&texts.join("---\n"), &settings());
            let found = migration.report.faults.into_iter();
            faults.extend(found.map(|fault| format!("{}: {fault}", row.name)));
        }
    }
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
