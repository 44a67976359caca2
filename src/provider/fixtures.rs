//! The world of the tests of time, which all sources of objects share: a cluster in which someone writes objects one after the
//! other, and nothing is ever open that a policy is for. Where a write would open something, its policy is written first.

mod judge;
mod pods;

use std::collections::BTreeMap;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

pub(crate) use self::judge::{Judge, Open, options};
use self::pods::has_pods;
use crate::api::{Kind, ObjectRef};
use crate::scale::scaled;
use crate::snapshot::Snapshot;

/// The address that all AccessPolicies refuse.
pub(crate) const REFUSED: &str = "192.0.2.1";

/// Applications, each with a route, a Service, and a ListenerSet. The last one has no policies. There is one digit of each name.
const APPLICATIONS: u32 = 5;
/// The application whose route attaches to its ListenerSet, which has the AccessPolicy.
const OF_LISTENER_SET: u32 = 1;
/// The application whose route refers to a ReleaseBackend.
const OF_RELEASES: u32 = 2;
/// The application whose route refers to an InferencePool.
const OF_POOL: u32 = 3;

/// Returns a runner of this number of cases, or of more in long runs. They are always the same.
pub(crate) fn runner(usual: u32) -> TestRunner {
    let config = ProptestConfig {
        cases: scaled(usual),
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
}

/// What policies are for.
pub(crate) const CLIENTS: &str = "clients";
const LIMITS: &str = "limits";
pub(crate) const PLAIN_TEXT: &str = "plain text";
const PURPOSES: &[&str] = &[CLIENTS, LIMITS, PLAIN_TEXT];
/// The kinds of objects that can open something.
const OPENING: [&str; 8] = [
    "HTTPRoute",
    "ListenerSet",
    "RoutePolicy",
    "Service",
    "EndpointSlice",
    "ReleaseBackend",
    "InferencePool",
    "Pod",
];

/// An object as it is stored, or its end.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) kind: &'static Kind,
    pub(crate) name: String,
    /// `None` at its end.
    pub(crate) value: Option<Value>,
}

impl Write {
    /// Returns a version of an object.
    fn of(kind: &str, name: &str, fields: Value) -> Self {
        let mut kinds = Kind::all().iter();
        let kind = kinds.find(|it| it.kind == kind).unwrap();
        let mut value = fields;
        value["apiVersion"] = kind.api_version().into();
        value["kind"] = kind.kind.into();
        value["metadata"]["name"] = name.into();
        if kind.namespaced {
            value["metadata"]["namespace"] = "default".into();
        }
        Self {
            kind,
            name: name.to_owned(),
            value: Some(value),
        }
    }

    /// Returns the end of the object.
    fn end(self) -> Self {
        Self {
            value: None,
            ..self
        }
    }

    pub(crate) fn object_ref(&self) -> ObjectRef {
        let namespace = match self.kind.namespaced {
            true => "default",
            false => "",
        };
        self.kind.object_ref(namespace, &self.name)
    }
}

/// What a source has published, and what is open then.
#[derive(Default)]
pub(crate) struct Published {
    pub(crate) objects: Snapshot,
    pub(crate) open: Open,
}

/// A cluster, and how it came to be.
pub(crate) struct World {
    /// What there was before.
    pub(crate) first: Vec<Write>,
    /// What was written, in order. The first one has number 1, which is the version of its object.
    pub(crate) writes: Vec<Write>,
    /// The state before the first write, and after each.
    pub(crate) states: Vec<Snapshot>,
    /// The first write of a policy for something. Some policy is there for it from then on.
    protected_since: BTreeMap<(String, &'static str), usize>,
    judge: Judge,
}

impl World {
    pub(crate) fn new() -> Self {
        let class = json!({"controllerName": options().controller_name});
        let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
        let gateway = json!({
            "gatewayClassName": "ours", "listeners": listeners,
            "allowedListeners": {"namespaces": {"from": "All"}},
        });
        let mut first = vec![
            Write::of("GatewayClass", "ours", json!({"spec": class})),
            Write::of("Gateway", "edge", json!({"spec": gateway})),
        ];
        for application in 0..APPLICATIONS {
            first.push(service(application));
            first.push(listener_set(application));
            first.push(route(application, application == OF_LISTENER_SET));
        }
        let mut state = Snapshot::default();
        first.iter().for_each(|write| apply(&mut state, write));
        Self {
            first,
            writes: Vec::new(),
            states: vec![state],
            protected_since: BTreeMap::new(),
            judge: Judge::new(),
        }
    }

    /// Number of writes.
    pub(crate) fn last(&self) -> usize {
        self.writes.len()
    }

    /// The state after all writes.
    pub(crate) fn state(&self) -> &Snapshot {
        &self.states[self.last()]
    }

    /// Writes something that follows from a choice.
    pub(crate) fn write(&mut self, choice: u32) {
        let application = choice % APPLICATIONS;
        let mut write = self.candidate(application, choice / APPLICATIONS);
        let mut state = self.after(&mut write);
        let open = self.judge.open(&state);
        let is_protected = |object: &str| !object.ends_with(&(APPLICATIONS - 1).to_string());
        let opened = open.iter().find(|(object, _)| is_protected(object));
        if let Some((_, purpose)) = opened.cloned() {
            write = policy(application, purpose, false, choice);
            state = self.after(&mut write);
        }
        let protected = match write.kind.kind {
            "AccessPolicy" => Some(("r", CLIENTS)),
            "RateLimitPolicy" => Some(("r", LIMITS)),
            "BackendTLSPolicy" | "BackendTLSOverride" => Some(("s", PLAIN_TEXT)),
            _ => None,
        };
        if let Some((object, purpose)) = protected {
            let object = format!("{object}{application}");
            let next = self.last() + 1;
            let since = self.protected_since.entry((object, purpose));
            since.or_insert(next);
        }
        self.writes.push(write);
        self.states.push(state);
    }

    /// Returns the state after a write, which gets its number.
    fn after(&self, write: &mut Write) -> Snapshot {
        if let Some(value) = &mut write.value {
            value["metadata"]["generation"] = (self.last() + 1).into();
        }
        let mut state = self.state().clone();
        apply(&mut state, write);
        state
    }

    fn has(&self, write: &Write) -> bool {
        self.state().object(&write.object_ref()).is_some()
    }

    /// Returns a write that ends an object, or creates it.
    fn toggled(&self, write: Write) -> Write {
        match self.has(&write) {
            true => write.end(),
            false => write,
        }
    }

    fn candidate(&self, application: u32, choice: u32) -> Write {
        let has_policies = application + 1 < APPLICATIONS;
        let (what, how) = (choice % 12, choice / 12);
        let purposes = purposes(application);
        let purpose = purposes[how as usize % purposes.len()];
        match what {
            4 | 5 | 9.. if has_pods(application) => pods::other(self, application, how),
            0 => self.toggled(service(application)),
            1 => self.toggled(route(application, application == OF_LISTENER_SET)),
            2 => self.toggled(listener_set(application)),
            3 => self.moved_route(application),
            4 => self.toggled(pages(application)),
            5 => credentials(application, how),
            6 | 7 if has_policies => self.replaced(application, purpose, how / 3),
            8 if has_policies => {
                let second = policy(application, purpose, true, how / 3);
                let is_second = self.has(&second);
                policy(application, purpose, is_second, how / 3)
            }
            _ => self.other_endpoints(application, how),
        }
    }

    /// Returns what was written last of an object.
    fn written(&self, write: &Write) -> Option<&Value> {
        let mut all = self.first.iter().chain(&self.writes).rev();
        let name = write.object_ref();
        all.find(|it| it.object_ref() == name)?.value.as_ref()
    }

    /// Returns a route that attaches to its ListenerSet, if it does not so far, and otherwise to the Gateway.
    fn moved_route(&self, application: u32) -> Write {
        let of_set = route(application, true);
        if application == OF_LISTENER_SET {
            return self.toggled(of_set);
        }
        match self.written(&of_set) {
            Some(now) if now["spec"]["parentRefs"][0]["kind"] == "ListenerSet" => {
                route(application, false)
            }
            _ => of_set,
        }
    }

    /// Returns an EndpointSlice with an endpoint that is ready, if it has none so far, and otherwise without.
    fn other_endpoints(&self, application: u32, how: u32) -> Write {
        let (which, how) = (how % 2, how / 2);
        let with = |is_ready| endpoints(application, which, &[("192.0.2.9", is_ready)]);
        let now = self.written(&with(true));
        let is_ready = now.map(|it| it["endpoints"][0]["conditions"]["ready"] == true);
        match (is_ready, how % 3) {
            (Some(_), 0) => with(true).end(),
            (None, 0) => with(false),
            (is_ready, _) => with(is_ready != Some(true)),
        }
    }

    /// Returns what was opened by a publication, although a policy for it is older than what opened it.
    pub(crate) fn holes(&self, before: &Published, now: &Published) -> Vec<String> {
        let changed = now.objects.changes_since(&before.objects).into_iter();
        let changed: Vec<_> = changed
            .filter(|it| OPENING.contains(&&*it.object.kind))
            .filter_map(|it| now.objects.object(&it.object))
            .collect();
        let is_hole = |(object, purpose): &&(String, &'static str)| {
            let since = self.protected_since.get(&(object.clone(), *purpose));
            let application = &object[1..];
            let of_it = changed.iter().map(|it| it.meta());
            let of_it = of_it.filter(|it| it.name.ends_with(application));
            let last = of_it.map(|it| it.generation).max();
            // Without such an object, a change of a policy has opened it.
            since.is_some_and(|since| last.is_none_or(|last| last > *since as i64))
        };
        let opened = now.open.difference(&before.open).filter(is_hole);
        opened
            .map(|(object, purpose)| format!("{object}: {purpose}"))
            .collect()
    }

    /// Returns the next write of those that replace a policy by another one: the new one, then the end of the old one.
    fn replaced(&self, application: u32, purpose: &str, how: u32) -> Write {
        let one = policy(application, purpose, false, how);
        let other = policy(application, purpose, true, how);
        match (self.has(&one), self.has(&other)) {
            (true, true) if how.is_multiple_of(2) => one.end(),
            (true, true) => other.end(),
            (true, false) => other,
            (false, _) => one,
        }
    }
}

/// Returns what policies of an application are for.
fn purposes(application: u32) -> &'static [&'static str] {
    match has_pods(application) {
        true => &PURPOSES[..2],
        false => PURPOSES,
    }
}

fn apply(state: &mut Snapshot, write: &Write) {
    match &write.value {
        Some(value) => state.insert(write.kind.decode(value).unwrap()),
        None => state.remove(&write.object_ref()),
    };
}

fn service(application: u32) -> Write {
    let name = format!("s{application}");
    Write::of("Service", &name, json!({"spec": {"ports": [{"port": 80}]}}))
}

/// Returns one of two EndpointSlices of a Service, with these addresses, each with whether it is ready.
pub(crate) fn endpoints(application: u32, which: u32, addresses: &[(&str, bool)]) -> Write {
    let endpoints = addresses.iter().map(|(address, ready)| {
        let mut endpoint = json!({"addresses": [address], "conditions": {"ready": ready}});
        if has_pods(application) {
            let name = pods::pod_name(application, which);
            endpoint["targetRef"] = json!({"kind": "Pod", "name": name});
        }
        endpoint
    });
    let labels = json!({"kubernetes.io/service-name": format!("s{application}")});
    let fields = json!({
        "metadata": {"labels": labels}, "addressType": "IPv4",
        "endpoints": endpoints.collect::<Value>(), "ports": [{"port": 8080}],
    });
    let name = format!("{}{application}", ["e", "f"][which as usize % 2]);
    Write::of("EndpointSlice", &name, fields)
}

fn listener_set(application: u32) -> Write {
    let listener = json!({"name": "http", "port": 8080 + application, "protocol": "HTTP"});
    let spec = json!({"parentRef": {"name": "edge"}, "listeners": [listener]});
    let name = format!("l{application}");
    Write::of("ListenerSet", &name, json!({"spec": spec}))
}

fn route(application: u32, is_of_set: bool) -> Write {
    let parent = match is_of_set {
        true => json!({"kind": "ListenerSet", "name": format!("l{application}")}),
        false => json!({"name": "edge"}),
    };
    let backend = match has_pods(application) {
        true => pods::backend_ref(application),
        false => json!({"name": format!("s{application}"), "port": 80}),
    };
    let spec = json!({
        "parentRefs": [parent], "hostnames": [format!("{application}.example")],
        "rules": [{"backendRefs": [backend]}],
    });
    let name = format!("r{application}");
    Write::of("HTTPRoute", &name, json!({"spec": spec}))
}

/// Returns a RoutePolicy whose pages come from the Service.
fn pages(application: u32) -> Write {
    let backend = json!({"name": format!("s{application}"), "port": 80});
    let pages = json!([{"codes": [503], "source": "Any", "backendRef": backend}]);
    let spec = json!({"targetRefs": [target("HTTPRoute", application)], "errorPages": pages});
    let name = format!("p{application}");
    Write::of("RoutePolicy", &name, json!({"spec": spec}))
}

/// Returns what policies refer to, and what may come late.
fn credentials(application: u32, which: u32) -> Write {
    match which % 2 {
        0 => {
            let data = json!({"auth": "YTp7U0hBfWh2ZmtOL3FscC96aFhSM2N1ZXJxNmpkMlo3Zz0="});
            let secret = json!({"type": "Opaque", "data": data});
            Write::of("Secret", &format!("k{application}"), secret)
        }
        _ => {
            let map = json!({"data": {"ca.crt": "none"}});
            Write::of("ConfigMap", &format!("c{application}"), map)
        }
    }
}

fn target(kind: &str, application: u32) -> Value {
    let (group, name) = match kind {
        "Service" => ("", "s"),
        "ListenerSet" => ("gateway.networking.k8s.io", "l"),
        _ => ("gateway.networking.k8s.io", "r"),
    };
    json!({"group": group, "kind": kind, "name": format!("{name}{application}")})
}

/// Returns one of two policies for a purpose.
fn policy(application: u32, purpose: &str, is_second: bool, how: u32) -> Write {
    let which = match is_second {
        true => "y",
        false => "x",
    };
    let name = format!("{which}{application}");
    let (kind, target, mut spec) = match purpose {
        CLIENTS => {
            let target = match application {
                OF_LISTENER_SET => target("ListenerSet", application),
                _ => target("HTTPRoute", application),
            };
            let spec = match how % 3 {
                0 => json!({"ipRules": {"deny": [REFUSED]}}),
                1 => json!({"ipRules": {"allow": ["198.51.100.0/24"]}}),
                _ => json!({"basic": {"secretRef": {"name": format!("k{application}")}}}),
            };
            ("AccessPolicy", target, spec)
        }
        LIMITS => {
            let spec = json!({"rules": [{"name": "one", "concurrent": how % 9 + 1}]});
            ("RateLimitPolicy", target("HTTPRoute", application), spec)
        }
        _ => {
            let map = json!({"group": "", "kind": "ConfigMap", "name": format!("c{application}")});
            let validation = match how % 3 {
                0 => json!({"hostname": "a.example", "caCertificateRefs": [map]}),
                _ => json!({"hostname": "a.example", "wellKnownCACertificates": "System"}),
            };
            // Where a policy of one kind ends, one of the other kind may apply that arrives later.
            let kind = match (application, is_second) {
                (OF_LISTENER_SET, false) => "BackendTLSOverride",
                _ => "BackendTLSPolicy",
            };
            let spec = json!({"validation": validation});
            (kind, target("Service", application), spec)
        }
    };
    spec["targetRefs"] = json!([target]);
    Write::of(kind, &name, json!({"spec": spec}))
}
