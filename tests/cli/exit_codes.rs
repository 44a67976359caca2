//! How commands end: the exit codes of all of them, and the forms of their output.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::{COMMANDS, FORMS};
use crate::explain::{BROKEN, Served};
use crate::{Running, TEST_TIMEOUT, get, output, portcullis, ports, stdout};

/// Codes that are seen where something has to be there first: a cluster, or a signal.
const ELSEWHERE: [(&str, i32); 10] = [
    ("quickstart", 0),
    ("quickstart", 1),
    ("run", 0),
    ("controller", 0),
    ("controller", 1),
    ("tap", 0),
    ("shift", 0),
    ("shift", 1),
    ("shift", 3),
    ("echo", 0),
];

/// A route to a Service without endpoints, of which `check` warns.
const WARNED: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: idle}
spec: {parentRefs: [{name: web}], rules: [{backendRefs: [{name: app, port: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{port: 80}]}
";

/// Ingresses of which all is migrated, and some of which something is left to do by hand.
const MIGRATED: &str = "tests/migrate/cases/traced_orders/input.yaml";
const LEFT: &str = "tests/migrate/cases/client_certificates/input.yaml";

/// Two routes with the same match, of which the second gets no request.
const SHADOWED: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: PORT, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: first}
spec:
  parentRefs: [{name: web}]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: a.example.com}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: second}
spec:
  parentRefs: [{name: web}]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: b.example.com}}]}]
";

/// Waits until the ports of a proxy are open.
fn until_ready(admin: &str) {
    let end = Instant::now() + TEST_TIMEOUT;
    let asked = || output(&["status", "--readiness", "--admin", admin]);
    while asked().status.code() != Some(0) {
        assert!(Instant::now() < end, "not ready");
        // Nothing tells readiness.
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_exit_code_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.yaml");
    std::fs::write(&file, BROKEN.replace("PORT", "80")).unwrap();
    let warned = folder.path().join("warned.yaml");
    std::fs::write(&warned, WARNED).unwrap();
    let (file, warned) = (file.to_str().unwrap(), warned.to_str().unwrap());
    let folder = folder.path().to_str().unwrap();
    let absent = format!("{folder}/absent");
    let [port, closed] = ports::free_ports().map(|port: u16| port.to_string());
    let served = Served::new(&BROKEN.replace("PORT", &port));
    until_ready(served.admin());
    let closed = format!("127.0.0.1:{closed}");
    let (admin, closed) = (served.admin(), &*closed);
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let demo = "http://demo.example.com:8080/hello";
    let mut runs: Vec<(Vec<&str>, i32)> = vec![
        (vec!["run", "--admin", "off", "--config-dir", &absent], 1),
        (vec!["check", "config/quickstart"], 0),
        (vec!["check", file], 1),
        (vec!["check", warned], 0),
        (vec!["check", "--quiet", "--fail-on", "warning", warned], 1),
        (vec!["check", &absent], 3),
        (vec!["explain", "config/quickstart", demo], 0),
        (vec!["explain", "config/quickstart", "http://a/"], 1),
        (vec!["explain", &absent, demo], 3),
        (vec!["status", "--readiness", "--admin", admin], 0),
        (vec!["status", "--admin", admin], 1),
        (vec!["status", "--fail-on", "error", "--admin", admin], 1),
        (vec!["config", "routes", "--admin", admin], 0),
        (vec!["top", "--once", "--admin", admin], 0),
        (vec!["log-level", "--admin", admin], 0),
        (vec!["echo", "--listen", &taken], 1),
        (vec!["completions", "bash"], 0),
        (vec!["man", folder], 0),
        (vec!["man", &absent], 1),
        (vec!["migrate", MIGRATED], 0),
        (vec!["migrate", LEFT], 1),
        (vec!["migrate", &absent], 3),
        (vec!["status", "--admin", closed], 3),
        (vec!["config", "routes", "--admin", closed], 3),
        (vec!["top", "--once", "--admin", closed], 3),
        (vec!["tap", "--admin", closed], 3),
        (vec!["log-level", "--admin", closed], 3),
    ];
    runs.extend(COMMANDS.map(|(name, ..)| (vec![name, "--wrong"], 2)));
    for (arguments, code) in &runs {
        let output = output(arguments);
        assert_eq!(
            output.status.code(),
            Some(*code),
            "{arguments:?}: {output:?}"
        );
    }
    let seen = |name: &str, code: i32| {
        let mut runs = runs.iter();
        runs.any(|it| (it.0[0], it.1) == (name, code))
    };
    let codes = COMMANDS.iter();
    let codes = codes.flat_map(|(name, codes, _)| codes.iter().map(move |code| (*name, *code)));
    let unseen: Vec<_> = codes.filter(|&(name, code)| !seen(name, code)).collect();
    assert_eq!(unseen, ELSEWHERE);
}

#[test]
fn warnings_of_status_fail_unless_only_errors_do() {
    let [port] = ports::free_ports().map(|port: u16| port.to_string());
    let served = Served::new(&SHADOWED.replace("PORT", &port));
    until_ready(served.admin());
    let status = |arguments: &[&str]| {
        let output = output(&[&["status", "--admin", served.admin()][..], arguments].concat());
        (output.status.code(), stdout(&output))
    };
    for (arguments, code) in [
        (&[][..], 1),
        (&["--fail-on", "warning"][..], 1),
        (&["--fail-on", "error"][..], 0),
    ] {
        let (found, printed) = status(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {printed}");
        assert!(printed.contains("problems: 1\n  warning: "), "{printed}");
    }
    let (code, _) = status(&["--readiness", "--fail-on", "error"]);
    assert_eq!(code, Some(2));
}

#[test]
fn each_form_of_output_is_printed() {
    let [port] = ports::free_ports::<1>();
    let served = Served::new(&BROKEN.replace("PORT", &port.to_string()));
    let admin = served.admin();
    until_ready(admin);
    let demo = "http://demo.example.com:8080/hello";
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    let runs = [
        &["check", "config/quickstart"][..],
        &["explain", "config/quickstart", demo],
        &["explain", "--admin", admin, demo],
        &["status", "--admin", admin],
        &["config", "ports", "--admin", admin],
        &["config", "routes", "--admin", admin],
        &["config", "backends", "--admin", admin],
        &["config", "certificates", "--admin", admin],
        &["config", "policies", "--admin", admin],
        &["top", "--once", "--admin", admin],
        &["log-level", "--admin", admin],
    ];
    for form in FORMS.iter().copied() {
        for command in runs {
            let printed = stdout(&output(&[command, &["-o", form]].concat()));
            assert_eq!(is_json(&printed), form == "json", "{command:?}: {printed}");
        }
        let line = tapped(form, admin, (Ipv4Addr::LOCALHOST, port).into());
        assert_eq!(is_json(&line), form == "json", "tap: {line}");
    }
    let wide = stdout(&output(&["status", "-o", "wide", "--admin", admin]));
    assert!(wide.starts_with("Portcullis "), "{wide}");
    let yaml = stdout(&output(&["status", "-o", "yaml", "--admin", admin]));
    assert!(yaml.starts_with("---\n"), "{yaml}");
    assert!(yaml.contains("\nready: true\n"), "{yaml}");
    let with_forms = COMMANDS.iter().filter(|(_, _, forms)| !forms.is_empty());
    let others = with_forms.map(|(name, ..)| *name);
    let others = others.filter(|name| runs.iter().all(|run| run[0] != *name));
    // That of `shift` is printed where there is a cluster.
    assert_eq!(others.collect::<Vec<_>>(), ["tap", "shift"]);
}

/// Returns the first line of a tap, for requests to a proxy.
fn tapped(form: &str, admin: &str, proxy: SocketAddr) -> String {
    let mut tap = Running::start(&["tap", "-o", form, "--admin", admin]);
    let lines = BufReader::new(tap.0.stdout.take().unwrap()).lines();
    let (sender, first) = mpsc::channel();
    // Ignored: the test may have ended.
    thread::spawn(move || {
        lines
            .map(Result::unwrap)
            .for_each(|line| drop(sender.send(line)))
    });
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        assert!(Instant::now() < end, "no line of a tap in {form}");
        get(proxy, "/", "");
        // A request from before the tap is open is not shown.
        if let Ok(line) = first.recv_timeout(Duration::from_millis(100)) {
            return line;
        }
    }
}

/// As before `head -1`, which ends once it has a line.
#[test]
fn commands_end_quietly_without_a_reader() {
    for arguments in [
        &["completions", "bash"][..],
        &["check", "config/quickstart"],
        &["check", "-o", "json", "config/quickstart"],
        &[
            "explain",
            "config/quickstart",
            "http://demo.example.com:8080/hello",
        ],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = portcullis(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

/// What they find has another exit code than that they cannot look.
#[test]
fn commands_exit_with_3_if_the_proxy_cannot_be_reached() {
    let [port] = ports::free_ports().map(|port: u16| port.to_string());
    let address = format!("127.0.0.1:{port}");
    for command in [
        &["status"][..],
        &["status", "--readiness"],
        &["config", "routes"],
        &["top", "--once"],
        &["tap"],
        &["log-level"],
    ] {
        let output = output(&[command, &["--admin", &address]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {error}");
        let expected = "cannot connect to the address of --admin: ";
        assert!(error.contains(expected), "{command:?}: {error}");
    }
}
