//! Controllers that are unreachable, reject pods, freeze or violate the protocol.

use portcullis::wire::MAX_LINE;

use crate::controller::Stream;
use crate::eventually;
use crate::objects::route;
use crate::pod::Node;

#[test]
fn unready_pod_reports_the_unreachable_controller() {
    let node = Node::new();
    let pod = node.start();
    let reason = pod.wait_until_unready("waiting for the controller at https://localhost:");
    assert!(reason.contains(&node.service.port.to_string()), "{reason}");
    pod.wait_until_unready("TLS handshake");
    assert!(pod.is_closed());
    assert_eq!(pod.metric("stream_connected"), 0);
    let controller = node.controller();
    let stream = controller.accept();
    stream
        .begin("first", None)
        .put_all(&node.objects())
        .commit(1);
    stream.report_of("first/1");
    assert_eq!(pod.unready(), None);
    assert!(!node.log("nothing is served").is_empty());
}

#[test]
fn logs_rejection_once() {
    let node = Node::new();
    let controller = node.controller();
    controller.refuse(Some((403, "the token is of another Gateway")));
    let pod = node.start();
    pod.wait_until_unready("refused with status 403 Forbidden: the token is of another Gateway");
    eventually(|| controller.refusals(), |count| *count >= 3);
    controller.refuse(Some((503, "not yet")));
    pod.wait_until_unready("503 Service Unavailable: not yet");
    // Other lines have the same reason on a busy machine: that the pod is not ready for so long.
    let lines = eventually(|| node.log("no stream from"), |lines| lines.len() > 1);
    assert_eq!(lines.len(), 2, "{lines:?}");
    controller.refuse(None);
    let stream = controller.accept();
    stream
        .begin("first", None)
        .put_all(&node.objects())
        .commit(1);
    stream.report_of("first/1");
    assert_eq!(pod.unready(), None);
}

#[test]
fn keeps_serving_while_rejected() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    controller.refuse(Some((401, "the token has expired")));
    drop(stream);
    eventually(|| node.log("401 Unauthorized"), |lines| !lines.is_empty());
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(pod.unready(), None);
    assert_eq!(pod.metric("stream_connected"), 0);
    controller.refuse(None);
    let stream = controller.accept();
    assert_eq!(stream.position(), Some("first/1"));
}

/// Checks that a stream with a protocol error is closed, and that the next one starts from the full
/// state.
fn is_dropped(act: impl FnOnce(&Stream), reason: &str) {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.put(route("a", "two"));
    act(&stream);
    stream.wait_for_end();
    let again = controller.accept();
    assert_eq!(again.position(), None, "{reason}");
    assert_eq!(again.report().position.to_string(), "first/1");
    assert_eq!(pod.answer("a"), "https://one/");
    assert_eq!(node.log(reason).len(), 1, "{reason}");
    again
        .begin("first", None)
        .put_all(&node.objects())
        .put(route("a", "three"))
        .commit(1);
    again.report_of("first/1");
    assert_eq!(pod.answer("a"), "https://three/");
    // After the full state, changes are accepted again.
    drop(again);
    assert_eq!(controller.accept().position(), Some("first/1"));
}

#[test]
fn invalid_json_is_a_protocol_error() {
    is_dropped(|stream| stream.raw("garbage\n"), "a line is not JSON");
}

#[test]
fn oversized_line_is_a_protocol_error() {
    let line = |stream: &Stream| stream.raw(vec![b' '; MAX_LINE + 1]);
    is_dropped(line, "a line is longer than 8 MiB");
}

#[test]
fn decreasing_revision_is_a_protocol_error() {
    is_dropped(
        |stream| {
            stream.commit(0);
        },
        "revision 0 follows revision 1",
    );
}

#[test]
fn missing_begin_is_a_protocol_error() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    drop(stream);
    let stream = controller.accept();
    stream.put(route("a", "two")).commit(2);
    stream.wait_for_end();
    assert_eq!(controller.accept().position(), None);
    assert_eq!(pod.answer("a"), "https://one/");
}

#[test]
fn unknown_base_revision_is_a_protocol_error() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    drop(stream);
    let stream = controller.accept();
    stream
        .begin("first", Some(7))
        .put(route("a", "two"))
        .commit(8);
    stream.wait_for_end();
    assert_eq!(controller.accept().position(), None);
    assert_eq!(pod.answer("a"), "https://one/");
}

#[test]
fn skips_lines_of_later_versions() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    stream.raw("{\"later\": {\"at\": 7}}\n\n\"later\"\n");
    stream.put(route("a", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
}

#[test]
fn leaves_frozen_controller() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, _stream) = node.serving(&controller);
    let _frozen = controller.freeze();
    let other = node.controller();
    let stream = other.accept();
    stream
        .begin("second", None)
        .put_all(&node.objects())
        .put(route("a", "two"))
        .commit(1);
    stream.report_of("second/1");
    assert_eq!(pod.answer("a"), "https://two/");
    assert_eq!(node.log("no response to a ping").len(), 1);
}

#[test]
fn leaves_unresponsive_controller() {
    let node = Node::new();
    let controller = node.controller();
    let _frozen = controller.freeze();
    let pod = node.start();
    pod.wait_until_unready("no response");
    let other = node.controller();
    let stream = other.accept();
    stream
        .begin("second", None)
        .put_all(&node.objects())
        .commit(1);
    stream.report_of("second/1");
    assert_eq!(pod.unready(), None);
}

#[test]
fn keeps_idle_controller() {
    let node = Node::new();
    let controller = node.controller();
    let (_pod, stream) = node.serving(&controller);
    // Longer than a frozen controller is followed: a ping, and the time for its response.
    controller.until_pinged(4);
    assert!(controller.is_idle());
    stream.commit(2);
    stream.report_of("first/2");
}
