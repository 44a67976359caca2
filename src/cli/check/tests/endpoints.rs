//! Findings about backends without endpoints.

use super::{GATEWAY, printed};

#[test]
fn warns_of_authorization_servers_without_endpoints() {
    let objects = r#"
apiVersion: v1
kind: Service
metadata: {name: auth}
spec: {ports: [{port: 9000}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: asked}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  external: {protocol: HTTP, backendRef: {name: auth, port: 9000}}
"#;
    let text = printed(&format!("{GATEWAY}{objects}"));
    let warning = "warning: AccessPolicy default/asked: spec.external.backendRef: Service default/auth:9000 has no ready endpoint \
                   (no EndpointSlice has the label kubernetes.io/service-name: auth): requests that need its permission get status 503\n";
    assert!(text.contains(warning), "{text}");
}

#[test]
fn hostnames_in_endpoint_slices_are_a_problem_of_their_own() {
    let objects = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{name: app, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app, labels: {kubernetes.io/service-name: app}}
addressType: FQDN
endpoints: [{addresses: [app.example.com]}]
ports: [{port: 8080}]
"#;
    let text = printed(&format!("{GATEWAY}{objects}"));
    let problem = "Service default/app:80 has no ready endpoint (its EndpointSlices have the addressType FQDN, which is not served: an \
                   XBackend has a hostname)";
    assert!(text.contains(problem), "{text}");
}
