//! Sessions that the provider ends by a request of its own (OpenID Connect Back-Channel Logout 1.0), and requests that end none.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http::{Method, Request};
use jsonwebtoken::Algorithm;
use portcullis::peers::Peers;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::browser::Browser;
use crate::client::{Answer, Client};
use crate::harness::TEST_TIMEOUT;
use crate::issuer::{Issuer, now};
use crate::oidc_attacks::begins_session;
use crate::oidc_tokens::forgeries;
use crate::origin::{Origin, Payload, full};
use crate::provider::{CLIENT, Provider, SUBJECT, change, form, permitted, until_discovered};
use crate::scene::{Objects, Scene};

const PATH: &str = "/oauth2/backchannel-logout";
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: (&str, &str) = ("accept", "application/json");

/// Serves a policy that lets the provider end sessions.
async fn serve(origin: &Origin, provider: &Provider) -> Scene {
    let changes = json!({"backChannelLogoutPath": PATH});
    provider.scene(origin, &changes).await
}

/// Serves objects with the key of sessions of a file.
async fn serve_with(objects: &Objects, key: &Path) -> Scene {
    let scene = Scene::with(objects, |settings| {
        permitted(settings);
        settings.session_key_file = Some(key.to_owned());
    });
    until_discovered(&scene, ("a.com", "/")).await;
    scene
}

/// Signs a browser in, in a session of the provider.
async fn signed_in(scene: &Scene, provider: &Provider, claims: &Value) -> Browser {
    provider.state().claims = claims.clone();
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(provider, "/").await;
    browser
}

async fn status(browser: &mut Browser) -> u16 {
    browser.send(Method::GET, "/", &[JSON]).await.status
}

/// The claims of a new logout token, with changes; null removes one.
fn claims(provider: &Provider, changes: &Value) -> Value {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let id = SERIAL.fetch_add(1, Relaxed).to_string();
    let mut claims = json!({
        "iss": provider.issuer(), "aud": CLIENT, "iat": now(), "exp": now() + 120, "jti": id,
        "sub": SUBJECT, "sid": "one", "events": {EVENT: {}},
    });
    change(&mut claims, changes);
    claims
}

/// Returns a token with claims that the provider has signed.
fn signed(provider: &Provider, claims: &Value, typ: Option<&str>) -> String {
    let state = provider.state();
    let mut header = state.signer.header();
    header.typ = typ.map(str::to_owned);
    state.signer.token_with(&header, claims)
}

fn logout_token(provider: &Provider, changes: &Value) -> String {
    signed(provider, &claims(provider, changes), Some("logout+jwt"))
}

fn form_with(token: &str) -> String {
    form(&[("logout_token".to_owned(), token.to_owned())])
}

async fn post_to(scene: &Scene, host: &str, token: &str) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    let request = client.request(Method::POST, host, PATH);
    let request = request.header("content-type", FORM);
    let request = request.body(full(form_with(token)));
    client.fetch(request.expect("a request")).await
}

async fn post(scene: &Scene, token: &str) -> Answer {
    post_to(scene, "a.com", token).await
}

/// Checks that a request was refused, in the form of RFC 6749, 5.2.
fn assert_refused(answer: &Answer, name: &str) {
    assert_eq!(answer.status, 400, "{name}: {}", answer.text());
    assert_eq!(answer.header("cache-control"), "no-store", "{name}");
    assert_eq!(answer.header("content-type"), "application/json", "{name}");
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"], "invalid_request", "{name}");
}

#[tokio::test]
async fn provider_ends_one_session() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut one = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let mut two = signed_in(&scene, &provider, &json!({"sid": "two"})).await;
    // Both are remembered as opened.
    assert_eq!((status(&mut one).await, status(&mut two).await), (200, 200));
    let answer = post(&scene, &logout_token(&provider, &json!({}))).await;
    assert_eq!((answer.status, answer.text()), (200, ""));
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!((status(&mut one).await, status(&mut two).await), (401, 200));
    // The user is sent to the provider again, and a session of the same name begins.
    let mut again = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let location = one.sign_in(&provider, "/page").await;
    assert_eq!(location, "http://a.com/page");
    assert_eq!(
        (status(&mut one).await, status(&mut again).await),
        (200, 200)
    );
}

#[tokio::test]
async fn provider_ends_all_sessions_of_a_user() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut one = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let mut unnamed = signed_in(&scene, &provider, &json!({})).await;
    let mut other = signed_in(&scene, &provider, &json!({"sub": "bob"})).await;
    // It has begun before the end, and ends after it.
    let mut late = Browser::new(scene.at(80), "a.com").await;
    let location = late.begin("/").await;
    let token = logout_token(&provider, &json!({"sid": null, "exp": null}));
    assert_eq!(post(&scene, &token).await.status, 200);
    provider.behave();
    late.get(&provider.authorize(&location)).await;
    assert!(late.session().is_some());
    for (browser, expected) in [
        (&mut one, 401),
        (&mut unnamed, 401),
        (&mut late, 401),
        (&mut other, 200),
    ] {
        assert_eq!(status(browser).await, expected);
    }
}

/// A session of an ID token without `sid` may be the one that a logout token names.
#[tokio::test]
async fn session_without_a_name_ends_with_its_user() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut unnamed = signed_in(&scene, &provider, &json!({})).await;
    let token = logout_token(&provider, &json!({"sub": null}));
    assert_eq!(post(&scene, &token).await.status, 200);
    assert_eq!(status(&mut unnamed).await, 200);
    let token = logout_token(&provider, &json!({}));
    assert_eq!(post(&scene, &token).await.status, 200);
    assert_eq!(status(&mut unnamed).await, 401);
}

/// The name of a session is that of its sign-in, also if a refreshed ID token has none.
#[tokio::test]
async fn refreshed_session_keeps_its_name() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    provider.state().tokens = json!({"expires_in": 0});
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    provider.behave();
    assert_eq!(status(&mut browser).await, 200);
    assert_eq!(provider.asked("refresh_token"), 1);
    let token = logout_token(&provider, &json!({"sub": null}));
    assert_eq!(post(&scene, &token).await.status, 200);
    assert_eq!(status(&mut browser).await, 401);
}

#[tokio::test]
async fn refresh_does_not_revive_a_session() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    provider.state().tokens = json!({"expires_in": 0});
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let mut other = Browser::new(scene.at(80), "a.com").await;
    other.cookies.clone_from(&browser.cookies);
    let gate = Arc::new(Semaphore::new(0));
    {
        let mut state = provider.state();
        (state.tokens, state.gate) = (json!({}), Some(gate.clone()));
    }
    let before = provider.origin.requests();
    let refreshing = tokio::spawn(async move { browser.send(Method::GET, "/", &[JSON]).await });
    provider.origin.until_requests(before + 1).await;
    let token = logout_token(&provider, &json!({}));
    assert_eq!(post(&scene, &token).await.status, 200);
    gate.add_permits(1);
    let answer = refreshing.await.expect("an answer");
    assert_eq!((answer.status, begins_session(&answer)), (401, false));
    // The new session is known for the old cookie.
    assert_eq!(status(&mut other).await, 401);
    assert_eq!((provider.asked("refresh_token"), origin.requests()), (1, 0));
}

/// A process that has begun later does not know what the provider has ended before.
#[tokio::test]
async fn sessions_of_former_processes_are_refreshed_first() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let objects = provider.objects(&origin, &json!({"backChannelLogoutPath": PATH}));
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "1".repeat(40)).expect("written");
    let before = serve_with(&objects, &key).await;
    let mut good = signed_in(&before, &provider, &json!({})).await;
    provider.state().tokens = json!({"refresh_token": "ended"});
    let mut ended = signed_in(&before, &provider, &json!({})).await;
    provider.state().tokens = json!({"refresh_token": null});
    let mut without = signed_in(&before, &provider, &json!({})).await;
    provider.behave();
    let issued = now();
    while now() == issued {
        // The times of tokens are seconds.
        sleep(Duration::from_millis(5)).await;
    }
    let after = serve_with(&objects, &key).await;
    for (browser, expected, asked) in [
        (&mut good, 200, 1),
        (&mut ended, 401, 2),
        (&mut without, 401, 2),
    ] {
        browser.client = Client::http1(after.at(80)).await;
        assert_eq!(status(browser).await, expected);
        assert_eq!(provider.asked("refresh_token"), asked);
    }
    // Once.
    assert_eq!(status(&mut good).await, 200);
    assert_eq!(provider.asked("refresh_token"), 2);
}

/// Makes a process one of two pods of a Gateway.
fn pod(scene: &Scene, own: (&str, IpAddr), other: (&str, IpAddr), port: u16) -> Peers {
    let table = scene.state().table.clone();
    let peers = Peers::new(SocketAddr::new(own.1, port), table.clone());
    peers.set_secret("the secret of the Gateway");
    peers.set_pods(own.0, [own, other]);
    peers.follow(&table.load());
    peers
}

/// Waits until a session has ended.
async fn until_ended(browser: &mut Browser) {
    let ended = async {
        while status(browser).await != 401 {
            // The pods talk meanwhile.
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, ended).await.expect("in time");
}

/// The provider asks one pod. The others hear of it, also those that were away, and those that drain.
#[tokio::test]
async fn all_pods_of_a_gateway_end_sessions() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let objects = provider.objects(&origin, &json!({"backChannelLogoutPath": PATH}));
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "1".repeat(40)).expect("written");
    let one = serve_with(&objects, &key).await;
    let two = serve_with(&objects, &key).await;
    let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let pods = [("one", address(1)), ("two", address(2))];
    let free = TcpListener::bind((pods[0].1, 0)).await.expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let peers_of_one = pod(&one, pods[0], pods[1], port);
    let mut first = signed_in(&one, &provider, &json!({"sid": "one"})).await;
    let mut second = signed_in(&one, &provider, &json!({"sid": "two"})).await;
    for browser in [&mut first, &mut second] {
        browser.client = Client::http1(two.at(80)).await;
        assert_eq!(status(browser).await, 200);
    }
    // The other pod does not listen yet.
    let token = logout_token(&provider, &json!({}));
    assert_eq!(post(&one, &token).await.status, 200);
    let peers_of_two = pod(&two, pods[1], pods[0], port);
    until_ended(&mut first).await;
    assert_eq!(status(&mut second).await, 200);
    // It has heard of the token itself, which counts once.
    assert_refused(&post(&two, &token).await, "sent before");
    let token = logout_token(&provider, &json!({"sid": "two"}));
    assert_eq!(post(&one, &token).await.status, 200);
    until_ended(&mut second).await;
    // A session that begins later goes on at both.
    let mut later = signed_in(&one, &provider, &json!({"sid": "two"})).await;
    for scene in [&one, &two] {
        later.client = Client::http1(scene.at(80)).await;
        assert_eq!(status(&mut later).await, 200);
    }
    // A pod that drains is in no list, and still serves the clients that it has.
    for (peers, own) in [(&peers_of_one, pods[0]), (&peers_of_two, pods[1])] {
        peers.set_pods(own.0, [pods[0]]);
    }
    let token = logout_token(&provider, &json!({"sid": "two"}));
    assert_eq!(post(&one, &token).await.status, 200);
    until_ended(&mut later).await;
    [peers_of_one, peers_of_two].iter().for_each(Peers::join);
}

#[tokio::test]
async fn provider_may_ask_at_a_host_without_sessions() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let changes = json!({"backChannelLogoutPath": PATH, "cookie": {"domain": "a.com"}});
    let scene = provider.scene(&origin, &changes).await;
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let token = logout_token(&provider, &json!({}));
    let answer = post_to(&scene, "internal.example", &token).await;
    assert_eq!(answer.status, 200);
    assert_eq!(status(&mut browser).await, 401);
}

#[tokio::test]
async fn tokens_that_are_no_logout_tokens_end_nothing() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    for changes in [
        json!({"iss": "https://evil.example"}),
        json!({"iss": null}),
        json!({"aud": "other"}),
        json!({"aud": ["other"]}),
        json!({"aud": null}),
        json!({"nonce": "n"}),
        json!({"events": null}),
        json!({"events": {"http://schemas.openid.net/event/other": {}}}),
        json!({"events": {EVENT: "yes"}}),
        json!({"jti": null}),
        json!({"sid": null, "sub": null}),
        json!({"sid": ["one"]}),
        json!({"exp": now() - 120}),
        json!({"iat": null}),
        json!({"iat": now() - 600}),
        json!({"iat": now() + 600}),
        json!({"nbf": now() + 600}),
    ] {
        let answer = post(&scene, &logout_token(&provider, &changes)).await;
        assert_refused(&answer, &changes.to_string());
    }
    let good = claims(&provider, &json!({}));
    let of_api = signed(&provider, &good, Some("at+jwt"));
    assert_refused(&post(&scene, &of_api).await, "access token");
    let key = provider.state().signer.jwk();
    for (name, forge) in forgeries(&key) {
        assert_refused(&post(&scene, &forge(&good)).await, name);
    }
    assert_eq!(status(&mut browser).await, 200);
    // None of them has used up the name of the token.
    let token = signed(&provider, &good, None);
    assert_eq!(post(&scene, &token).await.status, 200);
    assert_eq!(status(&mut browser).await, 401);
}

#[tokio::test]
async fn token_ends_sessions_once() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let token = logout_token(&provider, &json!({"sid": null}));
    assert_eq!(post(&scene, &token).await.status, 200);
    let mut browser = signed_in(&scene, &provider, &json!({})).await;
    assert_refused(&post(&scene, &token).await, "sent before");
    assert_eq!(status(&mut browser).await, 200);
}

#[tokio::test]
async fn requests_that_are_no_form_with_a_token_end_nothing() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let good = form_with(&logout_token(&provider, &json!({})));
    let long = format!("{good}&x={}", "a".repeat(16 * 1024));
    let with_query = format!("{PATH}?{good}");
    let mut client = Client::http1(scene.at(80)).await;
    for (name, method, target, media_type, body) in [
        ("GET", Method::GET, &*with_query, FORM, ""),
        ("PUT", Method::PUT, PATH, FORM, &*good),
        ("query", Method::POST, &*with_query, FORM, ""),
        ("no form", Method::POST, PATH, "application/json", &*good),
        ("no type", Method::POST, PATH, "", &*good),
        ("no token", Method::POST, PATH, FORM, "token=a"),
        (
            "two tokens",
            Method::POST,
            PATH,
            FORM,
            &*format!("{good}&{good}"),
        ),
        ("too large", Method::POST, PATH, FORM, &*long),
    ] {
        let request = client.request(method, "a.com", target);
        let request = request.header("content-type", media_type);
        let request: Request<Payload> = request.body(full(body.to_owned())).expect("a request");
        assert_refused(&client.fetch(request).await, name);
        client = Client::http1(scene.at(80)).await;
    }
    // Backends do not get it, whoever asks.
    let answer = browser.send(Method::GET, PATH, &[JSON]).await;
    assert_refused(&answer, "with a session");
    assert_eq!((status(&mut browser).await, origin.requests()), (200, 1));
    let mut client = Client::http2(scene.at(80)).await;
    let request = client.request(Method::POST, "a.com", PATH);
    let request = request.header("content-type", format!("{FORM}; charset=utf-8"));
    let request = request.body(full(good)).expect("a request");
    assert_eq!(client.fetch(request).await.status, 200);
    assert_eq!(status(&mut browser).await, 401);
}

#[tokio::test]
async fn provider_asks_again_while_its_key_is_unknown() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = serve(&origin, &provider).await;
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let stranger = Issuer::new("two", Algorithm::EdDSA);
    let answer = post(&scene, &stranger.token(&claims(&provider, &json!({})))).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "10"));
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"], "temporarily_unavailable");
    assert_eq!(status(&mut browser).await, 200);
}

#[tokio::test]
async fn policy_without_the_path_ends_nothing() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = signed_in(&scene, &provider, &json!({"sid": "one"})).await;
    let token = logout_token(&provider, &json!({}));
    assert_eq!(post(&scene, &token).await.status, 401);
    assert_eq!(status(&mut browser).await, 200);
}
