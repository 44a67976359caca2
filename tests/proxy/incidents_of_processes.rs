//! The incidents of docs/operations.md in which a process lacks something: a reader of its output, file descriptors, CPU
//! time, a controller.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::api::{portcullis_at, stdout};
use crate::client::connect;
use crate::first_problem::{Problem, is_first_at};
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::block_on;
use crate::harness::ports::closed_address;
use crate::harness::tls::Certificate;
use crate::incidents::{documented, prints_at};
use crate::origin::{Origin, empty};
use crate::process::{Program, objects};
use crate::scene::to;

/// Sends requests without waiting for their responses.
async fn flood(address: SocketAddr) {
    let (mut responses, mut requests) = connect(address).await.into_split();
    let many = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n".repeat(1000);
    let mut buffer = vec![0; 1 << 16];
    tokio::join!(
        async { while requests.write_all(many.as_bytes()).await.is_ok() {} },
        async { while responses.read(&mut buffer).await.is_ok_and(|read| read > 0) {} },
    );
}

/// Starts a program that redirects all requests, and floods it until `portcullis status` prints these texts. Returns it with
/// its clients.
async fn flooded_until(arguments: &[&str], texts: &[&str]) -> (Program, JoinSet<()>) {
    let (objects, address) = objects(&Origin::echo("echo").await);
    let redirect =
        json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "b.com"}}]});
    let objects = objects.route("route", &[redirect]);
    let program = Program::start(&objects, "", arguments);
    program.until("/readyz", 200, "ready").await;
    // As many as leave work for the program while the client has no CPU time.
    let mut clients = JoinSet::new();
    for _ in 0..64 {
        clients.spawn(flood(address));
    }
    let begin = Instant::now();
    loop {
        let printed = stdout(&portcullis_at(program.admin, &["status"]).await);
        if texts.iter().all(|text| printed.contains(text)) {
            break;
        }
        assert!(
            begin.elapsed() < 3 * TEST_TIMEOUT,
            "{texts:?} are not in\n{printed}"
        );
        // What `status` shows of a load has no change notification.
        sleep(Duration::from_millis(200)).await;
    }
    texts.iter().for_each(|text| documented(text));
    (program, clients)
}

#[test]
fn status_tells_that_nobody_reads_the_access_log() {
    let texts = [
        " lines were dropped in the last ",
        ": what reads them is too slow, or has stopped; check it, or log less",
    ];
    let arguments = ["--drain-deadline", "0s"];
    block_on(async {
        let (program, clients) = flooded_until(&arguments, &texts).await;
        // What they did to the workers is soon a small part of the time.
        drop(clients);
        let problem = Problem {
            kind: "overload",
            object: "access log",
            texts: &texts,
        };
        is_first_at(program.admin, &problem).await;
    });
}

#[test]
fn status_tells_that_workers_have_too_little_cpu_time() {
    let text = "% of the last minute: requests wait for a CPU";
    let arguments = ["--access-log", "off", "--drain-deadline", "0s"];
    let texts = [text, "give the process more of them, or run more pods"];
    block_on(async {
        let (program, _clients) = flooded_until(&arguments, &["workers: busy for ", text]).await;
        let problem = Problem {
            kind: "overload",
            object: "workers",
            texts: &texts,
        };
        is_first_at(program.admin, &problem).await;
    });
}

#[test]
fn status_tells_that_no_file_descriptor_is_left() {
    block_on(async {
        let silent = Origin::raw(|stream| async {
            let _open = stream;
            std::future::pending::<()>().await;
        });
        let (objects, address) = objects(&silent.await);
        let objects = objects.route("route", &[to("origin")]);
        let program = Program::start(&objects, "ulimit -n 128; ", &["--drain-deadline", "0s"]);
        program.until("/readyz", 200, "ready").await;
        let stream = TokioIo::new(connect(address).await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream)
            .await
            .expect("ready");
        tokio::spawn(connection);
        // Each request waits at a connection to the backend of its own.
        let mut requests = JoinSet::new();
        for _ in 0..90 {
            let mut sender = sender.clone();
            let request = Request::get(format!("http://a.com:{}/", address.port()));
            let request = request.body(empty()).expect("a request");
            requests.spawn(async move { sender.send_request(request).await });
        }
        let first = timeout(TEST_TIMEOUT, requests.join_next()).await;
        let first = first.expect("in time").expect("a task").expect("no panic");
        assert_eq!(first.expect("a response").status(), 503);
        let problem = Problem {
            kind: "overload",
            object: "Service default/origin:80",
            texts: &[
                "attempts failed in the last minute: the process has no file descriptor left",
                "raise the hard limit (ulimit -n, LimitNOFILE=), or set --max-connections",
            ],
        };
        is_first_at(program.admin, &problem).await;
    });
}

/// A program that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn status_tells_that_the_name_of_the_controller_is_not_resolved() {
    block_on(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (token, ca) = (folder.path().join("token"), folder.path().join("ca.crt"));
        std::fs::write(&token, "token").expect("written");
        std::fs::write(&ca, Certificate::new(&["a.com"]).pem).expect("written");
        let admin = closed_address();
        let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["run", "--gateway", "infra/edge"])
            .args(["--controller", "https://controller.invalid:19443"])
            .args(["--admin", &admin.to_string()])
            .arg("--controller-token")
            .arg(&token)
            .arg("--controller-ca")
            .arg(&ca)
            .stderr(Stdio::null())
            .spawn();
        let _running = Running(child.expect("started"));
        let texts = [
            "waiting for the controller at https://controller.invalid:19443: ",
            "failed to lookup address information",
        ];
        let begin = Instant::now();
        while !stdout(&portcullis_at(admin, &["status"]).await).contains(texts[1]) {
            assert!(begin.elapsed() < TEST_TIMEOUT, "the lookup has not failed");
            // The first lookup has no change notification.
            sleep(Duration::from_millis(50)).await;
        }
        prints_at(admin, &["status"], &texts).await;
        let problem = Problem {
            kind: "controller",
            object: "controller",
            texts: &[
                "changes of objects do not arrive",
                "check that its pods run and that this one may connect to them; the log has the error",
            ],
        };
        is_first_at(admin, &problem).await;
    });
}
