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
fn validates_tls_of_client_policies() {
    let both = "TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let rows = [
        ("tls: {alpn: [http/1.1]}", ""),
        ("tls: {}", "should have at least 1 properties"),
        ("tls: {minVersion: '1.1'}", "Unsupported value"),
        ("tls: {alpn: [h3]}", "Unsupported value"),
        ("tls: {alpn: []}", "should have at least 1 items"),
        ("tls: {alpn: [h2, h2]}", "Duplicate value"),
        ("tls: {groups: [X25519MLKEM768, x25519]}", ""),
        (
            "tls: {groups: [X25519MLKEM768]}",
            "groups needs one of TLS 1.2, unless minVersion is 1.3",
        ),
        ("tls: {groups: [X25519MLKEM768], minVersion: '1.3'}", ""),
        ("tls: {groups: [P-256]}", "Unsupported value"),
        (&format!("tls: {{cipherSuites: [{both}]}}"), ""),
        (
            "tls: {cipherSuites: [TLS_AES_128_GCM_SHA256]}",
            "cipherSuites needs a suite of TLS 1.2, unless minVersion is 1.3",
        ),
        (
            "tls: {cipherSuites: [TLS_AES_128_GCM_SHA256], minVersion: '1.3'}",
            "",
        ),
        (
            "tls: {cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}",
            "cipherSuites needs a suite of TLS 1.3",
        ),
    ];
    for kind in ["Gateway", "ListenerSet"] {
        let rows = rows.map(|(sections, expected)| (kind, sections.to_owned(), expected));
        check(&rows);
    }
}

#[test]
fn validates_paths_of_client_policies() {
    for kind in ["Gateway", "ListenerSet"] {
        let rows = [
            ("path: {mergeSlashes: false}", ""),
            ("path: {escapedSlashes: Decode, dotSegments: Normalize}", ""),
            ("path: {escapedSlashes: Unescape}", "Unsupported value"),
            ("path: {dotSegments: Decode}", "Unsupported value"),
            ("path: {mergeSlashes: 'yes'}", "spec.path.mergeSlashes"),
        ];
        let rows = rows.map(|(sections, expected)| (kind, sections.to_owned(), expected));
        check(&rows);
    }
}

#[test]
fn validates_http2_of_client_policies() {
    check(&[
        (
            "Gateway",
            "http2: {maxConcurrentStreams: 0}".to_owned(),
            "greater than or equal to 1",
        ),
        (
            "Gateway",
            "http2: {initialStreamWindow: 1.5Mi}".to_owned(),
            "http2.initialStreamWindow",
        ),
        (
            "Gateway",
            "http2: {initialConnectionWindow: all}".to_owned(),
            "http2.initialConnectionWindow",
        ),
    ]);
}

#[test]
fn validates_http3_of_client_policies() {
    let rows = [
        ("Gateway", "http3: {}", ""),
        (
            "Gateway",
            "http3: {advertisedPort: 65535, maxAge: 8760h}",
            "",
        ),
        (
            "Gateway",
            "http3: {advertisedPort: 0}",
            "greater than or equal to 1",
        ),
        (
            "Gateway",
            "http3: {advertisedPort: 65536}",
            "less than or equal to 65535",
        ),
        ("Gateway", "http3: {maxAge: 999ms}", "must be 1s to 8760h"),
        ("Gateway", "http3: {maxAge: 8761h}", "must be 1s to 8760h"),
        ("Gateway", "http3: {maxAge: soon}", "spec.http3.maxAge"),
        (
            "ListenerSet",
            "http3: {}",
            "only clientIP, tls and path are for them",
        ),
    ];
    check(&rows.map(|(kind, sections, expected)| (kind, sections.to_owned(), expected)));
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
            "only clientIP, tls and path are for them",
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
            "timeouts: {maxConnectionAge: 168h}, connections: {tcpKeepalive: 2h}".to_owned(),
            "",
        ),
        (
            "Gateway",
            "timeouts: {maxConnectionAge: 999ms}".to_owned(),
            "must be 1s to 168h",
        ),
        (
            "Gateway",
            "connections: {tcpKeepalive: 3h}".to_owned(),
            "must be 1s to 2h",
        ),
        (
            "Gateway",
            "headers: {maxBytes: 1}".to_owned(),
            "greater than or equal to 1024",
        ),
        (
            "Gateway",
            "headers: {underscores: Reject, requestID: 'Off', forwarded: []}".to_owned(),
            "",
        ),
        (
            "Gateway",
            "headers: {underscores: Remove}".to_owned(),
            "Unsupported value",
        ),
        (
            "Gateway",
            "headers: {requestID: Client}".to_owned(),
            "Unsupported value",
        ),
        (
            "Gateway",
            "headers: {forwarded: [Via]}".to_owned(),
            "Unsupported value",
        ),
        (
            "Gateway",
            "headers: {forwarded: [Forwarded, Forwarded]}".to_owned(),
            "Duplicate value",
        ),
    ];
    check(&rows);
}
