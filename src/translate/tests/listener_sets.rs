//! A change of one ListenerSet, its certificate or its routes changes nothing of the others, and neither it nor its
//! equal parts are made again.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{Translation, object, pair, snapshot};
use crate::ir::Listener;
use crate::snapshot::Snapshot;
use crate::status::StatusReport;
use crate::translate::{Options, Translator, translate};

const TEAMS: [&str; 3] = ["a", "b", "c"];
const GROUP: &str = "gateway.networking.k8s.io/v1";

fn of_team(team: &str, api_version: &str, kind: &str, rest: &Value) -> Value {
    let mut object = object(api_version, kind, "own", rest);
    object["metadata"]["namespace"] = json!(team);
    object
}

fn secret(team: &str, hostname: &str) -> Value {
    let (certificate, key) = pair(hostname);
    let data = json!({"tls.crt": certificate, "tls.key": key});
    let rest = json!({"type": "kubernetes.io/tls", "stringData": data});
    of_team(team, "v1", "Secret", &rest)
}

fn route(team: &str, path: &str) -> Value {
    let parent =
        json!({"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "own"});
    let matches = json!([{"path": {"type": "PathPrefix", "value": path}}]);
    let spec = json!({"parentRefs": [parent], "rules": [{"matches": matches}]});
    of_team(team, GROUP, "HTTPRoute", &json!({"spec": spec}))
}

fn objects() -> Vec<Value> {
    let spec = json!({
        "gatewayClassName": "portcullis",
        "allowedListeners": {"namespaces": {"from": "All"}},
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "x.com"}],
    });
    let mut objects = vec![object(GROUP, "Gateway", "web", &json!({"spec": spec}))];
    for team in TEAMS {
        let hostname = format!("{team}.com");
        let tls = json!({"certificateRefs": [{"name": "own"}]});
        let set = json!({
            "parentRef": {"name": "web", "namespace": "default"},
            "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP", "hostname": hostname},
                {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": hostname, "tls": tls},
            ],
        });
        objects.push(of_team(team, GROUP, "ListenerSet", &json!({"spec": set})));
        objects.push(secret(team, &hostname));
        objects.push(route(team, "/"));
    }
    objects
}

fn listeners(translation: &Translation) -> Vec<Arc<Listener>> {
    let ports = translation.ir.ports.iter();
    ports.flat_map(|port| port.listeners.clone()).collect()
}

/// Returns the listeners that both translations have, as text, but not as the same `Arc`.
fn changed_listeners(before: &Translation, after: &Translation) -> Vec<String> {
    let known = listeners(before);
    let is_new = |one: &&Arc<Listener>| known.iter().all(|known| !Arc::ptr_eq(known, one));
    let after = listeners(after);
    let changed = after.iter().filter(is_new).map(|it| it.key.to_string());
    changed.collect()
}

/// Returns the names of the statuses that are not the same `Arc` as before.
fn changed_statuses(before: &StatusReport, after: &StatusReport) -> Vec<String> {
    let routes = after.routes.iter().filter(|(name, now)| {
        let known = before.routes.get(*name);
        known.is_none_or(|known| !Arc::ptr_eq(known, now))
    });
    let sets = after.listener_sets.iter().filter(|(name, now)| {
        let known = before.listener_sets.get(*name);
        known.is_none_or(|known| !Arc::ptr_eq(known, now))
    });
    let routes = routes.map(|(name, _)| name.to_string());
    routes
        .chain(sets.map(|(name, _)| name.to_string()))
        .collect()
}

struct Followed {
    translator: Translator,
    snapshot: Snapshot,
    last: Translation,
}

impl Followed {
    fn new() -> Self {
        let mut translator = Translator::new(Options::default());
        let snapshot = snapshot(&objects());
        let last = translator.translate(&snapshot, None);
        Self {
            translator,
            snapshot,
            last,
        }
    }

    /// Follows a change. Returns the listeners and statuses that are new.
    fn change(&mut self, changed: &Value) -> (Vec<String>, Vec<String>) {
        let object = snapshot(std::slice::from_ref(changed));
        let object = object.objects().next().unwrap();
        assert!(self.snapshot.insert(object));
        let before = self.last.clone();
        self.last = self.translator.translate(&self.snapshot, Some(&before.ir));
        let whole = translate(&self.snapshot, Some(&before.ir), &Options::default());
        assert_eq!(self.last, whole);
        (
            changed_listeners(&before, &self.last),
            changed_statuses(&before.report, &self.last.report),
        )
    }
}

#[test]
fn renewed_certificate_touches_its_own_listener() {
    let mut followed = Followed::new();
    let before = Arc::clone(&listeners(&followed.last)[0]);
    let (listeners, statuses) = followed.change(&secret("b", "b.com"));
    assert_eq!(listeners, ["ListenerSet b/own listener https"]);
    assert_eq!(statuses, Vec::<String>::new());
    assert!(Arc::ptr_eq(&before, &self::listeners(&followed.last)[0]));
    // Other names may overlap with those of other listeners.
    let (_, statuses) = followed.change(&secret("b", "a.com"));
    assert_eq!(statuses, ["ListenerSet a/own", "ListenerSet b/own"]);
    let (_, statuses) = followed.change(&secret("b", "b.com"));
    assert_eq!(statuses, ["ListenerSet a/own", "ListenerSet b/own"]);
}

#[test]
fn route_touches_its_own_listeners() {
    let mut followed = Followed::new();
    let own = [
        "ListenerSet b/own listener http",
        "ListenerSet b/own listener https",
    ];
    let (listeners, statuses) = followed.change(&route("b", "/new"));
    assert_eq!(listeners, own);
    assert_eq!(statuses, Vec::<String>::new());
    let mut second = route("b", "/second");
    second["metadata"]["name"] = json!("second");
    let (listeners, statuses) = followed.change(&second);
    assert_eq!(listeners, own);
    assert_eq!(statuses, ["HTTPRoute b/second", "ListenerSet b/own"]);
}

/// A team that comes and goes: its hostname and that of its certificate, its age, and a port of its own.
#[derive(Clone, Debug)]
struct Team {
    name: &'static str,
    hostname: &'static str,
    /// Index of the certificate; there is none of the last index.
    certificate: usize,
    age: Option<u8>,
    has_port: bool,
}

const HOSTS: [&str; 7] = [
    "a.com",
    "b.com",
    "x.a.com",
    "*.a.com",
    "*.x.a.com",
    "c.com",
    "d.com",
];

fn set_of(team: &Team) -> Value {
    let tls = json!({"certificateRefs": [{"name": "own"}]});
    let http = if team.has_port { 81 } else { 80 };
    let mut set = of_team(
        team.name,
        GROUP,
        "ListenerSet",
        &json!({"spec": {
            "parentRef": {"name": "web", "namespace": "default"},
            "listeners": [
                {"name": "http", "port": http, "protocol": "HTTP", "hostname": team.hostname},
                {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": team.hostname, "tls": tls},
            ],
        }}),
    );
    if let Some(age) = team.age {
        let time = format!("2026-01-01T00:00:{age:02}Z");
        set["metadata"]["creationTimestamp"] = json!(time);
    }
    set
}

fn certificates() -> &'static [Value] {
    static CERTIFICATES: std::sync::OnceLock<Vec<Value>> = std::sync::OnceLock::new();
    CERTIFICATES.get_or_init(|| HOSTS.map(|host| secret("a", host)).into())
}

fn team() -> impl Strategy<Value = Team> {
    (
        select(&["a", "b", "c", "d", "e", "f"][..]),
        select(&HOSTS[..]),
        0..=HOSTS.len(),
        proptest::option::of(0..4_u8),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(name, hostname, certificate, age, has_port)| Team {
            name,
            hostname,
            certificate,
            age,
            has_port,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn added_sets_are_translated_as_all_of_them_are(
        steps in proptest::collection::vec((team(), proptest::bool::weighted(0.75)), 1..40),
        burst in 1..3_usize,
    ) {
        let mut followed = Followed::new();
        for steps in steps.chunks(burst) {
            for (team, is_added) in steps {
                let mut own = vec![set_of(team), route(team.name, "/")];
                if let Some(certificate) = certificates().get(team.certificate) {
                    let mut certificate = certificate.clone();
                    certificate["metadata"]["namespace"] = json!(team.name);
                    own.push(certificate);
                }
                for object in snapshot(&own).objects() {
                    let meta = object.meta();
                    let name = object.kind().object_ref(&meta.namespace, &meta.name);
                    match is_added {
                        true => followed.snapshot.insert(object),
                        false => followed.snapshot.remove(&name),
                    };
                }
            }
            let served = &followed.last.ir;
            let now = followed.translator.translate(&followed.snapshot, Some(served));
            let whole = translate(&followed.snapshot, Some(served), &Options::default());
            prop_assert_eq!(&now, &whole);
            followed.last = now;
        }
    }
}

#[test]
fn new_set_touches_its_own_listeners() {
    let mut followed = Followed::new();
    let team = |name, hostname| Team {
        name,
        hostname,
        certificate: 0,
        age: None,
        has_port: false,
    };
    followed.change(&secret("aa", "aa.com"));
    let (listeners, statuses) = followed.change(&set_of(&team("aa", "aa.com")));
    let own = [
        "ListenerSet aa/own listener http",
        "ListenerSet aa/own listener https",
    ];
    assert_eq!(listeners, own);
    assert_eq!(statuses, ["ListenerSet aa/own"]);
    let (listeners, statuses) = followed.change(&route("aa", "/"));
    assert_eq!(listeners, own);
    assert_eq!(statuses, ["HTTPRoute aa/own", "ListenerSet aa/own"]);
}
