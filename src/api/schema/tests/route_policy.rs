//! Schema of RoutePolicy.

use super::{findings, yaml};

fn policy(spec: &str) -> Vec<String> {
    let target = "{group: gateway.networking.k8s.io, kind: Gateway, name: web}";
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: RoutePolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}]{spec}}}}}"
    )))
}

#[test]
fn validates_fields_of_route_policies() {
    for (spec, expected) in [
        (", requestBody: {maxSize: 8Mi}, strategy: Overrides", ""),
        (", requestBody: {maxSize: 65536}", ""),
        (", requestBody: {maxSize: 1.5Mi}", "requestBody.maxSize"),
        (", requestBody: {}", "requestBody"),
        (", timeouts: {request: 0s, backendRequest: 1m}", ""),
        (", timeouts: {streamIdle: 1h}", ""),
        (", timeouts: {streamIdle: long}", "timeouts.streamIdle"),
        (", timeouts: {}", "timeouts"),
        (", timeouts: {request: soon}", "timeouts.request"),
        (", retry: {codes: [503], attempts: 3, backoff: 10ms}", ""),
        (", retry: {codes: [200]}", "retry.codes"),
        (", requestHeaders: {set: [{name: a, value: b}]}", ""),
        (
            ", requestHeaders: {set: [{name: \"a b\", value: b}]}",
            "requestHeaders.set",
        ),
        (", responseHeaders: {}", "responseHeaders"),
        (", compression: {}", ""),
        (
            ", compression: {encodings: [br, gzip], contentTypes: [text/*], minSize: 2Ki, level: Best}",
            "",
        ),
        (", compression: {encodings: []}", ""),
        (
            ", compression: {encodings: [deflate]}",
            "compression.encodings",
        ),
        (
            ", compression: {encodings: [br, br]}",
            "compression.encodings",
        ),
        (
            ", compression: {contentTypes: [html]}",
            "compression.contentTypes",
        ),
        (
            ", compression: {contentTypes: []}",
            "compression.contentTypes",
        ),
        (", compression: {minSize: 1.5Ki}", "compression.minSize"),
        (", compression: {level: 9}", "compression.level"),
    ] {
        let found = policy(spec);
        let as_expected = match expected {
            "" => found.is_empty(),
            _ => found.len() == 1 && found[0].contains(expected),
        };
        assert!(as_expected, "{spec}: {found:?}");
    }
}
