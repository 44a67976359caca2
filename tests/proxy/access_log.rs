//! The program in its own process: its access log and its shutdown.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::client::{Client, connect, read_all, write_text};
use crate::harness::h2::{self as peer, block_on};
use crate::harness::ports::closed_address;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::{Origin, empty, stream};
use crate::scene::{Objects, http, prefix, write};
use crate::websocket_http2::{switch, tell, tunnel};

/// A running program.
struct Program {
    child: Child,
    /// Its standard output until it exits.
    output: JoinHandle<String>,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Starts it with these objects and waits until it listens.
    fn start(objects: &Objects) -> Self {
        Self::start_with(objects, &[])
    }

    /// Like [`Self::start`], with additional arguments.
    fn start_with(objects: &Objects, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "objects.yaml", &objects.text());
        let mut child = command(folder.path(), arguments).spawn().expect("started");
        let mut stdout = child.stdout.take().expect("piped");
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            text
        });
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let listens = log.by_ref().map(|line| line.expect("text"));
        let last = listens
            .take_while(|line| !line.contains("is active"))
            .last();
        // Otherwise the program would block on a full pipe.
        std::thread::spawn(move || log.for_each(drop));
        assert!(last.is_some_and(|line| line.contains("listening on")));
        Self {
            child,
            output,
            _folder: folder,
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Sends SIGTERM and returns the lines of the access log. Clients of the test run meanwhile, so that their connections can
    /// end.
    async fn stop(self) -> Vec<Value> {
        let stopped = tokio::task::spawn_blocking(|| self.stopped());
        stopped.await.expect("no panic")
    }

    fn stopped(mut self) -> Vec<Value> {
        self.signal("-TERM");
        let status = self.child.wait().expect("ended");
        assert_eq!(status.code(), Some(0), "{status}");
        let output = self.output.join().expect("no panic");
        // No characters that a terminal interprets or that hide text.
        let is_plain =
            |character: char| matches!(character, '\n' | '…') || (' '..='~').contains(&character);
        assert!(output.chars().all(is_plain), "{output}");
        parse(&output)
    }
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command
        .args(["run", "--admin", "off", "--workers", "1"])
        .args(["--drain-delay", "0s", "--config-dir"])
        .arg(folder)
        .args(arguments)
        .env("RUST_LOG", "info")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn parse(log: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    log.lines().map(line).collect()
}

/// Waits until the file has a line for this path. A file has no event that a test could await.
fn await_line(file: &Path, path: &str) {
    let start = Instant::now();
    while !fs::read_to_string(file).is_ok_and(|text| text.contains(path)) {
        assert!(start.elapsed() < TEST_TIMEOUT, "no line for {path}");
        // No notification tells the change.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns objects with a listener on a free port.
fn objects(origin: &Origin) -> (Objects, SocketAddr) {
    let address = closed_address();
    let local = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let listener = http("http", address.port(), "");
    let objects = Objects::default()
        .with(yaml::gateway_with("gateway", &[listener], local))
        .service("echo", &[origin.address])
        .service("empty", &[])
        .route(
            "route",
            &[prefix("/echo", "echo"), prefix("/empty", "empty")],
        );
    (objects, address)
}

/// A credential, in every part of a request where clients send credentials.
const SECRET: &str = "s3cr3t";

#[tokio::test]
async fn logs_one_line_per_request_without_credentials() {
    let echo = Origin::echo("echo").await;
    let (objects, address) = objects(&echo);
    let program = tokio::task::spawn_blocking(move || Program::start(&objects))
        .await
        .expect("no panic");
    let authorization = format!("Bearer {SECRET}");
    let cookie = format!("session={SECRET}");
    let fields = [
        ("authorization", authorization.as_str()),
        ("cookie", &cookie),
        ("user-agent", "agent \"quoted\" \\ \u{202e}reversed"),
        ("x-request-id", SECRET),
    ];
    let mut client = Client::http1(address).await;
    let path = format!("/echo/x?token={SECRET}");
    assert_eq!(
        client.get_with("a.com:80", &path, &fields).await.name(),
        "echo"
    );
    assert_eq!(client.post("a.com", "/echo", "four").await.status, 200);
    let empty = client.get("a.com", "/empty").await;
    assert_eq!(empty.status, 503);
    let none = client.get("b.com", "/none").await;
    assert_eq!(none.status, 404);
    let mut http2 = Client::http2(address).await;
    assert_eq!(http2.get("a.com", "/echo/2").await.name(), "echo");
    let mut bad = connect(address).await;
    write_text(
        &mut bad,
        format!("GET /%00?{SECRET} HTTP/1.1\r\nHost: a.com\r\nUser-Agent: x\ty\r\n\r\n"),
    )
    .await;
    let bad = read_all(&mut bad).await;

    let lines = program.stop().await;
    assert_lines(&lines);
    assert_eq!(lines[0]["upstream"], echo.address.to_string());
    let milliseconds = |field: &str| lines[0][field].as_f64().expect("a number");
    assert!(milliseconds("upstream_ms") > 0.0);
    assert!(milliseconds("upstream_ms") <= milliseconds("duration_ms"));
    // A client that reports an error can name the request.
    for (line, id) in [(2, &empty), (3, &none)] {
        assert_eq!(lines[line]["request_id"], id.header("x-request-id"));
    }
    let id = lines[5]["request_id"].as_str().expect("an id");
    let bad = String::from_utf8_lossy(&bad).to_lowercase();
    assert!(
        id.len() == 32 && bad.contains(&format!("x-request-id: {id}")),
        "{bad}"
    );
    // One attempt is not worth a word, and without a backend there was none.
    let lacks = |line: &&Value| line["attempts"].is_null();
    assert_eq!(lines.iter().filter(lacks).count(), lines.len());
    assert!(
        lines
            .iter()
            .filter(|line| line["status"] != 200)
            .all(|line| line["upstream_ms"].is_null())
    );
}

#[test]
fn logs_tunnel_of_websocket_over_http2() {
    block_on(async {
        let origin = Origin::raw(|mut stream| async move {
            switch(&mut stream).await;
            stream.shutdown().await.expect("ended");
            read_all(&mut stream).await;
        })
        .await;
        let (objects, address) = objects(&origin);
        let program = Program::start(&objects);
        let (sender, ended) = peer::connect(address).await;
        let (body, mut stream) = tunnel(&sender, "/echo/room").await;
        tell(&mut stream, "hello").await;
        stream.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(peer::read(body).await.bytes, b"welcome");
        drop((stream, sender));
        let ended = timeout(TEST_TIMEOUT, ended).await.expect("in time");
        ended.expect("the connection runs").expect("ended");
        let lines = program.stop().await;
        let line = lines.iter().find(|line| line["path"] == "/echo/room");
        let line = line.expect("a line");
        assert_eq!(line["method"], "CONNECT");
        assert_eq!(line["protocol"], "HTTP/2");
        assert_eq!(line["status"], 200);
        assert_eq!(
            (&line["bytes_received"], &line["bytes_sent"]),
            (&json!(5), &json!(7))
        );
        assert!(line["error"].is_null(), "{line}");
    });
}

#[tokio::test]
async fn truncates_long_methods_and_paths() {
    let echo = Origin::echo("echo").await;
    let (objects, address) = objects(&echo);
    let program = tokio::task::spawn_blocking(move || Program::start(&objects))
        .await
        .expect("no panic");
    let (method, path) = ("M".repeat(20_000), "p".repeat(20_000));
    let mut client = connect(address).await;
    let head = format!("{method} /{path} HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\n");
    write_text(&mut client, head).await;
    read_all(&mut client).await;
    let lines = program.stop().await;
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(lines[0]["method"], "M".repeat(32));
    assert_eq!(lines[0]["path"], format!("/{}…", "p".repeat(2047)));
}

#[tokio::test]
async fn logs_the_timeout_that_ended_a_response() {
    let (cut, mut cuts) = tokio::sync::mpsc::unbounded_channel();
    let origin = Origin::new(move |request| {
        let flood = request.uri().path() == "/echo/write";
        let (sender, body) = stream();
        let cut = cut.clone();
        tokio::spawn(async move {
            while sender
                .send(Frame::data(vec![0; 1 << 16].into()))
                .await
                .is_ok()
                && flood
            {}
            if flood {
                // Ignored: the test may have ended.
                let _ = cut.send(());
            }
            sender.closed().await;
        });
        async { Response::new(body) }
    })
    .await;
    let (objects, address) = objects(&origin);
    let mut limited = prefix("/limited", "echo");
    limited["timeouts"] = json!({"request": "1500ms"});
    let objects = objects.route("limited", &[limited]);
    // Far apart, so that only one of them can expire.
    let limits = ["--stream-idle-timeout", "4s", "--write-timeout", "500ms"];
    let program = tokio::task::spawn_blocking(move || Program::start_with(&objects, &limits))
        .await
        .expect("no panic");
    let cases = [
        ("/echo/stall", "aborted: timed out waiting for the backend"),
        (
            "/limited",
            "aborted: no complete response within the route's request timeout",
        ),
        ("/echo/write", "aborted: timed out writing to the client"),
    ];
    for (path, _) in cases {
        for mut client in Client::both(address).await {
            let request = client
                .request(http::Method::GET, "a.com", path)
                .body(empty());
            let response = client.send(request.expect("a request")).await;
            let mut body = response.expect("a head").into_body();
            if path == "/echo/write" {
                // A client that reads, so that the proxy has no reason to abort.
                let cut = timeout(TEST_TIMEOUT, cuts.recv()).await;
                cut.expect("the response is cut").expect("the origin runs");
            }
            let rest = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
            timeout(TEST_TIMEOUT, rest)
                .await
                .expect("the response ends");
        }
    }
    let lines = program.stop().await;
    for (path, error) in cases {
        let of_path: Vec<_> = lines.iter().filter(|line| line["path"] == path).collect();
        assert_eq!(of_path.len(), 2, "{path}");
        for line in of_path {
            assert_eq!(line["error"], error, "{line:#}");
        }
    }
}

#[test]
fn appends_to_a_file_that_is_reopened_on_sigusr1() {
    block_on(async {
        let echo = Origin::echo("echo").await;
        let (objects, address) = objects(&echo);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (file, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        fs::write(&file, "{}\n").expect("written");
        let name = file.to_str().expect("text");
        let program = Program::start_with(&objects, &["--access-log", name]);
        let mut client = Client::http1(address).await;
        assert_eq!(client.get("a.com", "/echo/1").await.status, 200);
        await_line(&file, "/echo/1");
        fs::rename(&file, &moved).expect("moved");
        program.signal("-USR1");
        await_line(&file, "");
        assert_eq!(client.get("a.com", "/echo/2").await.status, 200);
        assert!(program.stop().await.is_empty());
        let lines = |file| parse(&fs::read_to_string(file).expect("text"));
        let (old, new) = (lines(&moved), lines(&file));
        assert_eq!(old.len(), 2, "{old:?}");
        assert_eq!(old[1]["path"], "/echo/1");
        assert_eq!(new.len(), 1, "{new:?}");
        assert_eq!(new[0]["path"], "/echo/2");
    });
}

#[test]
fn serves_while_the_disk_is_full() {
    block_on(async {
        let echo = Origin::echo("echo").await;
        let (objects, address) = objects(&echo);
        let program = Program::start_with(&objects, &["--access-log", "/dev/full"]);
        for _ in 0..3 {
            let mut client = Client::http1(address).await;
            assert_eq!(client.get("a.com", "/echo").await.status, 200);
        }
        assert!(program.stop().await.is_empty());
    });
}

#[test]
fn logs_errors_only_when_asked() {
    block_on(async {
        let echo = Origin::echo("echo").await;
        let (objects, address) = objects(&echo);
        let program = Program::start_with(&objects, &["--access-log-filter", "errors"]);
        // Without a file there is nothing to reopen.
        program.signal("-USR1");
        for mut client in Client::both(address).await {
            assert_eq!(client.get("a.com", "/echo").await.status, 200);
            assert_eq!(client.get("a.com", "/none").await.status, 404);
        }
        let lines = program.stop().await;
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line["status"] == 404), "{lines:?}");
    });
}

#[test]
fn does_not_start_without_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing/access.log");
    let missing = missing.to_str().expect("text");
    let output = command(folder.path(), &["--access-log", missing]).output();
    let output = output.expect("ended");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    let expected = format!("cannot open {missing}: No such file");
    assert!(text.contains(&expected), "{text}");
}

fn assert_lines(lines: &[Value]) {
    // The host of a malformed request is not logged.
    let rows = [
        ("GET", "a.com", "/echo/x", "HTTP/1.1", 200),
        ("POST", "a.com", "/echo", "HTTP/1.1", 200),
        ("GET", "a.com", "/empty", "HTTP/1.1", 503),
        ("GET", "b.com", "/none", "HTTP/1.1", 404),
        ("GET", "a.com", "/echo/2", "HTTP/2", 200),
        ("GET", "", "/%00", "HTTP/1.1", 400),
    ];
    assert_eq!(lines.len(), rows.len(), "{lines:#?}");
    for (line, (method, host, path, protocol, status)) in lines.iter().zip(rows) {
        let expected = [
            ("method", method),
            ("host", host),
            ("path", path),
            ("protocol", protocol),
        ];
        for (field, value) in expected {
            assert_eq!(line[field], value, "{line:#}");
        }
        assert_eq!(line["status"], status, "{line:#}");
        assert!(
            line["time"]
                .as_str()
                .is_some_and(|time| time.len() == 27 && time.ends_with('Z')),
            "{line:#}"
        );
        assert!(
            line["duration_ms"].as_f64().is_some_and(|time| time >= 0.0),
            "{line:#}"
        );
        assert!(
            line["client"]
                .as_str()
                .is_some_and(|client| client.starts_with("127.0.0.1:")),
            "{line:#}"
        );
        assert!(!line.to_string().contains(SECRET), "{line:#}");
    }
    assert_eq!(lines[0]["route"], "HTTPRoute default/route");
    assert_eq!(lines[0]["rule"], 0);
    assert_eq!(
        lines[0]["user_agent"],
        "agent \"quoted\" \\ \u{202e}reversed"
    );
    assert!(
        lines[0]["bytes_sent"]
            .as_u64()
            .is_some_and(|bytes| bytes > 100)
    );
    assert_eq!(lines[1]["bytes_received"], 4);
    assert_eq!(lines[2]["error"], "the backend has no ready endpoint");
    assert_eq!(lines[3]["route"], Value::Null);
}
