//! Warnings about rules that are not protected alike.

use super::{GATEWAY, printed};

const PROTECTED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app}
spec:
  parentRefs: [{name: web}]
  rules:
  - {name: admin, matches: [{path: {value: /admin}}], backendRefs: [{name: app, port: 80}]}
  - {backendRefs: [{name: app, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{port: 80}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: admin}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: app, sectionName: admin}]
  ipRules: {allow: [192.0.2.0/24]}
"#;

#[test]
fn warns_of_paths_that_a_backend_may_read_as_protected_ones() {
    let text = printed(&format!("{GATEWAY}{PROTECTED}"));
    let warning = "warning: HTTPRoute default/app: spec.rules[0] is not protected like spec.rules[1] of \
                   HTTPRoute default/app, and both lead to Service default/app:80";
    assert!(text.contains(warning), "{text}");
    let setting = "set path.escapedSlashes: Reject in a ClientPolicy on Gateway default/web";
    assert!(text.contains(setting), "{text}");
    let policy = "---
apiVersion: portcullis.dev/v1alpha1
kind: ClientPolicy
metadata: {name: clients}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  path: {escapedSlashes: Reject}
";
    let text = printed(&format!("{GATEWAY}{PROTECTED}{policy}"));
    assert!(!text.contains("is not protected like"), "{text}");
}

/// A policy that is looser than the one of another rule protects less than that.
#[test]
fn warns_of_rules_that_are_protected_otherwise() {
    let other = |target: &str| {
        format!(
            "---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {{name: other}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]
  ipRules: {{allow: [0.0.0.0/0]}}
"
        )
    };
    let everywhere = other("kind: Gateway, name: web");
    let text = printed(&format!("{GATEWAY}{PROTECTED}{everywhere}"));
    assert!(
        text.contains("spec.rules[0] is not protected like spec.rules[1] of"),
        "{text}"
    );
    // What protects both alike is passed by no path.
    let alike = PROTECTED.replace(", sectionName: admin", "");
    let text = printed(&format!("{GATEWAY}{alike}{everywhere}"));
    assert!(!text.contains("is not protected like"), "{text}");
}

#[test]
fn warns_of_rules_of_a_wildcard() {
    let hosts = |first: &str, second: &str| {
        let rest = "- {backendRefs: [{name: app, port: 80}]}";
        let name = "spec:\n  parentRefs: [{name: web}]\n";
        let own = PROTECTED.replacen(&format!("  {rest}\n"), "", 1);
        let own = own.replacen(name, &format!("{name}  hostnames: ['{first}']\n"), 1);
        let other = format!(
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: rest}}
{name}  hostnames: ['{second}']
  rules:
  {rest}
"
        );
        printed(&format!("{GATEWAY}{own}{other}"))
    };
    let warning = "is not protected like spec.rules[0] of HTTPRoute default/rest";
    for (first, second, expected) in [
        ("a.example.com", "a.example.com", true),
        ("a.example.com", "*.example.com", true),
        // What these share is not protected at all.
        ("*.example.com", "a.example.com", false),
        ("a.example.com", "b.example.com", false),
        ("a.example.com", "*.example.org", false),
    ] {
        let text = hosts(first, second);
        assert_eq!(text.contains(warning), expected, "{first} {second}: {text}");
    }
}
