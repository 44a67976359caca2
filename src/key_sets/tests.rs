//! Key sets of issuers on loopback: what counts as a key set, and what stays while an issuer fails.

use std::sync::Mutex;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::api;
use crate::dns::{Answer, LookupError};
use crate::ir::tls::Authorities;
use crate::telemetry::metrics::FetchFailure;

const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Resolves no name.
struct NoNames;

impl Lookup for NoNames {
    fn lookup(&mut self, _: &str) -> BoxFuture<'static, Result<Answer, LookupError>> {
        Box::pin(std::future::ready(Err(LookupError::NoAddress)))
    }
}

/// An issuer on loopback that sends the same bytes to each client.
struct Server {
    uri: String,
    response: Arc<Mutex<Vec<u8>>>,
    requests: watch::Receiver<Vec<String>>,
}

impl Server {
    async fn start(response: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/keys?a=b", listener.local_addr().unwrap());
        let response = Arc::new(Mutex::new(response.to_vec()));
        let (sender, requests) = watch::channel(Vec::new());
        let sent = response.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                sender.send_modify(|requests| requests.push(head));
                let bytes = sent.lock().unwrap().clone();
                // The client may have read enough.
                let _ = stream.write_all(&bytes).await;
            }
        });
        Self {
            uri,
            response,
            requests,
        }
    }
}

fn response(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn loopback() -> AllowedAddresses {
    AllowedAddresses::new(vec!["127.0.0.0/8".parse().unwrap()])
}

async fn fetched(uri: &str, allowed: AllowedAddresses) -> Result<String, Failure> {
    let source = KeySetSource {
        uri: uri.parse().unwrap(),
        authorities: Authorities::System,
        provider: None,
        server: None,
    };
    let fetched = fetch(source, HttpsClient::new(NoNames, allowed)).await;
    fetched.map(|it| it.keys)
}

#[tokio::test]
async fn fetches_a_key_set_with_one_request() {
    let server = Server::start(&response(KEYS)).await;
    assert_eq!(fetched(&server.uri, loopback()).await.unwrap(), KEYS);
    let requests = server.requests.borrow().clone();
    assert_eq!(requests.len(), 1);
    assert!(
        requests[0].starts_with("GET /keys?a=b HTTP/1.1\r\n"),
        "{requests:?}"
    );
    assert!(requests[0].contains("host: 127.0.0.1:"), "{requests:?}");
}

#[tokio::test]
async fn refuses_what_is_no_key_set() {
    let chunk = "a".repeat(1000);
    let endless = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
        + &format!("3e8\r\n{chunk}\r\n").repeat(100);
    let head = format!(
        "HTTP/1.1 200 OK\r\n{}\r\n",
        format!("a: {chunk}\r\n").repeat(90)
    );
    let redirect = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n";
    let length =
        "HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n".to_owned() + &chunk.repeat(70);
    for (bytes, kind, problem) in [
        (response("<html>"), FetchFailure::Invalid, "is not JSON"),
        (
            response("{\"keys\": []}"),
            FetchFailure::Invalid,
            "has no key for signatures",
        ),
        (
            response("\u{fe}").into_iter().map(|it| it | 0x80).collect(),
            FetchFailure::Unreachable,
            "HTTP",
        ),
        (
            endless.into_bytes(),
            FetchFailure::Invalid,
            "has more than 64 KiB",
        ),
        (
            length.into_bytes(),
            FetchFailure::Invalid,
            "has more than 64 KiB",
        ),
        (head.into_bytes(), FetchFailure::Unreachable, "HTTP"),
        (
            redirect.into(),
            FetchFailure::Status,
            "status 302, and redirects are not followed",
        ),
        (Vec::new(), FetchFailure::Unreachable, "HTTP"),
        (
            b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into(),
            FetchFailure::Status,
            "status 503",
        ),
    ] {
        let server = Server::start(&bytes).await;
        let failure = fetched(&server.uri, loopback()).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert!(failure.problem.contains(problem), "{failure:?}");
    }
}

#[tokio::test]
async fn connects_to_permitted_addresses_only() {
    let server = Server::start(&response(KEYS)).await;
    let failure = fetched(&server.uri, AllowedAddresses::default()).await;
    assert_eq!(failure.unwrap_err().kind, FetchFailure::Refused);
    assert!(server.requests.borrow().is_empty());
    let failure = fetched("https://login.example.com", loopback()).await;
    assert_eq!(failure.unwrap_err().kind, FetchFailure::Unreachable);
}

/// Returns objects with one policy, which names the URIs.
fn load(uris: &[&str], cache_duration: &str) -> Arc<Load> {
    let providers = uris.iter().map(|uri| {
        let remote = json!({"uri": uri, "cacheDuration": cache_duration});
        json!({"issuer": uri, "jwks": {"remote": remote}})
    });
    let providers: Vec<_> = providers.collect();
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": "a", "namespace": "one"},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}],
            "jwt": {"providers": providers},
        },
    });
    let mut snapshot = Snapshot::default();
    if !uris.is_empty() {
        let admission = api::admit(policy);
        snapshot.insert(admission.object.unwrap());
    }
    Arc::new(Load {
        snapshot: Arc::new(snapshot),
        ..Load::default()
    })
}

/// Waits until a published key set is as expected.
async fn until(fed: &mut watch::Receiver<Arc<Load>>, expected: (Option<&str>, Option<&str>)) {
    let (keys, problem) = expected;
    let is_expected = |load: &Arc<Load>| {
        let mut sets = load.snapshot.key_sets.iter();
        sets.next().is_some_and(|set| {
            let found = set.problem.as_deref();
            set.keys.as_deref() == keys
                && match problem {
                    None => found.is_none(),
                    Some(problem) => found.is_some_and(|it| it.contains(problem)),
                }
        })
    };
    fed.wait_for(is_expected).await.unwrap();
}

#[tokio::test]
async fn keys_stay_while_their_issuer_fails_and_go_with_their_policy() {
    let server = Server::start(&response(KEYS)).await;
    let stats = Arc::<KeySetStats>::default();
    let mut key_sets = KeySets::new(
        (NoNames, loopback()),
        Options::default(),
        stats.clone(),
        Arc::default(),
    );
    let first = key_sets.follow(load(&[&server.uri], "1m"));
    assert_eq!(first.snapshot.key_sets.len(), 1);
    let (loads, source) = watch::channel(Arc::default());
    let (feed, mut fed) = watch::channel(first);
    let running = tokio::spawn(async move { key_sets.run(source, &feed).await });
    until(&mut fed, (Some(KEYS), None)).await;
    *server.response.lock().unwrap() = response("<html>");
    // A change of the time fetches at once.
    loads.send_replace(load(&[&server.uri], "2m"));
    until(&mut fed, (Some(KEYS), Some("is not JSON"))).await;
    let fetches: Vec<_> = stats.fetches().collect();
    assert_eq!(fetches[0], ("fetched", 1));
    assert_eq!(fetches[4], ("invalid", 1));
    assert_eq!(stats.sets(), [("current", 0), ("stale", 1), ("missing", 0)]);
    assert!(stats.oldest() > 0);
    loads.send_replace(load(&[], "2m"));
    fed.wait_for(|load| load.snapshot.key_sets.is_empty())
        .await
        .unwrap();
    drop(loads);
    running.await.unwrap();
}

#[tokio::test]
async fn slow_issuer_delays_no_other_one() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = format!("http://{}/keys", silent.local_addr().unwrap());
    let server = Server::start(&response(KEYS)).await;
    let mut key_sets = KeySets::new(
        (NoNames, loopback()),
        Options::default(),
        Arc::default(),
        Arc::default(),
    );
    let first = key_sets.follow(load(&[&slow, &server.uri], "1m"));
    let (_loads, source) = watch::channel(Arc::default());
    let (feed, mut fed) = watch::channel(first);
    let _running = tokio::spawn(async move { key_sets.run(source, &feed).await });
    let has_other = |load: &Arc<Load>| {
        let set = load.snapshot.key_sets.get("one", &server.uri);
        set.is_some_and(|set| set.keys.is_some())
    };
    let load = fed.wait_for(has_other).await.unwrap().clone();
    let set = load.snapshot.key_sets.get("one", &slow).unwrap();
    assert_eq!((&set.keys, &set.problem), (&None, &None));
}

/// Returns what is fetched of the provider whose discovery document says this.
async fn discovered(document: &serde_json::Value) -> Result<Fetched, Failure> {
    let server = Server::start(&response(&document.to_string())).await;
    let source = KeySetSource {
        uri: server.uri.parse().unwrap(),
        authorities: Authorities::System,
        provider: Some("https://a.example".into()),
        server: None,
    };
    fetch(source, HttpsClient::new(NoNames, loopback())).await
}

#[tokio::test]
async fn keys_of_a_provider_are_where_its_document_says() {
    let keys = Server::start(&response(KEYS)).await;
    let mut document = json!({
        "issuer": "https://a.example", "authorization_endpoint": "https://a.example/auth",
        "token_endpoint": "https://a.example/token", "jwks_uri": keys.uri,
    });
    let fetched = discovered(&document).await.unwrap();
    assert_eq!(fetched.keys, KEYS);
    let discovery = fetched.discovery.unwrap();
    assert_eq!(discovery.token_endpoint, "https://a.example/token");
    assert_eq!(keys.requests.borrow().len(), 1);
    // The document chooses where keys are fetched from, within the same limits.
    for (field, value, expected) in [
        ("issuer", "https://b.example", "has another issuer"),
        (
            "jwks_uri",
            "https://a.example/keys",
            "https://a.example/keys: a.example: it has no address",
        ),
        ("jwks_uri", "http://[::1]:1/keys", "no public address"),
        ("jwks_uri", "http://10.0.0.1/keys", "jwks_uri that has http"),
    ] {
        let good = std::mem::replace(&mut document[field], json!(value));
        let problem = discovered(&document).await.err().unwrap().problem;
        assert!(problem.contains(expected), "{field} {value}: {problem}");
        document[field] = good;
    }
    assert_eq!(keys.requests.borrow().len(), 1);
}

#[tokio::test]
async fn endpoints_of_a_service_are_asked_within_limits() {
    let server = Server::start(&response(KEYS)).await;
    let address = server.uri.trim_start_matches("http://");
    let address = address.split('/').next().unwrap().parse().unwrap();
    let source = |endpoints| KeySetSource {
        uri: "http://login.example.com/keys?a=b".parse().unwrap(),
        authorities: Authorities::System,
        provider: None,
        server: Some(KeyServer {
            endpoints,
            tls: None,
        }),
    };
    let get = async |endpoints, allowed| {
        fetch(source(endpoints), HttpsClient::new(NoNames, allowed)).await
    };
    let keys = get(vec![address], loopback()).await.unwrap().keys;
    assert_eq!(keys, KEYS);
    let request = server.requests.borrow()[0].clone();
    assert!(
        request.starts_with("GET /keys?a=b HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains("host: login.example.com\r\n"), "{request}");
    for endpoint in ["169.254.169.254:80", "[::1]:80", "[fd00:ec2::254]:80"] {
        let endpoints = vec![address, endpoint.parse().unwrap()];
        let refused = get(endpoints, AllowedAddresses::default()).await;
        assert_eq!(
            refused.unwrap_err().kind,
            FetchFailure::Refused,
            "{endpoint}"
        );
    }
    assert_eq!(server.requests.borrow().len(), 1);
}
