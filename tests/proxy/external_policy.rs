//! The section `external` of AccessPolicies, with a real authorization server.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::access_policy::{access, before, gateway, of_route};
use crate::client::{Client, connect, get, read_all, write_text};
use crate::cors::{METHOD, ORIGIN, fetch, with_cors};
use crate::credentials::{BCRYPT, api_key, authorization, keys, users};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, to};

/// An authorization server. The header `x-verdict` of a request is the status of the response.
struct Server {
    origin: Origin,
    asked: mpsc::UnboundedReceiver<(http::request::Parts, String)>,
}

impl Server {
    async fn new() -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("whole").to_bytes();
                let body = String::from_utf8(body.to_vec()).expect("text");
                let verdict = head.headers.get("x-verdict");
                let status = verdict.and_then(|it| it.to_str().ok()?.parse().ok());
                let response = Response::builder()
                    .status(status.unwrap_or(200_u16))
                    .header("x-user", "42")
                    .header("x-other", "1")
                    .header("set-cookie", "csrf=1");
                let _ = sender.send((head, body));
                response
                    .body(full("the server's word"))
                    .expect("a response")
            }
        })
        .await;
        Self { origin, asked }
    }

    async fn next(&mut self) -> (http::request::Parts, String) {
        let next = timeout(TEST_TIMEOUT, self.asked.recv()).await;
        next.expect("a request in time").expect("a request")
    }
}

/// A section with these settings of HTTP.
fn external(http: &Value) -> Value {
    let mut http = http.clone();
    http["allowedHeaders"] = json!(["X-Verdict", "Cookie", "X-Forwarded-Uri"]);
    let server = json!({"name": "auth", "port": 80});
    json!({"external": {"protocol": "HTTP", "backendRef": server, "http": http}})
}

/// A section with a page to sign in.
fn with_sign_in(page: &str) -> Value {
    let mut spec = external(&json!({}));
    spec["external"]["signInRedirect"] = json!(page);
    spec
}

/// An origin behind an authorization server.
fn behind(origin: &Origin, server: &Server, policies: &[String]) -> Objects {
    before(origin, policies).service("auth", &[server.origin.address])
}

const FORGED: [(&str, &str); 3] = [
    ("x-user", "root"),
    ("x_user", "root"),
    ("x-forwarded-uri", "/forged"),
];

#[tokio::test]
async fn authorization_server_of_a_policy_decides() {
    let (origin, mut server) = (Origin::echo("origin").await, Server::new().await);
    let spec = external(&json!({"path": "/check", "allowedResponseHeaders": ["X-User"]}));
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    for mut client in Client::both(scene.at(80)).await {
        let answer = fetch(&mut client, "DELETE", "/a?b=c", &FORGED).await;
        let received = answer.received();
        assert_eq!(received["headers"]["x-user"], "42");
        assert!(received["headers"].get("x_user").is_none());
        assert!(received["headers"].get("x-other").is_none());
        let (asked, _) = server.next().await;
        assert_eq!(
            (asked.method, &*asked.uri.to_string()),
            (Method::DELETE, "/check/a?b=c")
        );
        let before = origin.requests();
        for (verdict, expected, body) in [
            ("401", 401, "the server's word"),
            ("403", 403, "the server's word"),
            ("302", 302, "the server's word"),
            ("204", 403, ""),
        ] {
            let answer = fetch(&mut client, "GET", "/", &[("x-verdict", verdict)]).await;
            assert_eq!(
                (answer.status, answer.text()),
                (expected, body),
                "{verdict}"
            );
            let header = if body.is_empty() { "" } else { "1" };
            assert_eq!(answer.header("x-other"), header, "{verdict}");
            server.next().await;
        }
        assert_eq!(origin.requests(), before);
    }
}

#[tokio::test]
async fn exact_path_comes_with_what_the_request_was() {
    let (origin, mut server) = (Origin::echo("origin").await, Server::new().await);
    let mut spec = external(&json!({"path": "/oauth2/auth?group=a", "pathMode": "Exact"}));
    spec["external"]["forwardBody"] = json!({"maxSize": 10});
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    for mut client in Client::both(scene.at(80)).await {
        for method in ["GET", "DELETE"] {
            let answer = fetch(&mut client, method, "/a?b=c", &FORGED).await;
            assert_eq!(
                (answer.status, &answer.received()["path"]),
                (200, &json!("/a?b=c"))
            );
            let (asked, _) = server.next().await;
            assert_eq!(
                (asked.method, &*asked.uri.to_string()),
                (Method::GET, "/oauth2/auth?group=a")
            );
            for (name, expected) in [
                ("x-forwarded-method", method),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "a.com"),
                ("x-forwarded-uri", "/a?b=c"),
                ("x-original-method", method),
                ("x-original-url", "http://a.com/a?b=c"),
                ("host", "a.com"),
            ] {
                let values: Vec<_> = asked.headers.get_all(name).iter().collect();
                assert_eq!(values, [expected], "{name}");
            }
        }
        let answer = client.post("a.com", "/a", "0123456789").await;
        assert_eq!(answer.received()["received"], 10);
        let (asked, body) = server.next().await;
        assert_eq!((asked.method, &*body), (Method::POST, "0123456789"));
        let answer = client.post("a.com", "/a", "0123456789a").await;
        assert_eq!(answer.status, 413);
    }
}

#[tokio::test]
async fn browsers_without_permission_are_redirected_to_sign_in() {
    let (origin, mut server) = (Origin::echo("origin").await, Server::new().await);
    let spec = with_sign_in("https://login.example/start?rd={return}&a=b");
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    let html = ("accept", "text/html,application/xhtml+xml;q=0.9");
    for mut client in Client::both(scene.at(80)).await {
        for (method, accept, verdict, expected) in [
            ("GET", html, "401", 302),
            ("HEAD", html, "401", 302),
            ("POST", html, "401", 401),
            ("GET", ("accept", "application/json"), "401", 401),
            ("GET", ("accept", "*/*"), "401", 401),
            ("GET", html, "403", 403),
        ] {
            let sent = [
                accept,
                ("x-verdict", verdict),
                ("x-forwarded-host", "evil.example"),
            ];
            let answer = fetch(&mut client, method, "/a?b=%20&c=//d", &sent).await;
            assert_eq!(answer.status, expected, "{method} {accept:?} {verdict}");
            assert_eq!(answer.header("set-cookie"), "csrf=1");
            server.next().await;
            if expected != 302 {
                assert_eq!(
                    (answer.header("location"), answer.header("x-other")),
                    ("", "1")
                );
                continue;
            }
            let url = "http%3A%2F%2Fa.com%2Fa%3Fb%3D%2520%26c%3D%2F%2Fd";
            let location = format!("https://login.example/start?rd={url}&a=b");
            assert_eq!(answer.header("location"), location);
            assert_eq!(answer.header("cache-control"), "no-store");
            assert_eq!((answer.text(), answer.header("x-other")), ("", ""));
        }
    }
    assert_eq!(origin.requests(), 0);
}

/// The URL to return to would have the local address.
#[tokio::test]
async fn browsers_without_a_host_are_not_redirected_to_sign_in() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let spec = with_sign_in("https://login.example/start?rd={return}");
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    let mut stream = connect(scene.at(80)).await;
    let request = "GET / HTTP/1.0\r\nAccept: text/html\r\nX-Verdict: 401\r\n\r\n";
    write_text(&mut stream, request).await;
    let answer = String::from_utf8_lossy(&read_all(&mut stream).await).to_ascii_lowercase();
    assert_eq!(answer.split(' ').nth(1), Some("401"), "{answer}");
    assert!(!answer.contains("location:"), "{answer}");
}

#[tokio::test]
async fn denied_grpc_call_gets_a_grpc_status() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let spec = with_sign_in("/login");
    let target = json!({"kind": "GRPCRoute", "name": "route"});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .service("auth", &[server.origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(access("a", &target, &spec));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (verdict, status) in [("401", "16"), ("403", "7")] {
        let sent = [
            ("content-type", "application/grpc"),
            ("accept", "text/html"),
            ("x-verdict", verdict),
        ];
        let answer = fetch(&mut client, "POST", "/a.B/C", &sent).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, status));
    }
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn requests_are_refused_when_the_server_fails() {
    let origin = Origin::echo("origin").await;
    let silent = Origin::new(|_| std::future::pending()).await;
    let spec = external(&json!({}));
    for (endpoints, expected) in [
        (Some(vec![Origin::dead()]), 503),
        (Some(Vec::new()), 503),
        (None, 500),
    ] {
        let objects = before(&origin, &[access("a", &of_route(), &spec)]);
        let objects = match endpoints {
            Some(endpoints) => objects.service("auth", &endpoints),
            None => objects,
        };
        let scene = Scene::start(&objects);
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, expected);
    }
    let mut slow = to("origin");
    slow["timeouts"] = json!({"request": "300ms"});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .service("auth", &[silent.address])
        .route("route", &[slow])
        .with(access("a", &of_route(), &spec));
    let scene = Scene::start(&objects);
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 504);
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn server_is_asked_only_about_what_its_policy_applies_to() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let rule = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let spec = external(&json!({}));
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &rule, &spec)]));
    for mut client in Client::both(scene.at(80)).await {
        let before = server.origin.requests();
        assert_eq!(client.get("a.com", "/").await.status, 200);
        assert_eq!(server.origin.requests(), before);
        assert_eq!(client.get("a.com", "/admin").await.status, 200);
        assert_eq!(server.origin.requests(), before + 1);
    }
}

/// A policy with users, API keys and a server.
fn all_methods(require: &str) -> Vec<String> {
    let mut spec = external(&json!({"allowedResponseHeaders": ["X-User"]}));
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["basic"] = json!({"secretRef": {"name": "users"}});
    spec["require"] = json!(require);
    vec![
        users(&[("alice", BCRYPT)]),
        keys(),
        access("a", &gateway(), &spec),
    ]
}

#[tokio::test]
async fn with_any_a_valid_credential_makes_the_server_needless() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let scene = Scene::start(&behind(&origin, &server, &all_methods("Any")));
    let (alice, wrong) = (
        authorization("alice", "password"),
        authorization("alice", "no"),
    );
    for mut client in Client::both(scene.at(80)).await {
        for (credential, verdict, status, asked, user) in [
            (Some(("x-api-key", "key-of-shop")), "403", 200, 0, None),
            (Some(("authorization", &*alice)), "403", 200, 0, None),
            (Some(("authorization", &*wrong)), "200", 200, 1, Some("42")),
            (Some(("authorization", &*wrong)), "403", 403, 1, None),
            (Some(("x-api-key", "another")), "200", 200, 1, Some("42")),
            (None, "200", 200, 1, Some("42")),
            (None, "401", 401, 1, None),
        ] {
            let before = (server.origin.requests(), origin.requests());
            let mut sent = vec![("x-verdict", verdict)];
            sent.extend(FORGED);
            sent.extend(credential);
            let answer = client.get_with("a.com", "/", &sent).await;
            assert_eq!(answer.status, status, "{credential:?} {verdict}");
            assert_eq!(server.origin.requests(), before.0 + asked, "{credential:?}");
            if status != 200 {
                assert_eq!(origin.requests(), before.1);
                continue;
            }
            // What a client says in the name of the server never reaches a backend.
            let headers = &answer.received()["headers"];
            assert_eq!(
                headers.get("x-user").and_then(Value::as_str),
                user,
                "{credential:?}"
            );
            assert!(headers.get("x_user").is_none());
        }
    }
}

#[tokio::test]
async fn with_all_the_server_is_asked_last() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let scene = Scene::start(&behind(&origin, &server, &all_methods("All")));
    let (alice, wrong) = (
        authorization("alice", "password"),
        authorization("alice", "no"),
    );
    for mut client in Client::both(scene.at(80)).await {
        for (login, key, verdict, status, asked) in [
            (&alice, "key-of-shop", "200", 200, 1),
            (&alice, "key-of-shop", "403", 403, 1),
            (&alice, "another", "200", 401, 0),
            (&wrong, "key-of-shop", "200", 401, 0),
        ] {
            let before = server.origin.requests();
            let sent = [
                ("authorization", &**login),
                ("x-api-key", key),
                ("x-verdict", verdict),
            ];
            let answer = client.get_with("a.com", "/", &sent).await;
            assert_eq!(answer.status, status, "{login} {key} {verdict}");
            assert_eq!(
                server.origin.requests(),
                before + asked,
                "{login} {key} {verdict}"
            );
        }
    }
}

#[tokio::test]
async fn rules_about_requests_see_the_headers_of_the_server() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let mut spec = external(&json!({"allowedResponseHeaders": ["X-User"]}));
    let of_user = |user: &str| json!({"headers": [{"name": "x-user", "value": user}]});
    spec["authorization"] = json!({"rules": [
        {"name": "one", "action": "Allow", "match": of_user("42")},
    ]});
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    spec["authorization"]["rules"][0]["match"] = of_user("root");
    let scene = Scene::start(&behind(&origin, &server, &[access("a", &gateway(), &spec)]));
    for mut client in Client::both(scene.at(80)).await {
        assert_eq!(
            client.get_with("a.com", "/", &FORGED[..1]).await.status,
            403
        );
    }
    assert_eq!(origin.requests(), 1);
}

/// What the proxy makes of a request for the server and for backends is not what the client has sent.
#[tokio::test]
async fn rules_about_requests_see_what_clients_have_sent() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let web = "application/grpc-web+proto";
    let mut spec = external(&json!({"allowedResponseHeaders": ["X-User"]}));
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["authorization"] = json!({"rules": [
        // The backend gets neither the key nor this type, and its header with the client is of the proxy.
        {"name": "forwarded", "action": "Deny", "match": {
            "headers": [{"name": "x-client", "value": "shop"}],
        }},
        {"name": "sent", "action": "Allow", "match": {"headers": [
            {"name": "x-api-key", "value": "key-of-shop"}, {"name": "content-type", "value": web},
            {"name": "x-user", "value": "42"},
        ]}},
    ]});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .service("auth", &[server.origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(keys())
        .with(access("a", &gateway(), &spec));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let sent = [("content-type", web), ("x-api-key", "key-of-shop")];
        let before = origin.requests();
        fetch(&mut client, "POST", "/a.B/C", &sent).await;
        assert_eq!(origin.requests(), before + 1);
        let sent = [("content-type", web), ("x-api-key", "key-of-billing")];
        fetch(&mut client, "POST", "/a.B/C", &sent).await;
        assert_eq!(origin.requests(), before + 1);
    }
}

/// A preflight request never has credentials.
#[tokio::test]
async fn preflight_request_is_answered_without_the_server() {
    let (origin, server) = (Origin::echo("origin").await, Server::new().await);
    let rule = with_cors("/", "origin", &json!({"allowOrigins": ["https://a.org"]}));
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .service("auth", &[server.origin.address])
        .route("route", &[rule])
        .with(access("a", &gateway(), &external(&json!({}))));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let sent = [(ORIGIN, "https://a.org"), (METHOD, "GET")];
        let answer = fetch(&mut client, "OPTIONS", "/", &sent).await;
        assert_eq!(
            answer.header("access-control-allow-origin"),
            "https://a.org"
        );
    }
    assert_eq!((origin.requests(), server.origin.requests()), (0, 0));
}

/// A server that is replaced decides about the next request.
#[tokio::test]
async fn change_of_the_server_has_an_effect() {
    let origin = Origin::echo("origin").await;
    let (one, other) = (Server::new().await, Server::new().await);
    let policies = [access("a", &of_route(), &external(&json!({})))];
    let mut scene = Scene::start(&behind(&origin, &one, &policies));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    scene.replace(&behind(&origin, &other, &policies)).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    assert_eq!((one.origin.requests(), other.origin.requests()), (1, 1));
    scene.replace(&before(&origin, &policies)).await;
    assert_eq!(client.get("a.com", "/").await.status, 500);
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
}
