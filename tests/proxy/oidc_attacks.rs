//! What an attacker may try with sign-ins and sessions: responses of providers that browsers did not ask for, and cookies of
//! others.

use http::{Method, Response};
use serde_json::json;

use crate::access_policy::gateway;
use crate::browser::{Browser, Cookie};
use crate::client::Answer;
use crate::origin::{Origin, empty};
use crate::provider::{Provider, form, parse};
use crate::route_policy::policy;

/// Reports whether a response begins a session.
pub(crate) fn begins_session(answer: &Answer) -> bool {
    let cookies = answer.headers.get_all("set-cookie").iter();
    let mut cookies = cookies.map(|it| it.to_str().expect("text"));
    let others = ["-login-", "-browser-", "Max-Age=0"];
    cookies.any(|it| !others.iter().any(|other| it.contains(other)))
}

type Parameters = Vec<(String, String)>;

fn set(parameters: &mut Parameters, name: &str, value: &str) {
    parameters.retain(|(it, _)| it != name);
    parameters.push((name.to_owned(), value.to_owned()));
}

/// Changes of the response to an authorization request, and what the browser gets for it.
#[tokio::test]
async fn responses_that_the_provider_did_not_send_are_refused() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let without = |name: &'static str| {
        Box::new(move |it: &mut Parameters| it.retain(|(other, _)| other != name))
    };
    let with = |name: &'static str, value: &'static str| {
        Box::new(move |it: &mut Parameters| set(it, name, value))
    };
    let twice = |name: &'static str| {
        Box::new(move |it: &mut Parameters| {
            let again = it.iter().find(|(other, _)| other == name).cloned();
            it.extend(again);
        })
    };
    let failed = |error: &'static str| {
        Box::new(move |it: &mut Parameters| {
            it.retain(|(other, _)| other != "code");
            set(it, "error", error);
            set(it, "error_description", "<script>alert(1)</script>");
        })
    };
    type Change = Box<dyn Fn(&mut Parameters)>;
    let rows: Vec<(&str, Change, u16)> = vec![
        ("no state", without("state"), 400),
        ("empty state", with("state", ""), 400),
        (
            "unknown state",
            with("state", "65f0a1b2AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
            400,
        ),
        (
            "state without the time of its sign-in",
            with("state", "xAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
            400,
        ),
        ("state too short", with("state", "65f0a1b2AAAAAAA"), 400),
        (
            "state with a character across the end of the identifier",
            with("state", "65f0a1b2AAAAAAA\u{e9}AAAAAAAAAAAAAAAAAAAAAAAA"),
            400,
        ),
        ("state twice", twice("state"), 400),
        ("no code", without("code"), 400),
        ("empty code", with("code", ""), 400),
        ("code twice", twice("code"), 400),
        (
            "code that the provider did not issue",
            with("code", "forged"),
            400,
        ),
        ("code and error", with("error", "access_denied"), 400),
        ("foreign issuer", with("iss", "https://evil.example"), 400),
        ("empty issuer", with("iss", ""), 400),
        ("user has denied", failed("access_denied"), 403),
        ("sign-in needed", failed("login_required"), 403),
        ("provider is down", failed("temporarily_unavailable"), 503),
        ("client is unknown", failed("unauthorized_client"), 502),
        ("text instead of a code", failed("<b>"), 502),
    ];
    for (name, change, expected) in rows {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin("/").await;
        let (mut parameters, path) = provider.approve(&location);
        change(&mut parameters);
        let answer = browser.get(&format!("{path}?{}", form(&parameters))).await;
        assert_eq!(answer.status, expected, "{name}: {}", answer.text());
        assert!(!begins_session(&answer), "{name}");
        assert!(!answer.text().contains('<'), "{name}: {}", answer.text());
        assert_eq!(
            browser.send(Method::GET, "/", &[]).await.status,
            401,
            "{name}"
        );
    }
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn sign_ins_belong_to_the_browser_that_has_begun_them() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut victim = Browser::new(scene.at(80), "a.com").await;
    let mut attacker = Browser::new(scene.at(80), "a.com").await;
    let of_attacker = attacker.begin("/").await;
    let of_attacker = provider.authorize(&of_attacker);
    // A browser that has begun none, and one that has begun another.
    assert_eq!(victim.get(&of_attacker).await.status, 400);
    let of_victim = victim.begin("/").await;
    assert_eq!(victim.get(&of_attacker).await.status, 400);
    // The code of the attacker with the state of the victim: PKCE binds it.
    let (mut parameters, path) = provider.approve(&of_victim);
    let code = of_attacker.split("code=").nth(1).expect("a code");
    set(
        &mut parameters,
        "code",
        code.split('&').next().expect("a code"),
    );
    let answer = victim.get(&format!("{path}?{}", form(&parameters))).await;
    assert_eq!((answer.status, begins_session(&answer)), (400, false));
    // The cookie of one login under the name of another.
    victim.cookies.clear();
    let first = victim.begin("/").await;
    let callback = provider.authorize(&first);
    let mut swapped = Browser::new(scene.at(80), "a.com").await;
    swapped.begin("/").await;
    swapped.take_names_of(&victim);
    assert_eq!(swapped.get(&callback).await.status, 400);
    // A cookie that was changed.
    let good = victim.cookies.clone();
    for index in [0, 20, good[0].value.len() - 1] {
        let mut changed = good[0].value.clone().into_bytes();
        changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
        victim.cookies.clone_from(&good);
        victim.cookies[0].value = String::from_utf8(changed).expect("text");
        assert_eq!(victim.get(&callback).await.status, 400, "{index}");
    }
    victim.cookies = good;
    assert_eq!(victim.get(&callback).await.status, 302);
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn sign_ins_end_once() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/").await;
    let callback = provider.authorize(&location);
    let login = browser.cookies.clone();
    let post = browser.send(Method::POST, &callback, &[]).await;
    assert_eq!(post.status, 400);
    assert_eq!(browser.get(&callback).await.status, 302);
    let session = browser.session().expect("a session").clone();
    // Again: the cookie of the sign-in has left, and with it, the provider does not take the code twice.
    assert_eq!(browser.get(&callback).await.status, 400);
    browser.cookies = login.clone();
    let answer = browser.get(&callback).await;
    assert_eq!((answer.status, begins_session(&answer)), (400, false));
    assert!(answer.text().contains("code"), "{}", answer.text());
    // The cookie of a sign-in is no session, and a session is no sign-in.
    browser.cookies = vec![Cookie {
        value: format!("1.{}", login[0].value),
        ..session.clone()
    }];
    assert_eq!(browser.send(Method::GET, "/", &[]).await.status, 401);
    browser.cookies.clone_from(&login);
    browser.cookies[0].value = session.value[2..].to_owned();
    assert_eq!(browser.get(&callback).await.status, 400);
    let long = format!("{callback}&x={}", "a".repeat(8 * 1024));
    browser.cookies = login;
    assert_eq!(browser.get(&long).await.status, 400);
}

/// Who changes the request to the provider, or brings a code of another sign-in, gets no session: by the verifier, and by the
/// nonce if the provider does not look at the verifier.
#[tokio::test]
async fn codes_of_other_sign_ins_are_refused_with_and_without_the_verifier() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for (ignores_verifier, name, expected) in [
        (false, "code_challenge", 400),
        (false, "nonce", 502),
        (true, "nonce", 502),
        (true, "code_challenge", 302),
    ] {
        provider.state().ignores_verifier = ignores_verifier;
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin("/").await;
        let (endpoint, query) = location.split_once('?').expect("a query");
        let mut asked: Parameters = parse(query.as_bytes()).into_iter().collect();
        set(&mut asked, name, "of-the-attacker");
        let changed = format!("{endpoint}?{}", form(&asked));
        let answer = browser.get(&provider.authorize(&changed)).await;
        assert_eq!(answer.status, expected, "{ignores_verifier} {name}");
        assert_eq!(begins_session(&answer), expected == 302, "{name}");
    }
    // The whole response to a sign-in of the attacker, with the state of the victim.
    let mut attacker = Browser::new(scene.at(80), "a.com").await;
    let (of_attacker, _) = provider.approve(&attacker.begin("/").await);
    let mut victim = Browser::new(scene.at(80), "a.com").await;
    let (of_victim, path) = provider.approve(&victim.begin("/").await);
    let of_victim = of_victim.into_iter().filter(|(name, _)| name == "state");
    let of_attacker = of_attacker.into_iter().filter(|(name, _)| name != "state");
    let mixed: Parameters = of_victim.chain(of_attacker).collect();
    let answer = victim.get(&format!("{path}?{}", form(&mixed))).await;
    assert_eq!((answer.status, begins_session(&answer)), (502, false));
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn responses_need_the_issuer_if_the_provider_announces_it() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    provider.state().sends_issuer = true;
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/").await;
    let (mut parameters, path) = provider.approve(&location);
    parameters.retain(|(name, _)| name != "iss");
    let answer = browser.get(&format!("{path}?{}", form(&parameters))).await;
    assert_eq!(answer.status, 400);
    browser.sign_in(&provider, "/").await;
    browser.get("/").await.received();
}

#[tokio::test]
async fn sessions_that_were_changed_or_mixed_are_none() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider
        .scene(&origin, &json!({"cookie": {"name": "s"}}))
        .await;
    provider.state().claims = json!({"note": "x".repeat(4000)});
    let mut one = Browser::new(scene.at(80), "a.com").await;
    let mut two = Browser::new(scene.at(80), "a.com").await;
    one.sign_in(&provider, "/").await;
    two.sign_in(&provider, "/").await;
    for browser in [&mut one, &mut two] {
        browser.cookies.retain(|it| !it.name.contains("-browser-"));
    }
    let good = one.cookies.clone();
    assert!(good.len() >= 2 && good.len() == two.cookies.len());
    let changed = |index: usize, change: &dyn Fn(&mut String)| {
        let mut cookies = good.clone();
        change(&mut cookies[index].value);
        cookies
    };
    let flip = |at: usize| {
        move |value: &mut String| {
            let byte = if &value[at..=at] == "A" { "B" } else { "A" };
            value.replace_range(at..=at, byte);
        }
    };
    let mut mixed = good.clone();
    mixed[1] = two.cookies[1].clone();
    let mut reversed = good.clone();
    let (first, second) = (good[0].value.clone(), good[1].value.clone());
    (reversed[0].value, reversed[1].value) = (format!("2.{second}"), first[2..].to_owned());
    for (name, cookies) in [
        ("changed", changed(0, &flip(100))),
        ("changed at the end", changed(1, &flip(10))),
        ("cut off", changed(1, &|it| it.truncate(it.len() - 4))),
        ("longer", changed(1, &|it| it.push_str("AAAA"))),
        ("too few parts", good[..1].to_vec()),
        (
            "number of parts is smaller",
            changed(0, &|it| it.replace_range(0..1, "1")),
        ),
        (
            "number of parts is larger",
            changed(0, &|it| it.replace_range(0..1, "5")),
        ),
        (
            "number of parts is no number",
            changed(0, &|it| it.replace_range(0..1, "-")),
        ),
        ("parts of two sessions", mixed),
        ("parts in another order", reversed),
        ("empty", changed(0, &|it| it.clear())),
        (
            "oversized",
            changed(0, &|it| it.push_str(&"A".repeat(20_000))),
        ),
    ] {
        one.cookies = cookies;
        let answer = one.send(Method::GET, "/", &[]).await;
        assert_eq!(answer.status, 401, "{name}");
    }
    one.cookies = good;
    one.get("/").await.received();
    assert_eq!(origin.requests(), 1);
}

/// A cache in front that stored a response with the cookies of a session would give these to other clients.
#[tokio::test]
async fn responses_with_cookies_of_sessions_are_in_no_cache() {
    const PUBLIC: &str = "public, max-age=600";
    let origin = Origin::new(|_| async {
        let response = Response::builder().header("cache-control", PUBLIC);
        response.body(empty()).expect("a response")
    });
    let (origin, provider) = (origin.await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    provider.state().tokens = json!({"expires_in": 0});
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    browser.sign_in(&provider, "/").await;
    provider.state().tokens = json!({});
    for (sets_cookies, expected) in [(true, "no-store"), (false, PUBLIC)] {
        let answer = browser.get("/a.css").await;
        let sets = answer.headers.contains_key("set-cookie");
        assert_eq!((answer.status, sets), (200, sets_cookies));
        assert_eq!(answer.header("cache-control"), expected);
    }
}

/// What policies say of headers is for the responses of backends and pages, of which browsers may share some.
#[tokio::test]
async fn policies_leave_cookies_of_sessions_alone() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let public = json!([{"name": "Cache-Control", "value": "public, max-age=600"}]);
    let changes = json!({"responseHeaders": {"set": public, "remove": ["Set-Cookie"]}});
    let objects = provider.objects(&origin, &json!({}));
    let objects = objects.with(policy("changes", &gateway(), &changes));
    let scene = provider.serve(&objects).await;
    provider.state().tokens = json!({"expires_in": 0});
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let answer = browser.get("/").await;
    assert_eq!(answer.header("cache-control"), "no-store", "the beginning");
    let location = answer.header("location").to_owned();
    let answer = browser.get(&provider.authorize(&location)).await;
    assert!(begins_session(&answer), "{answer:?}");
    assert_eq!(answer.header("cache-control"), "no-store", "the end");
    // The session is refreshed.
    provider.state().tokens = json!({});
    let answer = browser.get("/").await;
    assert_eq!((answer.status, begins_session(&answer)), (200, true));
    assert_eq!(answer.header("cache-control"), "no-store", "the session");
    let answer = browser.get("/").await;
    assert_eq!((answer.status, begins_session(&answer)), (200, false));
    assert_eq!(answer.header("cache-control"), "public, max-age=600");
}

#[tokio::test]
async fn many_sign_ins_take_sixteen_cookies() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let mut last = String::new();
    for number in 0..60 {
        last = browser.begin(&format!("/{number}")).await;
    }
    // Each of eight has one that tells the browser from others.
    assert_eq!(browser.cookies.len(), 16);
    let answer = browser.get(&provider.authorize(&last)).await;
    assert_eq!(answer.header("location"), "http://a.com/59");
}
