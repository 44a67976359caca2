//! AccessPolicies that ask for credentials: which requests pass, and what backends get of them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::access_policy::{access, before, connect_from, gateway, of_route};
use crate::client::{Answer, Client, get};
use crate::cors::{METHOD, ORIGIN, fetch};
use crate::grpc::grpc_route;
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, to};

/// `password`.
pub(crate) const BCRYPT: &str = "$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu";
/// `password`.
pub(crate) const SHA_CRYPT: &str = "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5";
/// `secret`.
const APR1: &str = "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0";
/// `secret`.
const SHA: &str = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";

/// A Secret with these values.
pub(crate) fn secret(name: &str, values: &Value) -> String {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values,
    });
    secret.to_string()
}

/// A Secret with users and the hashes of their passwords.
pub(crate) fn users(users: &[(&str, &str)]) -> String {
    let lines = users.iter().map(|(name, hash)| format!("{name}:{hash}\n"));
    secret("users", &json!({"auth": lines.collect::<String>()}))
}

pub(crate) fn basic() -> Value {
    json!({"basic": {"secretRef": {"name": "users"}, "realm": "staff", "forwardUser": "X-User"}})
}

pub(crate) fn api_key() -> Value {
    json!({"apiKey": {
        "secretRefs": [{"name": "keys"}],
        "from": [
            {"type": "Header", "name": "X-API-Key"}, {"type": "Query", "name": "key"},
            {"type": "Cookie", "name": "key"},
        ],
        "forwardClient": "X-Client",
    }})
}

pub(crate) fn keys() -> String {
    secret(
        "keys",
        &json!({"shop": "key-of-shop", "billing": "key-of-billing"}),
    )
}

pub(crate) fn authorization(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

async fn login(client: &mut Client, user: &str, password: &str) -> Answer {
    let value = authorization(user, password);
    client
        .get_with("a.com", "/", &[("authorization", &value)])
        .await
}

#[tokio::test]
async fn requests_need_user_and_password() {
    let origin = Origin::echo("origin").await;
    let all = [
        ("alice", BCRYPT),
        ("bob", SHA_CRYPT),
        ("carol", SHA),
        ("erin", APR1),
    ];
    let objects = before(&origin, &[users(&all), access("a", &gateway(), &basic())]);
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for (user, password) in [
            ("alice", "Password"),
            ("alice", ""),
            ("", "password"),
            ("dave", "password"),
            ("carol", "password"),
            ("erin", "password"),
        ] {
            let answer = login(&mut client, user, password).await;
            assert_eq!(answer.status, 401, "{user}:{password}");
            let challenge = "Basic realm=\"staff\", charset=\"UTF-8\"";
            assert_eq!(answer.header("www-authenticate"), challenge);
        }
        for other in ["Bearer YTpi", "Basic *", "Basic"] {
            let headers = [("authorization", other)];
            let answer = client.get_with("a.com", "/", &headers).await;
            assert_eq!(answer.status, 401, "{other}");
        }
        assert_eq!(client.get("a.com", "/admin").await.status, 401);
        for (user, password) in [
            ("alice", "password"),
            ("bob", "password"),
            ("carol", "secret"),
            ("erin", "secret"),
        ] {
            // The second time, the password is remembered.
            for _ in 0..2 {
                let received = login(&mut client, user, password).await.received();
                let expected = authorization(user, password);
                assert_eq!(received["headers"]["x-user"], user);
                assert_eq!(received["headers"]["authorization"], expected);
            }
            let other = login(&mut client, user, "another").await;
            assert_eq!(other.status, 401, "a remembered user");
        }
    }
    assert_eq!(origin.requests(), 16);
}

#[tokio::test]
async fn requests_need_an_api_key() {
    let origin = Origin::echo("origin").await;
    let objects = before(&origin, &[keys(), access("a", &gateway(), &api_key())]);
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        for (path, headers, expected) in [
            ("/", vec![], None),
            ("/", vec![("x-api-key", "another")], None),
            (
                "/",
                vec![("x-api-key", "key-of-shop"), ("x-api-key", "key-of-shop")],
                None,
            ),
            ("/?key=key-of-sho", vec![], None),
            (
                "/?key=another",
                vec![("x-api-key", "key-of-shop")],
                Some("shop"),
            ),
            ("/?key=key-of-billing&a=b", vec![], Some("billing")),
            (
                "/?a=b",
                vec![("cookie", "a=b; key=key-of-shop; c=d")],
                Some("shop"),
            ),
        ] {
            let mut headers = headers;
            headers.push(("x-client", "admin"));
            let answer = client.get_with("a.com", path, &headers).await;
            let Some(name) = expected else {
                assert_eq!(answer.status, 401, "{path} {headers:?}");
                assert_eq!(answer.header("www-authenticate"), "ApiKey");
                continue;
            };
            assert!(!answer.text().contains("key-of-"), "{}", answer.text());
            let received = answer.received();
            assert_eq!(received["headers"]["x-client"], name);
            let rest = if path.contains("a=b") { "/?a=b" } else { "/" };
            assert_eq!(received["path"], rest);
            assert!(received["headers"].get("x-api-key").is_none());
        }
    }
    let mut kept = api_key();
    kept["apiKey"]["keep"] = json!(true);
    let objects = before(&origin, &[keys(), access("a", &gateway(), &kept)]);
    let scene = Scene::start(&objects);
    let received = get(scene.at(80), "a.com", "/?key=key-of-shop")
        .await
        .received();
    assert_eq!(received["path"], "/?key=key-of-shop");
}

/// What a client says about itself is never what a backend gets.
#[tokio::test]
async fn any_credentials_are_enough_and_names_cannot_be_forged() {
    let origin = Origin::echo("origin").await;
    let policies = |require: &str| {
        let mut spec = basic();
        spec["apiKey"] = api_key()["apiKey"].clone();
        spec["require"] = json!(require);
        let all = [
            users(&[("alice", BCRYPT)]),
            keys(),
            access("a", &gateway(), &spec),
        ];
        before(&origin, &all)
    };
    let alice = authorization("alice", "password");
    let wrong = authorization("alice", "wrong");
    let forged = [("x-user", "root"), ("x-client", "root")];
    let cases = [
        (None, None, None),
        (Some(&wrong), None, None),
        (None, Some("another"), None),
        (Some(&wrong), Some("another"), None),
        (Some(&alice), None, Some((Some("alice"), None))),
        (Some(&alice), Some("another"), Some((Some("alice"), None))),
        (None, Some("key-of-shop"), Some((None, Some("shop")))),
        (
            Some(&wrong),
            Some("key-of-shop"),
            Some((None, Some("shop"))),
        ),
        (
            Some(&alice),
            Some("key-of-shop"),
            Some((Some("alice"), Some("shop"))),
        ),
    ];
    for require in ["Any", "All"] {
        let scene = Scene::start(&policies(require));
        let mut client = Client::http1(scene.at(80)).await;
        for (authorization, key, expected) in cases {
            let mut headers = forged.to_vec();
            headers.extend(authorization.map(|it| ("authorization", it.as_str())));
            headers.extend(key.map(|it| ("x-api-key", it)));
            let answer = client.get_with("a.com", "/", &headers).await;
            let is_both = matches!(expected, Some((Some(_), Some(_))));
            let Some((user, name)) = expected.filter(|_| require == "Any" || is_both) else {
                assert_eq!(answer.status, 401, "{require} {headers:?}");
                let challenges = answer.headers.get_all("www-authenticate").iter().count();
                assert!(challenges == 2 || require == "All" && challenges == 1);
                continue;
            };
            let received = answer.received();
            let found = |name: &str| received["headers"][name].as_str().map(str::to_owned);
            assert_eq!(found("x-user").as_deref(), user, "{require} {headers:?}");
            assert_eq!(found("x-client").as_deref(), name, "{require} {headers:?}");
        }
    }
}

#[tokio::test]
async fn new_passwords_and_keys_take_effect_at_once() {
    let origin = Origin::echo("origin").await;
    let mut spec = basic();
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["require"] = json!("Any");
    let policy = access("a", &gateway(), &spec);
    let with = |hash: &str, key: &str| {
        let keys = secret("keys", &json!({"shop": key}));
        before(&origin, &[users(&[("alice", hash)]), keys, policy.clone()])
    };
    let mut scene = Scene::start(&with(BCRYPT, "one"));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(login(&mut client, "alice", "password").await.status, 200);
    assert_eq!(client.get("a.com", "/?key=one").await.status, 200);
    scene.replace(&with(SHA, "two")).await;
    assert_eq!(login(&mut client, "alice", "password").await.status, 401);
    assert_eq!(login(&mut client, "alice", "secret").await.status, 200);
    assert_eq!(client.get("a.com", "/?key=one").await.status, 401);
    assert_eq!(client.get("a.com", "/?key=two").await.status, 200);
}

#[tokio::test]
async fn broken_secret_fails_closed_for_its_scope_alone() {
    let origin = Origin::echo("origin").await;
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let policy = access("a", &admin, &basic());
    let mut scene = Scene::start(&before(&origin, std::slice::from_ref(&policy)));
    let statuses = async |scene: &Scene| {
        let mut client = Client::http1(scene.at(80)).await;
        let value = authorization("alice", "password");
        let headers = [("authorization", value.as_str())];
        let admin = client.get_with("a.com", "/admin", &headers).await.status;
        (admin, client.get("a.com", "/").await.status)
    };
    assert_eq!(statuses(&scene).await, (500, 200), "no Secret");
    for (text, expected) in [
        ("", 500),
        ("alice", 500),
        ("alice:password", 500),
        (&*format!("bob\nalice:{SHA_CRYPT}"), 200),
        (&*format!("bob:{SHA_CRYPT}"), 401),
    ] {
        let secret = secret("users", &json!({"auth": text}));
        scene
            .replace(&before(&origin, &[policy.clone(), secret]))
            .await;
        assert_eq!(statuses(&scene).await, (expected, 200), "{text}");
    }
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(statuses(&scene).await, (200, 200), "no policy");
}

#[tokio::test]
async fn grpc_calls_without_credentials_get_unauthenticated() {
    let origin = Origin::echo("origin").await;
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(grpc_route("route", &[], &[to("origin")]))
        .with(users(&[("alice", BCRYPT)]))
        .with(access("a", &gateway(), &basic()));
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    // The second one has a password that has to be verified.
    for headers in [
        vec![],
        vec![("authorization", authorization("alice", "wrong"))],
    ] {
        let mut request = client
            .request(Method::POST, "a.com", "/package.Service/Method")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        let request = request.body(full("x")).expect("a request");
        let answer = client.fetch(request).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
    }
}

/// Browsers never send credentials with them.
#[tokio::test]
async fn preflight_requests_need_no_credentials_if_the_rule_answers_them() {
    let origin = Origin::echo("origin").await;
    let cors = json!({"allowOrigins": ["https://b.org"], "allowMethods": ["GET"]});
    let rule = crate::cors::with_cors("/shared", "origin", &cors);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), rule])
        .with(users(&[("alice", BCRYPT)]))
        .with(access("a", &of_route(), &basic()));
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    for (method, path, expected) in [
        ("OPTIONS", "/shared", 200),
        ("GET", "/shared", 401),
        ("OPTIONS", "/", 401),
    ] {
        let fields = [(ORIGIN, "https://b.org"), (METHOD, "GET")];
        let answer = fetch(&mut client, method, path, &fields).await;
        assert_eq!(answer.status / 100, expected / 100, "{method} {path}");
    }
    assert_eq!(origin.requests(), 0);
}

/// The routes of a team, in a namespace of its own.
fn team(objects: Objects, name: &str, origin: &Origin, hash: &str) -> Objects {
    let metadata = |object: &str| json!({"namespace": name, "name": object});
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": metadata("route"),
        "spec": {
            "parentRefs": [{"name": "gateway", "namespace": "default"}],
            "hostnames": [format!("{name}.com")],
            "rules": [to("origin")],
        },
    });
    let users = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata("users"),
        "stringData": {"auth": format!("alice:{hash}")},
    });
    let mut policy: Value =
        serde_json::from_str(&access("a", &of_route(), &basic())).expect("JSON");
    policy["metadata"] = metadata("a");
    let port = origin.address.port();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("origin"),
        "spec": {"ports": [{"port": 80}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": name, "name": "origin",
            "labels": {"kubernetes.io/service-name": "origin"},
        },
        "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"port": port}],
    });
    let all = [route, users, policy, service, slice];
    all.iter()
        .fold(objects, |objects, object| objects.with(object.to_string()))
}

/// A neighbour whose clients guess passwords, each of which takes long, delays neither logins nor known users of others.
#[tokio::test(flavor = "multi_thread")]
async fn guesses_at_one_team_do_not_delay_logins_of_another() {
    const GUESSERS: u8 = 40;
    let origin = Origin::echo("origin").await;
    let mut listener: Value =
        serde_json::from_str(r#"{"name": "http", "port": 80, "protocol": "HTTP"}"#).expect("JSON");
    listener["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
    let slow = BCRYPT.replace("$05$", "$10$");
    let objects = Objects::gateway(&[listener.to_string()]);
    let objects = team(objects, "attacked", &origin, &slow);
    let scene = Scene::start(&team(objects, "quiet", &origin, BCRYPT));
    let address = scene.at(80);

    let (answered, busy) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut guessers = Vec::new();
    for guesser in 0..GUESSERS {
        let from = [127, 0, 1, 1 + guesser];
        let mut client =
            Client::http1_on(connect_from(from, address).await.expect("connected")).await;
        let (answered, busy) = (answered.clone(), busy.clone());
        guessers.push(tokio::spawn(async move {
            for guess in 0.. {
                let value = authorization("alice", &format!("{guesser}-{guess}"));
                let request = client.request(Method::GET, "attacked.com", "/");
                let request = request.header("authorization", value).body(empty());
                let Ok(response) = client.send(request.expect("a request")).await else {
                    return;
                };
                match response.status().as_u16() {
                    401 => answered.fetch_add(1, Relaxed),
                    503 if response.headers()["retry-after"] == "1" => busy.fetch_add(1, Relaxed),
                    other => panic!("{other}"),
                };
                // Guesses are many, and do not take all of the time of the workers.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }));
    }
    // The queue of the attacked team is full. Counters have no change notification.
    let full = async {
        while busy.load(Relaxed) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    timeout(TEST_TIMEOUT, full).await.expect("in time");
    let before = answered.load(Relaxed);
    for _ in 0..3 {
        let mut client = Client::http1(address).await;
        let value = authorization("alice", "password");
        let headers = [("authorization", value.as_str())];
        let answer = client.get_with("quiet.com", "/", &headers).await;
        assert_eq!(answer.received()["headers"]["x-user"], "alice");
    }
    // Those that waited when the other team's users came wait still.
    let meanwhile = answered.load(Relaxed) - before;
    assert!(meanwhile < 16, "{meanwhile} guesses were verified before");
    guessers.iter().for_each(tokio::task::JoinHandle::abort);
}
