//! XBackendTrafficPolicies: the retry budget of a backend (GEP-3388) and its session persistence
//! (GEP-1619).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use http::Response;
use serde_json::{Value, json};

use crate::admin::{metric, rule_labels, service_labels};
use crate::client::{Answer, Client, read_until};
use crate::harness::tls::{self, Certificate};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, https, prefix, secret, to};
use crate::sessions::{cookie, origins};

/// A policy for Services.
pub(crate) fn traffic_policy(services: &[&str], mut spec: Value) -> String {
    let target = |name: &&str| json!({"group": "", "kind": "Service", "name": name});
    spec["targetRefs"] = services.iter().map(target).collect();
    let policy = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackendTrafficPolicy",
        "metadata": {"name": "policy"}, "spec": spec,
    });
    policy.to_string()
}

/// Returns a budget of this percentage and of this number of retries per hour.
pub(crate) fn budget(percent: u32, count: u32) -> Value {
    json!({"retryConstraint": {
        "budget": {"percent": percent, "interval": "1h"},
        "minRetryRate": {"count": count, "interval": "1h"},
    }})
}

/// Returns a rule that retries status 500 once.
fn retrying() -> Value {
    let mut rule = to("app");
    rule["retry"] = json!({"codes": [500], "attempts": 1, "backoff": "1ms"});
    rule
}

fn before(origin: &Origin, policies: &[String]) -> Objects {
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[retrying()]);
    policies.iter().cloned().fold(objects, Objects::with)
}

/// Responds to every request with 500.
async fn failing() -> Origin {
    Origin::new(|_| async {
        let response = Response::builder().status(500);
        response.body(full("failed")).expect("a response")
    })
    .await
}

#[tokio::test]
async fn retries_over_the_budget_get_503() {
    let origin = failing().await;
    let scene = Scene::start(&before(&origin, &[traffic_policy(&["app"], budget(0, 3))]));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..3 {
        let answer = client.get("a.com", "/").await;
        assert_eq!((answer.status, answer.text()), (500, "failed"));
    }
    for _ in 0..7 {
        let answer = client.get("a.com", "/").await;
        assert_eq!(answer.status, 503);
        assert!(
            answer.text().contains("traffic policy"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(origin.requests(), 10 + 3);
    let labels = service_labels("app");
    let over_budget = format!("upstream_retries_over_budget_total{{{labels}}}");
    assert_eq!(metric(&scene, &over_budget).await, 7.0);
    let retries = format!("retries_total{{{}}}", rule_labels("0"));
    assert_eq!(metric(&scene, &retries).await, 3.0);
}

#[tokio::test]
async fn budget_is_a_percentage_of_the_requests_of_all_workers() {
    let origin = failing().await;
    let objects = before(&origin, &[traffic_policy(&["app"], budget(20, 1))]);
    let scene = Scene::with(&objects, |settings| settings.workers = 4);
    for _ in 0..20 {
        let mut client = Client::http1(scene.at(80)).await;
        client.get("a.com", "/").await;
    }
    // The minimum rate allows one retry. Afterwards, 2 of 10 requests, 3 of 15, 4 of 20 and 5 of 25
    // are retries.
    assert_eq!(origin.requests(), 20 + 5);
}

#[tokio::test]
async fn budget_outlives_changes_of_the_configuration() {
    let origin = failing().await;
    let mut scene = Scene::start(&before(&origin, &[traffic_policy(&["app"], budget(0, 2))]));
    let statuses = async |scene: &Scene, count: usize| {
        let mut statuses = Vec::new();
        let mut client = Client::http1(scene.at(80)).await;
        for _ in 0..count {
            statuses.push(client.get("a.com", "/").await.status);
        }
        statuses
    };
    assert_eq!(statuses(&scene, 3).await, [500, 500, 503]);
    // A changed limit keeps the count of retries.
    scene
        .replace(&before(&origin, &[traffic_policy(&["app"], budget(0, 3))]))
        .await;
    assert_eq!(statuses(&scene, 2).await, [500, 503]);
    // Without the policy, all are retried, as the rule allows.
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(statuses(&scene, 2).await, [500, 500]);
}

#[tokio::test]
async fn failed_connects_do_not_count_against_the_budget() {
    let origin = Origin::echo("alive").await;
    let objects = Objects::http()
        .service("app", &[Origin::dead(), origin.address, Origin::dead()])
        .route("route", &[retrying()])
        .with(traffic_policy(&["app"], budget(0, 1)));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..20 {
        assert_eq!(client.post("a.com", "/", "b").await.name(), "alive");
    }
}

#[tokio::test]
async fn budget_counts_retries_of_safe_methods_without_a_retry_in_the_rule() {
    let seen = Arc::<AtomicUsize>::default();
    let mut origins = Vec::new();
    for _ in 0..4 {
        let seen = seen.clone();
        let origin = Origin::raw(move |mut stream| {
            let seen = seen.clone();
            async move {
                read_until(&mut stream, "\r\n\r\n").await;
                seen.fetch_add(1, SeqCst);
            }
        });
        origins.push(origin.await);
    }
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = Objects::http()
        .service("app", &addresses)
        .route("route", &[to("app")])
        .with(traffic_policy(&["app"], budget(0, 1)));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.get("a.com", "/").await.status);
    }
    assert_eq!((statuses[0], &statuses[1..]), (502, &[503; 19][..]));
    assert_eq!(seen.load(SeqCst), 21);
}

async fn send(scene: &Scene, path: &str, cookie: Option<&str>) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    let fields: Vec<_> = cookie.map(|it| ("cookie", it)).into_iter().collect();
    client.get_with("a.com", path, &fields).await
}

#[tokio::test]
async fn each_rule_has_a_session_of_its_own_at_a_backend() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = Objects::http()
        .service("app", &addresses)
        .route("one", &[prefix("/one", "app")])
        .route("two", &[prefix("/two", "app")]);
    let with_policy = objects
        .clone()
        .with(traffic_policy(&["app"], json!({"sessionPersistence": {}})));
    let mut scene = Scene::start(&with_policy);
    let first = send(&scene, "/one", None).await;
    let set = first.header("set-cookie");
    assert!(set.starts_with("portcullis-session-"), "{set}");
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    let second = send(&scene, "/two", Some(&cookie(&first))).await;
    let token = cookie(&second);
    for (path, expected) in [("/one", &first), ("/two", &second)].repeat(10) {
        let again = send(&scene, path, Some(&token)).await;
        assert_eq!(again.name(), expected.name());
        assert!(!again.headers.contains_key("set-cookie"));
    }
    scene.replace(&objects).await;
    let after = send(&scene, "/one", None).await;
    assert!(!after.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn cookie_of_a_backend_is_secure_over_tls() {
    let origin = Origin::echo("one").await;
    let persistence = json!({
        "sessionName": "s", "absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"},
    });
    let objects = Objects::gateway(&[https("https", 443, "", &["key"])])
        .with(secret("key", &Certificate::new(&["a.com"])))
        .service("app", &[origin.address])
        .route("route", &[prefix("/cart", "app")])
        .with(traffic_policy(
            &["app"],
            json!({"sessionPersistence": persistence}),
        ));
    let scene = Scene::start(&objects);
    let config = tls::client(&["http/1.1"]);
    let mut client = Client::tls(scene.at(443), "a.com", &config).await;
    let answer = client.get("a.com", "/cart").await;
    let set = answer.header("set-cookie");
    let attributes = "; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600; Secure";
    assert!(set.starts_with("s=") && set.ends_with(attributes), "{set}");
}

#[tokio::test]
async fn session_of_a_rule_overrides_the_session_of_its_backend() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let mut rule = prefix("/rule", "app");
    rule["sessionPersistence"] = json!({"sessionName": "of-rule"});
    let persistence = json!({"sessionPersistence": {"sessionName": "of-backend"}});
    let objects = Objects::http()
        .service("app", &addresses)
        .route("route", &[rule, to("app")])
        .with(traffic_policy(&["app"], persistence));
    let scene = Scene::start(&objects);
    let of_backend = cookie(&send(&scene, "/", None).await);
    assert!(of_backend.starts_with("of-backend="), "{of_backend}");
    let answer = send(&scene, "/rule", Some(&of_backend)).await;
    assert_eq!(answer.headers.get_all("set-cookie").iter().count(), 1);
    let of_rule = cookie(&answer);
    assert!(of_rule.starts_with("of-rule="), "{of_rule}");
    let both = format!("{of_backend}; {of_rule}");
    for _ in 0..10 {
        let again = send(&scene, "/rule", Some(&both)).await;
        assert_eq!(again.name(), answer.name());
        assert!(!again.headers.contains_key("set-cookie"));
    }
}

#[tokio::test]
async fn session_of_a_backend_outlasts_changes_of_weights() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = |weights: [u32; 2]| {
        let backend = |name: &str, weight: u32| json!({"name": name, "port": 80, "weight": weight});
        let backends = [backend("a", weights[0]), backend("b", weights[1])];
        Objects::http()
            .service("a", &addresses[..2])
            .service("b", &addresses[2..])
            .route("route", &[json!({"backendRefs": backends})])
            .with(traffic_policy(
                &["a", "b"],
                json!({"sessionPersistence": {}}),
            ))
    };
    let mut scene = Scene::start(&objects([0, 1]));
    let first = send(&scene, "/", None).await;
    let token = cookie(&first);
    for weights in [[999_999, 1], [1, 1]] {
        scene.replace(&objects(weights)).await;
        for _ in 0..5 {
            let again = send(&scene, "/", Some(&token)).await;
            assert_eq!(again.name(), first.name());
            assert!(!again.headers.contains_key("set-cookie"));
        }
    }
    // With weight 0, only the requests of sessions reach a backend.
    scene.replace(&objects([1, 0])).await;
    let again = send(&scene, "/", Some(&token)).await;
    assert_eq!(again.name(), first.name());
    let new = send(&scene, "/", None).await;
    assert!(["one", "two"].contains(&new.name().as_str()));
}
