//! The RequestMirror filter end to end: which requests are copied, and that the client's request does not depend on the
//! outcome of a copy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use crate::admin::{metric, service_labels_with};
use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{Client, connect, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, prefix, to};
use crate::tls_origin::{Authority, TlsOrigin};

/// Returns a RequestMirror filter.
pub(crate) fn mirror(service: &str) -> Value {
    json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": service, "port": 80}}})
}

/// Returns a mirror of a share of the requests.
pub(crate) fn share(service: &str, field: &str, share: Value) -> Value {
    let mut filter = mirror(service);
    filter["requestMirror"][field] = share;
    filter
}

pub(crate) fn with_filters(path: &str, service: &str, filters: &[Value]) -> Value {
    let mut rule = prefix(path, service);
    rule["filters"] = filters.into();
    rule
}

/// A copy that a mirror has received.
pub(crate) struct Received {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
}

/// A backend that forwards each completely received request to the test.
pub(crate) struct Recorder {
    pub(crate) origin: Origin,
    received: mpsc::UnboundedReceiver<Received>,
}

impl Recorder {
    pub(crate) async fn new() -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                if let Ok(body) = body.collect().await {
                    let body = body.to_bytes();
                    let _ = sender.send(Received { head, body });
                }
                let answer = Response::builder().status(500).header("x-mirror", "1");
                answer.body(full("a copy")).expect("a response")
            }
        })
        .await;
        Self { origin, received }
    }

    pub(crate) async fn next(&mut self) -> Received {
        let next = timeout(TEST_TIMEOUT, self.received.recv()).await;
        next.expect("a copy in time").expect("a copy")
    }
}

/// Waits for this number of copies with a result.
pub(crate) async fn until_mirrored(scene: &Scene, service: &str, result: &str, count: f64) {
    let tls = match service {
        "secure" | "untrusted" => format!("BackendTLSPolicy default/{service}"),
        _ => "none".to_owned(),
    };
    let copies = async || {
        let mut copies = 0.0;
        for protocol in ["http1", "http2"] {
            let labels = service_labels_with(service, protocol, &tls);
            let name = format!(r#"mirrored_requests_total{{{labels},result="{result}"}}"#);
            copies += metric(scene, &name).await;
        }
        copies
    };
    let counted = async {
        // Counters have no change notification.
        while copies().await < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let counted = timeout(TEST_TIMEOUT, counted).await;
    assert!(counted.is_ok(), "{service}: not {count} {result} in time");
    assert_eq!(copies().await, count, "{service} {result}");
}

#[tokio::test]
async fn dead_and_silent_mirrors_do_not_delay_responses() {
    let echo = Origin::echo("echo").await;
    let silent = Origin::new(|_| std::future::pending()).await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("dead", &[Origin::dead()])
        .service("empty", &[])
        .service("silent", &[silent.address]);
    let all = [
        mirror("dead"),
        mirror("empty"),
        mirror("missing"),
        mirror("silent"),
    ];
    let rules = [with_filters("/", "echo", &all)];
    let mut scene = Scene::with(&objects.route("route", &rules), |settings| {
        settings.drain.deadline = Duration::from_secs(600);
    });
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..20 {
        let answer = client.post("a.com", "/", "body").await;
        assert_eq!(answer.received()["received"], 4);
    }
    silent.until_requests(20).await;
    until_mirrored(&scene, "dead", "failed", 20.0).await;
    until_mirrored(&scene, "empty", "failed", 20.0).await;
    drop(client);
    // Copies that are in progress do not delay a shutdown.
    let ended = timeout(TEST_TIMEOUT, scene.begin_shutdown()).await;
    ended.expect("shut down in time").expect("no panic");
}

#[tokio::test]
async fn request_timeout_of_the_rule_bounds_copies() {
    let echo = Origin::echo("echo").await;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let silent = Origin::raw(move |mut stream| {
        let ended = ended.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let _ = ended.send(());
        }
    })
    .await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("silent", &[silent.address]);
    let mut rule = with_filters("/", "echo", &[mirror("silent")]);
    rule["timeouts"] = json!({"request": "2s"});
    let scene = Scene::start(&objects.route("route", &[rule]));
    let answer = crate::client::get(scene.at(80), "a.com", "/").await;
    assert_eq!(answer.name(), "echo");
    let end = timeout(TEST_TIMEOUT, ends.recv()).await;
    end.expect("an end in time").expect("an end");
    until_mirrored(&scene, "silent", "timeout", 1.0).await;
}

#[tokio::test]
async fn mirror_of_a_backend_ref_copies_its_share_once_per_request() {
    let mut copies = Recorder::new().await;
    // It responds to no first request of a connection, so that safe requests are retried.
    let broken = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
    })
    .await;
    let (app, other) = (Origin::echo("app").await, Origin::echo("other").await);
    let mut rule = prefix("/", "app");
    rule["backendRefs"][0]["filters"] = json!([mirror("copies")]);
    let of_other = prefix("/other", "other");
    let objects = Objects::http()
        .service("app", &[app.address, broken.address])
        .service("other", &[other.address])
        .service("copies", &[copies.origin.address]);
    let scene = Scene::start(&objects.route("route", &[rule, of_other]));
    let mut client = Client::http1(scene.at(80)).await;
    let mut sent = 0;
    while broken.connections() == 0 {
        assert_eq!(client.get("a.com", "/other").await.name(), "other");
        assert_eq!(client.get("a.com", "/").await.name(), "app");
        sent += 1;
    }
    for _ in 0..sent {
        assert_eq!(copies.next().await.head.uri.path(), "/");
    }
    until_mirrored(&scene, "copies", "completed", f64::from(sent)).await;
    assert_eq!(copies.origin.requests(), sent as usize);
}

#[tokio::test]
async fn requests_for_an_upgrade_are_not_copied() {
    let mut copies = Recorder::new().await;
    let app = Origin::raw(|mut stream| async move {
        let head = read_until(&mut stream, "\r\n\r\n").await;
        let answer = if head.to_lowercase().contains("upgrade: websocket") {
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        } else {
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        };
        write_text(&mut stream, answer).await;
        read_until(&mut stream, "end").await;
    })
    .await;
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("copies", &[copies.origin.address]);
    let scene =
        Scene::start(&objects.route("route", &[with_filters("/", "app", &[mirror("copies")])]));
    let mut client = connect(scene.at(80)).await;
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    write_text(
        &mut client,
        format!("GET /upgrade HTTP/1.1\r\nHost: a.com\r\n{upgrade}\r\n"),
    )
    .await;
    read_until(&mut client, "\r\n\r\n").await;
    let answer = crate::client::get(scene.at(80), "a.com", "/plain").await;
    assert_eq!(answer.status, 200);
    assert_eq!(copies.next().await.head.uri.path(), "/plain");
    assert_eq!(copies.origin.requests(), 1);
}

#[tokio::test]
async fn copies_use_tls_if_a_policy_requires_it() {
    const SECRET: &str = "/for-the-mirror-only";
    let authority = Authority::new();
    let copy = TlsOrigin::start(&authority.issue(&[NAME])).await;
    let untrusted = TlsOrigin::start(&Authority::new().issue(&[NAME])).await;
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("secure", &[copy.address])
        .service("untrusted", &[untrusted.address])
        .with(policy("secure", &trust(NAME), &json!({})))
        .with(policy("untrusted", &trust(NAME), &json!({})))
        .with(authorities("ca", &authority.pem));
    let filters = [mirror("secure"), mirror("untrusted")];
    let scene = Scene::start(&objects.route("route", &[with_filters("/", "echo", &filters)]));
    let answer = crate::client::get(scene.at(80), "a.com", SECRET).await;
    assert_eq!(answer.name(), "echo");
    until_mirrored(&scene, "secure", "completed", 1.0).await;
    until_mirrored(&scene, "untrusted", "failed", 1.0).await;
    assert_eq!((copy.requests(), untrusted.requests()), (1, 0));
    copy.assert_encrypted(SECRET);
    untrusted.assert_encrypted(SECRET);
}

#[tokio::test]
async fn copy_in_progress_survives_a_new_configuration() {
    let release = Arc::new(Semaphore::new(0));
    let held = release.clone();
    let copy = Origin::new(move |_| {
        let held = held.clone();
        async move {
            let _ = held.acquire().await;
            Response::new(full("late"))
        }
    })
    .await;
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("copy", &[copy.address]);
    let mirrored = with_filters("/", "echo", &[mirror("copy")]);
    let of_copy = prefix("/copy", "copy");
    let with = objects.clone().route("route", &[mirrored, of_copy.clone()]);
    let mut scene = Scene::start(&with);
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "echo");
    copy.until_requests(1).await;
    scene
        .replace(&objects.route("route", &[to("echo"), of_copy]))
        .await;
    assert_eq!(client.get("a.com", "/").await.name(), "echo");
    release.add_permits(1);
    until_mirrored(&scene, "copy", "completed", 1.0).await;
    assert_eq!(copy.requests(), 1);
}
