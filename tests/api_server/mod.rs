//! An in-memory API server as seen by a client: objects that a test or the client stores, and every
//! failure that a test requests. Validates nothing.

#![allow(
    dead_code,
    reason = "every test target uses a part of the API server, and none uses all of it"
)]

mod apply;
mod http;
mod kinds;
mod port_forward;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::kinds::{KINDS, Kind};

/// Timeout of any wait.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Failure of requests for a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A Status object with this code.
    Status(u16),
    /// A status with `Retry-After` in seconds.
    RetryAfter(u16, u32),
    /// A status with an HTML page.
    Page(u16),
    /// The connection is reset.
    Reset,
    /// No response.
    Silence,
    /// A delayed response.
    Slow(Duration),
}

/// All objects, and the latest version.
pub(crate) type StoredState = (u64, BTreeMap<(String, String, String), Value>);

/// A watch event.
struct Event {
    version: u64,
    kind: String,
    line: Value,
}

/// A request with its time.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Instant,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Whether it asks for the metadata of objects alone.
    pub(crate) is_of_metadata: bool,
}

#[derive(Default)]
struct State {
    /// Objects by kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    events: Vec<Event>,
    /// Lines by kind that the next watch events follow.
    lines: Vec<(String, String)>,
    version: u64,
    /// By kind.
    faults: BTreeMap<String, Fault>,
    /// By kind, for writes only.
    write_faults: BTreeMap<String, Fault>,
    /// By kind, for watches only.
    watch_faults: BTreeMap<String, Fault>,
    /// Tokens whose requests get no response.
    silenced: BTreeSet<String>,
    /// A status field that is pruned on write, like one that the CRD does not have.
    dropped: Option<String>,
    /// Field managers whose applies are forbidden, except dry runs.
    refused_managers: BTreeSet<String>,
    /// Texts by path, such as what the proxy of a pod returns.
    texts: BTreeMap<String, String>,
    /// What listens in pods, by the path that asks for their port.
    forwards: BTreeMap<String, SocketAddr>,
    /// Results of TokenReviews.
    reviews: BTreeMap<String, Value>,
    /// Kinds that the server does not serve.
    missing: BTreeSet<String>,
    /// Kinds whose lists hang after this many pages.
    hanging: BTreeMap<String, usize>,
    /// Kinds whose objects have no response when they are requested by name.
    held: BTreeSet<String>,
    /// Number of further continue tokens to expire.
    expired: usize,
    /// Remaining objects of lists by continue token.
    pages: BTreeMap<String, StoredState>,
    /// Stale objects that lists return instead of the current ones.
    behind: Option<StoredState>,
    /// A kind whose next list is empty.
    lost: Option<String>,
    /// The only permitted namespaces.
    permitted: Option<Vec<String>>,
    /// The only accepted token.
    token: Option<String>,
    /// Oldest version that a watch can start from.
    oldest: u64,
    /// Number of times that all watches were ended.
    cuts: u64,
    /// Watches that began before this send nothing more, not even their end.
    muted: u64,
    /// Kinds whose watches send nothing.
    delayed: BTreeSet<String>,
    offline: bool,
    requests: Vec<Request>,
}

/// The server. Lives as long as the test process.
#[derive(Clone)]
pub(crate) struct Api(Arc<(Mutex<State>, Condvar)>, SocketAddr);

impl Api {
    /// Starts a server on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Self(Arc::default(), listener.local_addr().unwrap());
        let server = api.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let server = server.clone();
                let socket = socket.unwrap();
                thread::spawn(move || server.serve(&socket));
            }
        });
        api
    }

    /// Returns the plural of a kind that the server serves.
    pub(crate) fn plural(kind: &str) -> Option<&'static str> {
        let found = KINDS.iter().find(|served| served.name == kind);
        found.map(|served| served.plural)
    }

    /// URL of the server.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.1)
    }

    /// Returns a kubeconfig with this user.
    pub(crate) fn kubeconfig(&self, user: &Value) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url()}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.0.1.wait_timeout(state, at_most).unwrap().0
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state());
        self.0.1.notify_all();
        outcome
    }

    /// Creates or replaces the objects of a YAML text.
    pub(crate) fn apply(&self, yaml: &str) {
        let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        objects.into_iter().for_each(|object| self.put(object));
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, object: Value) {
        self.change(|state| state.put(object));
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| state.delete(kind, namespace, name));
    }

    /// Deletes an object without a watch event and ends all watches. A watch from an earlier
    /// version gets 410.
    pub(crate) fn delete_unseen(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| {
            state.delete(kind, namespace, name);
            state.expire();
        });
    }

    /// Sends an old event of an object to the watches several times.
    pub(crate) fn replay(&self, object: &Value, times: usize) {
        self.change(|state| {
            let kind = text(&object["kind"]);
            for _ in 0..times {
                state.version += 1;
                state.record(&kind, "MODIFIED", object);
            }
        });
    }

    /// Sends a line to the watch of a kind, once.
    pub(crate) fn send_line(&self, kind: &str, line: &str) {
        let line = (kind.to_owned(), line.to_owned());
        self.change(|state| state.lines.push(line));
    }

    /// Returns the current object.
    pub(crate) fn object(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.state().objects[&key].clone()
    }

    /// Returns all current objects.
    pub(crate) fn stored_state(&self) -> StoredState {
        let state = self.state();
        (state.version, state.objects.clone())
    }

    /// Makes lists return old objects until reset. Ends all watches.
    pub(crate) fn serve_stale_lists(&self, stored_state: Option<StoredState>) {
        self.change(|state| {
            state.behind = stored_state;
            state.expire();
        });
    }

    /// Makes the next list of a kind empty. Ends all watches.
    pub(crate) fn lose_objects_once(&self, kind: &str) {
        self.change(|state| {
            state.lost = Some(kind.to_owned());
            state.expire();
        });
    }

    /// Sets or clears the failure of requests for a kind; ends its watches.
    pub(crate) fn fail(&self, kind: &str, fault: Option<Fault>) {
        self.change(|state| {
            state.faults.remove(kind);
            if let Some(fault) = fault {
                state.faults.insert(kind.to_owned(), fault);
            }
            state.cuts += 1;
        });
    }

    /// Sets or clears the failure of all requests.
    pub(crate) fn fail_all(&self, fault: Option<Fault>) {
        for kind in KINDS {
            self.fail(kind.name, fault);
        }
    }

    /// Sets or clears the failure of writes for a kind.
    pub(crate) fn fail_writes(&self, kind: &str, fault: Option<Fault>) {
        self.change(|state| {
            state.write_faults.remove(kind);
            if let Some(fault) = fault {
                state.write_faults.insert(kind.to_owned(), fault);
            }
        });
    }

    /// Sets or clears the failure of watches of a kind; ends those that are open.
    pub(crate) fn fail_watches(&self, kind: &str, fault: Option<Fault>) {
        self.change(|state| {
            state.watch_faults.remove(kind);
            if let Some(fault) = fault {
                state.watch_faults.insert(kind.to_owned(), fault);
            }
            state.cuts += 1;
        });
    }

    /// Sets the TokenReview status of a token; other tokens are invalid.
    pub(crate) fn review(&self, token: &str, status: Value) {
        self.change(|state| state.reviews.insert(token.to_owned(), status));
    }

    /// Stops responding to requests with this token.
    pub(crate) fn silence(&self, token: &str) {
        self.change(|state| state.silenced.insert(token.to_owned()));
    }

    /// Prunes this status field on writes.
    pub(crate) fn drop_status_field(&self, name: &str) {
        self.change(|state| state.dropped = Some(name.to_owned()));
    }

    /// Forbids the applies of a field manager, except dry runs.
    pub(crate) fn refuse_applies(&self, manager: &str) {
        self.change(|state| state.refused_managers.insert(manager.to_owned()));
    }

    /// Serves a text at a path. Until then, the path has its previous text.
    pub(crate) fn serve_text(&self, path: &str, text: String) {
        self.change(|state| state.texts.insert(path.to_owned(), text));
    }

    /// Forwards connections to the admin port of a pod. Until then, the pod does not run.
    pub(crate) fn forward(&self, namespace: &str, pod: &str, to: SocketAddr) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?&ports=19000");
        self.change(|state| state.forwards.insert(path, to));
    }

    /// Waits until an object matches.
    pub(crate) fn wait_for(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let is_missing = |state: &mut State| !state.objects.get(&key).is_some_and(&wanted);
        let waited = self
            .0
            .1
            .wait_timeout_while(self.state(), TEST_TIMEOUT, is_missing);
        let (state, waited) = waited.unwrap();
        let object = state.objects.get(&key);
        assert!(!waited.timed_out(), "{key:?} is still {object:?}");
        object.unwrap().clone()
    }

    /// Waits until the server has what is wanted.
    pub(crate) fn wait_until<T>(&self, wanted: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = wanted() {
                return found;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", self.stored_state());
            // No notification tells the change.
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for this many requests of a method whose target contains a text.
    pub(crate) fn wait_for_requests(&self, count: usize, method: &str, text: &str) -> Vec<Request> {
        let matching = |state: &State| {
            let requests = state.requests.iter();
            let matching = requests.filter(|one| one.method == method && one.target.contains(text));
            matching.cloned().collect::<Vec<_>>()
        };
        let is_missing = |state: &mut State| matching(state).len() < count;
        let waited = self
            .0
            .1
            .wait_timeout_while(self.state(), TEST_TIMEOUT, is_missing);
        let (state, waited) = waited.unwrap();
        let requests = matching(&state);
        assert!(!waited.timed_out(), "still {requests:?}");
        requests
    }

    /// Stops or resumes serving a kind.
    pub(crate) fn set_served(&self, kind: &str, known: bool) {
        self.change(|state| {
            if known {
                state.missing.remove(kind);
            } else {
                state.missing.insert(kind.to_owned());
            }
        });
    }

    /// Makes lists of a kind hang after this many pages, or resets that.
    pub(crate) fn hang(&self, kind: &str, after: Option<usize>) {
        self.change(|state| {
            state.hanging.remove(kind);
            if let Some(pages) = after {
                state.hanging.insert(kind.to_owned(), pages);
            }
        });
    }

    /// Holds back the responses to requests for single objects of a kind, or sends them.
    pub(crate) fn hold(&self, kind: &str, is_held: bool) {
        self.change(|state| match is_held {
            true => state.held.insert(kind.to_owned()),
            false => state.held.remove(kind),
        });
    }

    /// Expires this many continue tokens.
    pub(crate) fn expire_pages(&self, times: usize) {
        self.change(|state| state.expired = times);
    }

    /// Holds back the events of a kind, or sends them.
    pub(crate) fn delay(&self, kind: &str, is_delayed: bool) {
        self.change(|state| match is_delayed {
            true => state.delayed.insert(kind.to_owned()),
            false => state.delayed.remove(kind),
        });
    }

    /// Silences current watches; new ones work.
    pub(crate) fn mute(&self) {
        self.change(|state| {
            state.version += 1;
            state.muted = state.version;
        });
    }

    /// Permits only these namespaces.
    pub(crate) fn permit(&self, namespaces: &[&str]) {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        self.change(|state| state.permitted = Some(namespaces));
    }

    /// Accepts only this token. Ends all watches.
    pub(crate) fn accept(&self, token: &str) {
        self.change(|state| {
            state.token = Some(token.to_owned());
            state.cuts += 1;
        });
    }

    /// Goes offline or online: ends all watches and rejects everything.
    pub(crate) fn offline(&self, offline: bool) {
        self.change(|state| {
            state.offline = offline;
            state.cuts += 1;
        });
    }

    /// Requests whose target contains a text.
    pub(crate) fn requests(&self, text: &str) -> Vec<Request> {
        let state = self.state();
        let requests = state.requests.iter();
        let requests = requests.filter(|request| request.target.contains(text));
        requests.cloned().collect()
    }
}

impl State {
    fn record(&mut self, kind: &str, what: &str, object: &Value) {
        self.events.push(Event {
            version: self.version,
            kind: kind.to_owned(),
            line: json!({"type": what, "object": object}),
        });
    }

    fn put(&mut self, mut object: Value) {
        self.version += 1;
        let kind = text(&object["kind"]);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let key = (
            kind.clone(),
            text(&object["metadata"]["namespace"]),
            text(&object["metadata"]["name"]),
        );
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("{key:?}").into();
        }
        let what = match self.objects.insert(key, object.clone()) {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        self.record(&kind, what, &object);
    }

    /// Drops the event history and ends all watches.
    fn expire(&mut self) {
        self.events.clear();
        self.version += 1000;
        self.oldest = self.version;
        self.cuts += 1;
    }

    fn delete(&mut self, kind: &str, namespace: &str, name: &str) {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = self.objects.remove(&key).unwrap();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.record(kind, "DELETED", &object);
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
