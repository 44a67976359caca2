//! The listeners that the ListenerSets of one namespace may add to a Gateway: what is beyond the limit takes nothing from
//! others, and a place that is free again goes to the oldest that waits.

use portcullis::api::ObjectRef;
use portcullis::snapshot::Snapshot;
use portcullis::translate::{Mode, Options, Translation, Translator, translate};
use serde_json::{Value, json};

use crate::contents::{class, object};
use crate::objects::CONTROLLER;
use crate::{decode, snapshot};

/// Number of full ListenerSets that a namespace may attach to a Gateway.
const FULL: usize = 256;

fn gateway() -> Value {
    let all = json!({"namespaces": {"from": "All"}});
    let listeners =
        json!([{"name": "l", "port": 80, "protocol": "HTTP", "hostname": "own.example"}]);
    let spec = json!({"gatewayClassName": "ours", "allowedListeners": all, "listeners": listeners});
    object("Gateway", "infra", "g", spec)
}

/// Returns a ListenerSet that was created in a minute of a day, with a listener for each host.
fn set(namespace: &str, name: &str, minute: usize, hosts: &[String]) -> Value {
    let listener = |(number, host)| json!({"name": format!("l{number}"), "port": 80, "protocol": "HTTP", "hostname": host});
    let listeners: Vec<_> = hosts.iter().enumerate().map(listener).collect();
    let parent = json!({"name": "g", "namespace": "infra"});
    let spec = json!({"parentRef": parent, "listeners": listeners});
    let mut set = object("ListenerSet", namespace, name, spec);
    let (hour, minute) = (minute / 60, minute % 60);
    set["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T{hour:02}:{minute:02}:00Z"));
    set
}

/// Returns a ListenerSet with 64 listeners, the most that the API allows.
fn full(namespace: &str, minute: usize) -> Value {
    let hosts = (0..64).map(|host| format!("h{host}.d{minute}.{namespace}.example"));
    set(
        namespace,
        &format!("s{minute}"),
        minute,
        &hosts.collect::<Vec<_>>(),
    )
}

/// A translator whose every result is that of a new translation.
struct Followed {
    snapshot: Snapshot,
    translator: Translator,
    last: Translation,
}

impl Followed {
    fn new(objects: impl IntoIterator<Item = Value>) -> Self {
        let options = Options {
            controller_name: CONTROLLER.into(),
            mode: Mode::Dedicated,
            ..Options::default()
        };
        let snapshot = snapshot(objects);
        let last = translate(&snapshot, None, &options);
        let mut translator = Translator::new(options);
        translator.translate(&snapshot, None);
        Self {
            snapshot,
            translator,
            last,
        }
    }

    fn put(&mut self, value: &Value) {
        self.snapshot.insert(decode(value));
        self.translate();
    }

    fn delete(&mut self, value: &Value) {
        let object = decode(value);
        let meta = object.meta();
        self.snapshot
            .remove(&object.kind().object_ref(&meta.namespace, &meta.name));
        self.translate();
    }

    fn translate(&mut self) {
        let options = Options {
            controller_name: CONTROLLER.into(),
            mode: Mode::Dedicated,
            ..Options::default()
        };
        self.last = self.translator.translate(&self.snapshot, None);
        let new = translate(&self.snapshot, None, &options);
        assert_eq!(self.last.ir, new.ir);
        assert_eq!(self.last.report, new.report);
    }

    /// Returns the reasons of `Accepted` of the listeners of a set.
    fn accepted(&self, namespace: &str, name: &str) -> Vec<String> {
        let name = ObjectRef::gateway_api("ListenerSet", namespace, name);
        let status = self.last.report.listener_sets.get(&name).unwrap();
        let listeners = status.listeners.iter();
        let reasons = listeners.map(|it| it.conditions[0].reason.to_string());
        reasons.collect()
    }
}

#[test]
fn listeners_beyond_the_limit_of_a_namespace_take_nothing_from_others() {
    let sets = (1..=FULL - 2).map(|minute| full("greedy", minute));
    let mut followed = Followed::new([class(), gateway()].into_iter().chain(sets));
    for minute in FULL - 1..=FULL {
        followed.put(&full("greedy", minute));
    }
    let (accepted, last) = (vec!["Accepted"; 64], format!("s{FULL}"));
    assert_eq!(followed.accepted("greedy", &last), accepted);

    let shared = "shared.example".to_owned();
    let surplus = set(
        "greedy",
        "surplus",
        FULL + 1,
        &[shared.clone(), "x.example".to_owned()],
    );
    followed.put(&surplus);
    assert_eq!(
        followed.accepted("greedy", "surplus"),
        ["TooManyListeners"; 2]
    );
    assert_eq!(followed.accepted("greedy", &last), accepted);

    // A younger ListenerSet of another namespace gets the host that the surplus listener asks for.
    followed.put(&set("polite", "set", FULL + 2, &[shared]));
    assert_eq!(followed.accepted("polite", "set"), ["Accepted"]);
    let served = |followed: &Followed| -> usize {
        let ports = followed.last.ir.ports.iter();
        ports.map(|port| port.listeners.len()).sum()
    };
    assert_eq!(served(&followed), 1 + 64 * FULL + 1);

    // Room for the surplus: one of its hosts has been taken by a younger set, which loses it to the older one.
    followed.delete(&full("greedy", 1));
    assert_eq!(followed.accepted("greedy", "surplus"), ["Accepted"; 2]);
    assert_eq!(followed.accepted("polite", "set"), ["HostnameConflict"]);

    // An older set comes back: its listeners come first again.
    followed.put(&full("greedy", 1));
    assert_eq!(followed.accepted("greedy", "s1"), accepted);
    assert_eq!(
        followed.accepted("greedy", "surplus"),
        ["TooManyListeners"; 2]
    );
    assert_eq!(followed.accepted("polite", "set"), ["Accepted"]);
}

#[test]
fn a_set_may_be_served_in_part() {
    let sets = (1..FULL).map(|minute| full("team", minute));
    let hosts: Vec<_> = (0..63).map(|host| format!("h{host}.example")).collect();
    let almost = set("team", "almost", FULL, &hosts);
    let mut followed = Followed::new([class(), gateway(), almost].into_iter().chain(sets));
    let two = set(
        "team",
        "two",
        FULL + 1,
        &["a.example".to_owned(), "b.example".to_owned()],
    );
    followed.put(&two);
    assert_eq!(
        followed.accepted("team", "two"),
        ["Accepted", "TooManyListeners"]
    );
}
