//! What `check`, `explain` and `--version` print. Runs the real program.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).current_dir(ROOT);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PORTCULLIS_")) {
        command.env_remove(name);
    }
    command
}

fn output(arguments: &[&str]) -> Output {
    portcullis(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn unknown_fields_and_annotations_are_errors_with_a_line_and_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata:\n  name: a\n  annotations:\n    \
                 portcullis.dev/prioritty: \"1\"\nspec:\n  hostname: a.example\n  rules:\n  - match: []\n    backendRef: []\n    \
                 timeouts: {request: 0.5s}\n";
    fs::write(folder.path().join("route.yaml"), route).unwrap();
    let output = output(&["check", folder.path().to_str().unwrap()]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in [
        "route.yaml:6 (document 1): HTTPRoute default/a: metadata.annotations[portcullis.dev/prioritty]: unknown annotation of \
         Portcullis; did you mean portcullis.dev/priority?",
        "route.yaml:8 (document 1): HTTPRoute default/a: spec.hostname: unknown field; did you mean hostnames?",
        "route.yaml:10 (document 1): HTTPRoute default/a: spec.rules[0].match: unknown field; did you mean matches?",
        "route.yaml:11 (document 1): HTTPRoute default/a: spec.rules[0].backendRef: unknown field; did you mean backendRefs?",
        "route.yaml:12 (document 1): HTTPRoute default/a: spec.rules[0].timeouts.request: ",
        "durations have no fractions: write 500ms",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}

#[test]
fn check_and_explain_print_json() {
    let url = "http://demo.example.com:8080/hello";
    for arguments in [
        &["check", "-o", "json", "config/quickstart"][..],
        &["explain", "-o", "json", "config/quickstart", url],
    ] {
        let output = output(arguments);
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(output.status.code(), Some(0), "{value}");
        match arguments[0] {
            "check" => assert_eq!(value["summary"]["errors"], 0, "{value}"),
            _ => {
                assert_eq!(value["found"], true, "{value}");
                let rule = value["ports"][0]["rule"][0].as_str().unwrap();
                assert!(rule.contains("HTTPRoute default/demo"), "{value}");
            }
        }
    }
}

#[test]
fn explain_says_that_a_port_is_closed() {
    let output = output(&[
        "explain",
        "config/quickstart",
        "http://demo.example.com:9999/",
    ]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("port        port 9999 is closed: no listener has it\n"),
        "{text}"
    );
    assert!(text.contains("open: 127.0.0.1:8080 (http)"), "{text}");
}

#[test]
fn version_names_commit_and_profile() {
    let text = stdout(&output(&["--version"]));
    let expected = format!("portcullis {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains(", profile "), "{text}");
}

#[test]
fn check_and_explain_say_that_a_gateway_does_not_permit_a_priority() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = |annotations: &str| {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: web, annotations: {{{annotations}}}}}\n\
             spec: {{gatewayClassName: portcullis, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: wide, annotations: {{portcullis.dev/priority: \"10\"}}}}\n\
             spec: {{parentRefs: [{{name: web}}], rules: [{{}}]}}\n"
        );
        fs::write(folder.path().join("web.yaml"), text).unwrap();
    };
    let path = folder.path().to_str().unwrap();
    let texts = || {
        let explained = output(&["explain", path, "http://a.example/"]);
        [stdout(&output(&["check", path])), stdout(&explained)]
    };
    let ignored = "annotation portcullis.dev/priority is ignored (priority 0): Gateway default/web has no annotation \
                   portcullis.dev/allow-route-priority: \"true\"";
    gateway("");
    for text in texts() {
        assert!(text.contains(ignored), "{text}");
    }
    gateway("portcullis.dev/allow-route-priority: \"true\"");
    for text in texts() {
        assert!(!text.contains(ignored), "{text}");
    }
}
