//! AccessPolicies that ask for JSON Web Tokens: which tokens are valid, and what backends get of them.

use http::Method;
use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};

use crate::access_policy::{access, before, gateway, of_route};
use crate::client::Client;
use crate::credentials::{BCRYPT, authorization, basic, secret, users};
use crate::grpc::grpc_route;
use crate::issuer::{
    ISSUER, Issuer, SHARED, bearer, claims, jwt, now, provider, signed, status, with_hmac,
};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, to};

#[tokio::test]
async fn tokens_of_all_algorithms_are_accepted() {
    let origin = Origin::echo("origin").await;
    let algorithms = [
        ("rs", Algorithm::RS256),
        ("ps", Algorithm::PS512),
        ("es", Algorithm::ES256),
        ("es384", Algorithm::ES384),
        ("ed", Algorithm::EdDSA),
    ];
    let issuers = algorithms.map(|(id, algorithm)| Issuer::new(id, algorithm));
    let keys: Vec<_> = issuers.iter().map(Issuer::jwk).collect();
    let scene = Scene::start(&before(&origin, &[access("a", &gateway(), &jwt(&keys))]));
    for issuer in &issuers {
        let mut client = Client::http2(scene.at(80)).await;
        let token = issuer.token(&claims(&json!({})));
        let value = bearer(&token);
        // The second time, the token is remembered.
        for _ in 0..2 {
            let forged = [
                ("authorization", &*value),
                ("x-user", "root"),
                ("x-roles", "root"),
            ];
            let received = client.get_with("a.com", "/", &forged).await.received();
            let headers = &received["headers"];
            assert_eq!(headers["x-user"], "alice", "{:?}", issuer.algorithm);
            assert_eq!(headers["x-groups"], "staff,readers");
            assert_eq!(headers["x-roles"], "clerk");
            assert_eq!(headers["authorization"], value);
        }
        let without_id = issuer.token_with(&Header::new(issuer.algorithm), &claims(&json!({})));
        assert_eq!(status(&mut client, &without_id).await, 200);
        let unnamed = issuer.token(&claims(&json!({"sub": null})));
        let value = bearer(&unnamed);
        let forged = [("authorization", &*value), ("x-user", "root")];
        let received = client.get_with("a.com", "/", &forged).await.received();
        assert!(received["headers"].get("x-user").is_none());
    }
}

#[tokio::test]
async fn claims_of_a_token_must_be_valid() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let policy = access("a", &gateway(), &jwt(&[issuer.jwk()]));
    let scene = Scene::start(&before(&origin, &[policy]));
    let mut client = Client::http1(scene.at(80)).await;
    let now = now();
    for (changes, expected) in [
        (json!({}), 200),
        (json!({"aud": ["other", "shop"]}), 200),
        (json!({"exp": now - 20}), 200),
        (json!({"nbf": now + 20}), 200),
        (json!({"iss": "https://evil.example.com"}), 401),
        (json!({"iss": format!("{ISSUER}/")}), 401),
        (json!({"iss": [ISSUER]}), 401),
        (json!({"iss": null}), 401),
        (json!({"aud": "other"}), 401),
        (json!({"aud": ["other"]}), 401),
        (json!({"aud": []}), 401),
        (json!({"aud": null}), 401),
        (json!({"exp": now - 61}), 401),
        (json!({"exp": "tomorrow"}), 401),
        (json!({"exp": -1}), 401),
        (json!({"exp": null}), 401),
        (json!({"nbf": now + 120}), 401),
        (json!({"groups": vec!["a"; 300]}), 401),
    ] {
        let token = issuer.token(&claims(&changes));
        assert_eq!(status(&mut client, &token).await, expected, "{changes}");
    }
    assert_eq!(origin.requests(), 4);
}

#[tokio::test]
async fn shared_keys_are_in_secrets() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::HS256);
    let spec = provider(&json!({"secretRef": {"name": "shared"}}));
    let policies = [
        secret("shared", &json!({"secret": SHARED})),
        access("a", &gateway(), &spec),
    ];
    let scene = Scene::start(&before(&origin, &policies));
    let mut client = Client::http1(scene.at(80)).await;
    let token = issuer.token(&claims(&json!({})));
    assert_eq!(status(&mut client, &token).await, 200);
    let other = signed(&json!({"alg": "HS256"}), |it| with_hmac(b"another", it));
    assert_eq!(status(&mut client, &other).await, 401);
    let public = Issuer::new("one", Algorithm::ES256).token(&claims(&json!({})));
    assert_eq!(status(&mut client, &public).await, 401);
}

fn config_map(keys: &[Value]) -> String {
    let set = json!({"keys": keys}).to_string();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keys"},
        "data": {"jwks": set},
    })
    .to_string()
}

/// Tokens of a removed key are invalid, although they were valid before.
#[tokio::test]
async fn keys_can_be_rotated() {
    let origin = Origin::echo("origin").await;
    let (old, new) = (
        Issuer::new("old", Algorithm::EdDSA),
        Issuer::new("new", Algorithm::ES256),
    );
    let policy = access(
        "a",
        &gateway(),
        &provider(&json!({"configMapRef": {"name": "keys"}})),
    );
    let with = |keys: &[Value]| before(&origin, &[config_map(keys), policy.clone()]);
    let mut scene = Scene::start(&with(&[old.jwk()]));
    let mut client = Client::http1(scene.at(80)).await;
    let tokens = [
        old.token(&claims(&json!({}))),
        new.token(&claims(&json!({}))),
    ];
    let statuses = async |client: &mut Client| {
        let [old, new] = &tokens;
        [status(client, old).await, status(client, new).await]
    };
    assert_eq!(statuses(&mut client).await, [200, 401]);
    scene.replace(&with(&[old.jwk(), new.jwk()])).await;
    assert_eq!(statuses(&mut client).await, [200, 200]);
    scene.replace(&with(&[new.jwk()])).await;
    assert_eq!(statuses(&mut client).await, [401, 200]);
}

#[tokio::test]
async fn missing_keys_fail_closed_for_their_scope_alone() {
    let origin = Origin::echo("origin").await;
    let mut target = of_route();
    target["sectionName"] = json!("admin");
    let spec = provider(&json!({"configMapRef": {"name": "keys"}}));
    let policies = [access("a", &target, &spec)];
    let scene = Scene::start(&before(&origin, &policies));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/admin").await.status, 500);
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn rules_decide_by_claims() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::EdDSA);
    let mut spec = jwt(&[issuer.jwk()]);
    spec["authorization"] = json!({"rules": [
        {"name": "barred", "action": "Deny", "match": {
            "claims": [{"name": "groups", "values": ["barred"]}],
        }},
        {"name": "clerks", "action": "Allow", "match": {
            "paths": [{"value": "/admin"}],
            "claims": [
                {"name": "groups", "values": ["staff", "managers"]},
                {"name": "realm_access.roles", "values": ["clerk"]},
            ],
        }},
        {"name": "admin", "action": "Deny", "match": {"paths": [{"value": "/admin"}]}},
        {"name": "all", "action": "Allow"},
    ]});
    let scene = Scene::start(&before(&origin, &[access("a", &gateway(), &spec)]));
    let mut client = Client::http1(scene.at(80)).await;
    for (changes, path, expected) in [
        (json!({}), "/admin", 200),
        (json!({"groups": "managers"}), "/admin", 200),
        (json!({"groups": "guests"}), "/admin", 403),
        (json!({"realm_access": null}), "/admin", 403),
        (json!({"groups": null}), "/", 200),
        (json!({"groups": ["staff", "barred"]}), "/", 403),
    ] {
        let value = bearer(&issuer.token(&claims(&changes)));
        let headers = [("authorization", &*value)];
        let answer = client.get_with("a.com", path, &headers).await;
        assert_eq!(answer.status, expected, "{changes} {path}");
    }
    assert_eq!(client.get("a.com", "/admin").await.status, 401);
}

#[tokio::test]
async fn flat_claims_and_values_with_commas_are_no_others() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let mut spec = jwt(&[issuer.jwk()]);
    let clerks = json!([{"name": "realm_access.roles", "values": ["clerk"]}]);
    spec["authorization"] = json!({"rules": [
        {"name": "clerks", "action": "Allow", "match": {"claims": clerks}},
    ]});
    let scene = Scene::start(&before(&origin, &[access("a", &gateway(), &spec)]));
    let mut client = Client::http1(scene.at(80)).await;
    let flat = json!({"realm_access": null, "realm_access.roles": ["clerk"]});
    let token = issuer.token(&claims(&flat));
    assert_eq!(status(&mut client, &token).await, 403);
    for (groups, expected) in [
        (json!(["a,admin", "staff"]), Some("staff")),
        (json!("a,admin"), None),
    ] {
        let token = issuer.token(&claims(&json!({"groups": groups})));
        let value = bearer(&token);
        let headers = [("authorization", &*value), ("x-groups", "root")];
        let received = client.get_with("a.com", "/", &headers).await.received();
        assert_eq!(received["headers"]["x-groups"].as_str(), expected);
    }
}

#[tokio::test]
async fn type_of_a_token_is_that_of_the_policy() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let mut spec = jwt(&[issuer.jwk()]);
    spec["jwt"]["providers"][0]["typ"] = json!("at+jwt");
    let scene = Scene::start(&before(&origin, &[access("a", &gateway(), &spec)]));
    let mut client = Client::http1(scene.at(80)).await;
    for (typ, expected) in [
        (Some("at+jwt"), 200),
        (Some("application/AT+JWT"), 200),
        (Some("JWT"), 401),
        (None, 401),
    ] {
        let mut header = issuer.header();
        header.typ = typ.map(str::to_owned);
        let token = issuer.token_with(&header, &claims(&json!({})));
        assert_eq!(status(&mut client, &token).await, expected, "{typ:?}");
    }
}

#[tokio::test]
async fn tokens_can_be_in_other_places_and_of_several_issuers() {
    let origin = Origin::echo("origin").await;
    let (one, two) = (
        Issuer::new("one", Algorithm::ES256),
        Issuer::new("one", Algorithm::ES256),
    );
    let mut spec = jwt(&[one.jwk()]);
    let mut other = jwt(&[two.jwk()])["jwt"]["providers"][0].clone();
    other["issuer"] = json!("https://other.example.com");
    other["from"] = json!([
        {"type": "Header", "name": "Authorization"}, {"type": "Header", "name": "X-Token"},
        {"type": "Query", "name": "token"}, {"type": "Cookie", "name": "token"},
    ]);
    let providers = spec["jwt"]["providers"].as_array_mut().expect("valid");
    providers.push(other);
    let scene = Scene::start(&before(&origin, &[access("a", &gateway(), &spec)]));
    let mut client = Client::http1(scene.at(80)).await;
    let of_one = one.token(&claims(&json!({})));
    let of_other = two.token(&claims(&json!({"iss": "https://other.example.com"})));
    let cookie = format!("a=b; token={of_other}");
    let (first, second) = (bearer(&of_one), bearer(&of_other));
    for (path, headers, expected) in [
        ("/", vec![("authorization", &*first)], 200),
        ("/", vec![("authorization", &*second)], 200),
        ("/", vec![("x-token", &*of_other)], 200),
        ("/", vec![("cookie", &*cookie)], 200),
        (&format!("/?token={of_other}"), vec![], 200),
        ("/", vec![("x-token", &*of_one)], 401),
        (&format!("/?token={of_one}"), vec![], 401),
        (
            "/",
            vec![("x-token", &*of_other), ("x-token", &*of_other)],
            401,
        ),
    ] {
        let answer = client.get_with("a.com", path, &headers).await;
        assert_eq!(answer.status, expected, "{path} {headers:?}");
    }
}

#[tokio::test]
async fn one_of_token_and_password_is_enough_with_any() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let mut spec = jwt(&[issuer.jwk()]);
    spec["basic"] = basic()["basic"].clone();
    spec["jwt"]["providers"][0]["from"] = json!([{"type": "Header", "name": "X-Token"}]);
    let token = issuer.token(&claims(&json!({})));
    let (alice, wrong) = (
        authorization("alice", "password"),
        authorization("alice", "wrong"),
    );
    for (require, expected) in [
        ("Any", [200, 200, 200, 200, 401, 401]),
        ("All", [200, 401, 401, 401, 401, 401]),
    ] {
        spec["require"] = json!(require);
        let policies = [users(&[("alice", BCRYPT)]), access("a", &gateway(), &spec)];
        let scene = Scene::start(&before(&origin, &policies));
        let mut client = Client::http1(scene.at(80)).await;
        let cases = [
            vec![("authorization", &*alice), ("x-token", &*token)],
            vec![("x-token", &*token)],
            vec![("authorization", &*alice)],
            vec![("authorization", &*wrong), ("x-token", &*token)],
            vec![("authorization", &*wrong), ("x-token", "a.b.c")],
            vec![],
        ];
        for (headers, expected) in cases.iter().zip(expected) {
            let answer = client.get_with("a.com", "/", headers).await;
            assert_eq!(answer.status, expected, "{require} {headers:?}");
        }
    }
}

#[tokio::test]
async fn calls_without_a_token_are_unauthenticated() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(access("a", &gateway(), &jwt(&[issuer.jwk()])));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let request = client
        .request(Method::POST, "a.com", "/package.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", "Bearer a.b.c");
    let answer = client.fetch(request.body(full("x")).expect("valid")).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
}
