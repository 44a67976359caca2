//! Effects of filters on requests and responses, end to end. The tables are those of the API
//! (HTTPHeaderFilter, HTTPRequestRedirectFilter, HTTPPathModifier).

use http::Response;
use serde_json::{Value, json};

use crate::client::{Client, get};
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml::service_of;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, http, https, prefix, route, secret};

fn with(mut rule: Value, filters: Value) -> Value {
    rule["filters"] = filters;
    rule
}

fn modify(side: &str, changes: &Value) -> Value {
    let mut filter = json!({"type": format!("{side}HeaderModifier")});
    filter[format!("{}HeaderModifier", side.to_lowercase())] = changes.clone();
    filter
}

#[tokio::test]
async fn applies_request_header_filters_of_rule_then_backend() {
    let echo = Origin::echo("echo").await;
    let rule = json!({
        "set": [{"name": "X-Set", "value": "rule"}, {"name": "X-Both", "value": "rule"}],
        "add": [{"name": "X-Add", "value": "rule"}],
        "remove": ["x-remove"],
    });
    let backend = json!({
        "set": [{"name": "X-Both", "value": "backend"}],
        "add": [{"name": "X-Add", "value": "backend"}, {"name": "X-New", "value": "backend"}],
        "remove": ["x-remove-too"],
    });
    let mut rules = [with(prefix("/", "echo"), json!([modify("Request", &rule)]))];
    rules[0]["backendRefs"][0]["filters"] = json!([modify("Request", &backend)]);
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &rules);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let fields = [
        ("x-set", "client"),
        ("x-add", "client"),
        ("x-remove", "client"),
        ("x-remove-too", "client"),
        ("x-kept", "client"),
    ];
    let received = client.get_with("a.com", "/", &fields).await.received();
    let headers = &received["headers"];
    assert_eq!(headers["x-set"], "rule");
    assert_eq!(headers["x-both"], "backend");
    assert_eq!(headers["x-add"], "client,rule,backend");
    assert_eq!(headers["x-new"], "backend");
    assert_eq!(headers["x-kept"], "client");
    assert_eq!(headers["x-remove"], Value::Null);
    assert_eq!(headers["x-remove-too"], Value::Null);
}

#[tokio::test]
async fn request_header_filter_sets_the_forwarded_host() {
    let echo = Origin::echo("echo").await;
    let host = json!({"set": [{"name": "host", "value": "inner.example:8080"}]});
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"path": {
        "type": "ReplaceFullPath", "replaceFullPath": "/new",
    }}});
    let rules = [
        with(prefix("/set", "echo"), json!([modify("Request", &host)])),
        json!({
            "matches": [{"path": {"value": "/redirect"}}],
            "filters": [modify("Request", &host), redirect],
        }),
    ];
    let inner = with(prefix("/set", "echo"), json!([]));
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .with(service_of("h2c", &[echo.address], "kubernetes.io/h2c"))
        .with(route("outer", &["a.com"], &rules))
        .with(route("inner", &["inner.example"], &[inner]))
        .with(route(
            "http2",
            &["b.com"],
            &[with(prefix("/", "h2c"), json!([modify("Request", &host)]))],
        ));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let received = client.get("a.com", "/set").await.received();
        assert_eq!(received["headers"]["host"], "inner.example:8080");
        assert_eq!(received["headers"]["x-forwarded-host"], "a.com");
        let received = client.get("b.com", "/").await.received();
        assert_eq!(received["authority"], "inner.example:8080");
        // A redirect keeps the host that the client asked for.
        let answer = client.get("a.com", "/redirect").await;
        assert_eq!(answer.header("location"), "http://a.com/new");
    }
}

#[tokio::test]
async fn applies_response_header_filters_of_backend_then_rule() {
    let origin = Origin::new(|_| async {
        Response::builder()
            .header("x-set", "origin")
            .header("x-add", "origin")
            .header("x-remove", "origin")
            .header("x-remove", "again")
            .header("set-cookie", "a=1")
            .body(full("body"))
            .expect("a response")
    })
    .await;
    let rule = json!({
        "set": [{"name": "X-Set", "value": "rule"}],
        "add": [{"name": "X-Add", "value": "rule"}, {"name": "Set-Cookie", "value": "b=2"}],
        "remove": ["x-remove"],
    });
    let backend = json!({
        "set": [{"name": "X-Set", "value": "backend"}, {"name": "X-Backend", "value": "yes"}],
        "add": [{"name": "X-Add", "value": "backend"}],
    });
    let mut rules = [with(
        prefix("/", "origin"),
        json!([modify("Response", &rule)]),
    )];
    rules[0]["backendRefs"][0]["filters"] = json!([modify("Response", &backend)]);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &rules);
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.header("x-set"), "rule");
        assert_eq!(answer.header("x-add"), "origin,backend,rule");
        assert_eq!(answer.header("x-backend"), "yes");
        assert!(!answer.headers.contains_key("x-remove"));
        let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
        assert_eq!(answer.text(), "body");
    }
}

fn redirect(path: &str, filter: &Value) -> Value {
    let mut rule = prefix(path, "");
    rule["backendRefs"] = json!([]);
    with(
        rule,
        json!([{"type": "RequestRedirect", "requestRedirect": filter}]),
    )
}

#[tokio::test]
async fn redirects_have_the_specified_location() {
    let full_path = json!({"type": "ReplaceFullPath", "replaceFullPath": "/full"});
    let prefix_path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"});
    let rules = [
        redirect("/scheme", &json!({"scheme": "https"})),
        redirect("/same", &json!({"hostname": "other.org"})),
        redirect("/port", &json!({"port": 8443, "scheme": "https"})),
        redirect("/explicit-80", &json!({"port": 80})),
        redirect("/explicit-443", &json!({"port": 443, "scheme": "https"})),
        redirect("/http", &json!({"scheme": "http"})),
        redirect("/full", &json!({"scheme": "https", "path": full_path})),
        redirect("/prefix", &json!({"scheme": "https", "path": prefix_path})),
        redirect("/301", &json!({"scheme": "https", "statusCode": 301})),
        redirect("/303", &json!({"scheme": "https", "statusCode": 303})),
        redirect("/307", &json!({"scheme": "https", "statusCode": 307})),
        redirect("/308", &json!({"scheme": "https", "statusCode": 308})),
    ];
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[
        http("plain", 80, ""),
        http("odd", 8080, ""),
        https("tls", 443, "", &["certificate"]),
    ])
    .with(secret("certificate", &certificate))
    .route("route", &rules);
    let scene = Scene::start(&objects);
    let rows = [
        (8080, "/scheme/x?q=1", 302, "https://a.com/scheme/x?q=1"),
        (8080, "/same", 302, "http://other.org:8080/same"),
        (8080, "/port", 302, "https://a.com:8443/port"),
        (8080, "/explicit-80", 302, "http://a.com/explicit-80"),
        (8080, "/explicit-443", 302, "https://a.com/explicit-443"),
        (80, "/same", 302, "http://other.org/same"),
        (443, "/same", 302, "https://other.org/same"),
        (443, "/http", 302, "http://a.com/http"),
        (443, "/explicit-80", 302, "https://a.com:80/explicit-80"),
        (80, "/full/x/y?q=1", 302, "https://a.com/full?q=1"),
        (80, "/prefix/x/y?q=1", 302, "https://a.com/new/x/y?q=1"),
        (80, "/301", 301, "https://a.com/301"),
        (80, "/303", 303, "https://a.com/303"),
        (80, "/307", 307, "https://a.com/307"),
        (80, "/308", 308, "https://a.com/308"),
    ];
    for (port, path, status, location) in rows {
        let address = scene.at(port);
        let mut client = match port {
            443 => Client::tls(address, "a.com", &tls::client(&["http/1.1"])).await,
            _ => Client::http1(address).await,
        };
        // The port of the Host header is not used in the new location.
        let answer = client.get("a.com:1234", path).await;
        assert_eq!(
            (answer.status, answer.header("location")),
            (status, location),
            "{port} {path}"
        );
        assert!(answer.body.is_empty());
    }
}

#[tokio::test]
async fn replaces_prefix_match() {
    let rows = [
        ("/foo/bar?q=1", "/foo", "/xyz", "/xyz/bar?q=1"),
        ("/foo/b%2Fr", "/foo/", "/xyz/", "/xyz/b%2Fr"),
        ("/foo/", "/foo", "", "/"),
        ("/foo?q=%20", "/foo", "/", "/?q=%20"),
    ];
    let echo = Origin::echo("echo").await;
    let mut objects = Objects::http().service("echo", &[echo.address]);
    for (index, (_, from, to, _)) in rows.iter().enumerate() {
        let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": to});
        let filters = json!([{"type": "URLRewrite", "urlRewrite": {"path": path}}]);
        let rules = [with(prefix(from, "echo"), filters)];
        let (name, host) = (format!("row-{index}"), format!("row-{index}.com"));
        objects = objects.with(route(&name, &[&host], &rules));
    }
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for (index, (path, from, to, result)) in rows.into_iter().enumerate() {
        let received = client
            .get(&format!("row-{index}.com"), path)
            .await
            .received();
        assert_eq!(received["path"], result, "{path}: {from} -> {to}");
    }
}

#[tokio::test]
async fn rewrites_full_path_and_host() {
    let echo = Origin::echo("echo").await;
    let full_path = json!({"type": "ReplaceFullPath", "replaceFullPath": "/all"});
    let rewrite = |filter: Value| json!([{"type": "URLRewrite", "urlRewrite": filter}]);
    let mut of_backend = prefix("/backend", "echo");
    of_backend["backendRefs"][0]["filters"] = rewrite(json!({"hostname": "inner.org"}));
    let rules = [
        with(
            prefix("/full", "echo"),
            rewrite(json!({"path": full_path, "hostname": "other.org"})),
        ),
        of_backend,
        prefix("/plain", "echo"),
    ];
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &rules);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let received = client.get("a.com:81", "/full/x?q=1").await.received();
    assert_eq!(
        (&received["path"], &received["headers"]["host"]),
        (&json!("/all?q=1"), &json!("other.org"))
    );
    assert_eq!(received["headers"]["x-forwarded-host"], "a.com:81");
    let received = client.get("a.com:81", "/backend").await.received();
    assert_eq!(received["headers"]["host"], "inner.org");
    // Otherwise the host is forwarded unchanged, including the port.
    let received = client.get("a.com:81", "/plain").await.received();
    assert_eq!(received["headers"]["host"], "a.com:81");
}

#[tokio::test]
async fn unsupported_filter_is_never_skipped() {
    let echo = Origin::echo("echo").await;
    let extension = json!([{
        "type": "ExtensionRef",
        "extensionRef": {"group": "example.com", "kind": "Filter", "name": "unknown"},
    }]);
    let mut of_backend = prefix("/backend", "echo");
    of_backend["backendRefs"][0]["filters"] = extension.clone();
    let rules = [
        with(prefix("/rule", "echo"), extension),
        of_backend,
        prefix("/fine", "echo"),
    ];
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &rules);
    let scene = Scene::start(&objects);
    for (path, status) in [("/rule", 500), ("/backend", 500), ("/fine", 200)] {
        assert_eq!(
            get(scene.at(80), "a.com", path).await.status,
            status,
            "{path}"
        );
    }
    assert_eq!(echo.requests(), 1);
}

#[tokio::test]
async fn retry_reruns_backend_filters() {
    let echo = Origin::echo("echo").await;
    let add = |value: &str| json!({"add": [{"name": "X-Add", "value": value}]});
    let names: Vec<String> = (0..20).map(|index| format!("service-{index}")).collect();
    let mut objects = Objects::http();
    let mut rules = Vec::new();
    for name in &names {
        // Every second first attempt goes to the endpoint that refuses connections.
        objects = objects.service(name, &[echo.address, Origin::dead()]);
        let filters = json!([
            modify("Request", &add("rule")),
            modify("Response", &add("rule"))
        ]);
        let mut rule = with(prefix(&format!("/{name}"), name), filters);
        rule["backendRefs"][0]["filters"] = json!([
            modify("Request", &add("backend")),
            modify("Response", &add("backend")),
        ]);
        rules.push(rule);
    }
    for (number, rules) in rules.chunks(10).enumerate() {
        objects = objects.route(&format!("route-{number}"), rules);
    }
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for name in &names {
        let response = client.get("a.com", &format!("/{name}")).await;
        assert_eq!(response.headers["x-add"], "backend,rule");
        let received = response.received();
        let headers = &received["headers"];
        assert_eq!(headers["x-add"], "rule,backend");
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert_eq!(headers["x-forwarded-host"], "a.com");
    }
}

#[tokio::test]
async fn preceding_response_filters_apply_to_a_redirect() {
    let added = modify(
        "Response",
        &json!({"add": [{"name": "X-Add", "value": "1"}]}),
    );
    let redirect = json!({
        "type": "RequestRedirect",
        "requestRedirect": {"hostname": "b.com"},
    });
    let rule = |path: &str, filters: Value| {
        json!({
            "matches": [{"path": {"type": "PathPrefix", "value": path}}],
            "filters": filters,
        })
    };
    let rules = [
        rule("/before", json!([added.clone(), redirect.clone()])),
        rule("/behind", json!([redirect, added])),
    ];
    let scene = Scene::start(&Objects::http().route("route", &rules));
    let mut client = Client::http1(scene.at(80)).await;
    for (path, passes) in [("/before", true), ("/behind", false)] {
        let response = client.get("a.com", path).await;
        assert_eq!(response.status, 302);
        assert_eq!(response.headers.contains_key("x-add"), passes, "{path}");
    }
}
