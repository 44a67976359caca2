//! What clients get instead of a response with an error status: header defaults of RoutePolicies, and their error pages.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::access_policy::{access, gateway, ip_rules};
use crate::client::{Answer, Client};
use crate::credentials::{BCRYPT, basic, users};
use crate::harness::h2::{self as peer, block_on};
use crate::origin::{Origin, empty, full};
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene, prefix, route, to};
use crate::websocket_http2::{connect, open};

/// A rule of the route `route`.
fn of_rule(name: &str) -> Value {
    json!({"kind": "HTTPRoute", "name": "route", "sectionName": name})
}

/// A named rule for a path.
fn named(name: &str) -> Value {
    let mut rule = prefix(&format!("/{name}"), "origin");
    rule["name"] = json!(name);
    rule
}

/// Rules that refuse, by path: 401, 403, 413 and 429 after the first request; `/dead` has no endpoint, and `/open` refuses
/// nothing. Hosts other than `a.com` have no route.
fn refusing(origin: &Origin) -> Objects {
    let rules = ["key", "closed", "small", "few", "open"].map(named);
    let mut dead = named("dead");
    dead["backendRefs"][0]["name"] = json!("dead");
    let rules: Vec<_> = rules.into_iter().chain([dead]).collect();
    Objects::http()
        .service("origin", &[origin.address])
        .service("dead", &[])
        .with(route("route", &["a.com"], &rules))
        .with(users(&[("ann", BCRYPT)]))
        .with(access("key", &of_rule("key"), &basic()))
        .with(access(
            "closed",
            &of_rule("closed"),
            &ip_rules(&["10.0.0.1"], &[]),
        ))
        .with(limits(
            "few",
            &of_rule("few"),
            &json!([per_hour("few", 1)]),
            None,
        ))
}

/// The paths of [`refusing`] with their statuses.
const REFUSED: [(&str, u16); 5] = [
    ("/key", 401),
    ("/closed", 403),
    ("/small", 413),
    ("/few", 429),
    ("/dead", 503),
];

/// Sends a request that is refused. One that is over a limit has one before it.
async fn refused(client: &mut Client, path: &str) -> Answer {
    match path {
        "/few" => {
            client.get("a.com", path).await;
            client.get("a.com", path).await
        }
        "/small" => client.post("a.com", path, "a body").await,
        _ => client.get("a.com", path).await,
    }
}

fn set(value: &str) -> Value {
    let header = |name: &str, value: &str| json!({"name": name, "value": value});
    json!({"set": [header("strict-transport-security", value), header("content-type", "image/png")]})
}

#[tokio::test]
async fn refusals_have_the_response_headers_of_their_rule() {
    let origin = Origin::echo("origin").await;
    let small = json!({"responseHeaders": set("small"), "requestBody": {"maxSize": 4}});
    let objects = refusing(&origin)
        .with(policy(
            "all",
            &gateway(),
            &json!({"responseHeaders": set("all")}),
        ))
        .with(policy("small", &of_rule("small"), &small))
        .with(policy(
            "key",
            &of_rule("key"),
            &json!({"responseHeaders": set("key")}),
        ));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for (path, status) in REFUSED {
            let answer = refused(&mut client, path).await;
            assert_eq!(answer.status, status, "{path}");
            let expected = match path {
                "/small" => "small",
                "/key" => "key",
                _ => "all",
            };
            let added = answer.header("strict-transport-security");
            assert_eq!(added, expected, "{path}");
            assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
            assert!(!answer.header("x-request-id").is_empty());
        }
        let answer = refused(&mut client, "/key").await;
        assert_eq!(
            answer.header("www-authenticate"),
            "Basic realm=\"staff\", charset=\"UTF-8\""
        );
        let answer = refused(&mut client, "/few").await;
        assert!(!answer.header("retry-after").is_empty());
        for path in ["/", "/missing"] {
            let answer = client.get("b.com", path).await;
            assert_eq!(answer.status, 404);
            assert_eq!(answer.header("strict-transport-security"), "all");
        }
        let answer = client.get("a.com", "/open").await;
        assert_eq!(answer.header("strict-transport-security"), "all");
    }
    let without = refusing(&origin).with(policy("small", &of_rule("small"), &small));
    let scene = Scene::start(&without);
    let mut client = Client::http1(scene.at(80)).await;
    for (path, status) in REFUSED {
        let answer = refused(&mut client, path).await;
        let expected = if path == "/small" { "small" } else { "" };
        assert_eq!(answer.status, status);
        assert_eq!(
            answer.header("strict-transport-security"),
            expected,
            "{path}"
        );
    }
}

/// A ConfigMap with pages.
fn pages(values: &Value) -> String {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pages"}, "data": values,
    });
    map.to_string()
}

/// The page of an entry of `errorPages`, in these keys.
fn page(codes: &[u16], source: &str, keys: &[(&str, &str)]) -> Value {
    let keys = keys
        .iter()
        .map(|(key, kind)| json!({"key": key, "mediaType": kind}));
    let keys: Vec<_> = keys.collect();
    json!({"codes": codes, "source": source, "configMapRef": {"name": "pages", "keys": keys}})
}

const HTML: (&str, &str) = ("a.html", "text/html");
const JSON: (&str, &str) = ("a.json", "application/json");

fn both_types() -> String {
    pages(&json!({"a.html": "<p>sorry", "a.json": "{\"sorry\": true}"}))
}

#[tokio::test]
async fn refusals_get_the_page_that_the_client_accepts() {
    let origin = Origin::echo("origin").await;
    let all = page(&[401, 403, 404, 413, 429, 503], "Gateway", &[HTML, JSON]);
    let spec = json!({"errorPages": [all], "requestBody": {"maxSize": 4}});
    let none = json!({"errorPages": [page(&[418], "Gateway", &[HTML])]});
    let objects = refusing(&origin)
        .with(both_types())
        .with(policy("all", &gateway(), &spec))
        .with(policy("closed", &of_rule("closed"), &none));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for (path, status) in REFUSED {
            let answer = refused(&mut client, path).await;
            assert_eq!(answer.status, status, "{path}");
            if path == "/closed" {
                assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
                assert_eq!(answer.header("vary"), "");
                continue;
            }
            assert_eq!(answer.text(), "<p>sorry", "{path}");
            assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
            assert_eq!(answer.header("vary"), "Accept");
            match status {
                401 => assert!(answer.header("www-authenticate").starts_with("Basic ")),
                429 => assert!(!answer.header("retry-after").is_empty()),
                _ => {}
            }
        }
        for (accept, kind, text) in [
            (
                "text/html, */*;q=0.8",
                "text/html; charset=utf-8",
                "<p>sorry",
            ),
            ("application/json", "application/json", "{\"sorry\": true}"),
            (
                "image/png",
                "text/plain; charset=utf-8",
                "no route matches this request",
            ),
        ] {
            let answer = client.get_with("b.com", "/", &[("accept", accept)]).await;
            assert_eq!((answer.status, answer.text()), (404, text));
            assert_eq!(answer.header("content-type"), kind);
            assert_eq!(answer.header("vary"), "Accept");
        }
        let head = client.request(Method::HEAD, "b.com", "/");
        let answer = client.fetch(head.body(empty()).expect("a request")).await;
        assert_eq!((answer.status, answer.text()), (404, ""));
        assert_eq!(answer.header("content-length"), "8");
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(client.get("a.com", "/open").await.name(), "origin");
    }
}

/// A backend whose status is in the path, with headers about its content.
async fn failing() -> Origin {
    let origin = Origin::new(|request: Request<Incoming>| async move {
        let status = request.uri().path().rsplit('/').next();
        let body = match request.method() {
            &Method::HEAD => empty(),
            _ => full("of the backend"),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status.and_then(|it| it.parse().ok()).expect("a status");
        for (name, value) in [
            ("etag", "\"one\""),
            ("content-type", "text/plain"),
            ("content-language", "en"),
            ("x-kept", "yes"),
        ] {
            let value = value.parse().expect("a value");
            response.headers_mut().insert(name, value);
        }
        response
    });
    origin.await
}

#[tokio::test]
async fn pages_replace_responses_of_backends_and_leave_others() {
    let origin = failing().await;
    let spec = json!({"errorPages": [
        page(&[503], "Gateway", &[JSON]),
        page(&[404, 503], "Backend", &[HTML]),
    ]});
    let mut own = named("own");
    own["filters"] = json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {
        "set": [{"name": "content-type", "value": "text/css"}, {"name": "x-added", "value": "1"}],
    }}]);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), named("other"), own])
        .with(both_types())
        .with(policy("pages", &gateway(), &spec))
        .with(policy(
            "other",
            &of_rule("other"),
            &json!({"errorPages": [page(&[500], "Any", &[HTML])]}),
        ));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for path in ["/404", "/503", "/own/404"] {
            let answer = client.get("a.com", path).await;
            assert_eq!(
                (answer.status, answer.text()),
                (
                    path[path.len() - 3..].parse().expect("a status"),
                    "<p>sorry"
                )
            );
            assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
            assert_eq!(answer.header("content-length"), "8");
            assert_eq!(
                (answer.header("etag"), answer.header("content-language")),
                ("", "")
            );
            assert_eq!(answer.header("x-kept"), "yes");
            let added = if path == "/own/404" { "1" } else { "" };
            assert_eq!(answer.header("x-added"), added);
        }
        for path in ["/200", "/410", "/other/404"] {
            let answer = client.get("a.com", path).await;
            assert_eq!(answer.text(), "of the backend", "{path}");
            assert_eq!(answer.header("etag"), "\"one\"");
            assert_eq!(answer.header("vary"), "");
        }
        let answer = client
            .get_with("a.com", "/404", &[("accept", "application/json")])
            .await;
        assert_eq!(answer.text(), "of the backend");
        assert_eq!(answer.header("vary"), "Accept");
        let head = client.request(Method::HEAD, "a.com", "/404");
        let answer = client.fetch(head.body(empty()).expect("a request")).await;
        assert_eq!((answer.status, answer.text()), (404, ""));
        assert_eq!(answer.header("content-length"), "8");
    }
    assert!(
        origin.connections() <= 4,
        "connections are reused: {}",
        origin.connections()
    );
}

#[tokio::test]
async fn page_can_have_the_status_200_and_is_compressed() {
    let origin = failing().await;
    let mut entry = page(&[404], "Backend", &[HTML]);
    entry["keepStatus"] = json!(false);
    let spec = json!({"errorPages": [entry], "compression": {"encodings": ["gzip"], "minSize": 4}});
    let text = "<p>sorry</p>".repeat(100);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(pages(&json!({"a.html": text})))
        .with(policy("pages", &gateway(), &spec));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.get("a.com", "/404").await;
        assert_eq!((answer.status, answer.text()), (200, &*text));
        let answer = client
            .get_with("a.com", "/404", &[("accept-encoding", "gzip")])
            .await;
        assert_eq!(answer.header("content-encoding"), "gzip");
        assert!(answer.body.len() < 100);
    }
}

#[tokio::test]
async fn responses_of_filters_get_a_page_only_without_a_body() {
    let origin = Origin::echo("origin").await;
    let filter = |name: &str, response: Value| {
        let filter = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
            "metadata": {"name": name}, "spec": {"directResponse": response},
        });
        filter.to_string()
    };
    let rule = |name: &str| {
        let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": name});
        let mut rule = named(name);
        rule["filters"] = json!([{"type": "ExtensionRef", "extensionRef": reference}]);
        rule
    };
    let spec = json!({"errorPages": [page(&[410], "Any", &[HTML])]});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[rule("empty"), rule("full")])
        .with(filter("empty", json!({"status": 410})))
        .with(filter("full", json!({"status": 410, "body": "none"})))
        .with(both_types())
        .with(policy("pages", &gateway(), &spec));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for (path, expected) in [("/empty", "<p>sorry"), ("/full", "none")] {
        let answer = client.get("a.com", path).await;
        assert_eq!((answer.status, answer.text()), (410, expected));
    }
}

#[tokio::test]
async fn grpc_calls_have_no_pages() {
    let origin = Origin::echo("origin").await;
    let entry = page(&[401, 403, 404, 503], "Any", &[HTML]);
    let objects = refusing(&origin).with(both_types()).with(policy(
        "all",
        &gateway(),
        &json!({"errorPages": [entry]}),
    ));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (path, status) in [
        ("/key", "16"),
        ("/closed", "7"),
        ("/dead", "14"),
        ("/none", "12"),
    ] {
        let request = client.request(Method::POST, "a.com", path);
        let request = request.header("content-type", "application/grpc");
        let answer = client
            .fetch(request.body(full("x")).expect("a request"))
            .await;
        assert_eq!(
            (answer.status, answer.header("grpc-status")),
            (200, status),
            "{path}"
        );
        assert_eq!(answer.header("content-type"), "application/grpc");
        assert!(answer.body.is_empty());
    }
}

#[test]
fn page_never_opens_a_websocket() {
    block_on(async {
        let origin = Origin::echo("origin").await;
        let mut entry = page(&[403, 404, 502, 503], "Any", &[HTML]);
        entry["keepStatus"] = json!(false);
        let objects = refusing(&origin).with(both_types()).with(policy(
            "all",
            &gateway(),
            &json!({"errorPages": [entry]}),
        ));
        let scene = Scene::start(&objects);
        let (sender, _ended) = peer::connect(scene.at(80)).await;
        for (path, status) in [
            ("/closed", 403),
            ("/none", 404),
            ("/open", 502),
            ("/dead", 503),
        ] {
            let (response, _stream) = open(&sender, connect(path, "websocket")).await;
            assert_eq!(response.status(), status, "{path}");
        }
    });
}

#[tokio::test]
async fn changes_of_pages_are_served_and_missing_ones_left_out() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let origin = Origin::new(move |_: Request<Incoming>| {
        counted.fetch_add(1, Relaxed);
        async { Response::new(full("served")) }
    });
    let origin = origin.await;
    let spec = json!({"errorPages": [page(&[404], "Gateway", &[HTML])]});
    let before = |values: Option<Value>| {
        let objects = Objects::http()
            .service("origin", &[origin.address])
            .with(route("route", &["a.com"], &[to("origin")]))
            .with(policy("all", &gateway(), &spec));
        values
            .map(|values| pages(&values))
            .into_iter()
            .fold(objects, Objects::with)
    };
    let mut scene = Scene::start(&before(Some(json!({"a.html": "one"}))));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("b.com", "/").await.text(), "one");
    for (values, expected) in [
        (Some(json!({"a.html": "two"})), "two"),
        (
            Some(json!({"b.html": "two"})),
            "no route matches this request",
        ),
        (Some(json!({"a.html": "three"})), "three"),
        (None, "no route matches this request"),
    ] {
        scene.replace(&before(values)).await;
        let answer = client.get("b.com", "/").await;
        assert_eq!((answer.status, answer.text()), (404, expected));
        assert_eq!(client.get("a.com", "/").await.text(), "served");
    }
    assert_eq!(requests.load(Relaxed), 4);
}
