//! ClientPolicies: flow-control windows of HTTP/2 connections of clients.

use std::net::SocketAddr;

use http::{Method, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client_policy::clients;
use crate::lifecycle::Frames;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, http, to};

/// Default window of a connection before WINDOW_UPDATE (RFC 9113, 6.9.2).
const INITIAL: u32 = 65_535;

/// Port 80 with these settings of HTTP/2, and port 8080 without any.
fn objects(origin: &Origin, http2: &Value) -> Objects {
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    Objects::gateway(&[http("one", 80, ""), http("two", 8080, "")])
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(clients("clients", &one, &json!({"http2": http2})))
}

/// Returns SETTINGS_INITIAL_WINDOW_SIZE and the window of the connection of a new client, before it sends a request.
async fn windows(address: SocketAddr) -> (u32, u32) {
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    const WINDOW_UPDATE: u8 = 8;
    let mut frames = Frames::open(address).await;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let mut settings = frames.settings.chunks(6);
    let stream = settings.find(|one| one[..2] == INITIAL_WINDOW_SIZE);
    let stream = stream.map_or(INITIAL, |one| number(&one[2..]));
    loop {
        match frames.next().await.expect("a frame") {
            (WINDOW_UPDATE, payload) => return (stream, INITIAL + number(&payload)),
            _ => continue,
        }
    }
}

#[tokio::test]
async fn windows_of_a_listener_are_those_of_its_policy_from_the_first_frame() {
    const KIB: u32 = 1024;
    let origin = Origin::echo("origin").await;
    let default = (64 * KIB, 100 * 256 * KIB);
    let mut scene = Scene::start(&objects(&origin, &json!({"maxConcurrentStreams": 100})));
    assert_eq!(windows(scene.at(80)).await, default);
    for (http2, expected) in [
        (
            json!({"initialStreamWindow": "1Mi", "initialConnectionWindow": "8Mi"}),
            (1024 * KIB, 8 * 1024 * KIB),
        ),
        (
            json!({"initialStreamWindow": 100_000, "maxConcurrentStreams": 20}),
            (100_000, 2_000_000),
        ),
        (
            json!({"initialStreamWindow": "4Mi"}),
            (4 * 1024 * KIB, 64 * 1024 * KIB),
        ),
        (
            json!({"initialConnectionWindow": "1Mi"}),
            (64 * KIB, 1024 * KIB),
        ),
    ] {
        scene.replace(&objects(&origin, &http2)).await;
        assert_eq!(windows(scene.at(80)).await, expected, "{http2}");
        assert_eq!(windows(scene.at(8080)).await, default, "the neighbour");
    }
}

#[tokio::test]
async fn bodies_larger_than_the_windows_arrive() {
    let origin = Origin::new(|request| async {
        let body = request.into_body().collect().await.expect("a body");
        Response::new(full(body.to_bytes().len().to_string()))
    })
    .await;
    let least = json!({"initialStreamWindow": 65_535, "initialConnectionWindow": 65_535});
    let most = json!({"initialStreamWindow": "4Mi", "initialConnectionWindow": "64Mi"});
    for http2 in [least, most] {
        let scene = Scene::start(&objects(&origin, &http2));
        let mut client = Client::http2(scene.at(80)).await;
        for _ in 0..2 {
            let request = client.request(Method::POST, "a.com", "/");
            let body = full(vec![b'x'; 5_000_000]);
            let answer = client.fetch(request.body(body).expect("a request")).await;
            assert_eq!(answer.text(), "5000000", "{http2}");
        }
    }
}
