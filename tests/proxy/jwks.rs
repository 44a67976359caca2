//! Keys of token issuers that are fetched over HTTPS: issuers rotate them, are slow, go away and answer garbage.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use jsonwebtoken::Algorithm;
use portcullis::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::access_policy::{access, before, gateway};
use crate::admin::{metric, page};
use crate::api::{portcullis, stdout};
use crate::client::{Client, get};
use crate::harness::TEST_TIMEOUT;
use crate::harness::dns::NameServer;
use crate::issuer::{Issuer, claims, status};
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene, eventually, write};
use crate::tls_origin::{Asks, Authority, TlsOrigin};

/// The host of all issuers, which is on loopback.
const HOST: &str = "login.example.com";

/// What an issuer sends.
#[derive(Clone)]
pub(crate) enum Answer {
    Keys(Vec<Value>),
    Text(&'static str),
    Nothing,
}

/// An issuer that publishes keys over HTTPS.
pub(crate) struct Published {
    answer: watch::Sender<Answer>,
    origin: Origin,
    tls: TlsOrigin,
    authority: Authority,
    names: NameServer,
}

impl Published {
    pub(crate) async fn start(answer: Answer) -> Self {
        let (answer, answers) = watch::channel(answer);
        let origin = Origin::new(move |_| {
            let mut answers = answers.clone();
            async move {
                let speaks = |it: &Answer| !matches!(it, Answer::Nothing);
                let answer = answers.wait_for(speaks).await.expect("a test").clone();
                let text = match answer {
                    Answer::Keys(keys) => json!({"keys": keys}).to_string(),
                    Answer::Text(text) => text.to_owned(),
                    Answer::Nothing => String::new(),
                };
                Response::new(full(Bytes::from(text)))
            }
        });
        let (origin, authority) = (origin.await, Authority::new());
        let certificate = authority.issue(&[HOST]);
        let tls = TlsOrigin::relaying(&certificate, Asks::default(), origin.address).await;
        let names = NameServer::start().await;
        names.set(HOST, &["127.0.0.1"], 60);
        Self {
            answer,
            origin,
            tls,
            authority,
            names,
        }
    }

    pub(crate) fn answers(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    /// Returns the authority of its certificate, and settings that resolve its name and permit its address.
    pub(crate) fn settings(&self) -> impl FnOnce(&mut Settings) + use<> {
        let server = self.names.address;
        move |settings| {
            settings.dns_servers = vec![server];
            settings.allowed_jwks_addresses = vec!["127.0.0.0/8".parse().expect("a network")];
        }
    }

    /// Refuses connections from now on. Its name stays known.
    pub(crate) fn leave(self) -> NameServer {
        self.names
    }

    fn ca(&self) -> String {
        let data = json!({"ca.crt": self.authority.pem});
        let metadata = json!({"name": "ca"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
            .to_string()
    }

    fn remote(&self, cache_duration: &str) -> Value {
        let port = self.tls.address.port();
        json!({"remote": {
            "uri": format!("https://{HOST}:{port}/keys"), "cacheDuration": cache_duration,
            "caConfigMapRef": {"name": "ca"},
        }})
    }

    /// Returns a policy on the Gateway that asks for its tokens.
    pub(crate) fn objects(&self, origin: &Origin, cache_duration: &str) -> Objects {
        self.with_providers(
            origin,
            &[provider(
                crate::issuer::ISSUER,
                &self.remote(cache_duration),
            )],
        )
    }

    fn with_providers(&self, origin: &Origin, providers: &[Value]) -> Objects {
        let policy = access("a", &gateway(), &json!({"jwt": {"providers": providers}}));
        before(origin, &[policy, self.ca()])
    }

    pub(crate) async fn until_fetches(&self, count: usize) {
        self.origin.until_requests(count).await;
    }
}

fn provider(issuer: &str, jwks: &Value) -> Value {
    json!({"issuer": issuer, "jwks": jwks})
}

/// Waits until requests with a token have this status.
pub(crate) async fn until(scene: &Scene, token: &str, expected: u16) {
    let mut client = Client::http1(scene.at(80)).await;
    let reached = async || status(&mut client, token).await == expected;
    eventually(&format!("status {expected}"), reached).await;
}

#[tokio::test]
async fn keys_of_a_service_are_fetched_from_its_endpoints() {
    let origin = Origin::echo("origin").await;
    let [plain, secure, other] =
        ["one", "two", "three"].map(|id| Issuer::new(id, Algorithm::ES256));
    let published = Published::start(Answer::Keys(vec![secure.jwk()])).await;
    let keys = json!({"keys": [plain.jwk()]}).to_string();
    let server = Origin::new(move |request: Request<Incoming>| {
        let keys = keys.clone();
        async move {
            let host = request.headers().get("host").map(HeaderValue::as_bytes);
            match (request.uri().path(), host) {
                ("/keys", Some(b"plain.internal")) => Response::new(full(keys)),
                _ => Response::new(full("another request")),
            }
        }
    });
    let server = server.await;
    let backend = |name: &str| json!({"name": name, "port": 80});
    let of_plain = json!({"uri": "http://plain.internal/keys", "backendRef": backend("plain")});
    // The name of the certificate has no address.
    let of_secure = json!({
        "uri": format!("https://{HOST}/keys"), "caConfigMapRef": {"name": "ca"},
        "backendRef": backend("secure"),
    });
    let of_dead = json!({"uri": "http://dead.internal/keys", "backendRef": backend("dead")});
    let providers = [
        provider("plain", &json!({"remote": of_plain})),
        provider("secure", &json!({"remote": of_secure})),
        provider("dead", &json!({"remote": of_dead})),
    ];
    let objects = |plain: &[SocketAddr]| {
        let objects = published.with_providers(&origin, &providers);
        let objects = objects.service("plain", plain);
        let objects = objects.service("dead", &[Origin::dead()]);
        objects.service("secure", &[published.tls.address])
    };
    let token = |issuer: &Issuer, name: &str| issuer.token(&claims(&json!({"iss": name})));
    let permit = |settings: &mut Settings| {
        settings.allowed_jwks_addresses = vec!["127.0.0.0/8".parse().expect("a network")];
    };
    let mut scene = Scene::with(&objects(&[]), permit);
    // Neither a Service without endpoints nor a dead one delays the others.
    until(&scene, &token(&secure, "secure"), 200).await;
    until(&scene, &token(&plain, "plain"), 500).await;
    until(&scene, &token(&other, "dead"), 500).await;
    scene.replace(&objects(&[server.address])).await;
    until(&scene, &token(&plain, "plain"), 200).await;
    until(&scene, &token(&other, "plain"), 401).await;
    // Keys stay in use while the Service has no endpoints.
    write(scene.folder(), "objects.yaml", &objects(&[]).text());
    let is_stale = async {
        // Counters have no change notification.
        while metric(&scene, r#"jwks_key_sets{state="stale"}"#).await < 1.0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let is_stale = timeout(TEST_TIMEOUT, is_stale).await;
    assert!(is_stale.is_ok(), "not stale in time");
    until(&scene, &token(&plain, "plain"), 200).await;
    // Without the permission, a Service on loopback is not asked.
    let asked = server.requests();
    let scene = Scene::start(&objects(&[server.address]));
    until(&scene, &token(&plain, "plain"), 500).await;
    assert_eq!(server.requests(), asked);
}

#[tokio::test]
async fn keys_are_fetched_and_nothing_passes_before() {
    let origin = Origin::echo("origin").await;
    let [issuer, second, inline] =
        ["one", "two", "three"].map(|id| Issuer::new(id, Algorithm::ES256));
    let slow = Published::start(Answer::Nothing).await;
    let quick = Published::start(Answer::Keys(vec![second.jwk()])).await;
    let mut of_quick = quick.remote("1h");
    of_quick["remote"]["caConfigMapRef"]["name"] = json!("other");
    let providers = [
        provider("slow", &slow.remote("1h")),
        provider("quick", &of_quick),
        provider(
            "inline",
            &json!({"inline": json!({"keys": [inline.jwk()]}).to_string()}),
        ),
    ];
    let objects = slow.with_providers(&origin, &providers);
    let objects = objects.with(quick.ca().replace("\"ca\"", "\"other\""));
    let scene = Scene::with(&objects, slow.settings());
    let token = |issuer: &Issuer, name: &str| issuer.token(&claims(&json!({"iss": name})));
    let of_slow = token(&issuer, "slow");
    slow.until_fetches(1).await;
    // The slow issuer delays neither the others nor requests.
    until(&scene, &token(&second, "quick"), 200).await;
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(status(&mut client, &token(&inline, "inline")).await, 200);
    assert_eq!(status(&mut client, &of_slow).await, 500);
    assert_eq!(status(&mut client, &token(&second, "inline")).await, 401);
    assert_eq!(client.get("a.com", "/").await.status, 401);
    assert_eq!(origin.requests(), 2);
    let explained = stdout(&portcullis(&scene, &["explain", "http://a.com/"]).await);
    assert!(
        explained.contains("whose keys are not fetched yet (until then 500)"),
        "{explained}"
    );
    slow.answers(Answer::Keys(vec![issuer.jwk()]));
    until(&scene, &of_slow, 200).await;
    assert_eq!(status(&mut client, &token(&second, "slow")).await, 401);
    assert_eq!(slow.origin.requests(), 1);
    slow.tls.assert_encrypted("/keys");
    let explained = stdout(&portcullis(&scene, &["explain", "http://a.com/"]).await);
    assert!(
        explained.contains("with one of 1 keys of https://login.example.com:"),
        "{explained}"
    );
    assert_eq!(
        metric(&scene, "jwks_key_sets{state=\"current\"}").await,
        2.0
    );
    assert_eq!(
        metric(&scene, "jwks_fetches_total{result=\"fetched\"}").await,
        2.0
    );
}

/// The issuer publishes a key before it signs with it, and removes the other when no token of it is left.
#[tokio::test]
async fn keys_rotate_under_load() {
    let origin = Origin::echo("origin").await;
    let (old, new) = (
        Issuer::new("old", Algorithm::ES256),
        Issuer::new("new", Algorithm::EdDSA),
    );
    let published = Published::start(Answer::Keys(vec![old.jwk()])).await;
    let mut scene = Scene::with(&published.objects(&origin, "10s"), published.settings());
    let [of_old, of_new] = [&old, &new].map(|it| it.token(&claims(&json!({}))));
    until(&scene, &of_old, 200).await;
    let current = Arc::new(Mutex::new(vec![of_old.clone()]));
    let (ended, load) = load(scene.at(80), current.clone());
    let set = |tokens: &[&String]| {
        let tokens = tokens.iter().map(ToString::to_string).collect();
        *current.lock().unwrap_or_else(PoisonError::into_inner) = tokens;
    };
    // The first configuration has no keys, and the second one has the old key.
    published.answers(Answer::Keys(vec![old.jwk(), new.jwk()]));
    scene.outcome_with(|it| it.generation == 3).await;
    set(&[&of_old, &of_new]);
    // The load of a while with both keys.
    sleep(Duration::from_millis(200)).await;
    set(&[&of_new]);
    published.answers(Answer::Keys(vec![new.jwk()]));
    scene.outcome_with(|it| it.generation == 4).await;
    // The load of a while with the new key.
    sleep(Duration::from_millis(50)).await;
    ended.send_replace(true);
    let counts = load.await.expect("a load");
    assert!(counts.0 > 100, "{counts:?}");
    assert_eq!(
        counts.1, 0,
        "of {} requests, so many were refused",
        counts.0
    );
    until(&scene, &of_old, 401).await;
}

/// Sends requests with the present tokens until it is ended. Returns how many, and how many were refused.
fn load(
    address: SocketAddr,
    tokens: Arc<Mutex<Vec<String>>>,
) -> (watch::Sender<bool>, tokio::task::JoinHandle<(usize, usize)>) {
    let (sender, ended) = watch::channel(false);
    let task = tokio::spawn(async move {
        let (mut sent, mut refused) = (0, 0);
        let mut client = Client::http1(address).await;
        while !*ended.borrow() {
            let present = tokens
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            for token in present {
                sent += 1;
                refused += usize::from(status(&mut client, &token).await != 200);
            }
            // Others use the processor, too.
            sleep(Duration::from_millis(1)).await;
        }
        (sent, refused)
    });
    (sender, task)
}

/// A key that tokens name before it was published to the proxy is fetched once in 10 s, however many tokens ask for it.
#[tokio::test]
async fn unknown_key_is_fetched_before_its_time() {
    let origin = Origin::echo("origin").await;
    let (old, new) = (
        Issuer::new("old", Algorithm::ES256),
        Issuer::new("new", Algorithm::ES256),
    );
    let published = Published::start(Answer::Keys(vec![old.jwk()])).await;
    let scene = Scene::with(&published.objects(&origin, "24h"), published.settings());
    let [of_old, of_new] = [&old, &new].map(|it| it.token(&claims(&json!({}))));
    until(&scene, &of_old, 200).await;
    published.answers(Answer::Keys(vec![old.jwk(), new.jwk()]));
    until(&scene, &of_new, 200).await;
    assert_eq!(published.origin.requests(), 2);
    // The proxy does not have these, and asks no sooner than 10 s after the last time.
    let mut client = Client::http1(scene.at(80)).await;
    for id in ["a", "b", "c"] {
        let unknown = Issuer::new(id, Algorithm::ES256).token(&claims(&json!({})));
        assert_eq!(status(&mut client, &unknown).await, 401);
    }
    assert_eq!(status(&mut client, &of_old).await, 200);
    assert_eq!(published.origin.requests(), 2);
}

#[tokio::test]
async fn keys_stay_in_use_while_their_issuer_answers_garbage_or_is_away() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let published = Published::start(Answer::Keys(vec![issuer.jwk()])).await;
    let mut scene = Scene::with(&published.objects(&origin, "1h"), published.settings());
    let token = issuer.token(&claims(&json!({})));
    until(&scene, &token, 200).await;
    let second = published.objects(&origin, "2h");
    let third = published.objects(&origin, "3h");
    published.answers(Answer::Text("<html>"));
    // The first configuration has no keys.
    let generation = scene.outcome_with(|it| it.generation > 1).await.generation;
    change(&mut scene, &second, "the response is not JSON").await;
    assert_eq!(scene.last().generation, generation);
    let fresh = issuer.token(&claims(&json!({"sub": "bob"})));
    until(&scene, &fresh, 200).await;
    assert_eq!(metric(&scene, "jwks_key_sets{state=\"stale\"}").await, 1.0);
    published.answers(Answer::Text("{\"keys\": []}"));
    let _names = published.leave();
    change(&mut scene, &third, "connection refused").await;
    let fresh = issuer.token(&claims(&json!({"sub": "carol"})));
    until(&scene, &fresh, 200).await;
    let metrics = page(&scene, "/metrics").await;
    assert!(
        metrics.contains("jwks_fetches_total{result=\"invalid\"} "),
        "{metrics}"
    );
}

/// Replaces the objects, for which the keys are fetched again, and waits until a condition has a text.
pub(crate) async fn change(scene: &mut Scene, objects: &Objects, text: &str) {
    crate::scene::write(scene.folder(), "objects.yaml", &objects.text());
    let has_text = |outcome: &portcullis::control::data_plane::ServedConfiguration| {
        format!("{:?}", outcome.report).contains(text)
    };
    scene.outcome_with(has_text).await;
}

#[tokio::test]
async fn issuers_on_private_addresses_need_permission() {
    let origin = Origin::echo("origin").await;
    let issuer = Issuer::new("one", Algorithm::ES256);
    let published = Published::start(Answer::Keys(vec![issuer.jwk()])).await;
    let dns = published.names.address;
    let mut scene = Scene::with(&published.objects(&origin, "1h"), |settings| {
        settings.dns_servers = vec![dns];
    });
    scene
        .outcome_with(|it| format!("{:?}", it.report).contains("--allow-jwks-address"))
        .await;
    let token = issuer.token(&claims(&json!({})));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(status(&mut client, &token).await, 500);
    assert_eq!(published.tls.connections(), 0);
    assert_eq!(get(scene.at(80), "a.com", "/").await.status, 401);
    assert_eq!(
        metric(&scene, "jwks_key_sets{state=\"missing\"}").await,
        1.0
    );
}
