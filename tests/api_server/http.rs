//! HTTP side of the API server: discovery, paged lists, watches, objects and writes, and the
//! failures of each. Each connection has a thread.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::SockRef;

use super::{Api, Fault, KINDS, Kind, Request, State, StoredState, port_forward};

/// Maximum duration of a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// A parsed request.
pub(super) struct ParsedRequest<'a> {
    pub(super) kind: &'static Kind,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    /// Whether it addresses the status subresource.
    pub(super) is_status: bool,
    pub(super) query: &'a str,
}

impl<'a> ParsedRequest<'a> {
    fn of(path: &'a str, query: &'a str) -> Option<Self> {
        KINDS.iter().find_map(|kind| {
            let rest = path.strip_prefix(kind.version)?.strip_prefix('/')?;
            let whole = rest.strip_suffix("/status");
            let parts: Vec<_> = whole.unwrap_or(rest).split('/').collect();
            let (namespace, name) = match parts[..] {
                [plural] if plural == kind.plural => (None, None),
                [plural, name] if plural == kind.plural && !kind.namespaced => (None, Some(name)),
                ["namespaces", namespace, plural] if plural == kind.plural => {
                    (Some(namespace), None)
                }
                ["namespaces", namespace, plural, name] if plural == kind.plural => {
                    (Some(namespace), Some(name))
                }
                _ => return None,
            };
            Some(Self {
                kind,
                namespace,
                name,
                is_status: whole.is_some(),
                query,
            })
        })
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Reports whether the request selects an object by namespace, name and labels.
    fn selects(&self, object: &Value) -> bool {
        let fields = self.parameter("fieldSelector").unwrap_or_default();
        let name = fields.strip_prefix("metadata.name%3D");
        let metadata = &object["metadata"];
        let labels = self.parameter("labelSelector").unwrap_or_default();
        let labels = labels.replace("%2F", "/").replace("%3D", "=");
        let mut labels = labels
            .split("%2C")
            .filter_map(|label| label.split_once('='));
        labels.all(|(label, value)| metadata["labels"][label] == value)
            && name.is_none_or(|name| metadata["name"] == name)
            && self
                .namespace
                .is_none_or(|namespace| metadata["namespace"] == namespace)
    }

    /// Key of the requested object.
    pub(super) fn key(&self) -> (String, String, String) {
        let (namespace, name) = (self.namespace.unwrap_or_default(), self.name.unwrap());
        (self.kind.name.into(), namespace.into(), name.into())
    }

    fn is_permitted(&self, state: &State) -> bool {
        let Some(permitted) = state.permitted.as_ref().filter(|_| self.kind.namespaced) else {
            return true;
        };
        self.namespace
            .is_some_and(|namespace| permitted.iter().any(|one| one == namespace))
    }
}

impl Api {
    pub(super) fn serve(&self, socket: &TcpStream) {
        let mut reader = BufReader::new(socket);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let mut body = vec![0; length(&head)];
            if reader.read_exact(&mut body).is_err() || self.state().offline {
                return;
            }
            if self.respond_to(socket, &head, &body).is_none() {
                return;
            }
        }
    }

    fn respond_to(&self, socket: &TcpStream, head: &str, body: &[u8]) -> Option<()> {
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/");
        let token = token(head);
        let mut state = self.state();
        state.requests.push(Request {
            at: Instant::now(),
            method: method.to_owned(),
            target: target.to_owned(),
            is_of_metadata: header(head, "accept")
                .is_some_and(|it| it.contains("as=PartialObjectMetadata")),
        });
        let page = state.texts.get(target).cloned();
        let forward = state.forwards.get(target).copied();
        let accepted = state.token.as_ref();
        let is_welcome = accepted.is_none_or(|accepted| Some(accepted) == token.as_ref());
        let is_silenced = token.is_some_and(|token| state.silenced.contains(&token));
        let request = ParsedRequest::of(path, query)
            .filter(|request| !state.missing.contains(request.kind.name));
        let fault = request.as_ref().and_then(|request| {
            if !request.is_permitted(&state) {
                return Some(Fault::Status(403));
            }
            let of_writes = state.write_faults.get(request.kind.name);
            let of_writes = of_writes.filter(|_| method != "GET");
            let of_watches = state.watch_faults.get(request.kind.name);
            let of_watches = of_watches.filter(|_| query.contains("watch=true"));
            let of_all = state.faults.get(request.kind.name);
            of_writes.or(of_watches).or(of_all).copied()
        });
        drop(state);
        self.0.1.notify_all();
        if is_silenced {
            return fail_at(socket, Fault::Silence);
        }
        if !is_welcome {
            return respond(socket, 401, &failure(401));
        }
        match fault {
            // As the test wants it.
            Some(Fault::Slow(delay)) => thread::sleep(delay),
            Some(fault) => return fail_at(socket, fault),
            None => {}
        }
        if let Some(to) = forward {
            return port_forward::serve(socket, head, to);
        }
        if let Some(page) = page {
            return respond_with(socket, 200, "text/plain", &page);
        }
        let is_apply = header(head, "content-type").is_some_and(|it| it.contains("apply-patch"));
        let (status, body) = match request {
            _ if path == "/version" => (200, version()),
            Some(request) if query.contains("watch=true") => return self.watch(socket, &request),
            Some(request) if is_apply && !request.is_status => self.apply_patch(&request, body),
            Some(request) if method != "GET" => self.write(method, &request, body),
            Some(request) if request.name.is_some() => self.get(&request),
            Some(request) => self.list(&request),
            None => self.discovery(path),
        };
        respond(socket, status, &body)
    }

    fn discovery(&self, version: &str) -> (u16, Value) {
        let state = self.state();
        let resources: Vec<Value> = KINDS
            .iter()
            .filter(|kind| kind.version == version && !state.missing.contains(kind.name))
            .map(|kind| json!({"name": kind.plural, "singularName": "", "namespaced": kind.namespaced, "kind": kind.name, "verbs": ["get", "list", "watch"]}))
            .collect();
        if resources.is_empty() {
            return (404, failure(404));
        }
        (
            200,
            json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
        )
    }

    fn get(&self, request: &ParsedRequest<'_>) -> (u16, Value) {
        let mut state = self.state();
        while state.held.contains(request.kind.name) {
            state = self.wait(state, TEST_TIMEOUT);
        }
        match state.objects.get(&request.key()) {
            Some(object) => (200, object.clone()),
            None => (404, failure(404)),
        }
    }

    fn list(&self, request: &ParsedRequest<'_>) -> (u16, Value) {
        let mut state = self.state();
        let token = request.parameter("continue");
        let before = token.and_then(|token| token.split('-').next()?.parse().ok());
        let page: usize = before.unwrap_or(0);
        while state
            .hanging
            .get(request.kind.name)
            .is_some_and(|after| page >= *after)
        {
            state = self.wait(state, TEST_TIMEOUT);
        }
        if token.is_some() && state.expired > 0 {
            state.expired -= 1;
            return (410, failure(410));
        }
        let (version, mut objects) = match token {
            Some(token) => state.pages[token].clone(),
            None => state.visible(request),
        };
        let limit = request
            .parameter("limit")
            .map_or(usize::MAX, |limit| limit.parse().unwrap());
        let rest = objects.keys().nth(limit).cloned();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some(rest) = rest {
            let rest = objects.split_off(&rest);
            let token = format!("{}-{}", page + 1, state.requests.len());
            metadata["continue"] = token.clone().into();
            state.pages.insert(token, (version, rest));
        }
        // A list of nothing may be null.
        let items = (!objects.is_empty()).then(|| objects.into_values().collect::<Vec<_>>());
        let list = json!({
            "apiVersion": request.kind.version, "kind": format!("{}List", request.kind.name),
            "metadata": metadata, "items": items,
        });
        (200, list)
    }

    /// Streams events until the watch ends, then closes the connection.
    fn watch(&self, mut socket: &TcpStream, request: &ParsedRequest<'_>) -> Option<()> {
        let begin = Instant::now();
        let seconds = request
            .parameter("timeoutSeconds")
            .unwrap()
            .parse()
            .unwrap();
        let mut state = self.state();
        let mut since: u64 = request
            .parameter("resourceVersion")
            .unwrap()
            .parse()
            .unwrap();
        write!(socket, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        if since < state.oldest {
            let gone = json!({"type": "ERROR", "object": failure(410)});
            chunk(socket, &gone)?;
            return None;
        }
        let (cuts, muted) = (state.cuts, state.muted);
        loop {
            while state.muted != muted || state.delayed.contains(request.kind.name) {
                state = self.wait(state, TEST_TIMEOUT);
            }
            let left = Duration::from_secs(seconds).checked_sub(begin.elapsed());
            let Some(left) = left.filter(|_| state.cuts == cuts) else {
                return write!(socket, "0\r\n\r\n").ok().filter(|()| !state.offline);
            };
            let is_due = |(kind, _): &mut (String, String)| kind == request.kind.name;
            for (_, line) in state.lines.extract_if(.., is_due) {
                chunk(socket, &line)?;
            }
            for event in state
                .events
                .iter()
                .filter(|event| event.kind == request.kind.name && event.version > since)
                .filter(|event| request.selects(&event.line["object"]))
            {
                chunk(socket, &event.line)?;
            }
            since = since.max(state.version);
            state = self.wait(state, left);
        }
    }
}

impl State {
    /// Returns the objects that a list returns.
    fn visible(&mut self, request: &ParsedRequest<'_>) -> StoredState {
        let is_lost = self.lost.take_if(|kind| *kind == request.kind.name);
        if is_lost.is_some() {
            return (self.version, BTreeMap::new());
        }
        let (version, objects) = match &self.behind {
            Some((version, objects)) => (*version, objects),
            None => (self.version, &self.objects),
        };
        let objects: BTreeMap<_, _> = objects
            .iter()
            .filter(|((kind, _, _), object)| kind == request.kind.name && request.selects(object))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        (version, objects)
    }
}

fn fail_at(mut socket: &TcpStream, fault: Fault) -> Option<()> {
    match fault {
        Fault::Status(status) => respond(socket, status, &failure(status)),
        Fault::RetryAfter(status, seconds) => {
            let head = format!("HTTP/1.1 {status} X\r\nRetry-After: {seconds}\r\n");
            write!(socket, "{head}Content-Length: 0\r\n\r\n").ok()
        }
        Fault::Page(status) => {
            let page = format!("<html>\n<title>{status}</title>\n{}", "x".repeat(50_000));
            let head = format!("HTTP/1.1 {status} X\r\nContent-Type: text/html\r\n");
            let length = page.len();
            write!(socket, "{head}Content-Length: {length}\r\n\r\n{page}").ok()
        }
        Fault::Reset => {
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            None
        }
        Fault::Silence | Fault::Slow(_) => {
            // There is no response.
            thread::sleep(TEST_TIMEOUT);
            None
        }
    }
}

/// Returns the bytes of a request's body.
fn length(head: &str) -> usize {
    header(head, "content-length").map_or(0, |length| length.parse().unwrap())
}

/// Returns the bearer token of a request.
fn token(head: &str) -> Option<String> {
    let value = header(head, "authorization")?;
    Some(value.strip_prefix("Bearer ")?.to_owned())
}

pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find_map(|(one, value)| one.eq_ignore_ascii_case(name).then_some(value))
}

fn version() -> Value {
    json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
}

fn respond(socket: &TcpStream, status: u16, body: &Value) -> Option<()> {
    respond_with(socket, status, "application/json", &body.to_string())
}

fn respond_with(mut socket: &TcpStream, status: u16, content: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: {content}\r\nContent-Length: {length}");
    write!(socket, "{head}\r\n\r\n{body}").ok()
}

fn chunk(mut socket: &TcpStream, line: &impl Display) -> Option<()> {
    let line = format!("{line}\n");
    write!(socket, "{:x}\r\n{line}\r\n", line.len()).ok()
}

pub(super) fn failure(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": format!("status {code}")})
}
