//! Keys of token issuers that are fetched from a Service with a BackendTLSPolicy: over TLS as it says, or not at all.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Response;
use jsonwebtoken::Algorithm;
use portcullis::settings::Settings;
use serde_json::{Value, json};

use crate::access_policy::{access, before, gateway};
use crate::api::{portcullis, stdout};
use crate::backend_tls::{authorities, policy, trust};
use crate::issuer::{Issuer, claims};
use crate::jwks::{change, until};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// Name of the certificate; the URI has another one.
const NAME: &str = "keys.internal";

/// Serves a key set.
async fn keys(issuer: &Issuer) -> Origin {
    let keys = json!({"keys": [issuer.jwk()]}).to_string();
    Origin::new(move |_| {
        let keys = Bytes::from(keys.clone());
        async move { Response::new(full(keys)) }
    })
    .await
}

/// Returns a policy that accepts tokens with the keys of a Service, with other objects.
fn objects(origin: &Origin, server: SocketAddr, uri: &str, others: &[String]) -> Objects {
    let remote = json!({"uri": uri, "backendRef": {"name": "keys", "port": 80}});
    let provider = json!({"issuer": crate::issuer::ISSUER, "jwks": {"remote": remote}});
    let jwt = json!({"jwt": {"providers": [provider]}});
    let mut all = vec![access("a", &gateway(), &jwt)];
    all.extend_from_slice(others);
    before(origin, &all).service("keys", &[server])
}

fn validated(validation: &Value) -> String {
    policy("keys", validation, &json!({}))
}

fn on_loopback(settings: &mut Settings) {
    settings.allowed_jwks_addresses = vec!["127.0.0.0/8".parse().expect("a network")];
}

#[tokio::test]
async fn keys_are_fetched_with_the_tls_of_a_policy() {
    let origin = Origin::echo("origin").await;
    let [first, second] = ["one", "two"].map(|id| Issuer::new(id, Algorithm::ES256));
    let (old, new) = (keys(&first).await, keys(&second).await);
    let authority = Authority::new();
    let certificate = authority.issue(&[NAME]);
    let only_http1 = Asks {
        protocols: &["http/1.1"],
        ..Asks::default()
    };
    let server = TlsOrigin::relaying(&certificate, only_http1, old.address).await;
    let other = TlsOrigin::relaying(&certificate, only_http1, new.address).await;
    let ca = authorities("ca", &authority.pem);
    let good = [ca.clone(), validated(&trust(NAME))];
    let uri = "http://login.internal/secret-path";
    let mut scene = Scene::with(&objects(&origin, server.address, uri, &good), on_loopback);
    let of_first = first.token(&claims(&json!({})));
    until(&scene, &of_first, 200).await;
    server.assert_encrypted("secret-path");
    let explained = stdout(&portcullis(&scene, &["explain", "http://a.com/"]).await);
    let expected = "fetched with TLS of BackendTLSPolicy default/keys";
    assert!(explained.contains(expected), "{explained}");
    // A policy that cannot be applied fetches nothing, from no endpoint, and the keys stay in use.
    let broken = [ca.clone(), validated(&trust("10.0.0.1"))];
    let broken = objects(&origin, other.address, uri, &broken);
    change(
        &mut scene,
        &broken,
        "BackendTLSPolicy default/keys cannot be applied to it",
    )
    .await;
    let fresh = first.token(&claims(&json!({"sub": "bob"})));
    until(&scene, &fresh, 200).await;
    assert_eq!(other.connections(), 0);
    // Another name is not verified by this certificate.
    let wrong = [ca.clone(), validated(&trust("other.internal"))];
    let wrong = objects(&origin, other.address, uri, &wrong);
    change(&mut scene, &wrong, "TLS handshake").await;
    until(&scene, &first.token(&claims(&json!({"sub": "carol"}))), 200).await;
    assert_eq!(new.requests(), 0);
    // A policy that is good again has the keys fetched at once.
    let good = objects(&origin, other.address, uri, &good);
    scene.replace(&good).await;
    until(&scene, &second.token(&claims(&json!({}))), 200).await;
    until(&scene, &of_first, 401).await;
    other.assert_encrypted("secret-path");
}

#[tokio::test]
async fn server_with_a_policy_is_never_asked_in_plain_text() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let server = keys(&issuer).await;
    let authority = Authority::new();
    let others = [authorities("ca", &authority.pem), validated(&trust(NAME))];
    let uri = "http://login.internal/keys";
    let all = objects(&origin, server.address, uri, &others);
    let mut scene = Scene::with(&all, on_loopback);
    let has_failed = |outcome: &portcullis::control::data_plane::ServedConfiguration| {
        format!("{:?}", outcome.report).contains("TLS handshake")
    };
    scene.outcome_with(has_failed).await;
    let token = issuer.token(&claims(&json!({})));
    until(&scene, &token, 500).await;
    assert_eq!(server.requests(), 0);
    // Without the policy, the URI decides.
    let all = objects(&origin, server.address, uri, &[]);
    scene.replace(&all).await;
    until(&scene, &token, 200).await;
}
