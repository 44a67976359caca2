//! `portcullis check` as a user runs it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::{ROOT, output, portcullis, stdout};

const BAD_ROUTE: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: one
spec:
  ports:
    - port: 80
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: bad
spec:
  rules:
    - matches:
        - path:
            type: PathPrefix
            value: no-slash
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: heavy
spec:
  rules:
    - backendRefs:
        - name: one
          port: 80
          weight: 2000000
";

/// A policy whose effect only a condition shows.
pub(crate) const PLAIN: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: web}], rules: [{backendRefs: [{name: s, port: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {ports: [{port: 80}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: BackendTLSOverride
metadata: {name: plain}
spec: {targetRefs: [{group: '', kind: Service, name: s}], mode: None}
";

/// Expects that `check` of a folder with `objects` ends with `code` and prints each of `parts`; returns all that it prints.
pub(crate) fn check_says(flags: &[&str], objects: &str, code: i32, parts: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), objects).unwrap();
    let output = output(&[&["check", folder.path().to_str().unwrap()], flags].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    text
}

#[test]
fn check_names_file_document_field_and_rule() {
    let parts = [
        "a.yaml",
        "document 2",
        "HTTPRoute default/bad",
        "spec.rules[0].matches[0]",
        "document 3",
        "spec.rules[0].backendRefs[0].weight",
        "maximum: 1000000",
    ];
    check_says(&[], BAD_ROUTE, 1, &parts);
}

#[test]
fn check_prints_conditions_of_policies() {
    let policy = "\nBackendTLSOverride default/plain\n  for Gateway default/web\n    Accepted is True (Accepted)\n";
    let weakened = "    PlaintextToBackend is True (ModeNone): spec.mode is None: requests go out in plain text\n";
    check_says(&[], PLAIN, 0, &[policy, weakened]);
}

#[test]
fn objects_come_from_a_folder_or_a_cluster() {
    for (arguments, hint) in [
        (
            &[
                "explain",
                "--kubernetes",
                "--admin",
                "127.0.0.1:1",
                "http://a/",
            ][..],
            "--kubernetes and --admin exclude each other",
        ),
        (
            &["explain", "--kubernetes", "x", "http://a/"],
            "DIR and --kubernetes exclude each other",
        ),
        (
            &["check", "--kubernetes", "x"],
            "DIR and --kubernetes exclude each other",
        ),
        (&["check"], "name a folder"),
        (&["check", "x", "--context", "y"], "--kubernetes"),
        (
            &["check", "x", "--allow-image", "*"],
            "add --controller-namespace",
        ),
    ] {
        let output = output(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(hint), "{arguments:?}: {error}");
    }
}

/// A Gateway whose pods use the host network.
const HOST_NETWORK: &str = "\
apiVersion: portcullis.dev/v1alpha1
kind: GatewayParameters
metadata: {name: own}
spec: {workload: {kind: DaemonSet, hostNetwork: true}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  infrastructure: {parametersRef: {group: portcullis.dev, kind: GatewayParameters, name: own}}
  listeners: [{name: http, port: 8080, protocol: HTTP}]
";

const CLASS: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway-controller}
";

/// A Gateway of another controller.
const FOREIGN: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: other}
spec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

/// What names a Gateway that does not exist.
const ORPHANS: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec: {parentRefs: [{name: wbe}], rules: [{backendRefs: [{name: shop, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec: {parentRef: {name: wbe}, listeners: [{name: http, port: 8081, protocol: HTTP}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: office}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wbe}]
  ipRules: {allow: [192.0.2.0/24]}
";

#[test]
fn check_judges_a_folder_as_its_controller_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fs::write(folder.path().join("gateway.yaml"), HOST_NETWORK).unwrap();
    let checked = |flags: &[&str]| {
        let controller = ["check", path, "--controller-namespace", "infra"];
        let output = output(&[&controller, flags].concat());
        (stdout(&output), output.status.code())
    };
    let (text, code) = checked(&[]);
    let unserved = "/gateway.yaml:6 (document 2): Gateway default/web: not served: spec.gatewayClassName is portcullis, which \
                    does not exist; classes served here: none; correct the name, or create it\n";
    assert!(text.contains(unserved), "{text}");
    assert_eq!(code, Some(1));
    fs::write(folder.path().join("class.yaml"), CLASS).unwrap();
    let (text, code) = checked(&[]);
    assert!(
        text.contains("spec.workload.hostNetwork (--allow-host-network)"),
        "{text}"
    );
    assert_eq!(code, Some(1));
    let (text, code) = checked(&["--allow-host-network", "unprivileged-ports"]);
    assert!(
        text.contains("Gateway default/web\n  Accepted is True"),
        "{text}"
    );
    assert_eq!(code, Some(0), "{text}");
    // Another controller serves its own Gateways.
    fs::write(folder.path().join("foreign.yaml"), FOREIGN).unwrap();
    let (text, code) = checked(&["--allow-host-network", "unprivileged-ports"]);
    assert_eq!(code, Some(0), "{text}");
    // No other controller has what is missing.
    fs::write(folder.path().join("orphans.yaml"), ORPHANS).unwrap();
    let (text, code) = checked(&["--allow-host-network", "unprivileged-ports"]);
    for orphan in [
        "/orphans.yaml:1 (document 1): HTTPRoute default/shop: spec.parentRefs[0] names Gateway default/wbe, which does not exist",
        "/orphans.yaml:6 (document 2): ListenerSet default/more: spec.parentRef names Gateway default/wbe, which does not exist",
        "/orphans.yaml:11 (document 3): AccessPolicy default/office: without effect",
    ] {
        assert!(text.contains(orphan), "{text}");
    }
    assert_eq!(text.matches("not accepted: /").count(), 3, "{text}");
    assert_eq!(code, Some(1));
}

/// What lacks a backend, a parent and an endpoint, in this order.
const LACKING: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost}
spec: {parentRefs: [{name: web}], rules: [{backendRefs: [{name: nothing, port: 80}]}]}
---
# The parent of this route has another name.

apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: orphan}
spec: {parentRefs: [{name: web, sectionName: x}], rules: [{backendRefs: [{name: s, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: idle}
spec: {parentRefs: [{name: web}], rules: [{matches: [{path: {value: /idle}}], backendRefs: [{name: s, port: 80}]}]}
";

#[test]
fn check_names_file_and_line_of_every_finding() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain.yaml"), PLAIN).unwrap();
    fs::create_dir(folder.path().join("team")).unwrap();
    let file = folder.path().join("team/shop.yaml");
    fs::write(&file, LACKING).unwrap();
    let file = file.to_str().unwrap();
    let path = folder.path().to_str().unwrap();
    let text = stdout(&output(&["check", "--quiet", path]));
    for line in [
        format!("not accepted: {file}:8 (document 2): HTTPRoute default/orphan: "),
        format!("problem: {file}:1 (document 1): HTTPRoute default/lost: "),
        format!("warning: {file}:13 (document 3): HTTPRoute default/idle: "),
    ] {
        assert!(
            text.lines().any(|it| it.starts_with(&line)),
            "`{line}` is missing in\n{text}"
        );
    }
    let json = stdout(&output(&["check", "--quiet", "-o", "json", path]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for (list, object, line) in [
        ("notAccepted", "HTTPRoute default/orphan", 8),
        ("otherProblems", "HTTPRoute default/lost", 1),
        ("warnings", "HTTPRoute default/idle", 13),
    ] {
        let mut findings = json[list].as_array().unwrap().iter();
        let finding = findings.find(|it| it["object"] == object);
        let finding = finding.unwrap_or_else(|| panic!("no {object} in {json:#}"));
        assert_eq!(
            (&finding["file"], &finding["line"]),
            (&file.into(), &line.into()),
            "{finding}"
        );
    }
}

/// References to misspelt names.
const MISSPELT: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: shop-tsl}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: shop-tls}
type: kubernetes.io/tls
data: {tls.crt: YQ==, tls.key: YQ==}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: web, sectionName: htp}, {name: wbe}, {name: web, sectionName: http}]
  rules: [{backendRefs: [{name: shopp, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mesh}
spec:
  parentRefs: [{group: '', kind: Service, name: shop}]
  rules: [{backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: a}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shopp}]
  ipRules: {deny: [10.0.0.0/8]}
";

#[test]
fn check_suggests_names_of_objects_and_listeners() {
    check_says(
        &["--quiet"],
        MISSPELT,
        1,
        &[
            "spec.listeners[https].tls.certificateRefs[0]: Secret default/shop-tsl does not exist: nothing is served through the listener; did you mean shop-tls?; create the Secret, repair it, or",
            "spec.rules[0].backendRefs[0]: Service default/shopp does not exist: requests that need it get status 500; did you mean shop?; correct the reference, or create what it names\n",
            "Gateway default/web has no listener named htp (sectionName) that a route can attach to; see its spec.listeners; \
         its requests go to other rules, or get status 404; did you mean http?\n",
            "spec.parentRefs[1] names Gateway default/wbe, which does not exist: nothing is served through it; did you mean web?; correct the name, or create it\n",
            "AccessPolicy default/a: without effect: spec.targetRefs: HTTPRoute default/shopp does not exist; did you mean shop?; correct the name, or create it\n",
            "HTTPRoute default/mesh: spec.parentRefs names only Service default/shop: ",
        ],
    );
}

/// Objects that the API server would refuse, and references to them.
const QUOTED: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  infrastructure: {parametersRef: {group: portcullis.dev, kind: GatewayParameters, name: web}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: tls}]}}
---
apiVersion: portcullis.dev/v1alpha1
kind: GatewayParameters
metadata: {name: web}
spec: {replicaz: 2}
---
apiVersion: v1
kind: Secret
metadata: {name: tls}
type: 1
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {ports: [{port: '80'}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec: {parentRefs: [{name: web}], rules: [{backendRefs: [{name: shop, port: 80}]}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: BackendPolicy
metadata: {name: shop}
spec: {targetRefs: [{group: '', kind: Service, name: shop}], loadBalancing: {type: LeastRequest}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: typo}
spec: {parentRefs: [{name: web}], unknown: 1}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: a}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: typo}]
  ipRules: {deny: [10.0.0.0/8]}
";

#[test]
fn check_says_what_to_write_and_which_references_are_invalid() {
    let text = check_says(
        &["--quiet"],
        QUOTED,
        1,
        &[
            "Service default/shop: spec.ports[0].port: Invalid value: \"string\": must be of type integer; write 80 without quotes",
            "spec.rules[0].backendRefs[0]: Service default/shop is invalid",
            "tls.certificateRefs[0]: Secret default/tls is invalid",
            "spec.infrastructure.parametersRef names GatewayParameters default/web, which is invalid; correct it or remove spec.infrastructure.parametersRef; pods and Services that exist stay as they are\n",
            "spec.targetRefs: Service default/shop is invalid",
            "AccessPolicy default/a: without effect: spec.targetRefs: HTTPRoute default/typo is invalid\n",
        ],
    );
    assert!(!text.contains("does not exist"), "{text}");
}

#[test]
fn check_takes_a_file_or_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.txt");
    fs::write(&path, BAD_ROUTE).unwrap();
    let of_file = output(&["check", path.to_str().unwrap()]);
    let text = stdout(&of_file);
    assert_eq!(of_file.status.code(), Some(1), "{text}");
    assert!(text.contains("bad.txt:16 (document 2): "), "{text}");
    let of = |text: &str| {
        let mut check = portcullis(&["check", "-"]);
        check.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut check = check.spawn().unwrap();
        check
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        check.wait_with_output().unwrap()
    };
    let bad = of(BAD_ROUTE);
    assert_eq!(bad.status.code(), Some(1));
    let text = stdout(&bad);
    assert!(
        text.contains("error: -:16 (document 2): HTTPRoute default/bad: "),
        "{text}"
    );
    let orphans = stdout(&of(&format!("{ORPHANS}---\n{PLAIN}")));
    let line = "not accepted: -:1 (document 1): HTTPRoute default/shop: spec.parentRefs[0] ";
    assert!(orphans.contains(line), "{orphans}");
    let good = of(PLAIN);
    assert!(good.status.success(), "{}", stdout(&good));
    assert!(stdout(&of("")).contains("it is empty, so nothing is served"));
}

/// The shell makes a pipe of `<(kustomize build .)`.
#[test]
fn check_reads_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mut mkfifo = std::process::Command::new("mkfifo");
    assert!(mkfifo.arg(&pipe).status().unwrap().success());
    let to = pipe.clone();
    let writer = std::thread::spawn(move || fs::write(to, BAD_ROUTE));
    let bad = output(&["check", pipe.to_str().unwrap()]);
    writer.join().unwrap().unwrap();
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    assert!(stdout(&bad).contains("pipe:16 (document 2): "), "{bad:?}");
}

#[test]
fn check_names_unreadable_folder() {
    let output = output(&["check", "/nonexistent/folder"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/folder"));
}

#[test]
fn every_example_folder_has_no_problems() {
    let mut folders = 0;
    for entry in fs::read_dir(Path::new(ROOT).join("config")).unwrap() {
        let folder = entry.unwrap().path();
        // Its programs write folders.
        if folder.ends_with("examples") {
            continue;
        }
        let output = output(&["check", "--quiet", folder.to_str().unwrap()]);
        assert_eq!(stdout(&output), "", "{}", folder.display());
        assert_eq!(output.status.code(), Some(0));
        folders += 1;
    }
    assert!(folders > 0);
}
