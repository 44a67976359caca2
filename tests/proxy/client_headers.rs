//! ClientPolicies: headers with underscores, ids of requests, and the headers about their origin.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::access_policy::gateway;
use crate::client::{Answer, Client};
use crate::client_policy::clients;
use crate::harness;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, to};

/// Port 80 with a policy, and port 8080 without one.
fn objects(origin: &Origin, headers: &Value) -> Objects {
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    Objects::gateway(&[http("one", 80, ""), http("two", 8080, "")])
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(clients("clients", &one, &json!({"headers": headers})))
}

/// Sends a request over HTTP/1 and over HTTP/2.
async fn both(address: SocketAddr, fields: &[(&str, &str)]) -> [Answer; 2] {
    let http1 = Client::http1(address)
        .await
        .get_with("a.com:80", "/", fields)
        .await;
    let http2 = Client::http2(address)
        .await
        .get_with("a.com:80", "/", fields)
        .await;
    [http1, http2]
}

/// The headers that the backend got.
fn headers(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200);
    answer.received()["headers"].clone()
}

#[tokio::test]
async fn underscores_are_dropped_or_rejected() {
    let origin = Origin::echo("origin").await;
    let fields = [
        ("x_user", "1"),
        ("x-user", "2"),
        ("x_forwarded_for", "192.0.2.1"),
    ];
    let mut scene = Scene::start(&objects(&origin, &json!({"underscores": "Drop"})));
    for answer in both(scene.at(80), &fields).await {
        let headers = headers(&answer);
        assert_eq!(headers["x_user"], Value::Null);
        assert_eq!(headers["x-user"], "2");
    }
    for answer in both(scene.at(8080), &fields).await {
        assert_eq!(headers(&answer)["x_user"], "1", "the neighbour");
    }
    scene
        .replace(&objects(&origin, &json!({"underscores": "Reject"})))
        .await;
    for answer in both(scene.at(80), &fields).await {
        assert_eq!(answer.status, 400);
    }
    for answer in both(scene.at(80), &fields[1..2]).await {
        assert_eq!(headers(&answer)["x-user"], "2");
    }
    scene
        .replace(&objects(&origin, &json!({"underscores": "Allow"})))
        .await;
    for answer in both(scene.at(80), &fields).await {
        let headers = headers(&answer);
        assert_eq!(headers["x_user"], "1");
        assert_eq!(headers["x_forwarded_for"], Value::Null);
    }
}

/// Servers merge trailers into the head.
#[tokio::test]
async fn underscores_of_trailers_are_dropped_or_rejected() {
    let request = "POST / HTTP/1.1\r\nHost: a.com\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
        1\r\na\r\n0\r\nX_A: 1\r\nX-B: 2\r\n\r\n";
    for (mode, status, expected) in [
        ("Allow", 200, ["1", "2"]),
        ("Drop", 200, ["", "2"]),
        ("Reject", 400, ["", ""]),
    ] {
        let origin = harness::origin::Origin::hello();
        let policy = json!({"headers": {"underscores": mode}});
        let objects = Objects::http()
            .service("origin", &[origin.address])
            .route("route", &[to("origin")])
            .with(clients("clients", &gateway(), &policy));
        let scene = Scene::start(&objects);
        let response = harness::client::Client::connect(scene.at(80)).round_trip(request);
        assert_eq!(response.status, status, "{mode}");
        if status == 200 {
            origin.until("the body", |origin| origin.last().body.complete);
        }
        for (name, expected) in ["x_a", "x-b"].into_iter().zip(expected) {
            let requests = origin.requests();
            let found = requests.iter().flat_map(|it| it.body.trailers.all(name));
            assert_eq!(found.collect::<String>(), expected, "{mode}: {name}");
        }
    }
}

#[tokio::test]
async fn ids_of_requests_come_from_where_the_policy_says() {
    let origin = Origin::echo("origin").await;
    let spec = |mode: &str| objects(&origin, &json!({"requestID": mode}));
    let known = [("x-request-id", "known-1")];
    let mut scene = Scene::start(&spec("Trust"));
    for answer in both(scene.at(80), &known).await {
        assert_eq!(headers(&answer)["x-request-id"], "known-1");
    }
    for answer in both(scene.at(8080), &known).await {
        assert_ne!(headers(&answer)["x-request-id"], "known-1", "the neighbour");
    }
    let long = "a".repeat(200);
    for id in ["a b", &long] {
        for answer in both(scene.at(80), &[("x-request-id", id)]).await {
            let headers = headers(&answer);
            let id = headers["x-request-id"].as_str().expect("an id");
            assert_eq!(id.len(), 32, "{id}");
        }
    }
    scene.replace(&spec("Generate")).await;
    for answer in both(scene.at(80), &known).await {
        assert_ne!(headers(&answer)["x-request-id"], "known-1");
    }
    scene.replace(&spec("Off")).await;
    for answer in both(scene.at(80), &known).await {
        assert_eq!(headers(&answer)["x-request-id"], Value::Null);
    }
    // Responses of the proxy itself name the request.
    let host = [("host", "b.com"), ("host", "c.com")];
    let refused = Client::http1(scene.at(80))
        .await
        .get_with("a.com", "/", &host)
        .await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.header("x-request-id").len(), 32);
}

#[tokio::test]
async fn backends_get_the_listed_headers_about_the_origin() {
    let origin = Origin::echo("origin").await;
    let names = [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-real-ip",
        "forwarded",
    ];
    let claims = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-port", "1"),
        ("x-real-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
    ];
    let own = r#"for=127.0.0.1;proto=http;host="a.com:80""#;
    for (listed, trusts, expected) in [
        (json!([]), false, [""; 6]),
        (json!([]), true, [""; 6]),
        (
            json!(["X-Forwarded-Host", "X-Forwarded-For"]),
            false,
            ["127.0.0.1", "", "a.com:80", "", "", ""],
        ),
        (
            json!([
                "X-Forwarded-Proto",
                "X-Forwarded-Port",
                "X-Real-IP",
                "Forwarded"
            ]),
            false,
            ["", "http", "", "80", "127.0.0.1", own],
        ),
        (
            json!([
                "X-Forwarded-For",
                "X-Forwarded-Port",
                "X-Real-IP",
                "Forwarded"
            ]),
            true,
            [
                "192.0.2.1, 127.0.0.1",
                "",
                "",
                "1",
                "192.0.2.1",
                &format!("for=192.0.2.1, {own}"),
            ],
        ),
    ] {
        let objects = objects(&origin, &json!({"forwarded": listed}));
        let scene = Scene::with(&objects, |settings| {
            if trusts {
                settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
            }
        });
        // An untrusted client's claims change nothing.
        for claims in [&claims[..], &[]].iter().take(if trusts { 1 } else { 2 }) {
            for answer in both(scene.at(80), claims).await {
                let headers = headers(&answer);
                let found = names.map(|name| headers[name].as_str().unwrap_or_default());
                assert_eq!(found, expected, "{listed} trusted: {trusts}, {claims:?}");
            }
        }
        for answer in both(scene.at(8080), &[]).await {
            let headers = headers(&answer);
            assert_eq!(headers["x-forwarded-for"], "127.0.0.1", "the neighbour");
            assert_eq!(headers["forwarded"], Value::Null, "the neighbour");
        }
    }
}

/// Routes see the headers that backends get.
#[tokio::test]
async fn routes_match_the_headers_that_backends_get() {
    let origin = Origin::echo("origin").await;
    let mut real = to("origin");
    real["matches"] = json!([{"headers": [{"name": "X-Real-IP", "value": "127.0.0.1"}]}]);
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    let policy = clients(
        "clients",
        &one,
        &json!({"headers": {"forwarded": ["X-Real-IP"]}}),
    );
    let objects = Objects::gateway(&[http("one", 80, ""), http("two", 8080, "")])
        .service("origin", &[origin.address])
        .route("route", &[real])
        .with(policy);
    let scene = Scene::start(&objects);
    for answer in both(scene.at(80), &[("x-real-ip", "192.0.2.1")]).await {
        assert_eq!(answer.status, 200);
    }
    for answer in both(scene.at(8080), &[("x-real-ip", "127.0.0.1")]).await {
        assert_eq!(answer.status, 404, "the neighbour");
    }
}
