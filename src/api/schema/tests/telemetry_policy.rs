//! Schema of TelemetryPolicy.

use super::{findings, yaml};

/// Checks that a policy with this `accessLog` has this finding; none if it is empty.
fn assert_finding(access_log: &str, expected: &str) {
    let target = "{group: gateway.networking.k8s.io, kind: Gateway, name: web}";
    let found = findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: TelemetryPolicy, metadata: {{name: a}}, \
         spec: {{targetRefs: [{target}], accessLog: {access_log}}}}}"
    )));
    match expected {
        "" => assert!(found.is_empty(), "{access_log}: {found:?}"),
        _ => assert!(
            found.iter().any(|it| it.contains(expected)),
            "{access_log}: {found:?}"
        ),
    }
}

#[test]
fn validates_the_filter_of_the_access_log() {
    for (filter, expected) in [
        ("{}", ""),
        (
            "{minStatus: 400, minDuration: 1s, sample: {numerator: 1}}",
            "",
        ),
        ("{minStatus: 99}", "greater than or equal to 100"),
        ("{minStatus: 600}", "less than or equal to 599"),
        ("{minDuration: 1d}", "minDuration"),
        (
            "{sample: {numerator: 2, denominator: 1}}",
            "numerator must be less than or equal to denominator",
        ),
        ("{sample: {denominator: 1}}", "sample.numerator"),
    ] {
        assert_finding(&format!("{{filter: {filter}}}"), expected);
    }
}

#[test]
fn validates_the_fields_of_the_access_log() {
    for (fields, expected) in [
        ("{}", ""),
        ("{omit: [client, user_agent]}", ""),
        ("{omit: [time]}", "Unsupported value"),
        ("{omit: [request_id]}", "Unsupported value"),
        ("{omit: [query]}", "Unsupported value"),
        ("{omit: [client, client]}", "Duplicate value"),
    ] {
        assert_finding(&format!("{{fields: {fields}}}"), expected);
    }
    let of_header = "headerName is for the types Header and ResponseHeader";
    let of_literal = "literalValue is for type Literal";
    let secret = "must not be that of a header with credentials";
    for (field, expected) in [
        ("{name: a.b-c_1, type: Header, headerName: X-Tenant}", ""),
        ("{name: a, type: ResponseHeader, headerName: server}", ""),
        ("{name: a, type: Literal, literalValue: eu}", ""),
        ("{name: 1a, type: Literal, literalValue: eu}", "name"),
        (
            "{name: path, type: Literal, literalValue: eu}",
            "name must not be that of a known field",
        ),
        (
            "{name: time, type: Literal, literalValue: eu}",
            "name must not be that of a known field",
        ),
        ("{name: a, type: Header}", of_header),
        (
            "{name: a, type: ResponseHeader, literalValue: a}",
            of_header,
        ),
        ("{name: a, type: Literal, headerName: b}", of_literal),
        ("{name: a, type: Cookie}", "Unsupported value"),
        ("{name: a, type: Header, headerName: Cookie}", secret),
        ("{name: a, type: Header, headerName: X-API-Key}", secret),
        (
            "{name: a, type: ResponseHeader, headerName: Set-Cookie}",
            secret,
        ),
        (
            "{name: a, type: Header, headerName: Proxy-Authorization}",
            secret,
        ),
    ] {
        assert_finding(&format!("{{fields: {{add: [{field}]}}}}"), expected);
    }
    let one = "{name: a, type: Literal, literalValue: eu}";
    let twice = format!("{{fields: {{add: [{one}, {one}]}}}}");
    assert_finding(&twice, "Duplicate value");
}
