//! Validates objects that an API server accepts or refuses, with schemas and CEL rules.

mod access_policy;
mod backend_policy;
mod backend_tls;
mod client_policy;
mod cors;
mod gateway_parameters;
mod inference_pool;
mod rate_limit_policy;
mod release_backend;
mod remembered;
mod route_filter;
mod route_policy;
mod telemetry_policy;
mod traffic_policy;

use std::time::Instant;

use serde_json::{Value, json};

use super::cel;
use super::faulty::Faulty;
use super::node::{Node, Schema};
use super::path::Path;
use crate::api::{Admission, Kind, Object, admit};
use crate::finding::Severity;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("test YAML parses")
}

/// The findings of an object as `severity field: message`.
fn findings(value: Value) -> Vec<String> {
    let Admission { findings, .. } = admit(value);
    findings
        .iter()
        .map(|finding| {
            format!(
                "{} {}: {}",
                finding.severity, finding.field, finding.message
            )
        })
        .collect()
}

fn route(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "route"},
    });
    object["spec"] = spec;
    object
}

fn gateway(listeners: Value) -> Value {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "gateway"},
        "spec": {"gatewayClassName": "portcullis"},
    });
    object["spec"]["listeners"] = listeners;
    object
}

#[test]
fn defaults_are_filled_in() {
    let admission = admit(route(json!({
        "parentRefs": [{"name": "gateway"}],
        "rules": [{"backendRefs": [{"name": "service", "port": 80}]}],
    })));
    assert!(admission.findings.is_empty(), "{:?}", admission.findings);
    let Some(Object::HttpRoute(route)) = admission.object else {
        panic!("not a route")
    };
    assert_eq!(route.metadata.namespace, "default");
    assert_eq!(route.spec.parent_refs[0].kind, "Gateway");
    let rule = &route.spec.rules[0];
    assert_eq!(
        rule.matches[0]
            .path
            .as_ref()
            .and_then(|path| path.value.as_deref()),
        Some("/")
    );
    assert_eq!(rule.backend_refs[0].weight, 1);
    assert_eq!(rule.backend_refs[0].kind, "Service");
}

#[test]
fn null_is_replaced_by_default() {
    let admission = admit(route(json!({"rules": null, "hostnames": null})));
    let Some(Object::HttpRoute(route)) = admission.object else {
        panic!("{:?}", admission.findings)
    };
    assert_eq!(route.spec.rules.len(), 1);
}

#[test]
fn all_violations_are_reported_at_once() {
    let found = findings(gateway(json!([
        {"name": "A b", "port": 70000, "protocol": "HTTP", "hostname": "UPPER"},
        {"name": "ok", "port": "80", "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Everywhere"}}},
    ])));
    assert_eq!(
        found,
        [
            "error spec.listeners[0].hostname: Invalid value: \"UPPER\": should match \
             '^(\\*\\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'; write it in lower case: upper",
            "error spec.listeners[0].name: Invalid value: \"A b\": should match \
             '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'",
            "error spec.listeners[0].port: Invalid value: 70000: should be less than or equal to 65535",
            "error spec.listeners[1].allowedRoutes.namespaces.from: Unsupported value: \"Everywhere\": \
             supported values: \"All\", \"Selector\", \"Same\"",
            "error spec.listeners[1].port: Invalid value: \"string\": must be of type integer; write 80 without quotes",
        ]
    );
}

#[test]
fn lengths_count_code_points() {
    let with = |length| {
        findings(route(
            json!({"rules": [{"matches": [{"headers": [{"name": "x", "value": "é".repeat(length)}]}]}]}),
        ))
    };
    let too_long = "error spec.rules[0].matches[0].headers[0].value: Too long: may not be more than 4096 bytes";
    assert!(!with(4096).iter().any(|finding| finding == too_long));
    assert!(with(4097).iter().any(|finding| finding == too_long));
}

#[test]
fn limits_number_of_items() {
    let rule = json!({"backendRefs": [{"name": "service", "port": 80}]});
    assert_eq!(
        findings(route(json!({"rules": vec![rule; 17]}))),
        ["error spec.rules: Too many: 17: must have at most 16 items"]
    );
    assert_eq!(
        findings(gateway(json!([]))),
        ["error spec.listeners: Invalid value: 0: should have at least 1 items"]
    );
}

#[test]
fn rejects_duplicate_list_map_keys() {
    let listener = json!({"name": "http", "port": 80, "protocol": "HTTP"});
    assert_eq!(
        findings(gateway(json!([listener, listener]))),
        ["error spec.listeners: Duplicate value: {\"name\":\"http\"}"]
    );
}

#[test]
fn reports_missing_required_fields() {
    assert_eq!(
        findings(gateway(json!([{"name": "http"}]))),
        [
            "error spec.listeners[0].port: Required value",
            "error spec.listeners[0].protocol: Required value"
        ]
    );
}

#[test]
fn unknown_fields_are_errors_that_name_similar_fields() {
    let admission = admit(route(
        json!({"rules": [{"backends": [1], "name": "a"}], "parent": {"a": 1}}),
    ));
    assert!(admission.object.is_none());
    let found: Vec<_> = admission
        .findings
        .iter()
        .map(|f| (f.severity, f.field.as_str(), f.message.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                Severity::Error,
                "spec.parent",
                "unknown field; did you mean parentRefs?"
            ),
            (
                Severity::Error,
                "spec.rules[0].backends",
                "unknown field; did you mean backendRefs?"
            ),
        ]
    );
}

#[test]
fn metadata_name_must_be_a_dns_name() {
    let mut value = route(json!({}));
    value["metadata"] = json!({"name": "Bad_Name", "namespace": "a.b", "labels": {"-": "x"}});
    let fields: Vec<_> = admit(value)
        .findings
        .into_iter()
        .map(|finding| finding.field)
        .collect();
    assert_eq!(
        fields,
        ["metadata.labels[-]", "metadata.name", "metadata.namespace"]
    );
    let mut value = route(json!({}));
    value["metadata"] = json!({"labels": {}});
    assert_eq!(findings(value), ["error metadata.name: Required value"]);
}

#[test]
fn validates_address_union() {
    let mut value = gateway(json!([{"name": "http", "port": 80, "protocol": "HTTP"}]));
    value["spec"]["addresses"] =
        json!([{"value": "10.0.0.1"}, {"value": "::1"}, {"type": "IPAddress", "value": "x"}]);
    let found = findings(value);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(
        "error spec.addresses[2]: Invalid value: \"object\": must validate one and only one"
    ));
}

#[test]
fn violated_cel_rules_report_their_message() {
    let found = findings(route(json!({"rules": [{
        "matches": [{"path": {"type": "PathPrefix", "value": "no//slash"}}],
        "filters": [
            {"type": "RequestRedirect", "requestRedirect": {"path": {"type": "ReplacePrefixMatch"}}},
            {"type": "URLRewrite"},
        ],
        "backendRefs": [{"name": "service"}],
        "timeouts": {"request": "1s", "backendRequest": "2s"},
    }]})));
    let expected = [
        "spec.rules[0]: RequestRedirect filter must not be used together with backendRefs",
        "spec.rules[0].backendRefs[0]: Must have port for Service reference",
        "spec.rules[0].filters: May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite, but not both",
        "spec.rules[0].filters[0].requestRedirect.path: replacePrefixMatch must be specified when type is set to \
         'ReplacePrefixMatch'",
        "spec.rules[0].filters[1]: filter.urlRewrite must be specified for URLRewrite filter.type",
        "spec.rules[0].matches[0].path: value must be an absolute path and start with '/' when type one of \
         ['Exact', 'PathPrefix']",
        "spec.rules[0].matches[0].path: must not contain '//' when type one of ['Exact', 'PathPrefix']",
        "spec.rules[0].timeouts: backendRequest timeout cannot be longer than request timeout",
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|line| format!("error {line}"))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn rules_of_other_values_are_evaluated_after_an_error() {
    let mut value = route(json!({"hostnaems": ["a.example.com"], "rules": [
        {"matches": [
            {"path": {"type": "PathPrefix", "value": "no//slash"}},
            {"path": {"type": "PathPrefix", "value": 1}},
        ]},
        {"backendRefs": [{"name": "service"}], "filters": [{"type": "URLRewrite"}, {"type": "Rewrite"}]},
    ]}));
    value["metadata"]["labels"] = json!({"-": "x"});
    let found = findings(value);
    let fields: Vec<_> = found
        .iter()
        .map(|it| it.trim_start_matches("error ").split(": ").next().unwrap())
        .collect();
    let expected = [
        "metadata.labels[-]",
        "spec.hostnaems",
        "spec.rules[0].matches[1].path.value",
        "spec.rules[1].filters[1].type",
        "spec.rules[0].matches[0].path",
        "spec.rules[0].matches[0].path",
        "spec.rules[1].backendRefs[0]",
        "spec.rules[1].filters[0]",
    ];
    assert_eq!(fields, expected, "{found:#?}");
}

#[test]
fn rules_of_a_list_that_is_too_long_are_not_evaluated() {
    let rule = json!({"backendRefs": [{"name": "service"}]});
    assert_eq!(
        findings(route(json!({"rules": vec![rule; 17]}))),
        ["error spec.rules: Too many: 17: must have at most 16 items"]
    );
}

#[test]
fn cel_rules_can_refer_to_reserved_names() {
    let parents =
        |first: Value, second: Value| findings(route(json!({"parentRefs": [first, second]})));
    let at = |namespace: &str| json!({"name": "gateway", "namespace": namespace});
    assert!(parents(at("a"), at("b")).is_empty());
    let found = parents(at("a"), at("a"));
    assert_eq!(
        found,
        [
            "error spec.parentRefs: sectionName or port must be unique when parentRefs includes 2 or more references to \
          the same parent"
        ]
    );
    let section = |name: &str| json!({"name": "gateway", "sectionName": name});
    assert!(parents(section("a"), section("b")).is_empty());
    assert_eq!(parents(section("a"), json!({"name": "gateway"})).len(), 1);
}

#[test]
fn evaluation_error_names_the_rule() {
    let listener = |tls: Value| {
        findings(gateway(
            json!([{"name": "a", "port": 443, "protocol": "HTTPS", "tls": tls}]),
        ))
    };
    assert!(listener(json!({"certificateRefs": [{"name": "cert"}]})).is_empty());
    assert!(listener(json!({"options": {"example.com/certificate": "x"}})).is_empty());
    let found = listener(json!({}));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("error spec.listeners[0].tls: No such key"),
        "{found:?}"
    );
    assert!(
        found[0].ends_with("certificateRefs or options must be specified when mode is Terminate"),
        "{found:?}"
    );
}

#[test]
fn evaluates_kubernetes_functions() {
    let hostname = |name: &str| {
        findings(yaml(&format!(
            "{{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {{name: a}}, spec: {{hostnames: \
             [{name:?}], rules: [{{backendRefs: [{{name: s, port: 1}}]}}]}}}}"
        )))
    };
    assert_eq!(hostname("a.example"), [""; 0]);
    assert_eq!(hostname("*.example"), [""; 0]);
    assert_eq!(
        hostname("10.0.0.1"),
        ["error spec.hostnames: Hostnames cannot contain an IP"]
    );
}

#[test]
fn validates_core_kinds() {
    let service = |spec: &str| {
        findings(yaml(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {spec}}}"
        )))
    };
    assert_eq!(service("{ports: [{port: 80}]}"), [""; 0]);
    assert_eq!(service("{clusterIP: None}"), [""; 0]);
    assert_eq!(service("{}").len(), 1);
    assert_eq!(service("{ports: [{port: 0}]}").len(), 1);
    assert_eq!(
        service("{ports: [{port: 80}, {port: 81}]}"),
        ["error spec.ports: name is required when there is more than one port"]
    );
    let secret = |rest: &str| {
        findings(yaml(&format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: s}}, {rest}}}"
        )))
    };
    assert_eq!(secret("data: {a: YQ==}"), [""; 0]);
    assert_eq!(
        secret("data: {a: '-----BEGIN PRIVATE KEY-----'}"),
        [
            "error data[a]: Invalid value: must be of format byte; write text that is not in Base64 in stringData of a Secret, \
             or in data of a ConfigMap"
        ]
    );
    assert_eq!(
        secret("type: kubernetes.io/tls, data: {tls.crt: YQ==}").len(),
        1
    );
    assert_eq!(
        secret("type: kubernetes.io/tls, data: {tls.crt: YQ==}, stringData: {tls.key: x}"),
        [""; 0]
    );
    let slice = |rest: &str| {
        findings(yaml(&format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: s}}, {rest}}}"
        )))
    };
    assert_eq!(
        slice("addressType: IPv4, endpoints: [{addresses: [127.0.0.1]}], ports: [{port: 80}]"),
        [""; 0]
    );
    assert_eq!(
        slice("addressType: IPv6, endpoints: [{addresses: [127.0.0.1]}]").len(),
        1
    );
    assert_eq!(slice("addressType: DNS").len(), 1);
    let config_map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {a: b}, binaryData: {a: YQ==}}";
    assert_eq!(findings(yaml(config_map)).len(), 1);
}

/// Valid objects of each kind, which together evaluate as many rules as possible.
const REPRESENTATIVE: &str = include_str!("tests.yaml");

#[test]
fn every_rule_compiles() {
    for kind in Kind::all() {
        let schema =
            Schema::parse(kind.schema).unwrap_or_else(|error| panic!("{}: {error}", kind.kind));
        for node in schema.nodes() {
            node.rules.iter().for_each(|rule| rule.assert_compiles());
            if let Some(pattern) = &node.pattern {
                assert!(
                    pattern.is_match("").is_some(),
                    "{} is no expression",
                    pattern.source()
                );
            }
        }
    }
}

#[test]
fn every_rule_is_evaluated_without_error() {
    let mut kinds = std::collections::BTreeSet::new();
    for value in serde_saphyr::from_multiple::<Value>(REPRESENTATIVE).expect("parses") {
        kinds.insert(value["kind"].as_str().unwrap_or_default().to_owned());
        let admission = admit(value.clone());
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
    }
    assert_eq!(
        kinds,
        Kind::all()
            .iter()
            .map(|kind| kind.kind.to_owned())
            .collect()
    );
    for kind in Kind::all() {
        let schema = super::of_kind(kind).expect("parses");
        for rule in schema.nodes().iter().flat_map(|node| node.rules.iter()) {
            assert!(
                rule.was_evaluated(),
                "{}: no object reaches {}",
                kind.kind,
                rule.text()
            );
        }
    }
}

#[test]
fn rules_and_members_of_unknown_shape_cause_no_panic() {
    let node = Node::default();
    let schema = Schema::parse("{\"defs\":[]}").expect("parses");
    let value = json!({"a": [1, null, {"b": 1.5}]});
    let mut found = Vec::new();
    let mut rules = cel::Evaluation {
        schema: &schema,
        faulty: &Faulty::default(),
        findings: &mut found,
    };
    rules.check(&node, &value, &mut Path::default());
    assert!(found.is_empty());
}

/// Prints the time to validate a route: `cargo test --release --lib validation_speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn validation_speed() {
    let routes: Vec<_> = (0..5000)
        .map(|number| {
            let mut route = route(json!({
                "parentRefs": [{"name": "gateway"}],
                "hostnames": [format!("host-{number}.example.com")],
                "rules": [{
                    "matches": [{"path": {"type": "PathPrefix", "value": format!("/path/{number}")}}],
                    "backendRefs": [{"name": "service", "port": 80}],
                }],
            }));
            route["metadata"]["name"] = json!(format!("route-{number}"));
            route
        })
        .collect();
    let resident = || std::fs::read_to_string("/proc/self/statm").expect("Linux");
    println!("pages before: {}", resident());
    let start = Instant::now();
    admit(routes[0].clone());
    println!("first: {:?}, pages {}", start.elapsed(), resident());
    let start = Instant::now();
    let valid = routes
        .into_iter()
        .map(admit)
        .filter(|admission| admission.object.is_some())
        .count();
    println!("{valid} routes: {:?}", start.elapsed());
}
