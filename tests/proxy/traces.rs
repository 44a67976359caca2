//! Traces: the spans that a collector receives for requests of each kind, and that no request waits for a collector.

use std::time::Duration;

use http::{HeaderMap, Method, Response};
use http_body::Frame;
use serde_json::json;
use tokio::time::timeout;

use crate::access_policy::gateway;
use crate::admin::metric;
use crate::client::{Client, connect, get, read_until, write_text};
use crate::client_policy::clients;
use crate::collector::{Collector, Span};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty, full, stream};
use crate::scene::{Objects, Scene, prefix, to};
use crate::upgrade::{REQUEST, SWITCH};

/// Returns a policy with this content of `tracing`.
pub(crate) fn policy(tracing: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {{name: traces}}\nspec:\n  \
         targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}}]\n  tracing: {tracing}"
    )
}

pub(crate) const ALL: &str =
    "{provider: {backendRef: {name: collector, port: 80}}, samplingRate: {numerator: 100}}";

pub(crate) fn traced(collector: &Collector) -> Objects {
    Objects::http()
        .service("collector", &[collector.origin.address])
        .with(policy(ALL))
}

/// `/metrics` in OpenMetrics, or as a client gets it that does not ask for that.
async fn metrics(scene: &Scene, accept: &str) -> String {
    let mut admin = Client::http1(scene.admin_address()).await;
    let headers = [("accept", accept)];
    let page = admin.get_with("localhost", "/metrics", &headers).await;
    page.text().to_owned()
}

#[tokio::test]
async fn metrics_refer_to_the_trace_of_a_sampled_request() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let objects = traced(&collector).service("echo", &[echo.address]);
    let scene = Scene::start(&objects.route("route", &[to("echo")]));
    let mut client = Client::http1(scene.at(80)).await;
    let headers = [("traceparent", &*format!("{PARENT}-01"))];
    client.get_with("a.com", "/", &headers).await;
    collector.request().await;
    let exemplar = format!("# {{trace_id=\"{}\"}} ", &PARENT[3..35]);
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4";
    let page = metrics(&scene, accept).await;
    let with_exemplar: Vec<_> = page.lines().filter(|it| it.contains(&exemplar)).collect();
    for series in [
        "portcullis_requests_total{",
        "http_server_request_duration_seconds_bucket{",
        "http_client_request_duration_seconds_bucket{",
    ] {
        let lines = with_exemplar.iter().filter(|it| it.starts_with(series));
        assert_eq!(lines.count(), 1, "{series}\n{page}");
    }
    assert_eq!(with_exemplar.len(), 3, "{page}");
    assert!(!metrics(&scene, "text/plain").await.contains("trace_id"));
}

pub(crate) const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

#[tokio::test]
async fn spans_of_a_request_have_the_parent_and_attributes_of_the_conventions() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let objects = traced(&collector).service("echo", &[echo.address]);
    let scene = Scene::start(&objects.route("route", &[prefix("/shop", "echo")]));
    let mut client = Client::http1(scene.at(80)).await;
    let headers = [
        ("traceparent", format!("{PARENT}-01")),
        ("tracestate", "vendor=1".to_owned()),
        ("user-agent", "test/1".to_owned()),
    ];
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let answer = client
        .get_with("a.com", "/shop/items?token=canary", &headers)
        .await;
    let (server, attempts) = collector.request().await;
    assert_eq!(
        (server.name.as_str(), server.trace_state.as_str()),
        ("GET /shop/*", "vendor=1")
    );
    assert_eq!(
        server.parent_span_id,
        [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]
    );
    let expected = [
        ("http.request.method", "GET"),
        ("url.path", "/shop/items"),
        ("url.scheme", "http"),
        ("http.route", "/shop/*"),
        ("http.response.status_code", "200"),
        ("network.protocol.version", "1.1"),
        ("server.address", "a.com"),
        ("server.port", "80"),
        ("client.address", "127.0.0.1"),
        ("user_agent.original", "test/1"),
        ("portcullis.route", "HTTPRoute default/route"),
        ("error.type", ""),
    ];
    for (key, value) in expected {
        assert_eq!(server.attribute(key), value, "{key}");
    }
    assert!(!server.is_error());
    let [attempt] = &attempts[..] else {
        panic!("{attempts:?}");
    };
    assert_eq!(attempt.attribute("server.address"), "127.0.0.1");
    assert_eq!(
        attempt.attribute("server.port"),
        echo.address.port().to_string()
    );
    let url = format!("http://{}/shop/items", echo.address);
    assert_eq!(attempt.attribute("url.full"), url);
    assert_eq!(attempt.attribute("http.response.status_code"), "200");
    let received = answer.received();
    assert_eq!(
        received["headers"]["traceparent"],
        format!("{}-01", attempt.traceparent())
    );
    assert_eq!(received["headers"]["tracestate"], "vendor=1");
    assert!(!format!("{server:?}{attempt:?}").contains("canary"));
}

#[tokio::test]
async fn client_that_a_proxy_names_has_no_port() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let hops = json!({"clientIP": {"xForwardedFor": {"trustedHops": 1}}});
    let objects = traced(&collector)
        .service("echo", &[echo.address])
        .with(clients("clients", &gateway(), &hops))
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let headers = [("x-forwarded-for", "192.0.2.1")];
    client.get_with("a.com", "/", &headers).await;
    let (server, _) = collector.request().await;
    let values = ["client.address", "client.port"].map(|key| server.attribute(key));
    assert_eq!(values, ["192.0.2.1", ""]);
}

#[tokio::test]
async fn headers_are_unchanged_when_nobody_samples() {
    let (collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let objects = traced(&collector).service("echo", &[echo.address]);
    let scene = Scene::start(&objects.route("route", &[to("echo")]));
    let mut client = Client::http1(scene.at(80)).await;
    let unsampled = format!("{PARENT}-00");
    let headers = [
        ("traceparent", unsampled.as_str()),
        ("tracestate", "a=b,c=d"),
    ];
    let answer = client.get_with("a.com", "/", &headers).await;
    assert_eq!(answer.received()["headers"]["traceparent"], unsampled);
    assert_eq!(answer.received()["headers"]["tracestate"], "a=b,c=d");
}

#[tokio::test]
async fn retries_have_a_span_each() {
    let mut collector = Collector::start().await;
    let origin = Origin::new(|_| async {
        let response = Response::builder().status(503);
        response.body(empty()).expect("a response")
    });
    let origin = origin.await;
    let mut rule = to("app");
    rule["retry"] = json!({"codes": [503], "attempts": 2, "backoff": "1ms"});
    let objects = traced(&collector).service("app", &[origin.address]);
    let scene = Scene::start(&objects.route("route", &[rule]));
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 503);
    let (server, attempts) = collector.request().await;
    assert_eq!(server.attribute("error.type"), "503");
    assert_eq!(attempts.len(), 3);
    assert!(
        attempts
            .iter()
            .all(|attempt| attempt.attribute("error.type") == "503")
    );
}

#[tokio::test]
async fn errors_are_those_of_the_conventions() {
    let mut collector = Collector::start().await;
    let missing = Origin::new(|_| async {
        let response = Response::builder().status(404);
        response.body(empty()).expect("a response")
    });
    let missing = missing.await;
    let cut = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
    });
    let cut = cut.await;
    let objects = traced(&collector)
        .service("missing", &[missing.address])
        .service("dead", &[Origin::dead()])
        .service("cut", &[cut.address])
        .route(
            "route",
            &["missing", "dead", "cut"].map(|name| prefix(&format!("/{name}"), name)),
        );
    let scene = Scene::start(&objects);
    // No rule: there is no template and no attempt, and 4xx is no error of a server.
    assert_eq!(get(scene.at(80), "a.com", "/other").await.status, 404);
    let (server, attempts) = collector.request().await;
    assert_eq!((server.name.as_str(), attempts.len()), ("GET", 0));
    assert!(!server.is_error());
    // It is one of a client.
    assert_eq!(get(scene.at(80), "a.com", "/missing").await.status, 404);
    let (server, attempts) = collector.request().await;
    assert!(!server.is_error() && attempts[0].is_error());
    // The only endpoint is tried once. An attempt that finds no other one has no span.
    for (path, status, count) in [("/dead", 503, 1), ("/cut", 502, 1)] {
        assert_eq!(get(scene.at(80), "a.com", path).await.status, status);
        let (server, attempts) = collector.request().await;
        assert_eq!(attempts.len(), count, "{attempts:?}");
        let found = server.attribute("http.response.status_code");
        assert_eq!(found, status.to_string());
        let all = attempts.iter().all(Span::is_error);
        assert!(
            server.is_error() && all && !attempts.is_empty(),
            "{attempts:?}"
        );
    }
    // A method that nobody knows is not part of a name.
    let mut client = Client::http1(scene.at(80)).await;
    let method = Method::from_bytes(b"BREW").expect("a method");
    let request = client.request(method, "a.com", "/missing").body(empty());
    client.fetch(request.expect("a request")).await;
    let (server, _) = collector.request().await;
    assert_eq!(server.name, "HTTP /missing/*");
    assert_eq!(server.attribute("http.request.method"), "_OTHER");
    assert_eq!(server.attribute("http.request.method_original"), "BREW");
}

#[tokio::test]
async fn cancelled_request_has_an_open_attempt_that_ends_with_it() {
    let mut collector = Collector::start().await;
    let silent = Origin::new(|_| std::future::pending());
    let silent = silent.await;
    let objects = traced(&collector).service("silent", &[silent.address]);
    let scene = Scene::start(&objects.route("route", &[to("silent")]));
    let mut stream = connect(scene.at(80)).await;
    write_text(&mut stream, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    silent.until_requests(1).await;
    stream.set_zero_linger().expect("an option");
    drop(stream);
    let (server, attempts) = collector.request().await;
    assert_eq!(server.attribute("http.response.status_code"), "");
    assert!(server.is_error() && attempts[0].is_error());
    assert_eq!(attempts[0].end, server.end);
    assert_eq!(
        attempts[0].attribute("server.port"),
        silent.address.port().to_string()
    );
}

#[tokio::test]
async fn grpc_status_is_an_attribute() {
    let mut collector = Collector::start().await;
    let origin = Origin::new(|_| async {
        let (sender, body) = stream();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("14"));
        let _ = sender.send(Frame::trailers(trailers)).await;
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(body).expect("a response")
    });
    let origin = origin.await;
    let matched = json!({"matches": [{"method": {"service": "shop.Cart", "method": "Add"}}],
        "backendRefs": [{"name": "app", "port": 80}]});
    let objects = traced(&collector).service("app", &[origin.address]);
    let objects = objects.with(grpc_route("route", &["a.com"], &[matched]));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client
        .request(Method::POST, "a.com", "/shop.Cart/Add")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    client
        .fetch(request.body(full("x")).expect("a request"))
        .await;
    let (server, _) = collector.request().await;
    assert_eq!(server.name, "POST /shop.Cart/Add");
    assert_eq!(server.attribute("network.protocol.version"), "2");
    assert_eq!(server.attribute("rpc.response.status_code"), "UNAVAILABLE");
    assert!(server.is_error());
}

#[tokio::test]
async fn websocket_has_a_span_until_it_ends() {
    let mut collector = Collector::start().await;
    let origin = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(&mut stream, SWITCH).await;
        read_until(&mut stream, "bye").await;
    });
    let origin = origin.await;
    let objects = traced(&collector).service("chat", &[origin.address]);
    let scene = Scene::start(&objects.route("route", &[to("chat")]));
    let mut stream = connect(scene.at(80)).await;
    write_text(&mut stream, REQUEST).await;
    read_until(&mut stream, "\r\n\r\n").await;
    write_text(&mut stream, "bye").await;
    drop(stream);
    let (server, attempts) = collector.request().await;
    assert_eq!(server.attribute("http.response.status_code"), "101");
    assert_eq!(attempts[0].attribute("http.response.status_code"), "101");
    assert!(!server.is_error(), "{server:?}");
}

#[tokio::test]
async fn collector_over_grpc_gets_the_headers_and_attributes_of_the_policy() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let tracing = "{provider: {protocol: GRPC, backendRef: {name: collector, port: 80}, \
        headers: [{name: x-tenant, value: edge}]}, samplingRate: {numerator: 1, denominator: 1}, serviceName: front, \
        attributes: [{name: env, type: Literal, literalValue: test}, {name: user, type: Header, headerName: X-User}]}";
    let objects = Objects::http()
        .service("collector", &[collector.origin.address])
        .service("echo", &[echo.address])
        .with(policy(tracing))
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    client.get_with("a.com", "/", &[("x-user", "ann")]).await;
    let (headers, export) = collector.message().await;
    assert_eq!(
        (&headers["x-tenant"], &headers["te"]),
        (&"edge".parse().unwrap(), &"trailers".parse().unwrap())
    );
    let spans = &export.resource_spans[0];
    let resource = &spans.resource.as_ref().expect("a resource").attributes;
    let service = resource.iter().find(|it| it.key == "service.name");
    assert_eq!(
        service.and_then(|it| it.value.clone()).map(|it| it.text),
        Some("front".to_owned())
    );
    let server = &spans.scope_spans[0].spans[0];
    assert_eq!(
        (server.attribute("env"), server.attribute("user")),
        ("test".to_owned(), "ann".to_owned())
    );
}

#[tokio::test]
async fn policy_names_spans_and_copies_attributes() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let tracing = "{provider: {backendRef: {name: collector, port: 80}}, samplingRate: {numerator: 100}, \
        spanName: '{portcullis.route} {http.request.method} {http.route}', attributes: [\
        {name: http.status_code, type: Attribute, attributeName: http.response.status_code}, \
        {name: missing, type: Attribute, attributeName: error.type}, \
        {name: client.address, type: Literal, literalValue: hidden}, \
        {name: peer, type: Attribute, attributeName: client.address}]}";
    let objects = Objects::http()
        .service("collector", &[collector.origin.address])
        .service("echo", &[echo.address])
        .with(policy(tracing))
        .route("route", &[prefix("/a", "echo")]);
    let scene = Scene::start(&objects);
    assert_eq!(get(scene.at(80), "a.com", "/a").await.status, 200);
    let (server, attempts) = collector.request().await;
    assert_eq!(server.name, "HTTPRoute default/route GET /a/*");
    assert_eq!(attempts[0].name, "GET /a/*");
    let values = ["http.status_code", "missing", "client.address", "peer"];
    let values = values.map(|key| server.attribute(key));
    assert_eq!(values, ["200", "", "hidden", "127.0.0.1"]);
    // What is not known is left out.
    assert_eq!(get(scene.at(80), "a.com", "/b").await.status, 404);
    assert_eq!(collector.request().await.0.name, "GET");
}

#[tokio::test]
async fn absent_collector_delays_no_request_and_its_spans_are_counted() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("collector", &[Origin::dead()])
        .service("echo", &[echo.address])
        .with(policy(ALL))
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let served = async {
        for _ in 0..200 {
            assert_eq!(client.get("a.com", "/").await.status, 200);
        }
    };
    // A connection to the collector is tried three times, with delays of seconds: 200 of them take minutes.
    timeout(TEST_TIMEOUT, served).await.expect("in time");
    let dropped = async {
        // Counters have no change notification.
        while metric(&scene, "trace_dropped_spans_total").await < 400.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TEST_TIMEOUT, dropped).await.expect("counted");
    assert_eq!(metric(&scene, "trace_exported_spans_total").await, 0.0);
}

#[tokio::test]
async fn slow_collector_delays_neither_requests_nor_the_end_of_the_process() {
    let (silent, echo) = (
        Origin::new(|_| std::future::pending()),
        Origin::echo("echo").await,
    );
    let silent = silent.await;
    let objects = Objects::http()
        .service("collector", &[silent.address])
        .service("echo", &[echo.address])
        .with(policy(ALL))
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    client.get("a.com", "/").await;
    silent.until_requests(1).await;
    // The exporter waits for the collector from here on.
    for _ in 0..500 {
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    drop(client);
    let ended = tokio::task::spawn_blocking(|| drop(scene));
    let ended = timeout(TEST_TIMEOUT, ended).await.expect("in time");
    ended.expect("no panic");
}

#[tokio::test]
async fn process_that_ends_sends_the_last_spans() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let objects = traced(&collector).service("echo", &[echo.address]);
    let scene = Scene::start(&objects.route("route", &[to("echo")]));
    get(scene.at(80), "a.com", "/").await;
    // Returns when the process would end.
    tokio::task::spawn_blocking(|| drop(scene))
        .await
        .expect("ended");
    let (server, _) = collector.request().await;
    assert_eq!(server.name, "GET /*");
}
