//! The status of ReleaseBackends, which all controllers of a cluster share.

use std::sync::Arc;

use portcullis::ir::ObjectRef;
use portcullis::status::stored::StoredStatus;
use portcullis::status::writer::Statuses;
use portcullis::status::{
    Condition, ConditionType, Held, Percent, Reason, ReleaseBackendStatus, ReleaseStatus,
    StatusReport,
};
use serde_json::{Value, json};

use crate::api::Api;
use crate::writer::Running;

#[test]
fn writes_conditions_and_releases_of_release_backend() {
    let api = Api::start();
    let running = Running::start(&api);
    api.put(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend",
        "metadata": {"name": "shop", "namespace": "default", "generation": 1},
    }));
    let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "default", "shop");
    let object = api.object("ReleaseBackend", "default", "shop");
    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
    let status = StoredStatus::new(version, &object["status"]);
    running.stored.observed(&name, status);
    let want = |ready| {
        let accepted = Condition::holds(ConditionType::Accepted, Reason::Accepted, 1);
        let status = ReleaseBackendStatus {
            conditions: vec![accepted],
            releases: vec![ReleaseStatus {
                value: "v1".into(),
                ready,
                weight: 1,
                effective_percent: Percent::of(1, 3),
            }],
            gateways: Vec::new(),
        };
        let report = StatusReport {
            release_backends: [(name.clone(), Arc::new(status))].into_iter().collect(),
            ..StatusReport::default()
        };
        running.statuses.send_replace(Some(Statuses {
            report: Arc::new(report),
            held: Held::default(),
        }));
    };
    for ready in [2, 3] {
        want(ready);
        let is_there = |it: &Value| it["status"]["releases"][0]["ready"] == ready;
        let object = api.wait_for("ReleaseBackend", "default", "shop", is_there);
        let status = &object["status"];
        assert_eq!(status["conditions"][0]["reason"], "Accepted");
        assert_eq!(status["releases"][0]["effectivePercent"], 33.33);
    }
}

#[test]
fn release_backend_has_the_status_of_the_controller_whose_gateways_use_it() {
    let api = Api::start();
    let running = Running::start(&api);
    let mut report = StatusReport::default();
    // By name: the status of another controller, and whether a Gateway of this one sends requests to the backend.
    let cases = [
        ("a-in-use-elsewhere", "True", true),
        ("b-in-use-nowhere", "False", false),
        ("c-in-use-here", "False", true),
    ];
    for (name, programmed, is_used) in cases {
        let theirs = json!({"type": "Programmed", "status": programmed, "reason": "Theirs"});
        api.put(json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend",
            "metadata": {"name": name, "namespace": "default", "generation": 1},
            "status": {"conditions": [theirs]},
        }));
        let object = api.object("ReleaseBackend", "default", name);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        let status = StoredStatus::new(version, &object["status"]);
        let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "default", name);
        running.stored.observed(&name, status);
        let edge = ObjectRef::gateway_api("Gateway", "default", "edge");
        let kind = ConditionType::Programmed;
        let ours = ReleaseBackendStatus {
            conditions: vec![Condition::holds(kind, Reason::Programmed, 1)],
            releases: Vec::new(),
            gateways: is_used.then_some(edge).into_iter().collect(),
        };
        report.release_backends.insert(name, Arc::new(ours));
    }
    running.statuses.send_replace(Some(Statuses {
        report: Arc::new(report),
        held: Held::default(),
    }));
    let reason = |it: &Value| it["status"]["conditions"][0]["reason"].clone();
    let is_ours = |it: &Value| reason(it) == "Programmed";
    api.wait_for("ReleaseBackend", "default", "c-in-use-here", is_ours);
    for name in ["a-in-use-elsewhere", "b-in-use-nowhere"] {
        let object = api.object("ReleaseBackend", "default", name);
        assert_eq!(reason(&object), "Theirs", "{name}");
    }
    assert_eq!(api.requests("/status").len(), 1);
}
