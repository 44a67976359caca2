//! Events about what status writes turn, and about states that a leader finds: once each, also with the next leader.

use std::sync::Arc;
use std::thread;

use portcullis::api::reference::ParentRef;
use portcullis::cluster::events::{EventReason, Events, Notice, channel};
use portcullis::ir::ObjectRef;
use portcullis::status::stored::StoredStatus;
use portcullis::status::writer::Statuses;
use portcullis::status::{
    AncestorStatus, Condition, ConditionType, GatewayStatus, Held, ParentStatus, Reason,
    StatusReport,
};
use serde_json::{Value, json};

use crate::api::Api;
use crate::writer::{CONTROLLER, Running, route};
use crate::{client, runtime};

/// The events of the API server about an object, by name.
fn events(api: &Api, name: &str) -> Vec<Value> {
    let (_, objects) = api.stored_state();
    let events = objects
        .into_iter()
        .filter(|((kind, ..), _)| kind == "Event");
    let events = events.map(|(_, event)| event);
    events
        .filter(|it| it["regarding"]["name"] == name)
        .collect()
}

/// Waits for this many events about an object.
fn await_events(api: &Api, name: &str, count: usize) -> Vec<Value> {
    api.wait_until(|| {
        let found = events(api, name);
        (found.len() >= count).then_some(found)
    })
}

fn stored(api: &Api, running: &Running, object: &ObjectRef, version: &str, status: &Value) {
    api.put(json!({
        "apiVersion": format!("{}/{version}", object.group), "kind": *object.kind,
        "metadata": {"name": *object.name, "namespace": *object.namespace, "generation": 1},
        "status": status,
    }));
    see(api, running, object);
}

/// Passes the current object to the writer, like a watch.
fn see(api: &Api, running: &Running, object: &ObjectRef) {
    let now = api.object(&object.kind, &object.namespace, &object.name);
    let version = now["metadata"]["resourceVersion"].as_str().unwrap();
    let status = StoredStatus::new(version, &now["status"]);
    running.stored.observed(object, status);
}

fn edge() -> ParentRef {
    ParentRef::to(&ObjectRef::gateway_api("Gateway", "default", "edge"))
}

fn condition(name: &str, status: &str) -> Value {
    json!({
        "type": name, "status": status, "reason": "Before", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn want(running: &Running, report: &StatusReport) {
    running.statuses.send_replace(Some(Statuses {
        report: Arc::new(report.clone()),
        held: Held::default(),
    }));
}

/// A route whose only condition is stored with a status, and is to have another one.
fn turn(running: &Running, api: &Api, name: &str, from: &str, to: &Condition) -> StatusReport {
    let parent = json!({
        "parentRef": edge(), "controllerName": CONTROLLER,
        "conditions": [condition(&to.kind.to_string(), from)],
    });
    stored(
        api,
        running,
        &route(name),
        "v1",
        &json!({"parents": [parent]}),
    );
    let mut report = StatusReport::default();
    let status = ParentStatus {
        parent_ref: edge(),
        controller_name: CONTROLLER.into(),
        conditions: vec![to.clone()],
    };
    report.routes.insert(route(name), Arc::new(vec![status]));
    report
}

#[test]
fn each_condition_that_a_write_turns_has_an_event() {
    let bad = |kind, reason| Condition::fails(kind, reason, "why", 1);
    let good = |kind, reason| Condition::holds(kind, reason, 1);
    let cases = [
        (
            "True",
            bad(ConditionType::Accepted, Reason::NotAllowedByListeners),
            "NotAccepted",
        ),
        (
            "False",
            good(ConditionType::Accepted, Reason::Accepted),
            "Accepted",
        ),
        (
            "True",
            bad(ConditionType::ResolvedRefs, Reason::RefNotPermitted),
            "ReferencesNotResolved",
        ),
        (
            "False",
            good(ConditionType::ResolvedRefs, Reason::ResolvedRefs),
            "ReferencesResolved",
        ),
        (
            "True",
            bad(ConditionType::Programmed, Reason::Pending),
            "NotProgrammed",
        ),
        (
            "False",
            good(ConditionType::Programmed, Reason::Programmed),
            "Programmed",
        ),
    ];
    for (index, (from, to, reason)) in cases.into_iter().enumerate() {
        let api = Api::start();
        let running = Running::start(&api);
        let name = format!("route-{index}");
        let report = turn(&running, &api, &name, from, &to);
        want(&running, &report);
        let event = await_events(&api, &name, 1).remove(0);
        let is_bad = from == "True";
        assert_eq!(event["reason"], reason, "{event}");
        assert_eq!(event["type"], if is_bad { "Warning" } else { "Normal" });
        assert_eq!(event["regarding"]["kind"], "HTTPRoute");
        assert_eq!(
            event["regarding"]["apiVersion"],
            "gateway.networking.k8s.io/v1"
        );
        let uid = &api.object("HTTPRoute", "default", &name)["metadata"]["uid"];
        assert_eq!(event["regarding"]["uid"], *uid);
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("for Gateway default/edge: "), "{note}");
        assert_eq!(note.contains("why"), is_bad, "{note}");
    }
}

#[test]
fn a_policy_that_loosens_access_has_an_event() {
    let api = Api::start();
    let running = Running::start(&api);
    let policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "default", "open");
    stored(&api, &running, &policy, "v1alpha1", &json!({}));
    let loosens = Condition::holds(ConditionType::LoosensInherited, Reason::LoosensInherited, 1);
    let loosens = loosens.with_message("spec.ipRules.allow permits more");
    let mut report = StatusReport::default();
    let status = AncestorStatus {
        ancestor_ref: edge(),
        controller_name: CONTROLLER.into(),
        conditions: vec![loosens],
    };
    report.policies.insert(policy, Arc::new([status]));
    want(&running, &report);
    let event = await_events(&api, "open", 1).remove(0);
    assert_eq!(
        (&event["reason"], &event["type"]),
        (&json!("AccessLoosened"), &json!("Warning"))
    );
    assert_eq!(event["regarding"]["apiVersion"], "portcullis.dev/v1alpha1");
    assert!(event["note"].as_str().unwrap().contains("permits more"));
}

#[test]
fn a_gateway_has_one_event_about_all_that_one_write_turns() {
    let api = Api::start();
    let running = Running::start(&api);
    let gateway = ObjectRef::gateway_api("Gateway", "default", "edge");
    let before = ["Accepted", "Programmed"].map(|name| condition(name, "True"));
    stored(
        &api,
        &running,
        &gateway,
        "v1",
        &json!({"conditions": before}),
    );
    let bad = |kind| Condition::fails(kind, Reason::Invalid, "why", 1);
    let mut report = StatusReport::default();
    let status = GatewayStatus {
        conditions: vec![bad(ConditionType::Accepted), bad(ConditionType::Programmed)],
        ..GatewayStatus::default()
    };
    report.gateways.insert(gateway, Arc::new(status));
    want(&running, &report);
    let events = await_events(&api, "edge", 1);
    let note = events[0]["note"].as_str().unwrap();
    assert_eq!(events[0]["reason"], "NotAccepted");
    let expected = "Accepted is False (Invalid): why; Programmed is False (Invalid): why: nothing is served through the Gateway";
    assert_eq!(note, expected);
    assert_eq!(events.len(), 1);
}

#[test]
fn neither_a_quiet_time_nor_another_leader_has_events() {
    let api = Api::start();
    let first = Running::start(&api);
    let failed = Condition::fails(ConditionType::Accepted, Reason::Invalid, "why", 1);
    let mut report = turn(&first, &api, "a", "True", &failed);
    want(&first, &report);
    await_events(&api, "a", 1);
    drop(first);
    let second = Running::start(&api);
    see(&api, &second, &route("a"));
    want(&second, &report);
    // What comes later has been handled later.
    let more = turn(&second, &api, "b", "True", &failed);
    report
        .routes
        .insert(route("b"), more.routes.get(&route("b")).unwrap().clone());
    want(&second, &report);
    await_events(&api, "b", 1);
    assert_eq!(events(&api, "a").len(), 1);
    assert_eq!(api.requests("/events").len(), 2);
}

/// Publishes events like a leader, while the handle exists.
fn leader(api: &Api) -> Events {
    let (events, mut publisher) = channel("leader");
    let api = api.clone();
    thread::spawn(move || {
        runtime().block_on(async { publisher.run(&client(&api, "leader")).await });
    });
    events
}

fn notice(reason: EventReason, name: &str) -> Notice {
    Notice {
        object: ObjectRef::gateway_api("Gateway", "default", name),
        version: "v1",
        served_as: None,
        uid: "1".to_owned(),
        reason,
        action: "Program",
        message: "why".to_owned(),
    }
}

#[test]
fn the_next_leader_repeats_no_state_and_counts_what_happens_again() {
    let api = Api::start();
    let first = leader(&api);
    first.notify(notice(EventReason::CertificateExpiring, "old"));
    first.notify(notice(EventReason::NotProgrammed, "flapping"));
    await_events(&api, "flapping", 1);
    await_events(&api, "old", 1);
    let second = leader(&api);
    second.notify(notice(EventReason::CertificateExpiring, "old"));
    second.notify(notice(EventReason::NotProgrammed, "flapping"));
    let counted = api.wait_until(|| {
        let event = events(&api, "flapping").remove(0);
        (event["series"]["count"] == 2).then_some(event)
    });
    assert!(
        counted["series"]["lastObservedTime"].is_string(),
        "{counted}"
    );
    // It is tried once, and refused as already there.
    api.wait_for_requests(4, "POST", "/events");
    let old = events(&api, "old");
    assert_eq!((old.len(), &old[0]["series"]), (1, &Value::Null));
    assert_eq!(api.wait_for_requests(1, "PATCH", "/events").len(), 1);
}
