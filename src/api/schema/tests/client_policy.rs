//! Schema of ClientPolicy.

use super::{findings, yaml};

fn policy(kind: &str, sections: &str) -> Vec<String> {
    let target = format!("{{group: gateway.networking.k8s.io, kind: {kind}, name: web}}");
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: ClientPolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}], {sections}}}}}"
    )))
}

#[track_caller]
fn check(rows: &[(&str, String, &str)]) {
    for (kind, sections, expected) in rows {
        let found = policy(kind, sections);
        match *expected {
            "" => assert!(found.is_empty(), "{kind} {sections}: {found:?}"),
            _ => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{kind} {sections}: {found:?}"
            ),
        }
    }
}

#[test]
fn validates_targets_and_addresses_of_client_policies() {
    let trusted = "trustedCIDRs: [10.0.0.0/8]";
    let hops = "clientIP: {xForwardedFor: {trustedHops: 1}}";
    let rows = [
        ("Gateway", hops.to_owned(), ""),
        ("ListenerSet", hops.to_owned(), ""),
        ("ListenerSet", "clientIP: {}".to_owned(), ""),
        (
            "Gateway",
            format!("proxyProtocol: {{mode: Required, {trusted}}}, strategy: Overrides"),
            "",
        ),
        ("Gateway", "proxyProtocol: {mode: 'Off'}".to_owned(), ""),
        (
            "Gateway",
            format!("clientIP: {{header: {{name: X-Real-IP, {trusted}}}}}"),
            "",
        ),
        ("HTTPRoute", hops.to_owned(), "Unsupported value"),
        (
            "Gateway",
            "strategy: Defaults".to_owned(),
            "a ClientPolicy needs a section",
        ),
        (
            "Gateway",
            format!("clientIP: {{xForwardedFor: {{trustedHops: 1, {trusted}}}}}"),
            "xForwardedFor needs trustedHops or trustedCIDRs, and not both",
        ),
        (
            "Gateway",
            "clientIP: {xForwardedFor: {}}".to_owned(),
            "xForwardedFor needs trustedHops or trustedCIDRs, and not both",
        ),
        (
            "Gateway",
            format!("clientIP: {{xForwardedFor: {{{trusted}}}, header: {{name: a, {trusted}}}}}"),
            "clientIP has xForwardedFor or header, and not both",
        ),
        (
            "Gateway",
            "clientIP: {header: {name: a}}".to_owned(),
            "spec.clientIP.header.trustedCIDRs",
        ),
        (
            "Gateway",
            format!("clientIP: {{header: {{name: 'a b', {trusted}}}}}"),
            "spec.clientIP.header.name",
        ),
    ];
    check(&rows);
}

#[test]
fn validates_connections_of_client_policies() {
    let trusted = "trustedCIDRs: [10.0.0.0/8]";
    let rows = [
        (
            "Gateway",
            "proxyProtocol: {mode: Required}".to_owned(),
            "trustedCIDRs are for Optional and Required, which need them",
        ),
        (
            "Gateway",
            format!("proxyProtocol: {{mode: 'Off', {trusted}}}"),
            "trustedCIDRs are for Optional and Required, which need them",
        ),
        (
            "ListenerSet",
            "timeouts: {idle: 1m}".to_owned(),
            "only clientIP is for them",
        ),
        (
            "Gateway",
            "timeouts: {}".to_owned(),
            "should have at least 1 properties",
        ),
        (
            "Gateway",
            "timeouts: {idle: soon}".to_owned(),
            "spec.timeouts.idle",
        ),
        (
            "Gateway",
            "headers: {maxBytes: 1}".to_owned(),
            "greater than or equal to 1024",
        ),
        (
            "Gateway",
            "http2: {maxConcurrentStreams: 0}".to_owned(),
            "greater than or equal to 1",
        ),
    ];
    check(&rows);
}
