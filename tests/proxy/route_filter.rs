//! RouteFilters: rewrites of paths by regular expressions, and responses without a backend.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::has_problems;
use crate::client::Client;
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, prefix};

/// A RouteFilter.
pub(crate) fn filter(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
        "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

/// A rule with this filter.
pub(crate) fn rule(path: &str, name: &str) -> Value {
    let mut rule = prefix(path, "origin");
    let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": name});
    rule["filters"] = json!([{"type": "ExtensionRef", "extensionRef": reference}]);
    rule
}

pub(crate) fn rewrite(pattern: &str, replacement: &str) -> Value {
    json!({"regexRewrite": {"pattern": pattern, "replacement": replacement}})
}

fn objects(origin: &Origin, rules: &[Value], filters: &[(&str, Value)]) -> Objects {
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", rules);
    let filters = filters.iter().map(|(name, spec)| filter(name, spec));
    filters.fold(objects, Objects::with)
}

#[tokio::test]
async fn paths_are_rewritten_and_queries_kept() {
    let origin = Origin::echo("origin").await;
    let rules = [
        rule("/api", "api"),
        rule("/user", "user"),
        rule("/bad", "bad"),
    ];
    let filters = [
        ("api", rewrite("^/api(/|$)(.*)", "/$2")),
        ("user", rewrite("^/user/([^/]+)/(.+)$", "/$2/of/$1")),
        ("bad", rewrite("^/bad", "bad")),
    ];
    let scene = Scene::start(&objects(&origin, &rules, &filters));
    for mut client in Client::both(scene.at(80)).await {
        for (path, expected) in [
            ("/api/a/b?c=/api/d", "/a/b?c=/api/d"),
            ("/api", "/"),
            ("/user/7/orders", "/orders/of/7"),
            ("/user/7", "/user/7"),
            ("/user/a%2Fb/x", "/x/of/a%2Fb"),
        ] {
            let answer = client.get("a.com", path).await;
            assert_eq!(answer.received()["path"], expected, "{path}");
        }
        assert_eq!(client.get("a.com", "/bad").await.status, 500);
    }
}

#[tokio::test]
async fn responses_ask_no_backend() {
    let origin = Origin::echo("origin").await;
    let rules = [rule("/closed", "closed"), rule("/none", "none")];
    let headers = json!([{"name": "Retry-After", "value": "60"}]);
    let closed = json!({"status": 503, "body": "back soon", "headers": headers});
    let filters = [
        ("closed", json!({"directResponse": closed})),
        ("none", json!({"directResponse": {"status": 204}})),
    ];
    let scene = Scene::start(&objects(&origin, &rules, &filters));
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.post("a.com", "/closed", "a body").await;
        assert_eq!((answer.status, answer.text()), (503, "back soon"));
        assert_eq!(answer.header("retry-after"), "60");
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
        let head = client.request(Method::HEAD, "a.com", "/closed");
        let answer = client.fetch(head.body(empty()).expect("a request")).await;
        assert_eq!((answer.status, answer.text()), (503, ""));
        let answer = client.get("a.com", "/none").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT.as_u16());
    }
    assert_eq!(origin.requests(), 0);
}

/// A maintenance page is what its author wants.
#[tokio::test]
async fn status_of_a_response_is_no_problem() {
    let origin = Origin::echo("origin").await;
    let down = [("down", json!({"directResponse": {"status": 503}}))];
    let scene = Scene::start(&objects(&origin, &[rule("/", "down")], &down));
    let mut client = Client::http1(scene.at(80)).await;
    // On one connection, a request is counted before the next one gets its response.
    for _ in 0..3 {
        assert_eq!(client.get("a.com", "/").await.status, 503);
    }
    let none: [&str; 0] = [];
    has_problems(&scene, &none).await;
}

#[tokio::test]
async fn body_of_a_config_map_is_served_and_never_missing() {
    let origin = Origin::echo("origin").await;
    let map = json!({"name": "texts", "key": "closed.html"});
    let headers = json!([{"name": "Content-Type", "value": "text/html"}]);
    let closed = json!({"status": 503, "configMapRef": map, "headers": headers});
    let plain = json!({"status": 200, "configMapRef": map});
    let filters = [
        ("closed", json!({"directResponse": closed})),
        ("plain", json!({"directResponse": plain})),
    ];
    let rules = [
        rule("/closed", "closed"),
        rule("/plain", "plain"),
        prefix("/other", "origin"),
    ];
    let with = |data: Option<Value>| {
        let map = data.map(|data| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}, "data": data})
        });
        let map = map.into_iter().map(|map| map.to_string());
        map.fold(objects(&origin, &rules, &filters), Objects::with)
    };
    let mut scene = Scene::start(&with(Some(json!({"closed.html": "one"}))));
    let mut client = Client::http2(scene.at(80)).await;
    let answer = client.get("a.com", "/closed").await;
    assert_eq!((answer.status, answer.text()), (503, "one"));
    assert_eq!(answer.header("content-type"), "text/html");
    let answer = client.get("a.com", "/plain").await;
    assert_eq!((answer.status, answer.text()), (200, "one"));
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    for (data, expected) in [
        (Some(json!({"closed.html": "two"})), (503, "two")),
        (None, (500, "the route cannot be served as configured")),
        (Some(json!({"closed.html": "three"})), (503, "three")),
        (
            Some(json!({"other": "three"})),
            (500, "the route cannot be served as configured"),
        ),
    ] {
        scene.replace(&with(data)).await;
        let answer = client.get("a.com", "/closed").await;
        assert_eq!((answer.status, answer.text()), expected);
        assert_eq!(client.get("a.com", "/other").await.name(), "origin");
    }
}

#[tokio::test]
async fn changes_of_a_filter_are_served_and_a_missing_one_is_never_skipped() {
    let origin = Origin::echo("origin").await;
    let rules = [rule("/", "one")];
    let respond = |status: u16| [("one", json!({"directResponse": {"status": status}}))];
    let mut scene = Scene::start(&objects(&origin, &rules, &respond(404)));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 404);
    scene
        .replace(&objects(&origin, &rules, &respond(410)))
        .await;
    assert_eq!(client.get("a.com", "/").await.status, 410);
    scene.replace(&objects(&origin, &rules, &[])).await;
    assert_eq!(client.get("a.com", "/").await.status, 500);
    assert_eq!(origin.requests(), 0);
}
