//! Effects of stream updates, and the reports of the pod.

use std::net::TcpListener;

use serde_json::json;

use crate::objects::{gateway, route};
use crate::pod::Node;
use crate::ports::free_ports;

#[test]
fn serves_and_reports_the_first_state() {
    let node = Node::new();
    let controller = node.controller();
    let pod = node.start();
    let stream = controller.accept();
    assert_eq!(stream.head.method, "POST");
    let path = stream.head.uri.path();
    assert_eq!(path, "/v1alpha1/gateways/default/edge/stream");
    assert_eq!(stream.header("authorization"), Some("Bearer first-token"));
    assert_eq!(stream.position(), None);
    stream.begin("first", None).put_all(&node.objects());
    pod.wait_until_unready("its first state is not complete");
    assert!(pod.is_closed());
    stream.put(route("a", "one")).commit(17);
    let report = stream.report();
    assert_eq!(report.position.to_string(), "first/17");
    assert!(report.unbound.is_empty() && report.problems.is_empty());
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.unready(), None);
    assert_eq!(pod.metric("stream_connected"), 1);
    assert!(pod.metric("stream_contact_timestamp_seconds") > 1_700_000_000);
    assert_eq!(pod.metric("stream_revision"), 17);
    assert_eq!(pod.metric("stream_connections_total"), 1);
}

#[test]
fn applies_changes_atomically_on_commit() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.put(route("a", "two")).put(route("b", "three"));
    assert_eq!(pod.answer("a"), "https://one/");
    stream.commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
    assert_eq!(pod.answer("b"), "https://three/");
    stream.delete_route("a").commit(3);
    stream.report_of("first/3");
    assert_eq!(pod.answer("a"), "404");
}

#[test]
fn never_applies_uncommitted_changes() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.put(route("a", "two")).put(route("b", "three"));
    drop(stream);
    let stream = controller.accept();
    assert_eq!(stream.position(), Some("first/1"));
    // The first report on a new stream is about the state in service.
    assert_eq!(stream.report().position.to_string(), "first/1");
    stream.begin("first", Some(1)).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.answer("b"), "404");
}

#[test]
fn reconnecting_pod_gets_the_changes() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    node.service.cut();
    let again = controller.accept();
    drop(stream);
    assert_eq!(again.position(), Some("first/1"));
    again
        .begin("first", Some(1))
        .put(route("b", "two"))
        .commit(5);
    again.report_of("first/5");
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.answer("b"), "https://two/");
    assert_eq!(pod.metric("stream_connections_total"), 2);
    assert_eq!(pod.metric("stream_revision"), 5);
}

#[test]
fn another_instance_sends_the_full_state() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, _stream) = node.serving(&controller);
    let other = node.controller();
    node.service.cut();
    let stream = other.accept();
    assert_eq!(stream.position(), Some("first/1"));
    stream
        .begin("second", None)
        .put_all(&node.objects())
        .put(route("b", "two"))
        .commit(1);
    stream.report_of("second/1");
    assert_eq!(pod.answer("a"), "404");
    assert_eq!(pod.answer("b"), "https://two/");
}

#[test]
fn equal_state_of_another_instance_is_reported_without_a_reload() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, _stream) = node.serving(&controller);
    let generation = pod.metric("config_generation");
    let other = node.controller();
    node.service.cut();
    let stream = other.accept();
    stream
        .begin("second", None)
        .put_all(&node.objects())
        .put(route("a", "one"))
        .commit(9);
    stream.report_of("second/9");
    assert_eq!(pod.metric("config_generation"), generation);
    stream.commit(10);
    stream.report_of("second/10");
    assert_eq!(pod.metric("config_generation"), generation);
}

#[test]
fn new_begin_replaces_all_objects() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream
        .put(route("a", "torn"))
        .begin("first", None)
        .put_all(&node.objects())
        .put(route("b", "two"))
        .commit(7);
    stream.report_of("first/7");
    assert_eq!(pod.answer("a"), "404");
    assert_eq!(pod.answer("b"), "https://two/");
    assert_eq!(pod.metric("stream_connections_total"), 1);
}

#[test]
fn reports_unbound_ports_until_they_are_bound() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    let [port] = free_ports();
    let taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
    stream.put(gateway(&[node.port, port])).commit(2);
    let report = stream.report_of("first/2");
    let unbound: Vec<u16> = report.unbound.keys().copied().collect();
    assert_eq!(unbound, [port]);
    assert_eq!(pod.answer("a"), "https://one/");
    drop(taken);
    let report = stream.report_with(|report| report.unbound.is_empty());
    assert_eq!(report.position.to_string(), "first/2");
}

#[test]
fn reports_invalid_objects_and_keeps_their_previous_version() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    let mut broken = route("a", "two");
    broken["spec"]["hostnames"] = json!(7);
    let unknown = json!({
        "apiVersion": "portcullis.dev/v9",
        "kind": "Drawbridge",
        "metadata": {"name": "x", "namespace": "default"},
    });
    stream
        .put(broken)
        .put(unknown)
        .put(route("b", "three"))
        .commit(2);
    let report = stream.report_of("first/2");
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    assert!(report.problems[0].contains("HTTPRoute default/a: cannot be read: spec.hostnames"));
    assert!(report.problems[1].contains("Drawbridge of portcullis.dev/v9"));
    assert_eq!(node.log("Drawbridge").len(), 1);
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.answer("b"), "https://three/");
    stream.put(route("a", "four")).commit(3);
    assert_eq!(stream.report_of("first/3").problems.len(), 1);
    assert_eq!(pod.answer("a"), "https://four/");
    assert_eq!(node.log("Drawbridge").len(), 1);
}
