//! TLS to backends by consumer overrides (GEP-3875): each user story of the proposal with real
//! certificates, checked on the wire.

use serde_json::{Value, json};

use crate::client::get;
use crate::harness::yaml;
use crate::scene::{Objects, Scene};
use crate::tls_origin::{Authority, TlsOrigin};

const SECRET: &str = "/for-the-backend-only";
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const OURS: &str = "portcullis.dev/v1alpha1";

/// Returns a Gateway on this port that accepts routes of all namespaces.
fn gateway(namespace: &str, name: &str, port: u16) -> String {
    let routes = json!({"namespaces": {"from": "All"}});
    let listener =
        json!({"name": "http", "port": port, "protocol": "HTTP", "allowedRoutes": routes});
    json!({
        "apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": "portcullis", "listeners": [listener]},
    })
    .to_string()
}

/// Route `name` of namespace `app` for a path that sends everything to its Service `app`.
fn route(name: &str, path: &str, parents: &[(&str, &str)]) -> String {
    let parents = parents
        .iter()
        .map(|(namespace, name)| json!({"namespace": namespace, "name": name}));
    let parents: Vec<_> = parents.collect();
    let matches = json!([{"path": {"type": "PathPrefix", "value": path}}]);
    json!({
        "apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": {"name": name, "namespace": "app"},
        "spec": {
            "parentRefs": parents,
            "rules": [{"matches": matches, "backendRefs": [{"name": "app", "port": 80}]}],
        },
    })
    .to_string()
}

/// Service `app` of namespace `app`.
fn service(origin: &TlsOrigin) -> String {
    yaml::service("app", &[origin.address])
        .replace(
            "metadata: {name: app}",
            "metadata: {name: app, namespace: app}",
        )
        .replace("metadata:\n  name:", "metadata:\n  namespace: app\n  name:")
}

fn authorities(namespace: &str, authority: &Authority) -> String {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": namespace},
        "data": {"ca.crt": authority.pem},
    })
    .to_string()
}

/// Validation with ConfigMap `ca` of the policy's namespace and this hostname; plain text without
/// one.
fn policy(
    kind: &str,
    namespace: &str,
    name: &str,
    target: &Value,
    hostname: Option<&str>,
) -> String {
    let version = if kind == "BackendTLSOverride" {
        OURS
    } else {
        GATEWAY_API
    };
    let mut targets = json!({"group": "", "kind": "Service", "name": "app"});
    for (field, value) in target.as_object().expect("an object") {
        targets[field] = value.clone();
    }
    let authority = json!({"group": "", "kind": "ConfigMap", "name": "ca"});
    let spec = match hostname {
        None => json!({"targetRefs": [targets], "mode": "None"}),
        Some(hostname) => json!({
            "targetRefs": [targets],
            "validation": {"hostname": hostname, "caCertificateRefs": [authority]},
        }),
    };
    json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    })
    .to_string()
}

fn consumer(namespace: &str, name: &str, target: &Value, hostname: Option<&str>) -> String {
    policy("BackendTLSOverride", namespace, name, target, hostname)
}

fn producer(hostname: &str) -> String {
    policy(
        "BackendTLSPolicy",
        "app",
        "producer",
        &json!({}),
        Some(hostname),
    )
}

/// Gateways `edge/one` on port 80, `edge/two` on port 81 and `other/web` on port 82, each with routes `a` and `b`.
fn three_gateways(origin: &TlsOrigin, authority: &Authority) -> Objects {
    let parents = [("edge", "one"), ("edge", "two"), ("other", "web")];
    let mut objects = Objects::default().with(service(origin));
    for (port, (namespace, name)) in (80..).zip(parents) {
        objects = objects.with(gateway(namespace, name, port));
    }
    for namespace in ["edge", "app", "other"] {
        objects = objects.with(authorities(namespace, authority));
    }
    objects
        .with(route("a", "/a", &parents))
        .with(route("b", "/b", &parents))
}

/// Sends a request; returns the status and the SNI that the backend received, if any.
async fn asked(scene: &Scene, origin: &TlsOrigin, port: u16, path: &str) -> (u16, Option<String>) {
    let before = origin.handshakes().len();
    let path = format!("{path}{SECRET}");
    let status = get(scene.at(port), "shop.example", &path).await.status;
    let handshakes = origin.handshakes();
    let new = handshakes.get(before);
    (status, new.and_then(|it| it.server_name.clone()))
}

#[tokio::test]
async fn consumer_override_wins_for_gateways_of_its_namespace() {
    let authority = Authority::new();
    let names = ["producer.example", "consumer.example"];
    let origin = TlsOrigin::start(&authority.issue(&names)).await;
    let target = json!({"namespace": "app"});
    let objects = three_gateways(&origin, &authority)
        .with(producer(names[0]))
        .with(consumer("edge", "gateway-pol", &target, Some(names[1])));
    let scene = Scene::start(&objects);
    for (port, name) in [(80, names[1]), (82, names[0])] {
        let asked = asked(&scene, &origin, port, "/a").await;
        assert_eq!(asked, (200, Some(name.to_owned())), "{port}");
    }
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn gateway_and_route_overrides_win_over_namespace() {
    let authority = Authority::new();
    let names = ["consumer.example", "gateway.example", "route.example"];
    let origin = TlsOrigin::start(&authority.issue(&names)).await;
    let from =
        |kind: &str, name: &str| json!({"namespace": "app", "from": {"kind": kind, "name": name}});
    let objects = three_gateways(&origin, &authority)
        .with(consumer(
            "edge",
            "all",
            &json!({"namespace": "app"}),
            Some(names[0]),
        ))
        .with(consumer(
            "edge",
            "one",
            &from("Gateway", "one"),
            Some(names[1]),
        ))
        // Route and policy are in the producer's namespace.
        .with(consumer(
            "app",
            "a",
            &from("HTTPRoute", "a"),
            Some(names[2]),
        ));
    let scene = Scene::start(&objects);
    for (port, path, name) in [
        (80, "/a", Some(names[2])),
        (80, "/b", Some(names[1])),
        (81, "/b", Some(names[0])),
        (82, "/a", Some(names[2])),
    ] {
        let asked = asked(&scene, &origin, port, path).await;
        assert_eq!(asked, (200, name.map(str::to_owned)), "{port} {path}");
    }
    origin.assert_encrypted(SECRET);
    // No policy applies to these requests.
    let (status, _) = asked(&scene, &origin, 82, "/b").await;
    assert_ne!(status, 200);
}

#[tokio::test]
async fn mode_none_is_plain_text_for_its_consumer_only() {
    let authority = Authority::new();
    let name = "producer.example";
    let (plain, encrypted) = (
        TlsOrigin::plain().await,
        TlsOrigin::start(&authority.issue(&[name])).await,
    );
    let from = json!({"namespace": "app", "from": {"kind": "Gateway", "name": "one"}});
    let objects = |origin: &TlsOrigin| {
        three_gateways(origin, &authority)
            .with(producer(name))
            .with(consumer("edge", "mesh", &from, None))
    };
    let short = |settings: &mut portcullis::settings::Settings| {
        settings.limits.connect_timeout = std::time::Duration::from_secs(1);
    };
    // A plain-text backend: only Gateway `one` reaches it.
    let scene = Scene::with(&objects(&plain), short);
    assert_eq!(asked(&scene, &plain, 80, "/a").await, (200, None));
    assert_ne!(asked(&scene, &plain, 81, "/a").await.0, 200);
    assert_eq!(plain.requests(), 1);
    // A TLS backend: Gateway `one` sends plain text, which the backend rejects.
    let scene = Scene::with(&objects(&encrypted), short);
    assert_eq!(asked(&scene, &encrypted, 81, "/a").await.0, 200);
    encrypted.assert_encrypted(SECRET);
    assert_ne!(asked(&scene, &encrypted, 80, "/a").await.0, 200);
    assert_eq!(encrypted.requests(), 1);
}

#[tokio::test]
async fn broken_override_is_not_ignored() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&["producer.example"])).await;
    let objects = three_gateways(&origin, &authority).with(producer("producer.example"));
    let target = json!({"namespace": "app"});
    let broken =
        consumer("edge", "broken", &target, Some("x.example")).replace("\"ca\"", "\"nope\"");
    let mut scene = Scene::start(&objects.clone().with(broken));
    assert_eq!(asked(&scene, &origin, 80, "/a").await, (500, None));
    assert_eq!(asked(&scene, &origin, 82, "/a").await.0, 200);
    scene.replace(&objects).await;
    assert_eq!(asked(&scene, &origin, 80, "/a").await.0, 200);
    origin.assert_encrypted(SECRET);
}
