//! Traces: the requests that the proxy sends on its own while it handles a sampled request.

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::client::{Client, get};
use crate::collector::{CLIENT, Collector, SERVER};
use crate::external_auth::with_filters;
use crate::harness::TEST_TIMEOUT;
use crate::mirror::mirror;
use crate::origin::{Origin, empty};
use crate::scene::{Scene, to};
use crate::traces::{PARENT, traced};

/// Responds to every request with a status, and passes on its headers.
async fn recording(status: u16) -> (Origin, mpsc::UnboundedReceiver<HeaderMap>) {
    let (sender, received) = mpsc::unbounded_channel();
    let origin = Origin::new(move |request: Request<Incoming>| {
        let _ = sender.send(request.headers().clone());
        async move {
            let response = Response::builder().status(status);
            response.body(empty()).expect("a response")
        }
    });
    (origin.await, received)
}

async fn next(received: &mut mpsc::UnboundedReceiver<HeaderMap>) -> HeaderMap {
    let next = timeout(TEST_TIMEOUT, received.recv()).await;
    next.expect("in time").expect("a request")
}

fn auth(service: &str) -> Value {
    json!({"type": "ExternalAuth", "externalAuth": {
        "protocol": "HTTP", "backendRef": {"name": service, "port": 80}, "http": {"path": "/check"},
    }})
}

#[tokio::test]
async fn mirror_has_a_span_that_is_the_parent_of_what_it_does() {
    let (mut collector, app) = (Collector::start().await, Origin::echo("app").await);
    let (copy, mut copies) = recording(404).await;
    let mut rule = to("app");
    rule["filters"] = json!([mirror("copy")]);
    let objects = traced(&collector)
        .service("copy", &[copy.address])
        .service("app", &[app.address]);
    let scene = Scene::start(&objects.route("route", &[rule]));
    get(scene.at(80), "a.com", "/a?token=canary").await;
    let (server, attempts) = collector.request().await;
    let mirrored = collector.subrequest().await;
    assert_eq!((server.kind, attempts.len()), (SERVER, 1));
    assert_eq!((mirrored.kind, &*mirrored.name), (CLIENT, "GET /*"));
    assert_eq!(mirrored.parent_span_id, server.span_id);
    assert_eq!(mirrored.trace_id, server.trace_id);
    let attributes = [
        ("portcullis.purpose", "mirror"),
        ("http.response.status_code", "404"),
        ("error.type", "404"),
        ("url.full", &format!("http://{}/a", copy.address)),
        ("http.request.resend_count", ""),
    ];
    for (key, value) in attributes {
        assert_eq!(mirrored.attribute(key), value, "{key}");
    }
    let copied = next(&mut copies).await;
    assert_eq!(
        copied["traceparent"],
        format!("{}-03", mirrored.traceparent())
    );
    assert!(!server.is_error());
}

#[tokio::test]
async fn question_to_an_authorization_server_has_a_span() {
    let (mut collector, app) = (Collector::start().await, Origin::echo("app").await);
    let (server, mut questions) = recording(200).await;
    let rule = |path: &str, service: &str| with_filters(path, json!([auth(service)]));
    let silent = Origin::new(|_| std::future::pending()).await;
    let mut given_up = rule("/silent", "silent");
    given_up["timeouts"] = json!({"request": "1s"});
    let objects = traced(&collector)
        .service("app", &[app.address])
        .service("auth", &[server.address])
        .service("dead", &[Origin::dead()])
        .service("silent", &[silent.address]);
    let rules = [rule("/asked", "auth"), rule("/dead", "dead"), given_up];
    let scene = Scene::start(&objects.route("route", &rules));
    let mut client = Client::http1(scene.at(80)).await;
    let parent = format!("{PARENT}-01");
    let headers = [("traceparent", &*parent), ("tracestate", "vendor=1")];
    client
        .get_with("a.com", "/asked?token=canary", &headers)
        .await;
    let asked = collector.subrequest().await;
    let (server, _) = collector.request().await;
    assert_eq!((asked.kind, &*asked.name), (CLIENT, "GET"));
    assert_eq!(asked.parent_span_id, server.span_id);
    assert_eq!(asked.attribute("portcullis.purpose"), "external_auth");
    assert!(!format!("{asked:?}").contains("canary"));
    let question = next(&mut questions).await;
    assert_eq!(
        question["traceparent"],
        format!("{}-01", asked.traceparent())
    );
    assert_eq!(question["tracestate"], "vendor=1");
    // A server that is away, and one that does not respond in the time of the request.
    for (path, status) in [("/dead", 503), ("/silent", 504)] {
        let response = client.get_with("a.com", path, &headers).await;
        assert_eq!(response.status, status);
        let asked = collector.subrequest().await;
        let (server, attempts) = collector.request().await;
        assert!(asked.is_error() && server.is_error(), "{asked:?}");
        assert_eq!((asked.parent_span_id, attempts.len()), (server.span_id, 0));
    }
    // Without a sampled parent, there is no span, and no header of the proxy.
    let unsampled = format!("{PARENT}-00");
    let headers = [("traceparent", &*unsampled)];
    client.get_with("a.com", "/asked", &headers).await;
    assert!(!next(&mut questions).await.contains_key("traceparent"));
}
