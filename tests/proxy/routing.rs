//! Route selection by port, listener, hostname and matches, end to end. The precedence itself is
//! tested in `table`.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, get};
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, http, prefix, route, route_of, to};

/// Header fields of a request.
type Fields<'a> = &'a [(&'a str, &'a str)];

/// Returns a rule that marks its requests with a name.
fn marked(name: &str, condition: &Value) -> Value {
    json!({
        "matches": [condition],
        "filters": [{
            "type": "RequestHeaderModifier",
            "requestHeaderModifier": {"set": [{"name": "x-rule", "value": name}]},
        }],
        "backendRefs": [{"name": "echo", "port": 80}],
    })
}

#[tokio::test]
async fn most_specific_listener_serves_a_host() {
    let exact = Origin::echo("exact").await;
    let wildcard = Origin::echo("wildcard").await;
    let any = Origin::echo("any").await;
    let objects = Objects::gateway(&[
        http("any", 80, ""),
        http("wildcard", 80, "*.example.com"),
        http("narrow", 80, "*.narrow.example.com"),
        http("exact", 80, "a.example.com"),
    ])
    .service("exact", &[exact.address])
    .service("wildcard", &[wildcard.address])
    .service("any", &[any.address])
    .with(route_of("exact", &[prefix("/exact", "exact")]))
    .with(route_of("wildcard", &[to("wildcard")]))
    .with(route_of("any", &[to("any")]));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let rows = [
        ("a.example.com", "/exact", "exact"),
        ("A.Example.COM:8080", "/exact", "exact"),
        ("b.example.com", "/", "wildcard"),
        ("x.b.example.com", "/", "wildcard"),
        ("example.com", "/", "any"),
        ("other.org", "/", "any"),
        ("127.0.0.1", "/", "any"),
        // The most specific listener has no route for these, and others are not tried.
        ("a.example.com", "/other", "404"),
        ("x.narrow.example.com", "/", "404"),
    ];
    for (host, path, name) in rows {
        assert_eq!(client.get(host, path).await.name(), name, "{host}{path}");
    }
}

#[tokio::test]
async fn ports_have_separate_routes() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::gateway(&[
        http("one", 80, ""),
        http("two", 81, ""),
        http("three", 82, "only.example.com"),
    ])
    .service("echo", &[echo.address])
    .with(route_of("one", &[prefix("/one", "echo")]))
    .with(route_of("two", &[prefix("/two", "echo")]))
    .with(route_of("three", &[to("echo")]));
    let scene = Scene::start(&objects);
    let rows = [
        (80, "a.com", "/one", "echo"),
        (80, "a.com", "/two", "404"),
        (81, "a.com", "/one", "404"),
        (81, "a.com", "/two", "echo"),
        (82, "only.example.com", "/", "echo"),
        (82, "a.com", "/", "404"),
    ];
    for (port, host, path, name) in rows {
        let answer = get(scene.at(port), host, path).await;
        assert_eq!(answer.name(), name, "{port} {host}{path}");
    }
}

#[tokio::test]
async fn host_without_matching_rule_falls_back_to_wildcards() {
    let echo = Origin::echo("echo").await;
    let rules = |name: &str, path: &str| {
        [marked(
            name,
            &json!({"path": {"type": "PathPrefix", "value": path}}),
        )]
    };
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .with(route("a", &["foo.example.com"], &rules("exact", "/a")))
        .with(route("b", &["*.example.com"], &rules("wildcard", "/b")))
        .with(route("c", &["*.com"], &rules("wide", "/c")))
        .with(route("d", &[], &rules("any", "/")));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let rows = [
        ("foo.example.com", "/a", "exact"),
        ("foo.example.com", "/b", "wildcard"),
        ("foo.example.com", "/c", "wide"),
        ("foo.example.com", "/d", "any"),
        ("bar.example.com", "/a", "any"),
        ("bar.example.com", "/b", "wildcard"),
        ("example.com", "/b", "any"),
        ("example.com", "/c", "wide"),
    ];
    for (host, path, name) in rows {
        let received = client.get(host, path).await.received();
        assert_eq!(received["headers"]["x-rule"], name, "{host}{path}");
    }
}

/// Rules of two routes in arbitrary order.
fn precedence() -> Objects {
    let path = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
    let with = |mut condition: Value, field: &str, value: Value| {
        condition[field] = value;
        condition
    };
    let header = |name: &str| json!({"name": name, "value": "1"});
    let root = || path("PathPrefix", "/");
    Objects::http()
        .route(
            "one",
            &[
                marked("root", &root()),
                marked("query", &with(root(), "queryParams", json!([header("q")]))),
                marked("prefix", &path("PathPrefix", "/foo")),
                marked("header", &with(root(), "headers", json!([header("h")]))),
                marked(
                    "headers",
                    &with(root(), "headers", json!([header("h"), header("i")])),
                ),
                marked("method", &with(root(), "method", json!("PUT"))),
            ],
        )
        .route(
            "two",
            &[
                marked("later root", &root()),
                marked("regex", &path("RegularExpression", "/foo/[0-9]+")),
                marked("longer prefix", &path("PathPrefix", "/foo/bar")),
                marked("exact", &path("Exact", "/foo/1")),
            ],
        )
}

#[tokio::test]
async fn match_precedence_follows_the_api() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::start(&precedence().service("echo", &[echo.address]));
    let mut client = Client::http1(scene.at(80)).await;
    let rows: [(&str, &str, Fields<'_>, &str); 13] = [
        ("GET", "/", &[], "root"),
        ("GET", "/?q=1", &[], "query"),
        ("GET", "/?q=1", &[("h", "1")], "header"),
        ("GET", "/", &[("h", "1"), ("i", "1")], "headers"),
        ("PUT", "/?q=1", &[("h", "1"), ("i", "1")], "method"),
        ("PUT", "/foo?q=1", &[("h", "1"), ("i", "1")], "prefix"),
        ("GET", "/foo/", &[], "prefix"),
        ("GET", "/foobar", &[], "root"),
        ("GET", "/foo/bar/x", &[], "longer prefix"),
        ("GET", "/foo/1", &[], "exact"),
        ("GET", "/foo/1/", &[], "prefix"),
        ("GET", "/foo/22", &[], "regex"),
        ("GET", "/x/foo/22", &[], "root"),
    ];
    for (method, path, fields, name) in rows {
        let method: Method = method.parse().expect("a method");
        let mut request = client.request(method.clone(), "a.com", path);
        for (field, value) in fields {
            request = request.header(*field, *value);
        }
        let answer = client
            .fetch(request.body(empty()).expect("a request"))
            .await;
        let received = answer.received();
        assert_eq!(
            received["headers"]["x-rule"], name,
            "{method} {path} {fields:?}"
        );
    }
}

#[tokio::test]
async fn matches_headers_and_query() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("echo", &[echo.address]).route(
        "route",
        &[
            marked("header", &json!({"headers": [{"name": "X-Kind", "value": "one"}]})),
            marked(
                "header pattern",
                &json!({"headers": [{"type": "RegularExpression", "name": "x-kind", "value": "t(wo|hree)"}]}),
            ),
            marked("query", &json!({"queryParams": [{"name": "kind", "value": "a b"}]})),
            marked(
                "query pattern",
                &json!({"queryParams": [{"type": "RegularExpression", "name": "kind", "value": "[0-9]+"}]}),
            ),
        ],
    );
    let scene = Scene::start(&objects);
    // Over HTTP/2, with lower-case names and split header fields.
    let mut client = Client::http2(scene.at(80)).await;
    let rows: [(&str, Fields<'_>, &str); 11] = [
        ("/", &[("x-kind", "one")], "header"),
        ("/", &[("x-kind", "two")], "header pattern"),
        ("/", &[("x-kind", "three")], "header pattern"),
        ("/", &[("x-kind", "twox")], "404"),
        ("/", &[("x-kind", "One")], "404"),
        ("/?kind=a%20b", &[], "query"),
        ("/?other=1&kind=a+b", &[], "query"),
        ("/?kind=12", &[], "query pattern"),
        ("/?kind=12x", &[], "404"),
        ("/?Kind=12", &[], "404"),
        // The first of equal names counts.
        ("/?kind=x&kind=12", &[], "404"),
    ];
    for (path, fields, name) in rows {
        let answer = client.get_with("a.com", path, fields).await;
        let rule = match answer.status {
            200 => answer.received()["headers"]["x-rule"]
                .as_str()
                .unwrap()
                .to_owned(),
            status => status.to_string(),
        };
        assert_eq!(rule, name, "{path} {fields:?}");
    }
}
