//! A picker that ends after a model server has got a part of a request.

use bytes::BytesMut;
use http::{Method, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::server::{Act, Phase, Picker, Script};
use super::steps::{Side, Step};
use super::{PROTOCOLS, clients, serve};
use crate::client::{Answer, Client};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, full, stream};

const BODY: &str = "a body of a request";

/// Starts a model server that returns the body that it gets, and tells of each part of it.
async fn telling() -> (Origin, mpsc::UnboundedReceiver<()>) {
    let (tell, told) = mpsc::unbounded_channel();
    let origin = Origin::new(move |request: http::Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let (mut body, mut got) = (request.into_body(), BytesMut::new());
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    got.extend_from_slice(&data);
                    // An error: the test has ended.
                    let _ = tell.send(());
                }
            }
            Response::new(full(got.freeze()))
        }
    })
    .await;
    (origin, told)
}

/// Sends a request whose second part follows once the model server has the first one.
async fn send_in_two_parts(
    client: &mut Client,
    (method, path, content): (Method, &str, &str),
    parts: &mut mpsc::UnboundedReceiver<()>,
) -> Answer {
    let request = client.request(method, "a.com", path);
    let (sender, body) = stream();
    let request = request.header("content-type", content).body(body);
    let send = async {
        let (first, second) = BODY.split_at(BODY.len() / 2);
        let sent = sender.send(Frame::data(first.into())).await;
        sent.expect("a reader");
        let part = timeout(TEST_TIMEOUT, parts.recv()).await;
        part.expect("in time").expect("a server");
        let sent = sender.send(Frame::data(second.into())).await;
        sent.expect("a reader");
        drop(sender);
    };
    let (answer, ()) = tokio::join!(client.fetch(request.expect("a request")), send);
    answer
}

#[tokio::test]
async fn rest_of_a_request_follows_the_part_that_a_server_has() {
    let (server, mut parts) = telling().await;
    let list = server.address.to_string();
    let picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address]);
    let mut sent = 0;
    for (act, path) in [
        (Act::Fail, "/open"),
        (Act::Reset, "/open"),
        (Act::Violate, "/open"),
        (Act::Close, "/open"),
        (Act::Close, "/close"),
    ] {
        picker.follow(Script {
            streams: true,
            stop: Some((Phase::RequestEnd, act)),
            ..Script::choosing(&list)
        });
        for (prefix, _) in PROTOCOLS {
            let path = format!("{prefix}{path}");
            for mut client in clients(&scene).await {
                let request = (Method::POST, &*path, "text/plain");
                let answer = send_in_two_parts(&mut client, request, &mut parts).await;
                assert_eq!(
                    (answer.status, answer.text()),
                    (200, BODY),
                    "{act:?} {path}"
                );
                sent += 1;
                assert_eq!(server.requests(), sent, "{act:?} {path}");
                while parts.try_recv().is_ok() {}
            }
        }
    }
}

#[tokio::test]
async fn request_of_which_a_server_has_a_changed_part_is_sent_again_only_if_it_is_idempotent() {
    let (server, mut parts) = telling().await;
    // The part may be a message, and with it a whole call.
    let script = Script::choosing(&server.address.to_string()).with_steps(&[
        Step::ReadHead(Side::Request),
        Step::Answer(Side::Request),
        Step::Part(Side::Request, "changed"),
        Step::Read(Side::Request),
        Step::Act(Act::Fail),
    ]);
    let picker = Picker::start(script).await;
    let scene = serve(&picker, &[server.address]);
    let mut client = Client::http2(scene.at(80)).await;
    let call = (Method::POST, "/h2c/open", "application/grpc");
    let answer = send_in_two_parts(&mut client, call, &mut parts).await;
    let status = answer.header("grpc-status");
    assert_eq!((answer.status, status), (200, "14"));
    assert_eq!(server.requests(), 1);
    for (prefix, _) in PROTOCOLS {
        let path = format!("{prefix}/open");
        for (method, status, count) in [(Method::POST, 503, 1), (Method::PUT, 200, 2)] {
            for mut client in clients(&scene).await {
                let before = server.requests();
                let request = (method.clone(), &*path, "text/plain");
                let answer = send_in_two_parts(&mut client, request, &mut parts).await;
                assert_eq!(answer.status, status, "{method} {path}");
                assert!(status != 200 || answer.text() == BODY);
                assert_eq!(server.requests(), before + count, "{method} {path}");
                while parts.try_recv().is_ok() {}
            }
        }
    }
}
