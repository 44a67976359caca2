//! Headers that only the proxy may say, over every version and protocol, to everyone who gets a request: backends, mirrors,
//! authorization servers, and the backends of tunnels.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::ext::Protocol;
use http::Request;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::modifier;
use super::receiver::{
    Backend, Line, Lines, NOT_OF_CLIENTS, OF_ONE_SPELLING, check, forged, trailers,
};
use crate::access_policy::{access, gateway};
use crate::browser::Browser;
use crate::client::{connect, header_map, read_all, read_until, write_text};
use crate::client_policy::clients;
use crate::credentials::{BCRYPT, api_key, authorization, basic, keys, users};
use crate::external_auth_grpc;
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::harness::h2::{self as peer, block_on};
use crate::harness::yaml::service_of;
use crate::issuer::{Issuer, claims, jwt};
use crate::mirror::{mirror, with_filters};
use crate::origin::Origin;
use crate::provider::Provider;
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_policy::policy as defaults;
use crate::scene::{Objects, Scene, to};
use crate::websocket_http2::{open, switch};

const PATH: &str = "/allowed";
const H2C: &str = "kubernetes.io/h2c";
/// A message of gRPC without content.
const BODY: &str = "\0\0\0\0\0";

/// Credentials and other headers of a client, and what it forges.
fn head(issuer: &Issuer) -> Lines {
    let token = issuer.token(&claims(&json!({})));
    let own = [
        ("authorization", &*authorization("alice", "password")),
        ("x-api-key", "key-of-shop"),
        ("x-token", &token),
        ("cf-connecting-ip", "192.0.2.1"),
        ("x-tenant", "one"),
        ("x_other", "other"),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let forged = forged(NOT_OF_CLIENTS, true)
        .into_iter()
        .chain(forged(OF_ONE_SPELLING, false));
    own.into_iter().chain(forged).collect()
}

/// Sections that ask for a password, a key and a token.
fn credentials(issuer: &Issuer) -> Value {
    let mut spec = basic();
    spec["basic"]["forwardUser"] = json!("X-Login");
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["jwt"] = jwt(&[issuer.jwk()])["jwt"].clone();
    spec["jwt"]["providers"][0]["from"] = json!([{"type": "Header", "name": "X-Token"}]);
    spec
}

/// A Gateway whose policies say headers of every kind.
fn objects(spec: &Value, is_buffered: bool) -> Objects {
    let header = json!({"header": {"name": "CF-Connecting-IP", "trustedCIDRs": ["127.0.0.0/8"]}});
    let set = json!([{"name": "X-Policy", "value": "by-policy"}]);
    let mut changes = json!({"requestHeaders": {"set": set, "remove": ["X-Removed"]}});
    if is_buffered {
        changes["requestBody"] = json!({"buffer": {"limit": "1Ki"}});
    }
    let mut tenant = per_hour("tenant", 1000);
    tenant["key"] = json!([{"type": "Header", "name": "X-Tenant"}]);
    Objects::http()
        .with(users(&[("alice", BCRYPT)]))
        .with(keys())
        .with(access("a", &gateway(), spec))
        .with(clients("b", &gateway(), &json!({"clientIP": header})))
        .with(defaults("c", &gateway(), &changes))
        .with(limits("d", &gateway(), &json!([tenant]), None))
}

/// Filters of which one says a header.
fn filters() -> Vec<Value> {
    let set = json!({"set": [{"name": "X-Filter", "value": "by-filter"}]});
    vec![modifier(&set)]
}

fn with_mirror() -> Vec<Value> {
    let mut filters = filters();
    filters.push(mirror("mirror"));
    filters
}

async fn over_http1(
    address: SocketAddr,
    content_type: &str,
    head: &[Line],
    trailers: &[Line],
) -> u16 {
    let text = |lines: &[Line]| -> String {
        let lines = lines.iter();
        lines
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect()
    };
    let (head, trailers) = (text(head), text(trailers));
    let mut stream = connect(address).await;
    let own = format!(
        "Host: a.com\r\nContent-Type: {content_type}\r\nConnection: close\r\nTE: trailers\r\n"
    );
    let request = format!(
        "POST {PATH} HTTP/1.1\r\n{own}Transfer-Encoding: chunked\r\n{head}\r\n5\r\n{BODY}\r\n0\r\n{trailers}\r\n"
    );
    write_text(&mut stream, request).await;
    let response = read_all(&mut stream).await;
    let response = String::from_utf8_lossy(&response);
    let status = response.split(' ').nth(1).and_then(|it| it.parse().ok());
    status.unwrap_or_else(|| panic!("no response: {response}"))
}

async fn over_http2(
    address: SocketAddr,
    content_type: &str,
    head: &[Line],
    trailers: &[Line],
) -> u16 {
    let (sender, _ended) = peer::connect(address).await;
    let request = Request::post(format!("http://a.com{PATH}"))
        .header("content-type", content_type)
        .header("te", "trailers");
    let request = head.iter().fold(request, |request, (name, value)| {
        request.header(name, value)
    });
    let mut sender = sender.ready().await.expect("open");
    let request = request.body(()).expect("a request");
    let (response, mut stream) = sender.send_request(request, false).expect("sent");
    stream
        .send_data(Bytes::from_static(BODY.as_bytes()), false)
        .expect("sent");
    stream.send_trailers(header_map(trailers)).expect("sent");
    let response = timeout(TEST_TIMEOUT, response).await.expect("in time");
    response.expect("a response").status().as_u16()
}

/// Sends a request over both versions, and checks what these get of it. Returns whether all get trailers of the application.
async fn check_both(
    case: &str,
    scene: &Scene,
    (head, trailers): (&[Line], &[Line]),
    backends: &mut [&mut Backend],
) -> bool {
    let mut have_trailers = true;
    for is_http2 in [false, true] {
        let case = format!("{case}, HTTP/2: {is_http2}");
        let address = scene.at(80);
        let status = match is_http2 {
            true => over_http2(address, "text/plain", head, trailers).await,
            false => over_http1(address, "text/plain", head, trailers).await,
        };
        assert_eq!(status, 200, "{case}");
        for (number, backend) in backends.iter_mut().enumerate() {
            let case = format!("{case}, backend {number}");
            have_trailers &= backend.checks(&case).await;
        }
    }
    have_trailers
}

fn issuer() -> Issuer {
    Issuer::new("one", jsonwebtoken::Algorithm::ES256)
}

#[test]
fn backends_and_mirrors_of_both_versions_get_what_the_proxy_says() {
    block_on(async {
        let (mut app, mut copies, issuer) = (Backend::new().await, Backend::new().await, issuer());
        let (head, trailers) = (head(&issuer), trailers(&[]));
        for (protocol, is_buffered) in [("", false), (H2C, false), ("", true), (H2C, true)] {
            let rule = with_filters("/", "app", &with_mirror());
            let objects = objects(&credentials(&issuer), is_buffered)
                .with(service_of("app", &[app.origin.address], protocol))
                .with(service_of("mirror", &[copies.origin.address], protocol))
                .route("route", &[rule]);
            let scene = Scene::start(&objects);
            let case = format!("{protocol}, buffered: {is_buffered}");
            let sent = (&*head, &*trailers);
            let have_trailers = check_both(&case, &scene, sent, &mut [&mut app, &mut copies]).await;
            // Of a body whose length is known, an HTTP/1 backend gets none.
            assert!(have_trailers || is_buffered, "{case}");
        }
    });
}

#[test]
fn backends_and_mirrors_of_grpc_calls_get_what_the_proxy_says() {
    block_on(async {
        let (mut app, mut copies, issuer) = (Backend::new().await, Backend::new().await, issuer());
        let mut rule = to("app");
        rule["filters"] = with_mirror().into();
        let objects = objects(&credentials(&issuer), false)
            .with(service_of("app", &[app.origin.address], H2C))
            .with(service_of("mirror", &[copies.origin.address], H2C))
            .with(grpc_route("route", &[], &[rule]));
        let scene = Scene::start(&objects);
        let (head, trailers) = (head(&issuer), trailers(&[]));
        over_http2(scene.at(80), "application/grpc", &head, &trailers).await;
        assert!(app.checks("gRPC").await);
        assert!(copies.checks("gRPC, mirror").await);
        over_http2(scene.at(80), "application/grpc-web", &head, &trailers).await;
        app.checks("gRPC-Web").await;
        copies.checks("gRPC-Web, mirror").await;
        over_http1(scene.at(80), "application/grpc-web", &head, &trailers).await;
        app.checks("gRPC-Web over HTTP/1").await;
        copies.checks("gRPC-Web over HTTP/1, mirror").await;
    });
}

/// A backend of a tunnel, which tells the head of its request and what follows.
async fn tunnel_end() -> (Origin, mpsc::UnboundedReceiver<String>) {
    let (sender, received) = mpsc::unbounded_channel();
    let origin = Origin::raw(move |mut stream| {
        let sender = sender.clone();
        async move {
            let head = switch(&mut stream).await;
            let _ = sender.send(head);
            let rest = read_all(&mut stream).await;
            let _ = sender.send(String::from_utf8_lossy(&rest).into_owned());
        }
    });
    (origin.await, received)
}

#[test]
fn backends_of_tunnels_get_what_the_proxy_says() {
    block_on(async {
        let (origin, mut received) = tunnel_end().await;
        let issuer = issuer();
        let objects = objects(&credentials(&issuer), false)
            .service("app", &[origin.address])
            .route("route", &[with_filters("/", "app", &filters())]);
        let scene = Scene::start(&objects);
        let head = head(&issuer);
        let mut next = async || {
            let next = timeout(TEST_TIMEOUT, received.recv()).await;
            next.expect("in time").expect("text")
        };
        let parsed = |text: &str| -> Lines {
            let lines = text.lines().filter_map(|line| line.split_once(": "));
            lines
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };

        let mut client = connect(scene.at(80)).await;
        let own = "Host: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let lines: String = head
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        write_text(
            &mut client,
            format!("GET {PATH} HTTP/1.1\r\n{own}{lines}\r\n"),
        )
        .await;
        let response = read_until(&mut client, "welcome").await;
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        check("WebSocket", &parsed(&next().await));
        drop(client);
        assert_eq!(next().await, "");

        let (sender, _ended) = peer::connect(scene.at(80)).await;
        let request = Request::connect(format!("http://a.com{PATH}"))
            .extension(Protocol::from("websocket"))
            .header("sec-websocket-version", "13");
        let request = head.iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let (response, mut stream) = open(&sender, request.body(()).expect("a request")).await;
        assert_eq!(response.status(), 200);
        check("WebSocket over HTTP/2", &parsed(&next().await));
        stream
            .send_trailers(header_map(&trailers(&[])))
            .expect("sent");
        assert_eq!(next().await, "", "trailers are no bytes of a tunnel");
    });
}

/// A section that asks an authorization server with all headers that the proxy says, and with the body.
fn external(protocol: &str, settings: &Value) -> Value {
    let field = protocol.to_lowercase();
    let mut section = json!({"protocol": protocol, "backendRef": {"name": "auth", "port": 80}});
    section["forwardBody"] = json!({"maxSize": 10});
    section[field] = settings.clone();
    section
}

#[test]
fn authorization_servers_and_backends_behind_them_get_what_the_proxy_says() {
    block_on(async {
        let (mut app, mut server, issuer) = (Backend::new().await, Backend::new().await, issuer());
        let (head, of_http) = (head(&issuer), trailers(&["X-Level"]));
        let asked = json!([
            "X-Login", "X-User", "X-Client", "X-Groups", "X-Roles", "X-Tenant", "X-Level"
        ]);
        for settings in [
            json!({"allowedHeaders": asked, "allowedResponseHeaders": ["X-Level"]}),
            json!({"allowedHeaders": asked}),
        ] {
            let mut spec = credentials(&issuer);
            spec["external"] = external("HTTP", &settings);
            let objects = objects(&spec, false)
                .service("app", &[app.origin.address])
                .service("auth", &[server.origin.address])
                .route("route", &[with_filters("/", "app", &filters())]);
            let scene = Scene::start(&objects);
            check_both("HTTP", &scene, (&head, &of_http), &mut [&mut app]).await;
            for _ in 0..2 {
                let (asked, _) = server.next().await;
                let forged = asked.iter().any(|(_, value)| value.contains("forged"));
                let has =
                    |line: (&str, &str)| asked.contains(&(line.0.to_owned(), line.1.to_owned()));
                assert!(!forged && has(("x-login", "alice")), "{asked:?}");
            }
        }

        let (server, mut asked) = external_auth_grpc::server().await;
        let mut spec = credentials(&issuer);
        spec["external"] = external("GRPC", &json!({}));
        let objects = objects(&spec, false)
            .service("app", &[app.origin.address])
            .with(service_of("auth", &[server.address], H2C))
            .route("route", &[with_filters("/", "app", &filters())]);
        let scene = Scene::start(&objects);
        check_both(
            "GRPC",
            &scene,
            (&head, &trailers(&["X-User-Id"])),
            &mut [&mut app],
        )
        .await;
        for _ in 0..2 {
            let headers = external_auth_grpc::next(&mut asked).await.headers;
            let mut forged = headers.iter().filter(|(_, value)| value.contains("forged"));
            // What filters and RoutePolicies change, they change after the server was asked.
            let later = ["x-filter", "x-policy", "x-removed"];
            let is_later = |(name, _): (&String, &String)| later.contains(&&**name);
            assert!(forged.all(is_later), "{headers:?}");
            assert_eq!(headers["x-login"], "alice");
        }
    });
}

/// What a client says by a header of the authorization server is gone before limits count by it.
#[test]
fn limits_do_not_count_by_what_only_an_authorization_server_says() {
    block_on(async {
        let (app, server) = (Backend::new().await, Backend::new().await);
        let settings = json!({"allowedResponseHeaders": ["X-Level"]});
        let spec = json!({"external": external("HTTP", &settings)});
        let mut limit = per_hour("level", 1);
        limit["key"] = json!([{"type": "Header", "name": "X-Level"}]);
        let objects = Objects::http()
            .service("app", &[app.origin.address])
            .service("auth", &[server.origin.address])
            .route("route", &[to("app")])
            .with(access("a", &gateway(), &spec))
            .with(limits("b", &gateway(), &json!([limit]), None));
        let scene = Scene::start(&objects);
        let mut statuses = Vec::new();
        for level in ["1", "2", "3"] {
            let head = vec![("x-level".to_owned(), level.to_owned())];
            statuses.push(over_http1(scene.at(80), "text/plain", &head, &[]).await);
        }
        assert_eq!(statuses, [200, 429, 429]);
    });
}

#[test]
fn backends_get_the_tokens_of_a_session_and_no_others() {
    block_on(async {
        let (mut app, provider) = (Backend::new().await, Provider::start().await);
        let names = ["X-Access-Token", "X-ID-Token", "X-User"];
        let changes = json!({"forwardAccessToken": names[0], "forwardIDToken": names[1]});
        let scene = provider.scene(&app.origin, &changes).await;
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        browser.sign_in(&provider, "/").await;
        let session = browser.session().expect("a session");
        let mut head = forged(names, true);
        head.push((
            "cookie".to_owned(),
            format!("{}={}", session.name, session.value),
        ));
        head.push(("x_other".to_owned(), "other".to_owned()));
        let mut trailers = forged(names, true);
        trailers.push(("x.other".to_owned(), "other".to_owned()));
        let mut statuses = Vec::new();
        statuses.push(over_http1(scene.at(80), "text/plain", &head, &trailers).await);
        statuses.push(over_http2(scene.at(80), "text/plain", &head, &trailers).await);
        assert_eq!(statuses, [200, 200]);
        for _ in 0..2 {
            let (head, trailers) = app.next().await;
            let is_forged = |(_, value): &Line| value.contains("forged");
            assert!(
                !head.iter().chain(&trailers).any(is_forged),
                "{head:?} {trailers:?}"
            );
            for name in names.map(str::to_lowercase) {
                let values = head.iter().filter(|(own, _)| *own == name);
                assert_eq!(values.count(), 1, "{name}: {head:?}");
            }
            assert_eq!(trailers.len(), 1, "{trailers:?}");
        }
    });
}
