//! Long gRPC-like streams of many small messages over one connection per side, paused and resumed
//! (D7). This is legitimate traffic that resembles an attack.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};

use crate::fixture::HOST;
use crate::harness::h2::{self, Origin, block_on};
use crate::harness::server::TestServer;
use crate::harness::yaml;
use crate::neighbours::{Sent, until_stalled};

const STREAMS: usize = 50;
const MESSAGES: usize = 200;

/// Returns a message of 20 to 600 bytes.
fn message(index: usize) -> Bytes {
    Bytes::from(vec![index as u8; 20 + index * 37 % 581])
}

/// Total bytes of a stream's messages.
fn total() -> usize {
    (0..MESSAGES).map(|index| message(index).len()).sum()
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    trailers
}

fn serve(origin: &Origin) -> TestServer {
    TestServer::start(&[
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::route("route", "gateway", &[], &yaml::all_to("origin")),
        yaml::service_of("origin", &[origin.address], "kubernetes.io/h2c"),
    ])
}

#[test]
fn delivers_small_messages_to_a_paused_client() {
    let sent = Sent::default();
    let counted = sent.clone();
    let origin = Origin::start(move |request, mut respond| {
        let counted = counted.clone();
        Box::pin(async move {
            let warm = request.uri().path() == "/warm";
            let mut body = respond
                .send_response(Response::new(()), warm)
                .expect("open");
            if warm {
                return;
            }
            for index in 0..MESSAGES {
                h2::write(&mut body, message(index), false)
                    .await
                    .expect("taken");
                counted.add(message(index).len());
            }
            body.send_trailers(trailers()).expect("sent");
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, mut ended) = h2::connect(server.at(80)).await;
        h2::round_trip(&sender, h2::get(&format!("http://{HOST}/warm")))
            .await
            .expect("an answer");
        let mut bodies = Vec::new();
        for _ in 0..STREAMS {
            let mut ready = sender.clone().ready().await.expect("open");
            let (answer, _) = ready
                .send_request(h2::get(&format!("http://{HOST}/x")), true)
                .expect("sent");
            bodies.push(answer.await.expect("an answer").into_body());
        }
        // All buffers fill up with small frames.
        until_stalled(&sent).await;
        let readers: Vec<_> = bodies
            .into_iter()
            .map(|body| tokio::task::spawn_local(h2::read(body)))
            .collect();
        for reader in readers {
            let received = reader.await.expect("no panic");
            assert!(received.error.is_none(), "{:?}", received.error);
            assert_eq!(received.bytes.len(), total());
            assert_eq!(received.trailers, Some(trailers()));
        }
        assert!(ended.try_recv().is_err(), "the connection ended");
    });
    assert_eq!((origin.connections(), origin.requests()), (1, STREAMS + 1));
}

#[test]
fn delivers_small_messages_to_a_paused_backend() {
    let sent = Sent::default();
    let counted = sent.clone();
    let origin = Origin::start(move |request, mut respond| {
        let sent = sent.clone();
        Box::pin(async move {
            let paused = request.uri().path() == "/x";
            let body = request.into_body();
            if paused {
                // All buffers fill up with small frames.
                until_stalled(&sent).await;
            }
            let received = h2::read(body).await;
            assert!(received.error.is_none(), "{:?}", received.error);
            let mut answer = respond
                .send_response(Response::new(()), false)
                .expect("open");
            let length = received.bytes.len().to_string();
            h2::write(&mut answer, length.into(), false)
                .await
                .expect("taken");
            answer
                .send_trailers(received.trailers.unwrap_or_default())
                .expect("sent");
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, mut ended) = h2::connect(server.at(80)).await;
        h2::round_trip(&sender, h2::get(&format!("http://{HOST}/warm")))
            .await
            .expect("an answer");
        let mut calls = Vec::new();
        for _ in 0..STREAMS {
            let mut ready = sender.clone().ready().await.expect("open");
            let request = Request::post(format!("http://{HOST}/x")).header("te", "trailers");
            let request = request.body(()).expect("a request");
            let (answer, mut stream) = ready.send_request(request, false).expect("sent");
            let counted = counted.clone();
            calls.push(tokio::task::spawn_local(async move {
                for index in 0..MESSAGES {
                    h2::write(&mut stream, message(index), false)
                        .await
                        .expect("taken");
                    counted.add(message(index).len());
                }
                stream.send_trailers(trailers()).expect("sent");
                h2::read(answer.await.expect("an answer").into_body()).await
            }));
        }
        for call in calls {
            let received = call.await.expect("no panic");
            assert_eq!(received.bytes, total().to_string().into_bytes());
            assert_eq!(received.trailers, Some(trailers()));
        }
        assert!(ended.try_recv().is_err(), "the connection ended");
    });
    assert_eq!((origin.connections(), origin.requests()), (1, STREAMS + 1));
}
