//! Faults that clients notice before a request has a backend, and those of identity providers and of other pods: each is the
//! first problem while it lasts, with cause, object and remedy, and is gone after the repair.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use jsonwebtoken::Algorithm;
use rustls::ClientConfig;
use rustls::version::TLS12;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::access_policy::{before, gateway};
use crate::api::document;
use crate::backend_limits::{gated, send};
use crate::browser::Browser;
use crate::client::{Client, connect, get, handshake, read_all};
use crate::client_certificates::{self, ca, issue, presenting, validation};
use crate::client_policy::clients;
use crate::first_problem::{Problem, is_first, is_gone};
use crate::harness::tls::{self, Certificate};
use crate::issuer::{Issuer, claims};
use crate::jwks::{Answer, Published, change, until};
use crate::origin::Origin;
use crate::provider::Provider;
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, https, secret};
use crate::tls_origin::Authority;

/// A listener for a.com.
fn listener() -> Objects {
    let listener = https("tls", 443, "a.com", &["tls"]);
    Objects::gateway(&[listener]).with(secret("tls", &Certificate::new(&["a.com"])))
}

/// Begins handshakes that fail until that is the first problem, and then one that does not.
async fn failed_handshakes_are_first(
    scene: &Scene,
    (name, failing): (&str, &Arc<ClientConfig>),
    texts: &[&str],
    working: &Arc<ClientConfig>,
) {
    for _ in 0..10 {
        assert!(handshake(scene.at(443), name, failing).await.is_err());
    }
    let problem = Problem {
        kind: "clients",
        object: "TLS handshakes of clients",
        texts,
    };
    is_first(scene, &problem).await;
    let completed = handshake(scene.at(443), "a.com", working).await;
    assert!(completed.is_ok(), "{texts:?}");
    is_gone(scene).await;
}

#[tokio::test]
async fn handshakes_of_clients_that_fail_are_the_first_problem() {
    let scene = Scene::start(&listener());
    for (name, config, texts) in [
        (
            "b.com",
            tls::client(&[]),
            [
                "no listener has the name that they ask for",
                "add a listener for it, or correct their DNS",
            ],
        ),
        (
            "a.com",
            tls::client_without_trust(),
            [
                "they do not trust the certificate of the listener",
                "use one of an authority that they trust, with the whole chain in tls.crt",
            ],
        ),
    ] {
        let working = tls::client(&[]);
        failed_handshakes_are_first(&scene, (name, &config), &texts, &working).await;
    }
}

#[tokio::test]
async fn clients_without_a_common_version_are_the_first_problem() {
    let newest = clients("newest", &gateway(), &json!({"tls": {"minVersion": "1.3"}}));
    let scene = Scene::start(&listener().with(newest));
    let old = tls::client_of(&[&TLS12], &[]);
    let texts = [
        "they have no version, cipher or group of TLS in common with the listener",
        "change the policy of its TLS, or update them",
    ];
    failed_handshakes_are_first(&scene, ("a.com", &old), &texts, &tls::client(&[])).await;
}

#[tokio::test]
async fn clients_without_a_valid_certificate_are_the_first_problem() {
    let (echo, authority) = (Origin::echo("echo").await, Authority::new());
    let frontend = json!({"default": validation(&["ca"], "AllowValidOnly")});
    let objects = client_certificates::objects(&echo, &frontend).with(ca("ca", &[&authority]));
    let scene = Scene::start(&objects);
    // In TLS 1.3, a client learns of its rejection after its own handshake.
    let without = presenting(None, &TLS12, "http/1.1");
    let valid = presenting(Some(&issue(&authority)), &TLS12, "http/1.1");
    let texts = [
        "their certificates are missing or not valid",
        "compare these with the authorities of the listener",
    ];
    failed_handshakes_are_first(&scene, ("a.com", &without), &texts, &valid).await;
}

#[tokio::test]
async fn limit_of_client_connections_is_the_first_problem() {
    let gate = Arc::new(Semaphore::new(0));
    let origin = gated(&gate).await;
    let scene = Scene::with(&before(&origin, &[]), |settings| {
        settings.limits.max_connections = Some(2);
    });
    // A connection without a request would get out of the way.
    let busy = send(&scene, 2).await;
    origin.until_requests(2).await;
    assert_eq!(read_all(&mut connect(scene.at(80)).await).await, b"");
    let problem = Problem {
        kind: "overload",
        object: "connections",
        texts: &[
            "were refused in the last minute: the limit of client connections is reached",
            "raise --max-connections, or run more pods",
        ],
    };
    is_first(&scene, &problem).await;
    gate.add_permits(2);
    busy.join_all().await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn issuer_of_tokens_that_is_away_is_the_first_problem() {
    let echo = Origin::echo("echo").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let published = Published::start(Answer::Keys(vec![issuer.jwk()])).await;
    let mut scene = Scene::with(&published.objects(&echo, "1h"), published.settings());
    let token = issuer.token(&claims(&json!({})));
    until(&scene, &token, 200).await;
    is_gone(&scene).await;
    let objects = published.objects(&echo, "2h");
    let _names = published.leave();
    change(&mut scene, &objects, "cannot be fetched").await;
    let problem = Problem {
        kind: "object",
        object: "AccessPolicy default/a",
        texts: &[
            "ResolvedRefs is False (KeySetNotFetched)",
            "the keys that were fetched before stay in use",
            "check that the issuer responds, and that this pod may connect to it",
        ],
    };
    is_first(&scene, &problem).await;
    scene.replace(&before(&echo, &[])).await;
    is_gone(&scene).await;
}

/// Signs a browser in at a provider that responds so, and removes the policy.
async fn provider_is_first(failure: (u16, &'static str), status: u16, texts: &[&str]) {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let mut scene = provider.scene(&origin, &json!({})).await;
    provider.state().failure = Some(failure);
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/").await;
    let answer = browser.get(&provider.authorize(&location)).await;
    assert_eq!(answer.status, status);
    let problem = Problem {
        kind: "signIn",
        object: "AccessPolicy default/",
        texts,
    };
    is_first(&scene, &problem).await;
    scene.replace(&before(&origin, &[])).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn provider_that_refuses_the_client_of_a_policy_or_is_away_is_the_first_problem() {
    let texts = [
        "1 of 1 requests for tokens failed in the last minute: the provider does not accept clientID or the client secret",
        "compare them with the provider",
    ];
    provider_is_first((401, "{\"error\": \"invalid_client\"}"), 502, &texts).await;
    let texts = [
        "1 of 1 requests for tokens failed in the last minute: the provider is away or too slow",
        "check it, and that this pod may connect to its token endpoint",
    ];
    provider_is_first((503, "{}"), 503, &texts).await;
}

#[tokio::test]
async fn pod_that_shares_limits_and_is_away_is_the_first_problem() {
    let origin = Origin::echo("origin").await;
    let mut scene = Scene::start(&before(&origin, &[]));
    let group = scene.state().table.load().limit_group().clone();
    let pod = |name| (name, IpAddr::V4(Ipv4Addr::LOCALHOST));
    group.open();
    group.set_pods("edge-0", ["edge-0", "edge-1"].map(pod));
    let mut limit = per_hour("one", 2);
    limit["scope"] = json!("Gateway");
    limit["key"] = json!([{"type": "ClientIP"}]);
    let policy = limits("a", &gateway(), &json!([limit]), None);
    scene.replace(&before(&origin, &[policy])).await;
    let problem = Problem {
        kind: "peer",
        object: "Pod edge-1",
        texts: &[
            "does not respond to this pod: each admits its own part of the limits with scope Gateway",
            "check that network policies permit connections between the pods to the port of --peers",
        ],
    };
    is_first(&scene, &problem).await;
    group.set_pods("edge-0", ["edge-0"].map(pod));
    scene.replace(&before(&origin, &[])).await;
    is_gone(&scene).await;
}

#[tokio::test]
async fn limit_that_refuses_many_requests_is_the_first_problem() {
    let origin = Origin::echo("origin").await;
    let policy = |mode: &str| {
        let mut rule = per_hour("one", 2);
        rule["mode"] = json!(mode);
        limits("a", &gateway(), &json!([rule]), None)
    };
    let mut scene = Scene::start(&before(&origin, &[policy("Enforce")]));
    for status in [200, 200, 429] {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, status);
    }
    let problem = Problem {
        kind: "limit",
        object: "RateLimitPolicy default/a",
        texts: &[
            "1 of 3 requests in the last minute were over the limit one: they are refused",
            "raise it if clients need more",
        ],
    };
    is_first(&scene, &problem).await;
    is_gone(&scene).await;
    // It refuses nothing.
    scene.replace(&before(&origin, &[policy("Audit")])).await;
    for _ in 0..3 {
        assert_eq!(get(scene.at(80), "a.com", "/").await.status, 200);
    }
    assert_eq!(document(&scene, "problems").await["total"], 0);
}

#[tokio::test]
async fn limit_that_refuses_one_of_many_clients_is_no_problem() {
    let origin = Origin::echo("origin").await;
    let mut rule = per_hour("one", 2);
    rule["key"] = json!([{"type": "Header", "name": "x-user"}]);
    let policy = limits("a", &gateway(), &json!([rule]), None);
    let scene = Scene::start(&before(&origin, &[policy]));
    let mut client = Client::http1(scene.at(80)).await;
    for user in 0..120 {
        let user = user.to_string();
        let answer = client.get_with("a.com", "/", &[("x-user", &user)]).await;
        assert_eq!(answer.status, 200);
    }
    for status in [200, 429] {
        let answer = client.get_with("a.com", "/", &[("x-user", "0")]).await;
        assert_eq!(answer.status, status);
    }
    assert_eq!(document(&scene, "problems").await["total"], 0);
}
