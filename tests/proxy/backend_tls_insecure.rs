//! TLS to backends without verification by a CA, and pins of their keys: responses and bytes on the
//! wire.

use portcullis::settings::Settings;
use portcullis::settings::permissions::{InsecureBackend, PolicyLevel};
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};

use crate::backend_tls::{NAME, SECRET, status, trust, with_policy};
use crate::client::get;
use crate::scene::Scene;
use crate::tls_origin::{Asks, Authority, Issued, TlsOrigin};

fn permit(insecure: InsecureBackend) -> impl FnOnce(&mut Settings) {
    move |settings| settings.permissions.insecure_backend = insecure
}

/// Validation with the ConfigMap `ca`, a hostname and these pins.
fn trust_pinned(pins: &[&str]) -> Value {
    let mut validation = trust(NAME);
    validation["pins"] = pins.into();
    validation
}

fn pinned(pins: &[&str]) -> Value {
    json!({"hostname": NAME, "pins": pins})
}

fn skipped() -> Value {
    json!({"hostname": NAME, "insecureSkipVerify": true})
}

#[tokio::test]
async fn skipped_verification_still_uses_tls_and_sni() {
    let authority = Authority::new();
    let expired = authority.issue_expired(&["other.example.com"]);
    for certificate in [Issued::self_signed(&["other.example.com"]), expired] {
        for version in [&TLS12, &TLS13] {
            let asks = Asks {
                versions: &[version],
                ..Asks::default()
            };
            let origin = TlsOrigin::asking(&certificate, asks).await;
            let objects = with_policy(&origin, &authority, &skipped());
            let scene = Scene::with(&objects, permit(InsecureBackend::SkipVerify));
            assert_eq!(status(&scene, 80).await, 200);
            let handshake = &origin.handshakes()[0];
            assert_eq!(handshake.server_name.as_deref(), Some(NAME));
            origin.assert_encrypted(SECRET);
        }
    }
}

#[tokio::test]
async fn insecure_policies_without_permission_open_no_connection() {
    let authority = Authority::new();
    let certificate = Issued::self_signed(&[NAME]);
    let origin = TlsOrigin::start(&certificate).await;
    let rows = [
        (skipped(), InsecureBackend::None),
        (skipped(), InsecureBackend::PinsOnly),
        (pinned(&[&certificate.pin]), InsecureBackend::None),
    ];
    for (validation, permitted) in rows {
        let objects = with_policy(&origin, &authority, &validation);
        let scene = Scene::with(&objects, permit(permitted));
        assert_eq!(status(&scene, 80).await, 500, "{permitted} {validation}");
    }
    // Producer is the least specific level.
    let objects = with_policy(&origin, &authority, &skipped());
    let scene = Scene::with(&objects, |settings| {
        settings.permissions.insecure_backend = InsecureBackend::SkipVerify;
        settings.permissions.backend_tls_floor = PolicyLevel::Producer;
    });
    assert_eq!(origin.connections(), 0);
    assert_eq!(status(&scene, 80).await, 200);
}

#[tokio::test]
async fn verifies_pins_with_and_without_ca() {
    let (authority, other) = (Authority::new(), Authority::new());
    let right = authority.issue(&[NAME]);
    let wrong = other.issue(&[NAME]);
    let self_signed = Issued::self_signed(&["other.example.com"]);
    let skipped_and_pinned =
        json!({"hostname": NAME, "insecureSkipVerify": true, "pins": [right.pin]});
    let rows = [
        (
            "pin and authority",
            &right,
            trust_pinned(&[&right.pin]),
            200,
        ),
        (
            "one of two pins",
            &right,
            trust_pinned(&[&wrong.pin, &right.pin]),
            200,
        ),
        ("wrong pin", &right, trust_pinned(&[&wrong.pin]), 503),
        ("wrong authority", &wrong, trust_pinned(&[&wrong.pin]), 503),
        ("pin alone", &self_signed, pinned(&[&self_signed.pin]), 200),
        ("wrong pin alone", &self_signed, pinned(&[&right.pin]), 503),
        ("skipped, with pin", &right, skipped_and_pinned.clone(), 200),
        ("skipped, wrong pin", &wrong, skipped_and_pinned, 503),
    ];
    for (what, certificate, validation, expected) in rows {
        let origin = TlsOrigin::start(certificate).await;
        let objects = with_policy(&origin, &authority, &validation);
        let scene = Scene::with(&objects, permit(InsecureBackend::PinsOnly));
        assert_eq!(status(&scene, 80).await, expected, "{what}");
        assert_eq!(origin.requests(), usize::from(expected == 200), "{what}");
        origin.assert_encrypted(SECRET);
    }
}

#[tokio::test]
async fn counts_pin_failures() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&[NAME])).await;
    let other = Issued::self_signed(&[NAME]);
    let scene = Scene::start(&with_policy(
        &origin,
        &authority,
        &trust_pinned(&[&other.pin]),
    ));
    assert_eq!(status(&scene, 80).await, 503);
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let mut lines = metrics.text().lines();
    let is_counted = lines.any(|line| {
        line.contains("upstream_tls_handshake_failures_total{") && line.contains("reason=\"pin\"")
    });
    assert!(is_counted);
}

#[tokio::test]
async fn renewed_certificate_of_the_same_key_has_the_same_pin() {
    let (authority, next) = (Authority::new(), Authority::new());
    let former = authority.issue(&[NAME]);
    let renewed = next.renew(&former, &[NAME]);
    assert_eq!(renewed.pin, former.pin);
    assert_ne!(renewed.der, former.der);
    let before = TlsOrigin::start(&former).await;
    let after = TlsOrigin::start(&renewed).await;
    let objects = |origin: &TlsOrigin| with_policy(origin, &authority, &pinned(&[&former.pin]));
    let mut scene = Scene::with(&objects(&before), permit(InsecureBackend::PinsOnly));
    assert_eq!(status(&scene, 80).await, 200);
    scene.replace(&objects(&after)).await;
    assert_eq!(status(&scene, 80).await, 200);
    assert_eq!((before.requests(), after.requests()), (1, 1));
}

#[tokio::test]
async fn does_not_reuse_unverified_connections_once_verification_is_required() {
    let authority = Authority::new();
    let certificate = Issued::self_signed(&[NAME]);
    let origin = TlsOrigin::start(&certificate).await;
    let objects = |validation: &Value| with_policy(&origin, &authority, validation);
    let mut scene = Scene::with(&objects(&skipped()), permit(InsecureBackend::SkipVerify));
    assert_eq!(status(&scene, 80).await, 200);
    for (validation, expected) in [
        (trust(NAME), 503),
        (trust_pinned(&[&certificate.pin]), 503),
        (pinned(&[&certificate.pin]), 200),
    ] {
        scene.replace(&objects(&validation)).await;
        assert_eq!(status(&scene, 80).await, expected, "{validation}");
    }
    assert_eq!(origin.requests(), 2);
}
