//! Cost of a change on the leader of a cluster: from a snapshot with one changed object to the statuses and objects that
//! differ, step by step. Without an API server: the pods of Gateways confirm each change at once.

#![allow(clippy::unwrap_used, reason = "a failed step ends the bench")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use portcullis::api::Kind;
use portcullis::cluster::events;
use portcullis::control::cluster::PodSettings;
use portcullis::control::leader::{Leader, Observations};
use portcullis::provider::Load;
use portcullis::provision::{DesiredState, StreamEndpoint};
use portcullis::snapshot::Snapshot;
use portcullis::status::StatusReport;
use portcullis::stream::Published;
use portcullis::stream::hub::{Hub, PodReport, PodReports};
use portcullis::translate::{CONTROLLER_NAME, Mode, Options, Translator};
use serde_json::{Value, json};

/// The program's own.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const ROUTES_EACH: usize = 10;
const NAMESPACES: usize = 50;
/// Each change is made and undone so often.
const ROUNDS: usize = 50;

fn namespace(gateway: usize) -> String {
    format!("team-{}", gateway % NAMESPACES)
}

fn gateway(index: usize, note: &str) -> Value {
    json!({
        "apiVersion": GATEWAY_API, "kind": "Gateway",
        "metadata": {
            "name": format!("edge-{index}"), "namespace": namespace(index), "uid": format!("uid-{index}"),
            "annotations": {"example.com/note": note},
        },
        "spec": {
            "gatewayClassName": "portcullis",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    })
}

/// The Service that the controller created for a Gateway.
fn gateway_service(index: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": format!("edge-{index}-portcullis"), "namespace": namespace(index),
            "labels": {
                "app.kubernetes.io/managed-by": "portcullis-controller",
                "gateway.networking.k8s.io/gateway-name": format!("edge-{index}"),
            },
        },
        "spec": {"type": "ClusterIP", "clusterIPs": ["10.1.0.1"], "ports": [{"port": 80}]},
    })
}

fn route(index: usize, weight: usize) -> Value {
    let gateway = index / ROUTES_EACH;
    json!({
        "apiVersion": GATEWAY_API, "kind": "HTTPRoute",
        "metadata": {"name": format!("route-{index}"), "namespace": namespace(gateway), "generation": weight},
        "spec": {
            "parentRefs": [{"name": format!("edge-{gateway}")}],
            "hostnames": [format!("host-{index}.example.com")],
            "rules": [{
                "matches": [{"path": {"value": format!("/team-{index}")}}],
                "backendRefs": [{"name": format!("app-{index}"), "port": 80, "weight": weight}],
            }],
        },
    })
}

fn service(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"port": 80}]},
    })
}

fn slice(service: &str, namespace: &str, last: usize) -> Value {
    let endpoint = |host: usize| {
        json!({
            "addresses": [format!("10.0.0.{host}")],
            "targetRef": {"kind": "Pod", "name": format!("{service}-{host}")},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-x"), "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [endpoint(1), endpoint(last)],
    })
}

fn put(snapshot: &mut Snapshot, object: &Value) {
    let text = |name: &str| object[name].as_str().unwrap();
    let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
    snapshot.insert(kind.decode(object).unwrap());
}

/// A cluster with so many Gateways, each with its data plane and ten routes to a Service of their own.
fn cluster(gateways: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let class = json!({
        "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "portcullis"},
        "spec": {"controllerName": CONTROLLER_NAME},
    });
    put(&mut snapshot, &class);
    for index in 0..gateways {
        put(&mut snapshot, &gateway(index, "one"));
        put(&mut snapshot, &gateway_service(index));
        let service = format!("edge-{index}-portcullis");
        put(&mut snapshot, &slice(&service, &namespace(index), 2));
    }
    for index in 0..gateways * ROUTES_EACH {
        let (name, namespace) = (format!("app-{index}"), namespace(index / ROUTES_EACH));
        put(&mut snapshot, &route(index, 1));
        put(&mut snapshot, &service(&name, &namespace));
        put(&mut snapshot, &slice(&name, &namespace, 2));
    }
    put(&mut snapshot, &service("other", "elsewhere"));
    put(&mut snapshot, &slice("other", "elsewhere", 2));
    snapshot
}

/// The steps of a change, each with the times that it took.
const STEPS: [&str; 7] = [
    "closures, on the stream's thread",
    "translation",
    "leader: translation, desired objects, Services",
    "leader: data planes and report",
    "log",
    "plan of the status writer",
    "plan of provisioning",
];

/// A leader with its hub and data planes.
struct Bench {
    hub: Hub,
    translator: Translator,
    leader: Leader,
    observations: Observations,
    report: Arc<StatusReport>,
    desired: DesiredState,
    pods: PodSettings,
    events: events::Events,
}

impl Bench {
    fn new() -> Self {
        let options = Options {
            mode: Mode::Dedicated,
            ..Options::default()
        };
        Self {
            hub: Hub::new("bench".to_owned(), options.clone()),
            translator: Translator::new(options.clone()),
            leader: Leader::new(options),
            observations: Observations::default(),
            report: Arc::default(),
            desired: DesiredState::default(),
            pods: PodSettings {
                image: "portcullis".to_owned(),
                controller_url: "https://controller:19443".to_owned(),
                arguments: Vec::new(),
            },
            events: events::channel("bench").0,
        }
    }

    /// Follows a snapshot, and returns the duration of each step.
    fn follow(&mut self, snapshot: &Snapshot) -> [Duration; STEPS.len()] {
        let mut durations = [Duration::ZERO; STEPS.len()];
        let mut began = Instant::now();
        let mut end = |step: usize, began: &mut Instant| {
            durations[step] += began.elapsed();
            *began = Instant::now();
        };
        let revisions = self.hub.follow(snapshot);
        end(0, &mut began);
        let translation = self.translator.translate(snapshot, None);
        end(1, &mut began);
        drop(translation);
        let load = Arc::new(Load {
            snapshot: Arc::new(snapshot.clone()),
            ..Load::default()
        });
        let published = Arc::new(Published { load, revisions });
        let endpoint = StreamEndpoint::default();
        began = Instant::now();
        let mut changed = self.leader.follow(&published, &self.pods, Some(endpoint));
        end(2, &mut began);
        // First as published, then as the pods confirm it.
        for _ in 0..2 {
            let seen = self.observations.clone();
            began = Instant::now();
            let statuses = self.leader.evaluate(changed.take(), seen, &self.events);
            end(3, &mut began);
            if let Some(statuses) = statuses {
                let changes = statuses.report.problem_changes(&self.report);
                end(4, &mut began);
                let objects = statuses.report.objects_unlike(&self.report);
                end(5, &mut began);
                self.report = statuses.report;
                drop((changes, objects));
            }
            self.confirm(&published);
        }
        let desired = self.leader.desired().clone();
        began = Instant::now();
        let changes = desired.changes_since(&self.desired).len();
        end(6, &mut began);
        assert!(changes <= desired.children.len());
        self.desired = desired;
        durations
    }

    /// Reports the latest revision from each pod of the Gateways that have another one.
    fn confirm(&mut self, published: &Published) {
        let reports = &mut self.observations.reports;
        for (gateway, revision) in &published.revisions {
            let known = reports.get(gateway).and_then(|pods| pods.values().next());
            if known.is_some_and(|known| known.revision == Some(*revision)) {
                continue;
            }
            let pod = |host: usize| {
                let name = format!("{}-portcullis-{host}", gateway.name);
                (name, PodReport::of_revision(*revision))
            };
            let pods: PodReports = [pod(1), pod(2)].into();
            reports.insert(gateway.clone(), Arc::new(pods));
        }
    }
}

fn median(mut durations: Vec<Duration>) -> f64 {
    durations.sort();
    durations[durations.len() / 2].as_secs_f64() * 1000.0
}

/// Returns the time on the leader's thread.
fn leader(round: &[Duration; STEPS.len()]) -> Duration {
    round[2..].iter().sum()
}

fn measure(name: &str, before: &Snapshot, object: &Value) {
    let mut after = before.clone();
    put(&mut after, object);
    let mut bench = Bench::new();
    let start = leader(&bench.follow(before)).as_secs_f64() * 1000.0;
    let gateways = bench.report.gateways.values();
    assert!(
        gateways
            .flat_map(|it| &it.conditions)
            .all(|it| !it.is_problem())
    );
    let mut rounds: Vec<[Duration; STEPS.len()]> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(bench.follow(&after));
        rounds.push(bench.follow(before));
    }
    let of_step = |step: usize| median(rounds.iter().map(|round| round[step]).collect());
    let total = median(rounds.iter().map(leader).collect());
    let beside = total - of_step(1);
    let part = start / total;
    println!(
        "  {name}: {total:.3} ms, 1/{part:.0} of a start; without the translation {beside:.3} ms"
    );
    for (step, label) in STEPS.iter().enumerate() {
        let time = of_step(step);
        let share = time / total * 100.0;
        println!("    {time:8.3} ms {share:5.1} %  {label}");
    }
}

fn main() {
    for gateways in [50, 500] {
        let routes = gateways * ROUTES_EACH;
        println!("{gateways} Gateways, {routes} routes, {routes} EndpointSlices");
        let before = cluster(gateways);
        let index = routes / 2;
        let owner = namespace(index / ROUTES_EACH);
        for (name, object) in [
            ("an unrelated EndpointSlice", slice("other", "elsewhere", 3)),
            (
                "an EndpointSlice",
                slice(&format!("app-{index}"), &owner, 3),
            ),
            ("a route", route(index, 2)),
            ("an annotation of a Gateway", gateway(gateways / 2, "two")),
        ] {
            measure(name, &before, &object);
        }
    }
}
