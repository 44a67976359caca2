//! AccessPolicies and their Secrets are created, changed, deleted and made again under load. At every moment at which a
//! policy of a route exists in the configuration that is served, no request without a credential reaches its backend. A
//! policy whose Secret is missing or unusable answers 500 for its own scope and nothing else, and requests with a
//! credential to other routes never fail.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::access_policy::{access, gateway};
use crate::client::Client;
use crate::credentials::secret;
use crate::harness::scale::scaled;
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, prefix, route, to, write};

const CLIENTS: usize = 8;
/// Files of policies: those of neighbours, then those of the tested route, then those of one of its rules.
const FILES: usize = 50;
const NEIGHBOURS: usize = 40;
const OF_RULE: usize = 45;
/// Policies in each file, of which the oldest has an effect.
const POLICIES: usize = 20;
/// How long all of it may take on a busy machine.
const LONGEST: Duration = Duration::from_secs(540);

/// What a file of policies has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Created,
    Changed,
    /// The Secrets are missing.
    Missing,
    Deleted,
    Again,
    /// The Secrets have another type.
    Unusable,
}

const PHASES: [Phase; 6] = [
    Phase::Created,
    Phase::Changed,
    Phase::Missing,
    Phase::Deleted,
    Phase::Again,
    Phase::Unusable,
];

impl Phase {
    fn is_broken(self) -> bool {
        matches!(self, Self::Missing | Self::Unusable)
    }

    fn revision(self) -> &'static str {
        if self == Self::Changed { "new" } else { "old" }
    }
}

/// A policy that asks for the keys of a Secret.
fn policy(name: &str, target: &Value, secret: &str) -> String {
    let section =
        json!({"secretRefs": [{"name": secret}], "from": [{"type": "Header", "name": "X-Key"}]});
    access(name, target, &json!({"apiKey": section}))
}

fn keys(name: &str, key: &str) -> String {
    secret(name, &json!({"client": key}))
}

fn unusable(name: &str) -> String {
    let keys = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/basic-auth",
        "stringData": {"username": "a", "password": "b"},
    });
    keys.to_string()
}

/// The target of the policies of a file.
fn target(file: usize) -> Value {
    let of_route = |name: &str| json!({"kind": "HTTPRoute", "name": name});
    match file {
        file if file < NEIGHBOURS => of_route(&format!("neighbour-{file}")),
        file if file < OF_RULE => of_route("tested"),
        _ => json!({"kind": "HTTPRoute", "name": "tested", "sectionName": "rule"}),
    }
}

/// The key of a policy of a file.
fn key_of(file: usize, index: usize, phase: Phase) -> String {
    format!("{}-{file}-{index}", phase.revision())
}

/// The policies of a file with their Secrets. `z` puts those of the tested route after its own policy.
fn file(file: usize, phase: Phase) -> String {
    if phase == Phase::Deleted {
        return String::new();
    }
    let policies = (0..POLICIES).map(|index| {
        let name = format!("z-{file:02}-{index:02}");
        let policy = policy(&name, &target(file), &name);
        match phase {
            Phase::Missing => policy,
            // Backends get the key, which changes the policy, too.
            Phase::Changed => {
                let policy = policy.replace("\"from\"", "\"keep\":true,\"from\"");
                format!(
                    "{policy}\n---\n{}",
                    keys(&name, &key_of(file, index, phase))
                )
            }
            Phase::Unusable => format!("{policy}\n---\n{}", unusable(&name)),
            _ => format!(
                "{policy}\n---\n{}",
                keys(&name, &key_of(file, index, phase))
            ),
        }
    });
    policies.collect::<Vec<_>>().join("\n---\n")
}

/// The policy of the tested route, with the Secret: by turns the same, one of another name in its place, one with two
/// Secrets, one without its Secret, and one whose Secret is unusable.
fn tested(turn: usize) -> String {
    let of_route = target(NEIGHBOURS);
    let own = keys("own", "own");
    match turn % 6 {
        1 => format!("{}\n---\n{own}", policy("another", &of_route, "own")),
        2 => policy("own", &of_route, "own"),
        4 => {
            let mut two: Value =
                serde_json::from_str(&policy("own", &of_route, "own")).expect("valid");
            two["spec"]["apiKey"]["secretRefs"] = json!([{"name": "own"}, {"name": "second"}]);
            format!("{two}\n---\n{own}\n---\n{}", keys("second", "second"))
        }
        5 => format!(
            "{}\n---\n{}",
            policy("own", &of_route, "own"),
            unusable("own")
        ),
        _ => format!("{}\n---\n{own}", policy("own", &of_route, "own")),
    }
}

fn is_broken(turn: usize) -> bool {
    matches!(turn % 6, 2 | 5)
}

/// Which turns of the tested policy requests may meet.
#[derive(Default)]
struct Turns {
    /// The last one that is served for certain.
    applied: AtomicUsize,
    /// The last one that may be served.
    written: AtomicUsize,
}

/// What the load shares.
struct Load {
    protected: SocketAddr,
    tested: SocketAddr,
    turns: Turns,
    /// Number of requests, of which half have a credential.
    requests: usize,
    sent: AtomicUsize,
    /// Requests to the tested route with a credential that were served.
    served: AtomicUsize,
    /// Set once all changes are made.
    is_over: AtomicBool,
}

/// The number of routes that requests without credential go to by turns.
const KINDS: usize = 5;

impl Load {
    /// Sends requests over two connections, by turns without and with a credential.
    async fn run(&self, first: usize) {
        let (mut protected, mut tested) = match first % 2 {
            0 => (
                Client::http1(self.protected).await,
                Client::http1(self.tested).await,
            ),
            _ => (
                Client::http2(self.protected).await,
                Client::http2(self.tested).await,
            ),
        };
        let mut round = first;
        while self.sent.load(SeqCst) < self.requests || !self.is_over.load(SeqCst) {
            let host = format!("neighbour-{}", round * 7 % NEIGHBOURS);
            let (client, host, path) = match round % KINDS {
                0 => (&mut protected, "calm", "/"),
                1 | 2 => (&mut protected, &*host, "/"),
                3 => (&mut tested, "tested", "/rule"),
                _ => (&mut tested, "tested", "/"),
            };
            let applied = self.turns.applied.load(SeqCst);
            let status = client.get(host, path).await.status;
            let may_fail =
                host != "calm" && (path == "/rule" || host != "tested" || self.was_broken(applied));
            assert!(
                status == 401 || may_fail && status == 500,
                "without credential: {status} of {host}{path}"
            );
            let status = protected
                .get_with("calm", "/", &[("x-key", "all")])
                .await
                .status;
            assert_eq!(status, 200, "a route that is not touched");
            self.sent.fetch_add(2, SeqCst);
            if round.is_multiple_of(2) {
                self.with_credential(&mut tested, round).await;
            }
            round += 1;
        }
    }

    /// Sends two requests to the tested route, one of them with a credential.
    async fn with_credential(&self, tested: &mut Client, round: usize) {
        let applied = self.turns.applied.load(SeqCst);
        let answer = tested.get_with("tested", "/", &[("x-key", "own")]).await;
        let is_served = answer.status == 200;
        assert!(
            is_served || answer.status == 500 && self.was_broken(applied),
            "with credential: {answer:?}"
        );
        self.served.fetch_add(usize::from(is_served), SeqCst);
        let applied = self.turns.applied.load(SeqCst);
        let headers = [("x-key", if round.is_multiple_of(4) { "wrong" } else { "" })];
        let status = tested.get_with("tested", "/", &headers).await.status;
        assert!(
            status == 401 || status == 500 && self.was_broken(applied),
            "with a wrong credential: {status}"
        );
        self.sent.fetch_add(2, SeqCst);
    }

    /// Reports whether the policy of the tested route may have been broken since a turn.
    fn was_broken(&self, applied: usize) -> bool {
        let written = self.turns.written.load(SeqCst);
        (applied..=written).any(is_broken)
    }
}

/// Replaces a file, and waits until it is served. What has no effect changes no table, so that the generation stays.
async fn replace(scene: &mut Scene, name: &str, text: &str) {
    let before = scene.last().load;
    write(scene.folder(), name, text);
    let outcome = scene.outcome_with(|outcome| !Arc::ptr_eq(&outcome.load, &before));
    outcome.await;
}

/// Changes a file of policies, and checks the effect.
async fn step(scene: &mut Scene, load: &Load, index: usize, phase: Phase) {
    replace(scene, &format!("{index}.yaml"), &file(index, phase)).await;
    let (address, host, path) = match index {
        index if index < NEIGHBOURS => (load.protected, format!("neighbour-{index}"), "/"),
        // Policies of the route itself have an effect on nothing, since an older one has it.
        index if index < OF_RULE => return,
        _ => (load.tested, "tested".to_owned(), "/rule"),
    };
    // The files of the rule share it: the first of them has an effect.
    if index > OF_RULE {
        return;
    }
    let key = key_of(index, 0, phase);
    let mut client = Client::http1(address).await;
    let none = client.get(&host, path).await.status;
    let own = client
        .get_with(&host, path, &[("x-key", &key)])
        .await
        .status;
    let expected = match phase {
        _ if phase.is_broken() => (500, 500),
        Phase::Deleted => (401, 401),
        _ => (401, 200),
    };
    if index < OF_RULE || phase != Phase::Deleted {
        assert_eq!((none, own), expected, "{host}{path} {phase:?}");
    }
}

/// Replaces the policy of the tested route, and checks the effect.
async fn turn(scene: &mut Scene, load: &Load) {
    let next = load.turns.written.load(SeqCst) + 1;
    load.turns.written.store(next, SeqCst);
    replace(scene, "tested.yaml", &tested(next)).await;
    load.turns.applied.store(next, SeqCst);
    let mut client = Client::http1(load.tested).await;
    let none = client.get("tested", "/").await.status;
    let own = client
        .get_with("tested", "/", &[("x-key", "own")])
        .await
        .status;
    let expected = if is_broken(next) {
        (500, 500)
    } else {
        (401, 200)
    };
    assert_eq!((none, own), expected, "turn {next}");
}

/// All changes of all files: each of them is in another phase.
async fn churn(scene: &mut Scene, load: &Load) -> usize {
    let mut steps = 0_usize;
    while steps == 0 || load.sent.load(SeqCst) < load.requests {
        for phase in 0..PHASES.len() {
            for index in 0..FILES {
                let phase = PHASES[(phase + index) % PHASES.len()];
                step(scene, load, index, phase).await;
                steps += 1;
                if steps.is_multiple_of(4) {
                    turn(scene, load).await;
                }
                if steps > FILES * PHASES.len() && load.sent.load(SeqCst) >= load.requests {
                    return steps;
                }
            }
        }
    }
    steps
}

/// A Gateway whose policy asks for a key on all routes, and one whose route has a policy of its own alone.
fn objects(origin: &Origin) -> Objects {
    let mut rule = prefix("/rule", "origin");
    rule["name"] = json!("rule");
    let rules = Value::from(vec![to("origin"), rule]).to_string();
    let names = (0..NEIGHBOURS).map(|index| format!("neighbour-{index}"));
    let names = names.chain(["calm".to_owned()]);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .with(yaml::gateway("other", &[http("http", 8080, "")]))
        .with(yaml::route("tested", "other", &[], &rules))
        .with(policy("all", &gateway(), "all"))
        .with(keys("all", "all"));
    names.fold(objects, |objects, name| {
        objects.with(route(&name, &[&*name], &[to("origin")]))
    })
}

#[tokio::test]
async fn no_request_passes_without_credential_while_policies_change() {
    let origin = Origin::echo("origin").await;
    let objects = objects(&origin);
    let mut scene = Scene::prepared(
        |folder| {
            write(folder, "objects.yaml", &objects.text());
            write(folder, "tested.yaml", &tested(0));
            for index in 0..FILES {
                let phase = PHASES[(index + PHASES.len() - 1) % PHASES.len()];
                write(folder, &format!("{index}.yaml"), &file(index, phase));
            }
        },
        |_| {},
    );
    let load = Arc::new(Load {
        protected: scene.at(80),
        tested: scene.at(8080),
        turns: Turns::default(),
        requests: scaled(25_000) as usize,
        sent: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        let load = load.clone();
        clients.spawn(async move { load.run(index).await });
    }
    let begin = Instant::now();
    let steps = tokio::select! {
        biased;
        ended = clients.join_next() => panic!("a client ended: {ended:?}"),
        steps = tokio::time::timeout(LONGEST, churn(&mut scene, &load)) => steps.expect("in time"),
    };
    let taken = begin.elapsed();
    load.is_over.store(true, SeqCst);
    while let Some(client) = clients.join_next().await {
        client.expect("no error");
    }
    let (sent, served) = (load.sent.load(SeqCst), load.served.load(SeqCst));
    let turns = load.turns.applied.load(SeqCst);
    println!(
        "{sent} requests, {served} of them served by the tested route, {steps} changes of {POLICIES} policies and {turns} of \
         the tested one in {taken:?}"
    );
    assert!(sent >= load.requests && served > 0);
}
