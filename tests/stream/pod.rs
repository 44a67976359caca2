//! The program as a pod of a controller, its environment, and a client of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::controller::{Authority, Controller, Stream};
use crate::objects::{class, gateway, route};
use crate::ports::free_ports;
use crate::service::Service;
use crate::{TEST_TIMEOUT, eventually};

/// Environment of a pod: files, a Service, ports.
pub(crate) struct Node {
    pub(crate) authority: Authority,
    pub(crate) service: Service,
    folder: TempDir,
    admin: u16,
    pub(crate) port: u16,
    /// Where other pods ask for their part of limits, if that is not everywhere.
    pub(crate) peers: Option<SocketAddr>,
    /// The program of pods, with its first arguments.
    pub(crate) program: Vec<OsString>,
}

impl Node {
    /// Creates an environment with a CA, a token, and a Service without a target.
    pub(crate) fn new() -> Self {
        let [admin, port] = free_ports();
        let node = Self {
            authority: Authority::new("first"),
            service: Service::start(),
            folder: tempfile::tempdir().unwrap(),
            admin,
            port,
            peers: None,
            program: vec![env!("CARGO_BIN_EXE_portcullis").into()],
        };
        node.write("ca.crt", &node.authority.pem);
        node.write("token", "first-token\n");
        node
    }

    /// Returns a controller that the Service points to.
    pub(crate) fn controller(&self) -> Controller {
        let controller = Controller::start(&self.authority);
        self.service.point(Some(controller.address));
        controller
    }

    /// Starts a pod and waits until it responds to probes.
    pub(crate) fn start(&self) -> Pod<'_> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let program = Command::new(&self.program[0])
            .args(&self.program[1..])
            .args(["run", "--gateway", "default/edge", "--provisioned", "host"])
            .arg(format!(
                "--controller=https://localhost:{}",
                self.service.port
            ))
            .arg("--controller-ca")
            .arg(self.path("ca.crt"))
            .arg("--controller-token")
            .arg(self.path("token"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg(format!("--admin=127.0.0.1:{}", self.admin))
            .args(self.peers.map(|address| format!("--peers={address}")))
            .args(["--workers=1", "--access-log=off", "--drain-delay=0s"])
            .env_remove("KUBECONFIG")
            .stderr(log)
            .spawn()
            .unwrap();
        let pod = Pod {
            node: self,
            program,
        };
        eventually(
            || request(self.admin, "/healthz", "localhost"),
            Option::is_some,
        );
        pod
    }

    /// Starts a pod that serves revision `first/1`: the class, the Gateway and a route `a` to
    /// `one`.
    pub(crate) fn serving(&self, controller: &Controller) -> (Pod<'_>, Stream) {
        let pod = self.start();
        let stream = controller.accept();
        stream
            .begin("first", None)
            .put_all(&self.objects())
            .put(route("a", "one"))
            .commit(1);
        stream.report_of("first/1");
        assert_eq!(pod.answer("a"), "https://one/");
        (pod, stream)
    }

    /// Returns the class and the Gateway.
    pub(crate) fn objects(&self) -> Vec<Value> {
        vec![class(), gateway(&[self.port])]
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let next = self.path("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.path(name)).unwrap();
    }

    /// Returns lines of the logs of all pods that contain a text.
    pub(crate) fn log(&self, text: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.path("log")).unwrap();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

/// A running pod, killed when dropped.
pub(crate) struct Pod<'a> {
    node: &'a Node,
    program: Child,
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl Pod<'_> {
    /// Ends the program as a kubelet does, and waits for its end.
    pub(crate) fn terminate(&mut self) {
        let id = self.program.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.unwrap().success());
        self.program.wait().unwrap();
    }

    /// Target of the redirect for `host`.example, or the status of another response.
    pub(crate) fn answer(&self, host: &str) -> String {
        self.answer_with(host, "")
    }

    /// Returns the same for a request with a bearer token.
    pub(crate) fn answer_to(&self, host: &str, token: &str) -> String {
        self.answer_with(host, &format!("Authorization: Bearer {token}\r\n"))
    }

    fn answer_with(&self, host: &str, headers: &str) -> String {
        let host = format!("{host}.example");
        let response = request_with(self.node.port, "/", &host, headers);
        let response = response.expect("the pod serves");
        let location = response
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        let status = response.split(' ').nth(1);
        location.or(status).unwrap().to_owned()
    }

    /// Reports whether no port is open.
    pub(crate) fn is_closed(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.node.port)).is_err()
    }

    /// Why the pod is not ready; `None` if it is.
    pub(crate) fn unready(&self) -> Option<String> {
        let response = request(self.node.admin, "/readyz", "localhost").unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (!head.starts_with("HTTP/1.1 200")).then(|| body.trim().to_owned())
    }

    /// Waits until the pod is unready for a reason that contains this text.
    pub(crate) fn wait_until_unready(&self, text: &str) -> String {
        let has_text =
            |reason: &Option<String>| reason.as_ref().is_some_and(|it| it.contains(text));
        eventually(|| self.unready(), has_text).unwrap()
    }

    pub(crate) fn wait_until_ready(&self) {
        eventually(|| self.unready(), Option::is_none);
    }

    /// Returns the text of all metrics.
    pub(crate) fn metrics(&self) -> String {
        request(self.node.admin, "/metrics", "localhost").unwrap()
    }

    /// Returns a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.metrics();
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("portcullis_{name} ")));
        value
            .unwrap_or_else(|| panic!("no {name}"))
            .parse()
            .unwrap()
    }
}

/// Returns the response to a request; nothing without one.
fn request(port: u16, path: &str, host: &str) -> Option<String> {
    request_with(port, path, host, "")
}

fn request_with(port: u16, path: &str, host: &str, headers: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).ok()?;
    let mut response = String::new();
    socket.read_to_string(&mut response).ok()?;
    Some(response)
}
