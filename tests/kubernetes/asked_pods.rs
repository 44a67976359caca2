//! `config`, `explain`, `top` and `tap` of all pods of a Gateway, whose admin ports the API server forwards.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use crate::api::Api;
use crate::fleet::{Running, pod};
use crate::once::{kubeconfig, run, text};
use crate::plane::DataPlane;
use crate::{eventually, route};

const EDGE: [&str; 3] = ["-n", "infra", "gateway/edge"];

/// An API server with two pods of Gateway `edge`, which are the same data plane, and one of another Gateway.
fn cluster() -> (Api, DataPlane) {
    let api = Api::start();
    api.apply(&route("shop", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("shop.example", "https://one/");
    for (name, gateway) in [("edge-1", "edge"), ("edge-2", "edge"), ("other-1", "other")] {
        pod(&api, name, gateway);
        api.forward("infra", name, plane.admin());
    }
    (api, plane)
}

fn ask(api: &Api, command: &[&str]) -> (Option<i32>, String, String) {
    let output = run(api, command);
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| text(it).to_owned());
    (output.status.code(), printed, errors)
}

#[test]
fn rows_begin_with_the_pod() {
    let (api, _plane) = cluster();
    let routes = [&["config", "routes"][..], &EDGE].concat();
    let (code, printed, errors) = ask(&api, &routes);
    assert_eq!(code, Some(0), "{errors}");
    let begins: Vec<_> = printed
        .lines()
        .map(|line| {
            line.split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let expected = [
        "POD ROUTE RULE",
        "edge-1 HTTPRoute default/shop",
        "edge-2 HTTPRoute default/shop",
    ];
    assert_eq!(begins, expected, "{printed}");

    let (code, printed, errors) = ask(&api, &[&routes[..], &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    let document: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(document["namespace"], "infra");
    assert_eq!(document["pods"][1]["name"], "edge-2");
    let route = &document["pods"][1]["document"]["routes"][0];
    assert_eq!(route["name"], "shop", "{document}");

    let top = [&["top", "--once", "-o", "json"][..], &EDGE].concat();
    let (code, printed, errors) = ask(&api, &top);
    assert_eq!(code, Some(0), "{errors}");
    let rows: Value = serde_json::from_str(&printed).unwrap();
    let pods = [&rows[0]["pod"], &rows[1]["pod"]];
    assert_eq!(pods, ["edge-1", "edge-2"], "{rows}");
}

#[test]
fn pods_that_explain_alike_are_shown_once() {
    let (api, plane) = cluster();
    let explain = [&["explain"][..], &EDGE].concat();
    let url = format!("http://shop.example:{}/", plane.port);
    let (code, printed, errors) = ask(&api, &[&explain[..], &[url.as_str()]].concat());
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.starts_with("pods edge-1, edge-2:\n"), "{printed}");
    assert!(printed.contains("default/shop"), "{printed}");
    let absent = format!("http://absent.example:{}/", plane.port);
    let absent = [&["explain", "-o", "json"][..], &EDGE, &[absent.as_str()]].concat();
    let (code, _, errors) = ask(&api, &absent);
    assert_eq!(code, Some(1), "{errors}");

    for (arguments, hint) in [
        (
            &["explain", "-n", "infra", "edge", "http://a/"][..],
            "gateway/NAME",
        ),
        (&["explain", "config", "http://a/"], "--kubernetes"),
    ] {
        let (code, _, errors) = ask(&api, arguments);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains(hint), "{errors}");
    }
}

#[test]
fn status_names_each_problem_after_its_pods() {
    let (api, _plane) = cluster();
    let lost = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost, namespace: default}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: absent, port: 80}]}]}
";
    api.apply(lost);
    let metrics = "portcullis_problems{kind=\"object\",severity=\"error\"} 1\n# EOF\n";
    for name in ["edge-1", "edge-2"] {
        let path = format!("/api/v1/namespaces/infra/pods/{name}:19000/proxy/metrics");
        api.serve_text(&path, metrics.to_owned());
    }
    let status = [&["status", "--problems"][..], &EDGE].concat();
    let problem = "\nedge-1, edge-2: error: HTTPRoute default/lost: ";
    // The data plane has yet to see the route.
    eventually(
        || ask(&api, &status),
        |(_, printed, _)| printed.contains(problem),
    );
    let (code, printed, errors) = ask(&api, &[&status[..], &["-o", "json"]].concat());
    assert_eq!(code, Some(1), "{errors}");
    let document: Value = serde_json::from_str(&printed).unwrap();
    let descriptions = document["pods"][0]["descriptions"].as_array().unwrap();
    let mut objects = descriptions.iter().map(|it| &it["object"]);
    assert!(
        objects.any(|it| it == "HTTPRoute default/lost"),
        "{document}"
    );
}

#[test]
fn pods_that_cannot_be_asked_are_named() {
    let (api, _plane) = cluster();
    pod(&api, "edge-3", "edge");
    pod(&api, "edge-4", "edge");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    api.forward("infra", "edge-4", closed);
    let ports = [&["config", "ports"][..], &EDGE].concat();
    let (code, printed, errors) = ask(&api, &ports);
    assert_eq!(code, Some(3), "{errors}");
    assert!(printed.contains("\nedge-1 "), "{printed}");
    assert!(!printed.contains("edge-3"), "{printed}");
    let not_running = "portcullis: cannot ask pod edge-3: status 404 (404 NotFound)\n";
    assert!(errors.contains(not_running), "{errors}");
    let refused = "portcullis: cannot ask pod edge-4: cannot forward: connection refused\n";
    assert!(errors.contains(refused), "{errors}");
}

#[test]
fn top_goes_on_once_the_api_server_is_back() {
    let (api, plane) = cluster();
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["top", "-o", "json"])
        .args(EDGE)
        .arg("--kubeconfig")
        .arg(kubeconfig(&api, folder.path()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut top = Running(child.unwrap());
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    // About two minutes of them.
    let mut lines = lines.map(Result::unwrap).take(60);
    assert!(lines.any(|line| line.contains("\"edge-1\"")));
    api.offline(true);
    let errors = BufReader::new(top.0.stderr.take().unwrap()).lines();
    let mut errors = errors.map(Result::unwrap);
    let away = "portcullis: pods of Gateways in namespace infra cannot be listed: ";
    assert!(errors.any(|line| line.starts_with(away)));
    pod(&api, "edge-3", "edge");
    api.forward("infra", "edge-3", plane.admin());
    api.offline(false);
    assert!(lines.any(|line| line.contains("\"edge-3\"")));
}

#[test]
fn lines_of_a_tap_have_the_pod() {
    let (api, plane) = cluster();
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["tap", "-o", "json"])
        .args(EDGE)
        .arg("--kubeconfig")
        .arg(kubeconfig(&api, folder.path()))
        .stdout(Stdio::piped())
        .spawn();
    let mut tap = Running(child.unwrap());
    let lines = BufReader::new(tap.0.stdout.take().unwrap()).lines();
    let (sender, seen) = mpsc::channel();
    // Ignored: the test may have ended.
    thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .for_each(|line| drop(sender.send(line)))
    });
    let shown = |pod: &str| {
        let pod = format!("{{\"pod\":\"{pod}\",");
        let is_shown = |line: &String| line.starts_with(&pod) && line.contains("shop.example");
        // A request from before the tap is open is not shown.
        eventually(
            || {
                plane
                    .answer("shop.example")
                    .map(|_| seen.try_iter().any(|line| is_shown(&line)))
            },
            |is_shown| *is_shown == Some(true),
        );
    };
    shown("edge-1");
    shown("edge-2");
}
