//! The PROXY protocol in front of connections to backends.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::backend_policy::policy;
use crate::client::{Client, connect, read_until, write_text};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, to};
use crate::tcp_route::route;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns a policy with this version.
fn version(version: &str) -> String {
    policy(json!({"connection": {"proxyProtocol": version}}))
}

#[tokio::test]
async fn connections_of_tcp_tell_the_address_of_the_client() {
    let (sender, mut lines) = mpsc::unbounded_channel();
    let origin = Origin::raw(move |mut stream| {
        let sender = sender.clone();
        async move {
            let line = read_until(&mut stream, "\r\n").await;
            let _ = sender.send(line);
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    })
    .await;
    let objects = Objects::gateway(&["{name: tcp, port: 5432, protocol: TCP}".to_owned()])
        .with(route("TCPRoute", "route", &[], &[("app", 1)]).to_string())
        .service("app", &[origin.address])
        .with(version("V1"));
    let scene = Scene::start(&objects);
    let mut client = connect(scene.at(5432)).await;
    client.write_all(b"hello\n").await.expect("sent");
    assert_eq!(read_until(&mut client, "\n").await, "hello\n");
    let (own, proxy) = (client.local_addr().expect("own"), scene.at(5432));
    let expected = format!(
        "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
        own.port(),
        proxy.port()
    );
    assert_eq!(lines.recv().await, Some(expected));
}

/// Clients share connections, so that these tell no address.
#[tokio::test]
async fn connections_of_http_tell_no_address() {
    for (version_name, expected) in [
        ("V1", b"PROXY UNKNOWN\r\n".to_vec()),
        ("V2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec()),
    ] {
        let length = expected.len();
        let (sender, mut headers) = mpsc::unbounded_channel();
        let origin = Origin::raw(move |mut stream| {
            let sender = sender.clone();
            async move {
                let mut header = vec![0; length];
                let _ = stream.read_exact(&mut header).await;
                let _ = sender.send(header);
                loop {
                    read_until(&mut stream, "\r\n\r\n").await;
                    write_text(&mut stream, OK).await;
                }
            }
        })
        .await;
        let objects = Objects::http()
            .service("app", &[origin.address])
            .route("route", &[to("app")])
            .with(version(version_name));
        let scene = Scene::with(&objects, |settings| settings.workers = 1);
        let mut client = Client::http1(scene.at(80)).await;
        for _ in 0..3 {
            assert_eq!(client.get("a.com", "/").await.status, 200);
        }
        assert_eq!(headers.recv().await, Some(expected));
        assert_eq!(origin.connections(), 1);
    }
}
