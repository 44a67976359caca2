//! The certificates that a pod trusts and the token that it presents, while the files change.

use crate::controller::{Authority, Controller};
use crate::eventually;
use crate::pod::Node;

#[test]
fn reads_the_token_for_each_connection() {
    let node = Node::new();
    let controller = node.controller();
    let (_pod, stream) = node.serving(&controller);
    node.write("token", "second-token");
    drop(stream);
    let stream = controller.accept();
    assert_eq!(stream.header("authorization"), Some("Bearer second-token"));
}

#[test]
fn reads_the_ca_for_each_connection_and_rejects_the_previous_one() {
    let node = Node::new();
    let controller = node.controller();
    let (pod, stream) = node.serving(&controller);
    let second = Authority::new("second");
    node.write("ca.crt", &second.pem);
    drop(stream);
    eventually(
        || node.log("invalid peer certificate"),
        |lines| !lines.is_empty(),
    );
    assert!(controller.is_idle());
    assert_eq!(pod.answer("a"), "https://one/");
    let renewed = Controller::start(&second);
    node.service.point(Some(renewed.address));
    let stream = renewed.accept();
    assert_eq!(stream.position(), Some("first/1"));
}

#[test]
fn trusts_all_cas_of_a_bundle() {
    let node = Node::new();
    let second = Authority::new("second");
    node.write("ca.crt", &format!("{}{}", second.pem, node.authority.pem));
    let controller = node.controller();
    let (_pod, stream) = node.serving(&controller);
    let renewed = Controller::start(&second);
    node.service.point(Some(renewed.address));
    drop(stream);
    assert_eq!(renewed.accept().position(), Some("first/1"));
}

#[test]
fn verifies_the_host_of_the_url() {
    let node = Node::new();
    let other = Controller::named(&node.authority, "elsewhere.example");
    node.service.point(Some(other.address));
    let pod = node.start();
    pod.wait_until_unready("invalid peer certificate");
    assert!(other.is_idle());
}

#[test]
fn reports_missing_files() {
    let node = Node::new();
    let controller = node.controller();
    std::fs::remove_file(node.path("token")).unwrap();
    let pod = node.start();
    pod.wait_until_unready("token cannot be read");
    node.write("token", "late");
    std::fs::remove_file(node.path("ca.crt")).unwrap();
    pod.wait_until_unready("ca.crt cannot be used");
    assert!(controller.is_idle());
    node.write("ca.crt", &node.authority.pem);
    let stream = controller.accept();
    assert_eq!(stream.header("authorization"), Some("Bearer late"));
}
