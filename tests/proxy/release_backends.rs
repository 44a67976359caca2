//! ReleaseBackends from their objects to the requests that each release gets.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use portcullis::ir::route::{Action, BackendTarget};

use crate::client::Client;
use crate::first_problem::{Problem, is_first, is_gone};
use crate::origin::Origin;
use crate::scene::{Objects, Scene};

const RELEASE: &str = "app.kubernetes.io/version";
const REQUESTS: usize = 10_000;

/// Returns a ready pod of a release whose container listens where the origin does.
fn pod(release: &str, origin: &Origin) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": release, "namespace": "default", "labels": {"app": "shop", RELEASE: release}},
        "spec": {"containers": [{"name": "shop", "ports": [{"name": "http", "containerPort": origin.address.port()}]}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Returns a Service of pods whose ports differ, and a ReleaseBackend with these weights.
fn release_backend(name: &str, weights: &[(&str, u64)]) -> [Value; 2] {
    let metadata = json!({"name": name, "namespace": "default"});
    let releases = weights.iter();
    let releases: Vec<_> = releases
        .map(|(value, weight)| json!({"value": value, "weight": weight}))
        .collect();
    let spec = json!({
        "loadBalancer": {"v1.Service": {"name": name, "selector": {"app": "shop"}}},
        "splitBy": RELEASE,
        "releases": releases,
    });
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"port": 80, "targetPort": "http"}], "selector": {"app": "other"}},
        }),
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend", "metadata": metadata, "spec": spec,
        }),
    ]
}

fn with(objects: Objects, documents: &[Value]) -> Objects {
    documents
        .iter()
        .fold(objects, |all, one| all.with(one.to_string()))
}

/// Returns a rule with weighted references to Services and ReleaseBackends.
fn rule(references: &[(&str, &str, u64)]) -> Value {
    let references = references.iter().map(|(kind, name, weight)| {
        let group = if *kind == "Service" {
            ""
        } else {
            "portcullis.dev"
        };
        json!({"group": group, "kind": kind, "name": name, "port": 80, "weight": weight})
    });
    json!({"backendRefs": references.collect::<Vec<_>>()})
}

#[tokio::test]
async fn weights_of_references_and_releases_multiply() {
    let origins = [
        Origin::echo("plain").await,
        Origin::echo("v1").await,
        Origin::echo("v2").await,
        Origin::echo("v3").await,
    ];
    let [plain, v1, v2, v3] = &origins;
    let objects = Objects::http().service("plain", &[plain.address]).route(
        "route",
        &[rule(&[
            ("Service", "plain", 3),
            ("ReleaseBackend", "shop", 7),
        ])],
    );
    let objects = with(objects, &[pod("v1", v1), pod("v2", v2), pod("v3", v3)]);
    let weights = [("v1", 70), ("v2", 30), ("v3", 0)];
    let scene = Scene::start(&with(objects, &release_backend("shop", &weights)));
    let mut client = Client::http1(scene.at(80)).await;
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for _ in 0..REQUESTS {
        *counts
            .entry(client.get("a.com", "/").await.name())
            .or_default() += 1.0;
    }
    let expected = [("plain", 0.3), ("v1", 0.49), ("v2", 0.21)];
    assert_eq!(counts.len(), expected.len(), "{counts:?}");
    let deviation = |(name, share): &(&str, f64)| {
        let expected = share * REQUESTS as f64;
        (counts[*name] - expected).powi(2) / expected
    };
    let chi_square: f64 = expected.iter().map(deviation).sum();
    // Two degrees of freedom: a correct split exceeds this once in ten million runs.
    assert!(chi_square < 32.3, "{chi_square} from {counts:?}");
}

#[tokio::test]
async fn releases_without_weight_are_the_first_problem_until_one_has_some() {
    let origin = Origin::echo("v1").await;
    let objects = |weight| {
        let references = [("ReleaseBackend", "shop", 1)];
        let objects = Objects::http().route("route", &[rule(&references)]);
        let objects = with(objects, &[pod("v1", &origin)]);
        with(objects, &release_backend("shop", &[("v1", weight)]))
    };
    let mut scene = Scene::start(&objects(0));
    let problem = Problem {
        kind: "backend",
        object: "ReleaseBackend default/shop:80",
        texts: &[
            "has no release with a weight and a ready endpoint: its requests get 503",
            "give a release with ready pods a weight",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&objects(1)).await;
    is_gone(&scene).await;
}

/// Returns the share of each release of each backend that a configuration results in.
fn shares(scene: &Scene) -> BTreeMap<(String, String), f64> {
    let table = scene.state().table.load_full();
    let rule = table.rules().next().expect("a rule");
    let Action::Forward(references) = &rule.ir.action else {
        panic!("{:?}", rule.ir.action)
    };
    let sum: u32 = references.iter().map(|reference| reference.weight).sum();
    let mut shares = BTreeMap::new();
    for reference in references {
        let BackendTarget::Backend(id) = &reference.target else {
            panic!("{:?}", reference.target)
        };
        let outer = f64::from(reference.weight) / f64::from(sum);
        let backend = table.backends().find(|backend| backend.id == *id);
        let endpoints = backend.expect("the backend").endpoints();
        let releases = endpoints.releases().expect("releases");
        for release in releases.iter() {
            let key = (id.object.name.to_string(), release.stats.name.to_string());
            shares.insert(key, outer * releases.share(release));
        }
    }
    shares
}

#[tokio::test]
async fn shares_are_exact_for_any_weights() {
    let origin = Origin::echo("any").await;
    let mut random = StdRng::seed_from_u64(7);
    let names = ["v1", "v2", "v3"];
    let pods = names.map(|name| pod(name, &origin));
    let mut scene: Option<Scene> = None;
    for _ in 0..30 {
        let limit = if random.random() { 10 } else { 1_000_000 };
        let mut draw = || random.random_range(0..=limit);
        let outer = [draw() + 1, draw() + 1];
        let inner = [(); 2].map(|()| names.map(|name| (name, draw() + u64::from(name == "v1"))));
        let references = [
            ("ReleaseBackend", "a", outer[0]),
            ("ReleaseBackend", "b", outer[1]),
        ];
        let mut objects = Objects::http().route("route", &[rule(&references)]);
        objects = with(objects, &pods);
        objects = with(objects, &release_backend("a", &inner[0]));
        objects = with(objects, &release_backend("b", &inner[1]));
        let current = match scene.take() {
            Some(mut scene) => {
                scene.replace(&objects).await;
                scene
            }
            None => Scene::start(&objects),
        };
        let shares = shares(&current);
        for (backend, (outer_weight, releases)) in ["a", "b"].iter().zip(outer.iter().zip(&inner)) {
            let inner_sum: u64 = releases.iter().map(|(_, weight)| weight).sum();
            for (release, weight) in releases {
                let numerator = u128::from(outer_weight * weight);
                let denominator = u128::from(outer[0] + outer[1]) * u128::from(inner_sum);
                let exact = numerator as f64 / denominator as f64;
                let key = ((*backend).to_owned(), (*release).to_owned());
                let share = shares.get(&key).copied().unwrap_or_default();
                assert!(
                    (share - exact).abs() < 1e-6,
                    "{key:?}: {share}, not {exact}"
                );
            }
        }
        scene = Some(current);
    }
}
