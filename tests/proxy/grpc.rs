//! GRPCRoutes end to end: which requests they match, the protocol to their backends, and local responses.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Client, get};
use crate::harness::yaml;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, route, to};

/// Returns a GRPCRoute of the Gateway for these hosts.
pub(crate) fn grpc_route(name: &str, hosts: &[&str], rules: &[Value]) -> String {
    route(name, hosts, rules).replace("kind: HTTPRoute", "kind: GRPCRoute")
}

/// Returns a rule that marks its requests with a name.
fn marked(name: &str, condition: &Value) -> Value {
    json!({
        "matches": [condition],
        "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-rule", "value": name}]}},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-answered", "value": name}]}},
        ],
        "backendRefs": [{"name": "echo", "port": 80}],
    })
}

async fn call(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = client
        .request(Method::POST, "a.com", path)
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client
        .fetch(request.body(full("x")).expect("a request"))
        .await
}

/// Returns the name of the rule that a gRPC request belongs to, or its gRPC status.
async fn rule(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> String {
    let answer = call(client, path, headers).await;
    assert_eq!(answer.status, 200, "{path}");
    if answer.headers.contains_key("grpc-status") {
        assert_eq!(answer.header("content-type"), "application/grpc");
        assert!(answer.body.is_empty());
        return answer.header("grpc-status").to_owned();
    }
    let received = answer.received();
    let rule = received["headers"]["x-rule"].as_str().unwrap_or("none");
    if rule != "none" {
        assert_eq!(answer.header("x-answered"), rule);
        assert_eq!(received["version"], "HTTP/2.0");
    }
    rule.to_owned()
}

#[tokio::test]
async fn call_over_http1_is_refused_as_grpc() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("echo", &[echo.address]);
    let objects = objects.with(grpc_route(
        "route",
        &["a.com"],
        &[marked("all", &json!({}))],
    ));
    let objects = objects.with(route("pages", &["b.com"], &[to("echo")]));
    let scene = Scene::start(&objects);
    let mut http1 = Client::http1(scene.at(80)).await;
    for _ in 0..2 {
        // The connection stays usable.
        let answer = call(&mut http1, "/foo.Bar/Baz", &[]).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, "12"));
        assert_eq!(answer.header("content-type"), "application/grpc");
        assert!(answer.header("grpc-message").contains("HTTP/2"));
        assert!(answer.body.is_empty());
    }
    assert_eq!(echo.requests(), 0);
    let mut http2 = Client::http2(scene.at(80)).await;
    assert_eq!(rule(&mut http2, "/foo.Bar/Baz", &[]).await, "all");
    // An HTTPRoute forwards every request.
    let request = http1
        .request(Method::POST, "b.com", "/foo.Bar/Baz")
        .header("content-type", "application/grpc");
    let answer = http1.fetch(request.body(full("x")).expect("valid")).await;
    assert_eq!(answer.received()["received"], 1);
}

#[tokio::test]
async fn matches_services_methods_and_headers() {
    let echo = Origin::echo("echo").await;
    let method = |service: &str, method: &str| match (service, method) {
        (service, "") => json!({"method": {"service": service}}),
        ("", method) => json!({"method": {"method": method}}),
        _ => json!({"method": {"service": service, "method": method}}),
    };
    let pattern = json!({"method": {"type": "RegularExpression", "service": "^re\\..*$", "method": "^(Get|List)$"}});
    let with_header =
        json!({"method": {"service": "foo.Bar"}, "headers": [{"name": "Version", "value": "two"}]});
    let objects = Objects::http().service("echo", &[echo.address]);
    let objects = objects.with(grpc_route(
        "route",
        &[],
        &[
            marked("method", &method("", "Baz")),
            marked("service", &method("foo.Bar", "")),
            marked("header", &with_header),
            marked("both", &method("foo.Bar", "Baz")),
            marked("pattern", &pattern),
        ],
    ));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (path, headers, expected) in [
        ("/foo.Bar/Baz", &[][..], "both"),
        ("/foo.Bar/Baz", &[("version", "two")], "both"),
        ("/foo.Bar/Other", &[], "service"),
        ("/foo.Bar/Other", &[("version", "two")], "header"),
        ("/foo.Bar/Other", &[("version", "three")], "service"),
        ("/other/Baz", &[], "method"),
        ("/re.X/List", &[], "pattern"),
        ("/re.X/Delete", &[], "12"),
        ("/x/re.X/List", &[], "12"),
        ("/foo.Barred/Other", &[], "12"),
        ("/other/baz", &[], "12"),
    ] {
        let found = rule(&mut client, path, headers).await;
        assert_eq!(found, expected, "{path} {headers:?}");
    }
}

#[tokio::test]
async fn shares_no_hostname_with_an_http_route() {
    let echo = Origin::echo("echo").await;
    let mut http = marked("http", &json!({"path": {"value": "/foo.Bar"}}));
    http["backendRefs"][0]["name"] = "h2c".into();
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .with(yaml::service_of(
            "h2c",
            &[echo.address],
            "kubernetes.io/h2c",
        ))
        // The first by name, because they are of the same age.
        .with(route("a", &["a.com"], std::slice::from_ref(&http)))
        .with(grpc_route("b", &["*.com"], &[marked("grpc", &json!({}))]))
        // The one that lost blocks no other.
        .with(route("c", &["b.com"], &[http]));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (path, expected) in [("/foo.Bar/Baz", "http"), ("/other/Call", "12")] {
        assert_eq!(rule(&mut client, path, &[]).await, expected, "{path}");
    }
    for (host, status) in [("a.com", 200), ("b.com", 200), ("c.com", 404)] {
        let answer = client.post(host, "/foo.Bar/Baz", "x").await;
        assert_eq!(answer.status, status, "{host}");
    }
}

#[tokio::test]
async fn grpc_routes_use_http2_and_http_routes_http1_to_one_port() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .with(route("http", &["b.com"], &[to("echo")]))
        .with(grpc_route("grpc", &["a.com"], &[to("echo")]));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for _ in 0..3 {
        let received = call(&mut client, "/foo.Bar/Baz", &[]).await.received();
        assert_eq!(received["version"], "HTTP/2.0");
        assert_eq!(received["headers"]["te"], "trailers");
        let received = client.post("b.com", "/foo.Bar/Baz", "x").await.received();
        assert_eq!(received["version"], "HTTP/1.1");
    }
}

#[tokio::test]
async fn errors_have_a_grpc_status() {
    let objects = Objects::http()
        .service("none", &[])
        .service("dead", &[Origin::dead()])
        .with(grpc_route(
            "grpc",
            &[],
            &[
                marked_to("none", "none"),
                marked_to("dead", "dead"),
                marked_to("missing", "missing"),
                json!({"matches": [{"method": {"service": "empty"}}]}),
                json!({
                    "matches": [{"method": {"service": "filter"}}],
                    "filters": [{"type": "ExtensionRef", "extensionRef": {"group": "x.test", "kind": "X", "name": "x"}}],
                    "backendRefs": [{"name": "dead", "port": 80}],
                }),
            ],
        ));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (path, status) in [
        ("/none/Call", "14"),
        ("/dead/Call", "14"),
        ("/missing/Call", "14"),
        ("/empty/Call", "14"),
        ("/filter/Call", "14"),
        ("/other/Call", "12"),
    ] {
        assert_eq!(rule(&mut client, path, &[]).await, status, "{path}");
    }
    // A request that is not gRPC gets an HTTP status.
    assert_eq!(get(scene.at(80), "a.com", "/none/Call").await.status, 404);
    let headers: Vec<_> = (0..200).map(|index| format!("x-{index}")).collect();
    let headers: Vec<_> = headers.iter().map(|name| (name.as_str(), "x")).collect();
    assert_eq!(rule(&mut client, "/other/Call", &headers).await, "8");
}

fn marked_to(service: &str, backend: &str) -> Value {
    let mut rule = marked(service, &json!({"method": {"service": service}}));
    rule["backendRefs"][0]["name"] = backend.into();
    rule
}

#[tokio::test]
async fn grpc_route_does_not_serve_other_requests() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .with(grpc_route("grpc", &[], &[to("echo")]));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    assert_eq!(client.post("a.com", "/foo.Bar/Baz", "x").await.status, 404);
    assert_eq!(rule(&mut client, "/foo.Bar/Baz", &[]).await, "none");
}
