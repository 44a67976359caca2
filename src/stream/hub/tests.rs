//! Feeds and reports by the rules that sessions rely on.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::api::{Kind, Object};

fn name() -> ObjectRef {
    ObjectRef::gateway_api("Gateway", "infra", "edge")
}

fn gateway() -> Arc<Gateway> {
    let object = json!({
        "metadata": {"namespace": "infra", "name": "edge", "uid": "1"},
        "spec": {"gatewayClassName": "portcullis", "listeners": []},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn namespace(name: &str) -> Object {
    let kind = Kind::find("v1", "Namespace").unwrap();
    kind.decode(&json!({"metadata": {"name": name}})).unwrap()
}

/// A hub whose Gateway has had so many changes, each of a Namespace of its own.
fn hub(changes: u64) -> Hub {
    let hub = Hub::new("5f2c".to_owned());
    for number in 1..=changes {
        put(&hub, number);
    }
    hub
}

fn put(hub: &Hub, number: u64) -> u64 {
    let change = ObjectChange::Put(namespace(&number.to_string()));
    hub.change((&name(), &gateway()), &Snapshot::default(), &[change])
}

fn serves(instance: &str, revision: u64) -> Serves {
    Serves {
        position: Position {
            instance: instance.to_owned(),
            revision,
        },
        unbound: BTreeMap::new(),
        problems: Vec::new(),
    }
}

fn reported(hub: &Hub) -> Option<u64> {
    let reports = hub.reports();
    let reports = reports.borrow();
    reports.get(&name())?.get("pod")?.revision
}

#[test]
fn a_pod_gets_what_it_lacks() {
    let hub = hub(3);
    assert!(matches!(hub.next(&name(), None), Next::Everything(_, 3)));
    assert!(matches!(hub.next(&name(), Some(3)), Next::Current));
    assert!(matches!(hub.next(&name(), Some(9)), Next::Everything(_, 3)));
    let Next::Lines(lines, 3) = hub.next(&name(), Some(1)) else {
        panic!("no difference");
    };
    let text = String::from_utf8(lines.concat()).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["put"]["metadata"]["name"], "2");
    assert_eq!(lines[1], json!({"commit": {"revision": 2}}));
    assert_eq!(lines[3], json!({"commit": {"revision": 3}}));
}

#[test]
fn a_gateway_that_comes_back_has_other_revisions() {
    let hub = hub(3);
    hub.remove(&name());
    assert!(matches!(hub.next(&name(), Some(3)), Next::Gone));
    assert!(hub.connect(&name(), "pod").is_none());
    for number in 1..=3 {
        assert!(put(&hub, number) > 3);
    }
    for former in 0..=3 {
        let next = hub.next(&name(), Some(former));
        assert!(matches!(next, Next::Everything(..)), "{former}: {next:?}");
    }
}

#[test]
fn sessions_notice_changes_and_the_end_of_their_gateway() {
    let hub = hub(1);
    let (_, mut revisions) = hub.connect(&name(), "pod").unwrap();
    assert!(!revisions.has_changed().unwrap());
    put(&hub, 2);
    assert_eq!(*revisions.borrow_and_update(), 2);
    hub.remove(&name());
    assert!(revisions.has_changed().is_err());
}

#[test]
fn a_pod_speaks_by_its_last_session_only() {
    let hub = hub(2);
    let (first, _) = hub.connect(&name(), "pod").unwrap();
    hub.report(&first, serves("5f2c", 1));
    assert_eq!(reported(&hub), Some(1));
    let (second, _) = hub.connect(&name(), "pod").unwrap();
    assert_eq!(reported(&hub), None);
    hub.report(&first, serves("5f2c", 2));
    hub.disconnect(&first);
    assert_eq!(reported(&hub), None);
    hub.report(&second, serves("5f2c", 2));
    assert_eq!(reported(&hub), Some(2));
    hub.disconnect(&second);
    assert!(hub.reports().borrow().is_empty());
}

#[test]
fn revisions_of_another_process_are_none_of_ours() {
    let hub = hub(2);
    let (session, _) = hub.connect(&name(), "pod").unwrap();
    hub.report(&session, serves("other", 2));
    assert_eq!(reported(&hub), None);
}
