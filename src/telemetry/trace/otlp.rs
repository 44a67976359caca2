//! The messages of OTLP (`opentelemetry.proto.collector.trace.v1`), with only the fields that are sent, and the attributes
//! of spans by the semantic conventions for HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use prost::Message;

use super::events::{Event, EventValue};
use super::spans::{AttemptSpan, RequestSpan};
use crate::ir::Tracing;
use crate::ir::telemetry::{AttributeSource, NamePart};

/// `opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<SpanEvent>,
    #[prost(uint32, tag = "12")]
    dropped_events_count: u32,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

/// `opentelemetry.proto.trace.v1.Span.Event`.
#[derive(Clone, PartialEq, Message)]
struct SpanEvent {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}

/// `SPAN_KIND_SERVER`.
const SERVER: i32 = 2;
/// `SPAN_KIND_CLIENT`.
const CLIENT: i32 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;
/// Sampled, and it is known whether the parent is remote.
const LOCAL_PARENT: u32 = 0x101;
/// Sampled, with a remote parent.
const REMOTE_PARENT: u32 = 0x301;
/// The version of the semantic conventions.
pub(super) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

/// What stands for methods that nobody knows.
const OTHER: &str = "_OTHER";
/// Methods that may be in names of spans (RFC 9110, 9.3, and RFC 5789).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Names of gRPC statuses.
const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// Those that are errors of the server.
const GRPC_SERVER_ERRORS: [u16; 6] = [2, 4, 12, 13, 14, 15];

/// The attributes of a span under construction.
#[derive(Default)]
pub(super) struct Attributes(pub(super) Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, value: Value) {
        self.0.push(KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
        });
    }

    pub(super) fn text(&mut self, key: &str, value: impl Into<String>) {
        self.add(key, Value::String(value.into()));
    }

    pub(super) fn number(&mut self, key: &str, value: impl Into<i64>) {
        self.add(key, Value::Int(value.into()));
    }

    fn method(&mut self, method: &str) {
        self.text("http.request.method", known(method).unwrap_or(OTHER));
        if known(method).is_none() {
            self.text("http.request.method_original", method);
        }
    }

    fn peer(&mut self, prefix: &str, address: SocketAddr) {
        self.text(&format!("{prefix}.address"), address.ip().to_string());
        self.number(&format!("{prefix}.port"), address.port());
    }
}

fn known(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method)
}

impl Resource {
    pub(super) fn of(tracing: &Tracing) -> Self {
        let mut attributes = Attributes::default();
        attributes.text("service.name", &*tracing.service_name);
        attributes.text("service.version", env!("CARGO_PKG_VERSION"));
        Self {
            attributes: attributes.0,
        }
    }
}

impl Scope {
    pub(super) fn ours() -> Self {
        Self {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Encodes requests that were sampled by the same policy as an `ExportTraceServiceRequest`.
pub fn encode<'a>(tracing: &Tracing, requests: impl Iterator<Item = &'a RequestSpan>) -> Vec<u8> {
    let request = ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource::of(tracing)),
            scope_spans: vec![ScopeSpans {
                scope: Some(Scope::ours()),
                spans: requests.flat_map(spans).collect(),
            }],
            schema_url: SCHEMA.to_owned(),
        }],
    };
    request.encode_to_vec()
}

fn spans(request: &RequestSpan) -> impl Iterator<Item = Span> {
    let attempts = request.attempts.iter();
    let attempts = attempts.map(|attempt| client_span(request, attempt));
    let server = request.purpose.is_none().then(|| server_span(request));
    server.into_iter().chain(attempts)
}

fn server_span(request: &RequestSpan) -> Span {
    let mut attributes = Attributes::default();
    attributes.method(&request.method);
    attributes.text("url.path", &*request.path);
    attributes.text("url.scheme", request.peer.scheme);
    attributes.text("network.protocol.version", request.version);
    attributes.peer("client", request.peer.client);
    if !request.peer.host.is_empty() {
        attributes.text("server.address", &*request.peer.host);
        attributes.number("server.port", request.peer.port);
    }
    if let Some(agent) = &request.user_agent {
        attributes.text("user_agent.original", &**agent);
    }
    if let Some(template) = &request.template {
        attributes.text("http.route", &**template);
    }
    if let Some((route, rule)) = &request.rule {
        attributes.text("portcullis.route", &**route);
        attributes.number("portcullis.rule", *rule as i64);
    }
    if request.status > 0 {
        attributes.number("http.response.status_code", request.status);
    }
    let status = request.grpc_status.unwrap_or_default();
    if let Some(name) = request.grpc_status.map(grpc_name) {
        attributes.text("rpc.system.name", "grpc");
        attributes.text("rpc.response.status_code", name);
    }
    // A refused request is no error of the server. One without a complete response is.
    let reason = request
        .error
        .filter(|_| !(400..500).contains(&request.status));
    let error = match reason {
        Some(reason) => Some(reason.to_owned()),
        None if request.status >= 500 => Some(request.status.to_string()),
        None if GRPC_SERVER_ERRORS.contains(&status) => Some(grpc_name(status).to_owned()),
        None => None,
    };
    let parent = match request.has_parent() {
        true => REMOTE_PARENT,
        false => LOCAL_PARENT,
    };
    Span {
        span_id: request.context.span_id.to_vec(),
        parent_span_id: request
            .parent
            .map_or_else(Vec::new, |parent| parent.to_vec()),
        kind: SERVER,
        flags: parent,
        events: request.events.iter().map(|it| event(request, it)).collect(),
        dropped_events_count: request.dropped_events,
        ..span(
            request,
            (Duration::ZERO, request.duration),
            attributes,
            error,
        )
    }
    .customized(request)
}

impl Span {
    /// Gives the span of a request the attributes and the name that its policy configures.
    fn customized(mut self, request: &RequestSpan) -> Self {
        let tracing = &request.tracing;
        if let Some(parts) = &tracing.span_name {
            self.name = self.name_of(parts);
        }
        let copied = tracing.attributes.iter().filter_map(|(name, source)| {
            let AttributeSource::Attribute(other) = source else {
                return None;
            };
            Some((name, self.value(other)?.clone()))
        });
        let own = request.attributes.iter();
        let own = own.map(|(name, value)| (name, Value::String(value.to_string())));
        let custom: Vec<_> = own.chain(copied).collect();
        // Keys must be unique, so that these replace others.
        let is_replaced = |it: &KeyValue| custom.iter().any(|(name, _)| it.key == ***name);
        self.attributes.retain(|it| !is_replaced(it));
        let mut attributes = Attributes(self.attributes);
        for (name, value) in custom {
            attributes.add(name, value);
        }
        self.attributes = attributes.0;
        self
    }

    fn name_of(&self, parts: &[NamePart]) -> String {
        let name: String = parts
            .iter()
            .map(|part| match part {
                NamePart::Text(text) => text.to_string(),
                NamePart::Attribute(key) => match self.value(key) {
                    // A method that nobody knows is not part of a name.
                    Some(Value::String(text)) if text == OTHER => "HTTP".to_owned(),
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Int(number)) => number.to_string(),
                    None => String::new(),
                },
            })
            .collect();
        name.trim().to_owned()
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let attribute = self.attributes.iter().find(|it| it.key == key)?;
        attribute.value.as_ref()?.value.as_ref()
    }
}

fn client_span(request: &RequestSpan, attempt: &AttemptSpan) -> Span {
    let mut attributes = Attributes::default();
    attributes.method(&request.method);
    let scheme = if attempt.is_tls { "https" } else { "http" };
    if let Some(endpoint) = attempt.endpoint {
        attributes.peer("server", endpoint);
        attributes.text("url.full", format!("{scheme}://{endpoint}{}", attempt.path));
    }
    if let Some(template) = &request.template {
        attributes.text("url.template", &**template);
    }
    if let Some(purpose) = request.purpose {
        attributes.text("portcullis.purpose", purpose.name());
    }
    if attempt.resend > 0 {
        attributes.number("http.request.resend_count", attempt.resend);
    }
    if attempt.status > 0 {
        attributes.number("http.response.status_code", attempt.status);
    }
    let error = match (attempt.error, attempt.status) {
        (Some(error), _) => Some(error.to_owned()),
        (None, status @ 400..) => Some(status.to_string()),
        (None, _) => None,
    };
    let end = attempt.end.unwrap_or(request.duration);
    Span {
        span_id: attempt.span_id.to_vec(),
        parent_span_id: request.context.span_id.to_vec(),
        kind: CLIENT,
        flags: LOCAL_PARENT,
        ..span(request, (attempt.start, end), attributes, error)
    }
}

fn event(request: &RequestSpan, (time, event): &(Duration, Event)) -> SpanEvent {
    let mut attributes = Attributes::default();
    for (key, value) in &event.attributes {
        match value {
            EventValue::Word(word) => attributes.text(key, *word),
            EventValue::Name(name) => attributes.text(key, &**name),
            EventValue::Text(text) => attributes.text(key, &**text),
            EventValue::Number(number) => attributes.number(key, *number),
        }
    }
    SpanEvent {
        time_unix_nano: request.start + time.as_nanos() as u64,
        name: event.name.to_owned(),
        attributes: attributes.0,
    }
}

/// Returns what the spans of a request have in common.
fn span(
    request: &RequestSpan,
    (start, end): (Duration, Duration),
    mut attributes: Attributes,
    error: Option<String>,
) -> Span {
    let method = known(&request.method).unwrap_or("HTTP");
    let name = match &request.template {
        Some(template) => format!("{method} {template}"),
        None => method.to_owned(),
    };
    let status = error.map(|error| {
        attributes.text("error.type", error);
        Status {
            message: String::new(),
            code: ERROR,
        }
    });
    Span {
        trace_id: request.context.trace_id.to_vec(),
        trace_state: request.tracestate.to_string(),
        name,
        start_time_unix_nano: request.start + start.as_nanos() as u64,
        end_time_unix_nano: request.start + end.max(start).as_nanos() as u64,
        attributes: attributes.0,
        status,
        ..Span::default()
    }
}

fn grpc_name(status: u16) -> &'static str {
    GRPC_STATUSES
        .get(usize::from(status))
        .copied()
        .unwrap_or("UNKNOWN")
}
