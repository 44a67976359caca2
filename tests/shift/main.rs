//! `portcullis shift` against an API server with managed fields: the fields and managers of its writes, its output, and
//! its handling of conflicts (`weights`); its report on requests, and its rollback (`watch`); its guide (`guide`).

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api;
#[path = "../harness/ports.rs"]
mod ports;

mod guide;
mod watch;
mod weights;

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;

/// Applied with `kubectl`, which owns the weight of v1. No manager owns the weight of v2, since `kubectl` created it
/// earlier.
const SHOP: &str = r#"
apiVersion: portcullis.dev/v1alpha1
kind: ReleaseBackend
metadata:
  name: shop
  namespace: shop
  uid: 6e2f0d3c-8f2a-4a53-8f3f-0c9f4b4f7a11
  managedFields:
  - manager: kubectl-client-side-apply
    operation: Update
    apiVersion: portcullis.dev/v1alpha1
    time: "2026-01-02T03:04:05Z"
    fieldsType: FieldsV1
    fieldsV1:
      f:spec:
        f:loadBalancer: {f:v1.Service: {}}
        f:splitBy: {}
        f:releases:
          k:{"value":"v3"}: {.: {}, f:value: {}, f:weight: {}}
spec:
  loadBalancer: {v1.Service: {name: shop}}
  splitBy: app.kubernetes.io/instance
  releases:
  - {value: v1, weight: 90}
  - {value: v2, weight: 0}
  - {value: v3, weight: 0}
status:
  releases:
  - {value: v1, ready: 3, weight: 90, effectivePercent: 100}
  - {value: v2, ready: 2, weight: 0, effectivePercent: 0}
  - {value: v3, ready: 0, weight: 0, effectivePercent: 0}
"#;

/// The program with a cluster.
struct Scene {
    api: Api,
    folder: TempDir,
}

impl Scene {
    /// Returns a cluster with the ReleaseBackend shop/shop.
    fn new() -> Self {
        let api = Api::start();
        api.apply(SHOP);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kubeconfig"), api.kubeconfig(&json!({}))).unwrap();
        Self { api, folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command
            .arg("shift")
            .args(arguments)
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command and waits for its end.
    fn shift(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).output().unwrap())
    }

    /// Runs a command that has to succeed. Returns its output.
    fn shifted(&self, arguments: &[&str]) -> String {
        let outcome = self.shift(arguments);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stdout
    }

    fn object(&self) -> Value {
        self.api.object("ReleaseBackend", "shop", "shop")
    }

    /// Returns the weights in the object, such as `v1=90 v2=10`.
    fn weights(&self) -> String {
        let object = self.object();
        let releases = object["spec"]["releases"].as_array().unwrap();
        let weights = releases
            .iter()
            .map(|it| format!("{}={}", text(&it["value"]), it["weight"]));
        weights.collect::<Vec<_>>().join(" ")
    }

    /// Returns the managers that own the weight of a release.
    fn owners(&self, release: &str) -> Vec<String> {
        let object = self.object();
        let key = format!("k:{}", json!({"value": release}));
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let owns =
            |entry: &&Value| !entry["fieldsV1"]["f:spec"]["f:releases"][&key]["f:weight"].is_null();
        let owners = entries
            .iter()
            .filter(owns)
            .map(|entry| text(&entry["manager"]).to_owned());
        owners.collect()
    }
}

/// The exit status and output of a command.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts that the command failed with a message that has these parts.
    fn assert_failed(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is missing: {self:?}");
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
