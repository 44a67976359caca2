//! Limits of RateLimitPolicies by what AccessPolicies have established about a client.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use crate::access_policy::{access, before, gateway, of_route};
use crate::client::{Answer, Client};
use crate::cors::{METHOD, ORIGIN, fetch};
use crate::credentials::{BCRYPT, api_key, authorization, basic, keys, users};
use crate::issuer::{Issuer, bearer, claims, jwt};
use crate::origin::Origin;
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, to};

/// A limit of requests per hour with this part of a key.
fn by(part: &Value, requests: u32) -> Value {
    let mut rule = per_hour("one", requests);
    rule["key"] = json!([part]);
    rule
}

fn by_client(requests: u32) -> Value {
    by(&json!({"type": "Client"}), requests)
}

/// Limits of the Gateway.
fn of_gateway(rules: &Value) -> String {
    let headers = json!({"headers": "Draft"});
    limits("limits", &gateway(), rules, Some(headers))
}

async fn get(client: &mut Client, headers: &[(&str, &str)]) -> Answer {
    client.get_with("a.com", "/", headers).await
}

#[tokio::test]
async fn clients_with_api_keys_count_apart_after_authentication() {
    let origin = Origin::echo("origin").await;
    let objects = [
        keys(),
        access("a", &gateway(), &api_key()),
        of_gateway(&json!([by_client(2)])),
    ];
    let scene = Scene::start(&before(&origin, &objects));
    let mut client = Client::http1(scene.at(80)).await;
    for (key, expected) in [
        ("key-of-shop", 200),
        // A request without a valid key takes nothing from anyone, also if it claims to be one.
        ("shop", 401),
        ("shop", 401),
        ("shop", 401),
        ("key-of-shop", 200),
        ("key-of-shop", 429),
        ("key-of-billing", 200),
    ] {
        let claimed = [("x-api-key", key), ("x-client", "shop")];
        let answer = get(&mut client, &claimed).await;
        assert_eq!(answer.status, expected, "{key}");
    }
    let cookie = get(&mut client, &[("cookie", "key=key-of-shop")]).await;
    assert_eq!(
        cookie.status, 429,
        "the same client, with its key in another place"
    );
    assert_eq!(cookie.header("ratelimit-policy"), "\"one\";q=2;w=3600");
    assert!(cookie.headers.contains_key("retry-after"));
    assert_eq!(origin.requests(), 3);
}

#[tokio::test]
async fn limit_without_identity_counts_before_and_one_with_it_after_authentication() {
    let origin = Origin::echo("origin").await;
    let mut all = per_hour("all", 3);
    all["key"] = json!([{"type": "ClientIP"}]);
    let objects = [
        keys(),
        access("a", &gateway(), &api_key()),
        of_gateway(&json!([all, by_client(1)])),
    ];
    let scene = Scene::start(&before(&origin, &objects));
    let mut client = Client::http1(scene.at(80)).await;
    let first = get(&mut client, &[("x-api-key", "key-of-shop")]).await;
    assert_eq!(first.status, 200);
    assert_eq!(
        first.header("ratelimit"),
        "\"one\";r=0;t=3600",
        "the closest"
    );
    // What the limit of the client refuses does not count for the other one.
    let rest = [
        ("none", 401),
        ("key-of-shop", 429),
        ("none", 401),
        ("none", 429),
    ];
    for (key, expected) in rest {
        let answer = get(&mut client, &[("x-api-key", key)]).await;
        assert_eq!(answer.status, expected, "{key}");
    }
}

/// The password is verified beside the worker the first time, and remembered then.
#[tokio::test]
async fn users_with_passwords_count_apart_whether_or_not_the_password_is_remembered() {
    let origin = Origin::echo("origin").await;
    let mut concurrent = json!({"name": "concurrent", "concurrent": 1});
    concurrent["key"] = json!([{"type": "Client"}]);
    let objects = [
        users(&[("alice", BCRYPT), ("bob", BCRYPT)]),
        access("a", &gateway(), &basic()),
        of_gateway(&json!([per_hour("all", 9), by_client(2), concurrent])),
    ];
    let scene = Scene::start(&before(&origin, &objects));
    let mut client = Client::http1(scene.at(80)).await;
    for (user, expected, left) in [("alice", 200, 1), ("alice", 200, 0), ("bob", 200, 1)] {
        let value = authorization(user, "password");
        let answer = get(&mut client, &[("authorization", &value)]).await;
        assert_eq!(answer.status, expected, "{user}");
        let remaining = answer.header("ratelimit");
        let expected = format!("\"one\";r={left};");
        assert!(remaining.starts_with(&expected), "{user}: {remaining}");
    }
    let value = authorization("alice", "password");
    assert_eq!(
        get(&mut client, &[("authorization", &value)]).await.status,
        429
    );
}

#[tokio::test]
async fn first_request_of_a_user_is_limited_once_its_password_is_verified() {
    let origin = Origin::echo("origin").await;
    let mut any = api_key();
    any["basic"] = basic()["basic"].clone();
    any["require"] = json!("Any");
    let mut none = by_client(1);
    none["key"] = json!([{"type": "Claim", "name": "tenant"}]);
    let objects = [
        keys(),
        users(&[("alice", BCRYPT)]),
        access("a", &gateway(), &any),
        of_gateway(&json!([none])),
    ];
    let scene = Scene::start(&before(&origin, &objects));
    let mut client = Client::http1(scene.at(80)).await;
    let key = get(&mut client, &[("x-api-key", "key-of-shop")]).await;
    assert_eq!(key.status, 200);
    // Neither has a token: both count together.
    let value = authorization("alice", "password");
    let user = get(&mut client, &[("authorization", &value)]).await;
    assert_eq!(user.status, 429);
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn tokens_count_by_subject_and_by_claim() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let scene_with = |rule: Value| {
        let objects = [
            access("a", &gateway(), &jwt(&[issuer.jwk()])),
            of_gateway(&json!([rule])),
        ];
        Scene::start(&before(&origin, &objects))
    };
    let token = |changes: Value| bearer(&issuer.token(&claims(&changes)));
    let alice = token(json!({"tenant": "shop", "jti": "1"}));
    let again = token(json!({"tenant": "shop", "jti": "2"}));
    let bob = token(json!({"sub": "bob", "tenant": "shop"}));
    let carol = token(json!({"sub": "carol"}));
    let dave = token(json!({"sub": "dave"}));
    for (rule, expected) in [
        (by_client(1), [200, 429, 200, 200, 200]),
        (
            by(&json!({"type": "Claim", "name": "tenant"}), 1),
            [200, 429, 429, 200, 429],
        ),
    ] {
        let scene = scene_with(rule);
        let mut client = Client::http1(scene.at(80)).await;
        let mut statuses = Vec::new();
        for token in [&alice, &again, &bob, &carol, &dave] {
            let headers = [("authorization", token.as_str()), ("x-user", "eve")];
            statuses.push(get(&mut client, &headers).await.status);
        }
        assert_eq!(statuses, expected);
    }
}

#[tokio::test]
async fn requests_that_nothing_authenticates_count_together() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin, &[of_gateway(&json!([by_client(1)]))]));
    let mut client = Client::http1(scene.at(80)).await;
    let one = authorization("alice", "password");
    assert_eq!(
        get(&mut client, &[("authorization", &one)]).await.status,
        200
    );
    let other = authorization("bob", "password");
    assert_eq!(
        get(&mut client, &[("authorization", &other)]).await.status,
        429
    );
}

#[tokio::test]
async fn preflight_requests_do_not_count_for_limits_by_identity() {
    let origin = Origin::echo("origin").await;
    let cors = json!({"allowOrigins": ["https://b.org"], "allowMethods": ["GET"]});
    let rule = crate::cors::with_cors("/shared", "origin", &cors);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), rule])
        .with(keys())
        .with(access("a", &of_route(), &api_key()))
        .with(of_gateway(&json!([by_client(1)])));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..3 {
        let fields = [(ORIGIN, "https://b.org"), (METHOD, "GET")];
        let answer = fetch(&mut client, "OPTIONS", "/shared", &fields).await;
        assert_eq!(answer.status / 100, 2);
    }
    assert_eq!(origin.requests(), 0);
}
