//! Limits that several pods share: what the pods of a Gateway admit together, over the connections that they have between
//! them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::Client;
use crate::controller::{Controller, Stream};
use crate::eventually;
use crate::objects::{object, route};
use crate::pod::{Node, Pod};
use crate::ports::free_ports;
use crate::scale::scaled;

pub(crate) const SECRET: &str = "the secret of the Gateway, which all of its pods have";
/// Requests in a second.
const LIMIT: f64 = 100.0;
const BURST: f64 = 50.0;

/// The environments of the pods of a Gateway.
pub(crate) fn nodes<const N: usize>() -> [Node; N] {
    let [port] = free_ports();
    let mut number = 0;
    [(); N].map(|()| {
        number += 1;
        let address = Ipv4Addr::new(127, 0, 1, number);
        let mut node = Node::new();
        node.peers = Some(SocketAddr::new(address.into(), port));
        node
    })
}

/// A rule with the limit and more fields.
fn one(rule: &str) -> String {
    format!(
        "{{name: one, limit: {{requests: {LIMIT}, per: Second, burst: {BURST}}}, scope: Gateway, {rule}}}"
    )
}

fn policy(rules: &str) -> Value {
    object(&format!(
        "
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: shared, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: edge}}]
  rules: [{rules}]
"
    ))
}

/// A pod with its controller and its stream.
pub(crate) struct Running<'a> {
    pub(crate) pod: Pod<'a>,
    stream: Stream,
    name: String,
    address: IpAddr,
    pub(crate) port: u16,
    _controller: Controller,
}

/// Starts a pod with these rules of limits, if there are any.
pub(crate) fn start<'a>(node: &'a Node, secret: &str, rules: &str) -> Running<'a> {
    let controller = node.controller();
    let pod = node.start();
    let stream = controller.accept();
    let limits = (!rules.is_empty()).then(|| policy(rules));
    stream
        .begin("first", None)
        .secret(secret)
        .put_all(&node.objects())
        .put(route("a", "one"))
        .put_all(limits.as_slice())
        .commit(1);
    stream.report_of("first/1");
    let address = node.peers.unwrap().ip();
    Running {
        pod,
        stream,
        name: format!("pod-{address}"),
        address,
        port: node.port,
        _controller: controller,
    }
}

/// Names the pods to each other.
pub(crate) fn list(pods: &[Running<'_>], ready: &[usize]) {
    let ready = ready
        .iter()
        .map(|at| (pods[*at].name.clone(), pods[*at].address));
    let ready: Vec<_> = ready.collect();
    for pod in pods {
        pod.stream.pods(&pod.name, &ready);
    }
}

/// Waits until a pod misses so many others.
pub(crate) fn wait_until_away(pod: &Running<'_>, count: u64) {
    eventually(|| pod.pod.metric("limit_peers_away"), |away| *away == count);
}

fn started<'a>(nodes: &'a [Node], rule: &str) -> Vec<Running<'a>> {
    started_with(nodes, &one(rule))
}

/// Starts pods with these rules, and waits until they know each other.
pub(crate) fn started_with<'a>(nodes: &'a [Node], rules: &str) -> Vec<Running<'a>> {
    let pods = nodes.iter().map(|node| start(node, SECRET, rules));
    let pods: Vec<_> = pods.collect();
    let all: Vec<_> = (0..pods.len()).collect();
    list(&pods, &all);
    // Until the list has arrived, no pod is missed.
    thread::sleep(Duration::from_millis(300));
    for pod in &pods {
        wait_until_away(pod, 0);
    }
    // Each counts the others only once it has heard of them, too.
    thread::sleep(Duration::from_millis(600));
    pods
}

/// Requests that were sent.
struct Sent {
    /// In order.
    times: Vec<Instant>,
    admitted: f64,
}

impl Sent {
    /// The number of these requests that one limit with a burst admits, however unevenly a busy machine has sent them. Admitted
    /// requests take a burst that is full.
    fn admitted_by(&self, limit: f64, burst: f64) -> f64 {
        let (mut admitted, mut tokens, mut last) = (0.0, burst, self.times.first().copied());
        for time in &self.times {
            let passed = last.map_or(Duration::ZERO, |last| *time - last);
            tokens = (tokens + passed.as_secs_f64() * limit).min(burst);
            last = Some(*time);
            if tokens >= 1.0 {
                (tokens, admitted) = (tokens - 1.0, admitted + 1.0);
            }
        }
        admitted
    }

    /// The most that a limit and its burst admit meanwhile.
    fn most(&self, limit: f64) -> f64 {
        let (first, last) = (self.times.first(), self.times.last());
        let time = last
            .zip(first)
            .map_or(Duration::ZERO, |(last, first)| *last - *first);
        1.05 * limit * time.as_secs_f64() + BURST
    }

    /// Fails unless this part of what a limit admits was admitted, and no more than it and a burst.
    fn check(&self, part: f64, limit: f64) {
        // A burst may be used up by requests before these.
        let least = part * (self.admitted_by(limit, BURST) - BURST);
        let admitted = self.admitted;
        assert!(admitted >= least, "{admitted}, not {least}");
        assert!(
            admitted <= self.most(limit),
            "{admitted}, not at most {}",
            self.most(limit)
        );
    }
}

/// Sends requests over one connection at a rate for a time.
fn send(port: u16, per_second: f64, time: Duration) -> Sent {
    let mut client = Client::connect(port);
    let begun = Instant::now();
    let mut sent = Sent {
        times: Vec::new(),
        admitted: 0.0,
    };
    // The rate of a while is the subject of the test.
    while begun.elapsed() < time {
        if begun.elapsed().as_secs_f64() * per_second < sent.times.len() as f64 {
            // The pace of the requests.
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        sent.times.push(Instant::now());
        match client.status("a", "") {
            302 => sent.admitted += 1.0,
            429 => {}
            other => panic!("{other}"),
        }
    }
    sent
}

/// Sends requests to several pods at the same time.
fn send_to(pods: &[&Running<'_>], per_second: f64, time: Duration) -> Sent {
    let ports: Vec<_> = pods.iter().map(|pod| pod.port).collect();
    let clients = ports.into_iter();
    let clients: Vec<_> = clients
        .map(|port| thread::spawn(move || send(port, per_second, time)))
        .collect();
    let of_pods: Vec<_> = clients.into_iter().map(|it| it.join().unwrap()).collect();
    let mut times: Vec<_> = of_pods
        .iter()
        .flat_map(|it| it.times.iter().copied())
        .collect();
    times.sort_unstable();
    Sent {
        times,
        admitted: of_pods.iter().map(|it| it.admitted).sum(),
    }
}

const TIME: Duration = Duration::from_secs(4);
const KEYED: &str = "key: [{type: ClientIP}]";

#[test]
fn one_connection_gets_the_limit_from_every_pod_and_all_together_no_more() {
    let numbers = if scaled(1) > 1 { 1..=4 } else { 3..=3 };
    for number in numbers {
        let nodes = nodes::<4>();
        let pods = started(&nodes[..number], KEYED);
        for pod in &pods {
            send_to(&[pod], 300.0, TIME).check(0.95, LIMIT);
        }
        let all: Vec<_> = pods.iter().collect();
        send_to(&all, 150.0, TIME).check(0.9, LIMIT);
        for pod in &pods {
            assert_eq!(pod.pod.metric("limit_peer_faults_total"), 0);
        }
        let granting = pods.iter().filter(|pod| grants(pod)).count();
        assert_eq!(granting, usize::from(number > 1), "one pod owns the key");
    }
}

/// Reports whether a pod has granted tokens to others.
fn grants(pod: &Running<'_>) -> bool {
    let metrics = pod.pod.metrics();
    metrics.lines().any(|line| {
        line.starts_with("portcullis_limit_lease_tokens_total{what=\"granted\"}")
            && !line.ends_with(" 0")
    })
}

#[test]
fn audited_limit_of_pods_refuses_nothing() {
    let nodes = nodes::<3>();
    let pods = started(&nodes, &format!("{KEYED}, mode: Audit"));
    let all: Vec<_> = pods.iter().collect();
    let exceeded = |pod: &Running<'_>| {
        let metrics = pod.pod.metrics();
        metrics.lines().any(|line| {
            line.starts_with("portcullis_limit_exceeded_total{")
                && line.contains("mode=\"Audit\"")
                && !line.ends_with(" 0")
        })
    };
    // Until enough requests have arrived in a short time.
    let count = || {
        let sent = send_to(&all, 500.0, Duration::from_secs(1));
        assert_eq!(sent.admitted, sent.times.len() as f64);
        all.iter().filter(|pod| exceeded(pod)).count()
    };
    eventually(count, |pods| *pods == 3);
}

#[test]
fn limit_without_a_key_is_divided_among_the_ready_pods() {
    let nodes = nodes::<2>();
    let pods = started(&nodes, "mode: Enforce");
    let sent = send_to(&[&pods[0]], 300.0, TIME);
    let half = sent.admitted_by(LIMIT / 2.0, BURST / 2.0);
    let admitted = sent.admitted;
    assert!(
        (0.9 * half..=1.05 * half).contains(&admitted),
        "{admitted}, not {half}"
    );
    list(&pods, &[0]);
    // No metric tells that the list has arrived.
    thread::sleep(Duration::from_millis(200));
    send_to(&[&pods[0]], 300.0, TIME).check(0.95, LIMIT);
}

#[test]
fn pods_without_the_owner_admit_their_parts_until_it_leaves_the_list() {
    let nodes = nodes::<3>();
    let mut pods = started(&nodes, KEYED);
    // The owner is the one that grants.
    send_to(
        &[&pods[0], &pods[1], &pods[2]],
        100.0,
        Duration::from_secs(1),
    );
    let owner = pods.iter().position(grants).unwrap();
    let dead = pods.remove(owner);
    let (name, address) = (dead.name.clone(), dead.address);
    drop(dead);
    pods.iter().for_each(|pod| wait_until_away(pod, 1));
    send_to(&[&pods[0]], 300.0, TIME).check(0.9, LIMIT / 3.0);
    list(&pods, &[0, 1]);
    pods.iter().for_each(|pod| wait_until_away(pod, 0));
    // No metric tells that the others know it too.
    thread::sleep(Duration::from_millis(600));
    send_to(&[&pods[0]], 300.0, TIME).check(0.95, LIMIT);
    // A pod that is added is away until it is there.
    let ready = pods.iter().map(|pod| (pod.name.clone(), pod.address));
    let ready: Vec<_> = ready.chain([(name, address)]).collect();
    for pod in &pods {
        pod.stream.pods(&pod.name, &ready);
        wait_until_away(pod, 1);
    }
}

#[test]
fn pod_of_another_gateway_is_refused() {
    let nodes = nodes::<2>();
    let rule = one(KEYED);
    let own = start(&nodes[0], SECRET, &rule);
    let foreign = start(
        &nodes[1],
        "the secret of another Gateway, of 32 bytes",
        &rule,
    );
    let pods = [own, foreign];
    list(&pods, &[0, 1]);
    for pod in &pods {
        wait_until_away(pod, 1);
    }
    // A wait for nothing.
    thread::sleep(Duration::from_secs(1));
    for pod in &pods {
        assert_eq!(pod.pod.metric("limit_peers_away"), 1);
    }
}
