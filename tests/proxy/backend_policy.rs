//! BackendPolicies: how an endpoint is chosen.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::Client;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, to};

/// A policy for the Service `app`.
pub(crate) fn policy(mut spec: Value) -> String {
    spec["targetRefs"] = json!([{"group": "", "kind": "Service", "name": "app"}]);
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendPolicy",
        "metadata": {"name": "policy"}, "spec": spec,
    });
    policy.to_string()
}

fn hashed(key: &Value) -> Value {
    json!({"loadBalancing": {"type": "ConsistentHash", "consistentHash": {"key": key}}})
}

/// Returns objects with these endpoints of the Service `app` and this policy.
pub(crate) fn objects(origins: &[Origin], spec: Value) -> Objects {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    Objects::http()
        .service("app", &addresses)
        .route("route", &[to("app")])
        .with(policy(spec))
}

pub(crate) async fn origins(count: usize) -> Vec<Origin> {
    let mut origins = Vec::new();
    for _ in 0..count {
        let origin = Origin::new(|_| async { http::Response::new(full("ok")) });
        origins.push(origin.await);
    }
    origins
}

fn served(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(Origin::requests).collect()
}

#[tokio::test]
async fn requests_of_one_cookie_get_one_endpoint() {
    let origins = origins(5).await;
    let spec = hashed(&json!([{"type": "Cookie", "name": "id"}]));
    let scene = Scene::start(&objects(&origins, spec));
    let mut used = BTreeSet::new();
    for user in 0..40 {
        let cookie = format!("a=b; id=user-{user}");
        let before = served(&origins);
        for _ in 0..3 {
            let mut client = Client::http1(scene.at(80)).await;
            let answer = client.get_with("a.com", "/", &[("cookie", &cookie)]).await;
            assert_eq!(answer.status, 200);
        }
        let after = served(&origins);
        let changed = (0..5).filter(|at| after[*at] != before[*at]);
        let changed: Vec<_> = changed.collect();
        assert_eq!(changed.len(), 1, "{before:?} {after:?}");
        used.extend(changed);
    }
    assert_eq!(used.len(), 5, "40 users use all endpoints");
}

#[tokio::test]
async fn requests_without_the_key_are_distributed() {
    let origins = origins(3).await;
    let spec = hashed(&json!([{"type": "ClientIP"}, {"type": "Header", "name": "x-tenant"}]));
    let scene = Scene::start(&objects(&origins, spec));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..60 {
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    let distributed = served(&origins);
    assert!(distributed.iter().all(|it| *it > 0), "{distributed:?}");
    for _ in 0..30 {
        client.get_with("a.com", "/", &[("x-tenant", "one")]).await;
    }
    let after = served(&origins);
    let changed = (0..3).filter(|at| after[*at] != distributed[*at]).count();
    assert_eq!(changed, 1, "{distributed:?} {after:?}");
}

#[tokio::test]
async fn keys_of_an_endpoint_that_fails_go_to_others() {
    let mut origins = origins(4).await;
    let spec = hashed(&json!([{"type": "Header", "name": "x-user"}]));
    let scene = Scene::start(&objects(&origins, spec));
    let mut client = Client::http1(scene.at(80)).await;
    let mut of_last = None;
    for user in 0..64 {
        let before = origins[3].requests();
        let user = user.to_string();
        client.get_with("a.com", "/", &[("x-user", &user)]).await;
        if origins[3].requests() > before {
            of_last = Some(user);
        }
    }
    let user = of_last.expect("a user of the last endpoint");
    drop(origins.pop());
    for _ in 0..10 {
        let answer = client.get_with("a.com", "/", &[("x-user", &user)]).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn endpoints_are_used_in_turn() {
    let origins = origins(3).await;
    let spec = json!({"loadBalancing": {"type": "RoundRobin"}});
    let scene = Scene::with(&objects(&origins, spec), |settings| settings.workers = 1);
    let mut client = Client::http1(scene.at(80)).await;
    for round in 1..=5 {
        for _ in 0..3 {
            assert_eq!(client.get("a.com", "/").await.status, 200);
        }
        assert_eq!(served(&origins), [round; 3]);
    }
}

#[tokio::test]
async fn random_endpoints_are_used() {
    let origins = origins(3).await;
    let spec = json!({"loadBalancing": {"type": "Random"}});
    let scene = Scene::start(&objects(&origins, spec));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..90 {
        assert_eq!(client.get("a.com", "/").await.status, 200);
    }
    let served = served(&origins);
    assert!(served.iter().all(|it| *it >= 5), "{served:?}");
}

/// A changed policy keeps endpoints, and with them connections.
#[tokio::test]
async fn change_of_the_policy_keeps_connections() {
    let origins = origins(1).await;
    let mut scene = Scene::with(
        &objects(&origins, json!({"loadBalancing": {"type": "Random"}})),
        |settings| settings.workers = 1,
    );
    let mut client = Client::http1(scene.at(80)).await;
    client.get("a.com", "/").await;
    let spec = hashed(&json!([{"type": "ClientIP"}]));
    scene.replace(&objects(&origins, spec)).await;
    client.get("a.com", "/").await;
    assert_eq!((origins[0].requests(), origins[0].connections()), (2, 1));
}
