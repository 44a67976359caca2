//! What backends are told about clients, and which of it clients may say themselves.

use serde_json::Value;

use crate::client::Client;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, secret, to};

const CLAIMS: &[(&str, &str)] = &[
    ("forwarded", "for=9.9.9.9"),
    ("x-forwarded-for", "9.9.9.9"),
    ("x-forwarded-host", "claimed.org"),
    ("x-forwarded-port", "99"),
    ("x-forwarded-proto", "gopher"),
    ("x-real-ip", "9.9.9.9"),
    ("x-request-id", "claimed"),
];

fn objects(origin: &Origin) -> Objects {
    Objects::gateway(&[
        http("http", 80, ""),
        https("tls", 443, "", &["certificate"]),
    ])
    .with(secret("certificate", &Certificate::new(&["a.com"])))
    .service("echo", &[origin.address])
    .route("route", &[to("echo")])
}

async fn clients(scene: &Scene) -> [(Client, &'static str); 3] {
    let config = tls::client(&["h2"]);
    [
        (Client::http1(scene.at(80)).await, "http"),
        (Client::http2(scene.at(80)).await, "http"),
        (Client::tls(scene.at(443), "a.com", &config).await, "https"),
    ]
}

fn id(headers: &Value) -> String {
    let id = headers["x-request-id"].as_str().expect("an id");
    assert_eq!(id.len(), 32);
    assert!(id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    id.to_owned()
}

#[tokio::test]
async fn claims_of_strangers_are_overwritten() {
    let echo = Origin::echo("echo").await;
    let scene = Scene::start(&objects(&echo));
    let mut ids = Vec::new();
    for (mut client, proto) in clients(&scene).await {
        for fields in [CLAIMS, &[]] {
            let received = client.get_with("a.com", "/", fields).await.received();
            let headers = &received["headers"];
            assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
            assert_eq!(headers["x-forwarded-proto"], proto);
            assert_eq!(headers["x-forwarded-host"], "a.com");
            for gone in ["forwarded", "x-forwarded-port", "x-real-ip"] {
                assert_eq!(headers[gone], Value::Null, "{gone}");
            }
            assert_eq!(headers["via"], Value::Null);
            ids.push(id(headers));
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "every request has an id of its own");
}

#[tokio::test]
async fn claims_of_trusted_proxies_are_kept_and_continued() {
    let echo = Origin::echo("echo").await;
    let trusted = "127.0.0.0/8".parse().expect("a network");
    let scene = Scene::with(&objects(&echo), |settings| {
        settings.trusted_proxies = vec![trusted]
    });
    for (mut client, proto) in clients(&scene).await {
        let received = client.get_with("a.com", "/", CLAIMS).await.received();
        let headers = &received["headers"];
        assert_eq!(headers["x-forwarded-for"], "9.9.9.9, 127.0.0.1");
        for (name, value) in CLAIMS {
            if *name != "x-forwarded-for" {
                assert_eq!(headers[*name], *value, "{name}");
            }
        }
        // Where nothing is claimed, it is as with anybody.
        let received = client.get("a.com", "/").await.received();
        let headers = &received["headers"];
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert_eq!(headers["x-forwarded-proto"], proto);
        assert_eq!(headers["x-forwarded-host"], "a.com");
        id(headers);
    }
}

#[tokio::test]
async fn another_network_is_not_trusted() {
    let echo = Origin::echo("echo").await;
    let trusted = ["10.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network"));
    let scene = Scene::with(&objects(&echo), |settings| {
        settings.trusted_proxies = trusted.to_vec()
    });
    let mut client = Client::http1(scene.at(80)).await;
    let received = client.get_with("a.com", "/", CLAIMS).await.received();
    assert_eq!(received["headers"]["x-forwarded-for"], "127.0.0.1");
}
