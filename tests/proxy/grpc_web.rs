//! gRPC-Web calls through a GRPCRoute, over both HTTP versions: the backend speaks gRPC only.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::access_policy::access;
use crate::client::{Answer, Client};
use crate::cors;
use crate::credentials::{BCRYPT, authorization, basic, users};
use crate::grpc::grpc_route;
use crate::grpc_streams::fields;
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::{self as peer, Origin};
use crate::origin::{Payload, empty, full, stream};
use crate::scene::{Scene, to};

const BINARY: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text+proto";

/// Returns a length-prefixed message.
fn message(data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short").to_be_bytes();
    [&[0], &length[..], data].concat()
}

fn begin(mut respond: SendResponse<Bytes>) -> SendStream<Bytes> {
    let head = Response::builder().header("content-type", "application/grpc+proto");
    let head = head.header("x-initial", "first").body(());
    respond
        .send_response(head.expect("a response"), false)
        .expect("open")
}

/// The methods of a service.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, body) = request.into_parts();
    assert_eq!(head.headers["content-type"], "application/grpc+proto");
    assert_eq!(head.headers["te"], "trailers");
    let ok = fields(&[("grpc-status", "0"), ("x-trailing", "last")]);
    match head.uri.path() {
        "/test.Service/Echo" => {
            let received = peer::read(body).await;
            let Some(None) = received.error.is_none().then_some(received.trailers) else {
                return;
            };
            let mut stream = begin(respond);
            peer::write(&mut stream, received.bytes.into(), false)
                .await
                .expect("taken");
            stream.send_trailers(ok).expect("sent");
        }
        "/test.Service/Refuse" => {
            let head = Response::builder()
                .header("content-type", "application/grpc+proto")
                .header("grpc-status", "7")
                .header("grpc-message", "not%20you")
                .header("x-initial", "first");
            let head = head.body(()).expect("a response");
            respond.send_response(head, true).expect("sent");
        }
        "/test.Service/NoStatus" => {
            begin(respond).send_data(Bytes::new(), true).expect("sent");
        }
        "/test.Service/Html" => {
            let head = Response::builder()
                .status(418)
                .header("content-type", "text/html");
            let head = head.body(()).expect("a response");
            let mut stream = respond.send_response(head, false).expect("open");
            stream
                .send_data(Bytes::from_static(b"<p>"), true)
                .expect("sent");
        }
        _ => std::future::pending().await,
    }
}

fn serve(origin: &Origin) -> Scene {
    let mut missing = to("missing");
    missing["matches"] = json!([{"method": {"service": "test.Missing"}}]);
    let mut rule = to("origin");
    rule["matches"] = json!([{"method": {"service": "test.Service"}}]);
    cors::start(
        cors::gateway()
            .service("origin", &[origin.address])
            .with(grpc_route("grpc", &[], &[rule, missing])),
    )
}

async fn call(client: &mut Client, method: &str, format: &str, body: Payload) -> Answer {
    let request = client
        .request(Method::POST, "a.com", &format!("/test.{method}"))
        .header("content-type", format)
        .header("x-grpc-web", "1")
        .header("grpc-timeout", "20S");
    client.fetch(request.body(body).expect("a request")).await
}

/// Returns a body in a format.
fn encoded(format: &str, data: &[u8]) -> Payload {
    match format {
        TEXT => full(STANDARD.encode(data)),
        _ => full(data.to_vec()),
    }
}

/// Decodes messages and trailers of a response. Text has parts with padding.
fn decode(format: &str, body: &[u8]) -> (Vec<u8>, String) {
    let mut data = Vec::new();
    if format == TEXT {
        for group in body.chunks(4) {
            STANDARD.decode_vec(group, &mut data).expect("base64");
        }
    } else {
        data.extend_from_slice(body);
    }
    let (mut at, mut messages) = (0, Vec::new());
    loop {
        let length = u32::from_be_bytes(data[at + 1..at + 5].try_into().expect("four"));
        let end = at + 5 + length as usize;
        if data[at] == 0x80 {
            assert_eq!(end, data.len(), "the trailers are not last");
            let trailers = String::from_utf8(data[at + 5..].to_vec());
            return (messages, trailers.expect("text"));
        }
        messages.extend_from_slice(&data[at..end]);
        at = end;
    }
}

fn origin() -> Origin {
    Origin::start(|request, respond| Box::pin(answer(request, respond)))
}

#[tokio::test]
async fn translates_calls_and_responses() {
    let origin = origin();
    let scene = serve(&origin);
    let large: Vec<u8> = (0..3_000_001).map(|index| (index / 251) as u8).collect();
    let plain = Client::both(scene.at(80)).await;
    for mut client in cors::clients(&scene).await.into_iter().chain(plain) {
        for format in [BINARY, TEXT] {
            for data in [&b""[..], b"a", b"hello", &large] {
                let sent = message(data);
                let body = encoded(format, &sent);
                let answer = call(&mut client, "Service/Echo", format, body).await;
                assert_eq!(answer.status, 200);
                assert_eq!(answer.header("content-type"), format);
                assert_eq!(answer.header("x-initial"), "first");
                assert!(answer.trailers.is_none());
                let (messages, trailers) = decode(format, &answer.body);
                assert!(messages == sent, "{format}, {} bytes", data.len());
                assert_eq!(trailers, "grpc-status: 0\r\nx-trailing: last\r\n");
            }
        }
    }
}

#[tokio::test]
async fn moves_a_status_without_messages_to_the_body() {
    let origin = origin();
    let scene = serve(&origin);
    for mut client in cors::clients(&scene).await {
        for format in [BINARY, TEXT] {
            let body = encoded(format, &message(b"x"));
            let answer = call(&mut client, "Service/Refuse", format, body).await;
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (200, format)
            );
            assert_eq!(answer.header("x-initial"), "first");
            assert!(!answer.headers.contains_key("grpc-status"));
            let expected = "grpc-status: 7\r\ngrpc-message: not%20you\r\n";
            assert_eq!(decode(format, &answer.body), (vec![], expected.to_owned()));
            let body = encoded(format, &message(b"x"));
            let answer = call(&mut client, "Service/NoStatus", format, body).await;
            let (_, trailers) = decode(format, &answer.body);
            assert!(trailers.starts_with("grpc-status: 13\r\n"), "{trailers}");
            // A response that is not gRPC is not translated.
            let body = encoded(format, &message(b"x"));
            let answer = call(&mut client, "Service/Html", format, body).await;
            let head = (answer.status, answer.header("content-type"));
            assert_eq!((head, answer.text()), ((418, "text/html"), "<p>"));
        }
    }
}

#[tokio::test]
async fn streams_messages_as_they_arrive() {
    let (go, next) = mpsc::channel::<()>(1);
    let next = std::sync::Arc::new(tokio::sync::Mutex::new(next));
    let origin = Origin::start(move |_, respond| {
        let next = next.clone();
        Box::pin(async move {
            let mut stream = begin(respond);
            for text in ["one", "second", "3"] {
                peer::write(&mut stream, message(text.as_bytes()).into(), false)
                    .await
                    .expect("taken");
                next.lock().await.recv().await.expect("a word");
            }
            stream
                .send_trailers(fields(&[("grpc-status", "0")]))
                .expect("sent");
        })
    });
    let scene = serve(&origin);
    for mut client in cors::clients(&scene).await {
        for format in [BINARY, TEXT] {
            let request = client
                .request(Method::POST, "a.com", "/test.Service/Stream")
                .header("content-type", format);
            let body = encoded(format, &message(b"go"));
            let response = client.send(request.body(body).expect("a request")).await;
            let mut body = response.expect("a response").into_body();
            for text in ["one", "second", "3"] {
                let frame = timeout(TEST_TIMEOUT, body.frame()).await.expect("in time");
                let frame = frame.expect("a frame").expect("a frame");
                let mut data = frame.into_data().expect("data").to_vec();
                if format == TEXT {
                    // Each part can be decoded on its own.
                    data = STANDARD.decode(data).expect("base64");
                }
                assert_eq!(data, message(text.as_bytes()));
                go.send(()).await.expect("listens");
            }
            let rest = body.collect().await.expect("the rest").to_bytes();
            let (messages, trailers) = decode(format, &rest);
            assert_eq!(
                (messages, trailers.as_str()),
                (vec![], "grpc-status: 0\r\n")
            );
        }
    }
}

#[tokio::test]
async fn errors_of_the_proxy_are_grpc_web() {
    let origin = origin();
    let scene = serve(&origin);
    for mut client in cors::clients(&scene).await {
        for format in [BINARY, TEXT] {
            for (method, status, message) in [
                ("None/Call", 12, "no route matches this request"),
                (
                    "Missing/Call",
                    14,
                    "the route cannot be served as configured",
                ),
            ] {
                let answer = call(&mut client, method, format, empty()).await;
                assert_eq!(
                    (answer.status, answer.header("content-type")),
                    (200, format)
                );
                let expected = format!("grpc-status: {status}\r\ngrpc-message: {message}\r\n");
                assert_eq!(decode(format, &answer.body), (vec![], expected));
            }
        }
    }
}

#[tokio::test]
async fn malformed_base64_has_a_status() {
    let origin = origin();
    let scene = serve(&origin);
    for (index, mut client) in cors::clients(&scene).await.into_iter().enumerate() {
        for text in ["AAAA*AAA", "AAAAA", "A=AA"] {
            let answer = call(&mut client, "Service/Echo", TEXT, full(text)).await;
            let (messages, trailers) = decode(TEXT, &answer.body);
            assert!(messages.is_empty());
            assert!(
                trailers.starts_with("grpc-status: 13\r\n"),
                "{text}: {trailers}"
            );
            if index == 0 {
                // The rest of the body is not read, so an HTTP/1.1 connection may end.
                client = cors::clients(&scene)
                    .await
                    .into_iter()
                    .next()
                    .expect("a client");
            }
        }
    }
}

#[tokio::test]
async fn deadline_of_the_client_applies() {
    let origin = origin();
    let scene = serve(&origin);
    for mut client in cors::clients(&scene).await {
        let request = client
            .request(Method::POST, "a.com", "/test.Service/Silent")
            .header("content-type", BINARY)
            .header("grpc-timeout", "200m");
        let answer = client
            .fetch(request.body(empty()).expect("a request"))
            .await;
        let (_, trailers) = decode(BINARY, &answer.body);
        assert!(trailers.starts_with("grpc-status: 4\r\n"), "{trailers}");
    }
}

#[tokio::test]
async fn decodes_text_in_arbitrary_pieces() {
    let origin = origin();
    let scene = serve(&origin);
    let sent = [message(b"one"), message(b"four")].concat();
    // A part for each message, with padding in between.
    let text = [&sent[..8], &sent[8..]]
        .map(|part| STANDARD.encode(part))
        .concat();
    assert!(text.contains("=") && !text.ends_with("=="));
    for size in [1, 3, 5] {
        for mut client in cors::clients(&scene).await {
            let (sender, body) = stream();
            let pieces: Vec<_> = text
                .as_bytes()
                .chunks(size)
                .map(Bytes::copy_from_slice)
                .collect();
            tokio::spawn(async move {
                for piece in pieces {
                    sender.send(Frame::data(piece)).await.expect("taken");
                }
            });
            let answer = call(&mut client, "Service/Echo", TEXT, body).await;
            assert_eq!(decode(TEXT, &answer.body).0, sent);
        }
    }
}

/// The first request of a user has a password that takes time to verify. Rules see its head as the client has sent it, too.
#[tokio::test]
async fn rules_see_the_head_of_the_client_whenever_its_password_is_verified() {
    let origin = origin();
    let mut spec = basic();
    spec["authorization"] = json!({"rules": [
        {"name": "text", "action": "Allow", "match": {
            "headers": [{"name": "content-type", "value": TEXT}],
        }},
    ]});
    let gateway = json!({"kind": "Gateway", "name": "gateway"});
    let objects = cors::gateway()
        .service("origin", &[origin.address])
        .with(grpc_route("grpc", &[], &[to("origin")]))
        .with(users(&[("alice", BCRYPT)]))
        .with(access("a", &gateway, &spec));
    let alice = authorization("alice", "password");
    for index in 0..2 {
        // Each has an empty memory of passwords.
        let scene = cors::start(objects.clone());
        let mut client = cors::clients(&scene).await.into_iter().nth(index);
        let client = client.as_mut().expect("a client");
        for format in [TEXT, TEXT, BINARY] {
            let body = encoded(format, &message(b"x"));
            let request = client
                .request(Method::POST, "a.com", "/test.Service/Echo")
                .header("content-type", format)
                .header("authorization", &alice);
            let answer = client.fetch(request.body(body).expect("a request")).await;
            let (messages, trailers) = decode(format, &answer.body);
            let expected = match format {
                TEXT => (message(b"x"), "grpc-status: 0\r\n"),
                _ => (vec![], "grpc-status: 7\r\n"),
            };
            assert_eq!(messages, expected.0, "{format}");
            assert!(trailers.starts_with(expected.1), "{format}: {trailers}");
        }
    }
}

/// Only GRPCRoutes translate.
#[tokio::test]
async fn http_route_forwards_calls_unchanged() {
    let origin = crate::origin::Origin::echo("echo").await;
    let objects = cors::gateway().service("echo", &[origin.address]);
    let scene = cors::start(objects.route("route", &[to("echo")]));
    for mut client in cors::clients(&scene).await {
        let answer = call(&mut client, "Service/Echo", TEXT, full("AAAA")).await;
        let received = answer.received();
        assert_eq!(received["headers"]["content-type"], TEXT, "{received}");
    }
}

/// Asks for permission to call a method from a page of this origin.
async fn preflight(client: &mut Client, method: &str, origin: &str) -> Answer {
    let fields = [
        (cors::ORIGIN, origin),
        (cors::METHOD, "POST"),
        ("access-control-request-headers", "content-type,x-grpc-web"),
    ];
    cors::fetch(client, "OPTIONS", &format!("/test.{method}"), &fields).await
}

/// The setup of docs/grpc.md for browsers on another origin.
#[tokio::test]
async fn serves_browsers_of_another_origin() {
    let origin = origin();
    let mut rule = to("origin");
    rule["filters"] = json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [
        {"name": "access-control-allow-origin", "value": "https://app.example.com"},
        {"name": "access-control-allow-headers", "value": "content-type, x-grpc-web, authorization"},
        {"name": "access-control-max-age", "value": "600"},
        {"name": "vary", "value": "origin"},
    ]}}]);
    let mut private = to("origin");
    private["matches"] = json!([{"method": {"service": "test.Private"}}]);
    let objects = cors::gateway()
        .service("origin", &[origin.address])
        .with(grpc_route("grpc", &[], &[rule, private]));
    let scene = cors::start(objects);
    let page = "https://app.example.com";
    for mut client in cors::clients(&scene).await {
        let allowed = "access-control-allow-origin";
        let answer = preflight(&mut client, "Service/Echo", page).await;
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header(allowed), page);
        assert_eq!(answer.header("access-control-allow-methods"), "POST");
        let headers = "content-type, x-grpc-web, authorization";
        assert_eq!(answer.header("access-control-allow-headers"), headers);
        assert_eq!(answer.header("access-control-max-age"), "600");
        assert!(
            !answer
                .headers
                .contains_key("access-control-allow-credentials")
        );
        // Other pages get no permission, and neither does this one for calls of a rule without the header.
        let answer = preflight(&mut client, "Service/Echo", "https://evil.example.com").await;
        assert_eq!(answer.status, 204);
        assert!(!answer.headers.contains_key(allowed));
        let answer = preflight(&mut client, "Private/Echo", page).await;
        assert_eq!(answer.status, 404);
        assert!(!answer.headers.contains_key(allowed));
        // OPTIONS requests of other kinds are not for the route.
        let answer = cors::fetch(&mut client, "OPTIONS", "/test.Service/Echo", &[]).await;
        assert_eq!(answer.status, 404);
        let body = encoded(TEXT, &message(b"x"));
        let answer = call(&mut client, "Service/Echo", TEXT, body).await;
        assert_eq!(answer.header(allowed), "https://app.example.com");
        assert_eq!(decode(TEXT, &answer.body).0, message(b"x"));
    }
}
