//! TLS to backends by BackendTLSPolicy: responses, and bytes on the wire, which are never plain
//! text.

use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};

use crate::client::get;
use crate::harness::yaml;
use crate::scene::{Objects, Scene, prefix, to};
use crate::tls_origin::{Asks, Authority, Issued, TlsOrigin};

/// Part of every request; must not be readable on the wire.
pub(crate) const SECRET: &str = "/for-the-backend-only";
/// Hostname of the policies.
pub(crate) const NAME: &str = "app.example.com";

pub(crate) async fn status(scene: &Scene, port: u16) -> u16 {
    get(scene.at(port), "shop.example", SECRET).await.status
}

/// Returns a ConfigMap with CA certificates.
pub(crate) fn authorities(name: &str, pem: &str) -> String {
    let pem: String = pem.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  ca.crt: |\n{pem}"
    )
}

/// Returns a policy for a Service as JSON, which is valid YAML.
pub(crate) fn policy(service: &str, validation: &Value, options: &Value) -> String {
    let policy = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"name": service},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": service}],
            "validation": validation, "options": options,
        },
    });
    policy.to_string()
}

/// Validation with the ConfigMap `ca` and a hostname.
pub(crate) fn trust(name: &str) -> Value {
    json!({"hostname": name, "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]})
}

/// Returns a Gateway that sends everything to this backend, without a policy.
fn before(origin: &TlsOrigin) -> Objects {
    let objects = Objects::http().service("app", &[origin.address]);
    objects.route("route", &[to("app")])
}

/// Returns the same objects with a policy and its CA.
pub(crate) fn with_policy(
    origin: &TlsOrigin,
    authority: &Authority,
    validation: &Value,
) -> Objects {
    before(origin)
        .with(policy("app", validation, &json!({})))
        .with(authorities("ca", &authority.pem))
}

#[tokio::test]
async fn sends_requests_over_reused_tls_connections() {
    let authority = Authority::new();
    for version in [&TLS12, &TLS13] {
        let asks = Asks {
            versions: &[version],
            ..Asks::default()
        };
        let origin = TlsOrigin::asking(&authority.issue(&[NAME]), asks).await;
        let scene = Scene::start(&with_policy(&origin, &authority, &trust(NAME)));
        let mut client = crate::client::Client::http1(scene.at(80)).await;
        for _ in 0..20 {
            let answer = client.get("shop.example", SECRET).await;
            assert_eq!((answer.status, answer.text()), (200, "hello"));
        }
        assert_eq!((origin.requests(), origin.connections()), (20, 1));
        let handshake = &origin.handshakes()[0];
        assert_eq!(handshake.server_name.as_deref(), Some(NAME));
        origin.assert_encrypted(SECRET);
    }
}

#[tokio::test]
async fn sends_no_request_to_unverified_backend() {
    let (authority, other) = (Authority::new(), Authority::new());
    let alternatives = |kind: &str, field: &str, name: &str| {
        let mut validation = trust(NAME);
        validation["subjectAltNames"] = json!([{"type": kind, field: name}]);
        validation
    };
    let not_yet = authority.issue_with(&[NAME], |params| {
        params.not_before = rcgen::date_time_ymd(2100, 1, 1);
    });
    let uri = "spiffe://example.com/app";
    let rows: [(&str, Issued, Value, &str); 8] = [
        (
            "wrong authority",
            other.issue(&[NAME]),
            trust(NAME),
            "unknown_authority",
        ),
        (
            "wrong name",
            authority.issue(&["other.example.com"]),
            trust(NAME),
            "name",
        ),
        (
            "expired",
            authority.issue_expired(&[NAME]),
            trust(NAME),
            "expired",
        ),
        ("not yet valid", not_yet, trust(NAME), "not_yet_valid"),
        (
            "wrong alternative name, which takes the place of the right hostname",
            authority.issue(&[NAME]),
            alternatives("Hostname", "hostname", "other.example.com"),
            "name",
        ),
        (
            "wrong URI",
            authority.issue(&[NAME, "spiffe://example.com/other"]),
            alternatives("URI", "uri", uri),
            "name",
        ),
        (
            "a wildcard that the certificate does not have",
            authority.issue(&["a.example.com"]),
            alternatives("Hostname", "hostname", "*.example.com"),
            "name",
        ),
        (
            "an authority that the platform does not know",
            authority.issue(&[NAME]),
            json!({"hostname": NAME, "wellKnownCACertificates": "System"}),
            "unknown_authority",
        ),
    ];
    for (what, certificate, validation, reason) in rows {
        let origin = TlsOrigin::start(&certificate).await;
        let scene = Scene::start(&with_policy(&origin, &authority, &validation));
        assert_eq!(status(&scene, 80).await, 503, "{what}");
        assert!(origin.connections() > 0, "{what}");
        assert_eq!(origin.requests(), 0, "{what}");
        origin.assert_encrypted(SECRET);
        let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
        let mut lines = metrics.text().lines();
        let counted = lines.any(|line| {
            line.contains("upstream_tls_handshake_failures_total{")
                && line.contains(&format!("reason=\"{reason}\""))
        });
        assert!(counted, "{what}: {reason}");
    }
}

#[tokio::test]
async fn accepts_any_configured_subject_alt_name() {
    let authority = Authority::new();
    let uri = "spiffe://example.com/app";
    let origin = TlsOrigin::start(&authority.issue(&["*.internal.example", uri])).await;
    let hostname = |name: &str| json!({"type": "Hostname", "hostname": name});
    for name in [
        hostname("db.internal.example"),
        hostname("*.internal.example"),
        json!({"type": "URI", "uri": uri}),
    ] {
        let mut validation = trust(NAME);
        validation["subjectAltNames"] = json!([hostname("nope.example"), name]);
        let scene = Scene::start(&with_policy(&origin, &authority, &validation));
        assert_eq!(status(&scene, 80).await, 200, "{name}");
    }
    let mut names = origin.handshakes().into_iter().map(|it| it.server_name);
    assert!(names.all(|name| name.as_deref() == Some(NAME)));
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn sends_no_request_to_plain_text_backend_with_a_policy() {
    let authority = Authority::new();
    let origin = TlsOrigin::plain().await;
    let scene = Scene::with(
        &with_policy(&origin, &authority, &trust(NAME)),
        // The backend never responds to a ClientHello.
        |settings| settings.limits.connect_timeout = std::time::Duration::from_secs(1),
    );
    let status = status(&scene, 80).await;
    assert!([503, 504].contains(&status), "{status}");
    assert!(origin.connections() > 0);
    assert_eq!(origin.requests(), 0);
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn removed_ca_stops_requests() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&[NAME])).await;
    let whole = with_policy(&origin, &authority, &trust(NAME));
    let without = before(&origin).with(policy("app", &trust(NAME), &json!({})));
    let mut scene = Scene::start(&whole);
    assert_eq!(status(&scene, 80).await, 200);
    scene.replace(&without).await;
    for _ in 0..8 {
        assert_eq!(status(&scene, 80).await, 500);
    }
    assert_eq!((origin.requests(), origin.connections()), (1, 1));
    scene.replace(&whole).await;
    assert_eq!(status(&scene, 80).await, 200);
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn ca_rotation_does_not_reuse_old_connections() {
    let (former, next) = (Authority::new(), Authority::new());
    let origin = TlsOrigin::start(&former.issue(&[NAME])).await;
    let mut scene = Scene::start(&with_policy(&origin, &former, &trust(NAME)));
    assert_eq!(status(&scene, 80).await, 200);
    // The backend is verified again and fails.
    scene
        .replace(&with_policy(&origin, &next, &trust(NAME)))
        .await;
    assert_eq!(status(&scene, 80).await, 503);
    assert_eq!(origin.requests(), 1);
    // A rotation overlaps both CAs.
    let both = format!("{}{}", former.pem, next.pem);
    let objects = before(&origin)
        .with(policy("app", &trust(NAME), &json!({})))
        .with(authorities("ca", &both));
    scene.replace(&objects).await;
    assert_eq!(status(&scene, 80).await, 200);
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn new_policy_ends_plain_text() {
    let authority = Authority::new();
    let origin = TlsOrigin::plain().await;
    let mut scene = Scene::with(&before(&origin), |settings| {
        settings.limits.connect_timeout = std::time::Duration::from_secs(1);
    });
    assert_eq!(status(&scene, 80).await, 200);
    scene
        .replace(&with_policy(&origin, &authority, &trust(NAME)))
        .await;
    let status = status(&scene, 80).await;
    assert!([503, 504].contains(&status), "{status}");
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn policies_of_one_endpoint_share_no_connections() {
    let authority = Authority::new();
    let names = ["one.example.com", "two.example.com"];
    let origin = TlsOrigin::start(&authority.issue(&names)).await;
    let mut objects = Objects::http()
        .with(authorities("ca", &authority.pem))
        .route("route", &[prefix("/one", "one"), prefix("/two", "two")]);
    for (service, name) in [("one", names[0]), ("two", names[1])] {
        objects = objects.service(service, &[origin.address]).with(policy(
            service,
            &trust(name),
            &json!({}),
        ));
    }
    let scene = Scene::with(&objects, |settings| settings.workers = 1);
    for path in ["/one", "/two", "/one", "/two"] {
        assert_eq!(get(scene.at(80), "shop.example", path).await.status, 200);
    }
    let seen = origin.handshakes().into_iter();
    let mut seen: Vec<_> = seen.filter_map(|it| it.server_name).collect();
    seen.sort();
    assert_eq!(seen, names);
}

#[tokio::test]
async fn options_select_protocol_and_tls_version() {
    let authority = Authority::new();
    let both = ["h2", "http/1.1"];
    let rows: [(Value, &[_], u16, Option<&str>); 5] = [
        (json!({}), &[&TLS12, &TLS13], 200, Some("http/1.1")),
        (
            json!({"portcullis.dev/alpn": "h2,http/1.1"}),
            &[&TLS12, &TLS13],
            200,
            Some("h2"),
        ),
        (
            json!({"portcullis.dev/alpn": "h2"}),
            &[&TLS12, &TLS13],
            200,
            Some("h2"),
        ),
        (
            json!({"portcullis.dev/min-tls-version": "1.3"}),
            &[&TLS13],
            200,
            Some("http/1.1"),
        ),
        (
            json!({"portcullis.dev/min-tls-version": "1.3"}),
            &[&TLS12],
            503,
            None,
        ),
    ];
    for (options, versions, expected, protocol) in rows {
        let asks = Asks {
            versions,
            protocols: &both,
            ..Asks::default()
        };
        let origin = TlsOrigin::asking(&authority.issue(&[NAME]), asks).await;
        let objects = before(&origin)
            .with(policy("app", &trust(NAME), &options))
            .with(authorities("ca", &authority.pem));
        let scene = Scene::start(&objects);
        assert_eq!(status(&scene, 80).await, expected, "{options}");
        let handshakes = origin.handshakes();
        let chosen = handshakes.first().and_then(|it| it.protocol.as_deref());
        assert_eq!(chosen, protocol, "{options}");
        origin.assert_encrypted(SECRET);
    }
}

/// Gateways `gateway` on port 80 without a client certificate, and `known` on port 81 with that of
/// Secret `client`; one route for both.
fn two_gateways(origin: &TlsOrigin) -> Objects {
    let known = "  tls: {backend: {clientCertificateRef: {name: client}}}\n";
    let listener = [yaml::http("http", 81, "")];
    let rules = Value::from(vec![to("app")]);
    let route = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: route}}\nspec:\n  \
         parentRefs: [{{name: gateway}}, {{name: known}}]\n  rules: {rules}\n"
    );
    Objects::http()
        .with(yaml::gateway_with("known", &listener, known))
        .service("app", &[origin.address])
        .with(route)
}

#[tokio::test]
async fn only_the_configured_gateway_presents_its_client_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let asks = Asks {
        clients_of: Some(&clients),
        ..Asks::default()
    };
    let origin = TlsOrigin::asking(&authority.issue(&[NAME]), asks).await;
    let of_clients = |client: &Issued| {
        two_gateways(&origin)
            .with(policy("app", &trust(NAME), &json!({})))
            .with(authorities("ca", &authority.pem))
            .with(yaml::secret_of("client", &client.pem, &client.key_pem))
    };
    let client = clients.issue(&["gateway.example"]);
    let mut scene = Scene::start(&of_clients(&client));
    for _ in 0..6 {
        assert_eq!(status(&scene, 81).await, 200);
        // Its connections are not shared with the other Gateway.
        assert_ne!(status(&scene, 80).await, 200);
    }
    assert_eq!(origin.requests(), 6);
    let presented = |client: &Issued| {
        let handshakes = origin.handshakes().into_iter();
        handshakes
            .filter(|it| it.client.as_ref() == Some(&client.der))
            .count()
    };
    assert_eq!(presented(&client), origin.handshakes().len());
    // New connections present a new certificate.
    let next = clients.issue(&["gateway.example"]);
    scene.replace(&of_clients(&next)).await;
    assert_eq!(status(&scene, 81).await, 200);
    assert_eq!(presented(&next), 1);
    origin.assert_encrypted(SECRET);
}

#[tokio::test]
async fn missing_client_certificate_blocks_tls_backends() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.issue(&[NAME])).await;
    let objects = two_gateways(&origin)
        .with(policy("app", &trust(NAME), &json!({})))
        .with(authorities("ca", &authority.pem));
    let scene = Scene::start(&objects);
    assert_eq!(status(&scene, 80).await, 200);
    let connections = origin.connections();
    assert_eq!(status(&scene, 81).await, 500);
    assert_eq!(origin.connections(), connections);
}
