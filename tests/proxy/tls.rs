//! TLS to clients: certificate selection, negotiation, and changes during open connections.

use std::sync::Arc;

use http::Method;
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, SignatureScheme};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{Client, handshake};
use crate::harness::client as raw;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, https, prefix, route_of, secret, secret_of, to, write};

fn certificate_of(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let shown = stream.get_ref().1.peer_certificates().expect("a chain");
    shown[0].clone().into_owned()
}

async fn shown(scene: &Scene, name: &str) -> CertificateDer<'static> {
    let config = tls::client(&["http/1.1"]);
    let stream = handshake(scene.at(443), name, &config).await;
    certificate_of(&stream.expect("a handshake"))
}

#[tokio::test]
async fn selects_certificate_by_server_name() {
    let exact = Certificate::new(&["a.example.com"]);
    let wildcard = Certificate::new(&["*.example.com"]);
    let second = Certificate::new(&["b.example.com"]);
    let any = Certificate::new(&["any.org"]);
    let objects = Objects::gateway(&[
        https("exact", 443, "a.example.com", &["exact"]),
        https("wildcard", 443, "*.example.com", &["wildcard", "second"]),
        https("any", 443, "", &["any"]),
    ])
    .with(secret("exact", &exact))
    .with(secret("wildcard", &wildcard))
    .with(secret("second", &second))
    .with(secret("any", &any));
    let scene = Scene::start(&objects);
    let rows = [
        ("a.example.com", &exact),
        ("A.EXAMPLE.com", &exact),
        // Of one listener's certificates, the one that names the host exactly.
        ("b.example.com", &second),
        ("c.example.com", &wildcard),
        ("x.c.example.com", &wildcard),
        ("example.com", &any),
        ("other.org", &any),
        // An IP address is never sent as SNI.
        ("127.0.0.1", &any),
    ];
    for (name, certificate) in rows {
        assert_eq!(shown(&scene, name).await, certificate.der, "{name}");
    }
}

/// Returns a client that verifies these signature schemes only.
fn verifying(
    schemes: &'static [SignatureScheme],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    tls::client_verifying(versions, &[], schemes)
}

#[tokio::test]
async fn selects_certificate_by_signature_algorithm() {
    const RSA: &[SignatureScheme] = &[
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::RSA_PKCS1_SHA256,
    ];
    const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
    const ED25519: &[SignatureScheme] = &[SignatureScheme::ED25519];
    let algorithms: [(
        &str,
        &'static SignatureAlgorithm,
        &'static [SignatureScheme],
    ); 3] = [
        ("ed25519", &PKCS_ED25519, ED25519),
        ("ecdsa", &PKCS_ECDSA_P256_SHA256, ECDSA),
        ("rsa", &PKCS_RSA_SHA256, RSA),
    ];
    let names = algorithms.map(|(name, _, _)| name);
    let mut objects = Objects::gateway(&[https("tls", 443, "a.com", &names)]);
    let mut certificates = Vec::new();
    for (name, algorithm, schemes) in algorithms {
        let certificate = Certificate::with(&["a.com"], algorithm);
        objects = objects.with(secret(name, &certificate));
        certificates.push((certificate, schemes));
    }
    let scene = Scene::start(&objects);
    for version in [&TLS12, &TLS13] {
        for (certificate, schemes) in &certificates {
            let stream = handshake(scene.at(443), "a.com", &verifying(schemes, &[version])).await;
            let stream = stream.expect("a handshake");
            assert_eq!(
                certificate_of(&stream),
                certificate.der,
                "{version:?} {schemes:?}"
            );
        }
        let none = &[SignatureScheme::ECDSA_NISTP521_SHA512];
        let refused = handshake(scene.at(443), "a.com", &verifying(none, &[version])).await;
        assert!(refused.is_err(), "{version:?}");
    }
}

#[tokio::test]
async fn negotiates_tls_version_and_alpn() {
    let echo = Origin::echo("echo").await;
    let certificate = Certificate::new(&["a.com", "new.com"]);
    let mut strict = https("strict", 443, "new.com", &["certificate"]);
    let options = "tls: {options: {portcullis.dev/min-tls-version: '1.3'}, ";
    strict = strict.replacen("tls: {", options, 1);
    let objects = Objects::gateway(&[https("usual", 443, "a.com", &["certificate"]), strict])
        .with(secret("certificate", &certificate))
        .service("echo", &[echo.address])
        .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    for (version, number) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        for (offered, agreed, http) in [
            (&["h2", "http/1.1"][..], Some(&b"h2"[..]), "h2"),
            (&["http/1.1"], Some(b"http/1.1"), "http/1.1"),
            (&["http/1.1", "h2"], Some(b"h2"), "h2"),
            (&[], None, "http/1.1"),
        ] {
            let config = tls::client_of(&[version], offered);
            let stream = handshake(scene.at(443), "a.com", &config)
                .await
                .expect("a handshake");
            let connection = stream.get_ref().1;
            assert_eq!(connection.protocol_version(), Some(number));
            assert_eq!(connection.alpn_protocol(), agreed);
            let mut client = match http {
                "h2" => Client::http2_on(stream).await,
                _ => Client::http1_on(stream).await,
            };
            let received = client.get("a.com", "/").await.received();
            assert_eq!(received["headers"]["x-forwarded-proto"], "https");
        }
    }
    let only_12 = tls::client_of(&[&TLS12], &[]);
    assert!(handshake(scene.at(443), "new.com", &only_12).await.is_err());
    let only_13 = tls::client_of(&[&TLS13], &[]);
    assert!(handshake(scene.at(443), "new.com", &only_13).await.is_ok());
    let unknown = tls::client(&["spdy/3"]);
    assert!(handshake(scene.at(443), "a.com", &unknown).await.is_err());
}

#[tokio::test]
async fn rejects_unknown_server_name() {
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[https("tls", 443, "a.com", &["certificate"])])
        .with(secret("certificate", &certificate));
    let scene = Scene::start(&objects);
    let config = tls::client(&["http/1.1"]);
    for name in ["b.com", "sub.a.com", "127.0.0.1"] {
        let error = handshake(scene.at(443), name, &config)
            .await
            .expect_err("refused");
        assert!(
            error.to_string().contains("UnrecognisedName"),
            "{name}: {error}"
        );
    }
    // Plain text on a TLS port is not a handshake.
    let address = scene.at(443);
    let plain = tokio::task::spawn_blocking(move || {
        let mut client = raw::Client::connect(address);
        client.send("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n");
        client.rest()
    });
    let heard = plain.await.expect("no panic");
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
}

#[tokio::test]
async fn connection_serves_hosts_of_one_listener() {
    let echo = Origin::echo("echo").await;
    let certificate = Certificate::new(&["a.com", "b.com", "*.c.com"]);
    let listener = |name: &str, host: &str| https(name, 443, host, &["certificate"]);
    let strict = Objects::gateway(&[
        listener("one", "a.com"),
        listener("two", "b.com"),
        listener("wide", "*.c.com"),
        https("any", 8443, "", &["certificate"]),
        https("exact", 8443, "a.com", &["certificate"]),
    ]);
    let objects = strict
        .with(secret("certificate", &certificate))
        .service("echo", &[echo.address])
        .route("route", &[prefix("/", "echo")])
        .with(route_of("wide", &[prefix("/wide", "echo")]));
    let scene = Scene::start(&objects);
    let rows = [
        (443, "a.com", "a.com", 200),
        (443, "a.com", "b.com", 421),
        (443, "a.com", "unknown.org", 404),
        (443, "x.c.com", "y.c.com", 200),
        (443, "x.c.com", "a.com", 421),
        (8443, "a.com", "a.com", 200),
        // Another listener serves all other hosts.
        (8443, "a.com", "unknown.org", 421),
        (8443, "unknown.org", "unknown.org", 200),
        (8443, "unknown.org", "other.org", 200),
        (8443, "unknown.org", "a.com", 421),
    ];
    for (port, name, host, status) in rows {
        for protocol in ["h2", "http/1.1"] {
            let mut client = Client::tls(scene.at(port), name, &tls::client(&[protocol])).await;
            let answer = client.get(host, "/").await;
            assert_eq!(answer.status, status, "{port} {protocol} {name} {host}");
        }
    }
}

/// The cases of the conformance test HTTPRouteHTTPSListenerDetectMisdirectedRequests, and a client without SNI.
#[tokio::test]
async fn detects_misdirected_requests() {
    let echo = Origin::echo("echo").await;
    let listeners = [
        ("any", ""),
        ("second", "second-example.org"),
        ("wildcard", "*.wildcard.org"),
        ("fourth", "fourth-example.wildcard.org"),
    ];
    let declared = listeners.map(|(name, host)| https(name, 443, host, &["certificate"]));
    let mut objects = Objects::gateway(&declared)
        .with(secret("certificate", &Certificate::new(&["example.org"])))
        .service("echo", &[echo.address]);
    for (name, _) in &listeners[1..] {
        objects = objects.with(route_of(name, &[to("echo")]));
    }
    let of_any = yaml::route(
        "of-any",
        "gateway/any",
        &["example.org"],
        &Value::from(vec![to("echo")]).to_string(),
    );
    let scene = Scene::start(&objects.with(of_any));
    let rows = [
        ("example.org", "example.org", 200),
        ("example.org", "second-example.org", 421),
        ("example.org", "unknown-example.org", 404),
        ("second-example.org", "second-example.org", 200),
        ("second-example.org", "example.org", 421),
        ("second-example.org", "unknown-example.org", 421),
        (
            "third-example.wildcard.org",
            "third-example.wildcard.org",
            200,
        ),
        (
            "third-example.wildcard.org",
            "fith-example.wildcard.org",
            200,
        ),
        (
            "third-example.wildcard.org",
            "fourth-example.wildcard.org",
            421,
        ),
        ("third-example.wildcard.org", "second-example.org", 421),
        ("third-example.wildcard.org", "unknown-example.org", 421),
        (
            "fourth-example.wildcard.org",
            "fourth-example.wildcard.org",
            200,
        ),
        (
            "fourth-example.wildcard.org",
            "fith-example.wildcard.org",
            421,
        ),
        ("unknown-example.org", "example.org", 200),
        ("unknown-example.org", "unknown-example.org", 404),
        // No SNI: the listener without hostname.
        ("127.0.0.1", "example.org", 200),
        ("127.0.0.1", "second-example.org", 421),
        ("127.0.0.1", "unknown-example.org", 404),
    ];
    for protocol in ["h2", "http/1.1"] {
        for (name, host, status) in rows {
            let mut client = Client::tls(scene.at(443), name, &tls::client(&[protocol])).await;
            let answer = client.get(host, "/").await;
            assert_eq!(answer.status, status, "{protocol} {name} {host}");
        }
    }
}

#[tokio::test]
async fn certificate_rotation_keeps_connections() {
    let echo = Origin::echo("echo").await;
    let (old, new) = (Certificate::new(&["a.com"]), Certificate::new(&["a.com"]));
    let objects = Objects::gateway(&[https("tls", 443, "a.com", &["certificate"])])
        .service("echo", &[echo.address])
        .route("route", &[to("echo")]);
    let mut scene = Scene::prepared(
        |folder| {
            write(folder, "objects.yaml", &objects.text());
            write(folder, "secret.yaml", &secret("certificate", &old));
        },
        |_| {},
    );
    assert_eq!(shown(&scene, "a.com").await, old.der);
    let mut http1 = Client::tls(scene.at(443), "a.com", &tls::client(&["http/1.1"])).await;
    let mut http2 = Client::tls(scene.at(443), "a.com", &tls::client(&["h2"])).await;
    assert_eq!(http1.get("a.com", "/").await.name(), "echo");
    assert_eq!(http2.get("a.com", "/").await.name(), "echo");

    let before = scene.last().generation;
    let outcome = scene
        .change(|folder| write(folder, "secret.yaml", &secret("certificate", &new)))
        .await;
    assert!(outcome.generation > before);
    assert_eq!(shown(&scene, "a.com").await, new.der);

    // Neither invalid PEM nor a key of another certificate replaces a valid one.
    for bad in [
        secret_of("certificate", "no certificate", "no key"),
        secret_of("certificate", &old.pem, &new.key),
    ] {
        let outcome = scene
            .change(|folder| write(folder, "secret.yaml", &bad))
            .await;
        let problems: Vec<_> = outcome.report.problems().collect();
        assert!(!problems.is_empty(), "the fault is reported");
        assert_eq!(shown(&scene, "a.com").await, new.der);
    }
    assert_eq!(http1.get("a.com", "/").await.name(), "echo");
    assert_eq!(http2.get("a.com", "/").await.name(), "echo");
    assert!(!http1.connection.is_finished() && !http2.connection.is_finished());
}

#[tokio::test]
async fn listener_without_valid_certificate_serves_nothing() {
    let good = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[
        https("bad", 443, "bad.com", &["missing"]),
        https("good", 443, "a.com", &["certificate"]),
    ])
    .with(secret("certificate", &good));
    let scene = Scene::start(&objects);
    let config = tls::client(&[]);
    assert!(handshake(scene.at(443), "bad.com", &config).await.is_err());
    assert_eq!(shown(&scene, "a.com").await, good.der);
}

#[tokio::test]
async fn resumes_tls_session_after_a_route_change() {
    let echo = Origin::echo("echo").await;
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[https("tls", 443, "a.com", &["certificate"])])
        .with(secret("certificate", &certificate))
        .service("echo", &[echo.address]);
    let mut scene = Scene::start(&objects.clone().route("route", &[to("echo")]));
    // The client configuration stores the session tickets.
    let config = tls::client(&["http/1.1"]);
    let mut first = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(first.get("a.com", "/").await.name(), "echo");
    scene
        .replace(&objects.route("route", &[prefix("/new", "echo")]))
        .await;
    let stream = handshake(scene.at(443), "a.com", &config)
        .await
        .expect("a handshake");
    let kind = stream.get_ref().1.handshake_kind();
    assert_eq!(kind, Some(rustls::HandshakeKind::Resumed));
    let mut second = Client::http1_on(stream).await;
    let request = second.request(Method::GET, "a.com", "/new").body(empty());
    assert_eq!(
        second.fetch(request.expect("a request")).await.name(),
        "echo"
    );
}
