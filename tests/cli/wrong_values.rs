//! What `portcullis check` says of objects with many wrong values.

use crate::check::{PLAIN, check_says};

/// A route with many wrong values: for the schema, for its rules, and for what the schema does not know.
const WRONG: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: schema}
spec:
  parentRefs: [{name: web, port: '80'}]
  rules:
  - matches: [{path: {type: PathPrefix, value: no-slash}}]
    backendRefs: [{name: s}]
    timeouts: {request: 1}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: values}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches:
    - path: {type: RegularExpression, value: '('}
      headers:
      - {type: RegularExpression, name: a, value: '['}
      - {type: RegularExpression, name: b, value: '*'}
    - queryParams: [{type: RegularExpression, name: c, value: ')'}]
    backendRefs: [{name: s, port: 80}]
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {remove: [connection, host], set: [{name: upgrade, value: a}]}
    - type: ResponseHeaderModifier
      responseHeaderModifier: {remove: [keep-alive]}
    backendRefs: [{name: s, port: 80}]
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: office}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  ipRules: {allow: [192.0.2.0/33, 192.0.2.1, 192.0.2.300]}
";

#[test]
fn check_names_every_wrong_value_at_once() {
    let parts = [
        "spec.parentRefs[0].port: ",
        "spec.rules[0].timeouts.request: ",
        "spec.rules[0].matches[0].path: value must be an absolute path",
        "spec.rules[0].backendRefs[0]: Must have port for Service reference",
        "spec.rules[0].matches[0].path: ",
        "spec.rules[0].matches[0].headers[0]: ",
        "spec.rules[0].matches[0].headers[1]: ",
        "spec.rules[0].matches[1].queryParams[0]: ",
        "spec.rules[1].filters[0].requestHeaderModifier.remove[0]: ",
        "spec.rules[1].filters[0].requestHeaderModifier.remove[1]: ",
        "spec.rules[1].filters[0].requestHeaderModifier.set[0]: ",
        "spec.rules[1].filters[1].responseHeaderModifier.remove[0]: ",
        "spec.ipRules.allow[0]: ",
        "spec.ipRules.allow[2]: ",
    ];
    check_says(&["--quiet"], &format!("{PLAIN}---\n{WRONG}"), 1, &parts);
}
