//! Pages of allowed origins can read responses that come before the CORS filter has run, such as those of policies.

use http::Method;
use serde_json::{Value, json};

use crate::access_policy::{access, ip_rules, of_route};
use crate::client::{Answer, Client};
use crate::cors::{ORIGIN, with_cors};
use crate::credentials::{api_key, authorization, basic, keys, users};
use crate::origin::{Origin, full};
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene};

const PAGE: &str = "https://b.org";

async fn ask(scene: &Scene, origin: &str, fields: &[(&str, &str)]) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    let mut request = client.request(Method::POST, "a.com", "/");
    for (name, value) in [(ORIGIN, origin)].iter().chain(fields) {
        request = request.header(*name, *value);
    }
    client
        .fetch(request.body(full("hello")).expect("a request"))
        .await
}

/// What refuses requests, with credentials that have to be verified and the status.
fn refusals() -> Vec<(Vec<String>, Option<String>, u16)> {
    let on_route = |spec: &Value| access("a", &of_route(), spec);
    let authorized = json!({
        "apiKey": api_key()["apiKey"],
        "authorization": {"rules": [{"name": "get", "action": "Allow", "match": {"methods": ["GET"]}}]},
    });
    let wrong_password = authorization("alice", "wrong");
    let unusable = json!({"basic": {"secretRef": {"name": "missing"}}});
    let two = json!([per_hour("one", 1)]);
    vec![
        (vec![on_route(&api_key()), keys()], None, 401),
        (
            vec![
                on_route(&basic()),
                users(&[("alice", crate::credentials::BCRYPT)]),
            ],
            Some(wrong_password),
            401,
        ),
        (vec![on_route(&authorized), keys()], None, 401),
        (vec![on_route(&ip_rules(&[], &["127.0.0.0/8"]))], None, 403),
        (vec![on_route(&unusable)], None, 500),
        (
            vec![policy(
                "p",
                &of_route(),
                &json!({"requestBody": {"maxSize": "4"}}),
            )],
            None,
            413,
        ),
        (vec![limits("l", &of_route(), &two, None)], None, 429),
    ]
}

#[tokio::test]
async fn pages_can_read_refusals() {
    let backend = Origin::echo("origin").await;
    for (objects, credentials, status) in refusals() {
        let cors =
            json!({"allowOrigins": [PAGE], "allowMethods": ["POST"], "allowCredentials": true});
        let rule = with_cors("/", "origin", &cors);
        let first = Objects::http()
            .service("origin", &[backend.address])
            .route("route", &[rule]);
        let scene = Scene::start(&objects.into_iter().fold(first, Objects::with));
        let credentials = credentials.as_deref().map(|it| ("authorization", it));
        let fields: Vec<_> = credentials.into_iter().collect();
        if status == 429 {
            assert_eq!(ask(&scene, PAGE, &fields).await.status, 200);
        }
        let refused = ask(&scene, PAGE, &fields).await;
        assert_eq!(refused.status, status, "{refused:?}");
        assert_eq!(refused.header("access-control-allow-origin"), PAGE);
        assert_eq!(refused.header("access-control-allow-credentials"), "true");
        assert_eq!(refused.header("vary"), "Origin");
        let other = ask(&scene, "https://c.org", &fields).await;
        assert_eq!(other.status, status, "{other:?}");
        assert!(!other.headers.contains_key("access-control-allow-origin"));
    }
}
