//! Warnings about rules that are not protected alike, and about matches that no request meets.

use super::{GATEWAY, SHADOWED, printed};

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

/// A client that leaves out what selects a rule gets another one.
#[test]
fn warns_of_rules_that_clients_need_not_select() {
    let printed_of = |condition: &str, policies: &str| {
        let objects = policies.replacen("{path: {value: /admin}}", condition, 1);
        printed(&format!("{GATEWAY}{objects}"))
    };
    let warning = "warning: HTTPRoute default/app: spec.rules[0] selects by headers or query parameters and is not protected like \
                   spec.rules[1] of HTTPRoute default/app, which gets the same paths without them, and both lead to Service \
                   default/app:80: clients that leave them out pass its policies; protect both rules alike";
    let alike = PROTECTED.replace(", sectionName: admin", "");
    for (condition, expected) in [
        ("{headers: [{name: X-Env, value: beta}]}", true),
        (
            "{path: {value: /a}, headers: [{name: X-Env, value: beta}]}",
            true,
        ),
        ("{queryParams: [{name: env, value: beta}]}", true),
        ("{method: POST}", false),
        ("{headers: [{name: Upgrade, value: websocket}]}", false),
    ] {
        let text = printed_of(condition, PROTECTED);
        assert_eq!(text.contains(warning), expected, "{condition}: {text}");
        let text = printed_of(condition, &alike);
        assert!(!text.contains("is not protected like"), "{text}");
    }
}

#[test]
fn warns_of_conditions_on_headers_that_are_removed() {
    for (name, expected) in [
        ("Connection", true),
        ("Transfer-Encoding", true),
        ("Expect", true),
        ("Upgrade", false),
        ("TE", false),
        ("X-Env", false),
    ] {
        let matches = format!("{{headers: [{{name: {name}, value: a}}]}}");
        let route = SHADOWED.replacen("{path: {type: Exact, value: /login}}", &matches, 1);
        let text = printed(&format!("{GATEWAY}{route}"));
        let lower = name.to_lowercase();
        let warning = format!(
            "warning: HTTPRoute default/narrow: spec.rules[0].matches[0] has a condition on {lower}, which is removed from \
             all requests: it gets no request; remove it, or use Upgrade for the protocol of an upgrade\n"
        );
        assert_eq!(text.contains(&warning), expected, "{text}");
    }
}
