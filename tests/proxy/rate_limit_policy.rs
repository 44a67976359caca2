//! RateLimitPolicies: how many requests clients may send.

use http::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::access_policy::{access, before, gateway};
use crate::admin::metric;
use crate::client::{Answer, Client, get};
use crate::grpc::grpc_route;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, to};

/// A RateLimitPolicy on a target.
pub(crate) fn limits(name: &str, target: &Value, rules: &Value, response: Option<Value>) -> String {
    let mut spec = json!({"rules": rules});
    if let Some(response) = response {
        spec["response"] = response;
    }
    access(name, target, &spec).replace("AccessPolicy", "RateLimitPolicy")
}

/// A limit of requests per hour.
pub(crate) fn per_hour(name: &str, requests: u32) -> Value {
    json!({"name": name, "limit": {"requests": requests, "per": "Hour"}})
}

/// Returns the statuses of this number of requests.
async fn statuses(client: &mut Client, path: &str, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(client.get("a.com", path).await.status);
    }
    statuses
}

fn seconds(answer: &Answer) -> u64 {
    answer.header("retry-after").parse().expect("seconds")
}

#[tokio::test]
async fn requests_over_the_limit_get_429_and_a_time() {
    let origin = Origin::echo("origin").await;
    let policy = limits("a", &gateway(), &json!([per_hour("one", 2)]), None);
    let scene = Scene::start(&before(&origin, &[policy]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(statuses(&mut client, "/", 2).await, [200, 200]);
    let refused = client.get("a.com", "/admin").await;
    assert_eq!(refused.status, 429, "rules share the limit of the Gateway");
    assert!((1790..=1800).contains(&seconds(&refused)), "{refused:?}");
    assert!(!refused.headers.contains_key("ratelimit"));
    assert_eq!(origin.requests(), 2);
    let labels = r#"{namespace="default",policy="a",limit="one",mode="Enforce"}"#;
    let exceeded = metric(&scene, &format!("limit_exceeded_total{labels}")).await;
    assert_eq!(exceeded, 1.0);
}

#[tokio::test]
async fn more_specific_limits_replace_those_above() {
    let origin = Origin::echo("origin").await;
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let policies = [
        limits("gateway", &gateway(), &json!([per_hour("all", 1)]), None),
        limits("rule", &admin, &json!([per_hour("admin", 2)]), None),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(statuses(&mut client, "/", 2).await, [200, 429]);
    assert_eq!(statuses(&mut client, "/admin", 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn keys_status_and_headers_are_those_of_the_policy() {
    let origin = Origin::echo("origin").await;
    let mut rule = per_hour("user", 2);
    rule["key"] = json!([{"type": "Header", "name": "x-user"}]);
    let response = json!({"status": 503, "headers": "Draft"});
    let policy = limits("a", &gateway(), &json!([rule]), Some(response));
    let scene = Scene::start(&before(&origin, &[policy]));
    let mut client = Client::http1(scene.at(80)).await;
    let one = client.get_with("a.com", "/", &[("x-user", "one")]).await;
    assert_eq!(one.status, 200);
    assert_eq!(one.header("ratelimit-policy"), "\"user\";q=2;w=3600");
    assert_eq!(one.header("ratelimit"), "\"user\";r=1;t=1800");
    client.get_with("a.com", "/", &[("x-user", "one")]).await;
    let refused = client.get_with("a.com", "/", &[("x-user", "one")]).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("ratelimit-policy"), "\"user\";q=2;w=3600");
    let after = seconds(&refused);
    assert!((1790..=1800).contains(&after), "{refused:?}");
    let state = format!("\"user\";r=0;t={after}");
    assert_eq!(refused.header("ratelimit"), state);
    let two = client.get_with("a.com", "/", &[("x-user", "two")]).await;
    assert_eq!(two.status, 200);
}

#[tokio::test]
async fn counters_survive_a_reload_and_audit_refuses_nothing() {
    let origin = Origin::echo("origin").await;
    let policy = |mode: &str| {
        let mut rule = per_hour("one", 1);
        rule["mode"] = json!(mode);
        limits("a", &gateway(), &json!([rule]), None)
    };
    let mut scene = Scene::start(&before(&origin, &[policy("Enforce")]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(statuses(&mut client, "/", 2).await, [200, 429]);
    let other = access(
        "other",
        &gateway(),
        &json!({"ipRules": {"deny": ["192.0.2.1"]}}),
    );
    scene
        .replace(&before(&origin, &[policy("Enforce"), other]))
        .await;
    assert_eq!(statuses(&mut client, "/", 1).await, [429]);
    scene.replace(&before(&origin, &[policy("Audit")])).await;
    assert_eq!(statuses(&mut client, "/", 3).await, [200, 200, 200]);
    let labels = r#"{namespace="default",policy="a",limit="one",mode="Audit"}"#;
    let name = format!("limit_exceeded_total{labels}");
    assert_eq!(metric(&scene, &name).await, 2.0);
}

#[tokio::test]
async fn requests_at_the_same_time_are_limited_until_their_response_ends() {
    let (release, waiting) = mpsc::unbounded_channel::<()>();
    let waiting = std::sync::Arc::new(tokio::sync::Mutex::new(waiting));
    let origin = Origin::new(move |_| {
        let waiting = waiting.clone();
        async move {
            waiting.lock().await.recv().await;
            Response::new(full("done"))
        }
    })
    .await;
    let rule = json!({"name": "one", "concurrent": 1});
    let policy = limits("a", &gateway(), &json!([rule]), None);
    let scene = Scene::start(&before(&origin, &[policy]));
    let address = scene.at(80);
    let first = tokio::spawn(async move { crate::client::get(address, "a.com", "/").await });
    origin.until_requests(1).await;
    let refused = crate::client::get(address, "a.com", "/").await;
    assert_eq!((refused.status, seconds(&refused)), (429, 1));
    release.send(()).expect("the origin waits");
    assert_eq!(first.await.expect("a response").status, 200);
    release.send(()).expect("the origin waits");
    assert_eq!(crate::client::get(address, "a.com", "/").await.status, 200);
}

#[tokio::test]
async fn grpc_calls_over_the_limit_get_resource_exhausted() {
    let origin = Origin::echo("origin").await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(limits("a", &gateway(), &json!([per_hour("one", 1)]), None));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let mut call = async || {
        let request = client
            .request(Method::POST, "a.com", "/package.Service/Method")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        client
            .fetch(request.body(full("x")).expect("a request"))
            .await
    };
    call().await;
    let answer = call().await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "8"));
    assert!(seconds(&answer) > 0);
}

#[tokio::test]
async fn broken_limit_fails_closed_unless_it_refuses_nothing() {
    let origin = Origin::echo("origin").await;
    let policy = |mode: &str| {
        let mut rule = per_hour("one", 1);
        rule["mode"] = json!(mode);
        rule["scope"] = json!("Zone");
        limits("a", &gateway(), &json!([rule]), None)
    };
    let mut scene = Scene::start(&before(&origin, &[policy("Enforce")]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(statuses(&mut client, "/", 1).await, [500]);
    scene.replace(&before(&origin, &[policy("Audit")])).await;
    assert_eq!(statuses(&mut client, "/", 2).await, [200, 200]);
}

#[tokio::test]
async fn limit_is_for_the_requests_that_its_condition_selects() {
    let origin = Origin::echo("origin").await;
    let mut one = per_hour("one", 1);
    one["match"] = json!({
        "path": {"value": "/admin"},
        "headers": [{"name": "x-app", "value": "shop"}],
        "queryParams": [{"name": "step", "value": "1"}],
    });
    let policy = limits("a", &gateway(), &json!([one]), None);
    let scene = Scene::start(&before(&origin, &[policy]));
    let mut client = Client::http1(scene.at(80)).await;
    let shop = [("x-app", "shop")];
    for (path, fields, expected) in [
        ("/admin/a?step=1", &shop[..], 200),
        ("/admin?step=1", &[], 200),
        ("/admin?step=2", &shop, 200),
        ("/?step=1", &shop, 200),
        ("/admin?step=1", &shop, 429),
        ("/admin?step=2", &shop, 200),
    ] {
        let answer = client.get_with("a.com", path, fields).await;
        assert_eq!(answer.status, expected, "{path} {fields:?}");
    }
}

#[tokio::test]
async fn broken_audit_rule_refuses_nothing_beside_an_enforced_one() {
    let origin = Origin::echo("origin").await;
    let mut tried = per_hour("tried", 1);
    tried["exempt"] = json!({"cidrs": ["10.0.0.0/99"]});
    let with = |mode: &str| {
        let mut tried = tried.clone();
        tried["mode"] = json!(mode);
        let rules = json!([tried, per_hour("held", 2)]);
        before(&origin, &[limits("a", &gateway(), &rules, None)])
    };
    let mut scene = Scene::start(&with("Audit"));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(statuses(&mut client, "/", 3).await, [200, 200, 429]);
    let page = "/explain?request=http://a.com/";
    let explained = get(scene.admin_address(), "localhost", page).await;
    let expected = "a rule of mode Audit is left out: spec.rules[0].exempt.cidrs[0]";
    assert!(explained.text().contains(expected), "{}", explained.text());
    scene.replace(&with("Enforce")).await;
    assert_eq!(statuses(&mut client, "/", 1).await, [500]);
}
