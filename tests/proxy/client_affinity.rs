//! BackendPolicies that keep clients of TCPRoutes and UDPRoutes at one endpoint by their address.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::backend_policy::policy;
use crate::client::{connect, read_until};
use crate::scene::{Objects, Scene};
use crate::tcp_route::{echo, route};
use crate::udp_route::{self, Client, Echo};

fn by_address() -> Value {
    let key = json!([{"type": "ClientIP"}]);
    json!({"loadBalancing": {"type": "ConsistentHash", "consistentHash": {"key": key}}})
}

/// A policy makes another version of the backend. Sessions of the previous one follow the endpoints of the new one.
#[tokio::test]
async fn session_of_udp_follows_the_endpoints_of_a_backend_with_another_policy() {
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let mut scene = Scene::start(&udp_route::to(&[one.address]));
    let client = Client::of(scene.at(udp_route::PORT)).await;
    assert_eq!(client.ask("hello").await, "one hello");
    for (backend, answer) in [(&one, "one hello"), (&two, "two hello")] {
        let objects = udp_route::to(&[backend.address]).with(policy(by_address()));
        scene.replace(&objects).await;
        assert_eq!(client.ask("hello").await, answer);
    }
}

#[tokio::test]
async fn sessions_of_udp_of_one_address_get_one_endpoint() {
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let objects = udp_route::to(&[one.address, two.address]).with(policy(by_address()));
    let scene = Scene::start(&objects);
    let mut answers = BTreeSet::new();
    for _ in 0..8 {
        let client = Client::of(scene.at(udp_route::PORT)).await;
        answers.insert(client.ask("hello").await);
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn connections_of_one_address_get_one_endpoint() {
    let (one, two) = (echo("one").await, echo("two").await);
    let objects = Objects::gateway(&["{name: tcp, port: 5432, protocol: TCP}".to_owned()])
        .with(route("TCPRoute", "route", &[], &[("app", 1)]).to_string())
        .service("app", &[one.address, two.address])
        .with(policy(by_address()));
    let scene = Scene::start(&objects);
    let mut names = BTreeSet::new();
    for _ in 0..8 {
        let mut client = connect(scene.at(5432)).await;
        names.insert(read_until(&mut client, "\n").await);
    }
    assert_eq!(names.len(), 1, "{names:?}");
}
