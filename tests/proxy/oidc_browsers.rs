//! What pages of other sites, and other hosts of the domain, do with the browsers of users: they sign nobody out, and nobody in as
//! another user.

use std::sync::Arc;

use http::Method;
use rustls::ClientConfig;
use serde_json::json;

use crate::access_policy::{access, gateway};
use crate::browser::{Browser, Cookie};
use crate::client::Client;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::provider::{Provider, SUBJECT, client_secret};
use crate::scene::{Objects, Scene, http, https, secret, to};

/// Signs another user in with a new browser.
async fn signed_in_as_another(provider: &Provider, mut browser: Browser) -> Browser {
    provider.state().claims = json!({"sub": "mallory"});
    browser.sign_in(provider, "/").await;
    provider.behave();
    browser
}

/// Returns what backends get to know of the user.
async fn user(browser: &mut Browser) -> String {
    let received = browser.get("/").await.received();
    let user = received["headers"]["x-user"].as_str();
    user.expect("a user").to_owned()
}

/// The origin of a request is that of the page which has caused it.
#[tokio::test]
async fn other_sites_sign_nobody_out() {
    const LOGOUT: &str = "/oauth2/logout";
    const SITE: &str = "sec-fetch-site";
    const DEST: &str = "sec-fetch-dest";
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let refused: &[&[(&str, &str)]] = &[
        &[(SITE, "cross-site"), (DEST, "document")],
        &[(SITE, "cross-site"), (DEST, "image")],
        &[(SITE, "cross-site"), ("referer", "http://a.com/")],
        &[(SITE, "cross-site"), ("origin", "http://a.com")],
        &[(SITE, "same-site"), (DEST, "image")],
        &[(SITE, "same-site")],
        &[(SITE, "other"), (DEST, "document")],
        // Browsers without these headers.
        &[],
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
        &[
            ("origin", "http://evil.example"),
            ("referer", "http://a.com/"),
        ],
        &[("referer", "http://evil.example/http://a.com/")],
        &[("referer", "http://a.com.evil.example/")],
        &[("referer", "http://a.com@evil.example/")],
        &[("referer", "http://a.com:8080/")],
        &[("origin", "https://a.com")],
    ];
    for headers in refused {
        for method in [Method::GET, Method::POST] {
            let answer = browser.send(method.clone(), LOGOUT, headers).await;
            assert_eq!(answer.status, 200, "{method} {headers:?}");
            let question = "<form method=\"post\"><button>Sign out</button></form>";
            assert!(answer.text().contains(question), "{method} {headers:?}");
            // With a route's `Referrer-Policy: no-referrer` alone, browsers send `Origin: null`.
            let referrer = "<meta name=\"referrer\" content=\"same-origin\">";
            assert!(answer.text().contains(referrer), "{method} {headers:?}");
            let frames = answer.header("content-security-policy");
            assert_eq!(frames, "frame-ancestors 'none'");
            let cookies = answer.headers.get_all("set-cookie").iter().count();
            assert_eq!(cookies, 0, "{method} {headers:?}");
        }
    }
    browser.get("/").await.received();
    let permitted: &[&[(&str, &str)]] = &[
        &[(SITE, "same-origin"), (DEST, "document")],
        &[(SITE, "same-origin"), (DEST, "empty")],
        &[(SITE, "none"), (DEST, "document")],
        &[(SITE, "same-site"), (DEST, "document")],
        &[("referer", "http://a.com/account?tab=1")],
        // The button of the page.
        &[("origin", "http://a.com")],
    ];
    for headers in permitted {
        for method in [Method::GET, Method::POST] {
            let answer = browser.send(method.clone(), LOGOUT, headers).await;
            assert_eq!(answer.status, 302, "{method} {headers:?}");
            assert!(browser.session().is_none(), "{method} {headers:?}");
            browser.sign_in(&provider, "/").await;
        }
    }
}

#[tokio::test]
async fn sign_in_replaces_a_session_that_was_planted() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let attacker = Browser::new(scene.at(80), "a.com").await;
    let mut attacker = signed_in_as_another(&provider, attacker).await;
    let planted = attacker.session().expect("a session").clone();
    let mut victim = Browser::new(scene.at(80), "a.com").await;
    let location = victim.begin("/").await;
    victim.cookies.push(planted.clone());
    let answer = victim.get(&provider.authorize(&location)).await;
    assert_eq!(answer.status, 302);
    assert_ne!(victim.session(), Some(&planted));
    assert_eq!(user(&mut victim).await, SUBJECT);
    assert_eq!(user(&mut attacker).await, "mallory");
}

/// Browsers send cookies with longer paths first, also those that another host of the domain has set.
#[tokio::test]
async fn sessions_of_several_users_are_none() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let attacker = Browser::new(scene.at(80), "a.com").await;
    let attacker = signed_in_as_another(&provider, attacker).await;
    let foreign = attacker.session().expect("a session").value.clone();
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let before = browser.session().expect("a session").clone();
    browser.cookies.clear();
    browser.sign_in(&provider, "/").await;
    let own = browser.session().expect("a session").clone();
    for (planted, expected) in [
        (vec![], 200),
        (vec![&*foreign], 401),
        (vec!["1.AAAA", &*foreign], 401),
        (vec!["1.AAAA"], 200),
        (vec![&*before.value], 200),
        (vec!["1.A", "1.B", "1.C", "1.D"], 401),
    ] {
        let count = planted.len();
        let planted = planted.into_iter().map(|value| Cookie {
            value: value.to_owned(),
            path: "/page".to_owned(),
            ..own.clone()
        });
        browser.cookies = planted.chain([own.clone()]).collect();
        let answer = browser.send(Method::GET, "/page", &[]).await;
        assert_eq!(answer.status, expected, "{count}");
        if expected == 200 {
            assert_eq!(answer.received()["headers"]["x-user"], SUBJECT);
        }
        assert_eq!(user(&mut browser).await, SUBJECT);
    }
}

async fn over_tls(scene: &Scene, config: &Arc<ClientConfig>) -> Browser {
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.client = Client::tls(scene.at(443), "a.com", config).await;
    browser
}

/// Browsers accept a cookie whose name begins with `__Host-` from its own host alone.
#[tokio::test]
async fn other_hosts_cannot_plant_sessions_and_sign_ins_over_tls() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let spec = json!({"oidc": provider.section(&json!({}))});
    let listeners = [
        http("http", 80, ""),
        https("https", 443, "", &["certificate"]),
    ];
    let objects = Objects::gateway(&listeners)
        .with(secret("certificate", &Certificate::new(&["a.com"])))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(access("a", &gateway(), &spec))
        .with(client_secret());
    let scene = provider.serve(&objects).await;
    let config = tls::client(&["http/1.1"]);
    let attacker = over_tls(&scene, &config).await;
    let attacker = signed_in_as_another(&provider, attacker).await;
    let session = attacker.session().expect("a session").clone();
    let name = session.name.strip_prefix("__Host-");
    let mut victim = over_tls(&scene, &config).await;
    victim.cookies.push(Cookie {
        name: name.expect("the prefix").to_owned(),
        ..session
    });
    assert_eq!(victim.send(Method::GET, "/", &[]).await.status, 401);
    victim.sign_in(&provider, "/").await;
    assert_eq!(user(&mut victim).await, SUBJECT);
    // A sign-in that the attacker has begun, up to the response of the provider.
    let mut attacker = over_tls(&scene, &config).await;
    let callback = provider.authorize(&attacker.begin("/").await);
    let planted = attacker.cookies.iter();
    let planted = planted.filter(|it| !it.name.starts_with("__Host-"));
    let planted: Vec<_> = planted.cloned().collect();
    assert_eq!(planted.len(), 1, "{:?}", attacker.cookies);
    let mut victim = over_tls(&scene, &config).await;
    victim.cookies.clone_from(&planted);
    assert_eq!(victim.get(&callback).await.status, 400);
    victim.cookies.clear();
    victim.begin("/").await;
    victim.take_names_of(&attacker);
    victim.cookies.extend(planted);
    assert_eq!(victim.get(&callback).await.status, 400);
    assert_eq!(attacker.get(&callback).await.status, 302);
}
