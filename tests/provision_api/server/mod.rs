//! An in-memory API server: create, apply, patch, delete, list and watch, with managed fields and
//! preconditions. Validates only what a test requests.

mod fields;
mod http;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

/// Timeout of any wait on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Plural, namespace and name of an object.
pub(crate) type Key = (String, String, String);

/// Returns a key of these parts.
pub(crate) fn key(plural: &str, namespace: &str, name: &str) -> Key {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

/// Failure of a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Rejects it with this message.
    Refuse(u16, &'static str, &'static str),
    /// Never responds.
    Hang,
}

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Such as `POST`; applying is `APPLY`.
    pub(crate) verb: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    /// Empty if the name is in the body.
    pub(crate) name: String,
}

impl Request {
    pub(crate) fn is_write(&self) -> bool {
        self.verb != "GET"
    }
}

type Rule = Box<dyn Fn(&Request) -> Option<Fault> + Send>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<Key, Value>,
    events: Vec<(u64, Key, Value)>,
    version: u64,
    uids: u64,
    rule: Option<Rule>,
    pub(crate) requests: Vec<Request>,
    /// Whether workloads reach their desired state at once.
    has_no_controllers: bool,
}

/// The server. Lives as long as the test process.
#[derive(Clone)]
pub(crate) struct Server {
    state: Arc<(Mutex<State>, Condvar)>,
    changed: watch::Sender<u64>,
    address: SocketAddr,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            state: Arc::default(),
            changed: watch::Sender::default(),
            address: listener.local_addr().unwrap(),
        };
        let serving = server.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let server = serving.clone();
                let socket = socket.unwrap();
                thread::spawn(move || server.serve(&socket));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Reads or changes the state.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state());
        self.state.1.notify_all();
        self.changed.send_modify(|count| *count += 1);
        outcome
    }

    /// Waits until `look` returns a value.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let found = tokio::time::timeout(TEST_TIMEOUT, async {
            loop {
                if let Some(found) = look(&self.state()) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => {
                let state = self.state();
                let names: Vec<_> = state.objects.keys().collect();
                let requests = state.requests.iter().map(|request| {
                    let Request {
                        verb,
                        plural,
                        namespace,
                        name,
                    } = request;
                    format!("{verb} {plural} {namespace}/{name}")
                });
                let requests: Vec<_> = requests.filter(|line| !line.ends_with(" /")).collect();
                panic!("not {what}: {names:?}\n{}", requests.join("\n"));
            }
        }
    }

    /// Sets the rule that decides about failures of requests.
    pub(crate) fn rule(&self, rule: impl Fn(&Request) -> Option<Fault> + Send + 'static) {
        self.with(|state| state.rule = Some(Box::new(rule)));
    }

    /// Removes the rule.
    pub(crate) fn lift_rule(&self) {
        self.with(|state| state.rule = None);
    }

    /// Takes the writes received so far.
    pub(crate) fn take_writes(&self) -> Vec<Request> {
        let mut requests = self.with(|state| std::mem::take(&mut state.requests));
        requests.retain(Request::is_write);
        requests
    }

    pub(crate) fn object(&self, key: &Key) -> Option<Value> {
        self.state().objects.get(key).cloned()
    }

    /// Workloads do not change until [`State::settle`].
    pub(crate) fn stop_controllers(&self) {
        self.with(|state| state.has_no_controllers = true);
    }
}

impl State {
    /// Stores an object as another client.
    pub(crate) fn put(&mut self, key: &Key, mut object: Value) {
        let uid = match self.objects.get(key) {
            Some(known) => known["metadata"]["uid"].clone(),
            None => self.new_uid(),
        };
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = uid;
        }
        self.store(key, object);
    }

    /// Changes an object as another client.
    pub(crate) fn edit(&mut self, key: &Key, edit: impl FnOnce(&mut Value)) {
        let mut object = self.objects[key].clone();
        edit(&mut object);
        self.store(key, object);
    }

    fn new_uid(&mut self) -> Value {
        self.uids += 1;
        format!("uid-{}", self.uids).into()
    }

    /// Stores an object with a new version if it has changed.
    fn store(&mut self, key: &Key, mut object: Value) -> Value {
        let former = self.objects.get(key);
        if former == Some(&object) {
            return object;
        }
        let counts = matches!(key.0.as_str(), "deployments" | "daemonsets" | "gateways");
        if counts && former.is_none_or(|former| former["spec"] != object["spec"]) {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        if !self.has_no_controllers {
            settle(key, &mut object);
        }
        let what = match former {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(key.clone(), object.clone());
        let event = json!({"type": what, "object": object});
        self.events.push((self.version, key.clone(), event));
        object
    }

    /// Completes the rollout of a workload.
    pub(crate) fn settle(&mut self, key: &Key) {
        let mut object = self.objects[key].clone();
        settle(key, &mut object);
        self.store(key, object);
    }

    /// Removes an object at once.
    pub(crate) fn remove(&mut self, key: &Key) {
        let Some(mut object) = self.objects.remove(key) else {
            return;
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let event = json!({"type": "DELETED", "object": object});
        self.events.push((self.version, key.clone(), event));
    }

    /// Runs the garbage collector: removes objects whose owner does not exist.
    pub(crate) fn collect(&mut self) {
        let uids: BTreeSet<_> = self
            .objects
            .values()
            .map(|object| object["metadata"]["uid"].to_string())
            .collect();
        let is_orphan = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| {
                !owners
                    .iter()
                    .any(|owner| uids.contains(&owner["uid"].to_string()))
            })
        };
        let orphans: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, object)| is_orphan(object))
            .map(|(key, _)| key.clone())
            .collect();
        orphans.iter().for_each(|key| self.remove(key));
    }

    /// Returns names of the objects of a kind.
    pub(crate) fn names(&self, plural: &str, namespace: &str) -> Vec<&str> {
        let keys = self.objects.keys();
        let keys = keys.filter(|key| key.0 == plural && key.1 == namespace);
        keys.map(|key| key.2.as_str()).collect()
    }
}

fn settle(key: &Key, object: &mut Value) {
    let generation = object["metadata"]["generation"].clone();
    if key.0 == "deployments" {
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        object["status"] = json!({
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
            "availableReplicas": replicas,
        });
    }
    if key.0 == "daemonsets" {
        object["status"] = json!({
            "observedGeneration": generation, "desiredNumberScheduled": 1,
            "currentNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
        });
    }
}
