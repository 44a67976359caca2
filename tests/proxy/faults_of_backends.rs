//! Faults of backends and of what the proxy asks: each is the first problem while it lasts, with cause, object and remedy, and is
//! gone after the repair.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backend_limits::{gated, send};
use crate::backend_policy;
use crate::backend_tls::{authorities, policy, trust};
use crate::client::{Client, connect, get, read_all, read_until, refuses, write_text};
use crate::first_problem::{Problem, is_first, is_gone};
use crate::harness::UNREACHED;
use crate::harness::dns::NameServer;
use crate::health_checks::{self, Checked, OK, until_failed};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, to};
use crate::tls_origin::{Authority, TlsOrigin};
use crate::traces;

const APP: &str = "Service default/app:80";
const RULE: &str = "HTTPRoute default/route rule 0";

/// Returns objects with these endpoints of the Service `app`, and a rule that leads to it.
fn objects(origins: &[&Origin], rule: &Value) -> Objects {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    Objects::http()
        .service("app", &addresses)
        .route("route", slice::from_ref(rule))
}

/// Sends requests, and reads as much of their responses as there is.
async fn requests(scene: &Scene, count: usize) {
    for _ in 0..count {
        let mut stream = connect(scene.at(80)).await;
        write_text(
            &mut stream,
            "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\n",
        )
        .await;
        read_all(&mut stream).await;
    }
}

/// A backend that reads a request, sends this text and closes the connection.
async fn sending(text: &'static str) -> Origin {
    Origin::raw(move |mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(&mut stream, text).await;
    })
    .await
}

/// A backend that does not respond.
async fn silent() -> Origin {
    Origin::raw(|stream| async move {
        let _open: TcpStream = stream;
        std::future::pending().await
    })
    .await
}

/// Sends requests to a backend, by a rule with these fields, and replaces it by one that works.
async fn backend_is_first(origin: &Origin, fields: Value, problem: &Problem<'_>) {
    let mut rule = to("app");
    let fields = fields.as_object().cloned().unwrap_or_default();
    rule.as_object_mut().expect("fields").extend(fields);
    let mut scene = Scene::start(&objects(&[origin], &rule));
    requests(&scene, 3).await;
    is_first(&scene, problem).await;
    let echo = Origin::echo("echo").await;
    scene.replace(&objects(&[&echo], &rule)).await;
    is_gone(&scene).await;
}

fn failing<'a>(texts: &'a [&'a str]) -> Problem<'a> {
    Problem {
        kind: "failing",
        object: APP,
        texts,
    }
}

fn route<'a>(texts: &'a [&'a str]) -> Problem<'a> {
    Problem {
        kind: "route",
        object: RULE,
        texts,
    }
}

#[tokio::test]
async fn backend_that_closes_connections_is_the_first_problem() {
    let texts = [
        "closes connections before it responds",
        "check its log, and what stands before it",
    ];
    backend_is_first(&sending("").await, json!({}), &failing(&texts)).await;
    let reset = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        let linger = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        linger.expect("a socket");
    });
    backend_is_first(&reset.await, json!({}), &failing(&texts)).await;
}

#[tokio::test]
async fn backend_that_breaks_responses_off_is_the_first_problem() {
    let part = sending("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart").await;
    let texts = [
        "closes connections before the end of its responses",
        "check its log, and what stands before it",
    ];
    backend_is_first(&part, json!({}), &failing(&texts)).await;
}

#[tokio::test]
async fn backend_that_does_not_speak_http_is_the_first_problem() {
    let texts = [
        "sends responses that violate the protocol",
        "check that the port speaks HTTP, and appProtocol of the Service",
    ];
    let mail = sending("220 mail.example.com ready\r\n").await;
    backend_is_first(&mail, json!({}), &failing(&texts)).await;
}

#[tokio::test]
async fn backend_that_does_not_respond_in_time_is_the_first_problem() {
    let texts = [
        "does not respond within the backendRequest timeout",
        "check its load and its log, or raise the timeout",
    ];
    let timeouts = json!({"timeouts": {"request": "30s", "backendRequest": "50ms"}});
    backend_is_first(&silent().await, timeouts, &failing(&texts)).await;
    let texts = [
        " responses in the last minute were 5xx, most with the error `no complete response within the request timeout`",
        "`portcullis tap --status 5xx` shows them, and errors.md what to do",
    ];
    let timeouts = json!({"timeouts": {"request": "50ms"}});
    backend_is_first(&silent().await, timeouts, &route(&texts)).await;
}

#[tokio::test]
async fn errors_of_the_application_are_the_first_problem() {
    let origin = Origin::new(|_| async {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    let origin = origin.await;
    let texts = [" responses in the last minute were 5xx, most from the backend; see its log"];
    backend_is_first(&origin, json!({}), &route(&texts)).await;
    let texts = [
        " responses in the last minute were 5xx, most from the backend, also after retries; see its log",
    ];
    let retry = json!({"retry": {"codes": [500], "attempts": 1, "backoff": "1ms"}});
    backend_is_first(&origin, retry, &route(&texts)).await;
}

/// Sends a request to a backend by TLS that is verified with the authority, and replaces it by one without TLS.
async fn tls_is_first(
    (address, authority): (SocketAddr, &Authority),
    connect_timeout: Duration,
    problem: &Problem<'_>,
) {
    let echo = Origin::echo("echo").await;
    let plain = Objects::http().route("route", &[to("app")]);
    let tls = plain
        .clone()
        .service("app", &[address])
        .with(policy("app", &trust("app.example.com"), &json!({})))
        .with(authorities("ca", &authority.pem));
    let mut scene = Scene::with(&tls, |settings| {
        settings.limits.connect_timeout = connect_timeout;
    });
    requests(&scene, 1).await;
    is_first(&scene, problem).await;
    scene.replace(&plain.service("app", &[echo.address])).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn certificate_of_a_backend_is_the_first_problem() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let foreign = TlsOrigin::start(&other.issue(&["app.example.com"])).await;
    let texts = [
        "the backend's certificate is from an authority that its BackendTLSPolicy does not trust",
        "compare its certificate with its BackendTLSPolicy",
    ];
    tls_is_first((foreign.address, &trusted), UNREACHED, &failing(&texts)).await;
    let expired = TlsOrigin::start(&trusted.issue_expired(&["app.example.com"])).await;
    let texts = [
        "the backend's certificate has expired",
        "renew its certificate",
    ];
    tls_is_first((expired.address, &trusted), UNREACHED, &failing(&texts)).await;
    let renamed = TlsOrigin::start(&trusted.issue(&["old.example.com"])).await;
    let texts = [
        "the backend's certificate has none of the names that its BackendTLSPolicy requires",
        "compare its certificate with its BackendTLSPolicy",
    ];
    tls_is_first((renamed.address, &trusted), UNREACHED, &failing(&texts)).await;
}

#[tokio::test]
async fn tls_to_a_port_without_it_is_the_first_problem() {
    let authority = Authority::new();
    let remedy = "check that the port speaks TLS, or remove its BackendTLSPolicy";
    let plain = Origin::raw(|mut stream| async move {
        let mut first = [0; 1];
        stream.read_exact(&mut first).await.expect("a byte");
        write_text(&mut stream, "HTTP/1.1 400 Bad Request\r\n\r\n").await;
        read_all(&mut stream).await;
    });
    let plain = plain.await;
    let texts = [
        "the backend does not speak TLS as its BackendTLSPolicy requires",
        remedy,
    ];
    tls_is_first((plain.address, &authority), UNREACHED, &failing(&texts)).await;
    let silent = silent().await;
    let texts = [
        "accepts connections, but does not complete TLS in time",
        remedy,
    ];
    let short = Duration::from_millis(50);
    tls_is_first((silent.address, &authority), short, &failing(&texts)).await;
}

#[tokio::test]
async fn endpoint_that_dies_after_long_health_is_the_first_problem() {
    let origin = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        write_text(&mut stream, text).await;
    });
    let origin = origin.await;
    let mut scene = Scene::start(&objects(&[&origin], &to("app")));
    for _ in 0..300 {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    }
    is_gone(&scene).await;
    let address = origin.address;
    drop(origin);
    refuses(address).await;
    requests(&scene, 1).await;
    let texts = [
        "refuses connections (failed attempts in the last minute: 1)",
        "check that the pods listen on this port, and targetPort of the Service",
    ];
    is_first(&scene, &failing(&texts)).await;
    let echo = Origin::echo("echo").await;
    scene.replace(&objects(&[&echo], &to("app"))).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn endpoint_that_is_ejected_or_fails_its_checks_is_the_first_problem() {
    let echo = Origin::echo("echo").await;
    let dead = Objects::http()
        .service("app", &[Origin::dead(), echo.address])
        .route("route", &[to("app")]);
    let mut scene = Scene::start(&dead);
    requests(&scene, 20).await;
    let problem = Problem {
        kind: "endpoint",
        object: APP,
        texts: &[
            "has failed and gets no requests while others work: refuses connections",
            "check that the pods listen on this port, and targetPort of the Service",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&objects(&[&echo], &to("app"))).await;
    is_gone(&scene).await;

    let ill = Checked::start(500).await;
    let addresses = [ill.origin.address, echo.address];
    scene
        .replace(&health_checks::service(&addresses, health_checks::http()))
        .await;
    until_failed(&scene, 1).await;
    let problem = Problem {
        kind: "endpoint",
        object: APP,
        texts: &[
            "fails its health checks and gets no requests while others work",
            "check its log and its load, and healthCheck of its BackendPolicy",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&objects(&[&echo], &to("app"))).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn backend_that_becomes_slow_is_the_first_problem() {
    let is_slow = Arc::<AtomicBool>::default();
    let state = is_slow.clone();
    let origin = Origin::new(move |_| {
        let is_slow = state.load(SeqCst);
        async move {
            if is_slow {
                // The time that makes a backend slow.
                sleep(Duration::from_secs(1)).await;
            }
            Response::new(full("ok"))
        }
    });
    let origin = origin.await;
    let scene = Scene::start(&objects(&[&origin], &to("app")));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..200 {
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    is_gone(&scene).await;
    is_slow.store(true, SeqCst);
    let mut slow = JoinSet::new();
    for _ in 0..20 {
        let mut client = Client::http1(scene.at(80)).await;
        slow.spawn(async move { client.get("a.com", "/").await });
    }
    for answer in slow.join_all().await {
        assert_eq!(answer.status, 200);
    }
    let problem = Problem {
        kind: "slow",
        object: APP,
        texts: &[
            " ms on average in the last minute, and took ",
            "check its load, its log and what it waits for",
        ],
    };
    is_first(&scene, &problem).await;
    is_slow.store(false, SeqCst);
    is_gone(&scene).await;
}

#[tokio::test]
async fn limit_of_a_backend_is_the_first_problem() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let limits = backend_policy::policy(json!({"limits": {"maxRequests": 1}}));
    let scene = Scene::start(&objects(&[&origin], &to("app")).with(limits));
    let sent = send(&scene, 1).await;
    origin.until_requests(1).await;
    requests(&scene, 2).await;
    let problem = Problem {
        kind: "overload",
        object: APP,
        texts: &[
            "attempts failed in the last minute: a limit of its policy is reached",
            "raise it, or add endpoints",
        ],
    };
    is_first(&scene, &problem).await;
    gate.add_permits(1);
    sent.join_all().await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn spans_that_a_collector_refuses_are_the_first_problem() {
    // A status after which a message is not sent again.
    let collector = Origin::new(|_| async {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    });
    let (collector, echo) = (collector.await, Origin::echo("echo").await);
    let traced = objects(&[&echo], &to("app"))
        .service("collector", &[collector.address])
        .with(traces::policy(traces::ALL));
    let mut scene = Scene::start(&traced);
    requests(&scene, 1).await;
    let problem = Problem {
        kind: "telemetry",
        object: "telemetry",
        texts: &[
            " spans and records of the access log were dropped in the last minute: their collector is away, too slow or refuses them",
            "check it, or send it less by a TelemetryPolicy",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&objects(&[&echo], &to("app"))).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn hostname_without_addresses_is_the_first_problem() {
    let (names, origin) = (NameServer::start().await, Origin::echo("echo").await);
    let reference =
        json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "api"});
    let backend = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": {"name": "api"},
        "spec": {
            "type": "ExternalHostname", "externalHostname": {"hostname": "api.example.com"},
            "port": {"port": 80}, "protocol": "HTTP",
        },
    });
    let named = Objects::http()
        .route("route", &[json!({"backendRefs": [reference]})])
        .with(backend.to_string());
    let mut scene = Scene::with(&named, |settings| {
        settings.dns_servers = vec![names.address];
    });
    names.wait_for_queries("api.example.com", 1).await;
    requests(&scene, 1).await;
    let problem = Problem {
        kind: "backend",
        object: "XBackend default/api:80",
        texts: &[
            "api.example.com has no address that may be used, since DNS has none or does not answer: its requests get 503",
            "correct the name, or look it up from this host",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&objects(&[&origin], &to("app"))).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn backend_of_connections_without_endpoints_is_the_first_problem() {
    let listener = "{name: tcp, port: 80, protocol: TCP}".to_owned();
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: route}\nspec:\n  \
                 parentRefs: [{name: gateway}]\n  rules: [{backendRefs: [{name: app, port: 80}]}]";
    let objects = Objects::gateway(&[listener]).with(route.to_owned());
    let mut scene = Scene::start(&objects.clone().service("app", &[]));
    let problem = Problem {
        kind: "backend",
        object: APP,
        texts: &["has no ready endpoint: its connections are reset"],
    };
    is_first(&scene, &problem).await;
    let raw = Origin::raw(|mut stream| async move { write_text(&mut stream, OK).await });
    let raw = raw.await;
    scene.replace(&objects.service("app", &[raw.address])).await;
    is_gone(&scene).await;
}
