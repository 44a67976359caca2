//! Keys that tokens name before the controller has streamed them: the pod asks for them, however many such tokens clients send.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use portcullis::wire::KeySetName;
use serde_json::{Value, json};

use crate::controller::{Controller, Stream};
use crate::eventually;
use crate::objects::{object, route};
use crate::pod::{Node, Pod};

const URI: &str = "https://login.example.com/keys";

/// A key of the issuer.
struct Key {
    id: &'static str,
    key: EncodingKey,
}

impl Key {
    fn new(id: &'static str) -> Self {
        let key = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).unwrap();
        let key = EncodingKey::from_ed_der(key.as_ref());
        Self { id, key }
    }

    fn jwk(&self) -> Value {
        let mut key = Jwk::from_encoding_key(&self.key, Algorithm::EdDSA).unwrap();
        key.common.key_id = Some(self.id.to_owned());
        serde_json::to_value(key).unwrap()
    }

    /// Returns a token that names a key.
    fn token_of(&self, id: &str) -> String {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(id.to_owned());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let claims = json!({"iss": URI, "exp": now.unwrap().as_secs() + 600});
        encode(&header, &claims, &self.key).unwrap()
    }

    fn token(&self) -> String {
        self.token_of(self.id)
    }
}

fn policy() -> Value {
    object(&format!(
        "
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {{name: tokens, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: edge}}]
  jwt: {{providers: [{{issuer: {URI:?}, jwks: {{remote: {{uri: {URI:?}, cacheDuration: 24h}}}}}}]}}
"
    ))
}

fn key_set(keys: &[&Key]) -> Value {
    let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet",
        "metadata": {"namespace": "default", "name": URI},
        "keys": json!({"keys": keys}).to_string(),
    })
}

/// Starts a pod that accepts tokens of a key.
fn start<'a>(node: &'a Node, controller: &Controller, key: &Key) -> (Pod<'a>, Stream) {
    let pod = node.start();
    let stream = controller.accept();
    stream
        .begin("first", None)
        .put_all(&node.objects())
        .put(route("a", "one"))
        .put(policy())
        .put(key_set(&[key]))
        .commit(1);
    stream.report_of("first/1");
    assert_eq!(pod.answer_to("a", &key.token()), "https://one/");
    (pod, stream)
}

fn name() -> KeySetName {
    KeySetName {
        namespace: "default".to_owned(),
        name: URI.to_owned(),
    }
}

#[test]
fn key_that_is_published_late_is_known_at_once() {
    let node = Node::new();
    let controller = node.controller();
    let (old, new) = (Key::new("old"), Key::new("new"));
    let (pod, stream) = start(&node, &controller, &old);
    assert!(stream.asked().is_none(), "no token lacks a key");
    assert_eq!(pod.answer_to("a", &new.token()), "401");
    assert_eq!(stream.wait_until_asked(), name());
    stream.put(key_set(&[&old, &new])).commit(2);
    stream.report_of("first/2");
    assert_eq!(pod.answer_to("a", &new.token()), "https://one/");
    assert_eq!(pod.answer_to("a", &old.token()), "https://one/");
}

#[test]
fn clients_that_name_keys_without_end_make_a_pod_ask_once_in_a_second() {
    let node = Node::new();
    let controller = node.controller();
    let key = Key::new("old");
    let (pod, stream) = start(&node, &controller, &key);
    let began = Instant::now();
    let mut sent = 0;
    // The rate of a while is the subject of the test.
    while began.elapsed() < Duration::from_secs(3) || sent <= 100 {
        sent += 1;
        assert_eq!(pod.answer_to("a", &key.token_of(&format!("{sent}"))), "401");
    }
    // The pod asks once in a second.
    thread::sleep(Duration::from_millis(1200));
    let asked = std::iter::from_fn(|| stream.asked()).count();
    let most = began.elapsed().as_secs() as usize + 1;
    assert!((2..=most).contains(&asked), "{asked} of {most}");
}

#[test]
fn pod_asks_the_next_controller_for_what_it_lacks_while_it_has_none() {
    let node = Node::new();
    let controller = node.controller();
    let (old, new) = (Key::new("old"), Key::new("new"));
    let (pod, stream) = start(&node, &controller, &old);
    node.service.point(None);
    drop((stream, controller));
    eventually(|| pod.metric("stream_connected"), |it| *it == 0);
    assert_eq!(pod.answer_to("a", &new.token()), "401");
    let controller = node.controller();
    let stream = controller.accept();
    stream.begin("second", None);
    assert_eq!(stream.wait_until_asked(), name());
    assert_eq!(pod.answer_to("a", &old.token()), "https://one/");
}
