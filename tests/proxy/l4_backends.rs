//! TCPRoutes and UDPRoutes to backends of other kinds than Service.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{connect, read_until};
use crate::origin::Origin;
use crate::scene::{Objects, Scene};
use crate::tcp_route::{echo, route, talk};
use crate::udp_route::{Client, Echo};

/// Port of the listener.
const PORT: u16 = 53;
const RELEASE: &str = "app.kubernetes.io/version";
/// Connections or sessions.
const CLIENTS: usize = 200;

/// Returns a listener of this protocol with a route to a backend of another kind.
fn listening(protocol: &str, group: &str, kind: &str) -> Objects {
    let mut route = route(&format!("{protocol}Route"), "route", &[], &[("shop", 1)]);
    let reference = &mut route["spec"]["rules"][0]["backendRefs"][0];
    reference["group"] = group.into();
    reference["kind"] = kind.into();
    let listener = format!("{{name: l4, port: {PORT}, protocol: {protocol}}}");
    Objects::gateway(&[listener]).with(route.to_string())
}

/// Returns a ReleaseBackend whose releases `v1` and `v2` have these weights and one pod each.
fn releases(protocol: &str, pods: [SocketAddr; 2], weights: [u64; 2]) -> Objects {
    let metadata = json!({"name": "shop", "namespace": "default"});
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"ports": [{"port": 80, "protocol": protocol, "targetPort": "app"}], "selector": {"app": "other"}},
    });
    let releases =
        json!([{"value": "v1", "weight": weights[0]}, {"value": "v2", "weight": weights[1]}]);
    let backend = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend", "metadata": metadata,
        "spec": {
            "loadBalancer": {"v1.Service": {"name": "shop", "selector": {"app": "shop"}}},
            "splitBy": RELEASE,
            "releases": releases,
        },
    });
    let pod = |(release, address): (&str, SocketAddr)| -> Value {
        let port = json!({"name": "app", "containerPort": address.port(), "protocol": protocol});
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": release, "namespace": "default", "labels": {"app": "shop", RELEASE: release}},
            "spec": {"containers": [{"name": "shop", "ports": [port]}]},
            "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    };
    let pods = ["v1", "v2"].into_iter().zip(pods).map(pod);
    pods.chain([service, backend]).fold(
        listening(protocol, "portcullis.dev", "ReleaseBackend"),
        |objects, object| objects.with(object.to_string()),
    )
}

/// Checks a share of one quarter: six standard deviations of a binomial distribution.
fn is_a_quarter(count: usize) {
    assert!((14..=86).contains(&count), "{count} of {CLIENTS}");
}

#[tokio::test]
async fn connections_are_divided_between_releases() {
    let (one, two) = (echo("v1").await, echo("v2").await);
    let pods = [one.address, two.address];
    let mut scene = Scene::start(&releases("TCP", pods, [1, 3]));
    let mut open = Vec::new();
    let mut of_one = 0;
    for _ in 0..CLIENTS {
        let mut client = connect(scene.at(PORT)).await;
        let name = read_until(&mut client, "\n").await;
        of_one += usize::from(name == "v1\n");
        open.push(client);
    }
    is_a_quarter(of_one);
    // A release without weight gets no new connection, and its open ones stay.
    scene.replace(&releases("TCP", pods, [0, 1])).await;
    for client in &mut open {
        talk(client, "still here").await;
    }
    for _ in 0..20 {
        let mut client = connect(scene.at(PORT)).await;
        assert_eq!(read_until(&mut client, "\n").await, "v2\n");
    }
}

#[tokio::test]
async fn udp_sessions_are_divided_between_releases() {
    let (one, two) = (Echo::start("v1 ").await, Echo::start("v2 ").await);
    let pods = [one.address, two.address];
    let mut scene = Scene::start(&releases("UDP", pods, [1, 3]));
    let mut clients = Vec::new();
    let mut of_one = 0;
    for _ in 0..CLIENTS {
        let client = Client::of(scene.at(PORT)).await;
        let first = client.ask("hello").await;
        assert_eq!(client.ask("hello").await, first, "a session stays");
        of_one += usize::from(first == "v1 hello");
        clients.push((client, first));
    }
    is_a_quarter(of_one);
    scene.replace(&releases("UDP", pods, [0, 1])).await;
    for (client, first) in &clients {
        assert_eq!(client.ask("hello").await, *first, "the pod is still there");
    }
    for _ in 0..20 {
        let client = Client::of(scene.at(PORT)).await;
        assert_eq!(client.ask("hello").await, "v2 hello");
    }
}

/// Returns a ServiceImport with this endpoint.
fn import(protocol: &str, address: SocketAddr) -> Objects {
    let port = json!({"name": "app", "port": 80, "protocol": protocol});
    let import = json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"type": "ClusterSetIP", "ports": [port]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "shop-1", "namespace": "default",
            "labels": {"multicluster.kubernetes.io/service-name": "shop"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "app", "port": address.port(), "protocol": protocol}],
        "endpoints": [{"addresses": [address.ip()]}],
    });
    listening(protocol, "multicluster.x-k8s.io", "ServiceImport")
        .with(import.to_string())
        .with(slice.to_string())
}

#[tokio::test]
async fn service_import_gets_connections_and_datagrams() {
    let (tcp, udp): (Origin, Echo) = (echo("imported").await, Echo::start("imported ").await);
    let scene = Scene::start(&import("TCP", tcp.address));
    let mut client = connect(scene.at(PORT)).await;
    assert_eq!(read_until(&mut client, "\n").await, "imported\n");
    talk(&mut client, "hello").await;
    let scene = Scene::start(&import("UDP", udp.address));
    let client = Client::of(scene.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "imported hello");
}
