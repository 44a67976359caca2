//! The access log of connections to TLS listeners: their server names, and which connections have lines.

use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::client::{Client, connect, handshake, read_all, read_until, write_text};
use crate::connection_log::{Logged, assert_members};
use crate::harness::tls;
use crate::origin::Origin;
use crate::scene::Objects;
use crate::tcp_route::{Backend, echo, talk};
use crate::tls_origin::{Authority, TlsOrigin};
use crate::tls_route::{mixed, passthrough, terminated, tls_route};

#[tokio::test]
async fn lines_of_tls_have_the_server_name_and_requests_have_their_own() {
    let authority = Authority::new();
    let passed = TlsOrigin::start(&authority.issue(&["pass.example.com"])).await;
    let (term, web) = (echo("term").await, Origin::echo("web").await);
    let logged = Logged::start(&mixed(&passed, &term, &web));
    let config = tls::client(&[]);
    let stream = handshake(logged.at(443), "pass.example.com", &config).await;
    let mut client = Client::http1_on(stream.expect("a handshake")).await;
    assert_eq!(client.get("pass.example.com", "/").await.text(), "hello");
    drop(client);
    let passed_line = logged.line().await;
    let expected = json!({
        "protocol": "TLS", "server_name": "pass.example.com", "port": 443,
        "listener": "Gateway default/gateway listener pass",
        "route": "TLSRoute default/pass", "upstream": passed.address.to_string(),
        "end": "closed by the client", "error": null,
    });
    assert_members(&passed_line, &expected);
    // The ClientHello counts, since it is forwarded.
    assert!(passed_line["bytes_received"].as_u64() > Some(200));

    let stream = handshake(logged.at(443), "TERM.example.com", &config).await;
    let mut stream = stream.expect("a handshake");
    assert_eq!(read_until(&mut stream, "\n").await, "term\n");
    talk(&mut stream, "hello").await;
    stream.shutdown().await.expect("half-closed");
    read_all(&mut stream).await;
    let lines = logged.until(2).await;
    let expected = json!({
        "server_name": "term.example.com", "listener": "Gateway default/gateway listener term",
        "route": "TLSRoute default/term", "bytes_received": 6, "bytes_sent": 11,
        "end": "closed by the client",
    });
    assert_members(&lines[1], &expected);

    // A request has a line, and its connection has none.
    let mut client = Client::tls(logged.at(443), "www.example.com", &config).await;
    assert_eq!(client.get("www.example.com", "/").await.name(), "web");
    drop(client);
    let lines = logged.until(3).await;
    assert_members(&lines[2], &json!({"status": 200, "end": null}));
    let refused = handshake(logged.at(443), "b.test", &config).await;
    refused.expect_err("no route");
    let lines = logged.until(4).await;
    let expected = json!({
        "server_name": "b.test", "end": "no route", "error": "no route", "listener": null,
        "bytes_received": 0,
    });
    assert_members(&lines[3], &expected);
    // What is no TLS.
    let mut client = connect(logged.at(443)).await;
    write_text(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
    let lines = logged.until(5).await;
    assert_members(&lines[4], &json!({"end": "no route", "server_name": null}));
}

#[tokio::test]
async fn failed_handshake_of_a_tls_listener_has_the_reason_of_the_metric() {
    let app = echo("app").await;
    let logged = Logged::start(&terminated(app.address));
    let mut client = connect(logged.at(443)).await;
    write_text(&mut client, "GET / HTTP/1.1\r\n\r\n").await;
    let expected = json!({"end": "TLS handshake failure", "error": "not_tls", "protocol": "TLS"});
    assert_members(&logged.line().await, &expected);
}

/// Returns a record with a ClientHello that has this server name, and nothing else of use.
fn client_hello(name: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let names = sized(&[&[0], &*sized(name)].concat());
    let extensions = sized(&[&[0, 0], &*sized(&names)].concat());
    let fixed = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let hello = [fixed, extensions].concat();
    let length = (hello.len() as u32).to_be_bytes();
    let message = [&[1], &length[1..], &hello].concat();
    [&[22, 3, 1], &*sized(&message)].concat()
}

#[tokio::test]
async fn server_name_cannot_forge_a_line() {
    let mut backend = Backend::start().await;
    let objects = Objects::gateway(&[passthrough("tls", "")])
        .service("app", &[backend.address()])
        .with(tls_route("app", &["*.example.com"], "app"));
    let logged = Logged::start(&objects);
    let mut client = connect(logged.at(443)).await;
    let name = b"a\",\"end\":\"x\"}\n{\x1b[31m\\.example.com";
    let hello = client_hello(name);
    client.write_all(&hello).await.expect("sent");
    let mut other = backend.accept().await;
    client.shutdown().await.expect("half-closed");
    assert_eq!(read_all(&mut other).await, hello);
    drop(other);
    let line = logged.line().await;
    let name = std::str::from_utf8(name).expect("text");
    let expected = json!({"server_name": name, "end": "closed by the client",
                          "bytes_received": hello.len()});
    assert_members(&line, &expected);
    let text = logged.text();
    assert!(
        !text.contains('\x1b') && text.lines().count() == 1,
        "{text}"
    );
}
