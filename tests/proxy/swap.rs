//! Reloads under load: every response is complete and comes from exactly one configuration.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::client::{Answer, Client};
use crate::harness::TEST_TIMEOUT;
use crate::harness::scale::scaled;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, route, write};

/// Responses per reload: 2,000 a second and a reload every 15 ms, which is the maximum rate of
/// reloads.
const ANSWERS: usize = 30;
const CLIENTS: usize = 8;
/// All clients together send 2,666 requests a second, and catch up when late.
const PERIOD: Duration = Duration::from_millis(3);

/// Returns the route of one configuration. Hostname, path, header filters, path rewrite and backend
/// all contain its name.
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

/// Returns the configuration of a response; `None` for an error or a mix of two.
fn source(answer: &Answer) -> Option<String> {
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

/// Responses by configuration.
#[derive(Clone, Copy, Default)]
struct Seen {
    a: usize,
    b: usize,
}

impl Seen {
    fn all(&self) -> usize {
        self.a + self.b
    }

    fn of(&self, name: &str) -> usize {
        if name == "a" { self.a } else { self.b }
    }
}

/// Sends requests until the receiver is dropped.
async fn load(mut client: Client, seen: watch::Sender<Seen>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !seen.is_closed() {
        ticks.tick().await;
        let answer = client.get("swap.example.com", "/path").await;
        seen.send_modify(|seen| match source(&answer).as_deref() {
            Some("a") => seen.a += 1,
            Some("b") => seen.b += 1,
            _ => panic!("an error, or a mixture: {answer:?}"),
        });
    }
}

/// Publishes a configuration and waits until it has served enough responses.
async fn flip(scene: &mut Scene, name: &str, seen: &mut watch::Receiver<Seen>) {
    let before = *seen.borrow();
    let generation = scene.last().generation;
    write(scene.folder(), "route.yaml", &configuration(name));
    let outcome = scene.outcome_with(|outcome| outcome.generation > generation);
    assert_eq!(outcome.await.generation, generation + 1);
    let enough = seen
        .wait_for(|seen| seen.all() >= before.all() + ANSWERS && seen.of(name) > before.of(name));
    let enough = timeout(TEST_TIMEOUT, enough).await.expect("in time");
    enough.expect("clients");
}

/// Reloads are paced by responses and not by time: on a busy machine both take longer, and every
/// reload still overlaps as many requests as at 2,000 a second.
#[tokio::test]
async fn no_response_is_lost_or_mixed_during_reloads() {
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
    let (sender, mut seen) = watch::channel(Seen::default());
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        // Half of them use HTTP/2.
        let client = match index % 2 {
            0 => Client::http1(scene.at(80)).await,
            _ => Client::http2(scene.at(80)).await,
        };
        clients.spawn(load(client, sender.clone()));
    }
    let flips = scaled(250) as usize;
    let start = Instant::now();
    for count in 0..flips {
        tokio::select! {
            biased;
            ended = clients.join_next() => panic!("a client ended at flip {count}: {ended:?}"),
            () = flip(&mut scene, ["a", "b"][count % 2], &mut seen) => {}
        }
    }
    let (answers, taken) = (seen.borrow().all(), start.elapsed());
    println!("{answers} answers and {flips} flips in {taken:?}");
    assert!(answers >= flips * ANSWERS);
    drop(seen);
    while let Some(client) = clients.join_next().await {
        client.expect("no error");
    }
}
