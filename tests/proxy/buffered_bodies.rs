//! Request bodies that RoutePolicies have read as a whole before a backend is asked.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::access_policy::{before, connect_from};
use crate::client::{Client, connect, get, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::{self as peer, block_on};
use crate::origin::{Origin, full};
use crate::route_policy::policy;
use crate::scene::Scene;

/// A policy on the rule `admin`; the other rule forwards bodies as they arrive.
fn buffered(limit: &str) -> String {
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let spec = json!({"requestBody": {"buffer": {"limit": limit}}});
    policy("buffered", &admin, &spec)
}

fn post(path: &str) -> Request<()> {
    let request = Request::post(format!("http://a.com{path}"));
    request.body(()).expect("a request")
}

#[test]
fn backend_is_asked_when_the_body_is_complete() {
    block_on(async {
        let origin = Origin::echo("origin").await;
        let scene = Scene::start(&before(&origin, &[buffered("1Ki")]));
        let (sender, _connection) = peer::connect(scene.at(80)).await;
        let open = async |path: &str| {
            let mut sender = sender.clone().ready().await.expect("open");
            sender.send_request(post(path), false).expect("sent")
        };
        let (response, mut body) = open("/admin").await;
        let part = Bytes::from_static(b"1234567");
        let sent = peer::write(&mut body, part.clone(), false);
        sent.await.expect("taken");
        // The connection handles frames in order, so that the part has arrived by then.
        let (other, mut other_body) = open("/").await;
        let sent = peer::write(&mut other_body, part.clone(), true);
        sent.await.expect("taken");
        let other = timeout(TEST_TIMEOUT, other).await.expect("in time");
        assert_eq!(other.expect("a response").status(), 200);
        assert_eq!(origin.requests(), 1, "only that of the other rule");
        peer::write(&mut body, part, true).await.expect("taken");
        let response = timeout(TEST_TIMEOUT, response).await.expect("in time");
        let response = response.expect("a response");
        assert_eq!(response.status(), 200);
        let received = peer::read(response.into_body()).await;
        let received: Value = serde_json::from_slice(&received.bytes).expect("an echo");
        assert_eq!(received["headers"]["content-length"], "14");
        assert_eq!(origin.requests(), 2);
    });
}

#[tokio::test]
async fn chunked_body_gets_a_length_and_one_over_the_limit_413() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin, &[buffered("8")]));
    let mut client = connect(scene.at(80)).await;
    let head = "POST /admin HTTP/1.1\r\nhost: a.com\r\ntransfer-encoding: chunked\r\n";
    write_text(&mut client, format!("{head}\r\n4\r\nabcd\r\n")).await;
    assert_eq!(get(scene.at(80), "a.com", "/").await.name(), "origin");
    assert_eq!(origin.requests(), 1);
    write_text(&mut client, "4\r\nefgh\r\n0\r\n\r\n").await;
    let answer = read_until(&mut client, "\"content-length\":\"8\"").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for text in [
        format!("{head}\r\n4\r\nabcd\r\n5\r\nefghi\r\n"),
        "POST /admin HTTP/1.1\r\nhost: a.com\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
            .to_owned(),
    ] {
        let mut client = connect(scene.at(80)).await;
        write_text(&mut client, text).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    }
    let mut client = connect(scene.at(80)).await;
    let expecting = head.replace("POST", "PUT") + "expect: 100-continue\r\n\r\n";
    write_text(&mut client, expecting).await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    assert_eq!(origin.requests(), 2);
    write_text(&mut client, "1\r\na\r\n0\r\n\r\n").await;
    let head = read_until(&mut client, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.post("a.com", "/admin", "123456789").await;
        assert_eq!(answer.status, 413);
        assert_eq!(client.post("a.com", "/", "123456789").await.status, 200);
        assert_eq!(client.get("a.com", "/admin").await.status, 200);
    }
}

#[test]
fn client_over_its_share_gets_503_and_its_neighbour_is_served() {
    block_on(async {
        let origin = Origin::echo("origin").await;
        let scene = Scene::start(&before(&origin, &[buffered("1Mi")]));
        let (sender, _connection) = peer::connect(scene.at(80)).await;
        let part = Bytes::from(vec![b'a'; 960 * 1024]);
        let (answers, mut statuses) = mpsc::unbounded_channel();
        let mut open = Vec::new();
        for _ in 0..16 {
            let mut sender = sender.clone().ready().await.expect("open");
            let (response, mut body) = sender.send_request(post("/admin"), false).expect("sent");
            let answers = answers.clone();
            spawn_local(async move {
                if let Ok(response) = response.await {
                    let _ = answers.send(response.status().as_u16());
                }
            });
            // A stream whose body is not wanted any more is reset.
            if peer::write(&mut body, part.clone(), false).await.is_ok() {
                open.push(body);
            }
        }
        let refused = timeout(TEST_TIMEOUT, statuses.recv())
            .await
            .expect("in time");
        assert_eq!(refused, Some(503));
        let stream = connect_from([127, 0, 0, 2], scene.at(80)).await;
        let mut neighbour = Client::http1_on(stream.expect("connected")).await;
        // Longer than what is kept of other bodies for another attempt.
        let long = "a".repeat(200 * 1024);
        let request = neighbour.request(Method::POST, "a.com", "/admin");
        let request = request.body(full(long)).expect("a request");
        let answer = neighbour.fetch(request).await;
        assert_eq!(answer.received()["received"], 200 * 1024);
        assert_eq!(origin.requests(), 1);
    });
}

#[test]
fn calls_of_grpc_are_forwarded_as_they_arrive() {
    block_on(async {
        let origin = Origin::new(|_| async {
            let mut response = http::Response::new(crate::origin::empty());
            response.headers_mut().extend(HeaderMap::from_iter([(
                http::header::CONTENT_TYPE,
                "application/grpc".parse().expect("a value"),
            )]));
            response
        });
        let origin = origin.await;
        let scene = Scene::start(&before(&origin, &[buffered("4")]));
        let (sender, _connection) = peer::connect(scene.at(80)).await;
        let mut sender = sender.ready().await.expect("open");
        let mut call = post("/admin");
        let kind = "application/grpc".parse().expect("a value");
        call.headers_mut().insert("content-type", kind);
        let (response, _body) = sender.send_request(call, false).expect("sent");
        let response = timeout(TEST_TIMEOUT, response).await.expect("in time");
        assert_eq!(response.expect("a response").status(), 200);
    });
}
