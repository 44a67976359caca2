//! Random changes of a cluster that lets no request pass at any time, whose watches are late, break and list again: what is
//! published lets none pass either.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::time::advance;

use super::order::{protecting, published};
use super::*;
use crate::api::policy::TlsPolicy;

/// The kinds of the objects that are written.
const KINDS: [&str; 4] = [
    "HTTPRoute",
    "AccessPolicy",
    "BackendTLSPolicy",
    "BackendTLSOverride",
];
/// Names of objects of each kind.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The hosts that no request may reach unprotected, and a wildcard for them.
const HOSTS: [&str; 3] = ["a.example", "b.example", "*.example"];

/// A write: an object of a kind with a name, and its fields; `None` if it is deleted.
#[derive(Clone, Debug)]
struct Write {
    kind: &'static str,
    name: &'static str,
    spec: Option<serde_json::Value>,
}

fn writes() -> impl Strategy<Value = Write> {
    let names = || prop::sample::select(&NAMES[..]);
    let some_names = || prop::sample::subsequence(&NAMES[..], 1..=2);
    let targets = |group: &'static str, kind: &'static str, names: Vec<&str>| {
        let targets = names.iter();
        let targets = targets.map(|name| json!({"group": group, "kind": kind, "name": name}));
        targets.collect::<serde_json::Value>()
    };
    let route = (prop::sample::select(&HOSTS[..]), names()).prop_map(|(host, service)| {
        let rule = json!({"backendRefs": [{"name": service, "port": 80}]});
        (KINDS[0], json!({"hostnames": [host], "rules": [rule]}))
    });
    let access = (some_names(), any::<bool>(), names()).prop_map(move |(routes, asks, secret)| {
        let targets = targets("gateway.networking.k8s.io", "HTTPRoute", routes);
        let spec = match asks {
            true => json!({"targetRefs": targets, "basic": {"secretRef": {"name": secret}}}),
            false => json!({"targetRefs": targets, "ipRules": {"deny": ["192.0.2.1"]}}),
        };
        (KINDS[1], spec)
    });
    let tls =
        (prop::sample::select(&KINDS[2..]), some_names()).prop_map(move |(kind, services)| {
            let targets = targets("", "Service", services);
            let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
            (
                kind,
                json!({"targetRefs": targets, "validation": validation}),
            )
        });
    let put = prop_oneof![route, access, tls];
    let put = (put, names()).prop_map(|((kind, spec), name)| Write {
        kind,
        name,
        spec: Some(spec),
    });
    let delete = (prop::sample::select(&KINDS[..]), names()).prop_map(|(kind, name)| Write {
        kind,
        name,
        spec: None,
    });
    prop_oneof![3 => put, 2 => delete]
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// The cluster changes, unless that lets a request pass.
    Write(Write),
    /// The watch of a kind shows the next change.
    Arrive(usize),
    /// The watch of a kind has broken: a list shows what is there now. Not of policies: a list hides a version that protected a
    /// route which is deleted meanwhile.
    List(usize),
    /// The newest versions of the protecting kinds are known.
    Answer,
    /// A fetch ends. The object exists or not.
    Fetched(bool),
    /// Time passes, in milliseconds.
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => writes().prop_map(Step::Write),
        8 => (0..KINDS.len()).prop_map(Step::Arrive),
        1 => Just(Step::List(0)),
        3 => Just(Step::Answer),
        1 => any::<bool>().prop_map(Step::Fetched),
        1 => (1..1_500_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..250)
}

/// A change that a watch has not shown yet.
struct Unseen {
    write: Write,
    version: u64,
    written: Instant,
}

struct Cluster {
    store: Store,
    objects: Snapshot,
    version: u64,
    /// By kind.
    unseen: [VecDeque<Unseen>; KINDS.len()],
    /// Versions of the objects that exist, by kind and name.
    versions: BTreeMap<(&'static str, &'static str), u64>,
    moment: u64,
    wanted: Vec<ObjectRef>,
}

fn decoded(write: &Write, spec: &serde_json::Value) -> Object {
    let value = json!({"metadata": {"namespace": "default", "name": write.name}, "spec": spec});
    let kind = Kind::all().iter().find(|it| it.kind == write.kind).unwrap();
    kind.decode(&value).unwrap()
}

impl Cluster {
    fn new() -> Self {
        Self {
            store: published(),
            objects: Snapshot::default(),
            version: 0,
            unseen: Default::default(),
            versions: BTreeMap::new(),
            moment: 1,
            wanted: Vec::new(),
        }
    }

    fn write(&mut self, write: Write) {
        let mut next = self.objects.clone();
        let kind = Kind::all().iter().find(|it| it.kind == write.kind).unwrap();
        let changes = match &write.spec {
            Some(spec) => next.insert(decoded(&write, spec)),
            None => next.remove(&kind.object_ref("default", write.name)),
        };
        if !changes || open(&next).is_some() {
            return;
        }
        self.objects = next;
        self.version += 1;
        let name = (write.kind, write.name);
        match write.spec {
            Some(_) => self.versions.insert(name, self.version),
            None => self.versions.remove(&name),
        };
        let place = KINDS.iter().position(|it| *it == write.kind).unwrap();
        self.unseen[place].push_back(Unseen {
            write,
            version: self.version,
            written: Instant::now(),
        });
    }

    fn arrive(&mut self, kind: usize) {
        let Some(Unseen { write, version, .. }) = self.unseen[kind].pop_front() else {
            return;
        };
        let change = match &write.spec {
            Some(spec) => Change::Applied(versioned(write.kind, write.name, spec, version)),
            None => Change::Deleted(Key::new("default", write.name), Some(version)),
        };
        self.store.apply(index(write.kind), change);
    }

    fn list(&mut self, kind: usize) {
        self.unseen[kind].clear();
        let scope = index(KINDS[kind]);
        self.store.apply(scope, Change::Listing);
        for ((of, name), version) in &self.versions {
            if *of != KINDS[kind] {
                continue;
            }
            let known = Kind::all().iter().find(|it| it.kind == *of).unwrap();
            let object = self.objects.object(&known.object_ref("default", name));
            let listed = ParsedObject {
                content: Content::Parsed(Ok(object.unwrap())),
                ..versioned(of, name, &json!({}), *version)
            };
            self.store.apply(scope, Change::Listed(listed));
        }
        self.store.apply(scope, Change::Complete);
    }

    /// Says the newest versions of the protecting kinds for the moment that was asked for last.
    fn answer(&mut self) {
        self.moment = self.store.take_moment().unwrap_or(self.moment);
        for scope in protecting() {
            let kind = scopes()[scope].kind.kind;
            let versions = self.versions.iter().filter(|((of, _), _)| *of == kind);
            let newest = versions.map(|(_, version)| *version).max();
            self.store
                .apply_message(Message::Newest(scope, self.moment, newest));
        }
    }

    fn fetched(&mut self, exists: bool) {
        let wanted = self.store.take_wanted().into_iter();
        self.wanted.extend(wanted.map(|(name, _)| name));
        if let Some(name) = self.wanted.pop() {
            let found = exists.then(|| secret(&name.name, 1));
            self.store.apply_message(Message::Fetched(name, found));
        }
    }

    /// Lets time pass. No watch is later than policies stay.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let wait = Timing::default().removal_wait;
        loop {
            let first = self.unseen.iter().filter_map(|unseen| unseen.front());
            let first = first.map(|unseen| unseen.written + wait).min();
            let Some(due) = first.filter(|due| *due <= until) else {
                break;
            };
            advance(due.saturating_duration_since(Instant::now())).await;
            for kind in 0..KINDS.len() {
                while self.unseen[kind]
                    .front()
                    .is_some_and(|unseen| unseen.written + wait <= due)
                {
                    self.arrive(kind);
                    self.judge();
                }
            }
        }
        advance(until.saturating_duration_since(Instant::now())).await;
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Write(write) => self.write(write),
            Step::Arrive(kind) => self.arrive(kind),
            Step::List(kind) => self.list(kind),
            Step::Answer => self.answer(),
            Step::Fetched(exists) => self.fetched(exists),
            Step::Pass(time) => self.pass(Duration::from_millis(time)).await,
        }
        self.judge();
        self.store.release(Instant::now());
        self.judge();
    }

    fn judge(&self) {
        assert_eq!(open(&self.store.load().unwrap().snapshot), None);
    }

    /// Lets all arrive.
    async fn finish(&mut self) {
        let wait = Timing::default().removal_wait;
        for _ in 0..3 {
            self.take(Step::Pass(wait.as_millis() as u64)).await;
            self.take(Step::Answer).await;
        }
        let published = self.store.load().unwrap().snapshot;
        for kind in KINDS {
            let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
            let objects = NAMES.map(|name| {
                let name = kind.object_ref("default", name);
                [&published, &self.objects].map(|it| it.object(&name))
            });
            assert!(
                objects.iter().all(|[one, other]| one == other),
                "{objects:?}"
            );
        }
    }
}

fn versioned(kind: &str, name: &str, spec: &serde_json::Value, version: u64) -> ParsedObject {
    ParsedObject {
        version: Some(version),
        ..parsed(kind, name, spec)
    }
}

/// Returns a host whose requests pass, or reach a Service in plain text. What protects is a policy: that a Service is missing
/// does not count.
fn open(objects: &Snapshot) -> Option<&'static str> {
    let mut protected = BTreeSet::new();
    for policy in objects.access_policies.iter() {
        let targets = policy.spec.target_refs.iter();
        protected.extend(targets.map(|target| target.name.clone()));
    }
    let mut encrypted = BTreeSet::new();
    for policy in objects.backend_tls_policies.iter() {
        services(&**policy, &mut encrypted);
    }
    for policy in objects.backend_tls_overrides.iter() {
        services(&**policy, &mut encrypted);
    }
    let mut hosts = HOSTS[..2].iter().copied();
    hosts.find(|host| {
        let has = |wanted: &str| {
            let mut routes = objects.http_routes.iter();
            routes.any(|route| route.spec.hostnames.iter().any(|it| **it == *wanted))
        };
        let host = if has(host) { host } else { HOSTS[2] };
        let mut routes = objects.http_routes.iter();
        routes.any(|route| {
            let service = &route.spec.rules[0].backend_refs[0].name;
            let passes = !protected.contains(&*route.metadata.name);
            let is_plain = !encrypted.contains(&**service);
            *route.spec.hostnames[0] == *host && (passes || is_plain)
        })
    })
}

fn services<P: TlsPolicy>(policy: &P, encrypted: &mut BTreeSet<String>) {
    let targets = policy.spec().target_refs.iter();
    encrypted.extend(targets.map(|target| target.name.clone()));
}

/// Takes random steps. Policies that are gone stay for a while if `stay` is set.
fn run(stay: bool) -> Result<(), String> {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        max_shrink_iters: if stay { 500 } else { 0 },
        ..ProptestConfig::default()
    });
    let result = runner.run(&steps(), |steps| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::new();
            if !stay {
                cluster.store.retained = Retained::new(Timing {
                    removal_wait: Duration::ZERO,
                    ..Timing::default()
                });
            }
            for step in steps {
                cluster.take(step).await;
            }
            cluster.finish().await;
        });
        Ok(())
    });
    result.map_err(|error| error.to_string())
}

#[test]
fn nothing_is_published_that_lets_a_request_pass_which_the_cluster_never_did() {
    run(true).unwrap();
}

/// The random steps have deletions of routes that arrive after those of their policies.
#[test]
fn requests_pass_where_policies_end_at_once() {
    let failure = run(false).unwrap_err();
    assert!(failure.contains("example"), "{failure}");
}
