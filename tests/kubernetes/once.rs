//! A cluster that `check` and `explain` read once: what is listed, what is absent, and what fails.

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
data: {}
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

/// Runs the program on the test API server.
fn run(api: &Api, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig(&json!({"token": "test"}))).unwrap();
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn reads_all_pages_and_only_referenced_secrets() {
    let api = Api::start();
    api.apply(EDGE);
    for number in 0..1234 {
        api.apply(&route(&format!("r{number}"), "target"));
    }
    let Listing { load, absent } = list(&api, |provider| provider).unwrap();
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
    let Listing { load, absent } = list(&api, |provider| provider).unwrap();
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
    let Listing { load, absent } = listing.unwrap();
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
