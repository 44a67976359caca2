//! Durations of requests by method and by class of status, with `--metrics-durations-by`, in the scrape of a data plane.

use std::collections::BTreeMap;

use http::Method;
use portcullis::settings::metrics::DurationLabels;

use crate::admin::page;
use crate::client::Client;
use crate::collector::Collector;
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, prefix};
use crate::traces::{PARENT, traced};

const COUNT: &str = "http_server_request_duration_seconds_count{";
const BUCKET: &str = "http_server_request_duration_seconds_bucket{";
const ROUTE: &str = r#"namespace="default",route="route",kind="HTTPRoute""#;

/// A scene with a rule whose backend echoes, and one without endpoints.
fn scene(objects: Objects, echo: &Origin, method: bool, status_class: bool) -> Scene {
    let objects = objects
        .service("echo", &[echo.address])
        .service("empty", &[]);
    let rules = [prefix("/", "echo"), prefix("/empty", "empty")];
    Scene::with(&objects.route("route", &rules), |settings| {
        settings.metrics.per_rule = false;
        settings.metrics.durations_by = DurationLabels {
            method,
            status_class,
        };
    })
}

/// Sends GET, GET and a method that no convention knows to a backend, and GET to none.
async fn send_requests(scene: &Scene) {
    let mut client = Client::http1(scene.at(80)).await;
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/", 200),
        ("PURGE", "/", 200),
        ("GET", "/empty", 503),
    ] {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = client.request(method, "a.com", path).body(empty());
        let answer = client.fetch(request.expect("a request")).await;
        assert_eq!(answer.status, status);
    }
}

/// The number of durations by labels other than those of the route.
async fn counts(scene: &Scene) -> BTreeMap<String, String> {
    let page = page(scene, "/metrics").await;
    let lines = page.lines().filter_map(|line| line.strip_prefix(COUNT));
    let counts = lines.map(|line| {
        let (labels, count) = line.rsplit_once("} ").expect("a sample");
        let labels = labels.strip_prefix(ROUTE).expect("the route");
        (labels.to_owned(), count.to_owned())
    });
    counts.collect()
}

#[tokio::test]
async fn durations_have_the_labels_of_the_settings() {
    let echo = Origin::echo("echo").await;
    let get = r#",http_request_method="GET""#;
    let other = r#",http_request_method="_OTHER""#;
    let ok = r#",http_response_status_code="2xx""#;
    let failed = r#",http_response_status_code="5xx""#;
    for (method, status_class, expected) in [
        (false, false, vec![(String::new(), "4")]),
        (
            true,
            false,
            vec![(get.to_owned(), "3"), (other.to_owned(), "1")],
        ),
        (
            false,
            true,
            vec![(ok.to_owned(), "3"), (failed.to_owned(), "1")],
        ),
        (
            true,
            true,
            vec![
                (format!("{get}{ok}"), "2"),
                (format!("{get}{failed}"), "1"),
                (format!("{other}{ok}"), "1"),
            ],
        ),
    ] {
        let scene = scene(Objects::http(), &echo, method, status_class);
        send_requests(&scene).await;
        let expected = expected.into_iter();
        let expected = expected.map(|(labels, count)| (labels, count.to_owned()));
        assert_eq!(counts(&scene).await, expected.collect());
        // The page and `top` sum them up.
        let totals = page(&scene, "/api/v1/totals").await;
        let totals: serde_json::Value = serde_json::from_str(&totals).expect("JSON");
        let durations = totals["durations"].as_array().expect("durations");
        let sum: u64 = durations.iter().filter_map(|it| it.as_u64()).sum();
        assert_eq!(sum, 4);
    }
}

#[tokio::test]
async fn exemplars_are_on_the_bucket_with_the_labels_of_the_request() {
    let (mut collector, echo) = (Collector::start().await, Origin::echo("echo").await);
    let scene = scene(traced(&collector), &echo, true, true);
    let mut client = Client::http1(scene.at(80)).await;
    let headers = [("traceparent", &*format!("{PARENT}-01"))];
    client.get_with("a.com", "/", &headers).await;
    collector.request().await;
    let mut admin = Client::http1(scene.admin_address()).await;
    let headers = [("accept", "application/openmetrics-text")];
    let page = admin.get_with("localhost", "/metrics", &headers).await;
    let lines = page.text().lines().filter(|line| line.starts_with(BUCKET));
    let sampled: Vec<_> = lines.filter(|line| line.contains("trace_id")).collect();
    assert_eq!(sampled.len(), 1, "{sampled:?}");
    let labels = r#"http_request_method="GET",http_response_status_code="2xx"} 1 # {"#;
    assert!(sampled[0].contains(labels), "{sampled:?}");
}
