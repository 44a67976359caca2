//! Configurations swapped under load: every answer is whole, and comes from one configuration alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{Answer, Client};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, route, write};

const FLIPS: usize = 1000;
const CLIENTS: usize = 8;
/// 2,000 requests per second of all clients.
const PAUSE: Duration = Duration::from_millis(4);

/// The route of one configuration: hostname, path, both directions' fields, path rewrite and backend all tell its name.
fn configuration(name: &str) -> String {
    let (host, path) = match name {
        "a" => (
            "swap.example.com",
            json!({"type": "Exact", "value": "/path"}),
        ),
        _ => ("*.example.com", json!({"type": "PathPrefix", "value": "/"})),
    };
    let field = |name: &str| json!({"set": [{"name": "x-configuration", "value": name}]});
    let full = json!({"type": "ReplaceFullPath", "replaceFullPath": format!("/{name}")});
    let rule = json!({
        "matches": [{"path": path}],
        "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": field(name)},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": field(name)},
            {"type": "URLRewrite", "urlRewrite": {"hostname": format!("{name}.org"), "path": full}},
        ],
        "backendRefs": [{"name": name, "port": 80}],
    });
    route("swapped", &[host], &[rule])
}

/// The configuration that an answer comes from; nothing when it is an error or mixes two.
fn whole(answer: &Answer) -> Option<String> {
    if answer.status != 200 {
        return None;
    }
    let received: Value = serde_json::from_slice(&answer.body).ok()?;
    let name = answer.header("x-configuration").to_owned();
    let agree = received["name"] == *name
        && received["headers"]["x-configuration"] == *name
        && received["headers"]["host"] == *format!("{name}.org")
        && received["path"] == *format!("/{name}");
    agree.then_some(name)
}

/// What the clients have seen.
#[derive(Default)]
struct Seen {
    a: AtomicUsize,
    b: AtomicUsize,
    done: AtomicBool,
}

async fn load(mut client: Client, seen: Arc<Seen>) {
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !seen.done.load(Relaxed) {
        ticks.tick().await;
        let answer = client.get("swap.example.com", "/path").await;
        match whole(&answer).as_deref() {
            Some("a") => seen.a.fetch_add(1, Relaxed),
            Some("b") => seen.b.fetch_add(1, Relaxed),
            _ => panic!("an error, or a mixture: {answer:?}"),
        };
    }
}

#[tokio::test]
async fn no_answer_is_lost_or_mixed_while_routes_flip() {
    let a = Origin::echo("a").await;
    let b = Origin::echo("b").await;
    let objects = Objects::http()
        .service("a", &[a.address])
        .service("b", &[b.address]);
    let mut scene = Scene::prepared(
        |folder| {
            write(folder, "objects.yaml", &objects.text());
            write(folder, "route.yaml", &configuration("b"));
        },
        |_| {},
    );
    let seen = Arc::new(Seen::default());
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        // Half of them over HTTP/2.
        let client = match index % 2 {
            0 => Client::http1(scene.at(80)).await,
            _ => Client::http2(scene.at(80)).await,
        };
        clients.spawn(load(client, seen.clone()));
    }
    for flip in 0..FLIPS {
        let before = scene.last().generation;
        let name = ["a", "b"][flip % 2];
        write(scene.folder(), "route.yaml", &configuration(name));
        let flipped = scene.outcome_with(|outcome| outcome.generation > before);
        tokio::select! {
            biased;
            ended = clients.join_next() => panic!("a client ended at flip {flip}: {ended:?}"),
            outcome = flipped => assert_eq!(outcome.generation, before + 1),
        }
    }
    seen.done.store(true, Relaxed);
    while let Some(client) = clients.join_next().await {
        client.expect("no error");
    }
    let (a, b) = (seen.a.load(Relaxed), seen.b.load(Relaxed));
    assert!(a > FLIPS && b > FLIPS, "a {a}, b {b}");
}
