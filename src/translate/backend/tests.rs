//! The kind of docs/adding-a-backend-kind.md works everywhere once its file and its line exist.

use serde_json::{Value, json};

use crate::api::Kind;
use crate::ir::{Endpoints, ObjectRef};
use crate::settings::permissions::BackendKinds;
use crate::snapshot::Snapshot;
use crate::status::{Condition, ConditionType, Reason};
use crate::translate::closure::Closures;
use crate::translate::input::Options;
use crate::translate::{Translation, Translator, translate};

fn put(snapshot: &mut Snapshot, api_version: &str, kind: &str, object: &Value) {
    let kind = Kind::find(api_version, kind).unwrap();
    snapshot.insert(kind.decode(object).unwrap());
}

fn put_address(snapshot: &mut Snapshot, namespace: &str, address: &str) {
    let metadata = json!({"name": "b", "namespace": namespace});
    let object = json!({"metadata": metadata, "data": {"address": address}});
    put(snapshot, "v1", "ConfigMap", &object);
}

/// Returns a snapshot with a route to the ConfigMap `b` of a namespace.
fn scene(namespace: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let version = "gateway.networking.k8s.io/v1";
    let class = json!({
        "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway-controller"},
    });
    put(&mut snapshot, version, "GatewayClass", &class);
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let gateway = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"gatewayClassName": "portcullis", "listeners": listeners},
    });
    put(&mut snapshot, version, "Gateway", &gateway);
    let backend = json!({"kind": "ConfigMap", "name": "b", "namespace": namespace, "port": 8080});
    let route = json!({
        "metadata": {"name": "r", "namespace": "default"},
        "spec": {"parentRefs": [{"name": "web"}], "rules": [{"backendRefs": [backend]}]},
    });
    put(&mut snapshot, version, "HTTPRoute", &route);
    put_address(&mut snapshot, namespace, "10.0.0.1:8080");
    snapshot
}

fn endpoints(translation: &Translation) -> Vec<String> {
    let backends = translation.ir.backends.iter();
    let addresses = backends.flat_map(|backend| match &backend.endpoints {
        Endpoints::Addresses(addresses) => addresses.iter().map(ToString::to_string).collect(),
        Endpoints::Zoned { .. }
        | Endpoints::Unready { .. }
        | Endpoints::Hostname { .. }
        | Endpoints::Releases(_) => Vec::new(),
    });
    addresses.collect()
}

fn resolved(translation: &Translation) -> Condition {
    let name = ObjectRef::gateway_api("HTTPRoute", "default", "r");
    let conditions = &translation.report.routes[&name][0].conditions;
    let mut all = conditions.iter();
    all.find(|condition| condition.kind == ConditionType::ResolvedRefs)
        .cloned()
        .unwrap()
}

#[test]
fn resolves_new_kind_and_applies_its_changes() {
    let mut snapshot = scene("default");
    let mut translator = Translator::new(Options::default());
    let translation = translator.translate(&snapshot, None);
    assert_eq!(endpoints(&translation), ["10.0.0.1:8080"]);
    assert_eq!(resolved(&translation).reason, Reason::ResolvedRefs);
    put_address(&mut snapshot, "default", "10.0.0.2:8080");
    let translation = translator.translate(&snapshot, None);
    assert_eq!(endpoints(&translation), ["10.0.0.2:8080"]);
    put_address(&mut snapshot, "default", "nowhere");
    let condition = resolved(&translator.translate(&snapshot, None));
    assert_eq!(condition.reason, Reason::BackendNotFound);
    let end = "ConfigMap default/b has no data.address such as 10.0.0.1:80";
    assert!(condition.message.ends_with(end), "{}", condition.message);
}

#[test]
fn new_kind_must_be_enabled_and_granted() {
    let mut options = Options::default();
    options.permissions.backend_kinds = BackendKinds::Only(["v1.Service"].into());
    let condition = resolved(&translate(&scene("default"), None, &options));
    assert_eq!(condition.reason, Reason::InvalidKind);
    let end = "is not enabled as a backend; --backend-kinds enables it as v1.ConfigMap";
    assert!(condition.message.ends_with(end), "{}", condition.message);

    let mut snapshot = scene("other");
    let condition = resolved(&translate(&snapshot, None, &Options::default()));
    assert_eq!(condition.reason, Reason::RefNotPermitted);
    let from = json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "default"}]);
    let grant = json!({
        "metadata": {"name": "g", "namespace": "other"},
        "spec": {"from": from, "to": [{"group": "", "kind": "ConfigMap"}]},
    });
    let version = "gateway.networking.k8s.io/v1";
    put(&mut snapshot, version, "ReferenceGrant", &grant);
    let translation = translate(&snapshot, None, &Options::default());
    assert_eq!(endpoints(&translation), ["10.0.0.1:8080"]);
}

#[test]
fn new_kind_is_in_the_closure_of_the_gateway() {
    let gateway = ObjectRef::gateway_api("Gateway", "default", "web");
    let is_in_closure = |options| {
        let mut closures = Closures::new(options);
        closures.follow(&scene("default"));
        let closure = closures.get(&gateway).unwrap();
        closure.config_maps.get("default", "b").is_some()
    };
    assert!(is_in_closure(Options::default()));
    let mut options = Options::default();
    options.permissions.backend_kinds = BackendKinds::Only(["v1.Service"].into());
    assert!(!is_in_closure(options));
}

#[test]
fn documentation_shows_the_file_of_the_kind() {
    let page = include_str!("../../../docs/adding-a-backend-kind.md");
    let file = include_str!("config_map.rs");
    let (_, code) = file.split_once("\n\n").unwrap();
    assert!(page.contains(code));
}
