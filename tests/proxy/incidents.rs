//! The incidents of docs/operations.md: each is provoked, and the command of the page prints the cause.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Response;
use jsonwebtoken::Algorithm;
use portcullis::settings::AccessLogTarget;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::access_policy::{access, before, gateway, ip_rules, of_route};
use crate::admin::page;
use crate::api::{portcullis_at, stdout};
use crate::backend_tls::{authorities, policy, trust};
use crate::browser::Browser;
use crate::client::{get, handshake};
use crate::harness::TEST_TIMEOUT;
use crate::harness::dns::NameServer;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::issuer::{Issuer, claims};
use crate::jwks::{Answer, Published, change, until};
use crate::origin::{Origin, empty};
use crate::provider::Provider;
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, http, https, prefix, route, route_of, secret, to, write};
use crate::tap::first_line;
use crate::tls_origin::{Authority, TlsOrigin};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));

/// Starts the objects with an access log in a file.
fn logged(objects: &Objects, log: &Path) -> Scene {
    let target = AccessLogTarget::File(PathBuf::from(log));
    Scene::with(objects, |settings| settings.access_log.target = target)
}

/// Waits until the access log has a text, which the page has too.
async fn until_logged(log: &Path, text: &str) -> String {
    let found = async {
        loop {
            let lines = fs::read_to_string(log).unwrap_or_default();
            if lines.contains(text) {
                return lines;
            }
            // No notification tells the change.
            sleep(Duration::from_millis(10)).await;
        }
    };
    let lines = timeout(TEST_TIMEOUT, found).await;
    lines.unwrap_or_else(|_| panic!("{text} is not in {:?}", fs::read_to_string(log)))
}

/// Asserts that a command prints each text, and that the page has it.
async fn prints(scene: &Scene, arguments: &[&str], texts: &[&str]) {
    prints_at(scene.admin_address(), arguments, texts).await;
}

/// The same for a process with this admin address.
pub(crate) async fn prints_at(admin: SocketAddr, arguments: &[&str], texts: &[&str]) {
    let printed = timeout(TEST_TIMEOUT, portcullis_at(admin, arguments)).await;
    let printed = stdout(&printed.expect("in time"));
    for text in texts {
        assert!(printed.contains(text), "{text} is not in\n{printed}");
        documented(text);
    }
}

/// Asserts that the page has a text.
pub(crate) fn documented(text: &str) {
    assert!(
        DOCUMENT.contains(text),
        "{text} is not in docs/operations.md"
    );
}

#[tokio::test]
async fn status_names_what_is_wrong_in_the_configuration() {
    let mut wrong_port = prefix("/port", "app");
    wrong_port["backendRefs"][0]["port"] = json!(81);
    let mut foreign = prefix("/foreign", "app");
    foreign["backendRefs"][0]["namespace"] = json!("data");
    let objects = Objects::gateway(&[http("http", 80, ""), https("tls", 443, "", &["tls"])])
        .with(secret("tls", &Certificate::expired(&["a.com"])))
        .service("app", &[Origin::dead()])
        .service("empty", &[])
        .with(route("foreign", &["b.com"], &[foreign]))
        .with(route_of("http", &[wrong_port, prefix("/empty", "empty")]))
        .route("route", &[to("app")]);
    let scene = Scene::start(&objects);
    let texts = [
        "the certificate has expired at ",
        "ResolvedRefs is False (BackendNotFound)",
        "has no port 81",
        "ResolvedRefs is False (RefNotPermitted)",
        "no ReferenceGrant in namespace data permits it",
        "has no ready endpoint: its requests get 503",
    ];
    prints(&scene, &["status"], &texts).await;
}

#[tokio::test]
async fn backends_show_which_endpoint_is_ejected() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("app", &[Origin::dead(), echo.address]);
    let scene = Scene::start(&objects.route("route", &[to("app")]));
    for _ in 0..20 {
        get(scene.at(80), "a.com", "/").await;
    }
    prints(&scene, &["config", "backends"], &["ejected"]).await;
}

#[tokio::test]
async fn status_and_backends_name_why_an_endpoint_fails() {
    let objects = Objects::http().service("app", &[Origin::dead()]);
    let scene = Scene::start(&objects.route("route", &[to("app")]));
    get(scene.at(80), "a.com", "/").await;
    let texts = [
        "refuses connections (failed attempts in the last minute: ",
        "check that the pods listen on this port, and targetPort of the Service",
    ];
    prints(&scene, &["status"], &texts).await;
    let texts = ["failing", "refuses connections"];
    prints(&scene, &["config", "backends"], &texts).await;
}

#[tokio::test]
async fn access_log_tells_a_slow_backend_and_an_absent_authorization_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let slow = Origin::new(|_| async {
        // The duration that the log has.
        sleep(Duration::from_millis(300)).await;
        Response::new(empty())
    });
    let slow = slow.await;
    let mut guarded = prefix("/guarded", "slow");
    guarded["filters"] = json!([{"type": "ExternalAuth", "externalAuth": {
        "protocol": "HTTP", "backendRef": {"name": "auth", "port": 80}, "http": {"path": "/auth"},
    }}]);
    let objects = Objects::http()
        .service("slow", &[slow.address])
        .service("auth", &[Origin::dead()])
        .route("route", &[prefix("/slow", "slow"), guarded]);
    let scene = logged(&objects, &log);
    get(scene.at(80), "a.com", "/slow").await;
    get(scene.at(80), "a.com", "/guarded").await;
    let error = r#""error":"the authorization server is not available""#;
    assert!(DOCUMENT.contains(error));
    until_logged(&log, error).await;
    // Lines of different workers are in no order.
    let lines = until_logged(&log, "/slow").await;
    let line = lines
        .lines()
        .find(|line| line.contains("/slow"))
        .expect("a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let (all, upstream) = (line["duration_ms"].as_f64(), line["upstream_ms"].as_f64());
    assert!(
        upstream.expect("a time") >= 300.0 && all >= upstream,
        "{line}"
    );
}

#[tokio::test]
async fn explanation_shows_the_route_that_shadows_another() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("app", &[echo.address]);
    let objects = objects
        .route("route", &[prefix("/shop/items", "app")])
        .with(crate::scene::route(
            "shadowed",
            &[],
            &[prefix("/shop", "app")],
        ));
    let scene = Scene::start(&objects);
    let request = "http://a.com:80/shop/items";
    let texts = ["not chosen", "matches too, but has lower precedence"];
    prints(&scene, &["explain", request], &texts).await;
}

#[tokio::test]
async fn tap_shows_that_a_limit_refuses_requests_and_metrics_name_it() {
    let echo = Origin::echo("echo").await;
    let policy = limits("api", &gateway(), &json!([per_hour("one", 1)]), None);
    let scene = Scene::start(&before(&echo, &[policy]));
    let requests = async {
        get(scene.at(80), "a.com", "/").await;
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 429);
    };
    let line = first_line(&scene, &["--status", "429"], requests).await;
    let text = "too many requests: a limit is exceeded";
    assert!(line.contains(text), "{line}");
    assert!(DOCUMENT.contains(text) && DOCUMENT.contains("portcullis tap --status 429"));
    let name = "portcullis_limit_exceeded_total";
    let labels = r#"{namespace="default",policy="api",limit="one",mode="Enforce"} 1"#;
    let metrics = page(&scene, "/metrics").await;
    assert!(metrics.contains(&format!("{name}{labels}")), "{metrics}");
    assert!(DOCUMENT.contains(name));
}

#[tokio::test]
async fn policies_tell_which_one_permits_more_than_another() {
    let echo = Origin::echo("echo").await;
    let strict = access("strict", &gateway(), &ip_rules(&["192.0.2.0/24"], &[]));
    let loose = access("loose", &of_route(), &ip_rules(&["127.0.0.0/8"], &[]));
    let scene = Scene::start(&before(&echo, &[strict, loose]));
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    let texts = [
        "portcullis.dev/LoosensInherited=True (LoosensInherited)",
        "spec.ipRules.allow permits addresses that AccessPolicy",
    ];
    prints(&scene, &["config", "policies"], &texts).await;
}

#[tokio::test]
async fn status_names_the_identity_provider_that_is_away() {
    let echo = Origin::echo("echo").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let published = Published::start(Answer::Keys(vec![issuer.jwk()])).await;
    let mut scene = Scene::with(&published.objects(&echo, "1h"), published.settings());
    let token = issuer.token(&claims(&json!({})));
    until(&scene, &token, 200).await;
    let objects = published.objects(&echo, "2h");
    let _names = published.leave();
    change(&mut scene, &objects, "cannot be fetched").await;
    let texts = [
        "ResolvedRefs is False (KeySetNotFetched)",
        "cannot be fetched: connection refused",
        "the keys that were fetched before stay in use",
    ];
    prints(&scene, &["status"], &texts).await;
    let texts = ["ResolvedRefs=False (KeySetNotFetched)"];
    prints(&scene, &["config", "policies"], &texts).await;
    until(&scene, &token, 200).await;
    assert!(DOCUMENT.contains("portcullis_jwks_key_sets{state=\"stale\"}"));
}

#[tokio::test]
async fn tap_tells_that_a_backend_has_the_certificate_of_another_authority() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let origin = TlsOrigin::start(&other.issue(&["app.example.com"])).await;
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[to("app")])
        .with(policy("app", &trust("app.example.com"), &json!({})))
        .with(authorities("ca", &trusted.pem));
    let scene = Scene::start(&objects);
    let request = async {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 503);
    };
    let line = first_line(&scene, &["--status", "5xx"], request).await;
    let text =
        "the backend's certificate is from an authority that its BackendTLSPolicy does not trust";
    assert!(line.contains(text), "{line}");
    let texts = [text, "compare its certificate with its BackendTLSPolicy"];
    prints(&scene, &["status"], &texts).await;
    prints(&scene, &["config", "backends"], &["failing", text]).await;
}

#[tokio::test]
async fn status_names_a_hostname_without_addresses() {
    let names = NameServer::start().await;
    let reference =
        json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "api"});
    let backend = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": {"name": "api"},
        "spec": {
            "type": "ExternalHostname", "externalHostname": {"hostname": "api.example.com"},
            "port": {"port": 80}, "protocol": "HTTP",
        },
    });
    let objects = Objects::http()
        .route("route", &[json!({"backendRefs": [reference]})])
        .with(backend.to_string());
    let scene = Scene::with(&objects, |settings| {
        settings.dns_servers = vec![names.address];
    });
    names.wait_for_queries("api.example.com", 1).await;
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 503);
    let text = "api.example.com has no address that may be used, since DNS has none or does not answer: its requests get 503";
    prints(&scene, &["status"], &[text]).await;
}

#[tokio::test]
async fn status_names_a_port_that_another_process_has() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port();
    let addresses = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let gateway = yaml::gateway_with("gateway", &[http("http", port, "")], addresses);
    let objects = Objects::default().with(gateway);
    let scene = Scene::prepared(
        |folder| write(folder, "objects.yaml", &objects.text()),
        |settings| settings.ports = portcullis::settings::Ports::AsDeclared,
    );
    let texts = [
        "Programmed is False (PortUnavailable)",
        "another process uses the port",
    ];
    prints(&scene, &["status"], &texts).await;
}

#[tokio::test]
async fn status_names_an_edit_that_is_not_valid_while_the_version_before_it_is_served() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http().service("app", &[echo.address]);
    let mut scene = Scene::start(&objects.route("route", &[to("app")]));
    let edited = Objects::http().service("app", &[echo.address]);
    let edited = edited.with(route("route", &[], &[]).replace("rules: []", "rules: 1"));
    scene
        .change(|folder| write(folder, "objects.yaml", &edited.text()))
        .await;
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    let texts = ["its previous valid version stays in service"];
    prints(&scene, &["status"], &texts).await;
}

#[tokio::test]
async fn metrics_count_failed_handshakes_of_clients_by_reason() {
    let listener = https("tls", 443, "a.com", &["tls"]);
    let objects = Objects::gateway(&[listener]).with(secret("tls", &Certificate::new(&["a.com"])));
    let scene = Scene::start(&objects);
    let trusts_nobody = tls::client_without_trust();
    for (name, config) in [("b.com", tls::client(&[])), ("a.com", trusts_nobody)] {
        assert!(handshake(scene.at(443), name, &config).await.is_err());
    }
    scene
        .until_stats("all are closed", |stats| stats.open == 0)
        .await;
    let metrics = page(&scene, "/metrics").await;
    for reason in ["refused", "server_name"] {
        let text = format!(r#"portcullis_tls_handshake_failures_total{{reason="{reason}"}} 1"#);
        assert!(metrics.contains(&text), "{metrics}");
        documented(&text);
    }
}

#[tokio::test]
async fn metrics_count_sign_ins_that_a_provider_refuses() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    provider.state().failure = Some((401, "{\"error\": \"invalid_client\"}"));
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/").await;
    let answer = browser.get(&provider.authorize(&location)).await;
    assert_eq!(answer.status, 502);
    let metrics = page(&scene, "/metrics").await;
    let text = r#"grant="authorization_code",outcome="rejected"} 1"#;
    assert!(metrics.contains(text), "{metrics}");
    documented("grant=\"authorization_code\",outcome=\"rejected\"}");
}
