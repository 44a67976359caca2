//! The level of the log of a running process: set for a while through the admin address, by clients of this machine or with
//! the token of the operator.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::api::{portcullis_at, stdout};
use crate::client::{Client, connect, get, write_text};
use crate::harness::h2::block_on;
use crate::harness::ports::closed_address;
use crate::harness::tls::Certificate;
use crate::harness::yaml;
use crate::process::Program;
use crate::scene::{Objects, Scene, https, secret};

/// Begins a TLS handshake that fails, which is an event of level debug, and waits for the end of the connection.
async fn fail_handshake(address: SocketAddr) {
    let mut stream = connect(address).await;
    write_text(&mut stream, "this is not TLS").await;
    let mut rest = Vec::new();
    // The end may be a reset.
    let _ = stream.read_to_end(&mut rest).await;
}

#[test]
fn level_is_in_effect_for_its_time_only() {
    block_on(async {
        let address = closed_address();
        let listener = https("tls", address.port(), "", &["certificate"]);
        let local = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
        let objects = Objects::default()
            .with(yaml::gateway_with("gateway", &[listener], local))
            .with(secret("certificate", &Certificate::new(&["a.com"])));
        let mut program = Program::start(&objects, "", &["--access-log", "off"]);
        program.until("/readyz", 200, "ready").await;
        let shown = portcullis_at(program.admin, &["log-level"]).await;
        assert_eq!(stdout(&shown), "info\n");
        fail_handshake(address).await;

        let set = ["log-level", "info,portcullis=debug", "--for", "2s"];
        let set = portcullis_at(program.admin, &set).await;
        assert_eq!(stdout(&set), "info,portcullis=debug for 2s, then info\n");
        fail_handshake(address).await;
        let configured = r#""expiresInSeconds":null"#;
        program.until("/api/v1/log-level", 200, configured).await;
        fail_handshake(address).await;

        let wrong = portcullis_at(program.admin, &["log-level", "loud"]).await;
        assert_eq!(wrong.status.code(), Some(3));
        let error = String::from_utf8_lossy(&wrong.stderr);
        assert!(error.contains("`loud` is not a level"), "{error}");
        program.terminate();
        let log = program.log();
        assert_eq!(log.matches("a TLS handshake failed").count(), 1, "{log}");
        assert!(log.contains("the log level is info,portcullis=debug for 2 s"));
        assert!(log.contains("the log level is the configured one again"));
    });
}

#[tokio::test]
async fn only_this_machine_and_the_token_may_ask() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).expect("written");
    let scene = Scene::with(&Objects::http(), |settings| {
        settings.admin_token_file = Some(file.clone());
    });
    let admin = scene.admin_address();
    // As a client that is not on this machine: it names another host.
    let status = async |token: &str| {
        let mut client = Client::http1(admin).await;
        let headers = [("authorization", token)];
        client
            .get_with("pod", "/api/v1/status", &headers)
            .await
            .status
    };
    assert_eq!(get(admin, "pod", "/api/v1/status").await.status, 421);
    assert_eq!(status("Bearer other").await, 421);
    assert_eq!(status(&format!("Bearer {TOKEN}")).await, 200);
    let other = TOKEN.to_uppercase();
    std::fs::write(&file, &other).expect("written");
    assert_eq!(status(&format!("Bearer {TOKEN}")).await, 421);
    assert_eq!(status(&format!("Bearer {other}")).await, 200);
    // The test process has no log.
    let level = get(admin, "localhost", "/api/v1/log-level").await;
    assert_eq!(level.status, 503);
}

#[tokio::test]
async fn commands_send_the_token() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("written");
    let scene = Scene::with(&Objects::http(), |settings| {
        settings.admin_token_file = Some(file.clone());
    });
    // Leads to loopback, but is no name of it.
    let address = SocketAddr::from(([0, 0, 0, 0], scene.admin_address().port()));
    let without = portcullis_at(address, &["status", "-o", "json"]).await;
    let error = String::from_utf8_lossy(&without.stderr);
    assert!(error.contains("421"), "{error}");
    let file = file.to_str().expect("text");
    let arguments = ["status", "-o", "json", "--admin-token-file", file];
    let status = portcullis_at(address, &arguments).await;
    let status: Value = serde_json::from_str(&stdout(&status)).expect("JSON");
    assert_eq!(status["ready"], json!(true));
}
