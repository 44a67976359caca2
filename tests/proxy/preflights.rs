//! Preflight requests that pass without credentials: the CORS filter answers them, and nobody else gets them, whatever filters
//! make of them before.

use serde_json::{Value, json};

use crate::access_policy::{access, gateway};
use crate::client::{Answer, Client};
use crate::cors::{METHOD, ORIGIN, fetch};
use crate::credentials::{BCRYPT, basic, users};
use crate::mirror::{mirror, with_filters};
use crate::origin::Origin;
use crate::route_policy::policy;
use crate::scene::{Objects, Scene};

fn cors() -> Value {
    json!({"type": "CORS", "cors": {"allowOrigins": ["https://b.org"], "allowMethods": ["GET"]}})
}

fn modifier(changes: &Value) -> Value {
    json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes})
}

async fn ask(scene: &Scene, fields: &[(&str, &str)]) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    fetch(&mut client, "OPTIONS", "/", fields).await
}

const PREFLIGHT: [(&str, &str); 2] = [(ORIGIN, "https://b.org"), (METHOD, "GET")];

#[tokio::test]
async fn request_that_skips_authentication_reaches_no_backend_and_no_mirror() {
    let (origin, copies) = (Origin::echo("origin").await, Origin::echo("copies").await);
    let tells = ["Origin", "Access-Control-Request-Method"];
    let [origin_name, method] = tells;
    for (of_rule, of_policy) in [
        (Some(json!({"remove": [origin_name]})), None),
        (Some(json!({"remove": [method]})), None),
        (
            Some(json!({"set": [{"name": origin_name, "value": "https://c.org"}]})),
            None,
        ),
        (None, Some(json!({"remove": [origin_name]}))),
        (None, Some(json!({"remove": tells}))),
        (None, None),
    ] {
        let modifiers = of_rule.iter().map(modifier);
        let filters: Vec<_> = modifiers.chain([cors(), mirror("copies")]).collect();
        let mut objects = Objects::http()
            .service("origin", &[origin.address])
            .service("copies", &[copies.address])
            .route("route", &[with_filters("/", "origin", &filters)])
            .with(users(&[("alice", BCRYPT)]))
            .with(access("a", &gateway(), &basic()));
        if let Some(changes) = &of_policy {
            let spec = json!({"requestHeaders": changes});
            objects = objects.with(policy("headers", &gateway(), &spec));
        }
        let scene = Scene::start(&objects);
        let answer = ask(&scene, &PREFLIGHT).await;
        assert_eq!(answer.status / 100, 2, "{of_rule:?} {of_policy:?}");
        let is_changed = of_rule.is_some() || of_policy.is_some();
        let is_allowed = answer.headers.contains_key("access-control-allow-origin");
        assert!(is_changed || is_allowed);
        assert_eq!(ask(&scene, &PREFLIGHT[..1]).await.status, 401);
    }
    assert_eq!((origin.requests(), copies.requests()), (0, 0));
}

/// A filter makes no preflight request of another one.
#[tokio::test]
async fn request_is_no_preflight_request_because_of_a_filter() {
    let origin = Origin::echo("origin").await;
    let set = json!({"set": [
        {"name": "Origin", "value": "https://b.org"},
        {"name": "Access-Control-Request-Method", "value": "GET"},
    ]});
    let filters = [modifier(&set), cors()];
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[with_filters("/", "origin", &filters)]);
    let scene = Scene::start(&objects);
    assert_eq!(ask(&scene, &[]).await.status, 200);
    assert_eq!(origin.requests(), 1);
    let objects = objects
        .with(users(&[("alice", BCRYPT)]))
        .with(access("a", &gateway(), &basic()));
    let scene = Scene::start(&objects);
    assert_eq!(ask(&scene, &[]).await.status, 401);
    assert_eq!(origin.requests(), 1);
}
