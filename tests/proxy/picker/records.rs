//! What metrics, the access log and traces say of what a picker makes of a request.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::server::{Act, Phase, Picker, Script};
use super::{Outcome, model, objects, pool, post, rule};
use crate::admin::page;
use crate::client::Client;
use crate::collector::Collector;
use crate::origin::full;
use crate::scene::{Objects, Scene};

/// Sends the lines and the spans of all requests to a collector.
const POLICY: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {name: all}\nspec:\n  \
     targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}]\n  \
     accessLog: {sink: OTLP}\n  \
     tracing: {provider: {backendRef: {name: collector, port: 80}}, samplingRate: {numerator: 100}}";

/// A request: where the picker stops and how, the path, the status, and what the picker has made of it in order.
type Case = (
    Option<(Phase, Act)>,
    &'static str,
    u16,
    &'static [&'static str],
);

const CASES: [Case; 6] = [
    (None, "/close", 200, &["picked"]),
    (
        Some((Phase::RequestHead, Act::Immediate)),
        "/close",
        429,
        &["responded"],
    ),
    (
        Some((Phase::RequestHead, Act::Fail)),
        "/close",
        503,
        &["refused"],
    ),
    (
        Some((Phase::RequestHead, Act::Fail)),
        "/open",
        200,
        &["failed_open"],
    ),
    (
        Some((Phase::ResponseHead, Act::Fail)),
        "/close",
        503,
        &["picked", "refused"],
    ),
    (
        Some((Phase::ResponseHead, Act::Immediate)),
        "/close",
        429,
        &["picked", "responded"],
    ),
];

/// Returns the objects of a Gateway whose requests are recorded, with a pool for each failure mode.
fn recorded(picker: &Picker, models: &[SocketAddr], collector: &Collector) -> Objects {
    objects(&[picker.origin.address])
        .service("collector", &[collector.origin.address])
        .with(POLICY.to_owned())
        .with(pool("open", models, "epp", "FailOpen").to_string())
        .with(pool("close", models, "epp", "FailClose").to_string())
        .route("route", &[rule("/open", "open"), rule("/close", "close")])
}

/// Returns the value of the only series of a metric of a pool that has this in its labels; 0 without one.
fn count(page: &str, name: &str, pool: &str, label: &str) -> u64 {
    let (start, pool) = (
        format!("portcullis_{name}{{"),
        format!("backend=\"{pool}\""),
    );
    let is_one =
        |line: &&str| line.starts_with(&start) && line.contains(&pool) && line.contains(label);
    let mut lines = page.lines().filter(is_one);
    let line = lines.next();
    assert!(lines.next().is_none(), "{page}");
    let value = line.and_then(|line| line.rsplit_once(' '));
    value.map_or(0, |(_, value)| value.parse().expect("a number"))
}

#[tokio::test]
async fn results_and_choices_are_counted_logged_and_traced() {
    let server = model("a").await;
    let address = server.address;
    let list = address.to_string();
    let picker = Picker::start(Script::choosing("")).await;
    let mut collector = Collector::start().await;
    let scene = Scene::start(&recorded(&picker, &[address], &collector));
    for (stop, path, status, results) in CASES {
        picker.follow(Script {
            stop,
            ..Script::choosing(&list)
        });
        let mut client = Client::http1(scene.at(80)).await;
        let outcome = post(&mut client, path, full("body")).await;
        let body = if status == 200 { "body" } else { "" };
        assert_eq!(outcome, Outcome::Whole(status, body.to_owned()), "{stop:?}");

        let (span, _) = collector.request().await;
        let event = |result: &&str| match *result {
            "picked" => format!("picker picked 127.0.0.1 {}", address.port()),
            result => format!("picker {result}"),
        };
        let events: Vec<_> = results.iter().map(event).collect();
        let keys = ["portcullis.result", "server.address", "server.port"];
        assert_eq!(span.events(&keys), events, "{stop:?}");

        let records = collector.records().await;
        let line = records[0].line();
        let chosen = match results[0] {
            "picked" => json!(list),
            _ => Value::Null,
        };
        assert_eq!(line["picker"], json!(results.last()), "{stop:?}");
        assert_eq!(line["picked"], chosen, "{stop:?}");
    }
    let page = page(&scene, "/metrics").await;
    for (pool, result, expected) in [
        ("close", "picked", 3),
        ("close", "responded", 2),
        ("close", "refused", 2),
        ("close", "failed_open", 0),
        ("open", "failed_open", 1),
        ("open", "picked", 0),
    ] {
        let label = format!("result=\"{result}\"");
        let counted = count(&page, "picker_requests_total", pool, &label);
        assert_eq!(counted, expected, "{pool} {result}");
    }
    // Times are those of questions that the picker has answered.
    let times =
        ["close", "open"].map(|pool| count(&page, "picker_duration_seconds_count", pool, ""));
    assert_eq!(times, [4, 0]);
}

#[tokio::test]
async fn question_that_outlives_its_request_is_counted_and_logged() {
    let server = model("a").await;
    let addresses = [server.address];
    let picker = Picker::start(Script {
        stop: Some((Phase::RequestHead, Act::Stall)),
        ..Script::choosing("")
    })
    .await;
    let mut collector = Collector::start().await;
    let mut limited = rule("/late", "close");
    limited["timeouts"] = json!({"request": "200ms"});
    let objects = recorded(&picker, &addresses, &collector).route("late", &[limited]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let outcome = post(&mut client, "/late", full("body")).await;
    assert_eq!(outcome, Outcome::Whole(504, String::new()));
    let records = collector.records().await;
    assert_eq!(records[0].line()["picker"], "abandoned");
    let page = page(&scene, "/metrics").await;
    let label = "result=\"abandoned\"";
    let counted = count(&page, "picker_requests_total", "close", label);
    assert_eq!(counted, 1);
}
