//! Restarts of a container, which loads the copy of its predecessor.

use std::fs;

use crate::eventually;
use crate::objects::route;
use crate::pod::Node;

const COPY: &str = "state/objects.ndjson";

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
