//! Restarts of a container, which loads the copy of its predecessor.

use std::fs;

use crate::eventually;
use crate::objects::route;
use crate::pod::Node;

const COPY: &str = "state/objects.ndjson";
/// The next copy while it is being written.
const NEXT: &str = "state/objects.ndjson.next";

/// Waits until the copy has a commit.
fn wait_for_copy(node: &Node, commit: u64) -> String {
    let commit = format!("{{\"commit\":{{\"revision\":{commit}}}}}\n");
    let copy = || fs::read_to_string(node.path(COPY)).unwrap_or_default();
    eventually(copy, |copy| copy.ends_with(&commit))
}

#[test]
fn restarted_pod_serves_its_copy_without_a_controller() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.put(route("b", "two")).commit(2);
    wait_for_copy(&node, 2);
    node.service.point(None);
    drop((pod, stream, controller));
    let pod = node.start();
    pod.wait_until_ready();
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.answer("b"), "https://two/");
    assert_eq!(pod.metric("stream_connected"), 0);
    assert_eq!(pod.metric("stream_revision"), 2);
    let controller = node.controller();
    let stream = controller.accept();
    assert_eq!(stream.position(), Some("first/2"));
    stream
        .begin("first", Some(2))
        .put(route("a", "three"))
        .commit(3);
    stream.report_of("first/3");
    assert_eq!(pod.answer("a"), "https://three/");
    wait_for_copy(&node, 3);
}

#[test]
fn restarted_pod_serves_no_copy_while_a_controller_has_a_later_state() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    wait_for_copy(&node, 1);
    drop((pod, stream));
    let pod = node.start();
    let stream = controller.accept();
    assert_eq!(stream.position(), Some("first/1"));
    stream.begin("first", Some(1)).put(route("a", "two"));
    pod.wait_until_unready("its first state is not complete");
    assert!(pod.is_closed());
    stream.commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.metric("config_generation"), 1);
    assert_eq!(pod.answer("a"), "https://two/");
}

#[test]
fn restarted_pod_serves_its_copy_once_a_controller_has_no_later_state() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    wait_for_copy(&node, 1);
    drop((pod, stream));
    let pod = node.start();
    let stream = controller.accept();
    stream.begin("first", Some(1));
    pod.wait_until_unready("its first state is not complete");
    stream.leader(None);
    stream.report_of("first/1");
    pod.wait_until_ready();
    assert_eq!(pod.answer("a"), "https://one/");
}

#[test]
fn every_state_that_is_reported_is_in_the_copy() {
    let node = Node::new();
    let controller = node.controller();
    let (_pod, stream) = node.serving(&controller);
    for revision in 2..40 {
        stream
            .put(route("a", &format!("to-{revision}")))
            .commit(revision);
        stream.report_of(&format!("first/{revision}"));
        let copy = fs::read_to_string(node.path(COPY)).unwrap();
        let commit = format!("{{\"commit\":{{\"revision\":{revision}}}}}\n");
        assert!(copy.ends_with(&commit), "{revision}");
    }
}

#[test]
fn copy_that_cannot_be_written_is_removed_before_the_state_is_reported() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    wait_for_copy(&node, 1);
    // The state of another controller replaces the whole copy, which cannot be created beside a folder of its name.
    fs::create_dir(node.path(NEXT)).unwrap();
    stream
        .begin("second", None)
        .put_all(&node.objects())
        .put(route("a", "two"))
        .commit(1);
    stream.report_of("second/1");
    assert_eq!(pod.answer("a"), "https://two/");
    assert!(!node.path(COPY).exists());
    eventually(|| node.log("it is removed"), |lines| !lines.is_empty());
    node.service.point(None);
    drop((pod, stream, controller));
    let pod = node.start();
    pod.wait_until_unready("waiting for the controller");
    assert!(pod.is_closed());
}

#[test]
fn no_state_is_reported_while_an_older_copy_can_be_neither_replaced_nor_removed() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.secret(&"a".repeat(32)).commit(2);
    stream.report_of("first/2");
    wait_for_copy(&node, 2);
    // Without the former secret, the copy is rewritten. A folder in its place cannot be replaced.
    fs::remove_file(node.path(COPY)).unwrap();
    fs::create_dir(node.path(COPY)).unwrap();
    stream
        .secret(&"b".repeat(32))
        .put(route("b", "two"))
        .commit(3);
    let report =
        stream.report_with(|report| report.behind.is_some() || report.position.revision > 2);
    assert_eq!(report.position.to_string(), "first/2");
    let reason = report.behind.unwrap();
    assert!(
        reason.contains("neither be written nor removed"),
        "{reason}"
    );
    assert_eq!(pod.answer("b"), "https://two/");
}

#[test]
fn ignores_untrusted_copy() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    let whole = wait_for_copy(&node, 1);
    node.service.point(None);
    drop((pod, stream, controller));
    let torn = &whole[..whole.rfind("{\"commit\"").unwrap()];
    let foreign = whole.replace("\"name\":\"edge\"", "\"name\":\"other\"");
    for (copy, reason) in [
        (torn, "it has no commit"),
        (&foreign, "it is not a copy of Gateway default/edge"),
        ("garbage\n", "a line is not JSON"),
    ] {
        fs::write(node.path(COPY), copy).unwrap();
        let pod = node.start();
        assert!(pod.unready().is_some());
        assert!(pod.is_closed());
        eventually(|| node.log(reason), |lines| !lines.is_empty());
    }
    // A new copy is used again.
    let controller = node.controller();
    node.serving(&controller);
}
