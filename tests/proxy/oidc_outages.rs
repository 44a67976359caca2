//! Providers that fail again and again: they are asked once at a time, and what they fail at is their own sign-ins alone.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::sleep;

use crate::access_policy::access;
use crate::admin::metric;
use crate::browser::Browser;
use crate::origin::Origin;
use crate::provider::{Provider, permitted, until_discovered};
use crate::scene::{Scene, prefix};

async fn tokens(scene: &Scene, policy: &str, outcome: &str) -> f64 {
    let name = format!(
        "token_requests_total{{namespace=\"default\",policy=\"{policy}\",grant=\"authorization_code\",outcome=\"{outcome}\"}}"
    );
    metric(scene, &name).await
}

#[tokio::test]
async fn failing_provider_is_asked_once_at_a_time_and_others_as_before() {
    let origin = Origin::echo("origin").await;
    let (broken, other) = (Provider::start().await, Provider::start().await);
    let section = broken.section(&json!({"redirectPath": "/broken/callback"}));
    let policy = access(
        "b",
        &json!({"kind": "HTTPRoute", "name": "broken"}),
        &json!({"oidc": section}),
    );
    let objects = other
        .objects(&origin, &json!({}))
        .route("broken", &[prefix("/broken", "origin")])
        .with(policy);
    let scene = Scene::with(&objects, permitted);
    until_discovered(&scene, ("a.com", "/")).await;
    let begin = async || {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin("/broken/page").await;
        (browser, broken.authorize(&location))
    };
    until_discovered(&scene, ("a.com", "/broken")).await;
    broken.state().failure = Some((503, "{}"));
    for _ in 0..3 {
        let (mut browser, callback) = begin().await;
        let answer = browser.get(&callback).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, ""));
        assert!(browser.cookies.is_empty(), "the provider has the code");
    }
    assert_eq!(broken.asked("authorization_code"), 3);
    let (mut browser, callback) = begin().await;
    let answer = browser.get(&callback).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert_eq!(broken.asked("authorization_code"), 3);
    // Others are not affected, and what has not been sent may be tried again.
    Browser::new(scene.at(80), "a.com")
        .await
        .sign_in(&other, "/")
        .await;
    broken.behave();
    // The back-off of which `Retry-After` tells.
    sleep(Duration::from_millis(1100)).await;
    let answer = browser.get(&callback).await;
    assert_eq!(answer.status, 302, "{answer:?}");
    assert_eq!(answer.header("location"), "http://a.com/broken/page");
    browser.get("/broken/page").await.received();
    for (policy, outcome, expected) in [
        ("b", "unavailable", 3.0),
        ("b", "deferred", 1.0),
        ("b", "issued", 1.0),
        ("a", "issued", 1.0),
        ("a", "deferred", 0.0),
    ] {
        let count = tokens(&scene, policy, outcome).await;
        assert_eq!(count, expected, "{policy} {outcome}");
    }
}

/// Clients choose the codes, and some providers have defects.
#[tokio::test]
async fn client_whose_codes_are_refused_defers_no_sign_in() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for (status, body) in [(400, "{\"error\": \"invalid_grant\"}"), (500, "{}")] {
        provider.state().failure = Some((status, body));
        for _ in 0..5 {
            let mut browser = Browser::new(scene.at(80), "a.com").await;
            let location = browser.begin("/").await;
            let answer = browser.get(&provider.authorize(&location)).await;
            assert!(answer.status >= 400, "{answer:?}");
        }
    }
    assert_eq!(provider.asked("authorization_code"), 10);
    provider.behave();
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    assert_eq!(tokens(&scene, "a", "denied").await, 5.0);
}

#[tokio::test]
async fn many_sessions_go_on_without_many_requests_to_a_provider_that_is_away() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    provider.state().tokens = json!({"expires_in": 0});
    let mut browsers = Vec::new();
    for _ in 0..12 {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        browser.sign_in(&provider, "/").await;
        browsers.push(browser);
    }
    provider.state().failure = Some((503, "{}"));
    for browser in &mut browsers {
        let json = [("accept", "application/json")];
        browser.send(Method::GET, "/", &json).await.received();
    }
    let asked = provider.asked("refresh_token");
    assert!((3..=4).contains(&asked), "{asked}");
}
