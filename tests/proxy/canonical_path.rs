//! Every decision is made on the canonical path, and backends get the path that the client sent, unless a filter rewrites it.

use http::{Method, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::access_policy::{access, before, gateway};
use crate::client::{Client, write_text};
use crate::origin::{Origin, empty, full};
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_filter::{filter, rewrite, rule};
use crate::scene::{Objects, Scene, prefix, to};

/// What is `/admin/users` for a backend.
const SPELLINGS: [&str; 7] = [
    "/admin/users",
    "/%61dmin/users",
    "/adm%69n/users",
    "/%61%64%6D%69%6e/%75sers",
    "//admin/users",
    "/admin//users",
    "/%61dmin///user%73",
];

/// Returns a rule `admin` for these matches of paths, beside one for everything else.
fn admin_by(origin: &Origin, path: &Value) -> Objects {
    let mut admin = to("admin");
    admin["matches"] = json!([{"path": path}]);
    Objects::http()
        .service("admin", &[origin.address])
        .service("open", &[Origin::dead()])
        .route("route", &[to("open"), admin])
}

#[tokio::test]
async fn protected_path_is_protected_in_every_spelling() {
    let origin = Origin::echo("origin").await;
    let rules =
        json!([{"name": "no", "action": "Deny", "match": {"paths": [{"value": "/admin"}]}}]);
    let denied = json!({"authorization": {"rules": rules, "default": "Allow"}});
    let by_rule = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let nobody = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    for (protection, status) in [
        (access("policy", &gateway(), &denied), 403),
        (access("policy", &by_rule, &nobody), 403),
    ] {
        let scene = Scene::start(&before(&origin, &[protection]));
        for mut client in Client::both(scene.at(80)).await {
            for path in SPELLINGS {
                assert_eq!(client.get("a.com", path).await.status, status, "{path}");
            }
        }
    }
    let mut limit = per_hour("one", 1);
    limit["match"] = json!({"path": {"value": "/admin"}});
    let limit = limits("limit", &gateway(), &json!([limit]), None);
    for first in SPELLINGS {
        let scene = Scene::start(&before(&origin, std::slice::from_ref(&limit)));
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", first).await.status, 200, "{first}");
        for path in SPELLINGS {
            assert_eq!(
                client.get("a.com", path).await.status,
                429,
                "{first} {path}"
            );
        }
    }
}

#[tokio::test]
async fn routes_match_every_spelling_and_backends_get_the_one_of_the_client() {
    let origin = Origin::echo("admin").await;
    for path in [
        json!({"type": "PathPrefix", "value": "/admin"}),
        json!({"type": "PathPrefix", "value": "/%61dmin/"}),
        json!({"type": "Exact", "value": "/admin/users"}),
        json!({"type": "Exact", "value": "/adm%69n/%75sers"}),
        json!({"type": "RegularExpression", "value": "/ad[m]in/u.*"}),
    ] {
        let scene = Scene::start(&admin_by(&origin, &path));
        for mut client in Client::both(scene.at(80)).await {
            for spelling in SPELLINGS {
                let target = format!("{spelling}?a=%61//b&c=%2f..");
                let answer = client.get("a.com", &target).await;
                assert_eq!(answer.status, 200, "{path} {spelling}");
                assert_eq!(answer.received()["path"], target, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn escaped_reserved_characters_are_other_characters() {
    let origin = Origin::echo("admin").await;
    let scene = Scene::start(&admin_by(&origin, &json!({"value": "/a/b"})));
    for mut client in Client::both(scene.at(80)).await {
        for path in [
            "/a%2fb",
            "/a%2Fb",
            "/a%5Cb",
            "/a;v=1/b",
            "/a%3b/b",
            "/a/%62%2f",
        ] {
            assert_eq!(client.get("a.com", path).await.status, 503, "{path}");
        }
    }
}

#[tokio::test]
async fn object_keys_and_signed_paths_arrive_as_they_are() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin, &[]));
    for mut client in Client::both(scene.at(80)).await {
        for path in [
            "/bucket//reports/2026.csv?X-Amz-Signature=00ff",
            "/unsafe/300x200/https://img.example/a.jpg",
            "/%7Euser/caf%c3%a9/%41%2f%3b;a=b//",
            "//",
            "/a?",
        ] {
            let answer = client.get("a.com", path).await;
            assert_eq!(answer.received()["path"], path);
        }
    }
}

/// Servers that resolve a path against a URL take what follows several slashes for a host. They find nothing behind it that
/// is protected.
#[tokio::test]
async fn several_slashes_at_the_beginning_hide_no_path() {
    let origin = Origin::echo("origin").await;
    let rules =
        json!([{"name": "no", "action": "Deny", "match": {"paths": [{"value": "/admin"}]}}]);
    let denied = json!({"authorization": {"rules": rules, "default": "Allow"}});
    let by_rule = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let nobody = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    let unexposed = Objects::http().service("origin", &[origin.address]);
    for objects in [
        before(&origin, &[access("policy", &gateway(), &denied)]),
        before(&origin, &[access("policy", &by_rule, &nobody)]),
        unexposed.route(
            "route",
            &[prefix("/x", "origin"), prefix("/%5Cx", "origin")],
        ),
    ] {
        let scene = Scene::start(&objects);
        for mut client in Client::both(scene.at(80)).await {
            for (path, expected) in [
                ("//x/admin?a=%61//", "/x/admin?a=%61//"),
                ("///x//%61dmin", "/x/admin"),
                ("/\\x/admin", "/%5Cx/admin"),
                ("/x//admin", "/x//admin"),
            ] {
                let answer = client.get("a.com", path).await;
                assert_eq!(answer.received()["path"], expected, "{path}");
            }
        }
    }
    // Where all paths are protected alike, a key of an object may begin with a slash.
    let scene = Scene::start(&before(&origin, &[]));
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.get("a.com", "//x/admin").await;
        assert_eq!(answer.received()["path"], "//x/admin");
    }
}

/// A rule that replaces this prefix of paths.
fn replacing(path: &str, filter: &str, replacement: &str) -> Value {
    let mut rule = prefix(path, "origin");
    let (kind, field) = match filter {
        "URLRewrite" => ("URLRewrite", "urlRewrite"),
        other => (other, "requestRedirect"),
    };
    let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": replacement});
    rule["filters"] = json!([{"type": kind, field: {"path": path}}]);
    if kind == "RequestRedirect" {
        rule["backendRefs"] = json!([]);
    }
    rule
}

#[tokio::test]
async fn rewrites_and_redirects_change_the_canonical_path() {
    let origin = Origin::echo("origin").await;
    let rules = [
        replacing("/admin", "URLRewrite", "/x"),
        replacing("/old", "RequestRedirect", "/new"),
        rule("/api", "strip"),
    ];
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &rules)
        .with(filter("strip", &rewrite("^/api(/.*)$", "$1")));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for (path, expected) in [
            ("/%61dmin/%62?c=%61", "/x/b?c=%61"),
            ("//admin//b", "/x/b"),
            ("/%61dmin", "/x"),
            ("/admin/a%2fb", "/x/a%2Fb"),
            ("/%61pi/%7e//x", "/~/x"),
            // The expression does not match: nothing is rewritten.
            ("/%61pi", "/%61pi"),
        ] {
            let answer = client.get("a.com", path).await;
            assert_eq!(answer.received()["path"], expected, "{path}");
        }
        let answer = client.get("a.com", "/%6fld//%61?b=//").await;
        let location = answer.header("location");
        assert!(location.ends_with("/new/a?b=//"), "{location}");
    }
}

#[tokio::test]
async fn rewritten_path_does_not_escape() {
    let origin = Origin::echo("origin").await;
    let rules = [
        ("strip", "^/api(.*)$", "/$1"),
        ("dash", "-", ""),
        ("v", "^/v1", ""),
    ];
    let matched = |path: &str, name: &str| {
        let mut rule = rule("/", name);
        rule["matches"] = json!([{"path": {"type": "RegularExpression", "value": path}}]);
        rule
    };
    let routed = [
        matched("/api.*", "strip"),
        matched("/d.*", "dash"),
        matched("/v1.*", "v"),
    ];
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &routed);
    let objects = rules
        .iter()
        .fold(objects, |objects, (name, pattern, replacement)| {
            objects.with(filter(name, &rewrite(pattern, replacement)))
        });
    let scene = Scene::start(&objects);
    for path in [
        "/api../admin/secret",
        "/api.%2e/admin",
        "/api%2e%2e/admin",
        "/api./admin",
        "/api..;/admin",
        "/api..%2fadmin",
        "/d/.-./admin",
        "/d/%2e-%2e/x",
        "/v1/x/.-./y",
        "/d/..-/x",
    ] {
        for mut client in Client::both(scene.at(80)).await {
            let answer = client.get("a.com", path).await;
            let is_kept = path.starts_with("/v1");
            assert_eq!(answer.status, if is_kept { 200 } else { 400 }, "{path}");
        }
    }
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.com", "/api/x").await;
    assert_eq!(answer.received()["path"], "/x");
}

#[tokio::test]
async fn authorization_servers_decide_by_the_canonical_path() {
    let origin = Origin::echo("origin").await;
    let (sender, mut asked) = mpsc::unbounded_channel();
    let server = Origin::new(move |request: Request<Incoming>| {
        let uri = request.headers().get("x-forwarded-uri").cloned();
        let _ = sender.send((request.uri().to_string(), uri));
        async { Response::new(full("")) }
    })
    .await;
    for (http, path) in [
        (json!({"path": "/check"}), "/check/admin/x?b=%61//"),
        (json!({"path": "/check", "pathMode": "Exact"}), "/check"),
    ] {
        let backend = json!({"name": "auth", "port": 80});
        let external = json!({"protocol": "HTTP", "backendRef": backend, "http": http});
        let policy = access("policy", &gateway(), &json!({"external": external}));
        let objects = before(&origin, &[policy]).service("auth", &[server.address]);
        let scene = Scene::start(&objects);
        for mut client in Client::both(scene.at(80)).await {
            let answer = client.get("a.com", "/%61dmin//x?b=%61//").await;
            assert_eq!(answer.received()["path"], "/%61dmin//x?b=%61//");
            let (seen, uri) = asked.recv().await.expect("a request");
            assert_eq!(seen, path);
            let expected = (path == "/check").then_some("/admin/x?b=%61//");
            assert_eq!(uri.as_ref().and_then(|it| it.to_str().ok()), expected);
        }
    }
}

/// A client may send bytes that only IRIs have, instead of their escapes.
#[tokio::test]
async fn raw_bytes_are_their_escapes() {
    let origin = Origin::echo("origin").await;
    let rules =
        json!([{"name": "no", "action": "Deny", "match": {"paths": [{"value": "/caf%c3%a9"}]}}]);
    let denied = json!({"authorization": {"rules": rules, "default": "Allow"}});
    let scene = Scene::start(&before(&origin, &[access("policy", &gateway(), &denied)]));
    for path in ["/caf%C3%A9", "/caf\u{e9}", "/%63af%c3%A9/x"] {
        let mut stream = crate::client::connect(scene.at(80)).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\n");
        write_text(&mut stream, request).await;
        let answer = crate::client::read_all(&mut stream).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
    let mut client = Client::http1(scene.at(80)).await;
    let request = client.request(Method::GET, "a.com", "/caf");
    let answer = client
        .fetch(request.body(empty()).expect("a request"))
        .await;
    assert_eq!(answer.status, 200);
}
