//! Schema of RateLimitPolicy.

use super::{findings, yaml};

fn policy(rule: &str, rest: &str) -> Vec<String> {
    let target = "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: web}";
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: RateLimitPolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}], rules: [{rule}]{rest}}}}}"
    )))
}

#[test]
fn validates_fields_of_rate_limit_policies() {
    let rate = "limit: {requests: 1, per: Day}";
    let keyed = |key: &str| format!("{{name: a, {rate}, key: [{key}]}}");
    let rows = [
        (format!("{{name: a, {rate}, concurrent: 1}}"), "", ""),
        (
            keyed("{type: ClientIP, v6Prefix: 48}, {type: Cookie, name: a}"),
            "",
            "",
        ),
        (
            format!("{{name: a, {rate}}}"),
            ", response: {status: 503, headers: Draft}",
            "",
        ),
        (String::new(), "", "should have at least 1 items"),
        (
            "{name: a}".to_owned(),
            "",
            "a rule needs limit or concurrent",
        ),
        (
            format!("{{name: a, {rate}}}, {{name: a, {rate}}}"),
            "",
            "Duplicate value",
        ),
        (keyed("{type: Header}"), "", "name is for Header and Cookie"),
        (
            keyed("{type: Hostname, name: a}"),
            "",
            "name is for Header and Cookie",
        ),
        (
            keyed("{type: Hostname, v4Prefix: 8}"),
            "",
            "v4Prefix and v6Prefix are for ClientIP",
        ),
        (
            keyed("{type: ClientIP, v4Prefix: 33}"),
            "",
            "less than or equal to 32",
        ),
        (
            "{name: a, limit: {requests: 0, per: Day}}".to_owned(),
            "",
            "greater than or equal to 1",
        ),
        (
            "{name: a, limit: {requests: 1, per: Year}}".to_owned(),
            "",
            "Unsupported value",
        ),
        (
            format!("{{name: a, {rate}, mode: Off}}"),
            "",
            "spec.rules[0].mode",
        ),
        (
            format!("{{name: a, {rate}}}"),
            ", response: {status: 200}",
            "greater than or equal to 400",
        ),
        (
            format!("{{name: a, {rate}}}"),
            ", strategy: Overrides",
            "strategy Overrides is for Gateways and ListenerSets",
        ),
    ];
    for (rule, rest, expected) in rows {
        let found = policy(&rule, rest);
        match expected {
            "" => assert!(found.is_empty(), "{rule} {rest}: {found:?}"),
            _ => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{rule} {rest}: {found:?}"
            ),
        }
    }
}

#[test]
fn validates_conditions_of_rate_limit_policies() {
    for (condition, expected) in [
        ("{path: {value: /a}, method: GET}", ""),
        ("{headers: [{name: a, value: b}]}", ""),
        ("{path: {type: RegularExpression}}", "Unsupported value"),
        ("{path: {value: a}}", "match.path.value: Invalid value"),
        ("{method: get}", "Unsupported value"),
        ("{}", "should have at least 1 properties"),
    ] {
        let rule = format!("{{name: a, concurrent: 1, match: {condition}}}");
        let found = policy(&rule, "");
        let is_expected = found.iter().any(|it| it.contains(expected));
        assert_eq!(
            found.is_empty(),
            expected.is_empty(),
            "{condition}: {found:?}"
        );
        assert!(found.is_empty() || is_expected, "{condition}: {found:?}");
    }
}
