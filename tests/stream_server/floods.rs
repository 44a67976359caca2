//! Clients without a valid token: what they cost the API server, and that pods get their streams beside them.

use std::rc::Rc;
use std::time::{Instant, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use http::header::AUTHORIZATION;
use portcullis::wire::AUDIENCE;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

use crate::api_server::Api;
use crate::scene::{Controller, block_on, token, uid};

/// Number of clients that send invalid tokens without pause.
const CLIENTS: usize = 128;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn reviews(controller: &Controller) -> usize {
    controller.api.requests("tokenreviews").len()
}

/// Sends different tokens of the pod `edge-1` on many connections, half of them for a Gateway that does not exist, without an
/// end: what succeeds does so beside them.
async fn flood(
    controller: &Controller,
    forge: impl Fn(usize) -> String + 'static,
) -> Vec<JoinHandle<()>> {
    let bundle = controller.bundle().await;
    let forge = Rc::new(forge);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let forge = forge.clone();
        let gateway = ["edge", "unknown"][client % 2];
        let template = controller.request(gateway, "", None);
        let mut connection = controller.connect(&bundle).await.unwrap();
        clients.push(spawn_local(async move {
            for number in (client..).step_by(CLIENTS) {
                let mut request = template.clone();
                let bearer = format!("Bearer {}", forge(number)).parse().unwrap();
                request.headers_mut().insert(AUTHORIZATION, bearer);
                let Ok(mut ready) = connection.clone().ready().await else {
                    return;
                };
                let Ok((response, _body)) = ready.send_request(request, false) else {
                    return;
                };
                if let Ok(response) = response.await {
                    assert_ne!(response.status(), StatusCode::OK);
                }
                connection = ready;
            }
        }));
    }
    clients
}

/// Waits until a pod has its stream.
async fn gets_stream(controller: &Controller, token: &str) {
    let (status, pod) = controller
        .send(controller.request("edge", token, None))
        .await;
    assert_eq!(status, StatusCode::OK, "{}", pod.rest().await);
}

/// The keys of an API server.
struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn publish(api: &Api) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref();
        let (x, y) = (
            URL_SAFE_NO_PAD.encode(&point[1..33]),
            URL_SAFE_NO_PAD.encode(&point[33..]),
        );
        let key = json!({"kid": "k", "kty": "EC", "crv": "P-256", "alg": "ES256", "x": x, "y": y});
        api.serve_text("/openid/v1/jwks", json!({"keys": [key]}).to_string());
        Self(pair)
    }

    /// Returns a signed token that is bound to these objects.
    fn token(&self, bound: &Value) -> String {
        let payload = json!({
            "aud": [AUDIENCE], "iat": now(), "exp": now() + 3600, "iss": "https://issuer",
            "kubernetes.io": bound,
        });
        let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!(
            "{}.{}",
            part(json!({"alg": "ES256", "kid": "k"})),
            part(payload)
        );
        let signature = self
            .0
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The objects of a token of a pod.
fn bound(account: &str, pod: &str) -> Value {
    let object =
        |name: &str, kind: &str| json!({"name": name, "uid": uid(&format!("{kind}-{name}"))});
    json!({
        "namespace": "infra", "pod": object(pod, "Pod"),
        "serviceaccount": object(account, "ServiceAccount"),
    })
}

#[test]
fn forged_signatures_cost_no_review_and_delay_no_new_pod() {
    block_on(async {
        let controller = Controller::start().await;
        let issuer = Issuer::publish(&controller.api);
        let genuine = issuer.token(&bound("edge-portcullis", "edge-1"));
        controller.accept(&genuine, "edge-portcullis", "edge-1");
        let (text, _) = genuine.rsplit_once('.').unwrap();
        let text = text.to_owned();
        let clients = flood(&controller, move |number| {
            let signature = format!("{number:0>64}");
            format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
        })
        .await;
        gets_stream(&controller, &genuine).await;
        assert_eq!(reviews(&controller), 1);
        clients.iter().for_each(JoinHandle::abort);
    });
}

#[test]
fn invalid_tokens_get_few_reviews_and_delay_no_known_pod() {
    block_on(async {
        let controller = Controller::start().await;
        let of_pod = |number: usize| {
            let bound = bound("edge-portcullis", "edge-1");
            token(&json!({"jti": number, "kubernetes.io": bound}))
        };
        let (first, second) = (of_pod(1_000_000), of_pod(1_000_001));
        for token in [&first, &second] {
            controller.accept(token, "edge-portcullis", "edge-1");
        }
        gets_stream(&controller, &first).await;
        let start = Instant::now();
        let clients = flood(&controller, |number| {
            token(&json!({"sub": number.to_string()}))
        })
        .await;
        gets_stream(&controller, &second).await;
        // An address may cause two refused reviews a second.
        let most = 50 + 2 * start.elapsed().as_secs();
        let reviews = reviews(&controller);
        assert!((reviews as u64) < most, "{reviews}");
        clients.iter().for_each(JoinHandle::abort);
    });
}

#[test]
fn refused_token_is_reviewed_once() {
    block_on(async {
        let controller = Controller::start().await;
        let forged = token(&json!({"sub": "forged"}));
        for _ in 0..3 {
            let request = controller.request("edge", &forged, None);
            assert_eq!(controller.send(request).await.0, StatusCode::FORBIDDEN);
        }
        assert_eq!(reviews(&controller), 1);
    });
}

#[test]
fn token_of_a_year_is_refused() {
    block_on(async {
        let controller = Controller::start().await;
        let year = 365 * 24 * 3600;
        let long = token(&json!({"sub": "long", "exp": now() + year, "iat": now()}));
        controller.accept(&long, "edge-portcullis", "edge-1");
        let (status, pod) = controller
            .send(controller.request("edge", &long, None))
            .await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        let text = pod.rest().await;
        assert!(text.contains("more than 24 hours"), "{text}");
        assert_eq!(reviews(&controller), 0);
    });
}

#[test]
fn token_of_another_service_account_costs_no_review() {
    block_on(async {
        let controller = Controller::start().await;
        let issuer = Issuer::publish(&controller.api);
        let mut unbound = bound("edge-portcullis", "edge-1");
        unbound["pod"] = Value::Null;
        for objects in [bound("other", "edge-1"), unbound] {
            let token = issuer.token(&objects);
            for gateway in ["edge", "unknown"] {
                let request = controller.request(gateway, &token, None);
                assert_eq!(controller.send(request).await.0, StatusCode::FORBIDDEN);
            }
        }
        assert_eq!(reviews(&controller), 0);
    });
}

/// Without the keys of the API server, only a review shows whose token it is.
#[test]
fn tokens_of_another_service_account_get_few_reviews() {
    const TOKENS: usize = 60;
    block_on(async {
        let controller = Controller::start().await;
        let start = Instant::now();
        for number in 0..TOKENS {
            let token = token(&json!({"jti": number}));
            controller.accept(&token, "other", "edge-1");
            let request = controller.request("edge", &token, None);
            assert_ne!(controller.send(request).await.0, StatusCode::OK);
        }
        let most = 12 + 2 * start.elapsed().as_secs();
        let reviews = reviews(&controller);
        assert!((reviews as u64) < most, "{reviews}");
    });
}

#[test]
fn idle_connections_give_way_to_new_ones() {
    const IDLE: usize = 300;
    block_on(async {
        let controller = Controller::start().await;
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            idle.push(TcpStream::connect(controller.address).await.unwrap());
        }
        gets_stream(&controller, &controller.token("edge-1")).await;
        // The oldest one has ended.
        let mut bytes = [0; 1];
        assert!(!matches!(idle[0].read(&mut bytes).await, Ok(1..)));
    });
}
