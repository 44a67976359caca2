//! Which Secrets are held in memory, and that no snapshot has a referrer without its Secret.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portcullis::api::Kind;
use portcullis::api::values::Base64;
use portcullis::provider::Load;
use serde_json::json;

use crate::api::{Api, Fault};
use crate::eventually;
use crate::watching::Watching;

fn secret(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"tls.crt": "eHh4".repeat(2500), "tls.key": ""},
    })
}

/// Returns a Gateway whose listeners refer to these Secrets.
fn gateway(certificates: &[&str]) -> serde_json::Value {
    let listeners: Vec<_> = certificates
        .iter()
        .map(|name| {
            json!({
                "name": name, "port": 443, "protocol": "HTTPS", "hostname": format!("{name}.example"),
                "tls": {"certificateRefs": [{"kind": "Secret", "name": name}]},
            })
        })
        .collect();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {"gatewayClassName": "portcullis", "listeners": listeners},
    })
}

fn listeners(load: &Load) -> Vec<String> {
    let gateway = load.snapshot.gateways.get("default", "edge");
    let listeners = gateway.map_or(&[][..], |gateway| &gateway.spec.listeners);
    listeners
        .iter()
        .map(|listener| listener.name.to_string())
        .collect()
}

fn held(load: &Load) -> Vec<String> {
    load.snapshot
        .secrets
        .keys()
        .map(|key| key.name.to_string())
        .collect()
}

/// Checks that every snapshot contains the Secrets that its Gateway references, and no others but those of a change of it that
/// waits for policies. The last one has no others.
fn assert_complete(watching: &Watching) {
    let mut last = None;
    for load in watching.history() {
        let (listeners, held) = (listeners(&load), held(&load));
        assert!(
            listeners.iter().all(|it| held.contains(it)),
            "{listeners:?} of {held:?}"
        );
        last = Some((listeners, held));
    }
    let (listeners, held) = last.expect("a load");
    assert_eq!(listeners, held);
}

#[test]
fn holds_only_referenced_secrets() {
    let api = Api::start();
    for number in 0..1000 {
        api.put(secret(&format!("s{number}")));
    }
    api.put(gateway(&["s1"]));
    let watching = Watching::start(&api);
    assert_eq!(held(&watching.wait_for(|_| true)), ["s1"]);
    // Only lists and watches so far: Secrets known from the first list are not fetched again.
    assert!(api.requests("/secrets/").is_empty());
    api.put(gateway(&["s1", "s500"]));
    watching.wait_for(|load| listeners(load) == ["s1", "s500"]);
    api.put(gateway(&["s500"]));
    watching.wait_for(|load| listeners(load) == ["s500"]);
    api.delete("Gateway", "default", "edge");
    watching.wait_for(|load| listeners(load).is_empty());
    assert_complete(&watching);
    assert_eq!(api.requests("/secrets/s").len(), 1);
}

/// Returns the plurals of the kinds that are watched, or have been.
fn watched_kinds(api: &Api) -> BTreeSet<String> {
    let requests = api.requests("watch=true").into_iter();
    let plurals = requests.filter_map(|request| {
        let (path, _) = request.target.split_once('?')?;
        path.rsplit('/').next().map(str::to_owned)
    });
    plurals.collect()
}

#[test]
fn lists_secrets_after_their_referrers() {
    let api = Api::start();
    api.put(secret("a"));
    api.put(gateway(&["a"]));
    api.hang("Gateway", Some(0));
    let watching = Watching::start(&api);
    // Secrets and ConfigMaps must not be listed yet, and Pods are watched only where ReleaseBackends are.
    let others = ["Gateway", "Secret", "ConfigMap", "Pod"];
    let kinds = Kind::all().iter().map(|kind| kind.kind);
    let expected: BTreeSet<String> = kinds
        .filter(|kind| !others.contains(kind))
        .filter_map(Api::plural)
        .map(str::to_owned)
        .collect();
    eventually(|| watched_kinds(&api), |watched| *watched == expected);
    assert!(api.requests("/secrets?").is_empty());
    api.hang("Gateway", None);
    assert_eq!(held(&watching.wait_for(|_| true)), ["a"]);
    assert!(api.requests("/secrets/").is_empty());
}

#[test]
fn unreferenced_secrets_are_ignored() {
    let api = Api::start();
    let watching = Watching::patient(&api);
    watching.wait_for(|_| true);
    for number in 0..100 {
        api.put(secret(&format!("s{number}")));
    }
    api.delete("Secret", "default", "s7");
    api.put(gateway(&["s99"]));
    watching.wait_for(|load| listeners(load) == ["s99"]);
    // The Secret may come alone, while the Gateway waits for policies.
    let [_, rest @ ..] = &*watching.history() else {
        panic!("no load")
    };
    assert!(rest.len() <= 2, "{} loads", rest.len());
    assert!(rest.iter().all(|load| held(load) == ["s99"]));
}

#[test]
fn follows_changes_of_referenced_secret() {
    let api = Api::start();
    api.put(secret("a"));
    api.put(gateway(&["a"]));
    let watching = Watching::start(&api);
    watching.wait_for(|load| held(load) == ["a"]);
    let mut rotated = secret("a");
    rotated["data"]["tls.key"] = "bmV3".into();
    api.put(rotated);
    let is_new = |load: &Load| {
        let secret = load.snapshot.secrets.get("default", "a");
        let key = secret.and_then(|secret| secret.data.get("tls.key"));
        key.and_then(Base64::bytes) == Some(b"new".as_slice())
    };
    watching.wait_for(is_new);
    api.delete("Secret", "default", "a");
    watching.wait_for(|load| held(load).is_empty());
    api.put(secret("a"));
    watching.wait_for(|load| held(load) == ["a"]);
    assert!(api.requests("/secrets/").is_empty());
}

#[test]
fn does_not_wait_for_missing_secret() {
    let api = Api::start();
    let watching = Watching::patient(&api);
    watching.wait_for(|_| true);
    api.put(gateway(&["a"]));
    watching.wait_for(|load| listeners(load) == ["a"]);
    api.put(secret("a"));
    watching.wait_for(|load| held(load) == ["a"]);
    assert_eq!(api.requests("/secrets/").len(), 1);
}

/// Adds a reference to a Secret while requests for Secrets fail.
fn wait_while(fault: Fault) {
    let api = Api::start();
    api.put(secret("a"));
    let watching = Watching::start(&api);
    watching.wait_for(|_| true);
    api.fail("Secret", Some(fault));
    api.put(gateway(&["a"]));
    let start = Instant::now();
    let load = watching.wait_for(|load| listeners(load) == ["a"]);
    let waited = start.elapsed();
    assert!(held(&load).is_empty());
    assert!(waited > Duration::from_secs(1), "{waited:?}");
    api.fail("Secret", None);
    watching.wait_for(|load| held(load) == ["a"]);
}

#[test]
fn retries_failed_fetch_of_secret() {
    wait_while(Fault::Status(503));
}

#[test]
fn retries_hanging_fetch_of_secret() {
    wait_while(Fault::Silence);
}

/// Returns a Gateway of namespace `busy` with 4,096 references to Secrets that do not exist.
fn busy_gateway(round: usize) -> serde_json::Value {
    let listener = |number: usize| {
        let references = (0..64).map(|one| json!({"name": format!("r{round}-{number}-{one}")}));
        json!({
            "name": format!("l{number}"), "port": 443, "protocol": "HTTPS",
            "hostname": format!("{number}.example"),
            "tls": {"certificateRefs": references.collect::<Vec<_>>()},
        })
    };
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "busy"},
        "spec": {"gatewayClassName": "portcullis", "listeners": (0..64).map(listener).collect::<Vec<_>>()},
    })
}

fn slice(address: &str) -> serde_json::Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "shop-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "shop"}},
        "endpoints": [{"addresses": [address]}], "ports": [{"port": 8080}],
    })
}

#[test]
fn missing_secrets_of_a_namespace_delay_no_other_change() {
    let api = Api::start();
    let watching = Watching::patient(&api);
    watching.wait_for(|_| true);
    for round in 1..=4 {
        api.put(busy_gateway(round));
        for change in 0..5 {
            let address = format!("10.0.{round}.{change}");
            api.put(slice(&address));
            watching.wait_for(|load| {
                let slice = load.snapshot.endpoint_slices.get("shop", "shop-1");
                slice.is_some_and(|slice| {
                    *slice.endpoints[0].addresses == [Box::from(address.as_str())]
                })
            });
        }
    }
    // A Secret of another namespace is fetched meanwhile.
    api.put(busy_gateway(5));
    api.put(secret("a"));
    api.put(gateway(&["a"]));
    watching.wait_for(|load| held(load) == ["a"]);
}

#[test]
fn gateway_does_not_wait_forever_for_its_missing_secrets() {
    let api = Api::start();
    api.put(busy_gateway(0));
    let watching = Watching::start(&api);
    watching.wait_for(|_| true);
    api.put(busy_gateway(1));
    let name = |load: &Load| {
        let gateway = load.snapshot.gateways.get("busy", "edge");
        let listener = gateway.map(|gateway| &gateway.spec.listeners[0]);
        let tls = listener.and_then(|listener| listener.tls.as_ref());
        tls.map(|tls| tls.certificate_refs[0].name.clone())
    };
    watching.wait_for(|load| name(load).as_deref() == Some("r1-0-0"));
}
