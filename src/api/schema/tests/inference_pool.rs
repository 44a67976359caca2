//! Schema of InferencePool.

use serde_json::Value;

use super::{findings, yaml};
use crate::api::{Object, admit};

fn pool(spec: &str) -> Value {
    yaml(&format!(
        "{{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {{name: a}}, spec: {spec}}}"
    ))
}

#[test]
fn validates_fields_of_inference_pools() {
    let rest = |fields: &str| {
        format!("{{selector: {{matchLabels: {{app: a}}}}, targetPorts: [{{number: 1}}], {fields}}}")
    };
    let rows = [
        (rest(""), ""),
        (rest("endpointPickerRef: {name: a, kind: Other}"), ""),
        (
            "{targetPorts: [{number: 1}]}".to_owned(),
            "spec.selector: Required value",
        ),
        (
            "{selector: {matchLabels: {}}, targetPorts: [{number: 1}]}".to_owned(),
            "spec.selector.matchLabels: ",
        ),
        (
            "{selector: {matchLabels: {app: a}}, targetPorts: []}".to_owned(),
            "spec.targetPorts: ",
        ),
        (
            "{selector: {matchLabels: {app: a}}, targetPorts: [{number: 1}, {number: 1}]}"
                .to_owned(),
            "port number must be unique",
        ),
        (
            rest("endpointPickerRef: {name: a}"),
            "port is required when kind is 'Service'",
        ),
        (
            rest("endpointPickerRef: {name: a, port: {number: 1}, failureMode: Never}"),
            "Unsupported value: \"Never\"",
        ),
        (rest("appProtocol: h2"), "Unsupported value: \"h2\""),
    ];
    for (spec, expected) in rows {
        let found = findings(pool(&spec));
        match expected {
            "" => assert!(found.is_empty(), "{spec}: {found:?}"),
            _ => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{spec}: {found:?}"
            ),
        }
    }
}

#[test]
fn inference_pool_has_defaults() {
    let spec = "{selector: {matchLabels: {app: a}}, targetPorts: [{number: 1}], endpointPickerRef: {name: a, port: {number: 2}}}";
    let admission = admit(pool(spec));
    assert!(admission.findings.is_empty(), "{:?}", admission.findings);
    let Some(Object::InferencePool(pool)) = admission.object else {
        panic!("no pool")
    };
    assert_eq!(pool.spec.app_protocol.as_deref(), Some("http"));
    let picker = pool.spec.endpoint_picker_ref.as_ref().unwrap();
    assert_eq!(picker.failure_mode.as_deref(), Some("FailClose"));
    assert!(picker.field().is_core("Service"));
}
