//! Schema of AccessPolicy, and what inherited policies have in common.

use super::{findings, yaml};

fn policy(spec: &str) -> Vec<String> {
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: AccessPolicy, metadata: {{name: a}}, spec: {spec}}}"
    )))
}

fn on(targets: &str, rest: &str) -> Vec<String> {
    policy(&format!("{{targetRefs: [{targets}], {rest}}}"))
}

const GROUP: &str = "group: gateway.networking.k8s.io";

#[test]
fn validates_fields_of_access_policies() {
    let gateway = &format!("{{{GROUP}, kind: Gateway, name: web}}");
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let listener = &format!("{{{GROUP}, kind: Gateway, name: web, sectionName: http}}");
    let service = &"{group: '', kind: Service, name: web}".to_owned();
    let rules = "ipRules: {deny: [10.0.0.0/8, '2001:db8::1']}";
    let locked = &format!("strategy: Overrides, {rules}");
    let rows = [
        (gateway, rules, ""),
        (&format!("{gateway}, {listener}"), rules, ""),
        (gateway, locked, ""),
        (route, rules, ""),
        (&String::new(), rules, "should have at least 1 items"),
        (
            service,
            rules,
            "spec.targetRefs[0].group: Unsupported value",
        ),
        (
            &format!("{gateway}, {gateway}"),
            rules,
            "targetRefs must be distinct",
        ),
        (
            route,
            locked,
            "strategy Overrides is for Gateways and ListenerSets",
        ),
        (
            gateway,
            "strategy: Defaults",
            "an AccessPolicy needs ipRules, basic, apiKey, jwt, require or authorization",
        ),
        (gateway, "ipRules: {}", "ipRules need allow or deny"),
        (
            gateway,
            "ipRules: {allow: []}",
            "should have at least 1 items",
        ),
        (
            gateway,
            "ipRules: {allow: [example.com]}",
            "spec.ipRules.allow[0]: Invalid value",
        ),
    ];
    check(&rows);
}

/// Checks the findings of targets with a spec.
fn check(rows: &[(&String, &str, &str)]) {
    for (targets, rest, expected) in rows.iter().copied() {
        let found = on(targets, rest);
        match expected {
            "" => assert!(found.is_empty(), "{targets} {rest}: {found:?}"),
            _ => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{targets} {rest}: {found:?}"
            ),
        }
    }
}

#[test]
fn validates_credentials_and_rules_of_access_policies() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let tcp_route = &format!("{{{GROUP}, kind: TCPRoute, name: web}}");
    let keys = "apiKey: {secretRefs: [{name: keys}], from: [{type: Query, name: key}]}";
    let rules = "ipRules: {deny: [10.0.0.0/8]}";
    let rows = [
        (route, "basic: {secretRef: {name: users}}", ""),
        (route, "basic: {}", "spec.basic.secretRef: Required value"),
        (
            route,
            "basic: {secretRef: {kind: ConfigMap, name: users}}",
            "spec.basic.secretRef.kind: Unsupported value",
        ),
        (route, keys, ""),
        (
            route,
            "apiKey: {secretRefs: [{name: keys}], from: [{type: Body, name: key}]}",
            "spec.apiKey.from[0].type: Unsupported value",
        ),
        (route, "require: Any", ""),
        (route, "require: Some", "spec.require: Unsupported value"),
        (
            tcp_route,
            "require: Any",
            "basic, apiKey, jwt, require and authorization are for requests",
        ),
        (tcp_route, rules, ""),
        (route, "authorization: {default: Allow}", ""),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny}]}",
            "",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Audit}]}",
            "spec.authorization.rules[0].action: Unsupported value",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny, match: {}}]}",
            "should have at least 1 properties",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny, match: {methods: [get]}}]}",
            "match.methods[0]: Unsupported value",
        ),
    ];
    check(&rows);
}
