//! Traffic splitting between backends, including invalid ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{Client, get};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix};

const REQUESTS: usize = 4000;

/// Returns a rule with these weights.
fn weighted(path: &str, shares: &[(&str, u32)]) -> Value {
    let mut rule = prefix(path, "");
    let shares = shares.iter();
    let shares: Vec<_> = shares
        .map(|(service, weight)| json!({"name": service, "port": 80, "weight": weight}))
        .collect();
    rule["backendRefs"] = shares.into();
    rule
}

/// Sends [`REQUESTS`] and counts responses by backend.
async fn count(scene: &Scene, path: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..REQUESTS {
        *counts
            .entry(client.get("a.com", path).await.name())
            .or_default() += 1;
    }
    counts
}

/// Six standard deviations of a binomial distribution: a correct split exceeds them once in 500
/// million runs.
fn assert_share(counts: &BTreeMap<String, usize>, name: &str, share: f64) {
    let all = REQUESTS as f64;
    let count = counts.get(name).copied().unwrap_or_default() as f64;
    let tolerance = 6.0 * (all * share * (1.0 - share)).sqrt();
    assert!(
        (count - all * share).abs() <= tolerance,
        "{name}: {counts:?}"
    );
}

#[tokio::test]
async fn splits_traffic_by_weight() {
    let one = Origin::echo("one").await;
    let two = Origin::echo("two").await;
    let objects = Objects::http()
        .service("one", &[one.address])
        .service("two", &[two.address])
        .route("route", &[weighted("/", &[("one", 90), ("two", 10)])]);
    let scene = Scene::start(&objects);
    let counts = count(&scene, "/").await;
    assert_share(&counts, "one", 0.9);
    assert_share(&counts, "two", 0.1);
    assert_eq!(counts.len(), 2);
}

#[tokio::test]
async fn invalid_backends_keep_their_share() {
    let one = Origin::echo("one").await;
    let never = Origin::echo("never").await;
    let shares = [
        ("one", 50),
        ("missing", 30),
        ("without-endpoints", 20),
        ("never", 0),
    ];
    let objects = Objects::http()
        .service("one", &[one.address])
        .service("never", &[never.address])
        .service("without-endpoints", &[])
        .route("route", &[weighted("/", &shares)]);
    let scene = Scene::start(&objects);
    let counts = count(&scene, "/").await;
    assert_share(&counts, "one", 0.5);
    assert_share(&counts, "500", 0.3);
    assert_share(&counts, "503", 0.2);
    assert_eq!(counts.len(), 3, "{counts:?}");
    assert_eq!(never.requests(), 0);
}

#[tokio::test]
async fn no_usable_backend_is_an_error() {
    let one = Origin::echo("one").await;
    let objects = Objects::http()
        .service("one", &[one.address])
        .service("without-endpoints", &[])
        .route(
            "route",
            &[
                weighted("/none", &[]),
                weighted("/invalid", &[("missing", 1), ("gone", 1)]),
                weighted("/weightless", &[("one", 0)]),
                weighted("/no-endpoint", &[("without-endpoints", 1)]),
            ],
        );
    let scene = Scene::start(&objects);
    for (path, status) in [
        ("/none", 500),
        ("/invalid", 500),
        ("/weightless", 500),
        ("/no-endpoint", 503),
    ] {
        let answer = get(scene.at(80), "a.com", path).await;
        assert_eq!(answer.status, status, "{path}");
    }
    assert_eq!(one.requests(), 0);
}
