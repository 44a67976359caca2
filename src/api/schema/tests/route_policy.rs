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
        (", requestBody: {buffer: {limit: 64Ki}}", ""),
        (", requestBody: {buffer: {}}", "requestBody.buffer"),
        (
            ", requestBody: {buffer: {limit: 1.5Ki}}",
            "requestBody.buffer.limit",
        ),
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

#[test]
fn validates_error_pages() {
    let page = "configMapRef: {name: a, keys: [{key: b, mediaType: text/html}]}";
    let of = |keys: &str| format!("codes: [404], configMapRef: {{name: a, keys: [{keys}]}}");
    let server = |text: &str| format!("codes: [404], backendRef: {{{text}}}");
    for (entry, expected) in [
        (format!("codes: [404, 503], {page}"), ""),
        (
            format!("codes: [404], source: Any, keepStatus: false, {page}"),
            "",
        ),
        (format!("codes: [], {page}"), "codes"),
        (format!("codes: [302], {page}"), "codes"),
        (format!("codes: [404, 404], {page}"), "codes"),
        (format!("codes: [404], source: Filter, {page}"), "source"),
        ("codes: [404]".to_owned(), "exactly one of"),
        (server("name: a, port: 80"), ""),
        (server("name: a, port: 80, namespace: b"), ""),
        (
            server("name: a, kind: XBackend, group: gateway.networking.x-k8s.io"),
            "",
        ),
        (server("name: a"), "Must have port"),
        (server("name: a, port: 0"), "port"),
        (
            format!("codes: [404], {page}, backendRef: {{name: a, port: 80}}"),
            "exactly one of",
        ),
        ("codes: [404], configMapRef: {name: a}".to_owned(), "keys"),
        (of(""), "keys"),
        (of("{key: b/c, mediaType: text/html}"), "keys[0].key"),
        (of("{key: b, mediaType: text/*}"), "mediaType"),
        (
            of("{key: b, mediaType: a/b}, {key: c, mediaType: a/b}"),
            "keys",
        ),
    ] {
        let found = policy(&format!(", errorPages: [{{{entry}}}]"));
        let as_expected = match expected {
            "" => found.is_empty(),
            _ => found.len() == 1 && found[0].contains(expected),
        };
        assert!(as_expected, "{entry}: {found:?}");
    }
}
