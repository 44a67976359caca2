//! AccessPolicies with rules: which clients may send which requests.

use http::Method;
use serde_json::json;

use crate::access_policy::{access, before, connect_from, gateway};
use crate::client::Client;
use crate::credentials::{BCRYPT, SHA_CRYPT, api_key, authorization, basic, keys, users};
use crate::grpc::grpc_route;
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, to};

#[tokio::test]
async fn first_rule_that_a_request_meets_decides() {
    let origin = Origin::echo("origin").await;
    let mut spec = basic();
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["require"] = json!("Any");
    spec["authorization"] = json!({"rules": [
        {"name": "admins", "action": "Allow", "match": {
            "paths": [{"value": "/admin"}, {"type": "Exact", "value": "/reports"}],
            "clients": ["alice", "billing"],
        }},
        {"name": "admin", "action": "Deny", "match": {"paths": [{"value": "/admin"}]}},
        {"name": "reads", "action": "Allow", "match": {"methods": ["GET", "HEAD"]}},
        {"name": "local", "action": "Allow", "match": {
            "cidrs": ["127.0.0.2"], "headers": [{"name": "x-tool", "value": "sync"}],
        }},
    ]});
    let all = [("alice", BCRYPT), ("bob", SHA_CRYPT)];
    let policies = [users(&all), keys(), access("a", &gateway(), &spec)];
    let scene = Scene::start(&before(&origin, &policies));
    let (alice, bob) = (
        authorization("alice", "password"),
        authorization("bob", "password"),
    );
    let user = |user: &str| vec![("authorization", user.to_owned())];
    let key = |key: &str| vec![("x-api-key", key.to_owned())];
    let tool = vec![
        ("authorization", bob.clone()),
        ("x-tool", "sync".to_owned()),
    ];
    for (from, method, path, headers, expected) in [
        ([127, 0, 0, 1], "POST", "/admin", user(&alice), 200),
        ([127, 0, 0, 1], "POST", "/reports", user(&alice), 200),
        ([127, 0, 0, 1], "POST", "/reports/all", user(&alice), 403),
        // The first request of a user has a password that has to be verified.
        ([127, 0, 0, 1], "GET", "/admin", user(&bob), 403),
        ([127, 0, 0, 1], "GET", "/admin", user(&bob), 403),
        (
            [127, 0, 0, 1],
            "GET",
            "/admin/a",
            key("key-of-billing"),
            200,
        ),
        ([127, 0, 0, 1], "GET", "/admin/a", key("key-of-shop"), 403),
        ([127, 0, 0, 1], "GET", "/", user(&bob), 200),
        ([127, 0, 0, 1], "POST", "/", user(&bob), 403),
        ([127, 0, 0, 1], "POST", "/", tool.clone(), 403),
        ([127, 0, 0, 2], "POST", "/", tool.clone(), 200),
        ([127, 0, 0, 2], "POST", "/", user(&bob), 403),
        ([127, 0, 0, 1], "GET", "/", vec![], 401),
    ] {
        let stream = connect_from(from, scene.at(80)).await.expect("connected");
        let mut client = Client::http1_on(stream).await;
        let mut request = client.request(method.parse().expect("a method"), "a.com", path);
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        let request = request.body(empty()).expect("a request");
        let status = client.fetch(request).await.status;
        assert_eq!(status, expected, "{from:?} {method} {path} {headers:?}");
    }
}

#[tokio::test]
async fn rules_need_no_credentials_and_grpc_calls_get_permission_denied() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"authorization": {"rules": [
        {"name": "one", "action": "Allow", "match": {
            "paths": [{"type": "Exact", "value": "/package.Service/One"}],
        }},
    ]}});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(access("a", &gateway(), &spec));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    for (path, expected) in [("/package.Service/One", ""), ("/package.Service/Two", "7")] {
        let request = client
            .request(Method::POST, "a.com", path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = request.body(full("x")).expect("a request");
        let answer = client.fetch(request).await;
        assert_eq!(
            (answer.status, answer.header("grpc-status")),
            (200, expected)
        );
    }
}
