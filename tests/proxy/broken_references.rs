//! What protects fails closed: a policy whose reference is missing or broken, in each section, answers 500 for its rule, and
//! the other rule of the same route is served.

use http::Method;
use serde_json::{Value, json};

use crate::access_policy::access;
use crate::client::Client;
use crate::credentials::{keys, secret};
use crate::issuer::provider;
use crate::origin::{Origin, empty};
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, prefix, route, to};

/// Each section of an AccessPolicy with what is missing or broken.
fn sections() -> Vec<(&'static str, Value)> {
    let jwks = |jwks: Value| provider(&jwks);
    let from = json!([{"type": "Header", "name": "X-Key"}]);
    let api_key = |name: &str| json!({"apiKey": {"secretRefs": [{"name": name}], "from": from}});
    let external =
        |backend: Value| json!({"external": {"protocol": "HTTP", "backendRef": backend}});
    let oidc = |changes: Value| {
        let mut section = json!({"issuer": "https://login.example.com", "clientID": "shop"});
        let changes = changes.as_object().cloned().unwrap_or_default();
        section.as_object_mut().expect("fields").extend(changes);
        json!({"oidc": section})
    };
    let cidr = json!([{"name": "one", "action": "Allow", "match": {"cidrs": ["127.0.0.1/99"]}}]);
    let elsewhere = json!({"name": "users", "namespace": "other"});
    vec![
        ("CIDR", json!({"ipRules": {"allow": ["127.0.0.1/99"]}})),
        (
            "denied CIDR",
            json!({"ipRules": {"deny": ["127.0.0.1/99"]}}),
        ),
        (
            "no users",
            json!({"basic": {"secretRef": {"name": "none"}}}),
        ),
        (
            "Secret of others",
            json!({"basic": {"secretRef": elsewhere}}),
        ),
        (
            "Secret without users",
            json!({"basic": {"secretRef": {"name": "keys"}}}),
        ),
        ("no keys", api_key("none")),
        ("Secret of another type", api_key("typed")),
        (
            "one of two Secrets",
            json!({"apiKey": {"secretRefs": [{"name": "keys"}, {"name": "none"}], "from": from}}),
        ),
        (
            "no ConfigMap",
            jwks(json!({"configMapRef": {"name": "none"}})),
        ),
        (
            "no shared key",
            jwks(json!({"secretRef": {"name": "none"}})),
        ),
        ("text", jwks(json!({"inline": "{]"}))),
        (
            "not fetched",
            jwks(json!({"remote": {"uri": "https://127.0.0.1:1/keys"}})),
        ),
        (
            "no secret of the client",
            oidc(json!({"clientSecretRef": {"name": "none"}})),
        ),
        (
            "no authorities",
            oidc(json!({"caConfigMapRef": {"name": "none"}})),
        ),
        ("no server", external(json!({"name": "none", "port": 80}))),
        (
            "port of the server",
            external(json!({"name": "origin", "port": 81})),
        ),
        (
            "server of others",
            external(json!({"name": "origin", "namespace": "other", "port": 80})),
        ),
        ("CIDR of a rule", json!({"authorization": {"rules": cidr}})),
        (
            "require",
            json!({"basic": {"secretRef": {"name": "none"}}, "require": "Any"}),
        ),
    ]
}

/// Rules of limits that are broken.
fn broken_limits() -> Vec<(&'static str, Value)> {
    let with = |field: &str, value: Value| {
        let mut rule = per_hour("one", 1000);
        rule[field] = value;
        rule
    };
    vec![
        ("key", with("key", json!([{"type": "Path"}]))),
        ("scope", with("scope", json!("Zone"))),
        ("exempt", with("exempt", json!({"cidrs": ["127.0.0.1/99"]}))),
    ]
}

async fn status(scene: &Scene, host: &str, path: &str) -> u16 {
    let mut client = Client::http1(scene.at(80)).await;
    let request = client.request(Method::GET, host, path);
    let request = request.header("x-key", "none").body(empty());
    client.fetch(request.expect("a request")).await.status
}

fn host(index: usize) -> String {
    format!("case-{index}.com")
}

/// A route with a rule that policies target.
fn case(index: usize) -> String {
    let mut rule = prefix("/rule", "origin");
    rule["name"] = json!("rule");
    route(
        &format!("case-{index}"),
        &[&host(index)],
        &[to("origin"), rule],
    )
}

fn target(index: usize, rule: &str) -> Value {
    json!({"kind": "HTTPRoute", "name": format!("case-{index}"), "sectionName": rule})
}

#[tokio::test]
async fn broken_sections_and_limits_refuse_their_scope_alone() {
    let origin = Origin::echo("origin").await;
    let typed = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "typed"}, "type": "kubernetes.io/basic-auth",
        "stringData": {"username": "a", "password": "b"},
    });
    let of_others = secret("users", &json!({"auth": "a:b"})).replace(
        "\"name\":\"users\"",
        "\"name\":\"users\",\"namespace\":\"other\"",
    );
    let shared = [keys(), typed.to_string(), of_others];
    let objects = Objects::http().service("origin", &[origin.address]);
    let mut objects = shared.into_iter().fold(objects, Objects::with);
    let mut names = Vec::new();
    for (name, spec) in sections() {
        let policy = access(
            &format!("policy-{}", names.len()),
            &target(names.len(), "rule"),
            &spec,
        );
        objects = objects.with(policy).with(case(names.len()));
        names.push(name);
    }
    for (name, rule) in broken_limits() {
        let rules = json!([rule]);
        let policy = limits(
            &format!("policy-{}", names.len()),
            &target(names.len(), "rule"),
            &rules,
            None,
        );
        objects = objects.with(policy).with(case(names.len()));
        names.push(name);
    }
    let scene = Scene::start(&objects);
    let mut others = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let host = host(index);
        let found = [
            status(&scene, &host, "/rule").await,
            status(&scene, &host, "/").await,
        ];
        others.extend((found != [500, 200]).then_some((name, found)));
    }
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(origin.requests(), names.len());
}

/// Nobody knows which requests the policy would protect: those of the whole route.
#[tokio::test]
async fn missing_rule_refuses_its_route_alone() {
    let origin = Origin::echo("origin").await;
    let rules = json!([per_hour("one", 1000)]);
    let scene = Scene::start(
        &Objects::http()
            .service("origin", &[origin.address])
            .with(access(
                "access",
                &target(0, "none"),
                &json!({"ipRules": {"allow": ["127.0.0.0/8"]}}),
            ))
            .with(case(0))
            .with(limits("limits", &target(1, "none"), &rules, None))
            .with(case(1))
            .with(case(2)),
    );
    for (index, expected) in [(0, 500), (1, 500), (2, 200)] {
        for path in ["/rule", "/"] {
            assert_eq!(
                status(&scene, &host(index), path).await,
                expected,
                "{index}"
            );
        }
    }
}
