//! Forwarding headers: what backends receive, and which values clients may set.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret, to};

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
    Objects::http_and_https()
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
async fn overwrites_forwarding_headers_of_untrusted_clients() {
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
async fn extends_forwarding_headers_of_trusted_proxies() {
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
        // Without forwarding headers, it is like any other client.
        let received = client.get("a.com", "/").await.received();
        let headers = &received["headers"];
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert_eq!(headers["x-forwarded-proto"], proto);
        assert_eq!(headers["x-forwarded-host"], "a.com");
        id(headers);
    }
}

#[tokio::test]
async fn other_spellings_of_forwarding_headers_are_removed() {
    let echo = Origin::echo("echo").await;
    let trusted = "127.0.0.0/8".parse().expect("a network");
    let spelled = [
        ("X_Forwarded_For", "9.9.9.9"),
        ("x-forwarded_for", "9.9.9.9"),
        ("X_FORWARDED_PROTO", "gopher"),
        ("x.forwarded.host", "claimed.org"),
        ("x_forwarded_port", "99"),
        ("x_forwarded_client_cert", "Hash=0"),
        ("x_real_ip", "9.9.9.9"),
        ("x_request_id", "claimed"),
        ("content_length", "99"),
        ("transfer_encoding", "chunked"),
        ("x_custom_id", "kept"),
    ];
    let fields = spelled.map(|(name, value)| (name.to_lowercase(), value));
    let fields = fields.each_ref().map(|(name, value)| (&**name, *value));
    for trusts in [false, true] {
        let scene = Scene::with(&objects(&echo), |settings| {
            settings.trusted_proxies = if trusts { vec![trusted] } else { Vec::new() };
        });
        for (mut client, _) in clients(&scene).await {
            let received = client.get_with("a.com", "/", &fields).await.received();
            let headers = received["headers"].as_object().expect("headers");
            let odd = |name: &&String| name.contains(['_', '.']);
            let odd: Vec<_> = headers.keys().filter(odd).collect();
            assert_eq!(odd, ["x_custom_id"]);
        }
    }
}

#[tokio::test]
async fn does_not_trust_other_networks() {
    let echo = Origin::echo("echo").await;
    let trusted = ["10.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network"));
    let scene = Scene::with(&objects(&echo), |settings| {
        settings.trusted_proxies = trusted.to_vec()
    });
    let mut client = Client::http1(scene.at(80)).await;
    let received = client.get_with("a.com", "/", CLAIMS).await.received();
    assert_eq!(received["headers"]["x-forwarded-for"], "127.0.0.1");
}

#[tokio::test]
async fn rules_match_sanitized_forwarding_headers() {
    let (inner, outer) = (Origin::echo("inner").await, Origin::echo("outer").await);
    let rule = |name: &str, value: &str| {
        let headers = json!([{"name": name, "value": value}]);
        json!({
            "matches": [{"headers": headers}],
            "backendRefs": [{"name": "inner", "port": 80}],
        })
    };
    let mut rules: Vec<Value> = CLAIMS
        .iter()
        .map(|(name, value)| rule(name, value))
        .collect();
    rules.push(to("outer"));
    let objects = Objects::http()
        .service("inner", &[inner.address])
        .service("outer", &[outer.address])
        .route("route", &rules);
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for claim in CLAIMS {
            let response = client.get_with("a.com", "/", &[*claim]).await;
            assert_eq!(response.name(), "outer", "{claim:?}");
        }
    }
    let trusted = "127.0.0.0/8".parse().expect("a network");
    let scene = Scene::with(&objects, |settings| {
        settings.trusted_proxies = vec![trusted]
    });
    let mut client = Client::http1(scene.at(80)).await;
    for claim in CLAIMS.iter().filter(|(name, _)| *name != "x-forwarded-for") {
        let response = client.get_with("a.com", "/", &[*claim]).await;
        assert_eq!(response.name(), "inner", "{claim:?}");
    }
}

#[tokio::test]
async fn rules_match_headers_set_by_the_proxy() {
    let echo = Origin::echo("echo").await;
    let headers = json!([
        {"name": "x-forwarded-for", "value": "127.0.0.1"},
        {"name": "x-forwarded-proto", "value": "http"},
        {"name": "x-forwarded-host", "value": "a.com"},
    ]);
    let rule = json!({
        "matches": [{"headers": headers}],
        "backendRefs": [{"name": "echo", "port": 80}],
    });
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "echo");
    assert_eq!(client.get("b.com", "/").await.name(), "404");
}

#[tokio::test]
async fn ignores_trailing_dot_of_the_host_for_matching_only() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::gateway(&[
        http("http", 80, "a.com"),
        https("tls", 443, "a.com", &["certificate"]),
    ])
    .with(secret("certificate", &Certificate::new(&["a.com"])))
    .service("echo", &[echo.address])
    .route("route", &[to("echo")]);
    let scene = Scene::start(&objects);
    for (mut client, _) in clients(&scene).await {
        let received = client.get("a.com.", "/").await.received();
        let headers = &received["headers"];
        assert_eq!(headers["x-forwarded-host"], "a.com.");
    }
}

#[tokio::test]
async fn grpc_errors_have_a_grpc_status() {
    let objects = Objects::http()
        .service("none", &[])
        .route("route", &[prefix("/none", "none")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let grpc = [("content-type", "application/grpc")];
    for (path, status) in [("/none/Call", "14"), ("/other/Call", "12")] {
        let response = client.get_with("a.com", path, &grpc).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.headers["content-type"], "application/grpc");
        assert_eq!(response.headers["grpc-status"], status);
        assert!(response.headers.contains_key("grpc-message"));
        assert!(response.body.is_empty());
    }
}
