//! What the leader derives step by step equals what it derives from the last snapshot alone.

mod statuses;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::Kind;
use crate::cluster::events;
use crate::provider::Problem;
use crate::snapshot::Snapshot;
use crate::stream::hub::PodReport;
use crate::translate::{CONTROLLER_NAME, Mode};

/// A change of a cluster with three Gateways. Numbers select one of them.
#[derive(Clone, Debug)]
enum Step {
    Gateway(u8, Option<Gateway>),
    /// Its Service, which may belong to another Gateway.
    Service(u8, Option<(u8, bool)>),
    /// The last byte of the addresses of its ready pods, in one of two slices.
    Slice(u8, bool, Option<Vec<u8>>),
    /// The Gateway of a ListenerSet.
    ListenerSet(u8, Option<u8>),
    Class(bool),
    Parameters(bool),
    Reports(u8, Option<u64>),
    Revision(u8, u64),
    Failure(u8, bool),
    Nodes(Vec<u8>),
    CaBundle(bool),
}

#[derive(Clone, Debug)]
struct Gateway {
    is_ours: bool,
    has_parameters: bool,
    is_deleted: bool,
    note: u8,
}

fn name(number: u8) -> ObjectRef {
    ObjectRef::gateway_api("Gateway", "infra", &format!("edge-{number}"))
}

fn gateway(number: u8, gateway: &Gateway) -> Value {
    let Gateway {
        is_ours,
        has_parameters,
        is_deleted,
        note,
    } = gateway;
    let mut value = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {
            "name": format!("edge-{number}"), "namespace": "infra", "uid": format!("uid-{number}"),
            "annotations": {"example.com/note": note.to_string()},
        },
        "spec": {
            "gatewayClassName": if *is_ours { "portcullis" } else { "other" },
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
            "allowedListeners": {"namespaces": {"from": "All"}},
        },
    });
    if *has_parameters {
        value["spec"]["infrastructure"] = json!({"parametersRef": {
            "group": "portcullis.dev", "kind": "GatewayParameters", "name": "nodes",
        }});
    }
    if *is_deleted {
        value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    value
}

fn slice(number: u8, is_second: bool, hosts: &[u8]) -> Value {
    let endpoint = |host: &u8| {
        json!({
            "addresses": [format!("10.0.{number}.{host}")],
            "targetRef": {"kind": "Pod", "name": format!("edge-{number}-{host}")},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("edge-{number}-{is_second}"), "namespace": "infra",
            "labels": {"kubernetes.io/service-name": format!("edge-{number}-portcullis")},
        },
        "addressType": "IPv4", "ports": [{"port": 10080}],
        "endpoints": hosts.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn service(number: u8, owner: u8, is_headless: bool) -> Value {
    let cluster_ip = if is_headless { "None" } else { "10.1.0.1" };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": format!("edge-{number}-portcullis"), "namespace": "infra",
            "labels": {
                "app.kubernetes.io/managed-by": "portcullis-controller",
                "gateway.networking.k8s.io/gateway-name": format!("edge-{owner}"),
            },
        },
        "spec": {"clusterIPs": [cluster_ip], "ports": [{"port": 80}]},
    })
}

fn listener_set(number: u8, gateway: u8) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"name": format!("set-{number}"), "namespace": "infra"},
        "spec": {
            "parentRef": {"name": format!("edge-{gateway}")},
            "listeners": [{"name": "more", "port": 81, "protocol": "HTTP"}],
        },
    })
}

/// The inputs of the leader.
#[derive(Clone, Default)]
struct Inputs {
    snapshot: Snapshot,
    revisions: imbl::OrdMap<ObjectRef, u64>,
    seen: Observations,
    has_ca_bundle: bool,
}

impl Inputs {
    fn new() -> Self {
        let mut inputs = Self::default();
        inputs.apply(Step::Class(true));
        inputs
    }

    /// Inserts an object, or removes it.
    fn put(&mut self, exists: bool, object: &Value) {
        let text = |name: &str| object[name].as_str().unwrap();
        let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
        let decoded = kind.decode(object).unwrap();
        match exists {
            true => {
                self.snapshot.insert(decoded);
            }
            false => {
                let metadata = decoded.meta();
                let name = kind.object_ref(&metadata.namespace, &metadata.name);
                self.snapshot.remove(&name);
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Gateway(number, it) => {
                let none = Gateway {
                    is_ours: true,
                    has_parameters: false,
                    is_deleted: false,
                    note: 0,
                };
                let exists = it.is_some();
                self.put(exists, &gateway(number, &it.unwrap_or(none)));
            }
            Step::Service(number, it) => {
                let (owner, is_headless) = it.unwrap_or_default();
                let service = service(number, owner, is_headless);
                self.put(it.is_some(), &service);
            }
            Step::Slice(number, is_second, hosts) => {
                let exists = hosts.is_some();
                self.put(
                    exists,
                    &slice(number, is_second, &hosts.unwrap_or_default()),
                );
            }
            Step::ListenerSet(number, gateway) => {
                let set = listener_set(number, gateway.unwrap_or_default());
                self.put(gateway.is_some(), &set);
            }
            Step::Class(exists) => {
                let class = json!({
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                    "metadata": {"name": "portcullis"}, "spec": {"controllerName": CONTROLLER_NAME},
                });
                self.put(exists, &class);
            }
            Step::Parameters(exists) => {
                let parameters = json!({
                    "apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
                    "metadata": {"name": "nodes", "namespace": "infra"},
                    "spec": {"service": {"type": "NodePort"}},
                });
                self.put(exists, &parameters);
            }
            Step::Reports(number, revision) => {
                let reports = &mut self.seen.reports;
                let pod = |host: u8| {
                    let name = format!("edge-{number}-{host}");
                    revision.map(|revision| (name, PodReport::of_revision(revision)))
                };
                let pods: BTreeMap<_, _> = [1, 2].into_iter().filter_map(pod).collect();
                match pods.is_empty() {
                    true => drop(reports.remove(&name(number))),
                    false => drop(reports.insert(name(number), Arc::new(pods))),
                }
            }
            Step::Revision(number, revision) => {
                self.revisions.insert(name(number), revision);
            }
            Step::Failure(number, exists) => {
                let failure = crate::provision::Failure {
                    reason: crate::provision::FailureReason::NameTaken,
                    message: "why".to_owned(),
                };
                self.seen.failures.remove(&name(number));
                let failure = exists.then_some((name(number), failure));
                self.seen.failures.extend(failure);
            }
            Step::Nodes(hosts) => {
                let nodes = hosts.into_iter().map(|host| [192, 0, 2, host].into());
                self.seen.nodes = nodes.collect();
            }
            Step::CaBundle(has) => self.has_ca_bundle = has,
        }
    }
}

fn options() -> Options {
    Options {
        mode: Mode::Dedicated,
        ..Options::default()
    }
}

fn pods() -> PodSettings {
    PodSettings {
        image: "image".to_owned(),
        controller_url: String::new(),
        arguments: Vec::new(),
    }
}

/// A leader, apart from the parts that depend on the time.
#[derive(Default)]
struct Derived {
    cluster: ClusterState,
    translated: Option<Translator>,
}

impl Derived {
    fn follow(&mut self, inputs: &Inputs) -> BTreeSet<ObjectRef> {
        let translator = self
            .translated
            .get_or_insert_with(|| Translator::new(options()));
        let translation = translator.translate(&inputs.snapshot, None);
        let now = Translated {
            snapshot: Arc::new(inputs.snapshot.clone()),
            report: translation.report,
            data_planes: translation.data_planes,
        };
        let endpoint = StreamEndpoint {
            ca: inputs.has_ca_bundle.to_string(),
            ..StreamEndpoint::default()
        };
        self.cluster
            .follow(now, &inputs.revisions, &pods(), &endpoint)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let one = || 0..3_u8;
    let gateway = (any::<bool>(), any::<bool>(), any::<bool>(), any::<u8>()).prop_map(
        |(is_other, has_parameters, is_kept, note)| Gateway {
            is_ours: !is_other || note % 2 == 0,
            has_parameters,
            is_deleted: !is_kept && note % 4 == 0,
            note,
        },
    );
    let hosts = || proptest::collection::vec(1..4_u8, 0..3);
    let many = proptest::option::weighted(0.8, hosts());
    prop_oneof![
        4 => (one(), proptest::option::weighted(0.8, gateway))
            .prop_map(|(number, it)| Step::Gateway(number, it)),
        3 => (one(), proptest::option::weighted(0.8, (one(), any::<bool>())))
            .prop_map(|(number, it)| Step::Service(number, it)),
        2 => (one(), Just(())).prop_map(|(number, ())| Step::Service(number, Some((number, false)))),
        3 => (one(), any::<bool>(), many)
            .prop_map(|(number, is_second, it)| Step::Slice(number, is_second, it)),
        1 => (one(), proptest::option::of(one())).prop_map(|(set, it)| Step::ListenerSet(set, it)),
        1 => proptest::bool::weighted(0.7).prop_map(Step::Class),
        1 => any::<bool>().prop_map(Step::Parameters),
        2 => (one(), proptest::option::of(0..3_u64)).prop_map(|(number, it)| Step::Reports(number, it)),
        2 => (one(), 0..3_u64).prop_map(|(number, it)| Step::Revision(number, it)),
        1 => (one(), any::<bool>()).prop_map(|(number, it)| Step::Failure(number, it)),
        1 => hosts().prop_map(Step::Nodes),
        1 => any::<bool>().prop_map(Step::CaBundle),
    ]
}

proptest! {
    #[test]
    fn equals_what_is_derived_from_nothing(
        rounds in proptest::collection::vec(proptest::collection::vec(step(), 0..5), 1..25),
    ) {
        let mut inputs = Inputs::new();
        let mut incremental = Derived::default();
        // Without time, so that no data plane turns from awaited to lagging between two rounds.
        let now = Instant::now();
        let mut progress = Progress::new(now);
        for steps in rounds {
            steps.into_iter().for_each(|step| inputs.apply(step));
            let mut from_nothing = Derived::default();
            let all = from_nothing.follow(&inputs);
            let changed = incremental.follow(&inputs);
            let (one, other) = (&incremental.cluster, &from_nothing.cluster);
            prop_assert_eq!(one.desired(), other.desired());
            prop_assert_eq!(one.wants_nodes(), other.wants_nodes());
            prop_assert_eq!(one.class_usage(), other.class_usage());
            prop_assert_eq!(&one.parents, &other.parents);
            for number in 0..3 {
                let gateway = name(number);
                prop_assert_eq!(one.served(&gateway), other.served(&gateway));
                prop_assert_eq!(one.revision(&gateway), other.revision(&gateway));
            }
            progress.follow(one, changed, inputs.seen.clone(), now);
            // What all Gateways get if each of them is looked at, with the same confirmations before.
            let former = (progress.states().clone(), progress.serving().clone(), progress.awaited());
            progress.follow(one, all, inputs.seen.clone(), now);
            let again = (progress.states().clone(), progress.serving().clone(), progress.awaited());
            prop_assert_eq!(former, again);
        }
    }
}

#[test]
fn object_of_which_a_part_is_served_keeps_the_conditions_of_this_part() {
    let of = |problem: Problem| {
        unreadable(&Load {
            problems: vec![problem],
            ..Load::default()
        })
    };
    let problem = Problem::of_object(name(0), 2, "why");
    assert_eq!(of(problem.clone()).len(), 1);
    let served = Problem {
        is_served: true,
        ..problem
    };
    assert!(of(served).is_empty());
}
