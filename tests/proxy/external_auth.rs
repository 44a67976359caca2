//! The ExternalAuth filter over HTTP, with a real authorization server.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::admin::{metric, service_labels};
use crate::client::{Client, connect, get, read_until, write_text};
use crate::cors::{METHOD, ORIGIN, clients, fetch, gateway, start};
use crate::harness::TEST_TIMEOUT;
use crate::mirror::{Recorder, mirror};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, prefix};

/// Returns a rule with filters.
pub(crate) fn with_filters(path: &str, filters: Value) -> Value {
    let mut rule = prefix(path, "app");
    rule["filters"] = filters;
    rule
}

/// Returns an ExternalAuth filter with these settings of HTTP.
pub(crate) fn auth(service: &str, http: &Value) -> Value {
    json!({"type": "ExternalAuth", "externalAuth": {
        "protocol": "HTTP", "backendRef": {"name": service, "port": 80}, "http": http,
    }})
}

/// Returns the same filter with bodies of up to this size.
fn with_body(max_size: u32) -> Value {
    let mut filter = auth("auth", &json!({}));
    filter["externalAuth"]["forwardBody"] = json!({"maxSize": max_size});
    filter
}

/// A request that an authorization server has received.
pub(crate) struct AuthRequest {
    head: http::request::Parts,
    body: String,
}

impl AuthRequest {
    fn header(&self, name: &str) -> &str {
        let value = self.head.headers.get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }
}

/// An authorization server. The last segment of the path is the status.
struct Server {
    origin: Origin,
    asked: mpsc::UnboundedReceiver<AuthRequest>,
}

impl Server {
    async fn new() -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("whole").to_bytes();
                let status = head.uri.path().rsplit('/').next();
                let status = status.and_then(|status| status.parse().ok());
                let answer = Response::builder()
                    .status(status.unwrap_or(200_u16))
                    .header("x-user", "42")
                    .header("x-received", body.len())
                    .header("location", "/login");
                let body = String::from_utf8(body.to_vec()).expect("text");
                let _ = sender.send(AuthRequest { head, body });
                answer.body(full("the server's word")).expect("a response")
            }
        })
        .await;
        Self { origin, asked }
    }

    async fn next(&mut self) -> AuthRequest {
        let next = timeout(TEST_TIMEOUT, self.asked.recv()).await;
        next.expect("a request in time").expect("a request")
    }
}

#[tokio::test]
async fn authorization_server_decides_which_requests_are_forwarded() {
    let (app, mut server) = (Origin::echo("app").await, Server::new().await);
    let http = json!({"path": "/check/", "allowedHeaders": ["X-Sent"], "allowedResponseHeaders": ["X-User"]});
    let rules = [
        with_filters("/listed", json!([auth("auth", &http)])),
        with_filters("/all", json!([auth("auth", &json!({}))])),
    ];
    let objects = gateway()
        .service("app", &[app.address])
        .service("auth", &[server.origin.address]);
    let scene = start(objects.route("route", &rules));
    let fields = [
        ("authorization", "Basic secret"),
        ("cookie", "a=b"),
        ("x-sent", "1"),
        ("x-user", "forged"),
    ];
    for mut client in clients(&scene).await {
        for (path, asked_at, is_listed) in [
            ("/listed/200?a=b", "/check/listed/200?a=b", true),
            ("/all/200", "/all/200", false),
        ] {
            let answer = fetch(&mut client, "DELETE", path, &fields).await;
            let received = answer.received();
            let header = |name: &str| received["headers"][name].as_str().unwrap_or_default();
            assert_eq!((header("x-user"), header("host")), ("42", "a.com"));
            assert_eq!(header("authorization"), "Basic secret");
            assert_eq!(header("x-received").is_empty(), is_listed, "{path}");
            let asked = server.next().await;
            assert_eq!(asked.head.method, Method::DELETE);
            assert_eq!(asked.head.uri.to_string(), asked_at);
            for (name, expected) in [
                ("host", "a.com"),
                ("authorization", "Basic secret"),
                ("content-length", "0"),
                ("x-forwarded-proto", "https"),
                ("x-sent", if is_listed { "1" } else { "" }),
                ("cookie", ""),
                ("x-user", ""),
            ] {
                assert_eq!(asked.header(name), expected, "{path} {name}");
            }
            assert_eq!(asked.header("x-request-id"), header("x-request-id"));
        }
        let before = app.requests();
        for (sent, expected, body) in [
            ("401", 401, "the server's word"),
            ("403", 403, "the server's word"),
            ("302", 302, "the server's word"),
            ("503", 503, "the server's word"),
            // A 2xx other than 200 does not allow the request.
            ("201", 403, ""),
        ] {
            let answer = fetch(&mut client, "GET", &format!("/all/{sent}"), &fields).await;
            assert_eq!((answer.status, answer.text()), (expected, body), "{sent}");
            let location = if body.is_empty() { "" } else { "/login" };
            assert_eq!(answer.header("location"), location, "{sent}");
            server.next().await;
        }
        assert_eq!(app.requests(), before);
    }
    let count = |result: &str| {
        let labels = service_labels("auth");
        format!(r#"external_auth_requests_total{{{labels},result="{result}"}}"#)
    };
    assert_eq!(metric(&scene, &count("allowed")).await, 4.0);
    assert_eq!(metric(&scene, &count("denied")).await, 10.0);
}

#[tokio::test]
async fn denied_grpc_call_gets_a_grpc_status() {
    let (app, server) = (Origin::echo("app").await, Server::new().await);
    let objects = gateway()
        .service("app", &[app.address])
        .service("auth", &[server.origin.address]);
    let rules = [with_filters("/", json!([auth("auth", &json!({}))]))];
    let scene = start(objects.route("route", &rules));
    let fields = [("content-type", "application/grpc")];
    for mut client in clients(&scene).await {
        for (path, status) in [("/401", "16"), ("/403", "7"), ("/503", "14")] {
            let answer = fetch(&mut client, "POST", path, &fields).await;
            assert_eq!((answer.status, answer.text()), (200, ""), "{path}");
            assert_eq!(answer.header("grpc-status"), status, "{path}");
            assert_eq!(answer.header("content-type"), "application/grpc");
        }
    }
    assert_eq!(app.requests(), 0);
}

#[tokio::test]
async fn body_is_sent_to_the_authorization_server_and_the_backend() {
    let (app, mut server) = (Origin::echo("app").await, Server::new().await);
    let mut copies = Recorder::new().await;
    let rules = [
        with_filters("/body", json!([with_body(10), mirror("copies")])),
        with_filters("/none", json!([with_body(0)])),
    ];
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("copies", &[copies.origin.address])
        .service("auth", &[server.origin.address]);
    let scene = Scene::start(&objects.route("route", &rules));
    for http2 in [false, true] {
        let mut client = match http2 {
            false => Client::http1(scene.at(80)).await,
            true => Client::http2(scene.at(80)).await,
        };
        let answer = client.post("a.com", "/body/200", "0123456789").await;
        assert_eq!(answer.received()["received"], 10);
        let asked = server.next().await;
        assert_eq!(
            (&*asked.body, asked.header("content-length")),
            ("0123456789", "10")
        );
        assert_eq!(copies.next().await.body, "0123456789");

        let answer = client.post("a.com", "/none/200", "0123456789a").await;
        assert_eq!(answer.received()["received"], 11);
        let asked = server.next().await;
        assert_eq!((&*asked.body, asked.header("content-length")), ("", "0"));

        let answer = client.post("a.com", "/body/403", "0123456789").await;
        assert_eq!((answer.status, answer.header("x-received")), (403, "10"));
        assert_eq!(server.next().await.body, "0123456789");

        let answer = client.post("a.com", "/body/200", "0123456789a").await;
        assert_eq!(answer.status, 413);
    }
    assert_eq!((app.requests(), server.origin.requests()), (4, 6));
    assert_eq!(copies.origin.requests(), 2);
}

#[tokio::test]
async fn client_that_waits_for_100_sends_its_body() {
    let (app, mut server) = (Origin::echo("app").await, Server::new().await);
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("auth", &[server.origin.address]);
    let rules = [with_filters("/", json!([with_body(10)]))];
    let scene = Scene::start(&objects.route("route", &rules));
    let mut client = connect(scene.at(80)).await;
    let head =
        "POST /200 HTTP/1.1\r\nHost: a.com\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    write_text(&mut client, head).await;
    assert_eq!(
        read_until(&mut client, "\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    write_text(&mut client, "body").await;
    let answer = read_until(&mut client, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.next().await.body, "body");
    app.until_requests(1).await;
}

#[tokio::test]
async fn requests_are_denied_when_the_authorization_server_fails() {
    let app = Origin::echo("app").await;
    let broken = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(&mut stream, "no HTTP\r\n\r\n").await;
    })
    .await;
    let silent = Origin::new(|_| std::future::pending()).await;
    let names = ["dead", "empty", "broken", "missing", "silent"];
    let rules = names.map(|name| {
        let mut rule = with_filters(&format!("/{name}"), json!([auth(name, &json!({}))]));
        if name == "silent" {
            rule["timeouts"] = json!({"request": "300ms"});
        }
        rule
    });
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("dead", &[Origin::dead()])
        .service("empty", &[])
        .service("broken", &[broken.address])
        .service("silent", &[silent.address]);
    let scene = Scene::start(&objects.route("route", &rules));
    for (name, status) in names.into_iter().zip([503, 503, 503, 500, 504]) {
        let answer = get(scene.at(80), "a.com", &format!("/{name}")).await;
        assert_eq!(answer.status, status, "{name}");
    }
    assert_eq!(app.requests(), 0);
    let labels = service_labels("dead");
    let failed = format!(r#"external_auth_requests_total{{{labels},result="failed"}}"#);
    assert_eq!(metric(&scene, &failed).await, 1.0);
}

/// Returns an authorization server that sends these bytes and then ends or resets the connection.
async fn cut(response: &'static str, resets: bool) -> Origin {
    Origin::raw(move |mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(&mut stream, response).await;
        if resets {
            stream.set_zero_linger().expect("an option");
        }
    })
    .await
}

#[tokio::test]
async fn response_that_is_cut_off_denies_the_request() {
    let app = Origin::echo("app").await;
    let cases = [
        (
            "short",
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\nx-user: 42\r\n\r\n12345",
            false,
        ),
        (
            "reset",
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345",
            true,
        ),
        (
            "chunk",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n123",
            false,
        ),
        (
            "last",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n123\r\n",
            false,
        ),
        (
            "garbage",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            false,
        ),
        (
            "denial",
            "HTTP/1.1 401 No\r\ncontent-length: 10\r\n\r\n12345",
            false,
        ),
        (
            "redirect",
            "HTTP/1.1 302 No\r\nlocation: /\r\ncontent-length: 10\r\n\r\n",
            false,
        ),
    ];
    let mut objects = Objects::http().service("app", &[app.address]);
    let mut servers = Vec::new();
    let mut rules = Vec::new();
    for (name, response, resets) in cases {
        servers.push(cut(response, resets).await);
        objects = objects.service(name, &[servers[servers.len() - 1].address]);
        let filter = json!([auth(name, &json!({}))]);
        rules.push(with_filters(&format!("/{name}"), filter));
    }
    let scene = Scene::start(&objects.route("route", &rules));
    for (name, ..) in cases {
        let answer = get(scene.at(80), "a.com", &format!("/{name}")).await;
        assert_eq!(answer.status, 503, "{name}");
    }
    assert_eq!(app.requests(), 0);
}

#[tokio::test]
async fn response_with_a_long_body_still_decides() {
    let app = Origin::echo("app").await;
    let server = Origin::new(|request: Request<Incoming>| async move {
        let status = if request.uri().path() == "/allowed" {
            200
        } else {
            401
        };
        let answer = Response::builder().status(status).header("x-user", "42");
        answer.body(full(vec![b'x'; 200_000])).expect("a response")
    })
    .await;
    let objects = Objects::http()
        .service("app", &[app.address])
        .service("auth", &[server.address]);
    let rules = [with_filters("/", json!([auth("auth", &json!({}))]))];
    let scene = Scene::start(&objects.route("route", &rules));
    let answer = get(scene.at(80), "a.com", "/allowed").await;
    assert_eq!(answer.received()["headers"]["x-user"], "42");
    let answer = get(scene.at(80), "a.com", "/denied").await;
    assert_eq!((answer.status, answer.text()), (401, ""));
}

#[tokio::test]
async fn listed_header_that_the_server_omits_never_reaches_the_backend() {
    let (app, mut server) = (Origin::echo("app").await, Server::new().await);
    let http = json!({"allowedResponseHeaders": ["X-User", "X-Role", "Authorization"]});
    let objects = gateway()
        .service("app", &[app.address])
        .service("auth", &[server.origin.address]);
    let rules = [with_filters("/", json!([auth("auth", &http)]))];
    let scene = start(objects.route("route", &rules));
    let fields = [
        ("x-user", "admin"),
        ("x_user", "admin"),
        ("x-role", "admin"),
        ("x_role", "admin"),
        ("x.role", "admin"),
        ("authorization", "Basic secret"),
        ("x-role-id", "kept"),
        ("x_other", "kept"),
    ];
    for mut client in clients(&scene).await {
        let received = fetch(&mut client, "GET", "/200", &fields).await.received();
        let headers = received["headers"].as_object().expect("headers");
        for (name, expected) in [
            ("x-user", Some("42")),
            ("x_user", None),
            ("x-role", None),
            ("x_role", None),
            ("x.role", None),
            ("authorization", None),
            ("x-role-id", Some("kept")),
            ("x_other", Some("kept")),
        ] {
            let value = headers.get(name).and_then(Value::as_str);
            assert_eq!(value, expected, "{name}");
        }
        assert_eq!(server.next().await.header("authorization"), "Basic secret");
    }
}

#[tokio::test]
async fn filters_apply_in_list_order() {
    let (app, mut server) = (Origin::echo("app").await, Server::new().await);
    let copies = Recorder::new().await;
    let set = |value: &str| {
        json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {
            "set": [{"name": "Authorization", "value": value}],
        }})
    };
    let shared = json!({"type": "CORS", "cors": {"allowOrigins": ["https://a.org"]}});
    let mut of_share = prefix("/share", "app");
    of_share["backendRefs"][0]["filters"] = json!([auth("auth", &json!({}))]);
    let rules = [
        with_filters("/before", json!([set("changed"), auth("auth", &json!({}))])),
        with_filters("/after", json!([auth("auth", &json!({})), set("changed")])),
        with_filters(
            "/mirror",
            json!([auth("auth", &json!({})), mirror("copies")]),
        ),
        with_filters("/cors", json!([auth("auth", &json!({})), shared])),
        of_share,
    ];
    let objects = gateway()
        .service("app", &[app.address])
        .service("copies", &[copies.origin.address])
        .service("auth", &[server.origin.address]);
    let scene = start(objects.route("route", &rules));
    for mut client in clients(&scene).await {
        for (path, asked) in [("/before/200", "changed"), ("/after/200", "sent")] {
            let answer = fetch(&mut client, "GET", path, &[("authorization", "sent")]).await;
            assert_eq!(answer.received()["headers"]["authorization"], "changed");
            assert_eq!(server.next().await.header("authorization"), asked);
        }
        let before = server.origin.requests();
        let preflight = [(ORIGIN, "https://a.org"), (METHOD, "PUT")];
        let answer = fetch(&mut client, "OPTIONS", "/cors/403", &preflight).await;
        assert_eq!(answer.status, 204);
        assert_eq!(server.origin.requests(), before);
        for path in ["/cors/403", "/mirror/403", "/share/403"] {
            let answer = fetch(&mut client, "GET", path, &preflight[..1]).await;
            assert_eq!((answer.status, answer.text()), (403, "the server's word"));
            let allowed = answer.header("access-control-allow-origin");
            assert_eq!(allowed == "https://a.org", path == "/cors/403");
            server.next().await;
        }
        let answer = fetch(&mut client, "GET", "/share/200", &[]).await;
        assert_eq!(answer.received()["headers"]["x-user"], "42");
        server.next().await;
    }
    assert_eq!(copies.origin.requests(), 0);
}

#[tokio::test]
async fn call_is_repeated_if_the_server_closes_a_pooled_connection() {
    let app = Origin::echo("app").await;
    let server = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        let allow = "HTTP/1.1 200 OK\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n";
        write_text(&mut stream, allow).await;
        // The next call reaches the server, which closes the connection.
        read_until(&mut stream, "\r\n\r\n").await;
    })
    .await;
    let filter = auth("auth", &json!({}));
    let objects = gateway()
        .service("app", &[app.address])
        .service("auth", &[server.address])
        .route("route", &[with_filters("/", json!([filter]))]);
    let scene = start(objects);
    let mut client = Client::http1(scene.at(80)).await;
    for calls in 1..=5 {
        let answer = client.post("a.com", "/", "body").await;
        let received = answer.received();
        assert_eq!(received["headers"]["expect"], Value::Null);
        assert_eq!(
            (received["received"].clone(), server.connections()),
            (json!(4), calls)
        );
    }
}
