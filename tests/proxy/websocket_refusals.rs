//! WebSocket requests over HTTP/2 that the backend or the proxy rejects.

use http::Request;
use serde_json::json;

use crate::access_policy::{access, gateway};
use crate::client::{self, read_all, read_until, write_text};
use crate::harness::h2::{self as peer, block_on};
use crate::origin::Origin;
use crate::scene::Scene;
use crate::upgrade::REQUEST;
use crate::websocket_http2::{connect, objects, open};

#[test]
fn relays_responses_of_backends_that_refuse() {
    block_on(async {
        let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
        let switched = "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
        let rows = [
            ("403 Forbidden\r\nX-Why: no\r\nContent-Length: 3\r\n\r\nno!".to_owned(), 403, "no!"),
            ("426 Upgrade Required\r\nUpgrade: other\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n".to_owned(), 426, ""),
            ("302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n".to_owned(), 302, ""),
            ("200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(), 502, "the backend did not switch to WebSocket"),
            ("204 No Content\r\n\r\n".to_owned(), 502, "the backend did not switch to WebSocket"),
            (format!("{switched}{accept}\r\n"), 502, "the backend's Sec-WebSocket-Accept does not fit the key"),
            (format!("{switched}\r\n"), 502, "the backend's Sec-WebSocket-Accept does not fit the key"),
        ];
        for (answer, status, text) in rows {
            let response = answer.clone();
            let origin = Origin::raw(move |mut stream| {
                let response = response.clone();
                async move {
                    read_until(&mut stream, "\r\n\r\n").await;
                    write_text(&mut stream, format!("HTTP/1.1 {response}")).await;
                    read_all(&mut stream).await;
                }
            })
            .await;
            let scene = Scene::start(&objects(&origin));
            let (sender, _ended) = peer::connect(scene.at(80)).await;
            let (response, _stream) = open(&sender, connect("/chat", "websocket")).await;
            assert_eq!(response.status(), status, "{answer}");
            assert!(!response.headers().contains_key("upgrade"), "{answer}");
            let received = peer::read(response.into_body()).await;
            assert_eq!(String::from_utf8_lossy(&received.bytes), text, "{answer}");
        }
    });
}

/// Protocols have names in any case.
#[test]
fn policies_decide_about_upgrades_over_every_version() {
    block_on(async {
        let origin = Origin::echo("origin").await;
        let upgrade = json!({"name": "Upgrade", "value": "websocket"});
        let rule = json!({"name": "a", "action": "Deny", "match": {"headers": [upgrade]}});
        let rules = json!({"authorization": {"default": "Allow", "rules": [rule]}});
        let policy = access("a", &gateway(), &rules);
        let scene = Scene::start(&objects(&origin).with(policy));
        for protocol in ["websocket", "WebSocket"] {
            let mut stream = client::connect(scene.at(80)).await;
            write_text(&mut stream, REQUEST.replace("websocket", protocol)).await;
            let head = read_until(&mut stream, "\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{protocol}: {head}");
        }
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let (response, _stream) = open(&sender, connect("/chat", "websocket")).await;
        assert_eq!(response.status(), 403);
        let answer = client::get(scene.at(80), "a.com", "/chat").await;
        assert_eq!(answer.status, 200);
    });
}

#[test]
fn rejects_invalid_requests() {
    block_on(async {
        let origin = Origin::raw(|_| async { panic!("a connection") }).await;
        let scene = Scene::start(&objects(&origin));
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let with = |name: &'static str, value: &'static str| {
            let mut request = connect("/chat", "websocket");
            request
                .headers_mut()
                .insert(name, value.parse().expect("a value"));
            request
        };
        let plain = Request::connect("a.com:80").body(()).expect("a request");
        for (request, status) in [
            (connect("/chat", "connect-udp"), 501),
            (connect("/chat", ""), 501),
            (plain, 405),
            (connect("/chat/..%2fadmin", "websocket"), 400),
            (connect("/elsewhere", "websocket"), 404),
            (with("content-length", "0"), 400),
            (with("host", "b.com"), 400),
            (with("expect", "something"), 417),
        ] {
            let what = format!("{request:?}");
            let (response, _stream) = open(&sender, request).await;
            assert_eq!(response.status(), status, "{what}");
        }
        assert_eq!(origin.connections(), 0);
    });
}
