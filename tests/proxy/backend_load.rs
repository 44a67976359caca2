//! BackendPolicies with many requests, endpoints and keys: what a test of one request at a time does not show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use http::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::admin::{metric, service_labels};
use crate::backend_limits::{all_are_served, gated, send};
use crate::backend_policy::{objects, policy};
use crate::backend_tls::{self, authorities, trust};
use crate::client::{Answer, Client, read_until, whole};
use crate::harness::TEST_TIMEOUT;
use crate::health_checks::{Checked, http, mortal, service, until_failed};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, eventually, prefix, to};
use crate::tls_origin::Authority;

/// Requests at once, of which few are permitted.
const FLOOD: usize = 300;

#[tokio::test]
async fn each_endpoint_is_checked_once_per_interval() {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        endpoints.push(Checked::start(200).await);
    }
    let addresses: Vec<_> = endpoints.iter().map(|it| it.origin.address).collect();
    let rules = ["/one", "/two", "/three"].map(|path| prefix(path, "app"));
    let objects = service(&addresses, http()).route("another", &rules);
    let begin = Instant::now();
    let _scene = Scene::with(&objects, |settings| settings.workers = 4);
    let checks = || endpoints.iter().map(|it| it.checks.load(SeqCst));
    eventually("four checks each", async || {
        checks().all(|count| count >= 4)
    })
    .await;
    // One at the beginning, and one in each second.
    let checks: Vec<_> = checks().collect();
    let most = begin.elapsed().as_secs() as usize + 1;
    assert!(checks.iter().all(|it| *it <= most), "{checks:?} of {most}");
}

/// Sends requests over one connection. Returns the number of those that began after the detection, which `detected` says,
/// and of those that failed before it.
async fn load(mut client: Client, detected: Arc<AtomicBool>) -> (usize, usize) {
    let (mut after, mut failed) = (0, 0);
    while after < 300 {
        let is_detected = detected.load(SeqCst);
        let status = client.get("a.com", "/").await.status;
        assert!(
            status == 200 || !is_detected,
            "{status} after the detection"
        );
        after += usize::from(is_detected);
        failed += usize::from(status != 200);
    }
    (after, failed)
}

#[tokio::test]
async fn one_of_three_endpoints_dies_silently_under_load() {
    const CLIENTS: usize = 6;
    let is_dead = Arc::<AtomicBool>::default();
    let dying = mortal(&is_dead).await;
    let healthy = [Checked::start(200).await, Checked::start(200).await];
    let mut spec = http();
    spec["healthCheck"]["active"]["timeout"] = "200ms".into();
    let [one, two] = healthy.each_ref().map(|it| it.origin.address);
    let mut rule = to("app");
    rule["timeouts"] = json!({"request": "300ms"});
    let objects = Objects::http()
        .service("app", &[dying.address, one, two])
        .route("route", &[rule])
        .with(policy(spec));
    let scene = Scene::with(&objects, |settings| settings.workers = 2);
    let detected = Arc::<AtomicBool>::default();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = Client::http1(scene.at(80)).await;
        clients.spawn(load(client, detected.clone()));
    }
    // Requests of a while with all endpoints alive.
    sleep(Duration::from_millis(300)).await;
    is_dead.store(true, SeqCst);
    until_failed(&scene, 1).await;
    detected.store(true, SeqCst);
    let counts = timeout(TEST_TIMEOUT, clients.join_all()).await;
    let counts = counts.expect("no request waits for the dead endpoint");
    let after: usize = counts.iter().map(|(after, _)| after).sum();
    assert_eq!(after, 300 * CLIENTS);
    let failed: usize = counts.iter().map(|(_, failed)| failed).sum();
    assert!(failed > 0, "the endpoint had requests when it died");
}

/// Backends that respond with their numbers.
async fn numbered(count: usize) -> Vec<Origin> {
    let mut origins = Vec::new();
    for number in 0..count {
        let respond = move |_| async move { Response::new(full(number.to_string())) };
        origins.push(Origin::new(respond).await);
    }
    origins
}

#[tokio::test]
async fn few_keys_move_when_an_endpoint_leaves_and_back_when_it_returns() {
    const ENDPOINTS: usize = 5;
    const GONE: usize = 2;
    const KEYS: usize = 1500;
    let mut origins = numbered(ENDPOINTS).await;
    let key = json!([{"type": "Header", "name": "x-user"}]);
    let spec = json!({"loadBalancing": {"type": "ConsistentHash", "consistentHash": {"key": key}}});
    let all = objects(&origins, spec.clone());
    let left = origins.remove(GONE);
    let without = objects(&origins, spec);
    let mut scene = Scene::start(&all);
    let endpoints = async |scene: &Scene| {
        let mut client = Client::http1(scene.at(80)).await;
        let mut endpoints = BTreeMap::new();
        for key in 0..KEYS {
            let user = format!("user-{key}");
            let answer = client.get_with("a.com", "/", &[("x-user", &user)]).await;
            let number: usize = answer.text().parse().expect("a number");
            endpoints.insert(key, number);
        }
        endpoints
    };
    let before = endpoints(&scene).await;
    scene.replace(&without).await;
    let after = endpoints(&scene).await;
    let moved = before.iter().filter(|(key, number)| after[key] != **number);
    let moved: Vec<_> = moved.collect();
    assert!(
        moved.iter().all(|(_, number)| **number == GONE),
        "{moved:?}"
    );
    let most = 1.3 * KEYS as f64 / ENDPOINTS as f64;
    assert!(moved.len() as f64 <= most, "{} of {most}", moved.len());
    assert!(!moved.is_empty() && after.values().all(|it| *it != GONE));
    scene.replace(&all).await;
    assert_eq!(endpoints(&scene).await, before);
    drop(left);
}

/// Waits until all but `permitted` requests have been refused, which the backend does not answer.
async fn refused(flood: &mut JoinSet<Answer>, permitted: usize, limits: &Value) {
    for _ in permitted..FLOOD {
        let answer = timeout(TEST_TIMEOUT, flood.join_next()).await;
        let answer = answer.unwrap_or_else(|_| panic!("{limits}: requests wait"));
        let answer = answer.expect("a request").expect("no panic");
        assert_eq!(answer.status, 503, "{limits}");
    }
    assert_eq!(flood.len(), permitted, "{limits}");
}

#[tokio::test]
async fn flood_beyond_the_limits_is_refused_and_does_not_wait() {
    for (limits, permitted) in [
        (json!({"maxRequests": 4}), 4),
        (json!({"maxConnections": 4}), 4),
        (json!({"perEndpoint": {"maxRequests": 2}}), 4),
        (json!({"perEndpoint": {"maxConnections": 2}}), 4),
    ] {
        let gate = Arc::new(Semaphore::new(0));
        let origins = [gated(&gate).await, gated(&gate).await];
        let objects = objects(&origins, json!({"limits": limits}));
        let scene = Scene::with(&objects, |settings| settings.workers = 2);
        let mut flood = send(&scene, FLOOD).await;
        refused(&mut flood, permitted, &limits).await;
        let reached: usize = origins.iter().map(Origin::requests).sum();
        assert_eq!(reached, permitted, "{limits}");
        all_are_served(flood, &gate).await;
        let labels = service_labels("app");
        let overloaded = format!("upstream_errors_total{{{labels},reason=\"overloaded\"}}");
        let overloaded = metric(&scene, &overloaded).await;
        // Attempts count: a request that another worker forestalls at one endpoint goes on to the other.
        let counts = (FLOOD - permitted) as f64..=FLOOD as f64;
        assert!(counts.contains(&overloaded), "{limits}: {overloaded}");
    }
}

/// The streams of one connection are refused as well, each for itself.
#[tokio::test]
async fn streams_beyond_the_limits_are_refused_and_do_not_wait() {
    let gate = Arc::new(Semaphore::new(0));
    let origins = [gated(&gate).await];
    let limits = json!({"maxRequests": 4});
    let scene = Scene::start(&objects(&origins, json!({"limits": limits})));
    let mut client = Client::http2(scene.at(80)).await;
    let mut flood = JoinSet::new();
    // Responses of the permitted ones arrive when the gate opens.
    for _ in 0..4 {
        let mut client = Client::http1(scene.at(80)).await;
        flood.spawn(async move { client.get("a.com", "/").await });
    }
    origins[0].until_requests(4).await;
    for _ in 4..FLOOD {
        let request = client.request(Method::GET, "a.com", "/");
        let request = request.body(empty()).expect("a request");
        let response = client.send(request).await.expect("a response");
        assert_eq!(whole(response).await.status, 503);
    }
    assert_eq!(origins[0].requests(), 4);
    all_are_served(flood, &gate).await;
}

/// A backend that accepts connections and never completes the TLS handshake.
#[tokio::test]
async fn flood_that_needs_connections_is_refused_beyond_those_that_may_wait() {
    let mute = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "never").await;
    })
    .await;
    let mute = [mute];
    let authority = Authority::new();
    let limits = json!({"maxPending": 4});
    let objects = objects(&mute, json!({"limits": limits}))
        .with(backend_tls::policy(
            "app",
            &trust("app.example.com"),
            &json!({}),
        ))
        .with(authorities("ca", &authority.pem));
    let scene = Scene::with(&objects, |settings| settings.workers = 1);
    let mut flood = send(&scene, FLOOD).await;
    refused(&mut flood, 4, &limits).await;
}
