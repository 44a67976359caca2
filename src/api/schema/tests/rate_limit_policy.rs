//! Schema of RateLimitPolicy.

use super::{findings, yaml};

const RATE: &str = "limit: {requests: 1, per: Day}";

fn policy(rule: &str, rest: &str) -> Vec<String> {
    let target = "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: web}";
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: RateLimitPolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}], rules: [{rule}]{rest}}}}}"
    )))
}

/// Checks that a policy with these rules, and what follows them, has this finding; none if it is empty.
fn assert_finding(rules: &str, rest: &str, expected: &str) {
    let found = policy(rules, rest);
    match expected {
        "" => assert!(found.is_empty(), "{rules} {rest}: {found:?}"),
        _ => assert!(
            found.iter().any(|it| it.contains(expected)),
            "{rules} {rest}: {found:?}"
        ),
    }
}

#[test]
fn validates_fields_of_rate_limit_policies() {
    let one = format!("{{name: a, {RATE}}}");
    let twice = format!("{one}, {one}");
    let concurrent = format!("{{name: a, {RATE}, concurrent: 1}}");
    let off = format!("{{name: a, {RATE}, mode: Off}}");
    let of_gateway = format!("{{name: a, {RATE}, scope: Gateway}}");
    let both = format!("{{name: a, {RATE}, concurrent: 1, scope: Gateway}}");
    let rows = [
        (&*concurrent, "", ""),
        (&one, ", response: {status: 503, headers: Draft}", ""),
        ("", "", "should have at least 1 items"),
        ("{name: a}", "", "a rule needs limit or concurrent"),
        (&twice, "", "Duplicate value"),
        (
            "{name: a, limit: {requests: 0, per: Day}}",
            "",
            "greater than or equal to 1",
        ),
        (
            "{name: a, limit: {requests: 1, per: Year}}",
            "",
            "Unsupported value",
        ),
        (&off, "", "spec.rules[0].mode"),
        (&of_gateway, "", ""),
        (&both, "", "concurrent is counted per replica"),
        (
            &one,
            ", response: {status: 200}",
            "greater than or equal to 400",
        ),
        (
            &one,
            ", strategy: Overrides",
            "strategy Overrides is for Gateways and ListenerSets",
        ),
    ];
    for (rules, rest, expected) in rows {
        assert_finding(rules, rest, expected);
    }
}

#[test]
fn validates_keys_of_rate_limit_policies() {
    let name = "name is for Header, Cookie and Claim";
    for (key, expected) in [
        (
            "{type: ClientIP, v6Prefix: 48}, {type: Cookie, name: a}",
            "",
        ),
        ("{type: Client}, {type: Claim, name: tenant}", ""),
        ("{type: Header}", name),
        ("{type: Claim}", name),
        ("{type: Client, name: a}", name),
        ("{type: Hostname, name: a}", name),
        (
            "{type: Hostname, v4Prefix: 8}",
            "v4Prefix and v6Prefix are for ClientIP",
        ),
        ("{type: ClientIP, v4Prefix: 33}", "less than or equal to 32"),
    ] {
        let rule = format!("{{name: a, {RATE}, key: [{key}]}}");
        assert_finding(&rule, "", expected);
    }
}

#[test]
fn validates_costs_of_rate_limit_policies() {
    let large = "limit: {requests: 1000001, per: Day}";
    let burst = "limit: {requests: 1, per: Day, burst: 1000001}";
    let too_many = "more than 1000000 requests";
    for (rule, expected) in [
        (format!("{RATE}, cost: {{type: Request}}"), ""),
        (
            format!("{RATE}, cost: {{type: ResponseHeader, name: X-Cost}}"),
            "",
        ),
        (format!("{large}, cost: {{type: ResponseBytes}}"), ""),
        (format!("{burst}, cost: {{type: RequestBytes}}"), ""),
        (large.to_owned(), too_many),
        (format!("{large}, cost: {{type: Request}}"), too_many),
        (burst.to_owned(), too_many),
        (
            format!("{RATE}, cost: {{type: Bytes}}"),
            "Unsupported value",
        ),
        (
            format!("{RATE}, cost: {{type: ResponseHeader}}"),
            "name is for ResponseHeader",
        ),
        (
            format!("{RATE}, cost: {{type: RequestBytes, name: a}}"),
            "name is for ResponseHeader",
        ),
        (
            "concurrent: 1, cost: {type: RequestBytes}".to_owned(),
            "cost is for limit",
        ),
    ] {
        assert_finding(&format!("{{name: a, {rule}}}"), "", expected);
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
