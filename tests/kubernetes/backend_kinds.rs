//! Kinds of backends: which kinds are watched, and kinds whose CRD is installed later.

use crate::api::Api;
use crate::harness::origin::Origin;
use crate::plane::DataPlane;
use crate::watching::Watching;
use crate::{route, route_with};

const XBACKEND: &str = "
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: api, namespace: default}
spec:
  type: ExternalHostname
  externalHostname: {hostname: api.example.com}
  port: {port: 443}
";

const TRAFFIC_POLICY: &str = "
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: retries, namespace: default}
spec:
  targetRefs: [{group: '', kind: Service, name: app}]
  retryConstraint: {}
";

#[test]
fn watches_traffic_policies_once_their_crd_is_installed() {
    let api = Api::start();
    api.set_served("XBackendTrafficPolicy", false);
    let watching = Watching::start(&api);
    let load = watching.wait_for(|_| true);
    assert!(load.snapshot.backend_traffic_policies.is_empty());
    api.set_served("XBackendTrafficPolicy", true);
    api.apply(TRAFFIC_POLICY);

    let policies =
        |load: &portcullis::provider::Load| load.snapshot.backend_traffic_policies.clone();
    watching.wait_for(|load| policies(load).get("default", "retries").is_some());
}

#[test]
fn watches_a_kind_once_its_crd_is_installed() {
    let api = Api::start();
    api.set_served("XBackend", false);
    let watching = Watching::start(&api);
    let load = watching.wait_for(|_| true);
    assert!(load.snapshot.xbackends.is_empty());
    api.set_served("XBackend", true);
    api.apply(XBACKEND);
    watching.wait_for(|load| load.snapshot.xbackends.get("default", "api").is_some());
}

/// Starts a data plane with an argument. Returns which of these kinds it has listed once it serves.
fn listed_kinds(kinds: &str) -> Vec<&'static str> {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start_with(&api, &["--backend-kinds", kinds]);
    plane.wait_for("a.example", "https://one/");
    let lists = ["services", "endpointslices", "xbackends"].into_iter();
    let asked = lists.filter(|list| !api.requests(&format!("/{list}?")).is_empty());
    asked.collect()
}

#[test]
fn does_not_watch_kinds_that_only_disabled_backends_need() {
    let external = "gateway.networking.x-k8s.io/v1alpha1.XBackend";
    assert_eq!(listed_kinds("v1.Service"), ["services", "endpointslices"]);
    assert_eq!(listed_kinds(external), ["xbackends"]);
}

fn import(origin: &Origin) -> String {
    let port = origin.address.port();
    format!(
        "
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {{name: shop, namespace: default}}
spec: {{type: ClusterSetIP, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: shop-1, namespace: default, labels: {{multicluster.kubernetes.io/service-name: shop}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"
    )
}

#[test]
fn serves_a_service_import_once_its_crd_is_installed() {
    let api = Api::start();
    let origin = Origin::hello();
    api.set_served("ServiceImport", false);
    let backend = "{group: multicluster.x-k8s.io, kind: ServiceImport, name: shop, port: 80}";
    api.apply(&route_with("a", &format!("{{backendRefs: [{backend}]}}")));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "500");
    api.set_served("ServiceImport", true);
    api.apply(&import(&origin));
    plane.wait_for("a.example", "200");
    api.delete("EndpointSlice", "default", "shop-1");
    plane.wait_for("a.example", "503");
}

fn pool(origin: &Origin) -> String {
    let port = origin.address.port();
    format!(
        "
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {{name: llm, namespace: default}}
spec: {{selector: {{matchLabels: {{app: llm}}}}, targetPorts: [{{number: {port}}}]}}
"
    )
}

fn pod(ready: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: llm-a, namespace: default, labels: {{app: llm}}}}
status: {{phase: Running, podIP: 127.0.0.1, conditions: [{{type: Ready, status: '{ready}'}}]}}
"
    )
}

#[test]
fn serves_a_pool_and_its_pods_once_its_crd_is_installed() {
    let api = Api::start();
    let origin = Origin::hello();
    api.set_served("InferencePool", false);
    let backend = "{group: inference.networking.k8s.io, kind: InferencePool, name: llm}";
    api.apply(&route_with("a", &format!("{{backendRefs: [{backend}]}}")));
    api.apply(&pod("True"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "500");
    api.set_served("InferencePool", true);
    api.apply(&pool(&origin));
    plane.wait_for("a.example", "200");
    api.apply(&pod("False"));
    plane.wait_for("a.example", "503");
}
