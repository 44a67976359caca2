//! Former shapes: the message for each, and the released shape in it.

use serde_json::Value;

use crate::api::admit;
use crate::finding::Severity;

const ROUTE: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: a}\n";
const GATEWAY: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: a}\n";
const LISTENER_SET: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {name: a}\n";
const POLICY: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: a}\n";
const CLASS: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: a}\n";

/// Header of the object, its rest, the field in the finding, the snippet in the message.
const SHAPES: &[(&str, &str, &str, &str)] = &[
    (
        ROUTE,
        "spec: {rules: [{forwardTo: [{serviceName: foo, port: 80, weight: 9}, {backendRef: {name: bar}, port: 81}]}]}",
        "spec.rules[0].forwardTo",
        "backendRefs:\n- name: foo\n  port: 80\n  weight: 9\n- name: bar\n  port: 81",
    ),
    (
        ROUTE,
        "spec: {rules: [{forwardTo: [{backendRef: {name: v1, kind: server, group: networking.acme.io}, port: 80}]}]}",
        "spec.rules[0].forwardTo",
        "backendRefs:\n- group: networking.acme.io\n  kind: server\n  name: v1\n  port: 80",
    ),
    (
        ROUTE,
        "spec: {rules: [{forwardTo: [{backendName: foo, port: 80, kind: service}]}]}",
        "spec.rules[0].forwardTo",
        "backendRefs:\n- name: foo\n  port: 80",
    ),
    (
        ROUTE,
        "spec: {rules: [{backendRefs: [{serviceName: foo, port: 80}]}]}",
        "spec.rules[0].backendRefs[0].serviceName",
        "backendRefs:\n- name: foo\n  port: 80",
    ),
    (
        ROUTE,
        "spec: {rules: [{backendRefs: [{backendRef: {name: foo}, port: 80}]}]}",
        "spec.rules[0].backendRefs[0].backendRef",
        "backendRefs:\n- name: foo\n  port: 80",
    ),
    (
        ROUTE,
        "spec: {rules: [{filters: [{type: RequestMirror, requestMirror: {serviceName: foo, port: 80}}]}]}",
        "spec.rules[0].filters[0].requestMirror",
        "requestMirror:\n  backendRef:\n    name: foo\n    port: 80",
    ),
    (
        ROUTE,
        "spec: {rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {add: {a: b}}}]}]}",
        "spec.rules[0].filters[0].requestHeaderModifier.add",
        "requestHeaderModifier:\n  add:\n  - name: a\n    value: b",
    ),
    (
        ROUTE,
        "spec: {rules: [{matches: [{headers: {type: Exact, values: {env: canary}}}]}]}",
        "spec.rules[0].matches[0].headers",
        "headers:\n- name: env\n  value: canary",
    ),
    (
        ROUTE,
        "spec: {rules: [{matches: [{queryParams: {type: RegularExpression, values: {a: b}}}]}]}",
        "spec.rules[0].matches[0].queryParams",
        "queryParams:\n- name: a\n  type: RegularExpression\n  value: b",
    ),
    (
        ROUTE,
        "spec: {rules: [{matches: [{path: {type: Prefix, value: /a}}]}]}",
        "spec.rules[0].matches[0].path.type",
        "path:\n  type: PathPrefix\n  value: /a",
    ),
    (
        ROUTE,
        "spec: {gateways: {allow: FromList, gatewayRefs: [{name: a, namespace: b}]}}",
        "spec.gateways",
        "parentRefs:\n- name: a\n  namespace: b",
    ),
    (
        GATEWAY,
        "spec: {allowedListeners: [{namespaces: {from: None}}]}",
        "spec.allowedListeners",
        "allowedListeners:\n  namespaces:\n    from: None",
    ),
    (
        GATEWAY,
        "spec: {allowedListeners: [{from: None}]}",
        "spec.allowedListeners",
        "allowedListeners:\n  namespaces:\n    from: None",
    ),
    (
        GATEWAY,
        "spec: {allowedListeners: [{}]}",
        "spec.allowedListeners",
        "allowedListeners:\n  namespaces:\n    from: Same",
    ),
    (
        GATEWAY,
        "spec: {listeners: [{routes: {kind: HTTPRoute, namespaces: {from: All}}}]}",
        "spec.listeners[0].routes",
        "allowedRoutes:\n  kinds:\n  - kind: HTTPRoute\n  namespaces:\n    from: All",
    ),
    (
        GATEWAY,
        "spec: {listeners: [{routeType: httproutes}]}",
        "spec.listeners[0].routeType",
        "allowedRoutes:\n  kinds:\n  - kind: HTTPRoute",
    ),
    (
        GATEWAY,
        "spec: {listeners: [{allowedRoutes: {routeType: TLS}}]}",
        "spec.listeners[0].allowedRoutes.routeType",
        "allowedRoutes:\n  kinds:\n  - kind: TLSRoute",
    ),
    (
        GATEWAY,
        "spec: {listeners: [{tls: {certificateRef: {name: a}}}]}",
        "spec.listeners[0].tls.certificateRef",
        "tls:\n  certificateRefs:\n  - name: a",
    ),
    (
        LISTENER_SET,
        "spec: {parentRefs: {name: a, kind: Gateway}}",
        "spec.parentRefs",
        "parentRef:\n  kind: Gateway\n  name: a",
    ),
    (
        LISTENER_SET,
        "spec: {parentRefs: [{name: a}]}",
        "spec.parentRefs",
        "parentRef:\n  name: a",
    ),
    (
        POLICY,
        "targetRef: {name: svc, namespace: app, from: {kind: Gateway, name: g}}",
        "targetRef",
        "spec:\n  targetRefs:\n  - from:\n      kind: Gateway\n      name: g\n    group: \"\"\n    kind: Service\n    name: svc\n    namespace: app",
    ),
    (
        POLICY,
        "spec: {tls: {hostname: a.example, caCertRefs: [{group: '', kind: ConfigMap, name: ca}]}}",
        "spec.tls",
        "validation:\n  caCertificateRefs:\n  - group: \"\"\n    kind: ConfigMap\n    name: ca\n  hostname: a.example",
    ),
    (
        CLASS,
        "spec: {controller: example.com/c}",
        "spec.controller",
        "controllerName: example.com/c",
    ),
];

/// Former `apiVersion` and `kind`, with the present ones.
const KINDS: &[(&str, &str, &str)] = &[
    ("networking.x-k8s.io/v1alpha1", "HTTPRoute", "HTTPRoute"),
    ("networking.x-k8s.io/v1alpha1", "Gateway", "Gateway"),
    (
        "networking.x-k8s.io/v1alpha1",
        "GatewayClass",
        "GatewayClass",
    ),
    ("networking.x-k8s.io/v1alpha1", "TCPRoute", "TCPRoute"),
    (
        "networking.x-k8s.io/v1alpha1",
        "BackendPolicy",
        "BackendTLSPolicy",
    ),
    (
        "gateway.networking.k8s.io/v1alpha1",
        "ListenerSet",
        "ListenerSet",
    ),
    (
        "gateway.networking.k8s.io/v1alpha2",
        "HTTPRoute",
        "HTTPRoute",
    ),
    ("gateway.networking.k8s.io/v1alpha2", "Gateway", "Gateway"),
    (
        "gateway.networking.k8s.io/v1alpha2",
        "ReferencePolicy",
        "ReferenceGrant",
    ),
    ("gateway.networking.k8s.io/v1alpha2", "TLSRoute", "TLSRoute"),
    (
        "gateway.networking.k8s.io/v1alpha2",
        "BackendTLSPolicy",
        "BackendTLSPolicy",
    ),
];

fn parse(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("test YAML parses")
}

#[test]
fn former_shapes_show_the_released_ones() {
    for (header, rest, field, snippet) in SHAPES {
        let admission = admit(parse(&format!("{header}{rest}\n")));
        assert!(admission.object.is_none(), "{rest}");
        let finding = &admission.findings[0];
        assert_eq!(
            (finding.severity, finding.field.as_str()),
            (Severity::Error, *field),
            "{rest}"
        );
        let (_, shown) = finding
            .message
            .split_once("; write instead:\n")
            .expect("a snippet");
        let shown = shown
            .lines()
            .map(|line| line.strip_prefix("  ").unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(shown, *snippet, "{rest}");
        parse(&shown);
    }
}

#[test]
fn former_kinds_show_the_released_ones() {
    for (api_version, kind, today) in KINDS {
        let admission = admit(parse(&format!(
            "{{apiVersion: {api_version}, kind: {kind}, metadata: {{name: a}}}}"
        )));
        assert!(admission.object.is_none());
        let finding = &admission.findings[0];
        assert_eq!(
            (finding.severity, finding.field.as_str()),
            (Severity::Error, "apiVersion")
        );
        let expected = format!("apiVersion: gateway.networking.k8s.io/v1\n  kind: {today}");
        assert!(finding.message.ends_with(&expected), "{}", finding.message);
    }
}

#[test]
fn former_version_also_reports_former_fields() {
    let text = "{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: HTTPRoute, metadata: {name: a}, \
                spec: {rules: [{forwardTo: [{serviceName: a, port: 1}]}]}}";
    let fields: Vec<_> = admit(parse(text))
        .findings
        .into_iter()
        .map(|finding| finding.field)
        .collect();
    assert_eq!(fields, ["apiVersion", "spec.rules[0].forwardTo"]);
}

#[test]
fn refuses_unknown_policy_mode() {
    let findings = admit(parse(&format!("{POLICY}spec: {{mode: Disable}}"))).findings;
    assert!(findings.iter().any(|finding| finding.field == "spec.mode"));
}

#[test]
fn accepts_released_versions_and_foreign_kinds() {
    for text in [
        "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: HTTPRoute, metadata: {name: a}, spec: {}}",
        "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: GatewayClass, metadata: {name: a}, spec: {controllerName: a.b/c}}",
    ] {
        let admission = admit(parse(text));
        assert!(admission.object.is_some(), "{:?}", admission.findings);
    }
    let admission = admit(parse(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}",
    ));
    assert_eq!(admission.findings[0].severity, Severity::Warning);
    assert_eq!(
        admission.id.map(|id| id.to_string()).as_deref(),
        Some("Deployment a")
    );
}
