//! ClientPolicies: versions, cipher suites, groups and ALPN of the listeners of a port.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConfig, NamedGroup, SupportedProtocolVersion};
use serde_json::{Value, json};

use crate::client::{Client, handshake};
use crate::client_policy::clients;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, https, secret, to};

/// Two listeners of one port, with a policy on the first.
fn objects(origin: &Origin, spec: &Value) -> Objects {
    let certificate = Certificate::new(&["one.com", "two.com"]);
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    Objects::gateway(&[
        https("one", 443, "one.com", &["certificate"]),
        https("two", 443, "two.com", &["certificate"]),
    ])
    .with(secret("certificate", &certificate))
    .service("origin", &[origin.address])
    .route("route", &[to("origin")])
    .with(clients("clients", &one, &json!({"tls": spec})))
}

/// A client with what a test leaves of the usual cryptography.
fn with(
    versions: &[&'static SupportedProtocolVersion],
    tune: impl FnOnce(&mut CryptoProvider),
) -> Arc<ClientConfig> {
    let mut provider = aws_lc_rs::default_provider();
    tune(&mut provider);
    tls::client_with(Arc::new(provider), versions)
}

fn with_suite(version: &'static SupportedProtocolVersion, suite: CipherSuite) -> Arc<ClientConfig> {
    with(&[version], |it| {
        it.cipher_suites.retain(|one| one.suite() == suite);
    })
}

fn with_group(version: &'static SupportedProtocolVersion, group: NamedGroup) -> Arc<ClientConfig> {
    with(&[version], |it| {
        it.kx_groups = aws_lc_rs::ALL_KX_GROUPS.to_vec();
        it.kx_groups.retain(|one| one.name() == group);
    })
}

/// Asserts which hosts complete a handshake.
#[track_caller]
fn assert_served(what: &str, served: (bool, bool), expected: (bool, bool)) {
    assert_eq!(served, expected, "{what}: one.com and two.com");
}

async fn served(scene: &Scene, config: &Arc<ClientConfig>) -> (bool, bool) {
    let address = scene.at(443);
    let one = handshake(address, "one.com", config).await.is_ok();
    let two = handshake(address, "two.com", config).await.is_ok();
    (one, two)
}

#[tokio::test]
async fn versions_are_those_of_the_policy_of_a_listener() {
    let origin = Origin::echo("origin").await;
    let mut scene = Scene::start(&objects(&origin, &json!({"minVersion": "1.3"})));
    let (only_12, only_13) = (with(&[&TLS12], |_| {}), with(&[&TLS13], |_| {}));
    assert_served("TLS 1.2", served(&scene, &only_12).await, (false, true));
    assert_served("TLS 1.3", served(&scene, &only_13).await, (true, true));
    // A ticket of another listener, or of other settings, is worth nothing.
    scene
        .replace(&objects(&origin, &json!({"minVersion": "1.2"})))
        .await;
    assert_served("TLS 1.2", served(&scene, &only_12).await, (true, true));
    scene
        .replace(&objects(&origin, &json!({"minVersion": "1.3"})))
        .await;
    assert_served("resumed", served(&scene, &only_12).await, (false, true));
}

#[tokio::test]
async fn suites_are_those_of_the_policy_of_a_listener() {
    let origin = Origin::echo("origin").await;
    let suites = json!([
        "TLS_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    ]);
    let scene = Scene::start(&objects(&origin, &json!({"cipherSuites": suites})));
    for (version, suite, expected) in [
        (&TLS13, CipherSuite::TLS13_AES_256_GCM_SHA384, true),
        (&TLS13, CipherSuite::TLS13_AES_128_GCM_SHA256, false),
        (&TLS13, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, false),
        (
            &TLS12,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            true,
        ),
        (
            &TLS12,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            false,
        ),
    ] {
        let found = served(&scene, &with_suite(version, suite)).await;
        assert_served(&format!("{suite:?}"), found, (expected, true));
    }
}

#[tokio::test]
async fn groups_are_those_of_the_policy_of_a_listener() {
    let origin = Origin::echo("origin").await;
    let groups = json!(["secp384r1", "SecP256r1MLKEM768"]);
    let scene = Scene::start(&objects(&origin, &json!({"groups": groups})));
    for (version, group, expected) in [
        (&TLS13, NamedGroup::secp384r1, (true, true)),
        (&TLS12, NamedGroup::secp384r1, (true, true)),
        (&TLS13, NamedGroup::X25519, (false, true)),
        (&TLS13, NamedGroup::X25519MLKEM768, (false, true)),
        // Not among those that are offered without a policy.
        (&TLS13, NamedGroup::secp256r1MLKEM768, (true, false)),
    ] {
        let found = served(&scene, &with_group(version, group)).await;
        assert_served(&format!("{group:?}"), found, expected);
    }
}

#[tokio::test]
async fn protocols_are_those_of_the_policy_of_a_listener() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&objects(&origin, &json!({"alpn": ["http/1.1"]})));
    let agreed = async |name: &str, offered: &[&str]| {
        let stream = handshake(scene.at(443), name, &tls::client(offered)).await;
        let stream = stream.ok()?;
        Some(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    let http1 = || Some(Some(b"http/1.1".to_vec()));
    assert_eq!(agreed("one.com", &["h2", "http/1.1"]).await, http1());
    assert_eq!(
        agreed("two.com", &["h2", "http/1.1"]).await,
        Some(Some(b"h2".to_vec()))
    );
    assert_eq!(agreed("one.com", &["h2"]).await, None);
    // Without ALPN it is HTTP/1.1.
    assert_eq!(agreed("one.com", &[]).await, Some(None));
    let mut client = Client::tls(scene.at(443), "one.com", &tls::client(&["http/1.1"])).await;
    assert_eq!(client.get("one.com", "/").await.status, 200);
    // The order is that of the policy.
    let scene = Scene::start(&objects(&origin, &json!({"alpn": ["http/1.1", "h2"]})));
    let stream = handshake(scene.at(443), "one.com", &tls::client(&["h2", "http/1.1"])).await;
    let stream = stream.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}
