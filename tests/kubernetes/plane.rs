//! The program as a data plane of the test API server, and a client of it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;
use crate::harness::ports::free_ports;
use crate::{TEST_TIMEOUT, eventually};

/// A data plane; terminated on drop.
pub(crate) struct DataPlane {
    program: Child,
    admin: u16,
    pub(crate) port: u16,
    folder: TempDir,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl DataPlane {
    /// Starts a data plane of `api`, which has Gateway `edge`.
    pub(crate) fn start(api: &Api) -> Self {
        Self::start_with(api, &[])
    }

    pub(crate) fn start_with(api: &Api, arguments: &[&str]) -> Self {
        Self::start_as(api, &json!({"token": "test"}), arguments)
    }

    /// Starts a data plane with this user of the kubeconfig.
    pub(crate) fn start_as(api: &Api, user: &Value, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig(user)).unwrap();
        let [admin, port] = free_ports();
        api.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: portcullis}}
spec: {{controllerName: portcullis.dev/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners:
  - {{name: http, port: {port}, protocol: HTTP, allowedRoutes: {{namespaces: {{from: Same}}}}}}
"
        ));
        let log = File::create(folder.path().join("log")).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args([
                "run",
                "--kubernetes",
                "--workers",
                "1",
                "--access-log",
                "off",
            ])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .args(arguments)
            .env("KUBECONFIG", &kubeconfig)
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            program,
            admin,
            port,
            folder,
        }
    }

    /// Target of the redirect for `host`, or the status of another response; `None` without a
    /// response.
    pub(crate) fn answer(&self, host: &str) -> Option<String> {
        let head = request(self.port, "/", host)?;
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        location
            .or_else(|| head.split(' ').nth(1))
            .map(str::to_owned)
    }

    /// Returns its admin address.
    pub(crate) fn admin(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.admin).into()
    }

    pub(crate) fn is_ready(&self) -> bool {
        request(self.admin, "/readyz", "localhost")
            .is_some_and(|head| head.starts_with("HTTP/1.1 200"))
    }

    /// Returns time of the API server's last response, from the metrics.
    pub(crate) fn contact(&self) -> Option<String> {
        self.metric("portcullis_api_server_contact_timestamp_seconds")
    }

    /// Returns the value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        let metrics = request(self.admin, "/metrics", "localhost")?;
        let value = |line: &str| {
            line.strip_prefix(name)?
                .strip_prefix(' ')
                .map(str::to_owned)
        };
        metrics.lines().find_map(value)
    }

    pub(crate) fn is_alive(&self) -> bool {
        request(self.admin, "/healthz", "localhost")
            .is_some_and(|head| head.starts_with("HTTP/1.1 200"))
    }

    /// Returns lines of its log that contain a text.
    pub(crate) fn log(&self, text: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    /// Waits for this answer and for readiness, which a new data plane reports just after it binds its ports.
    pub(crate) fn wait_for(&self, host: &str, expected: &str) {
        eventually(
            || self.answer(host),
            |answer| answer.as_deref() == Some(expected),
        );
        eventually(|| self.is_ready(), |ready| *ready);
    }
}

pub(crate) fn request(port: u16, path: &str, host: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some(answer)
}
