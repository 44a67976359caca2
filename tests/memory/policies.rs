//! What a change of one listener takes when many policies are on the routes of all its neighbours.

use allocation_counter::measure;
use portcullis::api::Kind;
use portcullis::snapshot::Snapshot;
use portcullis::translate::{Options, Translator};
use serde_json::{Value, json};

const API: &str = "gateway.networking.k8s.io/v1";
const POLICIES: usize = 30;
const ROUTES: usize = 16;
const LISTENERS: usize = 512;
/// Allocations for a target of a policy: as many as for some paths of requests, and not for one through each listener.
const MAX_FOR_TARGET: u64 = 200;

fn object(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

fn insert(snapshot: &mut Snapshot, object: &Value) {
    let text = |name: &str| object[name].as_str().expect("a text");
    let kind = Kind::find(text("apiVersion"), text("kind")).expect("a kind");
    snapshot.insert(kind.decode(object).expect("a valid object"));
}

/// A Gateway. `host` is a part of the hostname of one listener.
fn gateway(host: &str) -> Value {
    let listener = |number: usize| {
        let host = if number == 0 { host } else { "h" };
        json!({
            "name": format!("l{number}"), "port": 80, "protocol": "HTTP",
            "hostname": format!("{host}{number}.example.com"),
        })
    };
    let listeners: Vec<_> = (0..LISTENERS).map(listener).collect();
    let spec = json!({"gatewayClassName": "portcullis", "listeners": listeners});
    object(API, "Gateway", "web", &spec)
}

/// The Gateway, routes that are attached to all its listeners, and so many policies on all these routes.
fn snapshot(policies: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    insert(&mut snapshot, &gateway("h"));
    let names: Vec<_> = (0..ROUTES).map(|route| format!("r{route}")).collect();
    for (number, name) in names.iter().enumerate() {
        let path = json!({"type": "PathPrefix", "value": format!("/{number}")});
        let rules = json!([{"matches": [{"path": path}]}]);
        let spec = json!({"parentRefs": [{"name": "web"}], "rules": rules});
        insert(&mut snapshot, &object(API, "HTTPRoute", name, &spec));
    }
    let group = "gateway.networking.k8s.io";
    let target = |name: &String| json!({"group": group, "kind": "HTTPRoute", "name": name});
    let targets: Vec<_> = names.iter().map(target).collect();
    for number in 0..policies {
        let spec = json!({"targetRefs": targets, "ipRules": {"deny": ["192.0.2.1"]}});
        let (api, name) = ("portcullis.dev/v1alpha1", format!("p{number}"));
        insert(&mut snapshot, &object(api, "AccessPolicy", &name, &spec));
    }
    snapshot
}

/// Returns the number of allocations of a change of one listener.
fn of_a_change(policies: usize) -> u64 {
    let mut translator = Translator::new(Options::default());
    let mut snapshot = snapshot(policies);
    let first = translator.translate(&snapshot, None);
    assert_eq!(first.report.policies.len(), policies);
    insert(&mut snapshot, &gateway("other"));
    measure(|| drop(translator.translate(&snapshot, Some(&first.ir)))).count_total
}

#[test]
fn policies_on_routes_of_many_listeners_take_little_of_a_change_of_one_listener() {
    // What is allocated once in a process does not count.
    let alone = of_a_change(1).min(of_a_change(1));
    let more = (POLICIES - 1) * ROUTES;
    let of_policies = of_a_change(POLICIES).saturating_sub(alone);
    let bound = MAX_FOR_TARGET * more as u64;
    assert!(
        of_policies <= bound,
        "{of_policies} allocations for {more} more targets, at most {bound}"
    );
}
