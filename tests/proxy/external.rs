//! XBackends, with hostnames that a name server of the test resolves to loopback.

use portcullis::settings::Settings;
use serde_json::{Value, json};

use crate::client::get;
use crate::harness::dns::{NameServer, Records};
use crate::harness::yaml;
use crate::scene::{Objects, Scene, eventually};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// Part of every request; must not be readable on the wire.
const SECRET: &str = "/for-the-backend-only";
/// Hostname of the backend.
const NAME: &str = "api.example.com";

async fn status(scene: &Scene) -> u16 {
    get(scene.at(80), "shop.example", SECRET).await.status
}

/// Waits until requests have this status: address changes are not observable otherwise.
async fn until(scene: &Scene, expected: u16) {
    let reached = async || status(scene).await == expected;
    eventually(&format!("status {expected}"), reached).await;
}

/// Returns an XBackend `api` with the port of an origin.
fn xbackend(origin: &TlsOrigin, protocol: &str, tls: &Value) -> String {
    let backend = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": {"name": "api"},
        "spec": {
            "type": "ExternalHostname", "externalHostname": {"hostname": NAME},
            "port": {"port": origin.address.port()}, "protocol": protocol, "tls": tls,
        },
    });
    backend.to_string()
}

/// Returns a Gateway that routes all requests to the XBackend.
fn objects(origin: &TlsOrigin, protocol: &str, tls: &Value) -> Objects {
    let reference =
        json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "api"});
    Objects::http()
        .route("route", &[json!({"backendRefs": [reference]})])
        .with(xbackend(origin, protocol, tls))
}

fn authorities(authority: &Authority) -> String {
    let data = json!({"ca.crt": authority.pem});
    let metadata = json!({"name": "ca"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string()
}

/// Mode ServerOnly with the ConfigMap `ca` and a hostname.
fn server_only(name: &str) -> Value {
    let authority = json!({"group": "", "kind": "ConfigMap", "name": "ca"});
    json!({"mode": "ServerOnly", "validation": {"hostname": name, "caCertificateRefs": [authority]}})
}

/// Uses the name server, and allows loopback addresses.
fn resolving(server: &NameServer) -> impl FnOnce(&mut Settings) {
    let server = server.address;
    move |settings| {
        settings.dns_servers = vec![server];
        settings.allowed_external_addresses = vec!["127.0.0.0/8".parse().expect("a network")];
    }
}

#[tokio::test]
async fn plaintext_requests_follow_address_changes() {
    let (first, names) = (TlsOrigin::plain().await, NameServer::start().await);
    let scene = Scene::with(&objects(&first, "HTTP", &json!(null)), resolving(&names));
    // The hostname is not resolved yet.
    assert_eq!(status(&scene).await, 503);
    names.set(NAME, &["127.0.0.1"], 1);
    until(&scene, 200).await;
    let generation = scene.last().generation;
    // Addresses stay in use while the name server fails.
    names.put(NAME, Records::Failure);
    names.wait_for_queries(NAME, names.queries(NAME) + 2).await;
    assert_eq!(status(&scene).await, 200);
    // Nothing listens on the next address.
    names.set(NAME, &["127.66.0.1"], 1);
    until(&scene, 503).await;
    assert_eq!(scene.last().generation, generation);
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let text = metrics.text();
    assert!(
        text.contains("portcullis_dns_lookups_total{result=\"found\"}"),
        "{text}"
    );
    let config = get(scene.admin_address(), "localhost", "/config").await;
    assert!(
        config.text().contains("\"127.66.0.1\""),
        "{}",
        config.text()
    );
}

#[tokio::test]
async fn does_not_connect_to_loopback_unless_allowed() {
    let (origin, names) = (TlsOrigin::plain().await, NameServer::start().await);
    names.set(NAME, &["127.0.0.1", "::ffff:127.0.0.1"], 1);
    let dns = names.address;
    let scene = Scene::with(&objects(&origin, "HTTP", &json!(null)), |settings| {
        settings.dns_servers = vec![dns];
    });
    names.wait_for_queries(NAME, 2).await;
    assert_eq!(status(&scene).await, 503);
    assert_eq!(origin.connections(), 0);
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let refused = metrics.text().lines().find_map(|line| {
        let count = line.strip_prefix("portcullis_dns_refused_addresses_total ")?;
        count.parse::<u64>().ok()
    });
    assert!(refused >= Some(2), "{refused:?}");
}

#[tokio::test]
async fn server_only_verifies_the_backend_without_client_certificate() {
    let authority = Authority::new();
    let names = NameServer::start().await;
    names.set(NAME, &["127.0.0.1"], 60);
    for (protocol, alpn) in [("HTTP", "http/1.1"), ("HTTP2", "h2")] {
        let asks = Asks {
            protocols: &["h2", "http/1.1"],
            ..Asks::default()
        };
        let origin = TlsOrigin::asking(&authority.issue(&[NAME]), asks).await;
        let objects = objects(&origin, protocol, &server_only(NAME)).with(authorities(&authority));
        let scene = Scene::with(&objects, resolving(&names));
        until(&scene, 200).await;
        let handshakes = origin.handshakes();
        let handshake = handshakes.first().expect("a handshake");
        assert_eq!(handshake.server_name.as_deref(), Some(NAME));
        assert_eq!(handshake.protocol.as_deref(), Some(alpn));
        assert_eq!(handshake.client, None);
        origin.assert_encrypted(SECRET);
    }
}

#[tokio::test]
async fn backend_with_another_hostname_receives_no_request() {
    let authority = Authority::new();
    let names = NameServer::start().await;
    names.set(NAME, &["127.0.0.1"], 60);
    let origin = TlsOrigin::start(&authority.issue(&["other.example.com"])).await;
    let objects = objects(&origin, "HTTP", &server_only(NAME)).with(authorities(&authority));
    let scene = Scene::with(&objects, resolving(&names));
    let connected = async {
        while origin.connections() == 0 {
            assert_eq!(status(&scene).await, 503);
        }
    };
    let connected = tokio::time::timeout(crate::harness::TEST_TIMEOUT, connected).await;
    assert!(connected.is_ok(), "no connection in time");
    assert_eq!(status(&scene).await, 503);
    assert_eq!(origin.requests(), 0);
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn client_and_server_presents_the_certificate_of_the_xbackend_not_of_the_gateway() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let names = NameServer::start().await;
    names.set(NAME, &["127.0.0.1"], 60);
    let asks = Asks {
        clients_of: Some(&clients),
        ..Asks::default()
    };
    let origin = TlsOrigin::asking(&authority.issue(&[NAME]), asks).await;
    let (own, of_gateway) = (clients.issue(&["own"]), clients.issue(&["gateway"]));
    let mut tls = server_only(NAME);
    tls["mode"] = json!("ClientAndServer");
    tls["clientCertificateRef"] = json!({"name": "own"});
    let known = "  tls: {backend: {clientCertificateRef: {name: of-gateway}}}\n";
    let listener = [yaml::http("http", 81, "")];
    let objects = objects(&origin, "HTTP", &tls)
        .with(yaml::gateway_with("known", &listener, known))
        .with(authorities(&authority))
        .with(yaml::secret_of("own", &own.pem, &own.key_pem))
        .with(yaml::secret_of("of-gateway", &of_gateway.pem, &of_gateway.key_pem))
        .with(yaml::route(
            "other",
            "known",
            &[],
            r#"[{"backendRefs": [{"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "api"}]}]"#,
        ));
    let scene = Scene::with(&objects, resolving(&names));
    until(&scene, 200).await;
    assert_eq!(get(scene.at(81), "shop.example", SECRET).await.status, 200);
    let handshakes = origin.handshakes();
    assert!(
        handshakes
            .iter()
            .all(|it| it.client.as_ref() == Some(&own.der))
    );
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn adding_tls_stops_plaintext_requests() {
    let authority = Authority::new();
    let names = NameServer::start().await;
    names.set(NAME, &["127.0.0.1"], 60);
    let origin = TlsOrigin::plain().await;
    let mut scene = Scene::with(
        &objects(&origin, "HTTP", &json!({"mode": "None"})),
        |settings| {
            resolving(&names)(settings);
            // The plaintext origin never answers a ClientHello.
            settings.limits.connect_timeout = std::time::Duration::from_secs(1);
        },
    );
    until(&scene, 200).await;
    let requests = origin.requests();
    let broken = objects(&origin, "HTTP", &server_only(NAME));
    scene.replace(&broken).await;
    assert_eq!(status(&scene).await, 500);
    scene.replace(&broken.with(authorities(&authority))).await;
    let status = status(&scene).await;
    assert!([503, 504].contains(&status), "{status}");
    assert_eq!(origin.requests(), requests);
}

#[tokio::test]
async fn serves_the_example_in_the_documentation() {
    let names = NameServer::start().await;
    let page = include_str!("../../docs/xbackend.md");
    let example = page.split("```yaml\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("an end");
    let folder = |folder: &std::path::Path| crate::scene::write(folder, "example.yaml", example);
    let scene = Scene::prepared(folder, resolving(&names));
    let last = scene.last();
    assert_eq!(last.load.problems, []);
    assert_eq!(last.report.problems().collect::<Vec<_>>(), []);
    let name = "api.payments.example.com";
    names.wait_for_queries(name, 1).await;
    let answer = get(scene.at(8080), "shop.example", "/payments").await;
    assert_eq!(answer.status, 503);
}
