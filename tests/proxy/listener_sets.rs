//! A Gateway whose teams bring their own listeners and certificates with ListenerSets.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Response};
use hyper::body::Frame;

use crate::client::{Client, get, handshake, whole};
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::{Origin, empty, stream};
use crate::scene::{Scene, prefix, secret, to, write};

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  gatewayClassName: portcullis
  allowedListeners: {namespaces: {from: Same}}
  listeners: [{name: other, port: 80, protocol: HTTP, hostname: other.com}]
";

/// Returns a ListenerSet with an HTTP and an HTTPS listener for a host. The Secret has the name of the set.
fn set(name: &str, host: &str) -> String {
    let listeners = [
        yaml::http("http", 80, host),
        yaml::https("https", 443, host, &[name]),
    ];
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRef: {{name: gateway}}\n  listeners: [{}]\n",
        listeners.join(", ")
    )
}

/// Returns a route of a set.
fn route(name: &str, set: &str, rules: &[serde_json::Value]) -> String {
    let rules = serde_json::Value::from(rules).to_string();
    let route = yaml::route(name, "PARENT", &[], &rules);
    let parent = format!("group: gateway.networking.k8s.io, kind: ListenerSet, name: {set}");
    route.replace("name: PARENT", &parent)
}

/// The flow of cert-manager with the challenge HTTP-01, step by step.
#[tokio::test]
async fn http_listener_of_a_set_solves_the_challenge_for_its_certificate() {
    let app = Origin::echo("app").await;
    let solver = Origin::echo("solver").await;
    let objects = [
        GATEWAY.to_owned(),
        yaml::service("app", &[app.address]),
        yaml::service("solver", &[solver.address]),
        set("neighbour", "neighbour.com"),
        secret("neighbour", &Certificate::new(&["neighbour.com"])),
        route("of-neighbour", "neighbour", &[to("app")]),
    ];
    let mut scene = Scene::prepared(
        |folder| write(folder, "gateway.yaml", &objects.join("\n---\n")),
        |_| {},
    );
    let config = tls::client(&["http/1.1"]);
    let mut neighbour = Client::tls(scene.at(443), "neighbour.com", &config).await;

    // The set and its route come first. The Secret does not exist.
    let team = [
        set("team", "team.com"),
        route("of-team", "team", &[to("app")]),
    ];
    let outcome = scene
        .change(|folder| write(folder, "team.yaml", &team.join("\n---\n")))
        .await;
    let sets = &outcome.report.listener_sets;
    let (_, status) = sets.get_max().expect("the set of the team");
    let problems = |listener: usize| {
        let conditions = status.listeners[listener].conditions.iter();
        let problems = conditions.filter(|it| it.is_problem());
        problems
            .map(|it| format!("{:?}", it.kind))
            .collect::<Vec<_>>()
    };
    assert_eq!(problems(0), Vec::<String>::new());
    assert_eq!(problems(1), ["Programmed", "ResolvedRefs"]);
    assert_eq!(get(scene.at(80), "team.com", "/").await.name(), "app");
    assert!(handshake(scene.at(443), "team.com", &config).await.is_err());

    // The solver responds to the challenge.
    let path = "/.well-known/acme-challenge/token";
    let challenge = route("challenge", "team", &[prefix(path, "solver")]);
    scene
        .change(|folder| write(folder, "challenge.yaml", &challenge))
        .await;
    assert_eq!(get(scene.at(80), "team.com", path).await.name(), "solver");
    assert_eq!(get(scene.at(80), "team.com", "/").await.name(), "app");

    // The certificate is issued.
    let certificate = Certificate::new(&["team.com"]);
    scene
        .change(|folder| write(folder, "certificate.yaml", &secret("team", &certificate)))
        .await;
    let stream = handshake(scene.at(443), "team.com", &config).await;
    let stream = stream.expect("a handshake");
    let shown = stream.get_ref().1.peer_certificates().expect("a chain");
    assert_eq!(shown[0], certificate.der);
    let mut team = Client::http1_on(stream).await;
    assert_eq!(team.get("team.com", "/").await.name(), "app");

    // The challenge is removed. Open connections, also those of others, saw nothing of all this.
    scene
        .change(|folder| std::fs::remove_file(folder.join("challenge.yaml")).expect("removed"))
        .await;
    assert_eq!(team.get("team.com", path).await.name(), "app");
    assert_eq!(neighbour.get("neighbour.com", "/").await.name(), "app");
}

/// Two ListenerSets want the same host. When the older one goes, the younger one gets the host, and connections of
/// neighbours and a response that is under way see nothing of it.
#[tokio::test]
async fn host_of_a_set_that_goes_is_taken_over_without_a_disturbance() {
    let (body, payload) = stream();
    let slow = Arc::new(Mutex::new(Some(payload)));
    let older = Origin::new(move |_| {
        let payload = slow.lock().expect("no panic").take();
        async move { Response::new(payload.unwrap_or_else(empty)) }
    })
    .await;
    let younger = Origin::echo("younger").await;
    let neighbour = Origin::echo("neighbour").await;
    let certificate = Certificate::new(&["shared.com", "neighbour.com"]);
    let aged = |set: &str, host: &str, day: u8| {
        let time = format!("{{creationTimestamp: 2026-01-0{day}T00:00:00Z, name:");
        self::set(set, host).replacen("{name:", &time, 1)
    };
    let older_set = aged("older", "shared.com", 1);
    let objects = [
        GATEWAY.to_owned(),
        yaml::service("older", &[older.address]),
        yaml::service("younger", &[younger.address]),
        yaml::service("neighbour", &[neighbour.address]),
        secret("older", &certificate),
        secret("younger", &certificate),
        secret("neighbour", &certificate),
        aged("younger", "shared.com", 2),
        aged("neighbour", "neighbour.com", 3),
        route("of-older", "older", &[to("older")]),
        route("of-younger", "younger", &[to("younger")]),
        route("of-neighbour", "neighbour", &[to("neighbour")]),
    ];
    let prepare = |folder: &std::path::Path| {
        write(folder, "all.yaml", &objects.join("\n---\n"));
        write(folder, "older.yaml", &older_set);
    };
    let mut scene = Scene::prepared(prepare, |_| {});
    let config = tls::client(&["http/1.1"]);
    let mut plain = Client::http1(scene.at(80)).await;
    let mut other = Client::tls(scene.at(443), "neighbour.com", &config).await;
    let mut shared = Client::tls(scene.at(443), "shared.com", &config).await;
    assert_eq!(other.get("neighbour.com", "/").await.name(), "neighbour");
    assert_eq!(plain.get("neighbour.com", "/").await.name(), "neighbour");
    let request = shared.request(Method::GET, "shared.com", "/");
    let response = shared.send(request.body(empty()).expect("a request")).await;
    let response = response.expect("a head");

    let outcome = scene
        .change(|folder| std::fs::remove_file(folder.join("older.yaml")).expect("removed"))
        .await;
    let taken = outcome.report.listener_sets.iter();
    let taken = taken.filter(|(name, _)| *name.name == *"younger");
    for (_, status) in taken {
        assert!(status.conditions.iter().all(|it| !it.is_problem()));
    }

    // The response of the deleted ListenerSet continues.
    body.send(Frame::data(Bytes::from_static(b"end")))
        .await
        .expect("read");
    drop(body);
    assert_eq!(whole(response).await.text(), "end");
    // New requests, also on old connections, go to the set that has the host now.
    assert_eq!(shared.get("shared.com", "/").await.name(), "younger");
    assert_eq!(get(scene.at(80), "shared.com", "/").await.name(), "younger");
    assert_eq!(other.get("neighbour.com", "/").await.name(), "neighbour");
    assert_eq!(plain.get("neighbour.com", "/").await.name(), "neighbour");
}
