//! The access log of UDP sessions: a line for each, when it ends.

use std::time::Duration;

use serde_json::json;

use crate::collector::Collector;
use crate::connection_log::{Logged, assert_members, ends, listening, telemetry};
use crate::scene::Scene;
use crate::udp_route::{Client, Echo, PORT, dead, to};

#[tokio::test]
async fn line_of_a_udp_session_has_the_bytes_of_its_datagrams() {
    let backend = Echo::start("app ").await;
    let logged = Logged::with(&to(&[backend.address]), |settings| {
        settings.limits.udp_idle_timeout = Duration::from_secs(1);
    });
    let client = Client::of(logged.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "app hello");
    assert_eq!(client.ask("bye").await, "app bye");
    let expected = json!({
        "client": client.0.local_addr().expect("bound").to_string(), "protocol": "UDP",
        "listener": "Gateway default/gateway listener udp", "port": PORT,
        "route": "UDPRoute default/route", "rule": 0,
        "backend": "Service default/app:80 for UDP", "upstream": backend.address.to_string(),
        "bytes_received": 8, "bytes_sent": 16, "end": "idle timeout", "error": null,
    });
    let line = logged.line().await;
    assert_members(&line, &expected);
    // From the first datagram to the end of the session.
    assert!(line["duration_ms"].as_f64() > Some(500.0), "{line:#}");
}

#[tokio::test]
async fn line_of_a_udp_session_has_the_reason_of_its_end() {
    let (one, two) = (Echo::start("one ").await, Echo::start("two ").await);
    let mut logged = Logged::start(&to(&[one.address]));
    let client = Client::of(logged.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "one hello");
    logged.scene.replace(&to(&[two.address])).await;
    assert_eq!(client.ask("hello").await, "two hello");
    assert_eq!(ends(&logged.until(1).await), ["backend removed"]);
    let dead = dead().await;
    logged.scene.replace(&to(&[dead])).await;
    client.send(b"refused").await;
    let lines = logged.until(3).await;
    assert_members(
        &lines[1],
        &json!({"end": "backend removed", "error": null, "upstream": two.address.to_string()}),
    );
    let end = "refused by the backend";
    let expected = json!({"end": end, "error": end, "upstream": dead.to_string(), "bytes_sent": 0});
    assert_members(&lines[2], &expected);
    logged.scene.replace(&to(&[one.address])).await;
    assert_eq!(client.ask("hello").await, "one hello");
    logged.scene.replace(&listening()).await;
    let lines = logged.until(4).await;
    let expected = json!({"end": "listener removed", "error": null, "bytes_received": 5});
    assert_members(&lines[3], &expected);
}

#[tokio::test]
async fn drain_writes_the_lines_of_udp_sessions() {
    let backend = Echo::start("").await;
    let mut logged = Logged::start(&to(&[backend.address]));
    let client = Client::of(logged.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "hello");
    logged.scene.begin_shutdown().await.expect("ended");
    assert_members(
        &logged.line().await,
        &json!({"end": "drain", "error": null}),
    );
}

#[tokio::test]
async fn collector_gets_the_lines_of_sessions() {
    let mut collector = Collector::start().await;
    let backend = Echo::start("").await;
    let objects = to(&[backend.address])
        .service("collector", &[collector.origin.address])
        .with(telemetry("sink: OTLP"));
    let scene = Scene::with(&objects, |settings| {
        settings.limits.udp_idle_timeout = Duration::from_secs(1);
    });
    let client = Client::of(scene.at(PORT)).await;
    assert_eq!(client.ask("hello").await, "hello");
    let record = collector.records().await.remove(0);
    assert_eq!(record.severity, 9, "information");
    let expected = json!({"end": "idle timeout", "bytes_sent": 5, "protocol": "UDP"});
    assert_members(&record.line(), &expected);
}
