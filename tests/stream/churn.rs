//! AccessPolicies and their Secrets come, go and come again over the stream under load, also while another controller sends
//! all of them. At every moment each route has a policy, so that no request without a key is redirected. A policy whose Secret
//! is missing or unusable answers 500 for its own scope and nothing else, and requests with a key to other routes never fail.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

use serde_json::{Value, json};

use crate::client::{Client, EndOfLoad};
use crate::controller::{Controller, Stream};
use crate::objects::{canonical, class, gateway, route};
use crate::pod::Node;
use crate::ports::free_ports;
use crate::scale::scaled;

const CLIENTS: usize = 2;
/// Groups of policies, each changed in one commit: those of neighbours, then those of the tested route.
const GROUPS: usize = 20;
const NEIGHBOURS: usize = 15;
/// Policies in each group. The first one has an effect.
const POLICIES: usize = 50;
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// What a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Created,
    /// The Secrets are missing.
    Missing,
    /// The Secrets have another type.
    Unusable,
    Deleted,
}

const PHASES: [Phase; 4] = [
    Phase::Created,
    Phase::Missing,
    Phase::Unusable,
    Phase::Deleted,
];

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

fn by_name(objects: impl IntoIterator<Item = Value>) -> Objects {
    let objects = objects.into_iter().map(|object| {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        ((kind, name), object)
    });
    objects.collect()
}

/// A policy that asks for the keys of a Secret.
fn policy(name: &str, target: &Value, secret: &str) -> Value {
    let mut target = target.clone();
    target["group"] = json!(GATEWAY_API);
    let section =
        json!({"secretRefs": [{"name": secret}], "from": [{"type": "Header", "name": "X-Key"}]});
    canonical(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"targetRefs": [target], "apiKey": section},
    }))
}

fn secret(name: &str, kind: &str, values: &Value) -> Value {
    canonical(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "type": kind, "stringData": values,
    }))
}

fn keys(name: &str, key: &str) -> Value {
    secret(name, "Opaque", &json!({"client": key}))
}

fn unusable(name: &str) -> Value {
    let values = json!({"username": "a", "password": "b"});
    secret(name, "kubernetes.io/basic-auth", &values)
}

fn of_route(name: &str) -> Value {
    json!({"kind": "HTTPRoute", "name": name})
}

fn neighbour(group: usize) -> String {
    format!("neighbour-{group}")
}

/// The key of the policies of a group.
fn key_of(group: usize) -> String {
    format!("key-{group}")
}

/// The policies of a group with their Secrets. `z` puts those of the tested route after its own policy.
fn group(group: usize, phase: Phase) -> Objects {
    if phase == Phase::Deleted {
        return Objects::new();
    }
    let target = match group < NEIGHBOURS {
        true => of_route(&neighbour(group)),
        false => of_route("tested"),
    };
    let objects = (0..POLICIES).flat_map(|index| {
        let name = format!("z-{group:02}-{index:02}");
        let policy = policy(&name, &target, &name);
        let secret = match phase {
            Phase::Created => Some(keys(&name, &key_of(group))),
            Phase::Unusable => Some(unusable(&name)),
            Phase::Missing | Phase::Deleted => None,
        };
        [Some(policy), secret].into_iter().flatten()
    });
    by_name(objects)
}

/// The policy of the tested route, with the Secret: by turns the same, one of another name in its place, one without its
/// Secret, and one whose Secret is unusable.
fn tested(turn: usize) -> Objects {
    let target = of_route("tested");
    let policy = |name: &str| policy(name, &target, "own");
    by_name(match turn % 4 {
        1 => vec![policy("another"), keys("own", "own")],
        2 => vec![policy("own")],
        3 => vec![policy("own"), unusable("own")],
        _ => vec![policy("own"), keys("own", "own")],
    })
}

fn is_broken(turn: usize) -> bool {
    matches!(turn % 4, 2 | 3)
}

/// A Gateway whose first listener has a policy, with a route for each neighbour and one that is not touched. The tested route
/// is that of the second listener, so that it has its own policy alone.
fn fixed([protected, second]: [u16; 2]) -> Objects {
    let on = |port: u16, name: &str| {
        let mut route = route(name, "one");
        route["spec"]["parentRefs"][0]["sectionName"] = json!(format!("port-{port}"));
        route
    };
    let listener =
        json!({"kind": "Gateway", "name": "edge", "sectionName": format!("port-{protected}")});
    let neighbours = (0..NEIGHBOURS).map(|group| on(protected, &neighbour(group)));
    let objects = [
        class(),
        gateway(&[protected, second]),
        on(protected, "calm"),
        on(second, "tested"),
        policy("all", &listener, "all"),
        keys("all", "all"),
    ];
    by_name(objects.into_iter().chain(neighbours))
}

/// A controller, and what the pod has of it.
struct Feed<'a> {
    node: &'a Node,
    controller: Controller,
    stream: Stream,
    /// How many controllers there were.
    instances: u64,
    revision: u64,
    /// The objects of each group, then those of the tested route, then those that never change.
    parts: Vec<Objects>,
}

impl<'a> Feed<'a> {
    /// Sends all objects to a pod.
    fn start(node: &'a Node, parts: Vec<Objects>, controller: Controller) -> Self {
        let stream = controller.accept();
        let mut feed = Self {
            node,
            controller,
            stream,
            instances: 0,
            revision: 0,
            parts,
        };
        feed.send_all();
        feed
    }

    /// Has another controller send all objects.
    fn replace_controller(&mut self) {
        self.controller = self.node.controller();
        self.node.service.cut();
        self.stream = self.controller.accept();
        self.send_all();
    }

    fn send_all(&mut self) {
        self.instances += 1;
        self.revision = 0;
        self.stream.begin(&self.instances.to_string(), None);
        for object in self.parts.iter().flat_map(BTreeMap::values) {
            self.stream.put(object.clone());
        }
        self.commit();
    }

    /// Replaces a part in one commit, and waits until it is served.
    fn replace(&mut self, part: usize, objects: Objects) {
        let before = mem::replace(&mut self.parts[part], objects);
        let after = &self.parts[part];
        for (kind, name) in before.keys().filter(|name| !after.contains_key(*name)) {
            let group = if kind == "Secret" {
                ""
            } else {
                "portcullis.dev"
            };
            self.stream.delete(group, kind, name);
        }
        for (name, object) in after {
            if before.get(name) != Some(object) {
                self.stream.put(object.clone());
            }
        }
        self.commit();
    }

    fn commit(&mut self) {
        self.revision += 1;
        self.stream.commit(self.revision);
        let position = format!("{}/{}", self.instances, self.revision);
        self.stream.report_of(&position);
    }
}

/// What the clients share.
struct Load {
    protected: u16,
    tested: u16,
    /// The last turn of the tested policy that is served for certain.
    applied: AtomicUsize,
    /// The last one that may be served.
    written: AtomicUsize,
    sent: AtomicUsize,
    /// Requests to the tested route with its key that were redirected.
    served: AtomicUsize,
    is_over: AtomicBool,
}

impl Load {
    /// Sends requests over two connections, by turns without and with a key.
    fn run(&self, first: usize) {
        let mut protected = Client::connect(self.protected);
        let mut tested = Client::connect(self.tested);
        let mut round = first;
        while !self.is_over.load(SeqCst) {
            let host = neighbour(round * 7 % NEIGHBOURS);
            let (client, host) = match round % 4 {
                0 => (&mut protected, "calm"),
                1 => (&mut tested, "tested"),
                _ => (&mut protected, &*host),
            };
            let applied = self.applied.load(SeqCst);
            let status = client.status(host, "");
            let may_fail = match host {
                "calm" => false,
                "tested" => self.was_broken(applied),
                _ => true,
            };
            assert!(
                status == 401 || may_fail && status == 500,
                "without a key: {status} of {host}"
            );
            let status = protected.status("calm", "X-Key: all\r\n");
            assert_eq!(status, 302, "a route that is not touched");
            self.with_key(&mut tested);
            self.sent.fetch_add(4, SeqCst);
            round += 1;
        }
    }

    /// Sends two requests to the tested route, one of them with its key.
    fn with_key(&self, tested: &mut Client) {
        let applied = self.applied.load(SeqCst);
        let own = tested.status("tested", "X-Key: own\r\n");
        let other = tested.status("tested", "X-Key: all\r\n");
        let may_fail = self.was_broken(applied);
        assert!(own == 302 || may_fail && own == 500, "with its key: {own}");
        assert!(
            other == 401 || may_fail && other == 500,
            "with another key: {other}"
        );
        self.served.fetch_add(usize::from(own == 302), SeqCst);
    }

    /// Reports whether the policy of the tested route may have been broken since a turn.
    fn was_broken(&self, applied: usize) -> bool {
        let written = self.written.load(SeqCst);
        (applied..=written).any(is_broken)
    }
}

/// Returns the statuses of requests without and with a key.
fn statuses(port: u16, host: &str, key: &str) -> (u16, u16) {
    let mut client = Client::connect(port);
    let none = client.status(host, "");
    (none, client.status(host, &format!("X-Key: {key}\r\n")))
}

/// Changes a group, and checks the effect.
fn step(feed: &mut Feed<'_>, load: &Load, number: usize, phase: Phase) {
    feed.replace(number, group(number, phase));
    // Those of the tested route have an effect on nothing, since an older one has it.
    if number >= NEIGHBOURS {
        return;
    }
    let found = statuses(load.protected, &neighbour(number), &key_of(number));
    let expected = match phase {
        Phase::Created => (401, 302),
        Phase::Missing | Phase::Unusable => (500, 500),
        // The policy of the listener has another key.
        Phase::Deleted => (401, 401),
    };
    assert_eq!(found, expected, "{} {phase:?}", neighbour(number));
}

/// Replaces the policy of the tested route, and checks the effect.
fn turn(feed: &mut Feed<'_>, load: &Load) {
    let next = load.written.load(SeqCst) + 1;
    load.written.store(next, SeqCst);
    feed.replace(GROUPS, tested(next));
    load.applied.store(next, SeqCst);
    let expected = match is_broken(next) {
        true => (500, 500),
        false => (401, 302),
    };
    let found = statuses(load.tested, "tested", "own");
    assert_eq!(found, expected, "turn {next}");
}

/// All changes of all groups, each of them in another phase, once.
fn churn(feed: &mut Feed<'_>, load: &Load, has_failed: impl Fn() -> bool) {
    for phase in 0..PHASES.len() {
        for number in 0..GROUPS {
            assert!(!has_failed(), "a client has failed");
            let phase = PHASES[(phase + number) % PHASES.len()];
            step(feed, load, number, phase);
            if number.is_multiple_of(4) {
                turn(feed, load);
            }
        }
    }
    feed.replace_controller();
}

#[test]
fn no_request_passes_without_a_key_while_policies_change() {
    let requests = scaled(25_000) as usize;
    let node = Node::new();
    let [second] = free_ports();
    let controller = node.controller();
    let _pod = node.start();
    let groups = (0..GROUPS).map(|number| {
        let phase = PHASES[(number + PHASES.len() - 1) % PHASES.len()];
        group(number, phase)
    });
    let parts = groups.chain([tested(0), fixed([node.port, second])]);
    let mut feed = Feed::start(&node, parts.collect(), controller);
    let load = Load {
        protected: node.port,
        tested: second,
        applied: AtomicUsize::new(0),
        written: AtomicUsize::new(0),
        sent: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let load = &load;
        let _end = EndOfLoad(&load.is_over);
        let clients = (0..CLIENTS).map(|first| scope.spawn(move || load.run(first)));
        let clients: Vec<_> = clients.collect();
        let has_failed = || clients.iter().any(thread::ScopedJoinHandle::is_finished);
        while load.sent.load(SeqCst) < requests {
            churn(&mut feed, load, has_failed);
        }
    });
    let (sent, served) = (load.sent.load(SeqCst), load.served.load(SeqCst));
    let turns = load.applied.load(SeqCst);
    println!(
        "{sent} requests, {served} of them served by the tested route, {turns} changes of its policy"
    );
    assert!(served > 0);
}
