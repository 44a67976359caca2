//! The admin server: health, metrics of real traffic, and a configuration page without private
//! keys.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, connect, get, handshake, read_all, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret, to, write};

pub(crate) async fn page(scene: &Scene, path: &str) -> String {
    let answer = get(scene.admin_address(), "localhost", path).await;
    assert_eq!(answer.status, 200, "{path}");
    answer.text().to_owned()
}

/// Value of a metric with exactly these labels; 0 if missing.
pub(crate) async fn metric(scene: &Scene, name: &str) -> f64 {
    let page = page(scene, "/metrics").await;
    let mut lines = page.lines().map(|it| it.trim_start_matches("portcullis_"));
    let line = lines.find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Labels of responses without an error.
const OK: &str = r#"http_response_status_code="200",error_type="""#;

/// Label of responses of endpoints.
const STATUS: &str = r#",http_response_status_code="200""#;

/// Labels of responses for lack of an endpoint.
const NO_ENDPOINT: &str =
    r#"http_response_status_code="503",error_type="the backend has no ready endpoint""#;

/// The counter of GET requests to a rule of HTTPRoute default/route with this outcome.
fn requests(rule: &str, outcome: &str) -> String {
    let labels = rule_labels(rule);
    format!(r#"requests_total{{{labels},http_request_method="GET",{outcome}}}"#)
}

/// The counter of requests that matched no rule.
fn unmatched(status: &str, error: &str) -> String {
    format!(
        r#"unmatched_requests_total{{http_response_status_code="{status}",error_type="{error}"}}"#
    )
}

/// Labels of a rule of HTTPRoute default/route.
pub(crate) fn rule_labels(rule: &str) -> String {
    format!(r#"namespace="default",route="route",kind="HTTPRoute",rule="{rule}""#)
}

/// Labels of port 80 of a Service in plain text.
pub(crate) fn service_labels(name: &str) -> String {
    service_labels_with(name, "http1", "none")
}

/// Labels of port 80 of a Service.
pub(crate) fn service_labels_with(name: &str, protocol: &str, tls: &str) -> String {
    format!(
        r#"namespace="default",backend="{name}",kind="Service",port="80",protocol="{protocol}",tls="{tls}""#
    )
}

#[tokio::test]
async fn health_and_readiness() {
    let scene = Scene::start(&Objects::http());
    assert_eq!(page(&scene, "/healthz").await, "ok\n");
    assert_eq!(page(&scene, "/readyz").await, "ready\n");
    assert!(page(&scene, "/").await.contains("/page.js"));
    assert_eq!(
        get(scene.admin_address(), "admin", "/nothing").await.status,
        404
    );
}

#[tokio::test]
async fn counts_requests_and_failures() {
    let echo = Origin::echo("echo").await;
    let mut named = prefix("/named", "echo");
    named["name"] = "named".into();
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("dead", &[Origin::dead()])
        .service("empty", &[])
        .route(
            "route",
            &[named, prefix("/dead", "dead"), prefix("/empty", "empty")],
        );
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..7 {
        assert_eq!(client.get("a.com", "/named?secret=1").await.status, 200);
    }
    for _ in 0..2 {
        assert_eq!(client.get("a.com", "/dead").await.status, 503);
        assert_eq!(client.get("a.com", "/empty").await.status, 503);
    }
    assert_eq!(client.get("a.com", "/unknown").await.status, 404);
    let backend = |metric: &str, name: &str, more: &str| {
        format!("upstream_{metric}{{{}{more}}}", service_labels(name))
    };
    let route = format!("{{{}", rule_labels("named"));
    let rows = [
        (requests("named", OK), 7.0),
        (
            format!("http_server_request_duration_seconds_count{route}}}"),
            7.0,
        ),
        (
            format!(
                r#"http_server_request_duration_seconds_bucket{{le="+Inf",{}}}"#,
                &route[1..]
            ),
            7.0,
        ),
        (format!("requests_in_flight{route}}}"), 0.0),
        (requests("2", NO_ENDPOINT), 2.0),
        (backend("responses_total", "echo", STATUS), 7.0),
        (backend("connections_total", "echo", ""), 1.0),
        (backend("errors_total", "dead", r#",reason="connect""#), 2.0),
        (
            backend("errors_total", "empty", r#",reason="no_endpoint""#),
            2.0,
        ),
        (backend("endpoints", "echo", ""), 1.0),
        (backend("endpoints_ejected", "echo", ""), 0.0),
        (backend("ejections_total", "dead", ""), 0.0),
        (backend("hedged_connects_total", "echo", ""), 0.0),
        ("connections_open".to_owned(), 1.0),
        ("connections_accepted_total".to_owned(), 1.0),
    ];
    for (name, value) in rows {
        let found = metric(&scene, &name).await;
        assert_eq!(
            found,
            value,
            "{name} in\n{}",
            page(&scene, "/metrics").await
        );
    }
    let all = page(&scene, "/metrics").await;
    assert!(
        !all.contains("secret") && !all.contains("unknown"),
        "labels never hold what a client says"
    );
}

#[tokio::test]
async fn counts_handshakes_and_bad_requests() {
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("tls", 443, "a.com", &["certificate"]),
    ])
    .with(secret("certificate", &certificate));
    let scene = Scene::start(&objects);
    let config = tls::client(&["http/1.1"]);
    for _ in 0..3 {
        assert!(handshake(scene.at(443), "a.com", &config).await.is_ok());
    }
    for _ in 0..2 {
        assert!(handshake(scene.at(443), "b.com", &config).await.is_err());
    }
    assert_eq!(get(scene.at(80), "a.com", "/%00").await.status, 400);
    let mut garbage = connect(scene.at(80)).await;
    write_text(&mut garbage, "no HTTP at all\r\n\r\n").await;
    read_all(&mut garbage).await;
    scene
        .until_stats("all are gone", |stats| stats.open == 0)
        .await;
    let rows = [
        ("tls_handshakes_total", 3.0),
        (r#"tls_handshake_failures_total{reason="server_name"}"#, 2.0),
        ("bad_requests_total", 2.0),
        ("connections_accepted_total", 7.0),
        ("connections_open", 0.0),
    ];
    for (name, value) in rows {
        assert_eq!(metric(&scene, name).await, value, "{name}");
    }
    let expiry =
        r#"certificate_expiry_timestamp_seconds{namespace="default",secret="certificate"}"#;
    assert!(metric(&scene, expiry).await > 1.7e9);
}

#[tokio::test]
async fn failed_handshakes_have_a_reason() {
    let certificate = Certificate::new(&["a.com"]);
    let listener = https("tls", 443, "a.com", &["certificate"]);
    let objects = Objects::gateway(&[listener]).with(secret("certificate", &certificate));
    let scene = Scene::with(&objects, |settings| {
        settings.limits.handshake_timeout = Duration::from_secs(2);
    });
    let at = scene.at(443);
    let trusts_nobody = tls::client_without_trust();
    for (name, config) in [("b.com", tls::client(&[])), ("a.com", trusts_nobody)] {
        assert!(handshake(at, name, &config).await.is_err(), "{name}");
    }
    let mut plain = connect(at).await;
    write_text(&mut plain, "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n").await;
    read_all(&mut plain).await;
    drop(connect(at).await);
    let mut silent = connect(at).await;
    read_all(&mut silent).await;
    scene
        .until_stats("all are gone", |stats| stats.open == 0)
        .await;
    for (reason, count) in [
        ("server_name", 1.0),
        ("refused", 1.0),
        ("not_tls", 1.0),
        ("closed", 1.0),
        ("timeout", 1.0),
        ("incompatible", 0.0),
    ] {
        let name = format!(r#"tls_handshake_failures_total{{reason="{reason}"}}"#);
        assert_eq!(metric(&scene, &name).await, count, "{reason}");
    }
}

#[tokio::test]
async fn times_of_backends_and_of_the_process_have_standard_names() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &[prefix("/", "echo")]);
    let scene = Scene::start(&objects);
    for _ in 0..3 {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    }
    let all = page(&scene, "/metrics").await;
    let labels = service_labels("echo");
    let count = format!("http_client_request_duration_seconds_count{{{labels}}} 3\n");
    assert!(all.contains(&count), "{all}");
    for name in [
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        r#"portcullis_worker_busy_seconds_total{worker="0"}"#,
    ] {
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        let value = all.lines().find_map(value);
        assert!(value.is_some_and(|value| value > 0.0), "{name}: {value:?}");
    }
    assert_eq!(all.matches("# EOF").count(), 1);
}

#[tokio::test]
async fn counters_of_requests_are_sums_over_workers() {
    let echo = Origin::echo("echo").await;
    let base = Objects::http().service("echo", &[echo.address]);
    let mut pattern = prefix("/[a-z]+", "echo");
    pattern["matches"][0]["path"]["type"] = "RegularExpression".into();
    let mut scene = Scene::start(&base.clone().route("route", &[pattern.clone()]));
    // A new connection goes to the worker with the fewest.
    let mut clients = [
        Client::http1(scene.at(80)).await,
        Client::http1(scene.at(80)).await,
    ];
    for (client, requests) in clients.iter_mut().zip([2, 3]) {
        for _ in 0..requests {
            assert_eq!(client.get("a.com", "/path").await.status, 200);
            assert_eq!(client.get("a.com", "/0").await.status, 404);
        }
    }
    for worker in ["0", "1"] {
        let name = format!(r#"worker_connections{{worker="{worker}"}}"#);
        assert_eq!(metric(&scene, &name).await, 1.0, "{worker}");
    }
    // Equal rules keep their counters.
    let replaced = base.route("route", &[pattern, prefix("/new", "echo")]);
    scene.replace(&replaced).await;
    let rule = rule_labels("0");
    for (name, value) in [
        (requests("0", OK), 5.0),
        (
            format!("http_server_request_duration_seconds_count{{{rule}}}"),
            5.0,
        ),
        (format!("requests_in_flight{{{rule}}}"), 0.0),
        (unmatched("404", "no route matches this request"), 5.0),
    ] {
        assert_eq!(metric(&scene, &name).await, value, "{name}");
    }
}

#[tokio::test]
async fn counts_requests_without_a_rule_by_status() {
    let certificates = ["a", "b"].map(|name| {
        let host = format!("{name}.com");
        secret(name, &Certificate::new(&[&host]))
    });
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("a", 443, "a.com", &["a"]),
        https("b", 443, "b.com", &["b"]),
    ]);
    let objects = certificates.into_iter().fold(objects, Objects::with);
    let scene = Scene::start(&objects);
    let plain = scene.at(80);
    assert_eq!(get(plain, "a.com", "/%00").await.status, 400);
    for _ in 0..2 {
        assert_eq!(get(plain, "a.com", "/").await.status, 404);
    }
    let config = tls::client(&["http/1.1"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(client.get("b.com", "/").await.status, 421);
    for (status, error, value) in [
        ("400", "the path has a NUL", 1.0),
        ("404", "no route matches this request", 2.0),
        ("421", "this host is served on another connection", 1.0),
    ] {
        let name = unmatched(status, error);
        assert_eq!(metric(&scene, &name).await, value, "{name}");
    }
}

#[tokio::test]
async fn counts_reloads() {
    let echo = Origin::echo("echo").await;
    let base = Objects::http().service("echo", &[echo.address]);
    let mut scene = Scene::start(&base.clone().route("route", &[to("echo")]));
    assert_eq!(metric(&scene, "config_generation").await, 1.0);
    assert_eq!(metric(&scene, "config_problems").await, 0.0);
    assert!(metric(&scene, "config_load_timestamp_seconds").await > 1.7e9);
    for _ in 0..3 {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    }
    scene
        .replace(&base.route("route", &[to("echo"), prefix("/x", "missing")]))
        .await;
    assert_eq!(metric(&scene, "config_generation").await, 2.0);
    assert!(metric(&scene, "config_problems").await >= 1.0);
    // Counters of unchanged rules continue.
    assert_eq!(metric(&scene, &requests("0", OK)).await, 3.0);
}

#[tokio::test]
async fn config_page_contains_no_private_keys() {
    let echo = Origin::echo("echo").await;
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[https("tls", 443, "a.com", &["certificate"])])
        .with(secret("certificate", &certificate))
        .service("echo", &[echo.address])
        .route("shown-route", &[to("echo")]);
    let mut scene = Scene::start(&objects);
    let shown = page(&scene, "/config").await;
    let parsed: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(parsed["ports"][0]["bind"], json!("*:443"));
    assert!(shown.contains("shown-route"));
    // Also not in messages about an invalid Secret.
    let swapped = crate::scene::secret_of("certificate", &certificate.key, &certificate.pem);
    scene
        .change(|folder| {
            write(
                folder,
                "more.yaml",
                &swapped.replace("certificate\n", "other\n"),
            )
        })
        .await;
    let secret_line = certificate.key.lines().nth(1).expect("a key");
    let outcome = format!("{:?}", scene.last());
    for path in ["/config", "/", "/metrics"] {
        let page = page(&scene, path).await;
        for text in [&page, &outcome] {
            assert!(!text.contains("PRIVATE KEY"), "{path}");
            assert!(!text.contains(secret_line), "{path}");
        }
    }
}

/// Connects from a local address.
async fn connect_from(host: [u8; 4], admin: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((host, 0).into()).expect("an own address");
    socket.connect(admin).await.expect("a connection")
}

/// Reports whether an idle connection is open. A rejected one closes at once.
async fn is_open(stream: &mut TcpStream) -> bool {
    // A wait for nothing.
    let read = timeout(Duration::from_millis(100), stream.read(&mut [0])).await;
    read.is_err()
}

#[tokio::test]
async fn idle_connections_do_not_block_probes() {
    let scene = Scene::start(&Objects::http());
    let admin = scene.admin_address();
    let begin = Instant::now();
    let mut idle = Vec::new();
    for number in 0..200 {
        idle.push(connect_from([127, 0, 1, number % 10], admin).await);
    }
    // An idle connection ends after three seconds: if each probe waited for one, they would take two minutes.
    let probes = async {
        for _ in 0..40 {
            assert_eq!(get(admin, "admin", "/readyz").await.status, 200);
        }
    };
    timeout(TEST_TIMEOUT, probes).await.expect("in time");
    let mut looks = JoinSet::new();
    for mut stream in idle {
        looks.spawn(async move { is_open(&mut stream).await });
    }
    let open = looks
        .join_all()
        .await
        .into_iter()
        .filter(|open| *open)
        .count();
    assert!(open <= 64, "{open} are open");
    // None of them has reached its timeout yet.
    if begin.elapsed() < Duration::from_secs(3) {
        assert!(open >= 40, "{open} are open");
    }
}

#[tokio::test]
async fn one_client_cannot_occupy_all_admin_connections() {
    let scene = Scene::start(&Objects::http());
    let admin = scene.admin_address();
    let mut other = connect_from([127, 0, 1, 1], admin).await;
    let mut many = Vec::new();
    for _ in 0..100 {
        many.push(connect_from([127, 0, 1, 2], admin).await);
    }
    // The oldest connections of the greedy client are closed once its last one is served.
    let last = many.last_mut().expect("many");
    write_text(last, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(read_until(last, "ok\n").await.starts_with("HTTP/1.1 200"));
    assert!(!is_open(&mut many[0]).await);
    assert!(is_open(&mut other).await);
}

#[tokio::test]
async fn config_page_redacts_values_unless_requested() {
    let echo = Origin::echo("echo").await;
    let name_and_value = |name: &str| json!({"name": name, "value": format!("value-of-{name}")});
    let changes =
        |name: &str| json!({"set": [name_and_value(name)], "add": [name_and_value("x-add")]});
    let filters = json!([
        {"type": "RequestHeaderModifier", "requestHeaderModifier": changes("x-request")},
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": changes("x-response")},
    ]);
    let mut rule = prefix("/a", "echo");
    rule["matches"][0]["headers"] = json!([name_and_value("x-exact"), {
        "name": "x-pattern", "type": "RegularExpression", "value": "value-of-x-pattern.*",
    }]);
    rule["matches"][0]["queryParams"] = json!([name_and_value("parameter")]);
    rule["backendRefs"][0]["filters"] = filters.clone();
    rule["filters"] = filters;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let names = [
        "x-request",
        "x-response",
        "x-add",
        "x-exact",
        "x-pattern",
        "parameter",
    ];
    let hidden = page(&scene, "/config").await;
    let shown = page(&scene, "/config?values=true").await;
    for name in names {
        assert!(hidden.contains(name), "{name} in {hidden}");
        assert!(
            shown.contains(&format!("value-of-{name}")),
            "{name} in {shown}"
        );
    }
    assert!(!hidden.contains("value-of"), "{hidden}");
    assert_eq!(hidden.matches("<redacted>").count(), 11, "{hidden}");
}
