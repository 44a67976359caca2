//! The status of an XListenerSet.

use std::sync::Arc;

use kube::core::GroupVersionKind;
use portcullis::ir::ObjectRef;
use portcullis::status::stored::StoredStatus;
use portcullis::status::writer::Statuses;
use portcullis::status::{
    Condition, ConditionType, Held, ListenerSetStatus, ListenerStatus, Reason, StatusReport,
};
use serde_json::{Value, json};

use crate::api::Api;
use crate::writer::{Running, parents, route};

/// Clusters with Gateway API 1.3 or 1.4 serve XListenerSets, whose status requires the ports of listeners.
#[test]
fn writes_the_status_of_an_experimental_listener_set_with_ports() {
    let api = Api::start();
    api.set_served("ListenerSet", false);
    api.put(json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XListenerSet",
        "metadata": {"name": "set", "namespace": "default", "generation": 1},
    }));
    let running = Running::start(&api);
    let name = ObjectRef::gateway_api("ListenerSet", "default", "set");
    let served = GroupVersionKind::gvk("gateway.networking.x-k8s.io", "v1alpha1", "XListenerSet");
    running.stored.served("ListenerSet", Some(served));
    let object = api.object("XListenerSet", "default", "set");
    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
    let status = StoredStatus::new(version, &object["status"]);
    running.stored.observed(&name, status);
    let accepted = || {
        vec![Condition::holds(
            ConditionType::Accepted,
            Reason::Accepted,
            1,
        )]
    };
    let listener = |name: &str, port| ListenerStatus {
        name: name.into(),
        attached_routes: 2,
        supported_kinds: Arc::default(),
        conditions: Arc::new(accepted()),
        port,
        hostname: portcullis::ir::Hostname::Any,
        binds: Vec::new(),
    };
    let set = ListenerSetStatus {
        conditions: accepted(),
        listeners: vec![listener("http", 80), listener("no-port", 0)],
    };
    let mut report = StatusReport {
        listener_sets: [(name.clone(), Arc::new(set))].into_iter().collect(),
        ..StatusReport::default()
    };
    let wanted = Arc::new(report.clone());
    running.statuses.send_replace(Some(Statuses {
        report: wanted,
        held: Held::default(),
    }));
    let is_there = |set: &Value| !set["status"]["listeners"].is_null();
    let set = api.wait_for("XListenerSet", "default", "set", is_there);
    let listeners = set["status"]["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 1);
    assert_eq!(
        (&listeners[0]["name"], &listeners[0]["port"]),
        (&json!("http"), &json!(80))
    );
    running.wait_for_count("written", 1);
    // The same status again is no difference.
    let version = set["metadata"]["resourceVersion"].as_str().unwrap();
    let status = StoredStatus::new(version, &set["status"]);
    running.stored.observed(&name, status);
    running.create("after");
    report.routes = [(route("after"), parents("edge", "x"))]
        .into_iter()
        .collect();
    running.statuses.send_replace(Some(Statuses {
        report: Arc::new(report),
        held: Held::default(),
    }));
    running.wait_for("after", "x");
    running.wait_for_count("written", 2);
    assert_eq!(running.count("written"), 2);
}
