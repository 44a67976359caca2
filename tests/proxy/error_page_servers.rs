//! Error pages that are fetched from a backend: `errorPages[].backendRef` of RoutePolicies.

use std::time::Duration;

use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::access_policy::{access, gateway};
use crate::admin::{metric, service_labels_with};
use crate::client::{Client, connect, read_all, write_text};
use crate::credentials::{BCRYPT, basic, users};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, Payload, empty, full};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene, prefix, route, to};

/// A server of pages that passes on the heads of its requests.
struct Pages {
    origin: Origin,
    asked: mpsc::UnboundedReceiver<http::request::Parts>,
}

impl Pages {
    async fn new(
        answer: impl Fn(&http::request::Parts) -> Response<Payload> + Clone + Send + 'static,
    ) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let (head, _) = request.into_parts();
            let response = answer(&head);
            let _ = sender.send(head);
            async move { response }
        });
        Self {
            origin: origin.await,
            asked,
        }
    }

    /// One whose page is the status that it is asked for.
    async fn of_codes() -> Self {
        Self::new(|head| page(200, &format!("<p>{}", text(&head.headers, "x-code")))).await
    }

    async fn next(&mut self) -> http::request::Parts {
        let next = timeout(TEST_TIMEOUT, self.asked.recv()).await;
        next.expect("in time").expect("a request")
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .map_or("", |value| value.to_str().expect("text"))
}

fn page(status: u16, body: &str) -> Response<Payload> {
    let response = Response::builder()
        .status(status)
        .header("content-type", "text/html")
        .header("content-language", "en")
        .header("set-cookie", "a=b")
        .header("cache-control", "max-age=1000");
    response.body(full(body.to_owned())).expect("a response")
}

/// An entry of `errorPages` with a server.
fn from(service: &str, codes: &[u16], source: &str) -> Value {
    let server = json!({"name": service, "port": 80});
    json!({"codes": codes, "source": source, "backendRef": server})
}

fn pages(entries: &[Value]) -> Value {
    json!({"errorPages": entries})
}

/// A backend whose status is in the path.
async fn failing() -> Origin {
    let origin = Origin::new(|request: Request<Incoming>| async move {
        let status = request.uri().path().rsplit('/').next();
        let body = match request.method() {
            &Method::HEAD => empty(),
            _ => full("of the backend"),
        };
        let response = Response::builder()
            .header("etag", "\"one\"")
            .header("x-kept", "yes");
        let status: u16 = status.and_then(|it| it.parse().ok()).unwrap_or(200);
        response.status(status).body(body).expect("a response")
    });
    origin.await
}

/// A failing backend at `a.com`, and a server of pages for everything of the Gateway.
fn objects(origin: &Origin, server: &Pages, entry: &Value) -> Objects {
    Objects::http()
        .service("origin", &[origin.address])
        .service("dead", &[])
        .service("pages", &[server.origin.address])
        .with(route(
            "route",
            &["a.com"],
            &[to("origin"), prefix("/dead", "dead")],
        ))
        .with(policy(
            "pages",
            &gateway(),
            &pages(std::slice::from_ref(entry)),
        ))
}

async fn until_counted(scene: &Scene, result: &str, count: f64) {
    let labels = service_labels_with("pages", "http1", "none");
    let name = format!(r#"error_page_requests_total{{{labels},result="{result}"}}"#);
    let counted = async {
        // Counters have no change notification.
        while metric(scene, &name).await < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let counted = timeout(TEST_TIMEOUT, counted).await;
    assert!(counted.is_ok(), "not {count} {result} in time");
}

#[tokio::test]
async fn server_is_asked_for_the_page_and_gets_no_credentials() {
    let (origin, mut server) = (failing().await, Pages::of_codes().await);
    let entry = from("pages", &[404, 503], "Any");
    let scene = Scene::start(&objects(&origin, &server, &entry));
    for mut client in Client::both(scene.at(80)).await {
        let sent = [
            ("accept", "text/html, */*;q=0.1"),
            ("accept-language", "de"),
            ("authorization", "Bearer secret"),
            ("cookie", "a=secret"),
            ("x-code", "200"),
        ];
        let answer = client.get_with("a.com", "/x/404?token=secret", &sent).await;
        assert_eq!((answer.status, answer.text()), (404, "<p>404"));
        assert_eq!(answer.header("content-type"), "text/html");
        assert_eq!(answer.header("content-language"), "en");
        assert_eq!(
            (answer.header("set-cookie"), answer.header("cache-control")),
            ("", "")
        );
        assert_eq!(
            (answer.header("etag"), answer.header("x-kept")),
            ("", "yes")
        );
        let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Accept", "Accept-Language"]);
        let asked = server.next().await;
        assert_eq!((&asked.method, asked.uri.path()), (&Method::GET, "/"));
        for (name, value) in [
            ("host", "a.com"),
            ("x-code", "404"),
            ("x-format", "text/html, */*;q=0.1"),
            ("accept", "text/html, */*;q=0.1"),
            ("accept-language", "de"),
            ("x-original-uri", "/x/404"),
            ("x-namespace", "default"),
            ("x-ingress-name", "route"),
            ("x-service-name", "origin"),
            ("x-service-port", "80"),
            ("authorization", ""),
            ("cookie", ""),
        ] {
            assert_eq!(text(&asked.headers, name), value, "{name}");
        }
        assert!(!text(&asked.headers, "x-request-id").is_empty());
        assert!(!format!("{:?}", asked.headers).contains("secret"));
        let answer = client.get("a.com", "/dead").await;
        assert_eq!((answer.status, answer.text()), (503, "<p>503"));
        server.next().await;
        // No route has this host.
        let answer = client.get("b.com", "/none").await;
        assert_eq!((answer.status, answer.text()), (404, "<p>404"));
        assert!(!answer.header("x-request-id").is_empty());
        let asked = server.next().await;
        assert_eq!(text(&asked.headers, "x-namespace"), "");
        for path in ["/200", "/410"] {
            assert_eq!(client.get("a.com", path).await.text(), "of the backend");
        }
        let head = client.request(Method::HEAD, "a.com", "/404");
        let answer = client.fetch(head.body(empty()).expect("a request")).await;
        assert_eq!((answer.status, answer.text()), (404, ""));
        assert_eq!(answer.header("content-length"), "6");
        assert_eq!(server.next().await.method, Method::HEAD);
    }
    until_counted(&scene, "fetched", 8.0).await;
    assert!(server.origin.connections() <= 4, "connections are reused");
}

#[tokio::test]
async fn refusals_of_policies_have_pages_and_grpc_calls_have_none() {
    let (origin, server) = (failing().await, Pages::of_codes().await);
    let entry = from("pages", &[401, 503], "Gateway");
    let objects = objects(&origin, &server, &entry)
        .with(users(&[("ann", BCRYPT)]))
        .with(access("a", &gateway(), &basic()));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let answer = client.get("a.com", "/200").await;
    assert_eq!((answer.status, answer.text()), (401, "<p>401"));
    assert!(answer.header("www-authenticate").starts_with("Basic "));
    let request = client.request(Method::POST, "a.com", "/200");
    let request = request.header("content-type", "application/grpc");
    let answer = client
        .fetch(request.body(full("x")).expect("a request"))
        .await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
    assert_eq!(server.origin.requests(), 1);
}

#[tokio::test]
async fn status_of_the_server_is_used_if_it_is_not_kept() {
    let origin = failing().await;
    let server = Pages::new(|head| match text(&head.headers, "x-code") {
        "404" => page(200, "two hundred"),
        "410" => page(410, "the same"),
        "500" => page(404, "no page"),
        "501" => page(503, "broken"),
        _ => {
            let response = Response::builder()
                .status(302)
                .header("location", "/status");
            response.body(full("moved")).expect("a response")
        }
    });
    let server = server.await;
    let codes = [404, 410, 500, 501, 503];
    let own = "of the backend";
    for (keeps, expected) in [
        (
            false,
            [
                (200, "two hundred"),
                (410, "the same"),
                (404, "no page"),
                (501, own),
                (302, "moved"),
            ],
        ),
        (
            true,
            [
                (404, "two hundred"),
                (410, "the same"),
                (500, own),
                (501, own),
                (503, own),
            ],
        ),
    ] {
        let mut entry = from("pages", &codes, "Backend");
        entry["keepStatus"] = json!(keeps);
        let scene = Scene::start(&objects(&origin, &server, &entry));
        let mut client = Client::http1(scene.at(80)).await;
        for (code, expected) in codes.into_iter().zip(expected) {
            let answer = client.get("a.com", &format!("/{code}")).await;
            assert_eq!((answer.status, answer.text()), expected, "{code} {keeps}");
            let location = if answer.status == 302 { "/status" } else { "" };
            assert_eq!(answer.header("location"), location);
        }
        until_counted(&scene, "unusable", if keeps { 3.0 } else { 1.0 }).await;
    }
}

#[tokio::test]
async fn failures_leave_the_response_as_it_is() {
    let origin = failing().await;
    let large_or_encoded = |head: &http::request::Parts| {
        let (size, coding) = match text(&head.headers, "x-code") {
            "500" => (1024 * 1024 + 1, "identity"),
            _ => (10, "gzip"),
        };
        let response = Response::builder().header("content-encoding", coding);
        response.body(full("a".repeat(size))).expect("a response")
    };
    let server = Pages::new(large_or_encoded).await;
    let scene = Scene::start(&objects(
        &origin,
        &server,
        &from("pages", &[404, 500, 503], "Any"),
    ));
    let mut client = Client::http1(scene.at(80)).await;
    for (path, status) in [("/500", 500), ("/404", 404)] {
        let answer = client.get("a.com", path).await;
        assert_eq!((answer.status, answer.text()), (status, "of the backend"));
        assert_eq!(answer.header("etag"), "\"one\"");
    }
    until_counted(&scene, "too_large", 1.0).await;
    until_counted(&scene, "unusable", 1.0).await;
    // The server is away, and its own error has no page.
    let gone = objects(&origin, &server, &from("dead", &[404, 503], "Any"));
    let scene = Scene::start(&gone);
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.com", "/dead").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(client.get("a.com", "/404").await.text(), "of the backend");
}

#[tokio::test]
async fn endless_page_is_cut_off() {
    let origin = failing().await;
    let endless = Origin::raw(|mut stream| async move {
        write_text(
            &mut stream,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await;
        let chunk = format!("4000\r\n{}\r\n", "a".repeat(0x4000));
        while stream.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let (_, asked) = mpsc::unbounded_channel();
    let server = Pages {
        origin: endless.await,
        asked,
    };
    let scene = Scene::start(&objects(&origin, &server, &from("pages", &[404], "Any")));
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, "GET /404 HTTP/1.1\r\nhost: a.com\r\n\r\n").await;
    let received = read_all(&mut client).await;
    assert!(received.starts_with(b"HTTP/1.1 404 "));
    assert!(!received.ends_with(b"0\r\n\r\n"), "the page looks complete");
    assert!(received.len() < 1200 * 1024, "{} bytes", received.len());
    until_counted(&scene, "too_large", 1.0).await;
}

#[tokio::test]
async fn slow_server_delays_no_other_client_and_is_given_up() {
    let origin = failing().await;
    let silent = Origin::new(|_| std::future::pending()).await;
    let (_, asked) = mpsc::unbounded_channel();
    let server = Pages {
        origin: silent,
        asked,
    };
    let objects = objects(&origin, &server, &from("pages", &[404], "Any"));
    let scene = Scene::with(&objects, |settings| {
        settings.workers = 1;
    });
    let mut clients = Vec::new();
    for _ in 0..120 {
        clients.push(Client::http1(scene.at(80)).await);
    }
    let mut neighbour = Client::http1(scene.at(80)).await;
    // Each of them gives up after two seconds: one after the other, they delay the neighbour for minutes.
    let begin = Instant::now();
    let mut flood = JoinSet::new();
    for mut client in clients {
        flood.spawn(async move { client.get("a.com", "/404").await });
    }
    server.origin.until_requests(20).await;
    let served = async {
        for _ in 0..20 {
            assert_eq!(
                neighbour.get("a.com", "/200").await.text(),
                "of the backend"
            );
        }
    };
    timeout(TEST_TIMEOUT, served).await.expect("in time");
    let answers = flood.join_all().await;
    assert!(begin.elapsed() >= Duration::from_secs(2));
    for answer in answers {
        assert_eq!((answer.status, answer.text()), (404, "of the backend"));
    }
    // One address has half of the places of a policy.
    assert_eq!(server.origin.requests(), 32);
    until_counted(&scene, "dropped", 88.0).await;
    until_counted(&scene, "timeout", 32.0).await;
}

#[tokio::test]
async fn page_may_come_after_the_timeout_of_the_request() {
    let slow = Origin::new(|_| std::future::pending()).await;
    let server = Pages::of_codes().await;
    let mut rule = to("origin");
    rule["timeouts"] = json!({"request": "200ms"});
    let entry = from("pages", &[504], "Gateway");
    let objects = Objects::http()
        .service("origin", &[slow.address])
        .service("pages", &[server.origin.address])
        .with(route("route", &["a.com"], &[rule]))
        .with(policy("pages", &gateway(), &pages(&[entry])));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let answer = client.get("a.com", "/").await;
        assert_eq!((answer.status, answer.text()), (504, "<p>504"));
    }
}

#[tokio::test]
async fn broken_reference_leaves_the_ordinary_response() {
    let (origin, server) = (failing().await, Pages::of_codes().await);
    let scene = Scene::start(&objects(&origin, &server, &from("missing", &[404], "Any")));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/404").await.text(), "of the backend");
    let answer = client.get("b.com", "/").await;
    assert_eq!(
        (answer.status, answer.text()),
        (404, "no route matches this request")
    );
}
