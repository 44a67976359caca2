//! How commands end that cannot look, or that nobody reads.

use crate::{output, portcullis, ports};

/// As before `head -1`, which ends once it has a line.
#[test]
fn commands_end_quietly_without_a_reader() {
    for arguments in [
        &["completions", "bash"][..],
        &["check", "config/quickstart"],
        &["check", "-o", "json", "config/quickstart"],
        &[
            "explain",
            "config/quickstart",
            "http://demo.example.com:8080/hello",
        ],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = portcullis(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

/// What they find has another exit code than that they cannot look.
#[test]
fn commands_exit_with_3_if_the_proxy_cannot_be_reached() {
    let [port] = ports::free_ports().map(|port: u16| port.to_string());
    let address = format!("127.0.0.1:{port}");
    for command in [
        &["status"][..],
        &["config", "routes"],
        &["top", "--once"],
        &["tap"],
        &["log-level"],
    ] {
        let output = output(&[command, &["--admin", &address]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {error}");
        assert!(error.contains("cannot connect"), "{command:?}: {error}");
    }
}
