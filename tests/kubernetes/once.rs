//! A cluster that `check` and `explain` read once: what is listed, what is absent, and what fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kube::Config;
use portcullis::cluster::client::ApiServer;
use portcullis::provider::{KubernetesProvider, Listing};
use serde_json::{Value, json};

use crate::api::{Api, Fault};
use crate::{route, route_with};

/// A Gateway with HTTPS, the Secret that it refers to, and another Secret.
const EDGE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: tls}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: default}
type: kubernetes.io/tls
data: {tls.crt: '', tls.key: ''}
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: default}
data: {password: c2VjcmV0}
";

fn list(
    api: &Api,
    adapt: impl FnOnce(KubernetesProvider) -> KubernetesProvider,
) -> anyhow::Result<Listing> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let api_server = ApiServer::new(Config::new(api.url().parse().unwrap()));
        let provider = KubernetesProvider::new(&api_server).unwrap();
        adapt(provider).list_once().await
    })
}

/// Writes a kubeconfig for the test API server.
pub(crate) fn kubeconfig(api: &Api, folder: &Path) -> PathBuf {
    let file = folder.join("kubeconfig");
    std::fs::write(&file, api.kubeconfig(&json!({"token": "test"}))).unwrap();
    file
}

/// Runs the program on the test API server.
pub(crate) fn run(api: &Api, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig(api, folder.path());
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn reads_all_pages_and_only_referenced_secrets() {
    let api = Api::start();
    api.apply(EDGE);
    for number in 0..1234 {
        api.apply(&route(&format!("r{number}"), "target"));
    }
    let Listing { load, absent, .. } = list(&api, |provider| provider).unwrap();
    assert_eq!(load.snapshot.http_routes.len(), 1234);
    assert_eq!(load.snapshot.secrets.len(), 1);
    assert!(load.snapshot.secrets.get("default", "tls").is_some());
    assert_eq!(load.problems, []);
    let all = api.requests("");
    assert!(all.iter().all(|request| request.method == "GET"), "{all:?}");
    assert!(api.requests("watch").is_empty());
    assert!(api.requests("/secrets?").is_empty());
    assert!(api.requests("/secrets/other").is_empty());
    // The test API server does not have all kinds.
    let [line] = &absent[..] else {
        panic!("{absent:?}");
    };
    assert!(line.starts_with("the cluster does not serve "), "{line}");
    assert!(line.contains("GRPCRoute, "), "{line}");
    assert!(line.ends_with(": treated as absent"), "{line}");
}

#[test]
fn lists_anew_when_the_token_of_a_page_expires() {
    let api = Api::start();
    for number in 0..600 {
        api.apply(&route(&format!("r{number}"), "target"));
    }
    api.expire_pages(1);
    let listing = list(&api, |provider| provider).unwrap();
    assert_eq!(listing.load.snapshot.http_routes.len(), 600);
}

#[test]
fn forbidden_kinds_and_objects_are_absent() {
    let api = Api::start();
    api.apply(EDGE);
    api.apply(&route("a", "target"));
    api.fail("ReferenceGrant", Some(Fault::Status(403)));
    api.fail("Secret", Some(Fault::Status(403)));
    let Listing { load, absent, .. } = list(&api, |provider| provider).unwrap();
    assert_eq!(load.snapshot.http_routes.len(), 1);
    for expected in [
        "ReferenceGrant cannot be listed: status 403 (403 Forbidden): treated as absent",
        "Secret default/tls cannot be read: status 403 (403 Forbidden): treated as absent",
    ] {
        assert!(absent.iter().any(|line| line == expected), "{absent:?}");
    }
}

#[test]
fn other_failures_end_the_list() {
    let api = Api::start();
    api.fail("Service", Some(Fault::Status(401)));
    let error = list(&api, |provider| provider).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("Service cannot be listed: status 401 (401 Unauthorized)"),
        "{error}"
    );
    assert!(error.contains(&api.url()), "{error}");
    api.fail("Service", Some(Fault::Reset));
    assert!(list(&api, |provider| provider).is_err());
}

#[test]
fn is_restricted_to_namespaces_and_a_gateway() {
    let api = Api::start();
    api.apply(EDGE);
    api.apply(&EDGE.replace("namespace: default", "namespace: other"));
    api.permit(&["default"]);
    let listing = list(&api, |provider| {
        provider
            .only("default", "edge")
            .within(["default".to_owned()])
    });
    let Listing { load, absent, .. } = listing.unwrap();
    assert_eq!(load.snapshot.gateways.len(), 1);
    assert_eq!(load.snapshot.secrets.len(), 1);
    assert_eq!(absent.len(), 1, "{absent:?}");
}

#[test]
fn unreadable_object_is_a_problem() {
    let api = Api::start();
    api.apply(&route("a", "target").replace("hostnames: [a.example]", "hostnames: 7"));
    let listing = list(&api, |provider| provider).unwrap();
    let problems: Vec<_> = listing
        .load
        .problems
        .iter()
        .map(ToString::to_string)
        .collect();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert!(
        problem.starts_with("error: HTTPRoute default/a: cannot be read: spec.hostnames: "),
        "{problem}"
    );
}

#[test]
fn check_prints_conditions_of_the_cluster() {
    let api = Api::start();
    api.apply(EDGE);
    api.apply(&route("good", "target"));
    let output = run(&api, &["check", "--kubernetes", "--context", "test"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    let refused =
        "Gateway default/edge: listener https: ResolvedRefs is False (InvalidCertificateRef): ";
    assert!(out.contains(refused), "{out}");
    assert!(
        out.contains("HTTPRoute default/good\n  for Gateway edge\n    Accepted is True"),
        "{out}"
    );
    assert!(err.contains("the cluster does not serve "), "{err}");
    api.put(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {
            "gatewayClassName": "portcullis",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    }));
    let output = run(&api, &["check", "--kubernetes", "-o", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{document}");
    assert_eq!(document["summary"]["gateways"], 1, "{document}");
    assert_eq!(document["summary"]["routes"], 1, "{document}");
}

/// The objects can be listed, but a controller with the same credentials would not serve all of them.
#[test]
fn check_names_rights_that_the_controller_needs_and_the_user_lacks() {
    let api = Api::start();
    api.apply(EDGE);
    let output = run(&api, &["check", "--kubernetes"]);
    let err = text(&output.stderr);
    assert!(!err.contains("no right to"), "{err}");
    let discoveries = || {
        let requests = api.requests("/apis/gateway.networking.k8s.io/v1");
        let of_kinds = requests.iter().filter(|it| it.target.ends_with("/v1"));
        of_kinds.count()
    };
    let first = discoveries();
    assert_ne!(first, 0);
    // What needs no rights discovers the kinds once, and so does what asks for them.
    run(&api, &["explain", "--kubernetes", "http://a.example/"]);
    assert_eq!(discoveries(), 2 * first);
    let reviews = api.requests("selfsubjectaccessreviews");
    assert!(reviews.iter().any(|it| it.method == "POST"), "{reviews:?}");
    api.fail_watches("HTTPRoute", Some(Fault::Status(403)));
    api.fail("ConfigMap", Some(Fault::Status(403)));
    let output = run(&api, &["check", "--kubernetes"]);
    let err = text(&output.stderr);
    let needs = "which the controller and `portcullis run --kubernetes` need: if they have these credentials, add";
    for line in [
        format!(
            "HTTPRoute: no right to watch, {needs} watch on httproutes.gateway.networking.k8s.io to a ClusterRole"
        ),
        format!(
            "ConfigMap: no right to get, list, watch, {needs} get, list, watch on configmaps to a ClusterRole"
        ),
    ] {
        assert!(err.lines().any(|it| it.ends_with(&line)), "{err}");
    }
    assert_eq!(err.matches("no right to").count(), 2, "{err}");
    api.fail("ConfigMap", None);
    api.permit(&["default"]);
    let output = run(&api, &["check", "--kubernetes", "--namespaces", "default"]);
    let err = text(&output.stderr);
    let line = "HTTPRoute in default: no right to watch, ";
    assert!(
        err.contains(line) && err.contains(" to a Role in default\n"),
        "{err}"
    );
    assert_eq!(err.matches("no right to").count(), 1, "{err}");
    // Who explains a request needs no such right.
    let explain = ["explain", "--kubernetes", "http://a.example/"];
    let output = run(&api, &explain);
    assert!(!text(&output.stderr).contains("no right to"));
}

#[test]
fn explain_names_the_rule_of_the_cluster() {
    let api = Api::start();
    api.apply(EDGE);
    // A port that another Gateway has too.
    api.apply(&EDGE.replace("namespace: default", "namespace: other"));
    api.apply(&route_with(
        "shop",
        "{backendRefs: [{name: shop, port: 80}]}",
    ));
    let url = "http://shop.example/";
    let output = run(&api, &["explain", "--kubernetes", url]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("of Gateway default/edge\n"), "{out}");
    assert!(out.contains("of Gateway other/edge\n"), "{out}");
    assert!(out.contains("HTTPRoute default/shop"), "{out}");
    assert!(
        out.contains("problems in the cluster: see `portcullis check`"),
        "{out}"
    );
    let output = run(
        &api,
        &["explain", "--kubernetes", "--gateway", "other/edge", url],
    );
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(!out.contains("default/edge"), "{out}");
}

/// A Service with an endpoint, and one without.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: app, namespace: default}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app, namespace: default, labels: {kubernetes.io/service-name: app}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: default}
spec: {ports: [{port: 80}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: guarded, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: guarded}]
  ipRules: {deny: [10.0.0]}
";

#[test]
fn explain_says_of_a_cluster_what_it_says_of_a_folder() {
    let filter = "{type: ExtensionRef, extensionRef: {group: portcullis.dev, kind: RouteFilter, name: missing}}";
    let filtered = format!("{{filters: [{filter}], backendRefs: [{{name: app, port: 80}}]}}");
    let rules = [
        ("well", "{backendRefs: [{name: app, port: 80}]}", None),
        (
            "missing",
            "{backendRefs: [{name: ap, port: 80}]}",
            Some(500),
        ),
        ("port", "{backendRefs: [{name: app, port: 81}]}", Some(500)),
        (
            "kind",
            "{backendRefs: [{kind: Pod, name: app, port: 80}]}",
            Some(500),
        ),
        (
            "foreign",
            "{backendRefs: [{name: app, namespace: data, port: 80}]}",
            Some(500),
        ),
        (
            "zero",
            "{backendRefs: [{name: app, port: 80, weight: 0}]}",
            Some(500),
        ),
        ("filter", &*filtered, Some(500)),
        (
            "empty",
            "{backendRefs: [{name: empty, port: 80}]}",
            Some(503),
        ),
        (
            "guarded",
            "{backendRefs: [{name: app, port: 80}]}",
            Some(500),
        ),
    ];
    let mut documents = vec![EDGE.to_owned(), SERVICES.to_owned()];
    documents.extend(rules.iter().map(|(host, rule, _)| route_with(host, rule)));
    let (api, folder) = (Api::start(), tempfile::tempdir().unwrap());
    documents.iter().for_each(|document| api.apply(document));
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, documents.join("\n---\n")).unwrap();
    let hosts = rules.iter().map(|(host, _, status)| (*host, *status));
    let requests = hosts.map(|(host, status)| (format!("http://{host}.example/"), status));
    let refused = [
        ("http://nobody.example/".to_owned(), Some(404)),
        // No certificate can be used.
        ("https://well.example/".to_owned(), None),
    ];
    for (url, status) in requests.chain(refused) {
        let of_cluster = run(&api, &["explain", "--kubernetes", "-o", "json", &url]);
        let of_folder = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["explain", "-o", "json"])
            .arg(&file)
            .arg(&url)
            .output()
            .unwrap();
        let outcome = |output: &Output| {
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            document["ports"][0]["outcome"].clone()
        };
        let (explained, expected) = (outcome(&of_cluster), outcome(&of_folder));
        assert_eq!(explained, expected, "{url}");
        assert_eq!(explained["status"], json!(status), "{url}: {explained}");
        assert_eq!(
            of_cluster.status.code(),
            of_folder.status.code(),
            "{url}: {explained}"
        );
    }
}

#[test]
fn unreachable_cluster_and_unknown_context_are_named() {
    let api = Api::start();
    let output = run(&api, &["check", "--kubernetes", "--context", "nowhere"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("nowhere"), "{err}");
    api.offline(true);
    let output = run(&api, &["check", "--kubernetes"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(
        err.contains(&format!("cannot list the objects of {}", api.url())),
        "{err}"
    );
    assert_eq!(text(&output.stdout), "");
}
