//! ReleaseBackends and InferencePools: the pods in a closure.

use std::collections::BTreeMap;

use portcullis::api::core::Service;
use portcullis::api::inference_pool::InferencePoolSpec;
use portcullis::api::pod::Pod;
use portcullis::api::release_backend::ReleaseBackend;
use portcullis::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, route, slice};

/// Checks that every pod of a closure is an endpoint of one of its ReleaseBackends or InferencePools: its labels are selected,
/// or an EndpointSlice names it.
pub(crate) fn check_pods(closure: &Snapshot) {
    for pod in closure.pods.iter() {
        let namespace = &pod.metadata.namespace;
        let mut backends = closure.release_backends.in_namespace(namespace);
        let mut pools = closure.inference_pools.in_namespace(namespace);
        let is_endpoint = backends.any(|backend| has_endpoint(closure, backend, pod))
            || pools.any(|pool| is_selected(&pool.spec, pod));
        assert!(
            is_endpoint,
            "{namespace}/{} is no endpoint",
            pod.metadata.name
        );
    }
}

fn has_endpoint(closure: &Snapshot, backend: &ReleaseBackend, pod: &Pod) -> bool {
    let namespace = &backend.metadata.namespace;
    let configured = backend.spec.load_balancer.get("v1.Service");
    let is_meant = |service: &Service| match configured {
        Some(value) => value["name"] == *service.metadata.name,
        None => service.metadata.labels.contains_key("shipper-lb"),
    };
    let mut services = closure
        .services
        .in_namespace(namespace)
        .filter(|it| is_meant(it));
    services.any(
        |service| match selector(configured.unwrap_or(&Value::Null), service) {
            Some(labels) => selects(&labels, pod),
            None => {
                let slices = closure.endpoint_slices.in_namespace(namespace);
                let owner = |labels: &BTreeMap<String, String>| {
                    labels.get("kubernetes.io/service-name").cloned()
                };
                let own = slices.filter(|it| {
                    owner(&it.metadata.labels).is_some_and(|it| service.metadata.name == it)
                });
                let targets = own
                    .flat_map(|it| &it.endpoints)
                    .filter_map(|it| it.target_ref.as_ref());
                targets.into_iter().any(|it| pod.metadata.name == it.name)
            }
        },
    )
}

fn is_selected(pool: &InferencePoolSpec, pod: &Pod) -> bool {
    let labels = &pool.selector.match_labels;
    !labels.is_empty() && selects(labels, pod)
}

fn selects(labels: &BTreeMap<String, String>, pod: &Pod) -> bool {
    let own = &pod.metadata.labels;
    labels
        .iter()
        .all(|(key, value)| own.get(key) == Some(value))
}

/// Returns the labels of the pods that a configuration selects.
fn selector(configured: &Value, service: &Service) -> Option<BTreeMap<String, String>> {
    if let Some(labels) = configured["selector"].as_object() {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        return Some(
            labels
                .iter()
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
        );
    }
    let keys = configured["removeKeys"].as_array()?;
    let mut labels = BTreeMap::clone(&service.spec.selector);
    labels.retain(|key, _| !keys.iter().any(|removed| removed == key));
    Some(labels)
}

fn release_backend(configured: impl Into<Value>) -> Value {
    let releases = json!([{"value": "v1", "weight": 1}]);
    let spec =
        json!({"loadBalancer": configured.into(), "splitBy": "release", "releases": releases});
    object("ReleaseBackend", "apps", "shop", spec)
}

fn pod(name: &str, app: &str) -> Value {
    let mut pod = object("Pod", "apps", name, json!({}));
    pod["metadata"]["labels"] = json!({"app": app, "release": "v1"});
    pod["status"] =
        json!({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]});
    pod
}

fn service(name: &str, labels: impl Into<Value>) -> Value {
    let spec = json!({"ports": [{"port": 80}], "selector": {"app": name, "release": "v1"}});
    let mut service = object("Service", "apps", name, spec);
    service["metadata"]["labels"] = labels.into();
    service
}

fn scene(configured: impl Into<Value>) -> Followed {
    let backend =
        json!({"group": "portcullis.dev", "kind": "ReleaseBackend", "name": "shop", "port": 80});
    let mut slice = slice("apps", "shop", "10.0.0.1");
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "a"});
    Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", backend),
        route("apps", "s", "two", json!({"name": "shop", "port": 80})),
        release_backend(configured),
        service("shop", json!({})),
        slice,
        pod("a", "shop"),
        pod("b", "shop"),
        pod("c", "other"),
    ])
}

const WITHOUT_PODS: [&str; 3] = [
    "EndpointSlice apps/shop-x",
    "HTTPRoute apps/s",
    "Service apps/shop",
];

#[test]
fn closure_includes_pods_of_endpoint_slices_only_for_release_backends() {
    let mut followed = scene(json!({"v1.Service": {"name": "shop"}}));
    let expected = [
        "EndpointSlice apps/shop-x",
        "HTTPRoute apps/r",
        "Pod apps/a",
        "ReleaseBackend apps/shop",
        "Service apps/shop",
    ];
    assert_eq!(followed.of("one"), expected);
    assert_eq!(followed.of("two"), WITHOUT_PODS);
    let mut changed = slice("apps", "shop", "10.0.0.2");
    changed["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "b"});
    let one = "one: -Pod apps/a +Pod apps/b +EndpointSlice apps/shop-x";
    assert_eq!(
        followed.put(&changed),
        [one, "two: +EndpointSlice apps/shop-x"]
    );
}

#[test]
fn closure_follows_labels_of_selected_pods() {
    let mut followed = scene(json!({"v1.Service": {"name": "shop", "removeKeys": ["release"]}}));
    let expected = [
        "EndpointSlice apps/shop-x",
        "HTTPRoute apps/r",
        "Pod apps/a",
        "Pod apps/b",
        "ReleaseBackend apps/shop",
        "Service apps/shop",
    ];
    assert_eq!(followed.of("one"), expected);
    assert_eq!(followed.of("two"), WITHOUT_PODS);
    assert_eq!(followed.put(&pod("c", "shop")), ["one: +Pod apps/c"]);
    assert_eq!(followed.put(&pod("a", "other")), ["one: -Pod apps/a"]);
    assert_eq!(followed.delete(&pod("b", "shop")), ["one: -Pod apps/b"]);
    let none: [&str; 0] = [];
    assert_eq!(followed.put(&pod("d", "other")), none);
}

#[test]
fn closure_includes_all_labelled_services_without_a_configuration() {
    let mut followed = scene(json!({}));
    let mark = || json!({"shipper-lb": "production"});
    let expected = ["HTTPRoute apps/r", "ReleaseBackend apps/shop"];
    assert_eq!(followed.of("one"), expected);
    let one = "one: +Service apps/shop +EndpointSlice apps/shop-x +Pod apps/a";
    let mut changes = followed.put(&service("shop", mark()));
    changes.retain(|change| change.starts_with("one"));
    let sorted = |change: &str| {
        let mut words: Vec<_> = change.split(" +").map(str::to_owned).collect();
        words.sort();
        words
    };
    assert_eq!(
        changes.iter().map(|it| sorted(it)).collect::<Vec<_>>(),
        [sorted(one)]
    );
    // With two labelled Services, none is used. A data plane needs both to report that.
    let changes = followed.put(&service("other", mark()));
    assert_eq!(changes, ["one: -Pod apps/a +Service apps/other"]);
}

/// A pool of the pods of `shop`, with a picker, that Gateway `one` sends requests to.
fn pool_scene() -> Followed {
    let reference =
        json!({"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llm"});
    let pool = json!({
        "selector": {"matchLabels": {"app": "shop"}}, "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "epp", "port": {"number": 80}},
    });
    let mut without_address = pod("d", "shop");
    without_address["status"] = json!({});
    Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", reference),
        object("InferencePool", "apps", "llm", pool),
        service("epp", json!({})),
        slice("apps", "epp", "10.0.1.1"),
        pod("a", "shop"),
        pod("c", "other"),
        without_address,
    ])
}

#[test]
fn closure_includes_pods_and_picker_of_a_pool() {
    let mut followed = pool_scene();
    let expected = [
        "EndpointSlice apps/epp-x",
        "HTTPRoute apps/r",
        "InferencePool apps/llm",
        "Pod apps/a",
        "Service apps/epp",
    ];
    assert_eq!(followed.of("one"), expected);
    assert!(followed.of("two").is_empty());
    assert_eq!(followed.put(&pod("c", "shop")), ["one: +Pod apps/c"]);
    assert_eq!(followed.put(&pod("d", "shop")), ["one: +Pod apps/d"]);
    assert_eq!(followed.put(&pod("a", "other")), ["one: -Pod apps/a"]);
    let validation = json!({"hostname": "h", "wellKnownCACertificates": "System"});
    let targets = json!([{"group": "", "kind": "Service", "name": "epp"}]);
    let policy = json!({"targetRefs": targets, "validation": validation});
    let policy = object("BackendTLSPolicy", "apps", "p", policy);
    assert_eq!(followed.put(&policy), ["one: +BackendTLSPolicy apps/p"]);
}
