//! The status writer: writes, retries and deletions.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portcullis::api::reference::ParentRef;
use portcullis::cluster::events;
use portcullis::ir::ObjectRef;
use portcullis::status::stored::{Stored, StoredStatus};
use portcullis::status::writer::{Statuses, Writer};
use portcullis::status::{
    Condition, ConditionType, GatewayStatus, Held, ParentStatus, Reason, SUPPORTED_FEATURES,
    StatusReport,
};
use portcullis::telemetry::metrics::ControllerStats;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::api::{Api, Fault};
use crate::{TEST_TIMEOUT, client, runtime};

pub(crate) const CONTROLLER: &str = "portcullis.dev/gateway-controller";
/// Maximum number of concurrent writes of a namespace.
const CONCURRENT: usize = 8;

/// A writer on its own thread, with its inputs.
pub(crate) struct Running {
    api: Api,
    pub(crate) stored: Arc<Stored>,
    pub(crate) statuses: watch::Sender<Option<Statuses>>,
    stats: Arc<ControllerStats>,
    _end: oneshot::Sender<()>,
}

impl Running {
    pub(crate) fn start(api: &Api) -> Self {
        let (stored, mut changes) = Stored::new();
        let stored = Arc::new(stored);
        let (statuses, wanted) = watch::channel(None);
        let stats = Arc::new(ControllerStats::default());
        let (end, ended) = oneshot::channel();
        let (server, known, counted) = (api.clone(), stored.clone(), stats.clone());
        thread::spawn(move || {
            runtime().block_on(async {
                let client = client(&server, "writer");
                let (events, mut publisher) = events::channel("writer");
                let writer = Writer {
                    client: client.clone(),
                    controller: CONTROLLER.into(),
                    features: SUPPORTED_FEATURES,
                    stored: known,
                    stats: counted,
                    events,
                };
                tokio::select! {
                    () = writer.run(wanted, &mut changes) => {}
                    () = publisher.run(&client) => {}
                    _ = ended => {}
                }
            });
        });
        Self {
            api: api.clone(),
            stored,
            statuses,
            stats,
            _end: end,
        }
    }

    /// Creates a route and passes it to the writer, like a watch.
    pub(crate) fn create(&self, name: &str) {
        self.api.put(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": name, "namespace": "default", "generation": 1},
        }));
        self.see(name);
    }

    /// Passes the current route to the writer, like a watch.
    fn see(&self, name: &str) {
        let object = self.api.object("HTTPRoute", "default", name);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        let status = StoredStatus::new(version, &object["status"]);
        self.stored.observed(&route(name), status);
    }

    /// Sets the desired status of these routes to Accepted with this message.
    fn want(&self, names: &[&str], message: &str) {
        self.want_but_hold(names, message, &[]);
    }

    fn want_but_hold(&self, names: &[&str], message: &str, held: &[&str]) {
        let entry = |name: &&str| (route(name), parents("edge", message));
        let report = StatusReport {
            routes: names.iter().map(entry).collect(),
            ..StatusReport::default()
        };
        let held = held.iter().map(|name| (route(name), Arc::default()));
        self.statuses.send_replace(Some(Statuses {
            report: Arc::new(report),
            held: held.collect(),
        }));
    }

    /// Waits until the stored status of a route has this message.
    pub(crate) fn wait_for(&self, name: &str, message: &str) -> Value {
        let is_there = |route: &Value| message_of(route) == message;
        self.api.wait_for("HTTPRoute", "default", name, is_there)
    }

    /// Waits until the number of writes with this result is `count`.
    pub(crate) fn wait_for_count(&self, result: &str, count: u64) {
        let began = Instant::now();
        while self.count(result) < count {
            assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", self.counts());
            // No notification tells the change.
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn count(&self, result: &str) -> u64 {
        let counts = self.counts();
        counts.iter().find(|(name, _)| *name == result).unwrap().1
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.stats.writes().collect()
    }
}

pub(crate) fn route(name: &str) -> ObjectRef {
    ObjectRef::gateway_api("HTTPRoute", "default", name)
}

pub(crate) fn parents(gateway: &str, message: &str) -> Arc<Vec<ParentStatus>> {
    let accepted = Condition::holds(ConditionType::Accepted, Reason::Accepted, 1);
    Arc::new(vec![ParentStatus {
        parent_ref: ParentRef {
            group: "gateway.networking.k8s.io".into(),
            kind: "Gateway".into(),
            namespace: None,
            name: gateway.into(),
            section_name: None,
            port: None,
        },
        controller_name: CONTROLLER.into(),
        conditions: vec![accepted.with_message(message)],
    }])
}

fn message_of(route: &Value) -> &str {
    let parents = &route["status"]["parents"];
    parents[0]["conditions"][0]["message"]
        .as_str()
        .unwrap_or_default()
}

#[test]
fn writes_each_difference_once() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    running.create("b");
    running.want(&["a", "b"], "first");
    running.wait_for("a", "first");
    running.wait_for("b", "first");
    // The watch reports the written status.
    running.see("a");
    running.see("b");
    running.want(&["a", "b"], "first");
    running.create("c");
    running.want(&["a", "b", "c"], "first");
    running.wait_for("c", "first");
    running.wait_for_count("written", 3);
    assert_eq!(api.requests("/status").len(), 3);
}

#[test]
fn released_gateway_loses_only_a_status_of_this_controller() {
    let api = Api::start();
    let running = Running::start(&api);
    let mut report = StatusReport::default();
    for (name, is_ours) in [("a-theirs", false), ("b-ours", true)] {
        let programmed = json!({"type": "Programmed", "status": "True", "reason": "Programmed"});
        api.put(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name, "namespace": "default", "generation": 2},
            "status": {"conditions": [programmed], "addresses": [{"value": "192.0.2.1"}]},
        }));
        let object = api.object("Gateway", "default", name);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        let status = StoredStatus::new(version, &object["status"]).with_owner(is_ours);
        let name = ObjectRef::gateway_api("Gateway", "default", name);
        running.stored.observed(&name, status);
        let kind = ConditionType::Programmed;
        let released = GatewayStatus {
            conditions: vec![Condition::unknown(kind, "another class", 2)],
            ..GatewayStatus::default()
        };
        report.released.gateways.insert(name, released.into());
    }
    running.statuses.send_replace(Some(Statuses {
        report: Arc::new(report),
        held: Held::default(),
    }));
    let is_there = |it: &Value| it["status"]["conditions"][0]["status"] == "Unknown";
    let ours = api.wait_for("Gateway", "default", "b-ours", is_there);
    assert_eq!(ours["status"]["addresses"], json!([]));
    let theirs = api.object("Gateway", "default", "a-theirs");
    assert_eq!(theirs["status"]["conditions"][0]["status"], "True");
    assert_eq!(api.requests("/status").len(), 1);
}

#[test]
fn conflict_is_retried_after_a_read() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    // Another client writes first; the watch has not reported it yet.
    let mut object = api.object("HTTPRoute", "default", "a");
    object["status"] = json!({"parents": [{
        "parentRef": {"name": "other"}, "controllerName": "example.com/other", "conditions": [],
    }]});
    api.put(object);
    running.want(&["a"], "first");
    running.wait_for_count("written", 1);
    assert_eq!(running.count("conflict"), 1);
    let parents = api.object("HTTPRoute", "default", "a")["status"]["parents"].clone();
    let controllers: Vec<_> = parents
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["controllerName"])
        .collect();
    assert_eq!(controllers, ["example.com/other", CONTROLLER]);
}

#[test]
fn honors_retry_after_of_an_overloaded_api_server() {
    let api = Api::start();
    let running = Running::start(&api);
    let names: Vec<_> = (0..40).map(|number| format!("route-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    names.iter().for_each(|name| running.create(name));
    api.fail_writes("HTTPRoute", Some(Fault::RetryAfter(429, 2)));
    running.want(&names, "first");
    running.wait_for_count("failed", 1);
    api.fail_writes("HTTPRoute", None);
    names.iter().for_each(|name| {
        running.wait_for(name, "first");
    });
    let requests = api.requests("/status");
    let pauses = requests.windows(2).map(|pair| pair[1].at - pair[0].at);
    let longest = pauses.max().unwrap();
    assert!(longest >= Duration::from_millis(1900), "{longest:?}");
    let began = requests[0].at;
    let early = requests
        .iter()
        // Those before the pause that the server asks for ends, however slow they are.
        .filter(|one| one.at - began < Duration::from_millis(1900));
    assert!(early.count() <= CONCURRENT + 1);
}

#[test]
fn retries_failures_with_backoff() {
    for fault in [Fault::Status(500), Fault::Page(502), Fault::Reset] {
        let api = Api::start();
        let running = Running::start(&api);
        running.create("a");
        api.fail_writes("HTTPRoute", Some(fault));
        running.want(&["a"], "first");
        let requests = api.wait_for_requests(3, "PATCH", "/status");
        api.fail_writes("HTTPRoute", None);
        running.wait_for("a", "first");
        // 200 ms, then 400 ms.
        assert!(
            requests[2].at - requests[0].at >= Duration::from_millis(590),
            "{fault:?}"
        );
    }
}

#[test]
fn hanging_write_does_not_delay_others() {
    let api = Api::start();
    let running = Running::start(&api);
    api.put(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "default"},
    }));
    api.fail_writes("HTTPRoute", Some(Fault::Silence));
    running.create("silent");
    running.want(&["silent"], "first");
    api.wait_for_requests(1, "PATCH", "/silent/status");
    api.fail_writes("HTTPRoute", None);
    running.create("a");
    running.want(&["silent", "a"], "first");
    running.wait_for("a", "first");
    assert_eq!(
        message_of(&api.object("HTTPRoute", "default", "silent")),
        ""
    );
}

#[test]
fn hanging_writes_of_a_namespace_do_not_delay_others() {
    let api = Api::start();
    let running = Running::start(&api);
    api.fail_writes("HTTPRoute", Some(Fault::Silence));
    let names = (0..2 * CONCURRENT).map(|number| format!("silent-{number}"));
    let names: Vec<_> = names.collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    names.iter().for_each(|name| running.create(name));
    running.want(&names, "first");
    api.wait_for_requests(CONCURRENT, "PATCH", "/status");
    api.put(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "other", "generation": 1},
    }));
    let object = api.object("Gateway", "other", "edge");
    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
    let edge = ObjectRef::gateway_api("Gateway", "other", "edge");
    let stored = StoredStatus::new(version, &object["status"]);
    running.stored.observed(&edge, stored);
    let status = GatewayStatus {
        conditions: vec![Condition::holds(
            ConditionType::Accepted,
            Reason::Accepted,
            1,
        )],
        ..GatewayStatus::default()
    };
    let mut report = StatusReport {
        routes: names
            .iter()
            .map(|name| (route(name), parents("edge", "first")))
            .collect(),
        ..StatusReport::default()
    };
    report.gateways.insert(edge, status.into());
    running.statuses.send_replace(Some(Statuses {
        report: Arc::new(report),
        held: Held::default(),
    }));
    let is_there = |it: &Value| it["status"]["conditions"][0]["status"] == "True";
    api.wait_for("Gateway", "other", "edge", is_there);
    assert_eq!(running.count("failed"), 0, "it waits for no timeout");
}

#[test]
fn forgets_object_deleted_during_a_write() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    running.want(&["a"], "first");
    running.wait_for("a", "first");
    running.wait_for_count("written", 1);
    // The response to the next write arrives after the watch has reported the deletion.
    api.fail("HTTPRoute", Some(Fault::Slow(Duration::from_millis(500))));
    running.want(&["a"], "second");
    api.wait_for_requests(2, "PATCH", "/status");
    running.stored.deleted(&route("a"));
    running.wait_for_count("written", 2);
    api.fail("HTTPRoute", None);
    api.delete("HTTPRoute", "default", "a");
    assert!(running.stored.objects().is_empty());
    // A new object of the same name has no status and gets one.
    running.create("a");
    running.wait_for("a", "second");
}

#[test]
fn does_not_retry_deleted_object() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    api.delete("HTTPRoute", "default", "a");
    running.want(&["a"], "first");
    running.wait_for_count("not_found", 1);
    running.stored.deleted(&route("a"));
    running.create("b");
    running.want(&["a", "b"], "first");
    running.wait_for("b", "first");
    assert_eq!(api.requests("/httproutes/a/status").len(), 1);
}

#[test]
fn retries_rejected_status_only_after_a_change() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    api.fail_writes("HTTPRoute", Some(Fault::Status(422)));
    running.want(&["a"], "first");
    running.wait_for_count("rejected", 1);
    api.fail_writes("HTTPRoute", None);
    running.create("b");
    running.want(&["a", "b"], "first");
    running.wait_for_count("written", 1);
    assert_eq!(
        running.counts().iter().map(|(_, count)| count).sum::<u64>(),
        2
    );
    running.want(&["a", "b"], "second");
    running.wait_for("a", "second");
}

#[test]
fn does_not_rewrite_pruned_fields() {
    let api = Api::start();
    api.drop_status_field("parents");
    let running = Running::start(&api);
    running.create("a");
    running.want(&["a"], "first");
    running.wait_for_count("written", 1);
    running.see("a");
    // An entry of another controller is added and removed: the stored result of the write is
    // unchanged.
    running.create("b");
    running.want(&["a", "b"], "first");
    running.wait_for_count("written", 2);
    assert_eq!(api.requests("/httproutes/a/status").len(), 1);
    running.want(&["a", "b"], "second");
    running.wait_for_count("written", 4);
}

#[test]
fn writes_held_status_when_released() {
    let api = Api::start();
    let running = Running::start(&api);
    running.create("a");
    running.create("b");
    running.want_but_hold(&["a", "b"], "first", &["a"]);
    running.wait_for("b", "first");
    assert!(api.requests("/httproutes/a/status").is_empty());
    running.want(&["a", "b"], "second");
    running.wait_for("a", "second");
    assert_eq!(api.requests("/httproutes/a/status").len(), 1);
}

#[test]
fn limits_writes_to_a_hundred_per_second() {
    let api = Api::start();
    let running = Running::start(&api);
    let names: Vec<_> = (0..150).map(|number| format!("route-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    names.iter().for_each(|name| running.create(name));
    running.want(&names, "first");
    let requests = api.wait_for_requests(names.len(), "PATCH", "/status");
    let second = Duration::from_secs(1);
    for (number, first) in requests.iter().enumerate() {
        let within = requests[number..]
            .iter()
            .take_while(|one| one.at - first.at < second);
        assert!(within.count() <= 101 + CONCURRENT);
    }
    names.iter().for_each(|name| {
        running.wait_for(name, "first");
    });
}
