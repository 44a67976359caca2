//! The command line: help, exit codes, messages, and the command lines of the documentation. Runs the real
//! program; `UPDATE_DOCS=1` rewrites `docs/settings.md` from the flags.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod check;
mod commands;
mod documented;
mod exit_codes;
mod explain;
mod explain_arguments;
mod explain_backends;
mod explain_connections;
mod ingresses;
mod man;
#[path = "../harness/ports.rs"]
mod ports;
mod readiness;
mod responses;
mod wrong_values;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use portcullis::cli;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Timeout of any wait; reached only on failure, also on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).current_dir(ROOT);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PORTCULLIS_")) {
        command.env_remove(name);
    }
    command
}

fn output(arguments: &[&str]) -> Output {
    portcullis(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn subcommands() -> Vec<String> {
    let command = cli::command();
    let names = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn wrong_usage_exits_with_2_and_shows_the_right_form() {
    for (arguments, hint) in [
        (&["run"][..], "--config-dir"),
        (&["run", "--config-dir", "x", "--body-timeout", "10"], "10s"),
        (&["run", "--config-dir", "x", "--admin", "nowhere"], "`off`"),
        (&["run", "--config-dir", "x", "--workers", "0"], "1..=1024"),
        (&["run", "--config-dir", "x", "--access-log", "of"], "`off`"),
        (
            &["run", "--kubernetes", "--config-dir", "x"],
            "cannot be used with",
        ),
        (
            &["run", "--kubernetes", "--gateway", "edge"],
            "NAMESPACE/NAME",
        ),
        (
            &["run", "--config-dir", "x", "--gateway", "a/b"],
            "--kubernetes",
        ),
        (&["run", "--controller", "https://c:1"], "--gateway"),
        (
            &["run", "--controller", "http://c:1", "--gateway", "a/b"],
            "https://HOST[:PORT]",
        ),
        (
            &["run", "--controller", "https://c:1", "--kubernetes"],
            "cannot be used with",
        ),
        (
            &["run", "--kubernetes", "--gateway=a/b", "--provisioned=host"],
            "cannot be used with",
        ),
        (
            &["run", "--config-dir", "x", "--state-dir", "y"],
            "cannot be used with",
        ),
        (
            &["check", "x", "--backend-kinds", "v1.Service,v1.Pod"],
            "`v1.Pod` is not a supported kind of backend; supported are: v1.Service, ",
        ),
        (&["explain", "x", "GET /path"], "http://"),
        (
            &["explain", "x", "http://a/", "-H", "no-colon"],
            "name: value",
        ),
        (&["explain", "http://a/"], "name a folder"),
        (
            &["explain", "--admin", "127.0.0.1:1", "x", "http://a/"],
            "DIR and --admin exclude each other",
        ),
        (
            &["explain", "--admin", "https://127.0.0.1:1", "http://a/"],
            "write one like http://127.0.0.1:19000",
        ),
        (&["explain", "--values", "x", "http://a/"], "--admin"),
        (&["shift", "shop/shop", "v2"], "v2=10%"),
        (
            &["shift", "shop/shop", "v1=10%", "v2=20%"],
            "a percentage excludes other changes",
        ),
        (&["echo"], "--listen"),
        (&["echo", "--listen", "80"], "write one like 127.0.0.1:8080"),
        (
            &["run", "--config-dir", "x", "--trusted-proxies", "10.0.0.1"],
            "`10.0.0.1` is not a CIDR; write one like 10.0.0.0/8",
        ),
        (
            &["status", "--admin", "19000"],
            "write one like http://127.0.0.1:19000",
        ),
        (&["unknown"], "unrecognized subcommand"),
    ] {
        let output = output(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(hint), "{arguments:?}: {error}");
    }
}

#[test]
fn switch_that_its_variable_sets_to_false_is_absent() {
    let with = |value: &str, arguments: &[&str]| {
        let mut command = portcullis(arguments);
        let output = command.env("PORTCULLIS_KUBERNETES", value).output();
        let output = output.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let folder = [
        "run",
        "--admin",
        "off",
        "--config-dir",
        "/nonexistent/folder",
    ];
    let (code, error) = with("false", &folder);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("/nonexistent/folder"), "{error}");
    let (code, error) = with("false", &["run", "--admin", "off"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--config-dir"), "{error}");
    let (code, error) = with("true", &folder);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn explain_shows_chosen_rule_and_other_matches() {
    let url = "http://demo.example.com:8080/hello";
    let arguments = [
        "explain",
        "config/quickstart",
        url,
        "-H",
        "X-Version: canary",
    ];
    let output = output(&arguments);
    assert_eq!(output.status.code(), Some(0));
    let expected = "\
GET http://demo.example.com:8080/hello

port        127.0.0.1:8080 (http) of Gateway default/demo
listener    http, hostname *
rule        HTTPRoute default/demo rule 1 `canary-on-request`, match 0 (any path, header x-version=canary; \
hostname demo.example.com)
filters     set response header x-served-by
backends    100.0 %  Service default/canary:80 over HTTP/1.1: 127.0.0.1:9002
not chosen  HTTPRoute default/demo rule 2 `moved`, match 0 (path /old and below; hostname demo.example.com): the path \
does not match
            HTTPRoute default/demo rule 0 `split`, match 0 (any path; hostname demo.example.com): matches too, but has \
lower precedence
            3 matches of routes for other hostnames
";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn explain_exits_with_1_if_no_rule_matches() {
    for url in [
        "http://nowhere.example.com:8080/",
        "https://demo.example.com/",
    ] {
        let output = output(&["explain", "config/quickstart", url]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        let text = stdout(&output);
        assert!(text.contains("none") || text.contains("closed"), "{text}");
    }
}

#[test]
fn explain_says_that_no_proxy_can_be_reached() {
    let [port] = ports::free_ports().map(|port: u16| port.to_string());
    for address in [
        format!("127.0.0.1:{port}"),
        format!("http://127.0.0.1:{port}/"),
    ] {
        let output = output(&["explain", "--admin", &address, "http://a/"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        let expected = format!("cannot ask the proxy at 127.0.0.1:{port}: cannot connect");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn explain_says_how_the_proxy_refuses_a_request() {
    for (request, expected) in [
        (
            "http://demo.example.com:8080/a/../b",
            "response    400: the path has a dot segment\n",
        ),
        (
            "TRACE http://demo.example.com:8080/",
            "response    405: method not allowed\n",
        ),
        (
            "http://demo.example.com:8080//old/page",
            "rule        HTTPRoute default/demo rule 2 `moved`",
        ),
    ] {
        let text = stdout(&output(&["explain", "config/quickstart", request]));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn settings_reference_matches_flags() {
    let path = Path::new(ROOT).join("docs/settings.md");
    let reference = settings_reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &reference).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference,
        "docs/settings.md is old: run UPDATE_DOCS=1 cargo test --test cli"
    );
}

fn settings_reference() -> String {
    let mut text = "# Settings\n\n\
        Generated from the flags by `UPDATE_DOCS=1 cargo test --test cli`. A flag overrides its environment variable. Times are \
        written like `500ms`, `10s`, `5m` or `1h30m`, sizes like `65536` or `64KiB`.\n"
        .to_owned();
    let mut command = cli::command();
    command.build();
    for one in command
        .get_subcommands()
        .filter(|one| one.get_name() != "help")
    {
        write!(text, "\n## portcullis {}\n\n", one.get_name()).unwrap();
        write!(text, "{}\n\n", one.get_about().unwrap()).unwrap();
        text.push_str("| flag | variable | default | what |\n|---|---|---|---|\n");
        for argument in one
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
        {
            let name = argument.get_value_names().unwrap_or_default().join(" ");
            let flag = match argument.get_long() {
                Some("help" | "version") => continue,
                Some(long) if argument.get_action().takes_values() => format!("--{long} {name}"),
                Some(long) => format!("--{long}"),
                None => name,
            };
            let variable = argument
                .get_env()
                .map_or_else(String::new, |name| format!("`{}`", name.to_str().unwrap()));
            let defaults: Vec<_> = argument
                .get_default_values()
                .iter()
                .map(|it| it.to_str().unwrap())
                .collect();
            let default = match defaults.join(",") {
                none if none.is_empty() || !argument.get_action().takes_values() => String::new(),
                default => format!("`{default}`"),
            };
            let help = argument.get_help().unwrap().to_string().replace('|', "\\|");
            let flag = flag.replace('|', "\\|");
            writeln!(text, "| `{flag}` | {variable} | {default} | {help} |").unwrap();
        }
    }
    text
}

/// A running program, killed when a test fails.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = portcullis(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Sends SIGTERM and returns the exit code.
    fn terminate(mut self) -> Option<i32> {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        let end = Instant::now() + TEST_TIMEOUT;
        while Instant::now() < end {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            // Nothing tells the end of a process.
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("still running {TEST_TIMEOUT:?} after SIGTERM");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: SocketAddr, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn echo_responds_with_received_request() {
    let mut running = Running::start(&["echo", "--listen", "127.0.0.1:0", "--name", "one"]);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.trim().rsplit('/').next().unwrap().parse().unwrap();
    let answer = get(address, "/a?b=c", "X-Test: yes\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&body["name"], &body["path"]),
        (&"one".into(), &"/a?b=c".into())
    );
    assert_eq!(body["headers"]["x-test"], "yes");
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn commands_that_quickstart_prints_work() {
    let [http, https, admin] = ports::free_ports().map(|port: u16| port.to_string());
    let address = format!("127.0.0.1:{admin}");
    let flags = [
        "quickstart",
        "--http-port",
        &http,
        "--https-port",
        &https,
        "--admin",
        &address,
    ];
    let mut running = Running::start(&flags);
    let mut lines = BufReader::new(running.0.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let printed: Vec<String> = lines
        .by_ref()
        .take_while(|line| !line.starts_with("Ctrl-C"))
        .collect();
    let curls = printed
        .iter()
        .filter(|line| line.trim().starts_with("curl "));
    assert_eq!(curls.count(), 4, "{printed:?}");
    std::thread::spawn(move || lines.for_each(drop));

    let http = SocketAddr::from((Ipv4Addr::LOCALHOST, http.parse().unwrap()));
    assert!(get(http, "/hello", "X-Version: canary\r\n").contains("\"name\": \"canary\""));
    assert!(get(http, "/old/page", "").contains("/new/page"));
    let admin = address.parse().unwrap();
    assert!(get(admin, "/readyz", "").starts_with("HTTP/1.1 200"));
    let ready = output(&["status", "--readiness", "--admin", &address]);
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    assert_eq!(stdout(&ready), "ready\n");
    assert!(get(admin, "/metrics", "").contains(
        "portcullis_requests_total{namespace=\"default\",route=\"demo\",kind=\"HTTPRoute\""
    ));
    let config = get(admin, "/config", "");
    assert!(
        config.contains("sha256") && !config.contains("PRIVATE KEY"),
        "{config}"
    );
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn quickstart_names_taken_port_and_flag() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = output(&["quickstart", "--http-port", &port, "--admin", "off"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains(&port) && error.contains("--http-port"),
        "{error}"
    );
}
