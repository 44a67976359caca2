//! HTTP/3 beside TLS: requests, bodies in both directions, names, and changes under open connections.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::Frame as BodyFrame;
use http_body_util::BodyExt;
use portcullis::ir::Bind;
use portcullis::telemetry::metrics::HandshakeFailure;
use quinn::{ConnectionError, TransportErrorCode};
use serde_json::json;

use crate::access_policy::gateway;
use crate::client::{Answer, Client};
use crate::client_policy::clients;
use crate::harness::UNREACHED;
use crate::harness::tls::{self, Certificate};
use crate::http3_client::{Frame, Http3, data, head, headers, quic_at, trusting, within};
use crate::origin::{Origin, empty, full, stream};
use crate::scene::{Objects, Scene, https, prefix, route, secret, to};

const MIB: usize = 1 << 20;

/// A ClientPolicy that switches HTTP/3 on.
pub(crate) fn http3_policy() -> String {
    clients("http3", &gateway(), &json!({"http3": {"maxAge": "1h"}}))
}

/// Two HTTPS listeners with HTTP/3, for a.com and b.com, with certificates of their own.
pub(crate) fn listeners() -> Objects {
    Objects::gateway(&[
        https("a", 443, "a.com", &["a"]),
        https("b", 443, "b.com", &["b"]),
    ])
    .with(secret("a", &Certificate::new(&["a.com"])))
    .with(secret("b", &Certificate::new(&["b.com"])))
    .with(http3_policy())
}

/// Both listeners before one backend.
pub(crate) fn before(origin: &Origin) -> Objects {
    listeners()
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
}

#[tokio::test]
async fn requests_reach_backends_as_over_other_versions() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let fields = [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    let answer = client.ask("GET", "a.com", "/path?query", &fields).await;
    let received = answer.received();
    assert_eq!(received["method"], "GET");
    assert_eq!(received["path"], "/path?query");
    assert_eq!(received["headers"]["host"], "a.com");
    assert_eq!(received["headers"]["cookie"], "a=1; b=2");
    assert_eq!(received["headers"]["x-forwarded-for"], "127.0.0.1");
    assert_eq!(received["headers"]["x-forwarded-proto"], "https");
    assert!(!answer.header("date").is_empty());
    assert!(!answer.headers.contains_key("connection"));
    // Over HTTP/3, clients need not learn of it.
    assert!(!answer.headers.contains_key("alt-svc"));
    let answer = client.ask("HEAD", "a.com", "/", &[]).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.is_empty());
    assert_ne!(answer.header("content-length"), "0");
    let with_port = client.get("a.com:444", "/").await;
    assert_eq!(with_port.status, 200);
    let refused = client.ask("TRACE", "a.com", "/", &[]).await;
    assert_eq!(refused.status, 405);
    let allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
    assert_eq!(refused.header("allow"), allowed);
}

#[tokio::test]
async fn responses_over_tcp_tell_of_http3_unless_they_do_themselves() {
    let origin = Origin::new(|request| async move {
        let mut response = Response::new(empty());
        if request.uri().path() == "/own" {
            let own = HeaderValue::from_static("clear");
            response.headers_mut().insert("alt-svc", own);
        }
        response
    })
    .await;
    let mut scene = Scene::start(&before(&origin));
    for protocol in ["h2", "http/1.1"] {
        let config = tls::client(&[protocol]);
        let mut client = Client::tls(scene.at(443), "a.com", &config).await;
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.header("alt-svc"), "h3=\":443\"; ma=3600");
        let refused = client.get("b.com", "/").await;
        assert_eq!(refused.status, 421);
        let own = client.get("a.com", "/own").await;
        assert_eq!(own.header("alt-svc"), "clear");
    }
    let config = tls::client(&["h2"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let without = Objects::gateway(&[https("a", 443, "a.com", &["a"])])
        .with(secret("a", &Certificate::new(&["a.com"])))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    let served = scene.replace(&without).await;
    let mut binds = served.binds.keys();
    assert!(binds.all(|bind| *bind == Bind::tcp(None, 443)));
    let answer = client.get("a.com", "/").await;
    assert!(!answer.headers.contains_key("alt-svc"), "{answer:?}");
}

/// What a controller says of all pods of a Gateway.
#[tokio::test]
async fn responses_tell_of_http3_only_where_all_pods_serve_it() {
    let origin = Origin::echo("origin").await;
    let mut scene = Scene::start(&before(&origin));
    let config = tls::client(&["h2"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    let shared = scene.state().table.load().shared_http3().clone();
    for (ports, is_advertised) in [(vec![], false), (vec![443], true), (vec![8443], false)] {
        shared.set(ports.into_iter().collect());
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers.contains_key("alt-svc"), is_advertised);
    }
    let changed = before(&origin).route("other", &[to("origin")]);
    scene.replace(&changed).await;
    let answer = client.get("a.com", "/").await;
    assert!(!answer.headers.contains_key("alt-svc"), "of the next table");
    shared.set([443].into());
    let answer = client.get("a.com", "/").await;
    assert_eq!(answer.header("alt-svc"), "h3=\":443\"; ma=3600");
}

#[tokio::test]
async fn advertised_port_is_that_of_the_policy() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"http3": {"advertisedPort": 8443, "maxAge": "60s"}});
    let objects = Objects::gateway(&[https("a", 443, "", &["a"])])
        .with(secret("a", &Certificate::new(&["a.com"])))
        .with(clients("http3", &gateway(), &spec))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    let scene = Scene::start(&objects);
    let config = tls::client(&["h2"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    let answer = client.get("a.com", "/").await;
    assert_eq!(answer.header("alt-svc"), "h3=\":8443\"; ma=60");
}

#[tokio::test]
async fn bodies_and_trailers_pass_in_both_directions() {
    let origin = Origin::new(|request| async move {
        let collected = request.into_body().collect().await.expect("a body");
        let trailers = collected.trailers().cloned();
        let body = collected.to_bytes();
        let (sender, response) = stream();
        tokio::spawn(async move {
            // The proxy may have gone.
            let _ = sender.send(BodyFrame::data(body)).await;
            let mut fields = trailers.unwrap_or_default();
            fields.insert("x-last", HeaderValue::from_static("1"));
            let _ = sender.send(BodyFrame::trailers(fields)).await;
        });
        let mut response = Response::new(response);
        // What hyper needs to send trailers over HTTP/1.
        let announced = HeaderValue::from_static("x-last, x-sum");
        response.headers_mut().insert("trailer", announced);
        response
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let fields = [("te", "trailers")];
    let mut exchange = client.begin("POST", "a.com", "/", &fields).await;
    let body: Vec<u8> = (0..MIB).map(|at| (at / 7) as u8).collect();
    for part in body.chunks(100_000) {
        exchange.write(&data(part)).await;
    }
    exchange.write(&headers(&[("x-sum", "7")])).await;
    exchange.send.finish().expect("open");
    // The client does not read, and its windows are small: the response waits, and delays no other.
    origin.until_requests(1).await;
    let mut other = client.begin("POST", "a.com", "/other", &[]).await;
    other.send.finish().expect("open");
    assert_eq!(other.answer().await.status, 200);
    let answer = exchange.answer().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.len(), MIB);
    assert!(answer.body == body);
    let trailers = answer.trailers.expect("trailers");
    assert_eq!(trailers["x-last"], "1");
}

#[tokio::test]
async fn client_may_send_before_it_reads() {
    /// More than all buffers on the way of either body hold.
    const LARGE: usize = 8 * MIB;
    const PART: usize = MIB / 16;
    let origin = Origin::new(|request| async move {
        let (sender, response) = stream();
        tokio::spawn(async move {
            let part = Bytes::from(vec![1_u8; PART]);
            let sent = async {
                for _ in 0..LARGE / PART {
                    // The proxy may have gone.
                    let _ = sender.send(BodyFrame::data(part.clone())).await;
                }
            };
            let (received, ()) = tokio::join!(request.into_body().collect(), sent);
            let received = received.expect("a body").to_bytes().len();
            let last = Bytes::from(received.to_string());
            let _ = sender.send(BodyFrame::data(last)).await;
        });
        Response::new(response)
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut exchange = client.begin("POST", "a.com", "/", &[]).await;
    let part = data(&vec![2; PART]);
    for _ in 0..LARGE / PART {
        exchange.write(&part).await;
    }
    exchange.send.finish().expect("open");
    let answer = exchange.answer().await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with(LARGE.to_string().as_bytes()));
    assert!(answer.body.len() > LARGE);
}

/// The end of a stream may come in a later packet than its last frame.
#[tokio::test]
async fn late_end_of_a_request_is_no_body() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    for (method, content) in [
        ("GET", &b""[..]),
        ("DELETE", b""),
        ("GET", b"hello"),
        ("POST", b""),
    ] {
        let mut exchange = client.begin(method, "a.com", "/", &[]).await;
        client.until_read().await.expect("open");
        if !content.is_empty() {
            exchange.write(&data(content)).await;
            client.until_read().await.expect("open");
        }
        exchange.send.finish().expect("open");
        let received = exchange.answer().await.received();
        assert_eq!(received["received"], content.len(), "{method}");
        let is_chunked = received["headers"]["transfer-encoding"] == "chunked";
        let has_body = method == "POST" || !content.is_empty();
        assert_eq!(is_chunked, has_body, "{method}");
    }
}

#[tokio::test]
async fn clients_that_wait_get_100_continue() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let fields = [("expect", "100-continue"), ("content-length", "5")];
    for (method, fields) in [("PUT", &fields[..]), ("GET", &fields[..1])] {
        let mut exchange = client.begin(method, "a.com", "/", fields).await;
        let Some(Frame::Headers(_, Some(100))) = exchange.frame().await else {
            panic!("no 100");
        };
        exchange.write(&data(b"hello")).await;
        exchange.send.finish().expect("open");
        let answer = exchange.answer().await;
        assert_eq!(answer.received()["received"], 5);
    }
}

#[tokio::test]
async fn names_select_certificates_and_listeners() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let address = quic_at(&scene, 443);
    for name in ["a.com", "B.com"] {
        let client = Http3::connect(address, name).await;
        let host = name.to_ascii_lowercase();
        assert_eq!(client.get(&host, "/").await.status, 200);
        // RFC 9110, 15.5.20, as over HTTP/2.
        let other = if host == "a.com" { "b.com" } else { "a.com" };
        assert_eq!(client.get(other, "/").await.status, 421);
    }
    for name in ["c.com", "127.0.0.1"] {
        let refused = Http3::try_connect(address, name, &trusting()).await;
        let Err(ConnectionError::ConnectionClosed(close)) = refused.map(|_| ()) else {
            panic!("{name} is not refused");
        };
        assert_eq!(close.error_code, TransportErrorCode::crypto(112), "{name}");
    }
    scene.until("both are counted", |server| {
        let stats = &server.state().stats.connections;
        stats.handshake_failures(HandshakeFailure::ServerName) == 2
    });
}

#[tokio::test]
async fn open_connections_see_new_routes_and_new_ones_new_certificates() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let objects = |path: &str, certificate: &Certificate| {
        Objects::gateway(&[https("a", 443, "a.com", &["a"])])
            .with(secret("a", certificate))
            .with(http3_policy())
            .service("one", &[one.address])
            .service("two", &[two.address])
            .route("route", &[to("one"), prefix(path, "two")])
    };
    let (first, second) = (Certificate::new(&["a.com"]), Certificate::new(&["a.com"]));
    let mut scene = Scene::start(&objects("/two", &first));
    let address = quic_at(&scene, 443);
    let client = Http3::connect(address, "a.com").await;
    assert_eq!(client.get("a.com", "/new").await.name(), "one");
    scene.replace(&objects("/new", &second)).await;
    assert_eq!(quic_at(&scene, 443), address, "the socket stays");
    assert_eq!(client.get("a.com", "/new").await.name(), "two");
    let shown = |client: &Http3| {
        let identity = client.connection.peer_identity().expect("certificates");
        let chain = identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>();
        chain.expect("a chain")[0].clone()
    };
    assert_eq!(shown(&client), first.der);
    let new = Http3::connect(address, "a.com").await;
    assert_eq!(shown(&new), second.der);
    assert_eq!(new.get("a.com", "/new").await.name(), "two");
}

#[tokio::test]
async fn drain_tells_clients_and_completes_requests() {
    let (release, released) = tokio::sync::watch::channel(false);
    let origin = Origin::new(move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|it| *it).await.expect("released");
            Response::new(full("done"))
        }
    })
    .await;
    let mut scene = Scene::with(&before(&origin), |settings| {
        settings.workers = 1;
        settings.drain.deadline = UNREACHED;
    });
    let address = quic_at(&scene, 443);
    let client = Http3::connect(address, "a.com").await;
    let mut exchange = client.begin("GET", "a.com", "/", &[]).await;
    exchange.send.finish().expect("open");
    origin.until_requests(1).await;
    let ended = scene.begin_shutdown();
    let mut control = None;
    assert_eq!(client.goaway(&mut control).await, (1 << 62) - 4);
    assert_eq!(client.goaway(&mut control).await, 4);
    let mut late = client.begin("GET", "a.com", "/", &[]).await;
    assert_eq!(
        late.reset().await,
        0x10b,
        "a rejected request may be sent again"
    );
    let refused = Http3::try_connect(address, "a.com", &trusting()).await;
    let Err(ConnectionError::ConnectionClosed(close)) = refused.map(|_| ()) else {
        panic!("a new client is not refused");
    };
    assert_eq!(close.error_code, TransportErrorCode::CONNECTION_REFUSED);
    release.send_replace(true);
    let answer = exchange.answer().await;
    assert_eq!((answer.status, answer.text()), (200, "done"));
    assert_eq!(client.closed().await, 0x100);
    within(ended).await.expect("ended");
}

#[tokio::test]
async fn connections_drain_when_http3_is_switched_off() {
    let origin = Origin::echo("origin").await;
    let mut scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let without = Objects::gateway(&[https("a", 443, "a.com", &["a"])])
        .with(secret("a", &Certificate::new(&["a.com"])))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    scene.replace(&without).await;
    assert_eq!(client.closed().await, 0x100);
    let mut other = Client::tls(scene.at(443), "a.com", &tls::client(&["h2"])).await;
    assert_eq!(other.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn heads_come_in_pieces_and_connections_are_counted() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut exchange = client.stream().await;
    // In pieces: nothing depends on how the head arrives.
    for byte in head("GET", "a.com", "/", &[("x", "y")]) {
        exchange.write(&[byte]).await;
    }
    exchange.send.finish().expect("open");
    let answer: Answer = exchange.answer().await;
    assert_eq!(answer.received()["headers"]["x"], "y");
    // A frame of an unknown type (RFC 9114, 9) is no body.
    let mut exchange = client.stream().await;
    let unknown = [&head("GET", "a.com", "/", &[])[..], &[0x21, 2, 0, 0]].concat();
    exchange.write(&unknown).await;
    exchange.send.finish().expect("open");
    let answer = exchange.answer().await;
    assert_eq!(answer.received()["received"], 0);
    let handshakes = &scene.state().stats.connections.handshakes;
    assert_eq!(handshakes.load(Relaxed), 1);
    scene.until_stats("open", |it| it.open == 1).await;
    drop((exchange, client));
    scene.until_stats("closed", |it| it.open == 0).await;
}

/// Sends a request over HTTP/2 and over HTTP/3, and expects the same status.
#[tokio::test]
async fn statuses_are_those_of_http2() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let address = quic_at(&scene, 443);
    for (method, path, fields) in [
        ("GET", "/", &[][..]),
        ("GET", "/%2e%2e/a", &[]),
        ("GET", "/%zz", &[]),
        ("get", "/", &[]),
        ("GET", "/", &[("expect", "something")]),
        ("DELETE", "/a//b", &[("x-real-ip", "192.0.2.1")]),
    ] {
        let http3 = Http3::connect(address, "a.com").await;
        let over3 = http3.ask(method, "a.com", path, fields).await;
        let config = tls::client(&["h2"]);
        let mut http2 = Client::tls(scene.at(443), "a.com", &config).await;
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = http2.request(method, "a.com", path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(empty()).expect("a request");
        let over2 = http2.fetch(request).await;
        assert_eq!(over3.status, over2.status, "{path} {fields:?}");
        assert_eq!(names(&over3.headers), names(&over2.headers), "{path}");
    }
}

/// Names of the headers of a response, without the one that tells of HTTP/3.
fn names(headers: &HeaderMap) -> Vec<&str> {
    let names = headers.keys().map(http::HeaderName::as_str);
    let mut names: Vec<_> = names.filter(|name| *name != "alt-svc").collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn routes_of_hosts_are_those_of_their_listener() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let objects = listeners()
        .service("one", &[one.address])
        .service("two", &[two.address])
        .with(route("one", &["a.com"], &[to("one")]))
        .with(route("two", &["b.com"], &[to("two")]));
    let scene = Scene::start(&objects);
    let address = quic_at(&scene, 443);
    for (host, expected) in [("a.com", "one"), ("b.com", "two")] {
        let client = Http3::connect(address, host).await;
        let answers = futures_util::future::join_all((0..20).map(|_| client.get(host, "/")));
        for answer in answers.await {
            assert_eq!(answer.name(), expected);
        }
    }
}
