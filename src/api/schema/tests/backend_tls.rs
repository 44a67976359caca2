//! BackendTLSPolicy and BackendTLSOverride, which have the same schema.

use super::{findings, yaml};

#[test]
fn tls_policies_have_the_fields_of_gep_3875() {
    let app = "{group: '', kind: Service, name: app}";
    let of_apps = "{group: '', kind: Service, name: app, namespace: apps}";
    let from = |kind: &str| {
        format!("{{group: '', kind: Service, name: app, from: {{kind: {kind}, name: web}}}}")
    };
    let tls = "validation: {hostname: h, wellKnownCACertificates: System}";
    let rows = [
        (format!("{{targetRefs: [{app}], {tls}}}"), ""),
        (format!("{{targetRefs: [{app}], mode: None}}"), ""),
        (
            format!(
                "{{targetRefs: [{app}, {of_apps}, {}], {tls}}}",
                from("Gateway")
            ),
            "",
        ),
        (
            format!("{{targetRefs: [{app}, {app}], {tls}}}"),
            "must not name one target twice",
        ),
        (
            format!("{{targetRefs: [{of_apps}, {of_apps}], {tls}}}"),
            "must not name one target twice",
        ),
        (
            format!("{{targetRefs: [{app}]}}"),
            "mode TLS needs validation",
        ),
        (
            format!("{{targetRefs: [{app}], mode: None, {tls}}}"),
            "mode None permits nothing but targetRefs",
        ),
        (
            format!("{{targetRefs: [{}], {tls}}}", from("UDPRoute")),
            "other than a UDPRoute",
        ),
        (format!("{{targetRefs: [{app}], mode: Maybe}}"), "spec.mode"),
    ];
    check(&rows);
}

#[test]
fn validation_needs_authorities_pins_or_skip_verify() {
    let app = "{group: '', kind: Service, name: app}";
    let validation =
        |rest: &str| format!("{{targetRefs: [{app}], validation: {{hostname: h, {rest}}}}}");
    let pin = format!("sha256/{}=", "A".repeat(43));
    let san = "{type: Hostname, hostname: h}";
    let rows = [
        (validation("insecureSkipVerify: true"), ""),
        (validation(&format!("pins: [{pin}]")), ""),
        (
            validation(&format!("insecureSkipVerify: true, pins: [{pin}]")),
            "",
        ),
        (
            validation(&format!("wellKnownCACertificates: System, pins: [{pin}]")),
            "",
        ),
        (validation("insecureSkipVerify: false"), "must specify"),
        (
            validation("insecureSkipVerify: true, wellKnownCACertificates: System"),
            "insecureSkipVerify excludes",
        ),
        (
            validation(&format!("pins: [{pin}], subjectAltNames: [{san}]")),
            "subjectAltNames need",
        ),
        (validation("pins: []"), "pins"),
        (validation("pins: [sha256/short=]"), "pins[0]"),
        (
            format!("{{targetRefs: [{app}], validation: {{pins: [{pin}]}}}}"),
            "hostname",
        ),
    ];
    check(&rows);
}

/// Validates each spec as both kinds. A row has a part of the expected finding, or nothing for a valid spec.
fn check(rows: &[(String, &str)]) {
    let found = |kind: &str, version: &str, spec: &str| {
        let text =
            format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}, spec: {spec}}}");
        findings(yaml(&text)).join("; ")
    };
    for (kind, version) in [
        ("BackendTLSOverride", "portcullis.dev/v1alpha1"),
        ("BackendTLSPolicy", "gateway.networking.k8s.io/v1"),
    ] {
        for (spec, expected) in rows {
            let found = found(kind, version, spec);
            let is_expected = found.contains(expected) && found.is_empty() == expected.is_empty();
            assert!(is_expected, "{kind} {spec}: {found}");
        }
    }
}
