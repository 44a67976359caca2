//! `--watch`: rates from pods and from admin addresses, and rollbacks.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::api::Fault;
use crate::ports::free_ports;
use crate::{Outcome, Scene};

/// Timeout of any wait.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A running program, killed when a test fails.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads lines until one has all these parts.
    fn line(&mut self, parts: &[&str]) -> String {
        let mut read = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            read.push(line);
        }
        panic!("no line with {parts:?}: {read:#?}");
    }

    /// Sends SIGINT and waits for the end.
    fn interrupt(self) -> Outcome {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-INT", &id])
                .status()
                .unwrap()
                .success()
        );
        self.end()
    }

    fn end(mut self) -> Outcome {
        let stdout: Vec<_> = self.lines.by_ref().map(Result::unwrap).collect();
        let mut stderr = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        Outcome {
            code: self.child.wait().unwrap().code(),
            stdout: stdout.join("\n"),
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Scene {
    fn watch(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.command(arguments))
    }

    /// Adds a pod of a Gateway that the controller has created.
    fn pod(&self, namespace: &str, name: &str, gateway: &str) {
        self.api.apply(&format!(
            "
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app.kubernetes.io/managed-by: portcullis-controller
    gateway.networking.k8s.io/gateway-name: {gateway}
status: {{phase: Running}}
"
        ));
    }

    /// Sets the counters that a pod reports for the release v2.
    fn counters(&self, namespace: &str, pod: &str, good: u64, bad: u64) {
        let mut page = String::from("# TYPE portcullis_upstream_release_requests counter\n");
        for (code, count) in [("2xx", good), ("5xx", bad)] {
            page.push_str(&format!(
                "portcullis_upstream_release_requests_total{{namespace=\"shop\",backend=\"shop\",kind=\"ReleaseBackend\",port=\"80\",release=\"v2\",code=\"{code}\"}} {count}\n"
            ));
        }
        self.api.serve_text(&metrics_path(namespace, pod), page);
    }
}

fn metrics_path(namespace: &str, pod: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}:19000/proxy/metrics")
}

#[test]
fn watches_for_a_time_without_a_change() {
    let scene = Scene::new();
    let printed = scene.shifted(&["shop/shop", "--watch", "--for", "1s"]);
    let expected = "release=v1 ready=3 weight=90 share=100% requests_per_second=- errors=-\n";
    assert!(printed.contains(expected), "{printed}");
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
}

#[test]
fn adds_up_requests_of_pods() {
    let scene = Scene::new();
    for pod in ["web-1", "web-2"] {
        scene.pod("infra", pod, "web");
        scene.counters("infra", pod, 1000, 1000);
    }
    scene.pod("infra", "other-1", "other");
    let other = metrics_path("infra", "other-1");
    scene.api.serve_text(&other, "# EOF\n".to_owned());
    let mut watch = scene.watch(&["shop/shop", "v2=10", "--watch"]);
    watch.line(&[
        "release=v2",
        "weight=10",
        "requests_per_second=0.0 errors=-",
    ]);
    scene.counters("infra", "web-1", 1060, 1000);
    scene.counters("infra", "web-2", 1030, 1010);
    // 100 requests, 10 of them with errors.
    let line = watch.line(&["release=v2", "errors=10%"]);
    assert!(!line.contains("requests_per_second=0.0"), "{line}");
    let outcome = watch.interrupt();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    // A pod of a Gateway without the backend is read once per list of pods, not every second.
    assert_eq!(scene.api.requests(&other).len(), 1);
    assert!(scene.api.requests(&metrics_path("infra", "web-1")).len() > 1);
}

#[test]
fn counts_pods_that_cannot_be_read() {
    let scene = Scene::new();
    scene.pod("infra", "web-1", "web");
    scene.counters("infra", "web-1", 10, 0);
    scene.pod("infra", "web-2", "web");
    scene.pod("other", "web-1", "web");
    let mut watch = scene.watch(&["shop/shop", "--watch", "--gateway", "infra/web"]);
    watch.line(&["metrics read from 1, 1 failed: infra/web-2: status 404"]);
    watch.line(&["release=v2", "requests_per_second=0.0"]);
    assert_eq!(watch.interrupt().code, Some(0));
    assert!(
        scene
            .api
            .requests(&metrics_path("other", "web-1"))
            .is_empty()
    );
}

#[test]
fn rolls_back_when_too_many_requests_fail() {
    let scene = Scene::new();
    scene.pod("infra", "web-1", "web");
    scene.counters("infra", "web-1", 5000, 5000);
    let arguments = ["shop/shop", "v2=10%", "--watch", "--abort-above", "5%"];
    let mut watch = scene.watch(&arguments);
    watch.line(&["release=v2", "weight=10", "requests_per_second=0.0"]);
    // Too few requests to decide.
    scene.counters("infra", "web-1", 5000, 5050);
    watch.line(&["release=v2", "errors=100%"]);
    assert_eq!(scene.weights(), "v1=90 v2=10 v3=0");
    scene.counters("infra", "web-1", 5850, 5150);
    let outcome = watch.end();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    let message = "15% of the requests to release v2 had a status of 5xx (150 of 1000 within 30 s), more than 5%: \
                   the weights are rolled back to v2=0";
    assert!(outcome.stderr.contains(message), "{outcome:?}");
    assert_eq!(scene.weights(), "v1=90 v2=0 v3=0");
}

#[test]
fn abort_without_metrics_is_an_error() {
    let scene = Scene::new();
    scene.api.fail("Pod", Some(Fault::Status(403)));
    let arguments = ["shop/shop", "v2=10", "--watch", "--for", "1s"];
    let outcome = scene.shift(&[&arguments[..], &["--abort-above", "5%"]].concat());
    outcome.assert_failed(&[
        "no metrics of ReleaseBackend shop/shop could be read",
        "the new weights stay",
    ]);
    let line = "metrics read from 0, 1 failed: pods of Gateways in all namespaces cannot be listed";
    assert!(outcome.stdout.contains(line), "{outcome:?}");
    assert!(outcome.stdout.contains("--gateway"), "{outcome:?}");
}

#[test]
fn failed_rollback_is_an_error_with_the_command() {
    let scene = Scene::new();
    scene.pod("infra", "web-1", "web");
    scene.counters("infra", "web-1", 0, 0);
    let arguments = ["shop/shop", "v2=10", "--watch", "--abort-above", "5%"];
    let mut watch = scene.watch(&arguments);
    watch.line(&["release=v2", "weight=10", "requests_per_second=0.0"]);
    scene.api.refuse_applies("portcullis-shift-v2");
    scene.counters("infra", "web-1", 0, 100);
    let outcome = watch.end();
    outcome.assert_failed(&[
        "100% of the requests to release v2",
        "the weights cannot be rolled back",
        "status 403",
        "To roll back, run portcullis shift shop/shop v2=0",
    ]);
}

/// Sends one HTTP request to a local port. Returns the response.
fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

/// Returns the ReleaseBackend of the cluster, as a folder that serves it at `port`. The pods of v2 refuse connections.
fn folder(port: u16, echo: u16, closed: u16) -> String {
    let pod = |name: &str, port: u16| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: shop, app.kubernetes.io/instance: {name}}}}}
spec: {{containers: [{{name: c, image: c, ports: [{{name: http, containerPort: {port}}}]}}]}}
status: {{podIP: 127.0.0.1, podIPs: [{{ip: 127.0.0.1}}], conditions: [{{type: Ready, status: 'True'}}]}}
---"
        )
    };
    format!(
        "{}{}
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: web, namespace: shop}}
spec:
  gatewayClassName: portcullis
  addresses: [{{value: 127.0.0.1}}]
  listeners: [{{name: http, port: {port}, protocol: HTTP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: shop, namespace: shop}}
spec:
  parentRefs: [{{name: web}}]
  rules: [{{backendRefs: [{{group: portcullis.dev, kind: ReleaseBackend, name: shop, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: shop, namespace: shop}}
spec: {{ports: [{{name: http, port: 80, targetPort: http}}], selector: {{app: shop}}}}
---
apiVersion: portcullis.dev/v1alpha1
kind: ReleaseBackend
metadata: {{name: shop, namespace: shop}}
spec:
  loadBalancer: {{v1.Service: {{name: shop, selector: {{app: shop}}}}}}
  splitBy: app.kubernetes.io/instance
  releases: [{{value: v1, weight: 1}}, {{value: v2, weight: 1}}]
",
        pod("v1", echo),
        pod("v2", closed)
    )
}

#[test]
fn reads_the_metrics_of_a_data_plane_by_its_admin_address() {
    let scene = Scene::new();
    let [port, admin, echo, closed] = free_ports();
    let program = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let listen = format!("127.0.0.1:{echo}");
    let mut backend = Running::start(program().args(["echo", "--listen", &listen]));
    backend.line(&["http"]);
    let objects = scene.folder.path().join("objects");
    fs::create_dir(&objects).unwrap();
    fs::write(objects.join("all.yaml"), folder(port, echo, closed)).unwrap();
    let address = format!("127.0.0.1:{admin}");
    let run = [
        "run",
        "--access-log",
        "off",
        "--admin",
        &address,
        "--config-dir",
    ];
    let _data_plane = Running::start(program().args(run).arg(&objects));
    let begin = Instant::now();
    while !get(admin, "/readyz").is_ok_and(|response| response.starts_with("HTTP/1.1 200")) {
        assert!(
            begin.elapsed() < TEST_TIMEOUT,
            "the data plane is not ready"
        );
        std::thread::yield_now();
    }
    let url = format!("http://{address}");
    let mut watch = scene.watch(&["shop/shop", "--watch", "--admin", &url]);
    watch.line(&["release=v1", "requests_per_second=0.0"]);
    for _ in 0..50 {
        assert!(get(port, "/").unwrap().starts_with("HTTP/1.1 "));
    }
    watch.line(&["release=v1", "errors=0%"]);
    watch.line(&["release=v2", "errors=100%"]);
    assert_eq!(watch.interrupt().code, Some(0));
}
