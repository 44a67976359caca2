//! Moves to the leader: the connection that works is kept until the other one works.

use std::net::SocketAddr;

use crate::controller::Controller;
use crate::eventually;
use crate::objects::route;
use crate::pod::Node;
use crate::ports::free_ports;

#[test]
fn pod_moves_to_the_leader_once_it_has_everything_there() {
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
    // The follower is still followed.
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
fn pod_moves_at_once_to_a_leader_with_nothing_new() {
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
fn pod_stays_where_it_is_while_the_leader_cannot_be_reached() {
    let node = Node::new();
    let follower = node.controller();
    let (pod, stream) = node.serving(&follower);
    let [closed] = free_ports();
    stream.leader(Some(SocketAddr::from(([127, 0, 0, 1], closed))));
    eventually(
        || node.log("no stream from the leading controller"),
        |lines| !lines.is_empty(),
    );
    stream.put(route("a", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://two/");
    // Another leader is tried at once.
    let leader = Controller::start(&node.authority);
    stream.leader(Some(leader.address));
    let moved = leader.accept();
    assert_eq!(moved.position(), Some("first/2"));
    assert_eq!(node.log("no stream from the leading controller").len(), 1);
}

#[test]
fn leader_that_ends_before_it_has_told_everything_is_tried_again() {
    let node = Node::new();
    let follower = node.controller();
    let leader = Controller::start(&node.authority);
    let (pod, stream) = node.serving(&follower);
    stream.leader(Some(leader.address));
    let torn = leader.accept();
    torn.begin("second", None).put(route("a", "lost"));
    drop(torn);
    eventually(
        || node.log("no stream from the leading controller"),
        |lines| !lines.is_empty(),
    );
    stream.put(route("b", "two")).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer("a"), "https://one/");
    let again = leader.accept();
    assert_eq!(again.position(), Some("first/2"));
}

#[test]
fn leader_that_a_pod_is_on_its_way_to_is_given_up_for_another() {
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
    // The one that it is connected to has become the leader itself.
    stream.leader(None);
    moved.wait_for_end();
    stream.commit(2);
    stream.report_of("first/2");
}

#[test]
fn pod_that_loses_the_leader_comes_back_to_the_service() {
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
fn follower_that_dies_amid_a_move_does_not_end_the_move() {
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
fn leader_that_hangs_amid_a_move_keeps_nobody_waiting() {
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
