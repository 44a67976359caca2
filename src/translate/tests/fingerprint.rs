//! What a Gateway's fingerprint tells apart, and what it must not see.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{gateway, https, object, pair, route, run, secret};
use crate::ir::{Ir, Listener, ObjectRef, Port, Protocol, Transport};

fn fingerprint(ir: &Ir) -> u64 {
    ir.fingerprint(&ObjectRef::gateway_api("Gateway", "default", "web"))
}

fn of(objects: &[Value]) -> u64 {
    fingerprint(&run(objects, None).ir)
}

fn service(name: &str) -> Value {
    let spec = json!({"spec": {"ports": [{"port": 80}]}});
    object("v1", "Service", name, &spec)
}

fn slice(address: &str) -> Value {
    let mut slice = object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "app",
        &json!({
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [{"addresses": [address]}],
        }),
    );
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": "app"});
    slice
}

/// A Gateway, a route with something of everything, its Service, and a Gateway that has nothing to do with them.
fn scene() -> Vec<Value> {
    let rule = json!({
        "matches": [{
            "path": {"value": "/a"},
            "headers": [{"name": "x-a", "value": "1"}],
            "queryParams": [{"name": "q", "value": "1"}],
        }],
        "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-b", "value": "1"}]}}],
        "timeouts": {"request": "1s"},
        "backendRefs": [{"name": "app", "port": 80, "weight": 3}],
    });
    let mut route = route(&rule);
    route["spec"]["hostnames"] = json!(["a.example.com", "b.example.com"]);
    let mut other =
        gateway(&json!({"listeners": [{"name": "http", "port": 81, "protocol": "HTTP"}]}));
    other["metadata"]["name"] = json!("other");
    vec![
        gateway(&json!({})),
        route,
        service("app"),
        slice("10.0.0.1"),
        other,
    ]
}

/// The scene's fingerprint with the value at `path` of the object at `index` replaced.
fn changed(index: usize, path: &str, value: Value) -> u64 {
    let mut objects = scene();
    let (parent, field) = path.rsplit_once('/').unwrap();
    match objects[index].pointer_mut(parent).unwrap() {
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        map => map[field] = value,
    }
    of(&objects)
}

#[test]
fn sees_every_part_of_the_configuration() {
    let (gateway, route, service) = (0, 1, 2);
    let changes = [
        (gateway, "/spec/listeners/0/name", json!("web")),
        (gateway, "/spec/listeners/0/port", json!(8000)),
        (
            gateway,
            "/spec/listeners/0/hostname",
            json!("*.example.com"),
        ),
        (
            gateway,
            "/spec/addresses",
            json!([{"type": "IPAddress", "value": "127.0.0.1"}]),
        ),
        (route, "/metadata/name", json!("other")),
        (
            route,
            "/metadata/creationTimestamp",
            json!("2026-01-01T00:00:00Z"),
        ),
        (route, "/spec/hostnames/1", json!("c.example.com")),
        (route, "/spec/hostnames", json!([])),
        (route, "/spec/rules/0/name", json!("first")),
        (route, "/spec/rules/0/matches/0/path/value", json!("/b")),
        (route, "/spec/rules/0/matches/0/path/type", json!("Exact")),
        (route, "/spec/rules/0/matches/0/method", json!("GET")),
        (route, "/spec/rules/0/matches/0/headers/0/value", json!("2")),
        (
            route,
            "/spec/rules/0/matches/0/queryParams/0/name",
            json!("p"),
        ),
        (route, "/spec/rules/0/filters", json!([])),
        (route, "/spec/rules/0/timeouts/request", json!("2s")),
        (route, "/spec/rules/0/timeouts/backendRequest", json!("1s")),
        (route, "/spec/rules/0/backendRefs/0/weight", json!(2)),
        (route, "/spec/rules/0/backendRefs/0/port", json!(81)),
        (route, "/spec/rules/0/backendRefs/0/name", json!("gone")),
        (route, "/spec/rules", json!([])),
        (
            service,
            "/spec/ports/0/appProtocol",
            json!("kubernetes.io/h2c"),
        ),
        (service, "/spec/ports/0/port", json!(81)),
    ];
    let mut seen = vec![of(&scene())];
    for (index, path, value) in changes {
        let print = changed(index, path, value);
        assert!(!seen.contains(&print), "{path} is not seen");
        seen.push(print);
    }
}

#[test]
fn sees_protocol_and_transport() {
    let ir = run(&scene(), None).ir;
    let with = |change: fn(&mut Port, &mut Listener)| {
        let mut ir = ir.clone();
        let port = Arc::make_mut(&mut ir.ports[0]);
        let mut listener = (*port.listeners[0]).clone();
        change(port, &mut listener);
        port.listeners[0] = listener.into();
        fingerprint(&ir)
    };
    let prints = [
        with(|_, _| {}),
        with(|port, _| port.bind.transport = Transport::Udp),
        with(|_, listener| listener.protocol = Protocol::Tcp),
        with(|_, listener| listener.protocol = Protocol::TlsPassthrough),
    ];
    assert_eq!(prints[0], fingerprint(&ir));
    assert_eq!(BTreeSet::from(prints).len(), prints.len());
}

#[test]
fn sees_neither_endpoints_nor_order_nor_other_gateways() {
    let print = of(&scene());
    assert_eq!(
        changed(3, "/endpoints/0/addresses/0", json!("10.0.0.2")),
        print
    );
    assert_eq!(changed(3, "/endpoints", json!([])), print);
    assert_eq!(changed(4, "/spec/listeners/0/port", json!(82)), print);
    let mut reversed = scene();
    reversed.reverse();
    assert_eq!(of(&reversed), print);
    assert_ne!(of(&scene()[1..]), print);
}

#[test]
fn depends_on_neither_chance_nor_addresses() {
    // A hasher with random keys would have other ones the second time.
    assert_eq!(of(&scene()), of(&scene()));
}

#[test]
fn sees_certificates_and_how_they_are_used() {
    let (one, two) = (pair("a.example.com"), pair("a.example.com"));
    let with = |pair: &(String, String)| [https("default"), secret("default", &pair.0, &pair.1)];
    let print = of(&with(&one));
    assert_ne!(of(&with(&two)), print);
    let mut strict = with(&one);
    strict[0]["spec"]["listeners"][0]["tls"]["options"] =
        json!({"portcullis.dev/min-tls-version": "1.3"});
    assert_ne!(of(&strict), print);
    let longer = (format!("{}{}", one.0, two.0), one.1);
    assert_ne!(of(&with(&longer)), print);
}

#[test]
fn does_not_depend_on_what_was_served_before() {
    let good = pair("a.example.com");
    let bad = secret("default", &good.0, &pair("a.example.com").1);
    let before = run(
        &[https("default"), secret("default", &good.0, &good.1)],
        None,
    );
    let mut second = secret("default", &good.0, &good.1);
    second["metadata"]["name"] = json!("second");
    let mut two = https("default");
    two["spec"]["listeners"][0]["tls"]["certificateRefs"] =
        json!([{"name": "cert"}, {"name": "second"}]);
    for gateway in [https("default"), two] {
        let now = [gateway, bad.clone(), second.clone()];
        let (with, without) = (run(&now, Some(&before.ir)), run(&now, None));
        assert_ne!(with.ir, without.ir, "the last good certificate serves");
        assert_eq!(fingerprint(&with.ir), fingerprint(&without.ir));
        assert_ne!(fingerprint(&with.ir), fingerprint(&before.ir));
    }
}
