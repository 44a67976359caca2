//! The ExternalAuth filter over gRPC, with a real authorization server.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::Client;
use crate::cors::{clients, fetch, gateway, start};
use crate::external_auth::with_filters;
use crate::harness::TEST_TIMEOUT;
use crate::harness::yaml::service_of;
use crate::origin::{Origin, stream};
use crate::scene::{Objects, Scene};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// The part of a CheckRequest that the tests check.
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "4")]
    request: Option<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpRequest {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(string, tag = "11")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, optional, tag = "2")]
    denied: Option<Denied>,
    #[prost(message, optional, tag = "3")]
    allowed: Option<Allowed>,
}

#[derive(Clone, PartialEq, Message)]
struct Code {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Change>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct Allowed {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Change>,
    #[prost(string, repeated, tag = "5")]
    removed: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    response_headers: Vec<Change>,
}

#[derive(Clone, PartialEq, Message)]
struct Change {
    #[prost(message, optional, tag = "1")]
    header: Option<Field>,
    #[prost(message, optional, tag = "2")]
    append: Option<Flag>,
}

#[derive(Clone, PartialEq, Message)]
struct Flag {
    #[prost(bool, tag = "1")]
    value: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

fn change(name: &str, value: &str, is_appended: bool) -> Change {
    Change {
        header: Some(Field {
            name: name.to_owned(),
            value: value.to_owned(),
        }),
        append: is_appended.then_some(Flag { value: true }),
    }
}

fn allowed() -> CheckResponse {
    CheckResponse {
        status: Some(Code { code: 0 }),
        denied: None,
        allowed: Some(Allowed {
            headers: vec![
                change("X-User-Id", "42", false),
                change("x-list", "added", true),
                change("host", "forged", false),
                change(":path", "/forged", false),
            ],
            removed: vec!["Authorization".to_owned()],
            response_headers: vec![change("x-session", "new", false)],
        }),
    }
}

fn denied() -> CheckResponse {
    CheckResponse {
        status: Some(Code { code: 7 }),
        denied: Some(Denied {
            status: Some(Code { code: 401 }),
            headers: vec![change("X-Auth-Error", "access-denied", false)],
            body: "denied".to_owned(),
        }),
        allowed: None,
    }
}

/// Starts a server that responds according to the path of the checked request.
pub(crate) async fn server() -> (Origin, mpsc::UnboundedReceiver<HttpRequest>) {
    let (sender, asked) = mpsc::unbounded_channel();
    let origin = Origin::new(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            assert_eq!(
                request.uri().path(),
                "/envoy.service.auth.v3.Authorization/Check"
            );
            let message = request
                .into_body()
                .collect()
                .await
                .expect("whole")
                .to_bytes();
            let check = CheckRequest::decode(&message[5..]).expect("a message");
            let http = check.attributes.and_then(|it| it.request?.http);
            let http = http.expect("a request");
            let (message, code) = match http.path.as_str() {
                "/allowed" => (allowed(), "0"),
                "/denied" => (denied(), "0"),
                "/contradiction" => {
                    let code = Some(Code { code: 0 });
                    let denied = denied();
                    (
                        CheckResponse {
                            status: code,
                            ..denied
                        },
                        "0",
                    )
                }
                "/plain" => (
                    CheckResponse {
                        status: Some(Code { code: 16 }),
                        ..CheckResponse::default()
                    },
                    "0",
                ),
                _ => (allowed(), "13"),
            };
            let _ = sender.send(http);
            let mut bytes = BytesMut::new();
            bytes.put_u8(0);
            bytes.put_u32(u32::try_from(message.encoded_len()).expect("short"));
            message.encode(&mut bytes).expect("room");
            let (body, payload) = stream();
            tokio::spawn(async move {
                let _ = body.send(Frame::data(Bytes::from(bytes))).await;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static(code));
                let _ = body.send(Frame::trailers(trailers)).await;
            });
            Response::builder()
                .header("content-type", "application/grpc")
                .body(payload)
                .expect("a response")
        }
    })
    .await;
    (origin, asked)
}

pub(crate) async fn next(asked: &mut mpsc::UnboundedReceiver<HttpRequest>) -> HttpRequest {
    let next = timeout(TEST_TIMEOUT, asked.recv()).await;
    next.expect("a call in time").expect("a call")
}

fn auth(grpc: &Value, max_size: u32) -> Value {
    json!({"type": "ExternalAuth", "externalAuth": {
        "protocol": "GRPC", "backendRef": {"name": "auth", "port": 80}, "grpc": grpc,
        "forwardBody": {"maxSize": max_size},
    }})
}

#[tokio::test]
async fn server_decides_and_changes_headers() {
    let app = Origin::echo("app").await;
    let (origin, mut asked) = server().await;
    let rule = with_filters("/", json!([auth(&json!({}), 0)]));
    let objects = gateway().service("app", &[app.address]).with(service_of(
        "auth",
        &[origin.address],
        "kubernetes.io/h2c",
    ));
    let scene = start(objects.route("route", &[rule]));
    let fields = [
        ("authorization", "secret"),
        ("x-list", "sent"),
        ("x-user-id", "forged"),
        ("x_user_id", "forged"),
        ("x_list", "forged"),
    ];
    for mut client in clients(&scene).await {
        let answer = fetch(&mut client, "PUT", "/allowed", &fields).await;
        let received = answer.received();
        let header = |name: &str| received["headers"][name].as_str().unwrap_or_default();
        assert_eq!(
            (header("x-user-id"), header("x-list")),
            ("42", "sent,added")
        );
        assert_eq!((header("authorization"), header("host")), ("", "a.com"));
        assert_eq!((header("x_user_id"), header("x_list")), ("", ""));
        assert_eq!(received["path"], "/allowed");
        assert_eq!(answer.header("x-session"), "new");
        let http = next(&mut asked).await;
        assert_eq!((&*http.method, &*http.path), ("PUT", "/allowed"));
        assert_eq!((&*http.host, &*http.scheme), ("a.com", "https"));
        assert_eq!(http.headers["authorization"], "secret");

        let before = app.requests();
        for (path, status, body, error) in [
            ("/denied", 401, "denied", "access-denied"),
            ("/contradiction", 403, "", ""),
            ("/plain", 403, "", ""),
        ] {
            let answer = fetch(&mut client, "GET", path, &fields).await;
            assert_eq!((answer.status, answer.text()), (status, body), "{path}");
            assert_eq!(answer.header("x-auth-error"), error, "{path}");
            next(&mut asked).await;
        }
        let answer = fetch(&mut client, "GET", "/failed", &fields).await;
        assert_eq!(answer.status, 503);
        next(&mut asked).await;
        assert_eq!(app.requests(), before);
    }
}

#[tokio::test]
async fn server_is_called_over_tls_where_a_policy_requires_it() {
    let app = Origin::echo("app").await;
    let (origin, mut asked) = server().await;
    let authority = Authority::new();
    let asks = Asks {
        protocols: &["h2"],
        ..Asks::default()
    };
    let tls = TlsOrigin::relaying(&authority.issue(&[NAME]), asks, origin.address).await;
    let rule = with_filters("/", json!([auth(&json!({}), 0)]));
    let objects = |name| {
        Objects::http()
            .service("app", &[app.address])
            .with(service_of("auth", &[tls.address], "kubernetes.io/h2c"))
            .with(policy("auth", &trust(name), &json!({})))
            .with(authorities("ca", &authority.pem))
            .route("route", std::slice::from_ref(&rule))
    };
    let mut scene = Scene::start(&objects(NAME));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/allowed").await.name(), "app");
    assert_eq!(next(&mut asked).await.path, "/allowed");
    assert_eq!(client.get("a.com", "/denied").await.status, 401);
    next(&mut asked).await;
    tls.assert_encrypted("envoy.service.auth");
    scene.replace(&objects("other.example.com")).await;
    assert_eq!(client.get("a.com", "/allowed").await.status, 503);
    assert_eq!((origin.requests(), app.requests()), (2, 1));
}

#[tokio::test]
async fn server_receives_listed_headers_and_the_body() {
    let app = Origin::echo("app").await;
    let (origin, mut asked) = server().await;
    let rule = with_filters(
        "/",
        json!([auth(&json!({"allowedHeaders": ["X-Sent"]}), 10)]),
    );
    let objects = Objects::http()
        .service("app", &[app.address])
        .with(service_of("auth", &[origin.address], "kubernetes.io/h2c"));
    let scene = Scene::start(&objects.route("route", &[rule]));
    let mut client = Client::http1(scene.at(80)).await;
    let request = client.request(http::Method::POST, "a.com", "/allowed");
    let request = request.header("x-sent", "1").header("x-other", "1");
    let body = crate::origin::full("0123456789");
    let answer = client.fetch(request.body(body).expect("a request")).await;
    assert_eq!(answer.received()["received"], 10);
    let http = next(&mut asked).await;
    assert_eq!(http.body, "0123456789");
    let expected = HashMap::from([("x-sent".to_owned(), "1".to_owned())]);
    assert_eq!(http.headers, expected);
    let answer = client.post("a.com", "/allowed", "0123456789a").await;
    assert_eq!(answer.status, 413);
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn unreachable_authorization_server_denies_requests() {
    let app = Origin::echo("app").await;
    let rule = with_filters("/", json!([auth(&json!({}), 0)]));
    let objects = Objects::http()
        .service("app", &[app.address])
        .with(service_of("auth", &[Origin::dead()], "kubernetes.io/h2c"));
    let scene = Scene::start(&objects.route("route", &[rule]));
    let answer = crate::client::get(scene.at(80), "a.com", "/allowed").await;
    assert_eq!((answer.status, app.requests()), (503, 0));
}
