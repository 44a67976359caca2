//! Requests and responses of token endpoints, and how often one is asked for a session.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::grant::{Granted, read, request};
use super::refreshes::{Joined, Refreshes, key};
use super::*;
use crate::https::WholeResponse;
use crate::ir::oidc::{self as ir, ClientSecret, Endpoints};
use crate::ir::sharing::Text;

fn policy() -> ObjectRef {
    ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "policy")
}

fn oidc(client: &str, secret: Option<&str>) -> ir::Oidc {
    ir::Oidc {
        client_id: client.into(),
        client_secret: secret.map(ClientSecret::new),
        ..ir::Oidc::sample()
    }
}

fn endpoints(secret_in_form: bool) -> Endpoints {
    Endpoints {
        authorization: "https://a.example/auth".parse().unwrap(),
        token: "https://a.example/token".parse().unwrap(),
        end_session: None,
        secret_in_form,
        sends_issuer: false,
    }
}

/// Returns the header `Authorization` and the form of a request.
async fn sent(oidc: &ir::Oidc, in_form: bool) -> (Option<String>, BTreeMap<String, String>) {
    let granted = Granted::RefreshToken("a&b".into());
    let request = request(oidc, &endpoints(in_form), &granted).unwrap();
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let form = form_urlencoded::parse(&body).into_owned().collect();
    let header = head.headers.get("authorization");
    let basic = header.map(|it| {
        it.to_str()
            .unwrap()
            .strip_prefix("Basic ")
            .unwrap()
            .to_owned()
    });
    let text = basic.map(|it| String::from_utf8(STANDARD.decode(it).unwrap()).unwrap());
    (text, form)
}

#[tokio::test]
async fn client_authenticates_as_the_provider_wants_it() {
    let (header, form) = sent(&oidc("a:b", Some("c d%")), false).await;
    assert_eq!(header.as_deref(), Some("a%3Ab:c+d%25"));
    assert!(!form.contains_key("client_secret") && !form.contains_key("client_id"));
    assert_eq!(form["refresh_token"], "a&b");
    let (header, form) = sent(&oidc("a:b", Some("c d%")), true).await;
    assert_eq!(header, None);
    assert_eq!(
        (&*form["client_id"], &*form["client_secret"]),
        ("a:b", "c d%")
    );
    let (header, form) = sent(&oidc("a", None), false).await;
    assert_eq!((header, &*form["client_id"]), (None, "a"));
    assert!(!form.contains_key("client_secret"));
}

fn response(status: u16, body: &Value) -> WholeResponse {
    WholeResponse {
        status: StatusCode::from_u16(status).unwrap(),
        body: Bytes::from(body.to_string()),
    }
}

#[test]
fn responses_have_tokens() {
    let good = json!({
        "access_token": "a", "token_type": "bearer", "expires_in": "300", "id_token": "i", "refresh_token": "r",
    });
    let tokens = read(&response(200, &good)).unwrap();
    assert_eq!((&*tokens.access_token, tokens.expires_in), ("a", Some(300)));
    for (name, value) in [
        ("token_type", json!("DPoP")),
        ("token_type", json!(null)),
        ("access_token", json!("")),
        ("access_token", json!("a\r\nb")),
        ("id_token", json!("a b")),
        ("refresh_token", json!("a".repeat(16 * 1024 + 1))),
    ] {
        let mut bad = good.clone();
        bad[name] = value;
        let (error, _) = read(&response(200, &bad)).err().unwrap();
        assert_eq!(error, TokenError::Invalid, "{name}");
    }
}

/// A provider may repeat in `error` what it has got.
#[test]
fn refusals_have_nothing_of_the_response_but_known_codes() {
    for (status, body, expected) in [
        (400, json!({"error": "invalid_grant"}), TokenError::Denied),
        (
            401,
            json!({"error": "invalid_client"}),
            TokenError::Rejected,
        ),
        (400, json!({"error": "secret"}), TokenError::Rejected),
        (400, json!("secret"), TokenError::Rejected),
        (429, json!({}), TokenError::Unavailable),
        (503, json!({"error": "secret"}), TokenError::Unavailable),
        (302, json!({}), TokenError::Unavailable),
    ] {
        let (error, problem) = read(&response(status, &body)).err().unwrap();
        assert_eq!(error, expected, "{status} {body}");
        assert!(!problem.contains("secret"), "{problem}");
    }
}

fn join(refreshes: &mut Refreshes, token: &str, size: usize, now: u64) -> Option<Joined<()>> {
    let namespace = Text::from("ns");
    let key = key(&policy(), token);
    let joined = refreshes.join(&namespace, (key, size), now, || Ok(()));
    joined.ok()
}

#[test]
fn outcome_is_known_while_the_provider_is_not_asked() {
    let mut refreshes = Refreshes::default();
    let Some(Joined::New(_, sender, ())) = join(&mut refreshes, "a", 10, 0) else {
        panic!("it is the first");
    };
    sender.send_replace(Some(Err(TokenError::Denied)));
    let mut deferred = |token: &str| {
        let deferred = || Err::<(), _>(TokenError::Deferred(7));
        let key = key(&policy(), token);
        refreshes.join(&Text::from("ns"), (key, 10), 1, deferred)
    };
    assert!(matches!(deferred("a"), Ok(Joined::Known(_))));
    assert!(matches!(deferred("b"), Err(TokenError::Deferred(7))));
    assert!(matches!(
        join(&mut refreshes, "b", 10, 1),
        Some(Joined::New(..))
    ));
}

#[test]
fn session_is_refreshed_once_and_again_after_a_while() {
    let mut refreshes = Refreshes::default();
    let Some(Joined::New(_, sender, _)) = join(&mut refreshes, "a", 10, 0) else {
        panic!("it is the first");
    };
    assert!(matches!(
        join(&mut refreshes, "a", 10, 100_000),
        Some(Joined::Known(_))
    ));
    assert!(matches!(
        join(&mut refreshes, "b", 10, 0),
        Some(Joined::New(..))
    ));
    sender.send_replace(Some(Err(TokenError::Unavailable)));
    assert!(matches!(
        join(&mut refreshes, "a", 10, 9_999),
        Some(Joined::Known(_))
    ));
    assert!(matches!(
        join(&mut refreshes, "a", 10, 10_000),
        Some(Joined::New(..))
    ));
}

#[test]
fn refreshes_that_are_lost_begin_again() {
    let mut refreshes = Refreshes::default();
    drop(join(&mut refreshes, "a", 10, 0));
    assert!(matches!(
        join(&mut refreshes, "a", 10, 1),
        Some(Joined::New(..))
    ));
}

#[test]
fn refreshed_session_counts_with_its_new_size() {
    let mut refreshes = Refreshes::default();
    let keys: Vec<_> = (0..1000).map(|index| index.to_string()).collect();
    for token in &keys {
        let Some(Joined::New(_, sender, ())) = join(&mut refreshes, token, 10, 0) else {
            panic!("each is new");
        };
        sender.send_replace(Some(Err(TokenError::Denied)));
        refreshes.finish(&Text::from("ns"), &key(&policy(), token), 64 * 1024);
    }
    let known = keys.iter().filter(|token| {
        let none = || Err::<(), _>(TokenError::Busy);
        let key = key(&policy(), token);
        refreshes
            .join(&Text::from("ns"), (key, 10), 1, none)
            .is_ok()
    });
    let known = known.count();
    assert!((100..130).contains(&known), "{known}");
}

#[test]
fn namespaces_without_refreshes_are_forgotten() {
    let mut refreshes = Refreshes::default();
    let Some(Joined::New(_, sender, ())) = join(&mut refreshes, "a", 10, 0) else {
        panic!("it is the first");
    };
    refreshes.sweep(100_000);
    assert_eq!(refreshes.namespaces(), 1, "it still runs");
    sender.send_replace(Some(Err(TokenError::Denied)));
    refreshes.sweep(59_999);
    assert_eq!(refreshes.namespaces(), 1);
    refreshes.sweep(60_000);
    assert_eq!(refreshes.namespaces(), 0);
}

#[test]
fn memory_of_a_namespace_is_bounded() {
    let mut refreshes = Refreshes::default();
    let mut running = Vec::new();
    let begun = (0..2000).map_while(|index| {
        let joined = join(&mut refreshes, &index.to_string(), 8 * 1024, 0)?;
        let Joined::New(_, sender, _) = joined else {
            panic!("each is new");
        };
        running.push(sender);
        Some(())
    });
    let begun = begun.count();
    assert!((300..700).contains(&begun), "{begun}");
    // The first one leaves once it has ended, and no other one.
    running[0].send_replace(Some(Err(TokenError::Denied)));
    assert!(join(&mut refreshes, "more", 8 * 1024, 0).is_some());
    assert!(join(&mut refreshes, "0", 8 * 1024, 0).is_none());
    let second = join(&mut refreshes, "1", 8 * 1024, 0);
    assert!(matches!(second, Some(Joined::Known(_))));
}

#[tokio::test]
async fn policies_with_a_message_are_bounded() {
    let lookup = SystemLookup::new(Vec::new());
    let client = TokenClient::new(lookup, AllowedAddresses::default());
    for number in 0..2 * MAX_MESSAGES {
        let name = number.to_string();
        let policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", &name);
        client.0.report(&policy, "https://a.example", "it is away");
    }
    let messages = client.0.messages.lock().unwrap();
    assert_eq!(messages.len(), MAX_MESSAGES);
}
