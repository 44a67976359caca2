//! What a client of a data plane observes while the cluster changes and while its API server fails.

use crate::api::{Api, Fault};
use crate::harness::ports::free_ports;
use crate::plane::{DataPlane, request};
use crate::{eventually, route};

#[test]
fn serves_and_follows_the_cluster() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    assert!(plane.is_ready());
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    api.apply(&route("b", "three"));
    plane.wait_for("b.example", "https://three/");
    api.delete("HTTPRoute", "default", "a");
    plane.wait_for("a.example", "404");
    assert_eq!(plane.answer("b.example").as_deref(), Some("https://three/"));
}

#[test]
fn serves_nothing_before_every_kind_is_listed() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    api.hang("Secret", Some(0));
    let plane = DataPlane::start(&api);
    eventually(|| plane.is_alive(), |alive| *alive);
    assert!(!plane.is_ready());
    assert_eq!(plane.answer("a.example"), None);
    api.hang("Secret", None);
    plane.wait_for("a.example", "https://one/");
}

#[test]
fn keeps_serving_while_the_api_server_is_unreachable() {
    let api = Api::start();
    api.offline(true);
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    eventually(|| plane.is_alive(), |alive| *alive);
    assert!(!plane.is_ready());
    api.offline(false);
    plane.wait_for("a.example", "https://one/");
    eventually(|| plane.contact(), Option::is_some);
    api.offline(true);
    api.apply(&route("a", "two"));
    assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
    assert!(plane.is_ready());
    api.offline(false);
    plane.wait_for("a.example", "https://two/");
}

#[test]
fn applies_deletions_missed_by_watches() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    api.apply(&route("b", "two"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.delete_unseen("HTTPRoute", "default", "a");
    plane.wait_for("a.example", "404");
    assert_eq!(plane.answer("b.example").as_deref(), Some("https://two/"));
    api.apply(&route("c", "three"));
    plane.wait_for("c.example", "https://three/");
}

#[test]
fn forbidden_kind_keeps_its_objects_and_affects_no_other_kind() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.fail("Service", Some(Fault::Status(403)));
    api.fail("GatewayClass", Some(Fault::Status(503)));
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    assert!(plane.is_ready());
}

#[test]
fn invalid_object_keeps_its_last_version() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.apply(&route("a", "two").replace("[a.example]", "7"));
    api.apply(&route("b", "three"));
    plane.wait_for("b.example", "https://three/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
    api.apply(&route("a", "four"));
    plane.wait_for("a.example", "https://four/");
}

#[test]
fn picks_up_kind_installed_later() {
    let api = Api::start();
    api.set_served("HTTPRoute", false);
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "404");
    api.apply(&route("a", "one"));
    api.set_served("HTTPRoute", true);
    plane.wait_for("a.example", "https://one/");
    api.set_served("HTTPRoute", false);
    api.fail("HTTPRoute", Some(Fault::Status(404)));
    plane.wait_for("a.example", "404");
}

#[test]
fn serves_a_single_gateway() {
    let api = Api::start();
    let [other] = free_ports();
    api.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: other, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners: [{{name: http, port: {other}, protocol: HTTP}}]
"
    ));
    api.apply(&route("a", "one"));
    let alone = DataPlane::start_with(&api, &["--gateway", "default/edge"]);
    alone.wait_for("a.example", "https://one/");
    assert_eq!(request(other, "/", "a.example"), None);
    drop(alone);
    let all = DataPlane::start(&api);
    all.wait_for("a.example", "https://one/");
    assert!(request(other, "/", "a.example").is_some());
}
