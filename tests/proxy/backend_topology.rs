//! BackendPolicies: endpoints in the zone of the data plane take precedence.

use portcullis::settings::location::Location;
use serde_json::{Value, json};

use crate::backend_policy::policy;
use crate::client::Client;
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, to};

/// A Service with endpoints in these zones. Without hints, as of a Service without `trafficDistribution`.
fn objects(endpoints: &[(&Origin, &str)], balancing: Option<&Value>) -> Objects {
    let addresses: Vec<_> = endpoints.iter().map(|(origin, _)| origin.address).collect();
    let mut service = yaml::service("app", &addresses);
    for (origin, zone) in endpoints {
        let port = format!("port: {}}}]\nendpoints: [{{", origin.address.port());
        service = service.replace(&port, &format!("{port}zone: {zone}, "));
    }
    let objects = Objects::http().with(service).route("route", &[to("app")]);
    match balancing {
        None => objects,
        Some(balancing) => objects.with(policy(json!({"loadBalancing": balancing}))),
    }
}

fn scene(objects: &Objects) -> Scene {
    Scene::with(objects, |settings| {
        settings.location = Location::new("a", "")
    })
}

/// The backends that serve requests, without duplicates.
async fn served(scene: &Scene) -> String {
    let mut client = Client::http1(scene.at(80)).await;
    let mut names = Vec::new();
    for _ in 0..40 {
        names.push(client.get("a.com", "/").await.name());
    }
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

#[tokio::test]
async fn endpoints_in_the_zone_get_all_requests() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let prefers = json!({"topology": "PreferZone"});
    let zones = |of_one, of_two, balancing| objects(&[(&one, of_one), (&two, of_two)], balancing);
    let mut scene = scene(&zones("a", "b", None));
    assert_eq!(served(&scene).await, "one two", "without a policy");
    scene.replace(&zones("a", "b", Some(&prefers))).await;
    assert_eq!(served(&scene).await, "one");
    scene.replace(&zones("b", "a", Some(&prefers))).await;
    assert_eq!(served(&scene).await, "two", "the zones have changed");
    scene.replace(&zones("b", "c", Some(&prefers))).await;
    assert_eq!(served(&scene).await, "one two", "none is in the zone");
    scene.replace(&zones("a", "b", Some(&prefers))).await;
    assert_eq!(served(&scene).await, "one");
    scene.replace(&zones("a", "b", None)).await;
    assert_eq!(served(&scene).await, "one two", "without a policy again");
}

#[tokio::test]
async fn policy_takes_the_zones_of_endpoints_that_have_changed_before() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let prefers = json!({"topology": "PreferZone"});
    let zones = |of_one, of_two, balancing| objects(&[(&one, of_one), (&two, of_two)], balancing);
    let mut scene = scene(&zones("a", "b", None));
    // This alone changes nothing that is served.
    let random = json!({"type": "Random"});
    scene.replace(&zones("b", "a", Some(&random))).await;
    assert_eq!(served(&scene).await, "one two");
    scene.replace(&zones("b", "a", Some(&prefers))).await;
    assert_eq!(served(&scene).await, "two");
}

#[tokio::test]
async fn others_serve_while_the_zone_cannot() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let prefers = json!({"topology": "PreferZone"});
    let scene = scene(&objects(&[(&one, "a"), (&two, "b")], Some(&prefers)));
    assert_eq!(served(&scene).await, "one");
    drop(one);
    // Each request is served: the first ones at their second attempt.
    assert_eq!(served(&scene).await, "two");
}
