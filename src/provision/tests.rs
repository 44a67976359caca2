//! Unit tests for rules that the goldens of `tests/provision` do not cover.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn gateway() -> Gateway {
    with_labels(&json!({}))
}

fn with_labels(labels: &Value) -> Gateway {
    let spec = json!({
        "gatewayClassName": "portcullis",
        "listeners": [],
        "infrastructure": {"labels": labels},
    });
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "1"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn made(gateway: &Gateway, parameters: Value) -> Vec<Child> {
    let data_plane = DataPlane {
        ports: vec![80, 8443],
        udp_ports: Vec::new(),
        addresses: Vec::new(),
        parameters: Arc::new(serde_json::from_value(parameters).unwrap()),
        only_unprivileged_ports: false,
    };
    let stream = StreamEndpoint {
        arguments: vec!["--allow-external-address=10.0.0.0/8".to_owned()],
        url: "https://controller.example:19443".to_owned(),
        ca: "the CA".to_owned(),
    };
    children(
        gateway,
        &data_plane,
        "registry.example/portcullis:1",
        &stream,
    )
}

fn child(children: &[Child], kind: ChildKind) -> &Value {
    &children
        .iter()
        .find(|child| child.kind == kind)
        .unwrap()
        .object
}

#[test]
fn users_cannot_override_selector_labels() {
    let labels: serde_json::Map<_, _> = [
        GATEWAY_LABEL,
        GATEWAY_CLASS_LABEL,
        MANAGED_BY_LABEL,
        "app.kubernetes.io/name",
    ]
    .into_iter()
    .map(|key| (key.to_owned(), json!("stolen")))
    .collect();
    let plain = made(&gateway(), json!({}));
    let stolen = made(
        &with_labels(&json!(labels)),
        json!({"workload": {"labels": labels}}),
    );
    for (one, two) in plain.iter().zip(&stolen) {
        assert_eq!(one.object, two.object);
    }
    let more = made(&with_labels(&json!({"team": "shop"})), json!({}));
    for (one, two) in plain.iter().zip(&more) {
        assert_eq!(
            one.object["spec"]["selector"],
            two.object["spec"]["selector"]
        );
        assert_eq!(two.object["metadata"]["labels"]["team"], "shop");
    }
}

#[test]
fn maps_privileged_ports_to_distinct_container_ports() {
    use crate::settings::container_port;
    // Linux takes ephemeral ports from 32768 to 60999.
    let places: std::collections::BTreeSet<u16> = (0..1024).map(container_port).collect();
    assert_eq!(places.len(), 1024);
    assert!(places.iter().all(|port| *port > 60_999));
    assert!(
        [1024, 8080, 65_535]
            .into_iter()
            .all(|port| container_port(port) == port)
    );
}

#[test]
fn grace_period_covers_the_drain() {
    let grace = |drain: Value| {
        let children = made(&gateway(), json!({"drain": drain}));
        let spec = &child(&children, ChildKind::Deployment)["spec"]["template"]["spec"];
        spec["terminationGracePeriodSeconds"].as_u64().unwrap()
    };
    assert_eq!(grace(json!({})), 40);
    assert_eq!(grace(json!({"delay": "1500ms", "deadline": "1h"})), 3607);
    assert_eq!(grace(json!({"deadline": "0s"})), 10);
}

#[test]
fn missing_bound_adjusts_to_the_given_one() {
    let bounds = |autoscaling: Value| {
        let children = made(&gateway(), json!({"autoscaling": autoscaling}));
        let spec = child(&children, ChildKind::HorizontalPodAutoscaler)["spec"].clone();
        (
            spec["minReplicas"].as_u64().unwrap(),
            spec["maxReplicas"].as_u64().unwrap(),
        )
    };
    assert_eq!(bounds(json!({})), (2, 10));
    assert_eq!(bounds(json!({"minReplicas": 20})), (20, 20));
    assert_eq!(bounds(json!({"maxReplicas": 1})), (1, 1));
    assert_eq!(bounds(json!({"minReplicas": 3, "maxReplicas": 4})), (3, 4));
}

#[test]
fn single_replica_has_no_disruption_budget() {
    let has_budget = |parameters: Value| {
        let children = made(&gateway(), parameters);
        children
            .iter()
            .any(|child| child.kind == ChildKind::PodDisruptionBudget)
    };
    assert!(has_budget(json!({})));
    assert!(has_budget(json!({"autoscaling": {"minReplicas": 1}})));
    assert!(!has_budget(json!({"autoscaling": {"maxReplicas": 1}})));
    assert!(!has_budget(json!({"workload": {"replicas": 1}})));
    assert!(!has_budget(json!({"workload": {"kind": "DaemonSet"}})));
}

#[test]
fn pods_have_the_arguments_of_the_controller() {
    let children = made(&gateway(), json!({}));
    let deployment = child(&children, ChildKind::Deployment);
    let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    let arguments = arguments.as_array().unwrap();
    assert!(arguments.contains(&json!("--allow-external-address=10.0.0.0/8")));
}
