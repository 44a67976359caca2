//! Objects as a controller streams them.

use portcullis::api::admit;
use serde_json::Value;

/// Returns the canonical JSON of an object.
pub(crate) fn object(yaml: &str) -> Value {
    canonical(serde_saphyr::from_str(yaml).unwrap())
}

/// Returns the same for an object in JSON.
pub(crate) fn canonical(object: Value) -> Value {
    let admission = admit(object);
    let object = admission
        .object
        .unwrap_or_else(|| panic!("{:?}", admission.findings));
    object.to_value().unwrap()
}

/// Returns the class of all Gateways.
pub(crate) fn class() -> Value {
    object(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway-controller}
",
    )
}

/// Returns the Gateway `default/edge` with a listener at each port.
pub(crate) fn gateway(ports: &[u16]) -> Value {
    let listeners: Vec<String> = ports
        .iter()
        .map(|port| format!("{{name: port-{port}, port: {port}, protocol: HTTP}}"))
        .collect();
    object(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec: {{gatewayClassName: portcullis, listeners: [{}]}}
",
        listeners.join(", ")
    ))
}

/// Returns a route that redirects `host`.example to `target`.
pub(crate) fn route(host: &str, target: &str) -> Value {
    object(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {host}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}.example]
  rules:
  - filters:
    - type: RequestRedirect
      requestRedirect: {{scheme: https, hostname: {target}, statusCode: 302}}
"
    ))
}
