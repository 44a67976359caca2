//! Session persistence (GEP-1619): requests with the token of a session reach its endpoint, and
//! clients whose token is invalid get a new one.

use std::path::Path;

use http::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, prefix, to, write};

const NAMES: [&str; 4] = ["one", "two", "three", "four"];

fn persistent(mut rule: Value, persistence: Value) -> Value {
    rule["sessionPersistence"] = persistence;
    rule
}

/// An origin for each name.
pub(crate) async fn origins() -> Vec<Origin> {
    let mut origins = Vec::new();
    for name in NAMES {
        origins.push(Origin::echo(name).await);
    }
    origins
}

fn objects(origins: &[Origin], persistence: Value) -> Objects {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    Objects::http()
        .service("app", &addresses)
        .route("route", &[persistent(to("app"), persistence)])
}

async fn send(scene: &Scene, field: Option<(&str, &str)>) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    let mut request = client.request(Method::GET, "a.com", "/");
    if let Some((name, value)) = field {
        request = request.header(name, value);
    }
    client.fetch(request.body(empty()).expect("valid")).await
}

/// Returns name and value of the cookie that a response sets.
pub(crate) fn cookie(answer: &Answer) -> String {
    let (pair, _) = answer
        .header("set-cookie")
        .split_once(';')
        .expect("attributes");
    pair.to_owned()
}

#[tokio::test]
async fn cookie_keeps_a_client_at_its_endpoint() {
    let origins = origins().await;
    let scene = Scene::start(&objects(&origins, json!({})));
    let first = send(&scene, None).await;
    let set = first.header("set-cookie");
    assert!(set.starts_with("portcullis-session-"), "{set}");
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    let token = cookie(&first);
    for _ in 0..20 {
        let again = send(&scene, Some(("cookie", &format!("a=1; {token}")))).await;
        assert_eq!(again.name(), first.name());
        assert!(!again.headers.contains_key("set-cookie"));
    }
    // A client without a session gets any endpoint.
    let mut names = std::collections::BTreeSet::new();
    while names.len() < NAMES.len() {
        names.insert(send(&scene, None).await.name());
    }
}

#[tokio::test]
async fn header_keeps_a_client_at_its_endpoint() {
    let origins = origins().await;
    let persistence = json!({"type": "Header", "sessionName": "X-Session"});
    let scene = Scene::start(&objects(&origins, persistence));
    let first = send(&scene, None).await;
    let token = first.header("x-session");
    for _ in 0..20 {
        let again = send(&scene, Some(("x-session", token))).await;
        assert_eq!(again.name(), first.name());
        assert!(!again.headers.contains_key("x-session"));
    }
}

#[tokio::test]
async fn permanent_cookie_has_an_age_and_is_for_all_paths() {
    let origins = origins().await;
    let persistence = json!({
        "sessionName": "s", "absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"},
    });
    let rule = persistent(prefix("/cart", "app"), persistence);
    let objects = Objects::http()
        .service("app", &[origins[0].address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http2(scene.at(80)).await;
    let answer = client.get("a.com", "/cart/x").await;
    let set = answer.header("set-cookie");
    let attributes = "; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600";
    assert!(set.starts_with("s=") && set.ends_with(attributes), "{set}");
}

#[tokio::test]
async fn session_ends_after_its_absolute_timeout() {
    let origins = origins().await;
    // Sessions count in seconds: one of 1 ms has ended when the next second begins, or at once.
    let scene = Scene::start(&objects(&origins, json!({"absoluteTimeout": "1ms"})));
    let first = cookie(&send(&scene, None).await);
    loop {
        let answer = send(&scene, Some(("cookie", &first))).await;
        if answer.headers.contains_key("set-cookie") {
            assert_ne!(cookie(&answer), first);
            break;
        }
    }
}

#[tokio::test]
async fn session_outlasts_changes_of_weights_and_other_endpoints() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = |weights: [u32; 2], second: &[std::net::SocketAddr]| {
        let refs = json!([
            {"name": "a", "port": 80, "weight": weights[0]},
            {"name": "b", "port": 80, "weight": weights[1]},
        ]);
        let rule = persistent(json!({"backendRefs": refs}), json!({}));
        Objects::http()
            .service("a", &addresses[..2])
            .service("b", second)
            .route("route", &[rule])
    };
    let mut scene = Scene::start(&objects([0, 1], &addresses[2..]));
    let first = send(&scene, None).await;
    let token = cookie(&first);
    let kept = origins.iter().position(|origin| {
        let name = first.name();
        NAMES[origins
            .iter()
            .position(|it| it.address == origin.address)
            .unwrap()]
            == name
    });
    let kept = addresses[kept.expect("an endpoint")];
    for (weights, endpoints) in [
        ([999, 1], &addresses[2..]),
        ([1, 1], &[kept][..]),
        ([999_999, 1], &addresses[2..]),
    ] {
        scene.replace(&objects(weights, endpoints)).await;
        for _ in 0..5 {
            let again = send(&scene, Some(("cookie", &token))).await;
            assert_eq!(again.name(), first.name());
            assert!(!again.headers.contains_key("set-cookie"));
        }
    }
    // With weight 0, only the requests of sessions reach a backend.
    for weights in [[1, 0], [0, 0]] {
        scene.replace(&objects(weights, &addresses[2..])).await;
        let again = send(&scene, Some(("cookie", &token))).await;
        assert_eq!(again.name(), first.name(), "{weights:?}");
        assert!(!again.headers.contains_key("set-cookie"));
        for _ in 0..10 {
            let other = send(&scene, None).await;
            match weights {
                [0, 0] => assert_eq!(other.status, 500),
                _ => assert!(["one", "two"].contains(&other.name().as_str())),
            }
        }
    }
}

#[tokio::test]
async fn session_stays_with_the_weighted_one_of_two_references_to_its_endpoint() {
    let origin = Origin::echo("one").await;
    let marked = |weight: u32, mark: &str| {
        let filter = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {
            "set": [{"name": "x-mark", "value": mark}],
        }});
        json!({"name": "app", "port": 80, "weight": weight, "filters": [filter]})
    };
    let refs = json!({"backendRefs": [marked(0, "old"), marked(1, "new")]});
    let objects = Objects::http()
        .service("app", &[origin.address])
        .route("route", &[persistent(refs, json!({}))]);
    let scene = Scene::start(&objects);
    let token = cookie(&send(&scene, None).await);
    let again = send(&scene, Some(("cookie", &token))).await;
    assert_eq!(again.received()["headers"]["x-mark"], "new");
    assert!(!again.headers.contains_key("set-cookie"));
}

/// Returns a rule for a method of every path.
fn method(method: &str, persistence: &Value) -> Value {
    let mut rule = persistent(to("app"), persistence.clone());
    rule["matches"] = json!([{"method": method}]);
    rule
}

async fn send_method(scene: &Scene, method: Method, token: Option<&str>) -> Answer {
    let mut client = Client::http1(scene.at(80)).await;
    let mut request = client.request(method, "a.com", "/");
    if let Some(token) = token {
        request = request.header("cookie", token);
    }
    client.fetch(request.body(empty()).expect("valid")).await
}

#[tokio::test]
async fn rules_do_not_share_sessions() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let named = json!({"sessionName": "cart"});
    let objects = |rules: &[Value]| {
        Objects::http()
            .service("app", &addresses)
            .route("route", rules)
    };
    let rules = [method("GET", &named), method("PUT", &named)];
    let scene = Scene::start(&objects(&rules));
    let get = send_method(&scene, Method::GET, None).await;
    let put = send_method(&scene, Method::PUT, Some(&cookie(&get))).await;
    assert!(put.headers.contains_key("set-cookie"));
    // The browser has one cookie of this name, which keeps both sessions.
    let both = cookie(&put);
    for _ in 0..10 {
        for (method, first) in [(Method::GET, &get), (Method::PUT, &put)] {
            let again = send_method(&scene, method, Some(&both)).await;
            assert_eq!(again.name(), first.name());
            assert!(!again.headers.contains_key("set-cookie"));
        }
    }
}

#[tokio::test]
async fn sessions_of_a_named_rule_survive_a_new_rule_before_it() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = |rules: &[Value]| {
        Objects::http()
            .service("app", &addresses)
            .route("route", rules)
    };
    let mut rule = method("GET", &json!({}));
    rule["name"] = json!("pages");
    let mut scene = Scene::start(&objects(std::slice::from_ref(&rule)));
    let first = send(&scene, None).await;
    let changed = [method("PUT", &json!({})), rule];
    scene.replace(&objects(&changed)).await;
    let again = send(&scene, Some(("cookie", &cookie(&first)))).await;
    assert_eq!(again.name(), first.name());
    assert!(!again.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn default_names_of_two_routes_with_one_path_differ() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = Objects::http()
        .service("app", &addresses)
        .route("one", &[method("GET", &json!({}))])
        .route(
            "two",
            &[method("PUT", &json!({})), method("POST", &json!({}))],
        );
    let scene = Scene::start(&objects);
    let mut names = std::collections::BTreeSet::new();
    for method in [Method::GET, Method::PUT, Method::POST] {
        let cookie = cookie(&send_method(&scene, method, None).await);
        let (name, _) = cookie.split_once('=').expect("a name");
        names.insert(name.to_owned());
    }
    assert_eq!(names.len(), 3, "{names:?}");
}

#[tokio::test]
async fn session_of_a_removed_endpoint_restarts() {
    let mut origins = origins().await;
    let scene = Scene::start(&objects(&origins, json!({})));
    let first = send(&scene, None).await;
    let token = cookie(&first);
    let lost = NAMES.iter().position(|name| *name == first.name());
    drop(origins.remove(lost.expect("an endpoint")));
    let moved = send(&scene, Some(("cookie", &token))).await;
    assert_ne!(moved.name(), first.name());
    let token = cookie(&moved);
    let again = send(&scene, Some(("cookie", &token))).await;
    assert_eq!(again.name(), moved.name());
}

#[tokio::test]
async fn token_of_another_route_or_key_is_ignored() {
    let origins = origins().await;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let objects = Objects::http()
        .service("app", &addresses)
        .route("one", &[persistent(prefix("/one", "app"), json!({}))])
        .route("two", &[persistent(prefix("/two", "app"), json!({}))]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let token = cookie(&client.get("a.com", "/one").await);
    let fields = [("cookie", token.as_str())];
    let other = client.get_with("a.com", "/two", &fields).await;
    assert!(other.headers.contains_key("set-cookie"));
    let same = client.get_with("a.com", "/one", &fields).await;
    assert!(!same.headers.contains_key("set-cookie"));
    let elsewhere = Scene::start(&objects);
    let mut client = Client::http1(elsewhere.at(80)).await;
    let answer = client.get_with("a.com", "/one", &fields).await;
    assert!(answer.headers.contains_key("set-cookie"));
    let (name, _) = token.split_once('=').expect("a name");
    for forged in ["", "AAAA", "\"", "....", "A.\u{e9}"] {
        let forged = format!("{name}={forged}");
        let answer = client
            .get_with("a.com", "/one", &[("cookie", &forged)])
            .await;
        assert_eq!(answer.status, 200);
        assert!(answer.headers.contains_key("set-cookie"));
    }
}

#[tokio::test]
async fn replicas_with_one_key_share_sessions() {
    let origins = origins().await;
    let keys = tempfile::tempdir().expect("a folder");
    let file = keys.path().join("key");
    std::fs::write(&file, "a secret text of more than 32 bytes\n").expect("written");
    let objects = objects(&origins, json!({}));
    let start = || {
        let prepare = |folder: &Path| write(folder, "objects.yaml", &objects.text());
        Scene::prepared(prepare, |settings| {
            settings.session_key_file = Some(file.clone())
        })
    };
    let first = send(&start(), None).await;
    let again = send(&start(), Some(("cookie", &cookie(&first)))).await;
    assert_eq!(again.name(), first.name());
    assert!(!again.headers.contains_key("set-cookie"));
}
