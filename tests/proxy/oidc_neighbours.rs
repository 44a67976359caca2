//! Sign-ins of one policy, host, listener or Gateway are of no use to another, and slow providers delay their own users alone.

use std::sync::Arc;

use http::Method;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access_policy::{access, gateway};
use crate::api::{portcullis, stdout};
use crate::browser::Browser;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::Origin;
use crate::provider::{Provider, client_secret, form, permitted, until_discovered};
use crate::scene::{Objects, Scene, http, prefix, to};

/// Two Gateways with the same policy each; the first one has two listeners and two policies.
fn objects(origin: &Origin, provider: &Provider) -> Objects {
    let oidc = provider.section(&json!({"cookie": {"name": "s"}}));
    let spec = json!({"oidc": oidc});
    let target = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    let other = access("b", &target("HTTPRoute", "other"), &spec);
    let both = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy", "metadata": {"name": "a"},
        "spec": {
            "oidc": oidc,
            "targetRefs": [
                {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gateway"},
                {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "second"},
            ],
        },
    });
    let listeners = [http("one", 80, ""), http("two", 81, "")];
    Objects::gateway(&listeners)
        .with(yaml::gateway("second", &[http("three", 82, "")]))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .route("other", &[prefix("/other", "origin")])
        .with(yaml::route(
            "of-second",
            "second",
            &[],
            &json!([to("origin")]).to_string(),
        ))
        .with(both.to_string())
        .with(other)
        .with(client_secret())
}

#[tokio::test]
async fn cookies_are_of_no_use_elsewhere() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.serve(&objects(&origin, &provider)).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    browser.get("/").await.received();
    let session = browser.session().expect("a session").clone();
    let mut login = Browser::new(scene.at(80), "a.com").await;
    let location = login.begin("/").await;
    let callback = provider.authorize(&location);
    for (what, port, host, path) in [
        ("another policy", 80, "a.com", "/other"),
        ("another host", 80, "b.com", "/"),
        ("another listener", 81, "a.com", "/"),
        ("another Gateway", 82, "a.com", "/"),
    ] {
        let mut other = Browser::new(scene.at(port), host).await;
        other.cookies.push(session.clone());
        let answer = other.send(Method::GET, path, &[]).await;
        assert_eq!(answer.status, 401, "{what}");
        if path == "/" {
            other.cookies.clone_from(&login.cookies);
            assert_eq!(other.get(&callback).await.status, 400, "{what}");
        }
    }
    assert_eq!(login.get(&callback).await.status, 302);
    // After a restart without a key of its own, nobody has a session.
    let again = provider.serve(&objects(&origin, &provider)).await;
    let mut other = Browser::new(again.at(80), "a.com").await;
    other.cookies.push(session);
    assert_eq!(other.send(Method::GET, "/", &[]).await.status, 401);
}

/// Listeners of one port differ by their hosts. A port and the case of letters make no other host.
#[tokio::test]
async fn cookies_are_of_no_use_to_other_hosts_of_a_port() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let oidc = json!({"oidc": provider.section(&json!({}))});
    let listeners = [http("one", 80, "a.com"), http("two", 80, "b.com")];
    let objects = Objects::gateway(&listeners)
        .service("origin", &[origin.address])
        .route("route", &[to("origin")])
        .with(access("a", &gateway(), &oidc))
        .with(client_secret());
    let scene = provider.serve(&objects).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    let mut login = Browser::new(scene.at(80), "a.com").await;
    let location = login.begin("/").await;
    let callback = provider.authorize(&location);
    for (host, expected, end) in [
        ("b.com", 401, 400),
        ("evil.example", 404, 404),
        ("a.com.evil.example", 404, 404),
        ("A.COM", 200, 400),
        ("a.com:8080", 200, 400),
    ] {
        let mut other = Browser::new(scene.at(80), host).await;
        other.cookies.clone_from(&browser.cookies);
        let answer = other.send(Method::GET, "/", &[]).await;
        assert_eq!(answer.status, expected, "{host}");
        // The provider binds a code to the redirect URI, which has the host as it was sent.
        other.cookies.clone_from(&login.cookies);
        assert_eq!(other.get(&callback).await.status, end, "{host}");
    }
}

#[tokio::test]
async fn hosts_of_a_domain_share_a_session_if_the_policy_says_so() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({"cookie": {"domain": "example.com"}});
    let scene = Scene::with(&provider.objects(&origin, &changes), permitted);
    until_discovered(&scene, ("a.example.com", "/")).await;
    let mut browser = Browser::new(scene.at(80), "a.example.com").await;
    browser.sign_in(&provider, "/").await;
    let mut other = Browser::new(scene.at(80), "b.example.com").await;
    other
        .cookies
        .push(browser.session().expect("a session").clone());
    other.get("/").await.received();
    for host in ["example.org", "badexample.com"] {
        let mut other = Browser::new(scene.at(80), host).await;
        assert_eq!(other.get("/").await.status, 500, "{host}");
        let url = format!("http://{host}/");
        let explained = stdout(&portcullis(&scene, &["explain", &url]).await);
        let response = "500: the cookie domain of AccessPolicy default/";
        assert!(explained.contains(response), "{explained}");
    }
}

/// A response of one provider is no response to a sign-in at another one, whoever has led the browser there: no provider gets a
/// code of the other.
#[tokio::test]
async fn responses_of_one_provider_end_no_sign_in_at_another() {
    let origin = Origin::echo("origin").await;
    let (one, two) = (Provider::start().await, Provider::start().await);
    let section = two.section(&json!({
        "redirectPath": "/other/callback", "logoutPath": "/other/logout", "cookie": {"name": "s"},
    }));
    let target = json!({"kind": "HTTPRoute", "name": "other"});
    let objects = one
        .objects(&origin, &json!({"cookie": {"name": "s"}}))
        .route("other", &[prefix("/other", "origin")])
        .with(access("b", &target, &json!({"oidc": section})));
    let scene = one.serve(&objects).await;
    until_discovered(&scene, ("a.com", "/other")).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let at_one = browser.begin("/").await;
    let (of_one, path_of_one) = one.approve(&at_one);
    let mut other = Browser::new(scene.at(80), "a.com").await;
    let at_two = other.begin("/other").await;
    let (of_two, path_of_two) = two.approve(&at_two);
    assert_eq!(
        (&*path_of_one, &*path_of_two),
        ("/oauth2/callback", "/other/callback")
    );
    for (browser, own, path, foreign, other_path) in [
        (&browser, &of_one, &path_of_one, &of_two, &path_of_two),
        (&other, &of_two, &path_of_two, &of_one, &path_of_one),
    ] {
        let mut confused = Browser::new(scene.at(80), "a.com").await;
        confused.cookies.clone_from(&browser.cookies);
        for cookie in &mut confused.cookies {
            // As if browsers did not mind paths.
            cookie.path = "/".to_owned();
        }
        let mut mixed = foreign.clone();
        mixed.retain(|(name, _)| name != "state");
        mixed.extend(own.iter().find(|(name, _)| name == "state").cloned());
        for target in [
            format!("{other_path}?{}", form(own)),
            format!("{other_path}?{}", form(&mixed)),
            format!("{path}?{}", form(foreign)),
        ] {
            assert_eq!(confused.get(&target).await.status, 400, "{target}");
        }
        for issuer in [one.issuer(), two.issuer()] {
            let with_issuer = [&own[..], &[("iss".to_owned(), issuer)]].concat();
            let target = format!("{other_path}?{}", form(&with_issuer));
            assert_eq!(confused.get(&target).await.status, 400, "{target}");
        }
    }
    let asked = [&one, &two].map(|it| it.asked("authorization_code"));
    assert_eq!(asked, [0, 0]);
    let at_own = format!("{path_of_one}?{}", form(&of_one));
    assert_eq!(browser.get(&at_own).await.status, 302);
    let at_own = format!("{path_of_two}?{}", form(&of_two));
    assert_eq!(other.get(&at_own).await.status, 302);
}

/// Clients that sign in at a provider that does not respond take neither the time of others nor all places of their policy.
#[tokio::test]
async fn slow_provider_delays_its_own_sign_ins_alone() {
    let origin = Origin::echo("origin").await;
    let (slow, quick) = (Provider::start().await, Provider::start().await);
    let mut section = slow.section(&json!({}));
    section["cookie"] = json!({"name": "slow"});
    let other = access(
        "b",
        &json!({"kind": "HTTPRoute", "name": "other"}),
        &json!({"oidc": section}),
    );
    let mut rule = prefix("/other", "origin");
    rule["matches"]
        .as_array_mut()
        .expect("matches")
        .push(json!({"path": {"value": "/slow"}}));
    let mut objects = quick.objects(&origin, &json!({})).route("other", &[rule]);
    section["redirectPath"] = json!("/slow/callback");
    let other = other.replace(
        "\"cookie\"",
        "\"redirectPath\":\"/slow/callback\",\"cookie\"",
    );
    objects = objects.with(other);
    let scene = quick.serve(&objects).await;
    until_discovered(&scene, ("a.com", "/other")).await;
    let mut waiting = JoinSet::new();
    let gate = Arc::new(Semaphore::new(0));
    slow.state().gate = Some(gate.clone());
    for _ in 0..12 {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin("/other").await;
        let callback = slow.authorize(&location);
        waiting.spawn(async move { browser.get(&callback).await.status });
    }
    // The others hold all places that one provider gets.
    for _ in 0..4 {
        let refused = timeout(TEST_TIMEOUT, waiting.join_next()).await;
        assert_eq!(
            refused.expect("in time").expect("one").expect("no panic"),
            503
        );
    }
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    // Sign-ins of this client fill its places of the namespace, and sessions go on.
    quick.state().tokens = json!({});
    let location = browser.begin("/").await;
    let answer = browser.get(&quick.authorize(&location)).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    gate.add_permits(8);
    assert_eq!(waiting.join_all().await, [302; 8]);
    browser.sign_in(&quick, "/").await;
}
