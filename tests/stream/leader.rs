//! Moves to the leader: the current connection is kept until the new one has caught up.

use std::net::SocketAddr;

use crate::controller::Controller;
use crate::eventually;
use crate::objects::route;
use crate::pod::Node;
use crate::ports::free_ports;

#[test]
fn pod_moves_to_the_leader_after_catching_up() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    assert_eq!(moved.position(), Some("first/1"));
    moved
        .begin("second", None)
        .leader(None)
        .put_all(&node.objects());
    // Updates of the follower still apply.
    stream.put(route("a", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
    moved.put(route("a", "three")).commit(4);
    moved.report_of("second/4");
    assert_eq!(pod.answer("a"), "https://three/");
    stream.wait_for_end();
    assert_eq!(pod.metric("stream_connected"), 1);
}

#[test]
fn pod_moves_at_once_to_a_leader_without_changes() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    moved.begin("first", Some(1));
    stream.wait_for_end();
    moved.put(route("a", "two")).commit(2);
    moved.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
}

#[test]
fn pod_keeps_its_stream_while_the_leader_is_unreachable() {
    let node = Node::new();
    let follower = node.controller();
    let (pod, stream) = node.serving(&follower);
    let [closed] = free_ports();
    stream.leader(Some(SocketAddr::from(([127, 0, 0, 1], closed))));
    eventually(
        || node.log("no stream from the leader"),
        |lines| !lines.is_empty(),
    );
    stream.put(route("a", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
    // A new leader is tried at once.
    let leader = Controller::start(&node.authority);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    assert_eq!(moved.position(), Some("first/2"));
    assert_eq!(node.log("no stream from the leader").len(), 1);
}

#[test]
fn retries_leader_that_closes_before_the_full_state() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let torn = leader.accept();
    torn.begin("second", None).put(route("a", "lost"));
    drop(torn);
    eventually(
        || node.log("no stream from the leader"),
        |lines| !lines.is_empty(),
    );
    stream.put(route("b", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://one/");
    let again = leader.accept();
    assert_eq!(again.position(), Some("first/2"));
}

#[test]
fn abandons_connection_to_a_former_leader() {
    let node = Node::new();
    let follower = node.controller();
    let former = Controller::start(&node.authority);
    let latter = Controller::start(&node.authority);
    let (_pod, stream) = node.serving(&follower);
    stream.leader(Some(former.address));
    let abandoned = former.accept();
    stream.leader(Some(latter.address));
    abandoned.wait_for_end();
    let moved = latter.accept();
    // The connected controller has become the leader.
    stream.leader(None);
    moved.wait_for_end();
    stream.commit(2);
    stream.report_of("first/2");
}

#[test]
fn pod_reconnects_to_the_service_after_losing_the_leader() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    moved.begin("first", Some(1)).commit(3);
    moved.report_of("first/3");
    stream.wait_for_end();
    drop(leader);
    let back = follower.accept();
    assert_eq!(back.position(), Some("first/3"));
    assert_eq!(pod.answer("a"), "https://one/");
}

#[test]
fn move_continues_when_the_follower_dies() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    moved.begin("second", None).put_all(&node.objects());
    node.service.point(None);
    drop(follower);
    drop(stream);
    moved.put(route("a", "two")).commit(1);
    moved.report_of("second/1");
    assert_eq!(pod.answer("a"), "https://two/");
    assert_eq!(pod.metric("stream_connected"), 1);
}

#[test]
fn hanging_leader_does_not_delay_updates() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let hanging = leader.accept();
    hanging.begin("second", None).put_all(&node.objects());
    drop(stream);
    let again = follower.accept();
    again
        .begin("first", Some(1))
        .leader(Some(leader.address))
        .put(route("a", "two"))
        .commit(2);
    again.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
    assert!(leader.is_idle());
    hanging.put(route("a", "three")).commit(1);
    hanging.report_of("second/1");
    again.wait_for_end();
}
