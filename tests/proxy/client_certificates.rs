//! Verification of client certificates (`spec.tls.frontend`): which clients are served, and how backends learn their
//! identity.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion};
use serde_json::{Value, json};

use crate::client::{Client, handshake};
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, http, https, secret, to, write};
use crate::tls_origin::{Authority, Issued};

const HOST: &str = "a.com";
const XFCC: &str = "x-forwarded-client-cert";
const URI: &str = "spiffe://example.com/client";
/// The header that untrusted clients send in every request of these tests.
const CLAIM: &str = "Hash=00;URI=spiffe://example.com/admin";

/// Returns a ConfigMap with CA certificates.
pub(crate) fn ca(name: &str, authorities: &[&Authority]) -> String {
    let pem: String = authorities.iter().map(|it| it.pem.as_str()).collect();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ca.crt": pem},
    })
    .to_string()
}

pub(crate) fn validation(names: &[&str], mode: &str) -> Value {
    let references = names
        .iter()
        .map(|name| json!({"group": "", "kind": "ConfigMap", "name": name}));
    json!({"validation": {"caCertificateRefs": references.collect::<Vec<_>>(), "mode": mode}})
}

/// Returns an echo backend behind HTTPS on three ports and HTTP on one.
pub(crate) fn objects(origin: &Origin, frontend: &Value) -> Objects {
    let listeners = [
        http("http", 80, ""),
        https("first", 443, "", &["certificate"]),
        https("second", 8443, "", &["certificate"]),
        https("third", 9443, "", &["certificate"]),
    ];
    let more = format!("  tls: {}\n", json!({"frontend": frontend}));
    Objects::default()
        .with(yaml::gateway_with("gateway", &listeners, &more))
        .with(secret("certificate", &Certificate::new(&[HOST])))
        .service("echo", &[origin.address])
        .route("route", &[to("echo")])
}

/// Returns a client with this certificate.
pub(crate) fn presenting(
    certificate: Option<&Issued>,
    version: &'static SupportedProtocolVersion,
    protocol: &str,
) -> Arc<ClientConfig> {
    let mut config = (*tls::client_of(&[version], &[protocol])).clone();
    if let Some(certificate) = certificate {
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes()).expect("a key");
        let key = any_supported_type(&key).expect("a usable key");
        let certified = CertifiedKey::new(vec![certificate.der.clone()], key);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
    }
    Arc::new(config)
}

/// Returns the headers that the backend received, and whether the session was resumed; `None` if the client was
/// rejected.
async fn round_trip(
    scene: &Scene,
    port: u16,
    config: &Arc<ClientConfig>,
) -> Option<(Value, HandshakeKind)> {
    let stream = handshake(scene.at(port), HOST, config).await.ok()?;
    let kind = stream.get_ref().1.handshake_kind().expect("complete");
    let mut client = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Client::http2_on(stream).await,
        _ => Client::http1_on(stream).await,
    };
    // In TLS 1.3, a client learns of its rejection after its own handshake.
    let headers = received(&mut client).await?;
    Some((headers, kind))
}

async fn received(client: &mut Client) -> Option<Value> {
    let request = client
        .request(http::Method::GET, HOST, "/")
        .header(XFCC, CLAIM);
    let response = client
        .send(request.body(empty()).expect("a request"))
        .await
        .ok()?;
    let received = crate::client::whole(response).await.received();
    Some(received["headers"].clone())
}

/// Returns the client's identity as the backend sees it; `None` if the client was rejected.
async fn identity(scene: &Scene, port: u16, config: &Arc<ClientConfig>) -> Option<Value> {
    let (headers, _) = round_trip(scene, port, config).await?;
    Some(headers[XFCC].clone())
}

fn is_described(identity: &Option<Value>) -> bool {
    let text = identity
        .as_ref()
        .and_then(Value::as_str)
        .unwrap_or_default();
    text.starts_with("Hash=") && text.ends_with(&format!(";URI={URI};DNS=client.example.com"))
}

pub(crate) fn issue(authority: &Authority) -> Issued {
    authority.issue(&[URI, "client.example.com"])
}

#[tokio::test]
async fn serves_clients_with_a_valid_certificate_only() {
    let echo = Origin::echo("echo").await;
    let (one, two, other) = (Authority::new(), Authority::new(), Authority::new());
    let frontend = json!({"default": validation(&["one", "two"], "AllowValidOnly")});
    let objects = objects(&echo, &frontend)
        .with(ca("one", &[&one]))
        .with(ca("two", &[&two]));
    let scene = Scene::start(&objects);
    let expired = one.issue_expired(&[URI]);
    let refused = [
        ("none", None),
        ("wrong authority", Some(issue(&other))),
        ("self-signed", Some(Issued::self_signed(&[URI]))),
        ("expired", Some(expired)),
    ];
    for version in [&TLS12, &TLS13] {
        for protocol in ["http/1.1", "h2"] {
            for authority in [&one, &two] {
                let config = presenting(Some(&issue(authority)), version, protocol);
                let identity = identity(&scene, 443, &config).await;
                assert!(
                    is_described(&identity),
                    "{version:?} {protocol} {identity:?}"
                );
            }
            for (what, certificate) in &refused {
                let config = presenting(certificate.as_ref(), version, protocol);
                let heard = round_trip(&scene, 443, &config).await;
                assert!(heard.is_none(), "{version:?} {protocol} {what} {heard:?}");
            }
        }
    }
    let mut plain = Client::http1(scene.at(80)).await;
    let headers = received(&mut plain)
        .await
        .expect("HTTP listeners are unaffected");
    assert!(headers[XFCC].is_null(), "{headers}");
}

#[tokio::test]
async fn fallback_never_describes_an_invalid_certificate() {
    let echo = Origin::echo("echo").await;
    let (authority, other) = (Authority::new(), Authority::new());
    let frontend = json!({"default": validation(&["ca"], "AllowInsecureFallback")});
    let scene = Scene::start(&objects(&echo, &frontend).with(ca("ca", &[&authority])));
    let unverified = [
        ("none", None),
        ("wrong authority", Some(issue(&other))),
        ("self-signed", Some(Issued::self_signed(&[URI]))),
        ("expired", Some(authority.issue_expired(&[URI]))),
    ];
    for version in [&TLS12, &TLS13] {
        for protocol in ["http/1.1", "h2"] {
            let valid = presenting(Some(&issue(&authority)), version, protocol);
            // The session is resumed the second time.
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let (headers, found) = round_trip(&scene, 443, &valid).await.expect("served");
                assert!(is_described(&Some(headers[XFCC].clone())), "{headers}");
                assert_eq!(found, kind, "{version:?} {protocol}");
            }
            for (what, certificate) in &unverified {
                let config = presenting(certificate.as_ref(), version, protocol);
                for _ in 0..2 {
                    let identity = identity(&scene, 443, &config).await;
                    assert_eq!(identity, Some(Value::Null), "{version:?} {protocol} {what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn validation_of_a_port_replaces_the_default() {
    let echo = Origin::echo("echo").await;
    let (default, own) = (Authority::new(), Authority::new());
    let frontend = json!({
        "default": validation(&["default"], "AllowValidOnly"),
        "perPort": [
            {"port": 8443, "tls": validation(&["own"], "AllowValidOnly")},
            {"port": 9443, "tls": {}},
        ],
    });
    let objects = objects(&echo, &frontend);
    let scene = Scene::start(
        &objects
            .with(ca("default", &[&default]))
            .with(ca("own", &[&own])),
    );
    let [default, own] = [&default, &own].map(|it| presenting(Some(&issue(it)), &TLS13, "h2"));
    let none = presenting(None, &TLS13, "h2");
    assert!(is_described(&identity(&scene, 443, &default).await));
    assert!(identity(&scene, 443, &own).await.is_none());
    assert!(identity(&scene, 8443, &default).await.is_none());
    assert!(is_described(&identity(&scene, 8443, &own).await));
    // Without validation, clients are not asked for a certificate.
    for config in [&default, &own, &none] {
        assert_eq!(identity(&scene, 9443, config).await, Some(Value::Null));
    }
}

#[tokio::test]
async fn removed_authority_keeps_connections_and_prevents_resumption() {
    let echo = Origin::echo("echo").await;
    let (old, new) = (Authority::new(), Authority::new());
    for version in [&TLS12, &TLS13] {
        let frontend = json!({"default": validation(&["ca"], "AllowValidOnly")});
        let objects = objects(&echo, &frontend);
        let mut scene = Scene::prepared(
            |folder| {
                write(folder, "objects.yaml", &objects.text());
                write(folder, "ca.yaml", &ca("ca", &[&old]));
            },
            |_| {},
        );
        let withdrawn = presenting(Some(&issue(&old)), version, "http/1.1");
        let stream = handshake(scene.at(443), HOST, &withdrawn)
            .await
            .expect("served");
        let mut open = Client::http1_on(stream).await;
        assert!(is_described(
            &received(&mut open).await.map(|it| it[XFCC].clone())
        ));
        let (headers, kind) = round_trip(&scene, 443, &withdrawn).await.expect("served");
        assert!(is_described(&Some(headers[XFCC].clone())), "{headers}");
        assert_eq!(kind, HandshakeKind::Resumed, "{version:?}");

        let before = scene.last().generation;
        let outcome = scene
            .change(|folder| write(folder, "ca.yaml", &ca("ca", &[&new])))
            .await;
        assert!(outcome.generation > before);
        // Twice, since the first attempt uses up a ticket.
        for _ in 0..2 {
            assert!(
                round_trip(&scene, 443, &withdrawn).await.is_none(),
                "{version:?}"
            );
        }
        let current = presenting(Some(&issue(&new)), version, "http/1.1");
        assert!(is_described(&identity(&scene, 443, &current).await));
        assert!(is_described(
            &received(&mut open).await.map(|it| it[XFCC].clone())
        ));

        // An invalid bundle closes the listener, so that no removed authority stays trusted.
        let address = scene.at(443);
        let bad = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"}});
        scene
            .change(|folder| write(folder, "ca.yaml", &bad.to_string()))
            .await;
        let refused = handshake(address, HOST, &current).await;
        assert!(refused.is_err(), "{version:?}");
    }
}

#[tokio::test]
async fn connections_without_a_valid_certificate_end_once_a_listener_asks_for_one() {
    let echo = Origin::echo("echo").await;
    let authority = Authority::new();
    let with = |default: &Value| {
        let objects = objects(&echo, &json!({"default": default}));
        objects.with(ca("ca", &[&authority]))
    };
    let fallback = validation(&["ca"], "AllowInsecureFallback");
    for protocol in ["http/1.1", "h2"] {
        let none = presenting(None, &TLS13, protocol);
        let valid = presenting(Some(&issue(&authority)), &TLS13, protocol);
        for (before, config, expected) in [
            (&json!({}), &none, 421),
            (&json!({}), &valid, 421),
            (&fallback, &none, 421),
            (&fallback, &valid, 200),
        ] {
            let mut scene = Scene::start(&with(before));
            let mut client = Client::tls(scene.at(443), HOST, config).await;
            assert_eq!(client.get(HOST, "/").await.status, 200);
            scene
                .replace(&with(&validation(&["ca"], "AllowValidOnly")))
                .await;
            let status = client.get(HOST, "/").await.status;
            assert_eq!(status, expected, "{protocol} {before}");
            if expected == 421 {
                client.ended().await;
            }
        }
    }
}

#[tokio::test]
async fn keeps_client_certificate_headers_of_trusted_proxies() {
    let echo = Origin::echo("echo").await;
    let authority = Authority::new();
    let frontend = json!({
        "default": validation(&["ca"], "AllowValidOnly"),
        "perPort": [{"port": 9443, "tls": {}}],
    });
    let objects = objects(&echo, &frontend).with(ca("ca", &[&authority]));
    let scene = Scene::with(&objects, |settings| {
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    for protocol in ["http/1.1", "h2"] {
        let config = presenting(Some(&issue(&authority)), &TLS13, protocol);
        let identity = identity(&scene, 443, &config).await.expect("served");
        let text = identity.as_str().expect("text");
        let own = text.strip_prefix(&format!("{CLAIM},"));
        let own = own.map(|own| Value::from(own.to_owned()));
        assert!(is_described(&own), "{text}");
        let (headers, _) = round_trip(&scene, 9443, &config).await.expect("served");
        assert_eq!(headers[XFCC], CLAIM);
    }
}
