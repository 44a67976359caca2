//! Namespaces that are not known yet: they may have the labels that a selector refuses.

use serde_json::{Value, json};

use super::{gateway, route, snapshot};
use crate::translate::{Mode, Options, translate};

/// Returns a Gateway that permits routes of namespaces by an expression on their labels.
fn selecting(expression: &Value) -> Value {
    let selector = json!({"matchExpressions": [expression]});
    let routes = json!({"namespaces": {"from": "Selector", "selector": selector}});
    let listener = json!({"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": routes});
    gateway(&json!({"listeners": [listener]}))
}

/// Returns an object without a namespace.
fn class_or_namespace(api_version: &str, kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
}

/// Reports whether the route of namespace `default` is served beside these objects.
fn is_served(expression: &Value, namespace: Option<&Value>, mode: Mode) -> bool {
    let options = Options {
        mode,
        ..Options::default()
    };
    let class = class_or_namespace(
        "gateway.networking.k8s.io/v1",
        "GatewayClass",
        &json!({"name": "portcullis"}),
        &json!({"controllerName": options.controller_name}),
    );
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}});
    let route = route(&json!({"filters": [redirect]}));
    let mut objects = vec![class, selecting(expression), route];
    if let Some(labels) = namespace {
        let metadata = json!({"name": "default", "labels": labels});
        let namespace = class_or_namespace("v1", "Namespace", &metadata, &json!({}));
        objects.push(namespace);
    }
    let translation = translate(&snapshot(&objects), None, &options);
    let ports = translation.ir.ports.iter();
    let mut listeners = ports.flat_map(|port| &port.listeners);
    listeners.any(|listener| listener.routes.iter().next().is_some())
}

#[test]
fn selectors_accept_no_absent_label_of_a_namespace_that_is_not_known() {
    for expression in [
        json!({"key": "restricted", "operator": "DoesNotExist"}),
        json!({"key": "restricted", "operator": "NotIn", "values": ["yes"]}),
    ] {
        let in_cluster = |labels: Option<&Value>| is_served(&expression, labels, Mode::Dedicated);
        assert!(!in_cluster(None), "{expression}");
        assert!(in_cluster(Some(&json!({}))), "{expression}");
        assert!(!in_cluster(Some(&json!({"restricted": "yes"}))));
        // A folder has all that there is.
        assert!(is_served(&expression, None, Mode::Standalone));
    }
    let by_name = json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["other"],
    });
    assert!(is_served(&by_name, None, Mode::Dedicated));
}
