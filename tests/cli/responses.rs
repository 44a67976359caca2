//! What `check` and `explain` say of a route whose filter responds, and of its name.

use std::fs;

use crate::{output, stdout};

/// A route whose filter responds to every request.
const MAINTENANCE: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: RouteFilter
metadata: {name: down}
spec: {directResponse: {status: 503, body: back soon}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: web}]
  rules: [{filters: [{type: ExtensionRef, extensionRef: {group: portcullis.dev, kind: RouteFilter, name: down}}]}]
";

#[test]
fn filter_that_responds_needs_no_backend() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), MAINTENANCE).unwrap();
    let folder = folder.path().to_str().unwrap();
    let check = output(&["check", "--quiet", folder]);
    assert_eq!(
        (check.status.code(), stdout(&check)),
        (Some(0), String::new())
    );
    let explain = stdout(&output(&["explain", folder, "http://shop.example.com/"]));
    assert!(explain.contains("respond with status 503"), "{explain}");
    assert!(!explain.contains("500"), "{explain}");
}

#[test]
fn check_prints_a_pattern_once() {
    let folder = tempfile::tempdir().unwrap();
    let objects = MAINTENANCE.replace("name: shop", "name: Shop");
    fs::write(folder.path().join("a.yaml"), objects).unwrap();
    let output = output(&["check", "--quiet", folder.path().to_str().unwrap()]);
    let text = stdout(&output);
    assert!(
        text.contains("HTTPRoute default/Shop: metadata.name: "),
        "{text}"
    );
    assert_eq!(text.matches("^[a-z0-9](").count(), 1, "{text}");
}
