//! Tokens that an attacker or a confused provider sends: those that are not for a sign-in or a session begin and continue none.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::client::Answer;
use crate::issuer::{Issuer, now, with_hmac};
use crate::oidc_attacks::begins_session;
use crate::origin::Origin;
use crate::provider::{CLIENT, CLIENT_SECRET, Provider, SUBJECT, parse};
use crate::scene::Scene;

/// Signs in with what the provider does. Returns the response of the callback.
async fn sign_in(scene: &Scene, provider: &Provider) -> (Browser, Answer) {
    let mut browser = Browser::new(scene.at(80), "a.com").await;
    let location = browser.begin("/").await;
    let answer = browser.get(&provider.authorize(&location)).await;
    (browser, answer)
}

#[tokio::test]
async fn id_tokens_that_are_not_for_the_sign_in_are_refused() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for claims in [
        json!({"iss": "https://evil.example"}),
        json!({"iss": null}),
        json!({"aud": "other"}),
        json!({"aud": null}),
        json!({"aud": []}),
        json!({"azp": "other"}),
        json!({"aud": [CLIENT, "other"]}),
        json!({"aud": [CLIENT, "other"], "azp": "other"}),
        json!({"nonce": "other"}),
        json!({"nonce": null}),
        json!({"nonce": ["a", "b"]}),
        json!({"exp": now() - 120}),
        json!({"exp": null}),
        json!({"nbf": now() + 600}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"groups": vec!["a"; 300]}),
    ] {
        provider.state().claims = claims.clone();
        let (mut browser, answer) = sign_in(&scene, &provider).await;
        assert_eq!(
            (answer.status, begins_session(&answer)),
            (502, false),
            "{claims}"
        );
        assert_eq!(browser.send(Method::GET, "/", &[]).await.status, 401);
    }
    provider.behave();
    provider.state().claims = json!({"aud": [CLIENT, "other"], "azp": CLIENT});
    assert_eq!(sign_in(&scene, &provider).await.1.status, 302);
    assert_eq!(origin.requests(), 0);
}

/// A session stays that of its user: tokens of another sign-in, client, user or issuer, or that are over, end it.
#[tokio::test]
async fn refreshed_id_tokens_that_are_not_of_the_session_end_it() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for (claims, expected) in [
        (json!({}), 200),
        (json!({"nonce": null}), 200),
        (json!({"iss": "https://evil.example"}), 401),
        (json!({"iss": null}), 401),
        (json!({"aud": "other"}), 401),
        (json!({"aud": [CLIENT, "other"]}), 401),
        (json!({"azp": "other"}), 401),
        (json!({"sub": "mallory"}), 401),
        (json!({"sub": null}), 401),
        (json!({"nonce": "other"}), 401),
        (json!({"exp": now() - 120}), 401),
        (json!({"exp": null}), 401),
        (json!({"nbf": now() + 600}), 401),
    ] {
        provider.behave();
        provider.state().tokens = json!({"expires_in": 0});
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        browser.sign_in(&provider, "/").await;
        provider.state().claims = claims.clone();
        let answer = browser.send(Method::GET, "/", &[]).await;
        assert_eq!(answer.status, expected, "{claims}");
        let sets = answer.headers.contains_key("set-cookie");
        assert_eq!(sets, expected == 200, "{claims}");
    }
    assert_eq!(origin.requests(), 2);
}

/// Makes a token of claims.
type Forge = Box<dyn Fn(&Value) -> String>;

/// Tokens that the provider has not signed. Only the signature is wrong: all claims are right.
pub(crate) fn forgeries(key: &Value) -> Vec<(&'static str, Forge)> {
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = move |algorithm: &'static str| -> Forge {
        let header = encoded(&json!({"alg": algorithm, "kid": "one"}));
        Box::new(move |claims: &Value| format!("{header}.{}.", encoded(claims)))
    };
    let with_secret = move |secret: Vec<u8>| -> Forge {
        let header = encoded(&json!({"alg": "HS256", "kid": "one"}));
        Box::new(move |claims: &Value| {
            let message = format!("{header}.{}", encoded(claims));
            format!("{message}.{}", with_hmac(&secret, &message))
        })
    };
    let of_stranger = |change: fn(&mut Header, &Issuer)| -> Forge {
        let stranger = Issuer::new("one", Algorithm::ES256);
        let mut header = stranger.header();
        change(&mut header, &stranger);
        Box::new(move |claims: &Value| stranger.token_with(&header, claims))
    };
    let half = |name: &str| {
        let text = key[name].as_str().expect("a coordinate");
        URL_SAFE_NO_PAD.decode(text).expect("base64")
    };
    let point = [half("x"), half("y")].concat();
    vec![
        ("alg none", unsigned("none")),
        ("alg nOnE", unsigned("nOnE")),
        ("no signature", unsigned("ES256")),
        ("no text", Box::new(|_: &Value| "a.b.c".to_owned())),
        ("no header", Box::new(encoded)),
        (
            "secret of the client as key",
            with_secret(CLIENT_SECRET.into()),
        ),
        ("public key as shared key", with_secret(point)),
        (
            "text of the public key as shared key",
            with_secret(key.to_string().into()),
        ),
        ("key of another", of_stranger(|_, _| {})),
        ("no key name", of_stranger(|header, _| header.kid = None)),
        (
            "own key in the header",
            of_stranger(|header, stranger| {
                header.jwk = serde_json::from_value(stranger.jwk()).ok();
            }),
        ),
        (
            "own key set in the header",
            of_stranger(|header, _| header.jku = Some("https://evil.example/keys".to_owned())),
        ),
        (
            "own certificate in the header",
            of_stranger(|header, _| header.x5u = Some("https://evil.example/key".to_owned())),
        ),
    ]
}

#[tokio::test]
async fn forged_signatures_are_refused() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let mut claims =
        json!({"iss": provider.issuer(), "aud": CLIENT, "sub": SUBJECT, "exp": now() + 300});
    let key = provider.state().signer.jwk();
    for (name, forge) in forgeries(&key) {
        let mut browser = Browser::new(scene.at(80), "a.com").await;
        let location = browser.begin("/").await;
        let asked = parse(location.split_once('?').expect("a query").1.as_bytes());
        claims["nonce"] = json!(asked["nonce"]);
        provider.state().forged = Some(forge(&claims));
        let answer = browser.get(&provider.authorize(&location)).await;
        let outcome = (answer.status, begins_session(&answer));
        assert_eq!(outcome, (502, false), "{name}");
    }
    assert_eq!(origin.requests(), 0);
}

/// A name of a key is compared with those of the provider, and is nothing else: their keys are waited for.
#[tokio::test]
async fn name_of_a_key_that_is_a_path_leads_nowhere() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    let stranger = Issuer::new("../../../../dev/null", Algorithm::ES256);
    provider.state().signer = stranger;
    let (mut browser, answer) = sign_in(&scene, &provider).await;
    assert_eq!((answer.status, begins_session(&answer)), (503, false));
    assert_eq!(browser.send(Method::GET, "/", &[]).await.status, 401);
}

#[tokio::test]
async fn responses_of_the_token_endpoint_that_are_not_valid_are_refused() {
    let (origin, provider) = (Origin::echo("origin").await, Provider::start().await);
    let scene = provider.scene(&origin, &json!({})).await;
    for tokens in [
        json!({"id_token": null}),
        json!({"access_token": null}),
        json!({"token_type": "mac"}),
        json!({"token_type": null}),
        json!({"access_token": "a\r\nSet-Cookie: b=c"}),
        json!({"refresh_token": "x".repeat(17 * 1024)}),
        json!({"refresh_token": "x".repeat(15 * 1024)}),
    ] {
        provider.state().tokens = tokens.clone();
        let (_, answer) = sign_in(&scene, &provider).await;
        assert_eq!(
            (answer.status, begins_session(&answer)),
            (502, false),
            "{tokens}"
        );
    }
    provider.behave();
    for (status, text, expected) in [
        (200, "no JSON", 502),
        (200, "{}", 502),
        (302, "", 503),
        (401, r#"{"error": "invalid_client"}"#, 502),
        (400, r#"{"error": "invalid_grant"}"#, 400),
        (500, "{}", 503),
        (429, "{}", 503),
    ] {
        provider.state().failure = Some((status, text));
        let (_, answer) = sign_in(&scene, &provider).await;
        assert_eq!(
            (answer.status, begins_session(&answer)),
            (expected, false),
            "{status} {text}"
        );
    }
    assert_eq!(origin.requests(), 0);
}
