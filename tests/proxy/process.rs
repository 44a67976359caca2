//! The program in its own process under bad conditions: nobody reads its output, or it may open few
//! files.

use std::future::pending;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::access_policy::connect_from;
use crate::client::{Client, connect, get};
use crate::harness::h2::block_on;
use crate::harness::ports::closed_address;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, eventually, http, prefix, to, write};

/// More than a pipe holds.
const LINES: usize = 4000;

/// A running program, killed when a test fails.
pub(crate) struct Program {
    child: Child,
    folder: tempfile::TempDir,
    pub(crate) admin: SocketAddr,
}

impl Program {
    /// Starts the program with these objects after the commands of a shell, and leaves its output
    /// unread.
    pub(crate) fn start(objects: &Objects, shell: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "objects.yaml", &objects.text());
        let admin = closed_address();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{shell}exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--workers", "2", "--drain-delay", "0s"])
            .args(["--admin", &admin.to_string()])
            .arg("--config-dir")
            .arg(folder.path())
            .args(arguments)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            child: command.spawn().expect("started"),
            folder,
            admin,
        }
    }

    /// Requests a page of the admin server until its response has this status and text.
    pub(crate) async fn until(&self, path: &str, status: u16, part: &str) {
        let found = async {
            loop {
                if TcpStream::connect(self.admin).await.is_ok() {
                    let answer = get(self.admin, "localhost", path).await;
                    if answer.status == status && answer.text().contains(part) {
                        return;
                    }
                }
                // No notification tells the change.
                sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(TEST_TIMEOUT, found).await;
        assert!(
            found.is_ok(),
            "{path} is not {status} with {part:?} in time"
        );
    }

    /// Sends SIGTERM, and returns the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.expect("kill runs").success());
        let begin = Instant::now();
        while begin.elapsed() < TEST_TIMEOUT {
            if let Some(status) = self.child.try_wait().expect("known") {
                return status.code();
            }
            // Nothing tells the end of a process.
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("still running {TEST_TIMEOUT:?} after SIGTERM");
    }

    /// Returns the log, once the program has ended.
    pub(crate) fn log(&mut self) -> String {
        let mut text = String::new();
        let log = self.child.stderr.as_mut().expect("piped");
        log.read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Objects with one listener on a free port of loopback.
pub(crate) fn objects(origin: &Origin) -> (Objects, SocketAddr) {
    let address = closed_address();
    let local = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let listener = http("http", address.port(), "");
    let gateway = yaml::gateway_with("gateway", &[listener], local);
    let objects = Objects::default().with(gateway);
    (objects.service("origin", &[origin.address]), address)
}

async fn origin() -> Origin {
    Origin::new(|_| async { Response::new(full("done")) }).await
}

#[test]
fn serves_edits_and_probes_while_nobody_reads_its_output() {
    block_on(async {
        let origin = origin().await;
        let (objects, address) = objects(&origin);
        // A line of the log for each of them.
        let wrong = |index: usize| {
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: wrong-{index}, labels: 1}}\n")
        };
        let file = |from: usize| {
            let documents: Vec<_> = (from..from + 1000).map(wrong).collect();
            documents.join("---\n")
        };
        let first = objects.clone().route("route", &[prefix("/one", "origin")]);
        let mut program = Program::start(&first, "", &["--drain-deadline", "0s"]);
        program.until("/readyz", 200, "ready").await;
        for from in (0..LINES).step_by(1000) {
            write(program.folder.path(), &format!("{from}.yaml"), &file(from));
        }
        program
            .until("/metrics", 200, "portcullis_config_problems 4004")
            .await;
        let mut client = Client::http1(address).await;
        for _ in 0..LINES {
            assert_eq!(client.get("a.com", "/one").await.status, 200);
        }
        let second = objects.route("route", &[prefix("/two", "origin")]);
        write(program.folder.path(), "objects.yaml", &second.text());
        let served = async || client.get("a.com", "/two").await.status == 200;
        eventually("the route is served", served).await;
        program.until("/healthz", 200, "ok").await;
        program.until("/readyz", 200, "ready").await;
        assert_eq!(program.terminate(), Some(0));
    });
}

#[test]
fn last_lines_reach_a_reader_that_is_slow() {
    block_on(async {
        let (objects, _) = objects(&origin().await);
        let mut program = Program::start(&objects, "", &[]);
        program.until("/readyz", 200, "ready").await;
        assert_eq!(program.terminate(), Some(0));
        let log = program.log();
        assert!(
            log.contains("listening on") && log.contains("shutting down"),
            "{log}"
        );
    });
}

#[test]
fn error_that_ends_the_program_reaches_its_log() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing");
    let output = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["run", "--admin", "off", "--config-dir"])
        .arg(&missing)
        .output()
        .expect("ended");
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    let expected = format!(
        "the configuration directory {} cannot be read",
        missing.display()
    );
    assert!(log.contains(&expected), "{log}");
}

#[test]
fn says_how_far_a_long_start_is_and_ends_at_once() {
    let controller = format!("https://{}", closed_address());
    let mut child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["run", "--admin", "off", "--gateway", "infra/edge"])
        .args(["--controller", &controller, "--drain-delay", "1h"])
        .env("RUST_LOG", "info")
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let log = BufReader::new(child.stderr.take().expect("piped"));
    let mut lines = log.lines().map(|line| line.expect("text"));
    let line = lines.find(|line| line.contains("not ready after"));
    assert!(line.is_some_and(|line| line.contains("not configured yet")));
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
}

/// Idle clients: some have sent nothing, and the others wait after a response.
async fn idle_clients(address: SocketAddr, count: usize) -> (Vec<TcpStream>, Vec<Client>) {
    let (mut silent, mut waiting) = (Vec::new(), Vec::new());
    for index in 0..count {
        if index % 2 == 0 {
            silent.push(connect(address).await);
            continue;
        }
        let mut client = match index % 4 {
            1 => Client::http1(address).await,
            _ => Client::http2(address).await,
        };
        assert_eq!(client.get("a.com", "/").await.status, 200, "client {index}");
        waiting.push(client);
    }
    (silent, waiting)
}

#[test]
fn serves_neighbours_of_many_idle_clients_with_few_descriptors() {
    block_on(async {
        let origin = origin().await;
        let (objects, address) = objects(&origin);
        let objects = objects.route("route", &[to("origin")]);
        let mut program = Program::start(&objects, "ulimit -n 256; ", &["--drain-deadline", "0s"]);
        program.until("/readyz", 200, "ready").await;
        let _idle = idle_clients(address, 300).await;
        for _ in 0..60 {
            assert_eq!(get(address, "a.com", "/").await.status, 200);
        }
        let mut neighbours = Vec::new();
        for _ in 0..20 {
            let mut client = Client::http1(address).await;
            assert_eq!(client.get("a.com", "/").await.status, 200);
            neighbours.push(client);
        }
        for client in &mut neighbours {
            assert_eq!(client.get("a.com", "/").await.status, 200);
        }
        program
            .until("/metrics", 200, "portcullis_connections_evicted_total")
            .await;
        program
            .until("/metrics", 200, "portcullis_connections_refused_total 0")
            .await;
        program.terminate();
        let log = program.log();
        let shortage = log.lines().find(|line| line.contains("limit of 256 file"));
        assert!(shortage.is_some_and(|line| !line.contains("WARN")), "{log}");
        assert!(!log.contains("accept failed"), "{log}");
    });
}

#[test]
fn client_whose_requests_hang_leaves_descriptors_to_others() {
    block_on(async {
        let silent = Origin::raw(|stream| async {
            let _open = stream;
            pending::<()>().await;
        });
        let (silent, origin) = (silent.await, origin().await);
        let (objects, address) = objects(&origin);
        let rules = [prefix("/silent", "silent"), to("origin")];
        let objects = objects
            .service("silent", &[silent.address])
            .route("route", &rules);
        let program = Program::start(&objects, "ulimit -n 256; ", &["--drain-deadline", "0s"]);
        program.until("/readyz", 200, "ready").await;
        let stream = TokioIo::new(connect(address).await);
        let hostile = http2::handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = hostile.expect("ready");
        tokio::spawn(connection);
        // Each of them waits at a connection of its own, more than there are descriptors for.
        let mut requests = JoinSet::new();
        for _ in 0..90 {
            let mut sender = sender.clone();
            let request = Request::get(format!("http://a.com:{}/silent", address.port()));
            let request = request.body(empty()).expect("a request");
            requests.spawn(async move { sender.send_request(request).await });
        }
        let first = timeout(TEST_TIMEOUT, requests.join_next()).await;
        let first = first.expect("in time").expect("a task").expect("no panic");
        assert_eq!(first.expect("a response").status(), 503);
        let polite = connect_from([127, 0, 0, 2], address).await;
        let mut polite = Client::http1_on(polite.expect("connected")).await;
        assert_eq!(polite.get("a.com", "/").await.status, 200);
    });
}

#[test]
fn warns_if_descriptors_do_not_suffice_for_a_configured_maximum() {
    block_on(async {
        let (objects, _) = objects(&origin().await);
        let arguments = ["--max-connections", "1000"];
        let mut program = Program::start(&objects, "ulimit -n 256; ", &arguments);
        program.until("/readyz", 200, "ready").await;
        program.terminate();
        let log = program.log();
        let shortage = log.lines().find(|line| line.contains("limit of 256 file"));
        assert!(shortage.is_some_and(|line| line.contains("WARN")), "{log}");
    });
}

#[test]
fn raises_the_soft_limit_of_descriptors() {
    block_on(async {
        let (objects, _) = objects(&origin().await);
        let shell = "ulimit -Sn 64; ulimit -Hn 1000; ";
        let mut program = Program::start(&objects, shell, &[]);
        program.until("/readyz", 200, "ready").await;
        let limits = format!("/proc/{}/limits", program.child.id());
        let limits = std::fs::read_to_string(limits).expect("readable");
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let numbers: Vec<_> = line
            .expect("a limit")
            .split_whitespace()
            .skip(3)
            .take(2)
            .collect();
        assert_eq!(numbers, ["1000", "1000"]);
        program.terminate();
    });
}
