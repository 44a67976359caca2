//! `portcullis status` of all pods of a Gateway: a row for each, and what is wrong with them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::api::Api;
use crate::once::{kubeconfig, run, text};

/// Adds a pod of a Gateway that the controller has created.
pub(crate) fn pod(api: &Api, name: &str, gateway: &str) {
    api.apply(&format!(
        "
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: infra
  labels:
    app.kubernetes.io/managed-by: portcullis-controller
    gateway.networking.k8s.io/gateway-name: {gateway}
"
    ));
}

/// Sets the metrics of a pod.
fn metrics(api: &Api, pod: &str, revision: u64, (is_connected, failing): (u8, u64)) {
    let path = format!("/api/v1/namespaces/infra/pods/{pod}:19000/proxy/metrics");
    let page = format!(
        "portcullis_build_info{{version=\"0.2.0\"}} 1\nportcullis_connections_open 3\n\
         portcullis_problems{{kind=\"failing\",severity=\"error\"}} {failing}\nportcullis_stream_connected {is_connected}\n\
         portcullis_stream_contact_timestamp_seconds 1000.5\nportcullis_stream_revision {revision}\n# EOF\n"
    );
    api.serve_text(&path, page);
}

const EDGE: [&str; 4] = ["status", "-n", "infra", "gateway/edge"];

#[test]
fn pods_of_a_gateway_have_a_row_each() {
    let api = Api::start();
    for (name, gateway) in [("edge-1", "edge"), ("edge-2", "edge"), ("other-1", "other")] {
        pod(&api, name, gateway);
    }
    metrics(&api, "edge-1", 7, (1, 0));
    // Does not run.
    let output = run(&api, &EDGE);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row = |name: &str| {
        let line = printed.lines().find(|line| line.starts_with(name));
        let words = line.unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("edge-1"), "edge-1 0.2.0 7 0 s 3 none", "{printed}");
    let second = row("edge-2");
    assert!(second.starts_with("edge-2 - - - - NOT read: "), "{printed}");
    assert!(!printed.contains("other-1"), "{printed}");

    metrics(&api, "edge-2", 6, (0, 2));
    let output = run(&api, &[&EDGE[..], &["-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stale = &document["pods"][1];
    assert_eq!(stale["revision"], 6, "{document}");
    let failing = json!([{"kind": "failing", "severity": "error", "count": 2}]);
    assert_eq!(stale["problems"], failing);
    assert!(stale["lagSeconds"].as_u64() > Some(1000), "{document}");
    let printed = run(&api, &EDGE);
    let remedy = "the same command with --problems";
    assert!(text(&printed.stdout).contains(remedy), "{printed:?}");

    metrics(&api, "edge-2", 7, (1, 0));
    let output = run(&api, &EDGE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn gateway_without_pods_is_named() {
    let api = Api::start();
    let output = run(&api, &EDGE);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    let why = "Gateway infra/edge has no pods: its condition Programmed and its Events say why";
    assert!(error.contains(why), "{error}");
    let output = run(&api, &["status", "-n", "infra", "edge"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("must be gateway/NAME"), "{error}");
}

#[test]
fn gateway_whose_pods_are_refused_is_named() {
    let api = Api::start();
    let gateway = |status: &str| {
        let condition = json!({
            "type": "Programmed", "status": status, "reason": "Pending", "message": "the API server refuses its pods",
        });
        api.put(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "infra"},
            "spec": {"gatewayClassName": "portcullis", "listeners": []},
            "status": {"conditions": [condition]},
        }));
    };
    gateway("False");
    let why = "Programmed is False (Pending): the API server refuses its pods\n";
    let output = run(&api, &EDGE);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    let none = format!("Gateway infra/edge has no pods: {why}");
    assert!(error.contains(&none), "{error}");

    // Those of the rollout before.
    pod(&api, "edge-1", "edge");
    metrics(&api, "edge-1", 7, (1, 0));
    let output = run(&api, &EDGE);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let warning = format!("\nwarning: Gateway infra/edge: {why}");
    assert!(printed.ends_with(&warning), "{printed}");
    let output = run(&api, &[&EDGE[..], &["--fail-on", "error"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    gateway("True");
    let output = run(&api, &EDGE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A program that is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn pods_are_shown_again_while_they_are_watched() {
    let api = Api::start();
    pod(&api, "edge-1", "edge");
    metrics(&api, "edge-1", 7, (1, 0));
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(EDGE)
        .args(["--watch", "-o", "json", "--kubeconfig"])
        .arg(kubeconfig(&api, folder.path()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut watch = Running(child.unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut until = |revision: u64| {
        // About two minutes of them.
        let shown = lines.by_ref().take(60).map(Result::unwrap);
        let mut documents = shown.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        documents.any(|it| it["pods"][0]["revision"] == revision)
    };
    assert!(until(7));
    metrics(&api, "edge-1", 8, (1, 0));
    assert!(until(8));
    // Its pods are replaced.
    api.delete("Pod", "infra", "edge-1");
    let mut errors = BufReader::new(watch.0.stderr.take().unwrap()).lines();
    let error = errors.next().unwrap().unwrap();
    assert!(error.contains("Gateway infra/edge has no pods"), "{error}");
    metrics(&api, "edge-1", 9, (1, 0));
    pod(&api, "edge-1", "edge");
    assert!(until(9));
}
