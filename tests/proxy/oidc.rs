//! Sign-in at an OpenID provider: browsers sign in, stay signed in while their tokens are refreshed, and sign out.

use std::time::Duration;

use http::Method;
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::access_policy::{access, before, gateway};
use crate::admin::page;
use crate::api::{portcullis, stdout};
use crate::browser::Browser;
use crate::client::Client;
use crate::issuer::{Issuer, bearer, now};
use crate::origin::Origin;
use crate::provider::{
    CLIENT_SECRET, Provider, SUBJECT, client_secret, parse, permitted, until_discovered,
};
use crate::scene::Scene;

const JSON: (&str, &str) = ("accept", "application/json");

#[tokio::test]
async fn browser_signs_in_and_returns_to_its_page() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({
        "scopes": ["email"], "forwardAccessToken": "Authorization", "forwardIDToken": "X-ID-Token",
        "authorizationParameters": {"audience": "https://api.example.com/a b", "prompt": "login"},
    });
    let scene = provider.scene(&origin, &changes).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/page?a=b%20c&d").await;
    let asked = parse(location.split_once('?').expect("a query").1.as_bytes());
    assert_eq!(asked["scope"], "openid email");
    assert_eq!(asked["audience"], "https://api.example.com/a b");
    assert_eq!(asked["prompt"], "login");
    assert_eq!(asked["redirect_uri"], "http://a.com/oauth2/callback");
    assert!(asked["state"].len() >= 22 && asked["nonce"].len() >= 22);
    let answer = browser.get(&provider.authorize(&location)).await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("location"), "http://a.com/page?a=b%20c&d");
    assert_eq!(answer.header("cache-control"), "no-store");
    // Those of the sign-in have left.
    assert_eq!(browser.cookies.len(), 1, "{:?}", browser.cookies);
    assert_eq!(origin.requests(), 0);
    let received = browser.get("/page").await.received();
    let header = |name: &str| {
        received["headers"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(header("x-user"), SUBJECT);
    assert!(header("authorization").starts_with("Bearer access-"));
    assert_eq!(header("x-id-token").split('.').count(), 3);
    assert_eq!(header("cookie"), "");
    // Other cookies of the host stay, and what the client says of itself does not.
    let sent = [
        ("x-user", "root"),
        ("x-id-token", "forged"),
        ("authorization", "Bearer forged"),
        JSON,
    ];
    let received = browser.send(Method::POST, "/api", &sent).await.received();
    assert_eq!(received["headers"]["x-user"], SUBJECT);
    assert_ne!(received["headers"]["x-id-token"], "forged");
    assert_ne!(received["headers"]["authorization"], "Bearer forged");
    assert_eq!(provider.asked("authorization_code"), 1);
    let form = provider.state().asked[0].clone();
    assert!(!form.contains_key("client_secret"));
}

/// A session that has begun before backends got access tokens has none.
#[tokio::test]
async fn client_does_not_fill_in_for_a_token_of_its_session() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let mut scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let sent = [("authorization", "Bearer forged"), JSON];
    let received = browser.send(Method::POST, "/api", &sent).await.received();
    assert_eq!(received["headers"]["authorization"], "Bearer forged");
    let forwarding = json!({"forwardAccessToken": "Authorization"});
    scene.replace(&provider.objects(&origin, &forwarding)).await;
    let received = browser.send(Method::POST, "/api", &sent).await.received();
    assert_eq!(received["headers"]["x-user"], SUBJECT);
    assert_eq!(received["headers"]["authorization"], Value::Null);
}

#[tokio::test]
async fn only_requests_for_pages_are_redirected() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({"redirectOnlyFor": ["text/html", "application/xhtml+xml"]});
    let scene = provider.scene(&origin, &changes).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    for (method, accept, expected) in [
        (Method::GET, "text/html", 302),
        (Method::HEAD, "application/XHTML+xml", 302),
        (Method::GET, "application/json", 401),
        (Method::GET, "*/*", 401),
        (Method::GET, "text/html;q=0", 401),
        (Method::POST, "text/html", 401),
        (Method::DELETE, "text/html", 401),
    ] {
        let answer = browser
            .send(method.clone(), "/", &[("accept", accept)])
            .await;
        assert_eq!(answer.status, expected, "{method} {accept}");
        let challenge = match expected {
            401 => "OpenID",
            _ => "",
        };
        assert_eq!(answer.header("www-authenticate"), challenge);
    }
    let mut client = Client::http2(scene.at(80)).await;
    let call = [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("accept", "text/html"),
    ];
    let answer = client.get_with("a.com", "/a.B/C", &call).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn parallel_requests_refresh_a_session_once() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({"forwardAccessToken": "X-Token"});
    let objects = provider.objects(&origin, &changes);
    let scene = Scene::with(&objects, |settings| {
        permitted(settings);
        settings.workers = 2;
    });
    until_discovered(&scene, ("a.com", "/")).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    provider.state().tokens = json!({"expires_in": 0});
    browser.sign_in(&provider, "/").await;
    {
        let mut state = provider.state();
        // Long enough for all requests to arrive before the response.
        (state.tokens, state.delay) = (json!({}), Duration::from_secs(2));
    }
    let cookie = browser.session().expect("a session").clone();
    let mut requests = JoinSet::new();
    for _ in 0..24 {
        let (address, cookie) = (scene.at(80), cookie.clone());
        requests.spawn(async move {
            let mut one = Browser::new(address, "a.com").await;
            one.cookies.push(cookie);
            let received = one.send(Method::GET, "/", &[JSON]).await.received();
            let token = received["headers"]["x-token"]
                .as_str()
                .expect("a token")
                .to_owned();
            (token, one.cookies)
        });
    }
    let answers = requests.join_all().await;
    assert!(answers.iter().all(|(token, _)| *token == answers[0].0));
    assert!(answers.iter().all(|(_, cookies)| cookies[0] != cookie));
    assert_eq!(provider.asked("refresh_token"), 1);
    // The old session leads to the same new one for a while, and the new one is not refreshed.
    let received = browser.send(Method::GET, "/", &[JSON]).await.received();
    assert_eq!(received["headers"]["x-token"], *answers[0].0);
    browser.get("/").await.received();
    assert_eq!(provider.asked("refresh_token"), 1);
}

#[tokio::test]
async fn sessions_end_with_their_tokens_or_their_time() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    // Without a refresh token, the end of the access token is that of the session.
    provider.state().tokens = json!({"expires_in": 0, "refresh_token": null});
    browser.sign_in(&provider, "/").await;
    assert_eq!(browser.send(Method::GET, "/", &[JSON]).await.status, 401);
    // Without its lifetime, the end of the ID token is.
    provider.state().tokens = json!({"expires_in": null, "refresh_token": null});
    browser.sign_in(&provider, "/").await;
    browser.send(Method::GET, "/", &[JSON]).await.received();
    // The provider does not know the refresh token any more.
    browser.cookies.clear();
    provider.state().tokens = json!({"expires_in": 0, "refresh_token": "unknown"});
    browser.sign_in(&provider, "/").await;
    assert_eq!(browser.send(Method::GET, "/", &[JSON]).await.status, 401);
    // The user of a refreshed ID token is another one.
    provider.state().tokens = json!({"expires_in": 0});
    browser.sign_in(&provider, "/").await;
    provider.state().claims = json!({"sub": "mallory"});
    assert_eq!(browser.send(Method::GET, "/", &[JSON]).await.status, 401);
}

#[tokio::test]
async fn sessions_go_on_while_keys_are_rotated() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let objects = provider.objects(&origin, &json!({}));
    let keys = tempfile::tempdir().expect("a folder");
    let file = |key: &str| {
        let file = keys.path().join(key);
        std::fs::write(&file, key.repeat(40)).expect("written");
        file
    };
    let serve = async |key: &str, accepted: Option<&str>| {
        let scene = Scene::with(&objects, |settings| {
            permitted(settings);
            settings.session_key_file = Some(file(key));
            settings.accepted_session_key_file = accepted.map(&file);
        });
        until_discovered(&scene, ("a.com", "/")).await;
        scene
    };
    let before = serve("1", None).await;
    let mut browser = Browser::new(before.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let old = browser.cookies.clone();
    let rotated = serve("2", Some("1")).await;
    browser.client = Client::http1(rotated.at(80)).await;
    let answer = browser.send(Method::GET, "/", &[JSON]).await;
    assert!(answer.headers.contains_key("set-cookie"));
    assert_eq!(answer.received()["headers"]["x-user"], SUBJECT);
    let answer = browser.send(Method::GET, "/", &[JSON]).await;
    assert!(!answer.headers.contains_key("set-cookie"));
    // The session has the new key, and that before is no longer accepted.
    let after = serve("2", None).await;
    browser.client = Client::http1(after.at(80)).await;
    browser.send(Method::GET, "/", &[JSON]).await.received();
    browser.cookies = old;
    assert_eq!(browser.send(Method::GET, "/", &[JSON]).await.status, 401);
    assert_eq!(provider.asked("authorization_code"), 1);
}

#[tokio::test]
async fn sessions_go_on_while_the_provider_is_away() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    provider.state().tokens = json!({"expires_in": 0});
    browser.sign_in(&provider, "/").await;
    let mut other = Browser::new(scene.at(80), "a.com").await;
    let location = other.begin("/").await;
    let callback = provider.authorize(&location);
    provider.state().failure = Some((503, "{}"));
    for _ in 0..3 {
        browser.send(Method::GET, "/", &[JSON]).await.received();
    }
    // Asked once in 10 s.
    assert_eq!(provider.asked("refresh_token"), 1);
    let answer = other.get(&callback).await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.text().trim(),
        "the identity provider is not available"
    );
    assert!(other.cookies.is_empty(), "{:?}", other.cookies);
    drop(provider);
    let mut other = Browser::new(scene.at(80), "a.com").await;
    other.begin("/").await;
    browser.send(Method::GET, "/", &[JSON]).await.received();
}

#[tokio::test]
async fn browser_signs_out_here_and_at_the_provider() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let answer = browser.get("/oauth2/logout").await;
    assert_eq!((answer.status, answer.header("location")), (200, ""));
    browser.sign_in(&provider, "/").await;
    let answer = browser.get("/oauth2/logout").await;
    assert_eq!(answer.status, 302);
    assert!(browser.session().is_none());
    let (endpoint, query) = answer.header("location").split_once('?').expect("a query");
    assert_eq!(endpoint, format!("{}/logout", provider.issuer()));
    let asked = parse(query.as_bytes());
    assert_eq!(asked["id_token_hint"].split('.').count(), 3);
    assert_eq!(
        asked["post_logout_redirect_uri"],
        "http://a.com/oauth2/logout"
    );
    assert_eq!(asked["client_id"], "shop");
    // Another state is not that of this browser, and ends no session.
    browser.sign_in(&provider, "/").await;
    let answer = browser.get("/oauth2/logout?state=forged").await;
    assert_eq!(answer.status, 400);
    assert!(browser.session().is_some());
    let answer = browser
        .get(&format!("/oauth2/logout?state={}", asked["state"]))
        .await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("signed out"));
    assert!(
        !browser
            .cookies
            .iter()
            .any(|it| it.name.ends_with("-logout"))
    );
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn key_that_is_published_late_is_waited_for() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let new = Issuer::new("two", Algorithm::EdDSA);
    {
        let mut state = provider.state();
        state.keys = vec![new.jwk()];
        state.signer = new;
    }
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    browser.get("/").await.received();
}

#[tokio::test]
async fn other_credentials_are_enough_where_one_is() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let issuer = Issuer::new("api", Algorithm::ES256);
    let set = json!({"keys": [issuer.jwk()]}).to_string();
    let keys = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"acme": "1234"},
    });
    let section = provider.section(&json!({"passThroughBearer": true}));
    let jwt = json!({"providers": [{"issuer": "api", "jwks": {"inline": set}}]});
    let any = json!({
        "oidc": section, "jwt": jwt, "require": "Any",
        "apiKey": {"secretRefs": [{"name": "keys"}], "from": [{"type": "Header", "name": "X-Key"}]},
    });
    let all = json!({"oidc": section, "jwt": jwt});
    let token = bearer(&issuer.token(&json!({"iss": "api", "sub": "bob", "exp": now() + 600})));
    let html = ("accept", "text/html");
    for (spec, is_any) in [(any, true), (all, false)] {
        let policy = access("a", &gateway(), &spec);
        let objects = before(&origin, &[policy, client_secret(), keys.to_string()]);
        let scene = provider.serve(&objects).await;
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        for (name, value, expected) in [
            ("authorization", &*token, 200),
            ("authorization", "Bearer forged", 401),
            (
                "authorization",
                "Basic YTpi",
                if is_any { 401 } else { 302 },
            ),
            ("x-key", "1234", if is_any { 200 } else { 302 }),
            ("x-key", "12", 302),
        ] {
            let answer = browser.send(Method::GET, "/", &[(name, value), html]).await;
            assert_eq!(answer.status, expected, "{is_any} {name} {value}");
        }
        browser.sign_in(&provider, "/").await;
        let received = browser.get("/").await.received();
        assert_eq!(received["headers"]["x-user"], SUBJECT);
        let forged = [("authorization", "Bearer forged"), html];
        let answer = browser.send(Method::GET, "/", &forged).await;
        assert_eq!(answer.status, if is_any { 200 } else { 401 });
    }
}

#[tokio::test]
async fn claims_decide_and_names_of_sessions_are_counted() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let rules = json!({"rules": [
        {"name": "staff", "action": "Allow", "match": {"claims": [{"name": "groups", "values": ["staff"]}]}},
    ]});
    let spec = json!({"oidc": provider.section(&json!({})), "authorization": rules});
    let policy = access("a", &gateway(), &spec);
    let scene = provider
        .serve(&before(&origin, &[policy, client_secret()]))
        .await;
    for (groups, expected) in [
        (json!(["staff"]), 200),
        (json!(["others"]), 403),
        (json!(null), 403),
    ] {
        provider.state().claims = json!({"groups": groups});
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        browser.sign_in(&provider, "/").await;
        assert_eq!(browser.get("/").await.status, expected, "{groups}");
    }
}

#[tokio::test]
async fn large_tokens_need_several_cookies_and_backends_get_none() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider
        .scene(&origin, &json!({"cookie": {"name": "s"}}))
        .await;
    provider.state().claims = json!({"note": "x".repeat(6000)});
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    assert!(browser.cookies.len() >= 3, "{}", browser.cookies.len());
    assert!(
        browser
            .cookies
            .iter()
            .all(|it| it.name.len() + it.value.len() < 4096)
    );
    let received = browser.get("/").await.received();
    assert_eq!(received["headers"]["cookie"], json!(null));
    browser.get("/oauth2/logout").await;
    assert!(browser.session().is_none());
}

#[tokio::test]
async fn strict_cookies_follow_a_page_of_this_site() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider
        .scene(&origin, &json!({"cookie": {"sameSite": "Strict"}}))
        .await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/a?b=c&d=e").await;
    let answer = browser.get(&provider.authorize(&location)).await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.text().contains("0;url=http://a.com/a?b=c&amp;d=e"),
        "{}",
        answer.text()
    );
    browser.get("/").await.received();
}

/// Tokens, codes and secrets reach nothing that operators look at.
#[tokio::test]
async fn nothing_shows_tokens() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider
        .scene(&origin, &json!({"forwardAccessToken": "X-Token"}))
        .await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    browser.get("/").await.received();
    let secrets = [
        CLIENT_SECRET.to_owned(),
        "access-".to_owned(),
        "refresh-".to_owned(),
        browser.session().expect("a session").value.clone(),
    ];
    for path in ["/config", "/metrics", "/", "/api/v1/problems"] {
        let text = page(&scene, path).await;
        for secret in &secrets {
            assert!(!text.contains(secret), "{path} has {secret}");
        }
    }
    let explained = stdout(&portcullis(&scene, &["explain", "http://a.com/"]).await);
    assert!(
        explained.contains("a session of http://127.0.0.1:"),
        "{explained}"
    );
    assert!(explained.contains("for client shop"), "{explained}");
}

#[tokio::test]
async fn provider_proves_its_name() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::with_tls().await);
    let scene = provider.behind_tls(&origin, true);
    until_discovered(&scene, ("a.com", "/")).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    browser.get("/").await.received();
    provider.assert_encrypted("client_secret");
    provider.assert_encrypted("code_verifier");
    let requests = provider.origin.requests();
    let scene = provider.behind_tls(&origin, false);
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    for _ in 0..20 {
        assert_eq!(browser.get("/").await.status, 503);
        // The pace of the requests.
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(provider.origin.requests(), requests);
}
