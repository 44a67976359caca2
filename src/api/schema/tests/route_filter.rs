//! Schema of RouteFilter.

use super::{findings, yaml};

fn filter(spec: &str) -> Vec<String> {
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: RouteFilter, metadata: {{name: a}}, spec: {{{spec}}}}}"
    )))
}

#[test]
fn validates_fields_of_route_filters() {
    let rewrite = "regexRewrite: {pattern: a, replacement: b}";
    let response = "directResponse: {status: 204}";
    for (spec, expected) in [
        (rewrite.to_owned(), ""),
        (response.to_owned(), ""),
        (
            "directResponse: {status: 404, body: none, headers: [{name: a, value: b}]}".to_owned(),
            "",
        ),
        (
            "directResponse: {status: 404, configMapRef: {name: a, key: b.html}}".to_owned(),
            "",
        ),
        (
            "directResponse: {status: 404, configMapRef: {name: a}}".to_owned(),
            "key",
        ),
        (
            "directResponse: {status: 404, body: a, configMapRef: {name: a, key: b}}".to_owned(),
            "body or configMapRef",
        ),
        (
            "directResponse: {status: 204, configMapRef: {name: a, key: b}}".to_owned(),
            "has no body",
        ),
        (format!("{rewrite}, {response}"), "spec"),
        (String::new(), "spec"),
        ("regexRewrite: {pattern: a}".to_owned(), "replacement"),
        ("directResponse: {status: 101}".to_owned(), "status"),
        (
            "directResponse: {status: 304, body: a}".to_owned(),
            "has no body",
        ),
    ] {
        let found = filter(&spec);
        let as_expected = match expected {
            "" => found.is_empty(),
            _ => found.len() == 1 && found[0].contains(expected),
        };
        assert!(as_expected, "{spec}: {found:?}");
    }
}
