//! Forged JSON Web Tokens, which AccessPolicies refuse.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use serde_json::json;

use crate::access_policy::{access, before, gateway};
use crate::client::Client;
use crate::issuer::{Issuer, bearer, claims, jwt, signed, status, with_hmac};
use crate::origin::Origin;
use crate::scene::Scene;

type Attack = (&'static str, String);

fn base64(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// Tokens with another algorithm than that of the key `one`, or with a signature that is none.
fn of_other_algorithms(issuer: &Issuer, rsa: &Issuer) -> Vec<Attack> {
    let named = |name: &str| json!({"alg": name, "kid": "one"});
    let signature = |message: &str| {
        jsonwebtoken::crypto::sign(message.as_bytes(), &issuer.key, Algorithm::ES256)
            .expect("valid")
    };
    let of_rsa = json!({"alg": "HS256", "kid": "rsa"});
    let key = rsa.jwk();
    let modulus = key["n"].as_str().map(|n| URL_SAFE_NO_PAD.decode(n));
    let modulus = modulus.expect("a modulus").expect("base64");
    let zeros = URL_SAFE_NO_PAD.encode([0; 64]);
    vec![
        ("alg none", signed(&named("none"), |_| String::new())),
        ("alg None", signed(&named("None"), |_| String::new())),
        (
            "alg none, signed",
            signed(&named("none"), |it| with_hmac(b"a", it)),
        ),
        (
            "public key as shared key",
            signed(&of_rsa, |it| with_hmac(&modulus, it)),
        ),
        (
            "text of the public key as shared key",
            signed(&of_rsa, |it| with_hmac(key.to_string().as_bytes(), it)),
        ),
        (
            "empty shared key",
            signed(&named("HS256"), |it| with_hmac(b"", it)),
        ),
        ("lower-case algorithm", signed(&named("es256"), signature)),
        (
            "algorithm of another key",
            signed(&named("RS256"), signature),
        ),
        ("other curve", signed(&named("ES384"), signature)),
        (
            "without algorithm",
            signed(&json!({"kid": "one"}), signature),
        ),
        ("signature of zeros", signed(&named("ES256"), |_| zeros)),
    ]
}

/// Changes of the text of a valid token.
fn of_other_text(valid: &str) -> Vec<Attack> {
    let parts: Vec<&str> = valid.split('.').collect();
    let [header, payload, signature] = parts[..] else {
        unreachable!("a token has three parts")
    };
    let root = base64(&claims(&json!({"sub": "root"})).to_string());
    vec![
        ("without signature", format!("{header}.{payload}.")),
        ("two parts", format!("{header}.{payload}")),
        ("four parts", format!("{valid}.{signature}")),
        ("another payload", format!("{header}.{root}.{signature}")),
        ("cut signature", valid[..valid.len() - 4].to_owned()),
        ("padding", format!("{valid}=")),
        ("oversized", format!("{valid}{}", "a".repeat(8 * 1024))),
        ("empty", String::new()),
        ("dots", "..".to_owned()),
        ("no token", "canary".to_owned()),
    ]
}

/// Tokens whose header names a key that the issuer does not have.
fn of_other_keys(issuer: &Issuer) -> Vec<Attack> {
    let evil = Issuer::new("one", Algorithm::ES256);
    let of = |issuer: &Issuer, change: &dyn Fn(&mut Header)| {
        let mut header = issuer.header();
        change(&mut header);
        issuer.token_with(&header, &claims(&json!({})))
    };
    let named = |id: &str| of(&evil, &|header| header.kid = Some(id.to_owned()));
    let key = serde_json::from_value(evil.jwk()).ok();
    let url = || Some("https://evil.example.com/keys".to_owned());
    vec![
        ("key of another", of(&evil, &|_| {})),
        ("unknown key", named("two")),
        ("no key name", of(&evil, &|header| header.kid = None)),
        ("key name as path", named("../../../../dev/null")),
        ("key name as query", named("' UNION SELECT 'key")),
        (
            "own key in the header",
            of(&evil, &|header| header.jwk.clone_from(&key)),
        ),
        (
            "own key set in the header",
            of(&evil, &|header| header.jku = url()),
        ),
        (
            "own certificate in the header",
            of(&evil, &|header| header.x5u = url()),
        ),
        (
            "name of another key",
            of(issuer, &|header| header.kid = Some("rsa".to_owned())),
        ),
        (
            "critical header",
            of(issuer, &|header| header.crit = Some(vec!["b64".to_owned()])),
        ),
    ]
}

#[tokio::test]
async fn forged_tokens_are_refused() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let rsa = Issuer::new("rsa", Algorithm::RS256);
    let policy = access("a", &gateway(), &jwt(&[issuer.jwk(), rsa.jwk()]));
    let scene = Scene::start(&before(&origin, &[policy]));
    let valid = issuer.token(&claims(&json!({})));
    let attacks = [
        of_other_algorithms(&issuer, &rsa),
        of_other_text(&valid),
        of_other_keys(&issuer),
    ]
    .concat();
    for mut client in Client::both(scene.at(80)).await {
        assert_eq!(status(&mut client, &valid).await, 200);
        for (name, token) in &attacks {
            let value = bearer(token);
            let headers = [("authorization", value.trim_end())];
            let answer = client.get_with("a.com", "/", &headers).await;
            assert_eq!(answer.status, 401, "{name}");
            let challenge = answer.header("www-authenticate").to_owned();
            assert!(challenge.starts_with("Bearer"), "{name}: {challenge}");
        }
        let value = bearer(&valid);
        for headers in [
            vec![("authorization", &*value), ("authorization", &*value)],
            vec![("authorization", &*valid)],
            vec![("proxy-authorization", &*value)],
            vec![("cookie", &*value)],
        ] {
            let answer = client.get_with("a.com", "/", &headers).await;
            assert_eq!(answer.status, 401, "{headers:?}");
        }
        let in_query = format!("/?access_token={valid}");
        assert_eq!(client.get("a.com", &in_query).await.status, 401);
        // What was refused has forgotten nothing.
        assert_eq!(status(&mut client, &valid).await, 200);
    }
    assert_eq!(origin.requests(), 4);
}
