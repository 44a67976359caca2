//! The credentials of a kubeconfig: that the command which gives them (`exec`) runs once for all clients of a process, and again when
//! its credential expires or is refused, and that the file of a token is read again.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;
use crate::harness::ports::free_ports;
use crate::plane::DataPlane;
use crate::{eventually, route};

/// A plugin that counts its runs. Its tokens are `run-1`, `run-2` and so on.
struct Plugin(TempDir);

impl Plugin {
    /// `status` is what its ExecCredentials have besides the token, by the number `$run` of the run.
    fn new(status: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (program, runs) = (folder.path().join("plugin"), folder.path().join("runs"));
        let runs = runs.display();
        let script = format!(
            r#"#!/bin/sh
echo "$KUBERNETES_EXEC_INFO $0 $* $EXTRA" >>{runs}
run=$(wc -l <{runs})
{status}
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "run-%d"%s}}}}' $run "$more"
"#
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        Self(folder)
    }

    /// The user of a kubeconfig with this plugin.
    fn user(&self) -> Value {
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable", "provideClusterInfo": true,
            "command": self.0.path().join("plugin"), "args": ["get-token"], "env": [{"name": "EXTRA", "value": "extra"}],
        }})
    }

    /// What each run was given.
    fn runs(&self) -> Vec<String> {
        let runs = std::fs::read_to_string(self.0.path().join("runs")).unwrap_or_default();
        runs.lines().map(str::to_owned).collect()
    }
}

/// Starts the program with this user of the kubeconfig, which is put into a folder.
fn program(api: &Api, folder: &Path, user: &Value, arguments: &[&str]) -> Command {
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig(user)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).env("KUBECONFIG", kubeconfig);
    command
}

#[test]
fn commands_run_the_plugin_once() {
    let api = Api::start();
    api.accept("run-1");
    api.apply(&route("a", "one"));
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["check", "--kubernetes"][..],
        &["explain", "--kubernetes", "GET http://a.example/"],
    ] {
        let plugin = Plugin::new("");
        let output = program(&api, folder.path(), &plugin.user(), arguments).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("cannot"), "{errors}");
        let [run] = &plugin.runs()[..] else {
            panic!("{:?}", plugin.runs());
        };
        let (info, others) = run.rsplit_once("} ").unwrap();
        let info: Value = serde_json::from_str(&format!("{info}}}")).unwrap();
        assert_eq!(
            info,
            json!({
                "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                "spec": {"interactive": false, "cluster": {"server": api.url()}},
            })
        );
        assert!(others.ends_with("plugin get-token extra"), "{others}");
    }
}

#[test]
fn failed_plugin_fails_the_command_with_its_reason() {
    let api = Api::start();
    let folder = tempfile::tempdir().unwrap();
    let failure = |plugin: &str| {
        let plugin = Plugin::new(plugin);
        let arguments = ["check", "--kubernetes"];
        let output = program(&api, folder.path(), &plugin.user(), &arguments).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(plugin.runs().len(), 1);
        String::from_utf8(output.stderr).unwrap()
    };
    let errors = failure("echo log in first >&2; exit 3");
    assert!(errors.starts_with("log in first\n"), "{errors}");
    assert!(
        errors.contains("plugin (users[].user.exec of the kubeconfig) failed: exit status: 3"),
        "{errors}"
    );
    let errors = failure("echo none; exit 0");
    assert!(errors.contains("printed no ExecCredential"), "{errors}");
    let errors = failure("echo '{status: {}}'; exit 0");
    assert!(
        errors.contains("neither a token nor a certificate with its key"),
        "{errors}"
    );
}

#[test]
fn credential_without_an_end_is_used_until_it_is_refused() {
    let api = Api::start();
    api.accept("run-1");
    api.apply(&route("a", "one"));
    let plugin = Plugin::new("");
    let plane = DataPlane::start_as(&api, &plugin.user(), &[]);
    plane.wait_for("a.example", "https://one/");
    assert_eq!(plugin.runs().len(), 1);
    api.accept("run-2");
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    assert_eq!(plugin.runs().len(), 2);
}

#[test]
fn plugin_runs_again_when_its_credential_expires() {
    let api = Api::start();
    let plugin = Plugin::new(
        r#"year=2000; [ $run = 1 ] || year=2999; more=", \"expirationTimestamp\": \"$year-01-01T00:00:00Z\"""#,
    );
    api.apply(&route("a", "one"));
    let plane = DataPlane::start_as(&api, &plugin.user(), &[]);
    plane.wait_for("a.example", "https://one/");
    // Requests that tell whether the API server responds follow each other within seconds.
    eventually(|| plugin.runs().len(), |runs| *runs == 2);
    api.accept("run-2");
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
    assert_eq!(plugin.runs().len(), 2);
}

/// The client caches a token for 50 s: the kubelet rotates it long before it expires. Tests begin in order of their names, so that this
/// one waits beside others.
#[test]
fn reloads_rotated_token_without_interruption() {
    let api = Api::start();
    api.accept("old");
    api.apply(&route("a", "one"));
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "old").unwrap();
    let plane = DataPlane::start_as(&api, &json!({"tokenFile": token}), &[]);
    plane.wait_for("a.example", "https://one/");
    std::fs::write(&token, "new").unwrap();
    api.accept("new");
    api.apply(&route("a", "two"));
    let look = || {
        let answer = plane.answer("a.example").unwrap_or_default();
        assert!(
            ["https://one/", "https://two/"].contains(&&*answer),
            "{answer}"
        );
        assert!(plane.is_ready());
        answer
    };
    eventually(look, |answer| answer == "https://two/");
    assert!(!plane.log("status 401").is_empty());
}

#[test]
fn all_clients_of_a_controller_share_the_credential() {
    /// A controller; ended on drop.
    struct Running(Child);
    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    let api = Api::start();
    api.accept("run-1");
    let plugin = Plugin::new("");
    let folder = tempfile::tempdir().unwrap();
    let [port] = free_ports();
    let mut command = program(&api, folder.path(), &plugin.user(), &["controller"]);
    command.args([
        "--image",
        "test",
        "--lease-namespace",
        "default",
        "--admin",
        "off",
    ]);
    command.args(["--stream-address", &format!("127.0.0.1:{port}")]);
    let _running = Running(command.spawn().unwrap());
    // Each of its three threads has a client.
    for text in ["/leases", "/httproutes", "/customresourcedefinitions"] {
        api.wait_for_requests(1, "GET", text);
    }
    assert_eq!(plugin.runs().len(), 1);
}
