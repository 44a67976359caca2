//! What the program's allocator does in the long run: memory that a large configuration or many connections needed goes
//! back to the system when it is free. Only the program itself shows that, so it is started and watched from outside.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "harness/ports.rs"]
mod ports;

/// How long any step may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A Gateway that nothing connects to, on a port that is free.
fn gateway() -> String {
    let [port] = ports::free_ports();
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec:
  gatewayClassName: portcullis
  addresses: [{{type: IPAddress, value: 127.0.0.1}}]
  listeners: [{{name: http, port: {port}, protocol: HTTP}}]
"
    )
}

/// A program that ends with the test, and what it logs.
struct Running(Child, Lines<BufReader<ChildStderr>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(directory: &Path) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--workers", "1", "--access-log", "off"])
            .args(["--admin", "127.0.0.1:0", "--config-dir"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(program.stderr.take().unwrap()).lines();
        Self(program, log)
    }

    /// Waits until the next configuration is served.
    fn served(&mut self) {
        let mut lines = self.1.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("is served")));
    }

    /// Resident anonymous memory in bytes: the heap, without the program's own pages.
    fn heap(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let mut lines = status.lines();
        let line = lines.find(|line| line.starts_with("RssAnon:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kilobytes * 1024
    }

    /// Waits until the heap is smaller than `limit` bytes.
    fn shrunk(&self, limit: u64) {
        let start = Instant::now();
        while self.heap() >= limit {
            let heap = self.heap();
            assert!(start.elapsed() < TEST_TIMEOUT, "{heap} bytes stay");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn routes(count: usize) -> String {
    let mut text = String::new();
    for i in 0..count {
        write!(
            text,
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route-{i}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{matches: [{{path: {{value: /route-{i}}}}}], filters: [{{type: RequestRedirect, requestRedirect: {{statusCode: 301}}}}]}}]
"
        )
        .unwrap();
    }
    text
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn memory_of_a_large_configuration_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("gateway.yaml"), gateway()).unwrap();
    let file = directory.path().join("routes.yaml");
    fs::write(&file, routes(1)).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    let small = running.heap();
    fs::write(&file, routes(4000)).unwrap();
    running.served();
    let large = running.heap();
    assert!(large > 2 * small, "{large} bytes are not much");
    fs::write(&file, routes(1)).unwrap();
    running.served();
    running.shrunk(small + (large - small) / 2);
}
