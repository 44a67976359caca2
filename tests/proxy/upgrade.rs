//! Upgraded connections: both directions are relayed, end independently, and survive configuration
//! changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{connect, get, handshake, read_all, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

pub(crate) const REQUEST: &str = "GET /chat HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
pub(crate) const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Switches protocols, then echoes lines until the client half-closes, and sends a last line.
async fn chat(mut stream: TcpStream) {
    let head = read_until(&mut stream, "\r\n\r\n")
        .await
        .to_ascii_lowercase();
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert!(
        head.contains("\r\nsec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n"),
        "{head}"
    );
    // The first line directly follows the head.
    write_text(&mut stream, format!("{SWITCH}welcome\n")).await;
    let mut lines = tokio::io::BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line).await;
        if !matches!(read, Ok(1..)) {
            break;
        }
        write_text(&mut lines, line).await;
    }
    write_text(&mut lines, "goodbye".repeat(10_000)).await;
    let _ = lines.shutdown().await;
}

fn objects(origin: &Origin) -> Objects {
    Objects::http_and_https().service("chat", &[origin.address])
}

#[tokio::test]
async fn relays_both_directions_to_the_last_byte() {
    let origin = Origin::raw(chat).await;
    let scene = Scene::start(&objects(&origin).route("route", &[prefix("/chat", "chat")]));
    let mut plain = connect(scene.at(80)).await;
    talk(&mut plain).await;
    let mut secure = handshake(scene.at(443), "a.com", &tls::client(&["http/1.1"]))
        .await
        .expect("a handshake");
    talk(&mut secure).await;
}

/// Backends such as nginx upgrade connections of HTTP/1.1 alone (RFC 9113, 8.6).
#[tokio::test]
async fn upgrades_at_a_backend_that_prefers_http2_use_http1() {
    let authority = Authority::new();
    let asks = Asks {
        protocols: &["h2", "http/1.1"],
        ..Asks::default()
    };
    let certificate = authority.issue(&[NAME]);
    let chat = Origin::raw(chat).await;
    let relay = TlsOrigin::relaying(&certificate, asks, chat.address).await;
    let pages = TlsOrigin::asking(&certificate, asks).await;
    let alpn = json!({"portcullis.dev/alpn": "h2,http/1.1"});
    let objects = Objects::http()
        .service("chat", &[relay.address])
        .service("pages", &[pages.address])
        .route("route", &[prefix("/chat", "chat"), prefix("/", "pages")])
        .with(policy("chat", &trust(NAME), &alpn))
        .with(policy("pages", &trust(NAME), &alpn))
        .with(authorities("ca", &authority.pem));
    let scene = Scene::with(&objects, |settings| settings.workers = 1);
    talk(&mut connect(scene.at(80)).await).await;

    for _ in 0..2 {
        assert_eq!(get(scene.at(80), "a.com", "/page").await.status, 200);
        let mut client = connect(scene.at(80)).await;
        write_text(&mut client, REQUEST.replace("/chat", "/page")).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    let protocols: Vec<_> = pages
        .handshakes()
        .into_iter()
        .map(|it| it.protocol)
        .collect();
    assert_eq!(protocols, ["h2", "http/1.1"].map(|it| Some(it.to_owned())));
}

async fn talk<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(stream: &mut S) {
    write_text(stream, REQUEST).await;
    let head = read_until(stream, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert!(
        head.contains("\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"),
        "{head}"
    );
    assert_eq!(read_until(stream, "\n").await, "welcome\n");
    for word in ["one\n", "two\n", "three\n"] {
        write_text(stream, word).await;
        assert_eq!(read_until(stream, "\n").await, word);
    }
    // The client half-closes and still receives the rest of the backend's data.
    stream.shutdown().await.expect("ended");
    let rest = read_all(stream).await;
    assert_eq!(rest.len(), 70_000);
    assert!(rest.ends_with(b"goodbye"));
}

#[tokio::test]
async fn backend_may_half_close_first() {
    let (heard, mut reports) = tokio::sync::mpsc::channel(1);
    let origin = Origin::raw(move |mut stream| {
        let heard = heard.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            write_text(&mut stream, format!("{SWITCH}that is all")).await;
            stream.shutdown().await.expect("ended");
            let line = read_until(&mut stream, "\n").await;
            heard.send(line).await.expect("reported");
        }
    })
    .await;
    let scene = Scene::start(&objects(&origin).route("route", &[prefix("/chat", "chat")]));
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, REQUEST).await;
    read_until(&mut client, "\r\n\r\n").await;
    assert_eq!(read_all(&mut client).await, b"that is all");
    // The other direction stays open.
    write_text(&mut client, "noted\n").await;
    let line = tokio::time::timeout(TEST_TIMEOUT, reports.recv()).await;
    assert_eq!(line.expect("in time").expect("a line"), "noted\n");
}

#[tokio::test]
async fn upgrade_skips_unreachable_endpoint() {
    let origin = Origin::raw(chat).await;
    let endpoints = [Origin::dead(), origin.address];
    let objects = Objects::http().service("chat", &endpoints);
    let scene = Scene::start(&objects.route("route", &[prefix("/chat", "chat")]));
    for _ in 0..4 {
        talk(&mut connect(scene.at(80)).await).await;
    }
}

#[tokio::test]
async fn refused_upgrade_is_retried_as_the_rule_allows() {
    let attempts = Arc::<AtomicUsize>::default();
    let seen = attempts.clone();
    let origin = Origin::raw(move |mut stream| {
        let is_first = seen.fetch_add(1, SeqCst) == 0;
        async move {
            if is_first {
                read_until(&mut stream, "\r\n\r\n").await;
                let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                write_text(&mut stream, busy).await;
            } else {
                chat(stream).await;
            }
        }
    })
    .await;
    let mut rule = prefix("/chat", "chat");
    rule["retry"] = json!({"codes": [503], "attempts": 1});
    let objects = Objects::http().service("chat", &[origin.address]);
    let scene = Scene::start(&objects.route("route", &[rule]));
    talk(&mut connect(scene.at(80)).await).await;
    assert_eq!(attempts.load(SeqCst), 2);
}

#[tokio::test]
async fn relays_bytes_sent_before_the_switch() {
    let origin = Origin::raw(chat).await;
    let scene = Scene::start(&objects(&origin).route("route", &[prefix("/chat", "chat")]));
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, format!("{REQUEST}early\n")).await;
    read_until(&mut client, "\r\n\r\n").await;
    assert_eq!(read_until(&mut client, "\n").await, "welcome\n");
    assert_eq!(read_until(&mut client, "\n").await, "early\n");
}

#[tokio::test]
async fn relays_response_of_backend_that_does_not_switch() {
    let origin = Origin::raw(|mut stream| async move {
        loop {
            read_until(&mut stream, "\r\n\r\n").await;
            write_text(
                &mut stream,
                "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno",
            )
            .await;
        }
    })
    .await;
    let scene = Scene::start(&objects(&origin).route("route", &[prefix("/chat", "chat")]));
    let mut client = connect(scene.at(80)).await;
    for _ in 0..2 {
        write_text(&mut client, REQUEST).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 426 "), "{head}");
        assert_eq!(read_until(&mut client, "no").await, "no");
    }
}

#[tokio::test]
async fn tunnel_survives_configuration_change() {
    let origin = Origin::raw(chat).await;
    let objects = objects(&origin);
    let mut scene = Scene::start(&objects.clone().route("route", &[prefix("/chat", "chat")]));
    let mut plain = connect(scene.at(80)).await;
    let mut secure = handshake(scene.at(443), "a.com", &tls::client(&["http/1.1"]))
        .await
        .expect("a handshake");
    write_text(&mut plain, REQUEST).await;
    read_until(&mut plain, "welcome\n").await;
    write_text(&mut secure, REQUEST).await;
    read_until(&mut secure, "welcome\n").await;

    // Its route, Service and certificate are deleted.
    let other = Origin::echo("other").await;
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("tls", 443, "", &["certificate"]),
    ])
    .with(secret("certificate", &Certificate::new(&["b.com"])))
    .service("other", &[other.address])
    .route("route", &[prefix("/other", "other")]);
    scene.replace(&objects).await;
    assert_eq!(get(scene.at(80), "a.com", "/chat").await.status, 404);
    write_text(&mut plain, "still here\n").await;
    assert_eq!(read_until(&mut plain, "\n").await, "still here\n");
    write_text(&mut secure, "still here\n").await;
    assert_eq!(read_until(&mut secure, "\n").await, "still here\n");

    // Closing the port does not end it either.
    scene
        .replace(&Objects::gateway(&[http("elsewhere", 81, "")]))
        .await;
    write_text(&mut plain, "and still\n").await;
    assert_eq!(read_until(&mut plain, "\n").await, "and still\n");
}
