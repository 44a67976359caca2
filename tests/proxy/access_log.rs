//! The program itself, in a process of its own: what it logs of requests, and how it leaves when it is told to.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::client::{Client, connect, hear_out, say};
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, http, prefix, write};

/// A running program.
struct Program {
    child: Child,
    /// What it writes to standard output until it ends.
    output: JoinHandle<String>,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Starts it with these objects, and waits until it listens.
    fn start(objects: &Objects) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), "objects.yaml", &objects.text());
        let mut child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args([
                "run",
                "--admin",
                "off",
                "--workers",
                "1",
                "--drain-delay",
                "0s",
            ])
            .arg("--config-dir")
            .arg(folder.path())
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdout = child.stdout.take().expect("piped");
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            text
        });
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let listens = log.by_ref().map(|line| line.expect("text"));
        let last = listens
            .take_while(|line| !line.contains("is served"))
            .last();
        // Else it would wait for somebody to read the rest.
        std::thread::spawn(move || log.for_each(drop));
        assert!(last.is_some_and(|line| line.contains("listening on")));
        Self {
            child,
            output,
            _folder: folder,
        }
    }

    /// Sends SIGTERM, and returns the access log, line by line.
    fn stop(mut self) -> Vec<Value> {
        let id = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status();
        assert!(told.expect("told").success());
        let status = self.child.wait().expect("ended");
        assert_eq!(status.code(), Some(0), "{status}");
        let output = self.output.join().expect("no panic");
        // Nothing that a terminal obeys, or that hides text.
        let is_plain = |character: char| character == '\n' || (' '..='~').contains(&character);
        assert!(output.chars().all(is_plain), "{output}");
        let lines = output.lines();
        lines
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }
}

/// Objects that listen on a port that was free just now.
fn objects(origin: &Origin) -> (Objects, SocketAddr) {
    let free = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = free.local_addr().expect("an address");
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

/// Credentials, in every place where clients put them.
const SECRET: &str = "s3cr3t";

#[tokio::test]
async fn every_request_is_one_line_and_no_credential_is_in_it() {
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
    assert_eq!(client.get("a.com", "/empty").await.status, 503);
    assert_eq!(client.get("b.com", "/none").await.status, 404);
    let mut http2 = Client::http2(address).await;
    assert_eq!(http2.get("a.com", "/echo/2").await.name(), "echo");
    let mut bad = connect(address).await;
    say(
        &mut bad,
        format!("GET /%00?{SECRET} HTTP/1.1\r\nHost: a.com\r\nUser-Agent: x\ty\r\n\r\n"),
    )
    .await;
    hear_out(&mut bad).await;

    let lines = tokio::task::spawn_blocking(move || program.stop())
        .await
        .expect("no panic");
    assert_lines(&lines);
    assert_eq!(lines[0]["upstream"], echo.address.to_string());
}

fn assert_lines(lines: &[Value]) {
    // Of a request that is refused for its form, the host is not believed.
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
                .is_some_and(|time| time.ends_with('Z')),
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
