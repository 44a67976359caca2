//! gRPC calls through a GRPCRoute frame by frame: the four kinds of calls, trailers in both directions, early responses,
//! cancellation and deadlines. Both peers are plain HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use serde_json::json;
use tokio::sync::mpsc;

use crate::grpc::grpc_route;
use crate::harness::h2::{self as peer, Origin, block_on};
use crate::harness::server::TestServer;
use crate::harness::tls::Certificate;
use crate::harness::yaml;
use crate::scene::to;

const HOST: &str = "grpc.example.com";
/// Far longer than a response takes to begin, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(2);

fn serve(origin: &Origin) -> TestServer {
    let listeners = [
        yaml::http("http", 80, ""),
        yaml::https("https", 443, "", &["certificate"]),
    ];
    TestServer::start(&[
        yaml::gateway("gateway", &listeners),
        yaml::secret("certificate", &Certificate::new(&[HOST])),
        yaml::service("origin", &[origin.address]),
        grpc_route("grpc", &[], &[to("origin")]),
    ])
}

pub(crate) fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

fn request(method: &str, more: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = Request::post(format!("http://{HOST}/test.Service/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    request.headers_mut().extend(fields(more));
    request
}

fn head() -> Response<()> {
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(()).expect("a response")
}

/// Returns a length-prefixed message.
fn message(text: &str) -> Bytes {
    let length = u32::try_from(text.len()).expect("short").to_be_bytes();
    [&[0], &length[..], text.as_bytes()].concat().into()
}

async fn call(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut ready = sender.clone().ready().await.expect("open");
    ready.send_request(request, false).expect("sent")
}

/// Waits for the next data.
async fn next(body: &mut RecvStream) -> Bytes {
    let data = body.data().await.expect("data").expect("no error");
    // A stream that has ended has no window to release.
    let _ = body.flow_control().release_capacity(data.len());
    data
}

/// Ends a response with the status OK and metadata.
fn finish(stream: &mut SendStream<Bytes>) {
    let trailers = fields(&[("grpc-status", "0"), ("x-trailing", "of-the-server")]);
    // Ignored: the call may be over.
    let _ = stream.send_trailers(trailers);
}

/// Serves the methods of a test service.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.headers()["te"], "trailers");
    let method = request.uri().path().rsplit('/').next().map(str::to_owned);
    let mut body = request.into_body();
    let mut stream = respond.send_response(head(), false).expect("open");
    match method.as_deref() {
        Some("Bidirectional") => {
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                peer::write(&mut stream, data, false).await.expect("taken");
            }
        }
        Some("ServerStreaming") => {
            peer::read(body).await;
            for text in ["one", "two", "three"] {
                peer::write(&mut stream, message(text), false)
                    .await
                    .expect("taken");
            }
        }
        _ => {
            let received = peer::read(body).await;
            let count = message(&received.bytes.len().to_string());
            peer::write(&mut stream, count, false).await.expect("taken");
        }
    }
    finish(&mut stream);
}

/// Calls all four kinds over a connection.
async fn converse(sender: &SendRequest<Bytes>) {
    // Unary and client streaming.
    for messages in [1, 5] {
        let (response, mut stream) = call(sender, request("Count", &[])).await;
        for index in 0..messages {
            let end = index + 1 == messages;
            peer::write(&mut stream, message("hello"), end)
                .await
                .expect("taken");
        }
        let received = peer::read(response.await.expect("a response").into_body()).await;
        assert_eq!(received.bytes, message(&(10 * messages).to_string()));
        assert_eq!(received.trailers.expect("trailers")["grpc-status"], "0");
    }
    let (response, mut stream) = call(sender, request("ServerStreaming", &[])).await;
    peer::write(&mut stream, message("go"), true)
        .await
        .expect("taken");
    let received = peer::read(response.await.expect("a response").into_body()).await;
    let expected = ["one", "two", "three"].map(message).concat();
    assert_eq!(received.bytes, expected);
    let trailers = received.trailers.expect("trailers");
    assert_eq!(trailers["x-trailing"], "of-the-server");
    // Each message is answered before the next is sent.
    let (response, mut stream) = call(sender, request("Bidirectional", &[])).await;
    let response = response.await.expect("a response before any message");
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let mut body = response.into_body();
    for text in ["ping", "pong"] {
        peer::write(&mut stream, message(text), false)
            .await
            .expect("taken");
        assert_eq!(next(&mut body).await, message(text));
    }
    stream.send_data(Bytes::new(), true).expect("sent");
    let received = peer::read(body).await;
    assert_eq!(received.trailers.expect("trailers")["grpc-status"], "0");
}

#[test]
fn relays_the_four_kinds_of_calls() {
    let origin = Origin::start(|request, respond| Box::pin(answer(request, respond)));
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        converse(&sender).await;
        let (sender, _ended) = peer::connect_tls(server.at(443), HOST).await;
        converse(&sender).await;
    });
}

#[test]
fn client_may_send_before_it_reads() {
    /// More than the windows and buffers between client and backend hold in either direction.
    const LARGE: usize = 4 << 20;
    /// Window of a client for the first stream (RFC 9113, 6.9.2).
    const WINDOW: usize = 65_535;
    let origin = Origin::start(|request, mut respond| {
        Box::pin(async move {
            let mut stream = respond.send_response(head(), false).expect("open");
            let sent = peer::write(&mut stream, Bytes::from(vec![1_u8; LARGE]), false);
            let (received, sent) = tokio::join!(peer::read(request.into_body()), sent);
            sent.expect("taken");
            assert_eq!(received.bytes.len(), LARGE);
            finish(&mut stream);
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        let (response, mut stream) = call(&sender, request("Call", &[])).await;
        let mut body = response.await.expect("a response").into_body();
        // Nothing more of the response can be sent to the client.
        let mut unread = 0;
        while unread < WINDOW {
            unread += body.data().await.expect("data").expect("no error").len();
        }
        peer::write(&mut stream, Bytes::from(vec![2_u8; LARGE]), true)
            .await
            .expect("taken");
        let released = body.flow_control().release_capacity(unread);
        released.expect("an open stream");
        let received = peer::read(body).await;
        assert_eq!(unread + received.bytes.len(), LARGE);
        assert_eq!(received.trailers.expect("trailers")["grpc-status"], "0");
    });
}

#[test]
fn relays_trailers_of_the_request() {
    let origin = Origin::start(|request, mut respond| {
        Box::pin(async move {
            let received = peer::read(request.into_body()).await;
            let trailers = received.trailers.expect("trailers");
            let mut stream = respond.send_response(head(), false).expect("open");
            stream.send_trailers(trailers).expect("sent");
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        let (response, mut stream) = call(&sender, request("Call", &[])).await;
        peer::write(&mut stream, message("x"), false)
            .await
            .expect("taken");
        let trailers = fields(&[("grpc-status", "0"), ("x-sum", "42")]);
        stream.send_trailers(trailers.clone()).expect("sent");
        let received = peer::read(response.await.expect("a response").into_body()).await;
        assert_eq!(received.trailers, Some(trailers));
    });
}

#[test]
fn relays_an_early_response_and_resets_the_rest_of_the_request() {
    let origin = Origin::start(|_, mut respond| {
        Box::pin(async move {
            let mut response = head();
            let status = fields(&[("grpc-status", "7"), ("grpc-message", "not%20you")]);
            response.headers_mut().extend(status);
            respond.send_response(response, true).expect("sent");
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        for _ in 0..3 {
            let (response, mut stream) = call(&sender, request("Call", &[])).await;
            peer::write(&mut stream, message("x"), false)
                .await
                .expect("taken");
            let response = response.await.expect("a response");
            assert_eq!(response.headers()["grpc-status"], "7");
            assert_eq!(response.headers()["grpc-message"], "not%20you");
            assert!(response.body().is_end_stream());
            let reset = std::future::poll_fn(|cx| stream.poll_reset(cx)).await;
            assert_eq!(reset.expect("a reset"), Reason::NO_ERROR);
        }
    });
}

/// Returns an origin that begins a response, sends a message and reports how the stream ends.
fn open_ended() -> (Origin, mpsc::UnboundedReceiver<Reason>) {
    let (report, ends) = mpsc::unbounded_channel();
    let origin = Origin::start(move |request, mut respond| {
        let report = report.clone();
        Box::pin(async move {
            let silent = request.uri().path().ends_with("Silent");
            let _body = request.into_body();
            let reset = if silent {
                std::future::poll_fn(|cx| respond.poll_reset(cx)).await
            } else {
                let mut stream = respond.send_response(head(), false).expect("open");
                peer::write(&mut stream, message("first"), false)
                    .await
                    .expect("taken");
                std::future::poll_fn(|cx| stream.poll_reset(cx)).await
            };
            // Ignored: the test may have ended.
            let _ = report.send(reset.expect("a reset"));
        })
    });
    (origin, ends)
}

#[test]
fn forwards_cancellation_to_the_backend() {
    let (origin, mut ends) = open_ended();
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        let (response, mut stream) = call(&sender, request("Call", &[])).await;
        let mut body = response.await.expect("a response").into_body();
        assert_eq!(next(&mut body).await, message("first"));
        stream.send_reset(Reason::CANCEL);
        assert_eq!(ends.recv().await, Some(Reason::CANCEL));
        let (response, mut stream) = call(&sender, request("Silent", &[])).await;
        peer::write(&mut stream, message("x"), false)
            .await
            .expect("taken");
        while origin.requests() < 2 {
            // Counters have no change notification.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stream.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(ends.recv().await, Some(Reason::CANCEL));
    });
}

#[test]
fn ends_calls_at_the_deadline_of_the_client() {
    let (origin, mut ends) = open_ended();
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        let timeout = [("grpc-timeout", "2S")];
        let began = Instant::now();
        let (response, _stream) = call(&sender, request("Silent", &timeout)).await;
        let response = response.await.expect("a response");
        assert!(began.elapsed() >= DEADLINE);
        assert_eq!(
            (response.status().as_u16(), response.body().is_end_stream()),
            (200, true)
        );
        assert_eq!(response.headers()["grpc-status"], "4");
        assert_eq!(ends.recv().await, Some(Reason::CANCEL));
        // A response that has begun ends with trailers.
        let (response, _stream) = call(&sender, request("Call", &timeout)).await;
        let received = peer::read(response.await.expect("a response").into_body()).await;
        assert_eq!(received.bytes, message("first"));
        let trailers = received.trailers.expect("trailers");
        assert_eq!(trailers["grpc-status"], "4");
        assert!(trailers.contains_key("grpc-message"));
        assert_eq!(ends.recv().await, Some(Reason::CANCEL));
    });
}

#[test]
fn forwards_the_timeout_and_ignores_a_malformed_one() {
    let seen = Arc::<AtomicUsize>::default();
    let count = seen.clone();
    let origin = Origin::start(move |request, mut respond| {
        let timeout = &request.headers()["grpc-timeout"];
        count.fetch_add(usize::from(timeout == "20S" || timeout == "1ns"), Relaxed);
        Box::pin(async move {
            let mut stream = respond.send_response(head(), false).expect("open");
            finish(&mut stream);
        })
    });
    let server = serve(&origin);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        for timeout in ["20S", "1ns"] {
            let timeout = [("grpc-timeout", timeout)];
            let (response, _stream) = call(&sender, request("Call", &timeout)).await;
            let received = peer::read(response.await.expect("a response").into_body()).await;
            assert_eq!(received.trailers.expect("trailers")["grpc-status"], "0");
        }
    });
    assert_eq!(seen.load(Relaxed), 2);
}

#[test]
fn splits_calls_by_weight() {
    let origins =
        [0, 1].map(|_| Origin::start(|request, respond| Box::pin(answer(request, respond))));
    let rule = json!({"backendRefs": [
        {"name": "zero", "port": 80, "weight": 3},
        {"name": "one", "port": 80, "weight": 1},
        {"name": "zero", "port": 80, "weight": 0},
    ]});
    let server = TestServer::start(&[
        yaml::gateway("gateway", &[yaml::http("http", 80, "")]),
        yaml::service("zero", &[origins[0].address]),
        yaml::service("one", &[origins[1].address]),
        grpc_route("grpc", &[], &[rule]),
    ]);
    block_on(async {
        let (sender, _ended) = peer::connect(server.at(80)).await;
        for _ in 0..200 {
            let (response, mut stream) = call(&sender, request("Count", &[])).await;
            stream.send_data(message("x"), true).expect("sent");
            let received = peer::read(response.await.expect("a response").into_body()).await;
            assert_eq!(received.trailers.expect("trailers")["grpc-status"], "0");
        }
    });
    let counts = origins.map(|origin| origin.requests());
    assert_eq!(counts[0] + counts[1], 200);
    // Beyond 5 standard deviations of a binomial distribution.
    assert!((119..=181).contains(&counts[0]), "{counts:?}");
}
