//! Traces: the decisions of policies and about attempts, which are events of the span of a request.

use http::Response;
use serde_json::{Value, json};

use crate::access_policy::{access, gateway, ip_rules};
use crate::client::{Client, get};
use crate::collector::Collector;
use crate::credentials::{api_key, keys};
use crate::external_auth::with_filters;
use crate::origin::{Origin, empty};
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, to};
use crate::traces::traced;
use crate::traffic_policy::{budget, traffic_policy};

const DECISION: &str = "portcullis.decision";

/// A gateway whose requests are traced, with an origin behind a route and these documents.
fn before(collector: &Collector, origin: &Origin, documents: &[String]) -> Objects {
    let objects = traced(collector)
        .service("app", &[origin.address])
        .route("route", &[to("app")]);
    documents.iter().cloned().fold(objects, Objects::with)
}

/// Responds to every request with this status.
async fn responding(status: u16) -> Origin {
    Origin::new(move |_| async move {
        let response = Response::builder().status(status);
        response.body(empty()).expect("a response")
    })
    .await
}

#[tokio::test]
async fn limits_name_their_policy_and_themselves() {
    let (mut collector, origin) = (Collector::start().await, Origin::echo("app").await);
    let keys = [DECISION, "portcullis.policy", "portcullis.limit"];
    let mut audited = per_hour("watched", 1);
    audited["mode"] = json!("Audit");
    let rules = json!([audited, per_hour("enforced", 2)]);
    let policy = limits("limits", &gateway(), &rules, None);
    let scene = Scene::start(&before(&collector, &origin, &[policy]));
    let of_limit = |decision: &str, limit: &str| {
        format!("limits {decision} RateLimitPolicy default/limits {limit}")
    };
    let expected = [
        (200, vec![]),
        (200, vec![of_limit("audited", "watched")]),
        (429, vec![of_limit("refused", "enforced")]),
    ];
    for (status, events) in expected {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, status);
        let (server, _) = collector.request().await;
        assert_eq!(server.events(&keys), events);
    }
}

#[tokio::test]
async fn refusals_name_their_phase_and_no_credentials() {
    let (mut collector, origin) = (Collector::start().await, Origin::echo("app").await);
    let policy = |spec: Value| access("policy", &gateway(), &spec);
    let mut authorization = api_key();
    authorization["authorization"] = json!({"rules": [
        {"name": "none", "action": "Deny", "match": {"methods": ["GET"]}},
    ]});
    let valid: &[(&str, &str)] = &[("x-api-key", "key-of-shop"), ("cookie", "canary")];
    let wrong: &[(&str, &str)] = &[("x-api-key", "canary")];
    let cases = [
        (ip_rules(&[], &["127.0.0.0/8"]), valid, "ip_rules refused"),
        (api_key(), wrong, "authentication refused"),
        (api_key(), valid, "authentication allowed API key"),
        (authorization, valid, "authorization refused"),
    ];
    for (spec, headers, event) in cases {
        let scene = Scene::start(&before(&collector, &origin, &[keys(), policy(spec)]));
        let mut client = Client::http1(scene.at(80)).await;
        client.get_with("a.com", "/?key=canary", headers).await;
        let (server, _) = collector.request().await;
        let events = server.events(&[DECISION, "portcullis.credentials"]);
        assert_eq!(events, [event]);
        let text = format!("{server:?}");
        assert!(!text.contains("canary") && !text.contains("key-of-shop"));
    }
}

#[tokio::test]
async fn external_authorization_allows_refuses_or_fails() {
    let (mut collector, origin) = (Collector::start().await, Origin::echo("app").await);
    let servers = [
        (Some(responding(200).await), "allowed"),
        (Some(responding(403).await), "refused"),
        (None, "failed"),
    ];
    for (server, decision) in servers {
        let address = server.as_ref().map_or_else(Origin::dead, |it| it.address);
        let filter = json!({"type": "ExternalAuth", "externalAuth": {
            "protocol": "HTTP", "backendRef": {"name": "auth", "port": 80}, "http": {},
        }});
        let objects = traced(&collector)
            .service("app", &[origin.address])
            .service("auth", &[address])
            .route("route", &[with_filters("/", json!([filter]))]);
        let scene = Scene::start(&objects);
        get(scene.at(80), "a.com", "/").await;
        let (server, _) = collector.request().await;
        let events = server.events(&[DECISION, "portcullis.backend"]);
        let expected = format!("external_auth {decision} Service default/auth:80");
        assert_eq!(events, [expected]);
    }
}

#[tokio::test]
async fn retries_have_a_reason_and_end_with_the_budget() {
    let (mut collector, origin) = (Collector::start().await, responding(503).await);
    let mut rule = to("app");
    rule["retry"] = json!({"codes": [503], "attempts": 3, "backoff": "1ms"});
    let objects = traced(&collector)
        .service("app", &[origin.address])
        .with(traffic_policy(&["app"], budget(0, 1)))
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 503);
    let (server, attempts) = collector.request().await;
    let events = server.events(&[DECISION, "error.type"]);
    assert_eq!(events, ["retry allowed 503", "retry refused 503"]);
    assert_eq!(attempts.len(), 2);
}

#[tokio::test]
async fn events_of_a_span_are_bounded_and_the_others_counted() {
    let (mut collector, origin) = (Collector::start().await, responding(503).await);
    let mut rule = to("app");
    rule["retry"] = json!({"codes": [503], "attempts": 20, "backoff": "1ms"});
    let objects = traced(&collector).service("app", &[origin.address]);
    let scene = Scene::start(&objects.route("route", &[rule]));
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 503);
    let (_, export) = collector.message().await;
    let spans = &export.resource_spans[0].scope_spans[0].spans;
    let [server, attempts @ ..] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!((server.events(&[]).len(), server.dropped_events), (16, 4));
    let resends = attempts
        .iter()
        .map(|it| it.attribute("http.request.resend_count"));
    let resends: Vec<_> = resends.collect();
    assert_eq!(resends, ["", "1", "2", "3", "4", "5", "6", "20"]);
}

#[tokio::test]
async fn request_that_ejects_an_endpoint_names_it() {
    let (mut collector, origin) = (Collector::start().await, Origin::echo("app").await);
    let dead = Origin::dead();
    let objects = traced(&collector)
        .service("app", &[dead, origin.address])
        .route("route", &[to("app")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    // One of the endpoints is tried first. Once it is ejected, it gets a probe after some time, which fails again.
    let ejection = loop {
        assert_eq!(client.get("a.com", "/").await.status, 200);
        let (server, _) = collector.request().await;
        let events = server.events(&[DECISION, "server.address", "server.port"]);
        if !events.is_empty() {
            break events;
        }
    };
    let expected = format!("ejection 127.0.0.1 {}", dead.port());
    assert_eq!(ejection, [expected, "retry allowed".to_owned()]);
}
