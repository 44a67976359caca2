//! The cluster of the tests of time, and the updates about it as pods get them.

use serde_json::{Value, json};

use crate::api::Kind;
use crate::ir::ObjectRef;
use crate::provider::fixtures;
use crate::snapshot::Snapshot;

/// Routes that exist at a time.
const ROUTES: u64 = 3;

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
pub(super) const POLICY: (&str, &str) = ("portcullis.dev/v1alpha1", "AccessPolicy");

/// Writes an object of a kind of a group.
pub(super) fn insert(cluster: &mut Snapshot, (group, kind): (&str, &str), value: &Value) {
    let kind = Kind::find(group, kind).unwrap();
    cluster.insert(kind.decode(value).unwrap());
}

/// The states of a cluster after each of its writes.
pub(super) struct Cluster(pub(super) Vec<Snapshot>);

impl Cluster {
    pub(super) fn new() -> Self {
        let class =
            json!({"metadata": {"name": "ours"}, "spec": {"controllerName": "example.com/ours"}});
        let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
        let edge = json!({
            "metadata": {"namespace": "default", "name": "edge"},
            "spec": {"gatewayClassName": "ours", "listeners": listeners},
        });
        let mut cluster = Snapshot::default();
        insert(&mut cluster, (GATEWAY_API, "GatewayClass"), &class);
        insert(&mut cluster, (GATEWAY_API, "Gateway"), &edge);
        Self(vec![cluster])
    }

    pub(super) fn last(&self) -> usize {
        self.0.len() - 1
    }

    /// Writes a policy, or the route that it is for. Policies of routes that are gone are deleted, and some are replaced.
    pub(super) fn write(&mut self) {
        let mut next = self.0[self.last()].clone();
        let version = self.0.len() as u64;
        let before = |routes: u64| version.checked_sub(2 * routes).filter(|it| *it > 0);
        if !fixtures::is_policy(version) {
            let name = fixtures::name(version);
            let spec =
                json!({"parentRefs": [{"name": "edge"}], "hostnames": [name], "rules": [{}]});
            let route = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
            insert(&mut next, (GATEWAY_API, "HTTPRoute"), &route);
            if let Some(old) = before(ROUTES) {
                let old = ObjectRef::gateway_api("HTTPRoute", "default", &fixtures::name(old));
                assert!(next.remove(&old));
            }
            return self.0.push(next);
        }
        put_policy(&mut next, version, version);
        if let Some(replaced) = before(1).filter(|_| version.is_multiple_of(3)) {
            put_policy(&mut next, replaced, version);
        }
        if let Some(old) = before(ROUTES + 1) {
            let old = ObjectRef::new("portcullis.dev", POLICY.1, "default", &fixtures::name(old));
            assert!(next.remove(&old));
        }
        self.0.push(next);
    }
}

/// Writes the policy of a route with what a version says.
fn put_policy(cluster: &mut Snapshot, route: u64, version: u64) {
    let name = fixtures::name(route);
    let mut spec = fixtures::policy(version);
    spec["targetRefs"] = json!([
        {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name},
    ]);
    let metadata = json!({"namespace": "default", "name": name, "generation": version});
    insert(
        cluster,
        POLICY,
        &json!({"metadata": metadata, "spec": spec}),
    );
}

/// Returns a line as a controller of a later version says it: some policies have a section or a value that the pod cannot read.
fn of_later_version(line: &str) -> String {
    let mut line: Value = serde_json::from_str(line).unwrap();
    if let Some(put) = line
        .get_mut("put")
        .filter(|it| it["kind"] == "AccessPolicy")
    {
        let targets = put["spec"]["targetRefs"].clone();
        match put["metadata"]["generation"].as_u64().unwrap() % 5 {
            0 => put["spec"] = json!({"targetRefs": targets, "later": {}}),
            1 => put["spec"] = json!({"targetRefs": targets, "ipRules": {"deny": {"later": 1}}}),
            3 => put["spec"]["ipRules"] = json!({"later": ["192.0.2.1"]}),
            _ => {}
        }
    }
    line.to_string()
}

/// Returns an update whose objects come in another order, beside one of a kind that the pod does not know.
pub(super) fn reordered(update: &[u8], order: usize) -> Vec<u8> {
    let unknown = json!({"put": {"apiVersion": "portcullis.dev/v9", "kind": "Drawbridge", "metadata": {"name": "a"}}});
    let mut lines = Vec::new();
    let mut objects: Vec<String> = Vec::new();
    for line in std::str::from_utf8(update).unwrap().lines() {
        if line.starts_with("{\"put\"") || line.starts_with("{\"delete\"") {
            objects.push(of_later_version(line));
            continue;
        }
        if !objects.is_empty() {
            objects.push(unknown.to_string());
            let middle = order % objects.len();
            objects.rotate_left(middle);
            if order % 2 == 1 {
                objects.reverse();
            }
        }
        lines.append(&mut objects);
        lines.push(line.to_owned());
    }
    assert!(objects.is_empty(), "an update has no end");
    lines
        .iter()
        .flat_map(|it| format!("{it}\n").into_bytes())
        .collect()
}
