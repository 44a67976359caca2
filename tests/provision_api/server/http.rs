//! The HTTP side: one thread per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Fault, Key, Request, Server, State, TEST_TIMEOUT, fields};

/// A request as it was read.
struct Call {
    request: Request,
    query: String,
    wants_metadata: bool,
    content: String,
    body: Value,
}

impl Call {
    fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&');
        let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.replace("%2F", "/").replace("%3D", "="))
    }

    fn manager(&self) -> String {
        self.parameter("fieldManager")
            .unwrap_or("unknown".to_owned())
    }

    fn key(&self) -> Key {
        let Request {
            plural,
            namespace,
            name,
            ..
        } = &self.request;
        let name = match name.as_str() {
            "" => self.body["metadata"]["name"].as_str().unwrap_or_default(),
            name => name,
        };
        super::key(plural, namespace, name)
    }

    /// Reports whether an object matches the label selector.
    fn selects(&self, object: &Value) -> bool {
        let Some(selector) = self.parameter("labelSelector") else {
            return true;
        };
        let (label, value) = selector.split_once('=').unwrap();
        object["metadata"]["labels"][label] == value
    }
}

impl Server {
    pub(super) fn serve(&self, socket: &TcpStream) {
        let mut reader = BufReader::new(socket);
        while let Some(call) = read(&mut reader) {
            let fault = self.with(|state| {
                state.requests.push(call.request.clone());
                state.rule.as_ref().and_then(|rule| rule(&call.request))
            });
            let answered = match fault {
                Some(Fault::Hang) => {
                    // There is no response.
                    thread::sleep(TEST_TIMEOUT * 10);
                    None
                }
                Some(Fault::Refuse(code, reason, message)) => {
                    respond(socket, code, &status(code, reason, message))
                }
                None if call.query.contains("watch=true") => self.watch(socket, &call),
                None => {
                    let (code, mut body) = self.with(|state| state.answer(&call));
                    if call.wants_metadata && code < 300 {
                        body = json!({
                            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                            "metadata": body["metadata"],
                        });
                    }
                    respond(socket, code, &body)
                }
            };
            if answered.is_none() {
                return;
            }
        }
    }

    /// Streams events until the watch is over.
    fn watch(&self, mut socket: &TcpStream, call: &Call) -> Option<()> {
        let mut since: u64 = call.parameter("resourceVersion")?.parse().ok()?;
        write!(socket, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        let mut state = self.state();
        loop {
            for (version, key, event) in &state.events {
                if *version <= since || key.0 != call.request.plural {
                    continue;
                }
                since = *version;
                let mut event = event.clone();
                if !call.selects(&event["object"]) {
                    // The object may have matched the selector before.
                    event["type"] = json!("DELETED");
                }
                let line = format!("{event}\n");
                write!(socket, "{:x}\r\n{line}\r\n", line.len()).ok()?;
            }
            state = self
                .state
                .1
                // Looks whether the client is gone.
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap()
                .0;
        }
    }
}

impl State {
    fn answer(&mut self, call: &Call) -> (u16, Value) {
        let key = call.key();
        let known = self.objects.get(&key).cloned();
        match (call.request.verb.as_str(), known) {
            ("GET", _) if call.request.name.is_empty() => (200, self.list(call)),
            ("GET", Some(known)) => (200, known),
            ("POST", None) => (201, self.create(call, &key)),
            ("POST", Some(_)) => {
                let message = format!("{} \"{}\" already exists", key.0, key.2);
                (409, status(409, "AlreadyExists", &message))
            }
            ("APPLY", known) => self.apply(call, &key, known),
            ("PATCH", Some(known)) => self.patch(call, &key, &known),
            ("DELETE", Some(known)) => self.delete(call, &key, &known),
            _ => (404, status(404, "NotFound", "not found")),
        }
    }

    fn list(&self, call: &Call) -> Value {
        let Request {
            plural, namespace, ..
        } = &call.request;
        let objects = self.objects.iter();
        let objects = objects.filter(|(key, object)| {
            key.0 == *plural
                && (namespace.is_empty() || key.1 == *namespace)
                && call.selects(object)
        });
        let items: Vec<_> = objects.map(|(_, object)| object).collect();
        json!({
            "apiVersion": "v1", "kind": "List",
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items,
        })
    }

    fn create(&mut self, call: &Call, key: &Key) -> Value {
        let mut object = call.body.clone();
        object["metadata"]["uid"] = self.new_uid();
        fields::created(&mut object, &call.manager());
        self.store(key, object)
    }

    fn apply(&mut self, call: &Call, key: &Key, known: Option<Value>) -> (u16, Value) {
        let uid = &call.body["metadata"]["uid"];
        let mut object = match known {
            Some(known) if !uid.is_null() && *uid != known["metadata"]["uid"] => {
                return (
                    422,
                    status(422, "Invalid", "metadata.uid: field is immutable"),
                );
            }
            Some(known) => known,
            None if !uid.is_null() => return (409, status(409, "Conflict", "uid mismatch")),
            None => {
                let uid = self.new_uid();
                let mut object = call.body.clone();
                object["metadata"]["uid"] = uid;
                object
            }
        };
        fields::apply(&mut object, &call.body, &call.manager());
        (200, self.store(key, object))
    }

    fn patch(&mut self, call: &Call, key: &Key, known: &Value) -> (u16, Value) {
        let mut object = known.clone();
        if call.content.contains("json-patch") {
            for change in call.body.as_array().unwrap() {
                if patch_json(&mut object, change).is_none() {
                    return (422, status(422, "Invalid", "the test of a patch failed"));
                }
            }
        } else {
            merge(&mut object, &call.body);
            if object["metadata"]["uid"] != known["metadata"]["uid"] {
                return (409, status(409, "Conflict", "uid mismatch"));
            }
            fields::updated(known, &mut object, &call.manager());
        }
        (200, self.store(key, object))
    }

    fn delete(&mut self, call: &Call, key: &Key, known: &Value) -> (u16, Value) {
        let wanted = &call.body["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != known["metadata"][field] {
                return (409, status(409, "Conflict", "a precondition failed"));
            }
        }
        self.remove(key);
        (200, known.clone())
    }
}

fn patch_json(object: &mut Value, change: &Value) -> Option<()> {
    let path = change["path"].as_str().unwrap();
    match change["op"].as_str().unwrap() {
        "test" => object
            .pointer(path)
            .filter(|found| **found == change["value"])
            .map(drop),
        "replace" => {
            *object.pointer_mut(path)? = change["value"].clone();
            Some(())
        }
        "remove" => {
            let (parent, name) = path.rsplit_once('/').unwrap();
            match object.pointer_mut(parent)? {
                Value::Array(list) => drop(list.remove(name.parse().unwrap())),
                fields => drop(fields.as_object_mut()?.remove(name)?),
            }
            Some(())
        }
        other => panic!("{other}"),
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match patch.as_object() {
        Some(fields) => {
            for (name, value) in fields {
                merge(&mut object[name], value);
            }
        }
        None => *object = patch.clone(),
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Call> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next()?, words.next()?.to_owned());
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    assert!(header("transfer-encoding").is_none(), "a body in chunks");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let content = header("content-type").unwrap_or_default();
    let verb = match method {
        "PATCH" if content.contains("apply-patch") => "APPLY",
        method => method,
    };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    let group = if parts[0] == "api" { 2 } else { 3 };
    let mut parts = parts.drain(group..);
    let mut plural = parts.next()?.to_owned();
    let mut namespace = String::new();
    if plural == "namespaces" {
        namespace = parts.next()?.to_owned();
        plural = parts.next()?.to_owned();
    }
    Some(Call {
        request: Request {
            verb: verb.to_owned(),
            plural,
            namespace,
            name: parts.next().unwrap_or_default().to_owned(),
        },
        query: query.to_owned(),
        wants_metadata: header("accept")
            .is_some_and(|accept| accept.contains("PartialObjectMetadata;")),
        content,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}

fn respond(mut socket: &TcpStream, code: u16, body: &Value) -> Option<()> {
    let body = body.to_string();
    let length = body.len();
    let head =
        format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}");
    write!(socket, "{head}\r\n\r\n{body}").ok()
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message})
}
