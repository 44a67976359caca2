//! An API server as far as a watching client sees one: discovery, lists and watches of objects that a test puts in,
//! and every way of failing at it. Speaks HTTP/1.1 from a thread per connection. Validates nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Group and version, kind and plural of what is served.
const KINDS: &[(&str, &str, &str)] = &[
    ("v1", "Namespace", "namespaces"),
    ("v1", "Service", "services"),
    ("v1", "Secret", "secrets"),
    ("v1", "ConfigMap", "configmaps"),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    (
        "gateway.networking.k8s.io/v1",
        "GatewayClass",
        "gatewayclasses",
    ),
    ("gateway.networking.k8s.io/v1", "Gateway", "gateways"),
    (
        "gateway.networking.k8s.io/v1",
        "ListenerSet",
        "listenersets",
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes"),
    (
        "gateway.networking.k8s.io/v1",
        "ReferenceGrant",
        "referencegrants",
    ),
];

/// Something that happened to an object.
struct Event {
    version: u64,
    kind: String,
    line: Value,
}

#[derive(Default)]
struct State {
    /// Objects by kind, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    events: Vec<Event>,
    version: u64,
    /// Status codes that lists and watches of a kind are answered with.
    failing: BTreeMap<String, u16>,
    /// Kinds that the server does not know.
    missing: BTreeSet<String>,
    /// Kinds whose lists never come.
    hanging: BTreeSet<String>,
    /// Watches that began before this are over.
    epoch: u64,
    offline: bool,
}

/// The server. Lives as long as the test's process.
#[derive(Clone)]
pub(crate) struct Api(Arc<(Mutex<State>, Condvar)>, SocketAddr);

impl Api {
    /// A server on a free port.
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

    /// What a client needs to find it.
    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.1)}}],
            "users": [{"name": "test", "user": {"token": "test"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state());
        self.0.1.notify_all();
        outcome
    }

    /// Creates or replaces the objects of a YAML text.
    pub(crate) fn apply(&self, yaml: &str) {
        for document in serde_yaml::Deserializer::from_str(yaml) {
            let object: Value = serde::Deserialize::deserialize(document).unwrap();
            self.change(|state| state.put(object));
        }
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| state.delete(kind, namespace, name));
    }

    /// Deletes an object so that no watch tells of it, and ends all watches: whoever goes on where it was is told that
    /// this is too long ago.
    pub(crate) fn delete_unseen(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| {
            state.delete(kind, namespace, name);
            state.events.clear();
            state.version += 1000;
            state.epoch = state.version;
        });
    }

    /// Answers lists and watches of a kind with a status; 200 ends that.
    pub(crate) fn fail(&self, kind: &str, status: u16) {
        self.change(|state| {
            state.failing.remove(kind);
            if status != 200 {
                state.failing.insert(kind.to_owned(), status);
            }
            state.epoch = state.version + 1;
        });
    }

    /// Forgets a kind, or has it again.
    pub(crate) fn know(&self, kind: &str, known: bool) {
        self.change(|state| {
            if known {
                state.missing.remove(kind);
            } else {
                state.missing.insert(kind.to_owned());
            }
        });
    }

    /// Lets lists of a kind hang, or come.
    pub(crate) fn hang(&self, kind: &str, hangs: bool) {
        self.change(|state| {
            if hangs {
                state.hanging.insert(kind.to_owned());
            } else {
                state.hanging.remove(kind);
            }
        });
    }

    /// Ends all watches and refuses everything, or stops doing so.
    pub(crate) fn offline(&self, offline: bool) {
        self.change(|state| {
            state.offline = offline;
            state.epoch = state.version + 1;
        });
    }

    fn serve(&self, socket: &TcpStream) {
        let mut reader = BufReader::new(socket);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let target = head.split(' ').nth(1).unwrap().to_owned();
            if self.state().offline || self.answer(socket, &target).is_none() {
                return;
            }
        }
    }

    fn answer(&self, socket: &TcpStream, target: &str) -> Option<()> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/");
        let state = self.state();
        let resource = KINDS
            .iter()
            .filter(|(_, kind, _)| !state.missing.contains(*kind))
            .find(|(version, _, plural)| format!("{version}/{plural}") == path);
        drop(state);
        if path == "/version" {
            return respond(
                socket,
                200,
                &json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            );
        }
        let (status, body) = match resource {
            Some((_, kind, _)) if query.contains("watch=true") => {
                return self.watch(socket, kind, query);
            }
            Some((version, kind, _)) => self.list(version, kind, query),
            None => self.discovery(path),
        };
        respond(socket, status, &body)
    }

    fn discovery(&self, version: &str) -> (u16, Value) {
        let state = self.state();
        let resources: Vec<Value> = KINDS
            .iter()
            .filter(|(of, kind, _)| *of == version && !state.missing.contains(*kind))
            .map(|(_, kind, plural)| json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["list", "watch"]}))
            .collect();
        if resources.is_empty() {
            return (404, failure(404));
        }
        (
            200,
            json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
        )
    }

    fn list(&self, version: &str, kind: &str, query: &str) -> (u16, Value) {
        let mut state = self.state();
        while state.hanging.contains(kind) {
            state = self.0.1.wait(state).unwrap();
        }
        if let Some(status) = state.failing.get(kind) {
            return (*status, failure(*status));
        }
        let items: Vec<_> = state
            .objects
            .iter()
            .filter_map(|((of, _, _), object)| (of == kind).then_some(object))
            .filter(|object| is_selected(query, object))
            .collect();
        let list = json!({
            "apiVersion": version, "kind": format!("{kind}List"),
            "metadata": {"resourceVersion": state.version.to_string()}, "items": items,
        });
        (200, list)
    }

    /// Streams events until the watch is over, and then ends the connection.
    fn watch(&self, mut socket: &TcpStream, kind: &str, query: &str) -> Option<()> {
        let mut state = self.state();
        let since = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="));
        let mut since: u64 = since.unwrap().parse().unwrap();
        if let Some(status) = state.failing.get(kind) {
            return respond(socket, *status, &failure(*status));
        }
        write!(socket, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        if since < state.epoch && state.epoch <= state.version {
            let gone = json!({"type": "ERROR", "object": failure(410)});
            chunk(socket, &gone)?;
            return None;
        }
        let epoch = state.epoch;
        loop {
            for event in state
                .events
                .iter()
                .filter(|event| event.kind == kind && event.version > since)
                .filter(|event| is_selected(query, &event.line["object"]))
            {
                chunk(socket, &event.line)?;
            }
            since = since.max(state.version);
            if state.epoch != epoch || state.offline {
                return None;
            }
            state = self
                .0
                .1
                .wait_timeout(state, Duration::from_secs(30))
                .unwrap()
                .0;
        }
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
        object["metadata"]["uid"] = format!("{key:?}").into();
        let what = match self.objects.insert(key, object.clone()) {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        self.record(&kind, what, &object);
    }

    fn delete(&mut self, kind: &str, namespace: &str, name: &str) {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = self.objects.remove(&key).unwrap();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.record(kind, "DELETED", &object);
    }
}

/// Whether the field selector of a list or watch, as far as it is for a name, lets an object through.
fn is_selected(query: &str, object: &Value) -> bool {
    let name = query.split("metadata.name%3D").nth(1);
    name.and_then(|rest| rest.split('&').next())
        .is_none_or(|name| object["metadata"]["name"] == name)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn respond(mut socket: &TcpStream, status: u16, body: &Value) -> Option<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}"
    );
    write!(socket, "{head}\r\n\r\n{body}").ok()
}

fn chunk(mut socket: &TcpStream, line: &Value) -> Option<()> {
    let line = format!("{line}\n");
    write!(socket, "{:x}\r\n{line}\r\n", line.len()).ok()
}

fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Expired", "message": format!("status {code}")})
}
