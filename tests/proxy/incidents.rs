//! The incidents of docs/operations.md: each is provoked, and the command of the page prints the cause.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Response;
use portcullis::settings::AccessLogTarget;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::access_policy::{access, before, gateway, ip_rules, of_route};
use crate::admin::page;
use crate::api::{portcullis, stdout};
use crate::client::get;
use crate::harness::TEST_TIMEOUT;
use crate::harness::tls::Certificate;
use crate::origin::{Origin, empty};
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, http, https, prefix, route, route_of, secret, to};
use crate::tap::first_line;

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));

/// Starts the objects with an access log in a file.
fn logged(objects: &Objects, log: &Path) -> Scene {
    let target = AccessLogTarget::File(PathBuf::from(log));
    Scene::with(objects, |settings| settings.access_log.target = target)
}

/// Waits until the access log has a text, which the page has too.
async fn until_logged(log: &Path, text: &str) -> String {
    let found = async {
        loop {
            let lines = fs::read_to_string(log).unwrap_or_default();
            if lines.contains(text) {
                return lines;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let lines = timeout(TEST_TIMEOUT, found).await;
    lines.unwrap_or_else(|_| panic!("{text} is not in {:?}", fs::read_to_string(log)))
}

/// Asserts that a command prints each text, and that the page has it.
async fn prints(scene: &Scene, arguments: &[&str], texts: &[&str]) {
    let printed = stdout(&portcullis(scene, arguments).await);
    for text in texts {
        assert!(printed.contains(text), "{text} is not in\n{printed}");
        assert!(
            DOCUMENT.contains(text),
            "{text} is not in docs/operations.md"
        );
    }
}

#[tokio::test]
async fn status_names_what_is_wrong_in_the_configuration() {
    let mut wrong_port = prefix("/port", "app");
    wrong_port["backendRefs"][0]["port"] = json!(81);
    let mut foreign = prefix("/foreign", "app");
    foreign["backendRefs"][0]["namespace"] = json!("data");
    let objects = Objects::gateway(&[http("http", 80, ""), https("tls", 443, "", &["tls"])])
        .with(secret("tls", &Certificate::expired(&["a.com"])))
        .service("app", &[Origin::dead()])
        .service("empty", &[])
        .with(route("foreign", &["b.com"], &[foreign]))
        .with(route_of("http", &[wrong_port, prefix("/empty", "empty")]))
        .route("route", &[to("app")]);
    let scene = Scene::start(&objects);
    let texts = [
        "the certificate has expired at ",
        "ResolvedRefs is False (BackendNotFound)",
        "has no port 81",
        "ResolvedRefs is False (RefNotPermitted)",
        "no ReferenceGrant in namespace data permits it",
        "has no ready endpoint: its requests get 503",
    ];
    prints(&scene, &["status"], &texts).await;
}

#[tokio::test]
async fn backends_show_which_endpoint_is_ejected() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("app", &[Origin::dead(), echo.address]);
    let scene = Scene::start(&objects.route("route", &[to("app")]));
    for _ in 0..20 {
        get(scene.at(80), "a.com", "/").await;
    }
    prints(&scene, &["config", "backends"], &["ejected"]).await;
}

#[tokio::test]
async fn access_log_tells_a_slow_backend_and_an_absent_authorization_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let slow = Origin::new(|_| async {
        sleep(Duration::from_millis(300)).await;
        Response::new(empty())
    });
    let slow = slow.await;
    let mut guarded = prefix("/guarded", "slow");
    guarded["filters"] = json!([{"type": "ExternalAuth", "externalAuth": {
        "protocol": "HTTP", "backendRef": {"name": "auth", "port": 80}, "http": {"path": "/auth"},
    }}]);
    let objects = Objects::http()
        .service("slow", &[slow.address])
        .service("auth", &[Origin::dead()])
        .route("route", &[prefix("/slow", "slow"), guarded]);
    let scene = logged(&objects, &log);
    get(scene.at(80), "a.com", "/slow").await;
    get(scene.at(80), "a.com", "/guarded").await;
    let error = r#""error":"the authorization server is not available""#;
    assert!(DOCUMENT.contains(error));
    until_logged(&log, error).await;
    // Lines of different workers are in no order.
    let lines = until_logged(&log, "/slow").await;
    let line = lines
        .lines()
        .find(|line| line.contains("/slow"))
        .expect("a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let (all, upstream) = (line["duration_ms"].as_f64(), line["upstream_ms"].as_f64());
    assert!(
        upstream.expect("a time") >= 300.0 && all >= upstream,
        "{line}"
    );
}

#[tokio::test]
async fn explanation_shows_the_route_that_shadows_another() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("app", &[echo.address]);
    let objects = objects
        .route("route", &[prefix("/shop/items", "app")])
        .with(crate::scene::route(
            "shadowed",
            &[],
            &[prefix("/shop", "app")],
        ));
    let scene = Scene::start(&objects);
    let request = "http://a.com:80/shop/items";
    let texts = ["not chosen", "matches too, but has lower precedence"];
    prints(&scene, &["explain", request], &texts).await;
}

#[tokio::test]
async fn tap_shows_that_a_limit_refuses_requests_and_metrics_name_it() {
    let echo = Origin::echo("echo").await;
    let policy = limits("api", &gateway(), &json!([per_hour("one", 1)]), None);
    let scene = Scene::start(&before(&echo, &[policy]));
    let requests = async {
        get(scene.at(80), "a.com", "/").await;
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 429);
    };
    let line = first_line(&scene, &["--status", "429"], requests).await;
    let text = "too many requests: a limit is exceeded";
    assert!(line.contains(text), "{line}");
    assert!(DOCUMENT.contains(text) && DOCUMENT.contains("portcullis tap --status 429"));
    let name = "portcullis_limit_exceeded_total";
    let labels = r#"{namespace="default",policy="api",limit="one",mode="Enforce"} 1"#;
    let metrics = page(&scene, "/metrics").await;
    assert!(metrics.contains(&format!("{name}{labels}")), "{metrics}");
    assert!(DOCUMENT.contains(name));
}

#[tokio::test]
async fn policies_tell_which_one_permits_more_than_another() {
    let echo = Origin::echo("echo").await;
    let strict = access("strict", &gateway(), &ip_rules(&["192.0.2.0/24"], &[]));
    let loose = access("loose", &of_route(), &ip_rules(&["127.0.0.0/8"], &[]));
    let scene = Scene::start(&before(&echo, &[strict, loose]));
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    let texts = [
        "portcullis.dev/LoosensInherited=True (LoosensInherited)",
        "spec.ipRules.allow permits addresses that AccessPolicy",
    ];
    prints(&scene, &["config", "policies"], &texts).await;
}
