//! Schema of ReleaseBackend.

use serde_json::Value;

use super::{findings, yaml};
use crate::api::{Object, admit};

fn release_backend(spec: &str) -> Value {
    yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: ReleaseBackend, metadata: {{name: a}}, spec: {spec}}}"
    ))
}

#[test]
fn validates_fields_of_release_backends() {
    let rows = [
        ("{splitBy: a}", ""),
        (
            "{splitBy: example.com/a, releases: [{value: a_1.B, weight: 0}]}",
            "",
        ),
        ("{splitBy: a, sticky: {cookie: __rel-1}}", ""),
        ("{}", "spec.splitBy: Required value"),
        ("{splitBy: a b}", "spec.splitBy: Invalid value"),
        ("{splitBy: ''}", "spec.splitBy: "),
        (
            "{splitBy: a, releases: [{value: a}]}",
            "spec.releases[0].weight: Required value",
        ),
        (
            "{splitBy: a, releases: [{value: '', weight: 1}]}",
            "spec.releases[0].value: ",
        ),
        (
            "{splitBy: a, releases: [{value: a, weight: -1}]}",
            "greater than or equal to 0",
        ),
        (
            "{splitBy: a, releases: [{value: a, weight: 1000001}]}",
            "less than or equal to 1000000",
        ),
        (
            "{splitBy: a, releases: [{value: a, weight: 1}, {value: a, weight: 2}]}",
            "Duplicate value",
        ),
        (
            "{splitBy: a, unlisted: Never}",
            "Unsupported value: \"Never\"",
        ),
        (
            "{splitBy: a, belowMinReady: Never}",
            "Unsupported value: \"Never\"",
        ),
        ("{splitBy: a, minReady: 0}", "greater than or equal to 1"),
        (
            "{splitBy: a, sticky: {}}",
            "spec.sticky.cookie: Required value",
        ),
        (
            "{splitBy: a, sticky: {cookie: a=b}}",
            "spec.sticky.cookie: Invalid value",
        ),
        (
            "{splitBy: a, loadBalancer: {v1.Service: 3}}",
            "must be of type object",
        ),
        ("{splitBy: a, weights: {}}", "unknown field"),
    ];
    for (spec, expected) in rows {
        let found = findings(release_backend(spec));
        match expected {
            "" => assert!(found.is_empty(), "{spec}: {found:?}"),
            expected => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{spec}: {found:?}"
            ),
        }
    }
    let releases: Vec<_> = (0..33)
        .map(|index| format!("{{value: a{index}, weight: 1}}"))
        .collect();
    let spec = |count: usize| {
        format!(
            "{{splitBy: a, releases: [{}]}}",
            releases[..count].join(", ")
        )
    };
    assert!(findings(release_backend(&spec(32))).is_empty());
    assert!(!findings(release_backend(&spec(33))).is_empty());
}

#[test]
fn load_balancers_keep_unknown_fields_but_no_nulls() {
    let spec = "{splitBy: a, loadBalancer: {v1.Service: {name: b, selector: null}, example.com/v1.Any: {deep: {x: 1}}}}";
    let admission = admit(release_backend(spec));
    assert!(admission.findings.is_empty(), "{:?}", admission.findings);
    let Some(Object::ReleaseBackend(backend)) = admission.object else {
        panic!("not a ReleaseBackend")
    };
    let configured = serde_json::to_string(&backend.spec.load_balancer).unwrap();
    assert_eq!(
        configured,
        r#"{"example.com/v1.Any":{"deep":{"x":1}},"v1.Service":{"name":"b"}}"#
    );
}
