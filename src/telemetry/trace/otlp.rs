//! The messages of OTLP (`opentelemetry.proto.collector.trace.v1`), with only the fields that are sent, and the attributes
//! of spans by the semantic conventions for HTTP.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use super::events::{Event, EventValue};
use super::protobuf::Message;
use super::spans::{AttemptSpan, RequestSpan, SpanMethod};
use crate::ir::Tracing;
use crate::ir::telemetry::{AttributeSource, NamePart, OtlpProtocol};
use crate::telemetry::address::{write_address, write_ip};

/// `SPAN_KIND_SERVER`.
const SERVER: u64 = 2;
/// `SPAN_KIND_CLIENT`.
const CLIENT: u64 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// Sampled, and it is known whether the parent is remote.
const LOCAL_PARENT: u32 = 0x101;
/// Sampled, with a remote parent.
const REMOTE_PARENT: u32 = 0x301;
/// The version of the semantic conventions.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Length of the prefix of a message over gRPC.
const GRPC_PREFIX: usize = 5;

/// Room for the attributes of most spans.
const ATTRIBUTES: usize = 16;

/// Room for most addresses with a port.
const ADDRESS: usize = 21;

/// What stands for methods that nobody knows.
const OTHER: &str = "_OTHER";

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

/// `opentelemetry.proto.common.v1.AnyValue`, of those types that are sent.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Text(Cow<'a, str>),
    Number(i64),
}

impl Value<'_> {
    /// Writes it as a field of this number.
    pub(super) fn write(&self, message: &mut Message, field: u32) {
        message.message(field, |any| match self {
            Self::Text(text) => any.present_bytes(1, &**text),
            Self::Number(number) => any.present_number(3, *number as u64),
        });
    }
}

/// The attributes of a span under construction.
#[derive(Default)]
pub(super) struct Attributes<'a>(Vec<(&'a str, Value<'a>)>);

impl<'a> Attributes<'a> {
    pub(super) fn text(&mut self, key: &'a str, value: impl Into<Cow<'a, str>>) {
        self.0.push((key, Value::Text(value.into())));
    }

    pub(super) fn number(&mut self, key: &'a str, value: impl Into<i64>) {
        self.0.push((key, Value::Number(value.into())));
    }

    fn method(&mut self, method: &'a SpanMethod) {
        match method {
            SpanMethod::Known(method) => self.text("http.request.method", *method),
            SpanMethod::Other(method) => {
                self.text("http.request.method", OTHER);
                self.text("http.request.method_original", &**method);
            }
        }
    }

    fn peer(&mut self, [address, port]: [&'a str; 2], peer: SocketAddr) {
        self.text(address, text_of(peer.ip()));
        // That of a client that a proxy names is not known.
        if peer.port() != 0 {
            self.number(port, peer.port());
        }
    }

    /// Writes each as a `KeyValue` in a field of this number.
    pub(super) fn write(&self, message: &mut Message, field: u32) {
        for (key, value) in &self.0 {
            message.message(field, |attribute| {
                attribute.bytes(1, key);
                value.write(attribute, 2);
            });
        }
    }
}

fn text_of(ip: IpAddr) -> String {
    let mut text = Vec::with_capacity(15);
    write_ip(&mut text, ip);
    String::from_utf8(text).unwrap_or_default()
}

/// Encodes an export request for the collector of a policy; `None` if there are no items. The requests of traces and of logs have the same
/// fields, but for the items of the scope, which `items` are as fields 2. Over gRPC the request has a prefix: not compressed, and its length.
pub(super) fn export<'a>(
    tracing: &Tracing,
    items: impl Iterator<Item = &'a [u8]> + Clone,
) -> Option<Bytes> {
    let length: usize = items.clone().map(<[u8]>::len).sum();
    if length == 0 {
        return None;
    }
    let mut resource = Message::default();
    resource.message(1, |resource| {
        let mut attributes = Attributes::default();
        attributes.text("service.name", &*tracing.service_name);
        attributes.text("service.version", env!("CARGO_PKG_VERSION"));
        attributes.write(resource, 1);
    });
    resource.bytes(3, SCHEMA);
    let mut scope = Message::default();
    scope.message(1, |scope| {
        scope.bytes(1, env!("CARGO_PKG_NAME"));
        scope.bytes(2, env!("CARGO_PKG_VERSION"));
    });
    // From the inside out: what precedes a message says how long it is, and the items are too many to be moved.
    scope.precede(2, length);
    resource.append(&scope);
    resource.precede(1, length);
    let head = resource.as_bytes();
    let mut request = Vec::with_capacity(GRPC_PREFIX + head.len() + length);
    if tracing.protocol == OtlpProtocol::Grpc {
        request.push(0);
        request.extend_from_slice(&((head.len() + length) as u32).to_be_bytes());
    }
    request.extend_from_slice(head);
    items.for_each(|items| request.extend_from_slice(items));
    Some(request.into())
}

/// Writes the spans of a request as items of their scope.
pub(super) fn write_spans(of_scope: &mut Message, request: &RequestSpan) {
    let name = &*name_of(request);
    if request.purpose.is_none() {
        server_span(request, name).write(of_scope);
    }
    for attempt in &request.attempts {
        client_span((request, name), attempt).write(of_scope);
    }
}

/// Returns the name that the conventions give the spans of a request.
fn name_of(request: &RequestSpan) -> Cow<'_, str> {
    let method = match &request.method {
        SpanMethod::Known(method) => method,
        SpanMethod::Other(_) => "HTTP",
    };
    match &request.template {
        Some(template) => [method, " ", template].concat().into(),
        None => method.into(),
    }
}

/// `opentelemetry.proto.trace.v1.Span`.
struct Span<'a> {
    request: &'a RequestSpan,
    span_id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: Cow<'a, str>,
    kind: u64,
    flags: u32,
    /// Nanoseconds since the Unix epoch.
    start: u64,
    end: u64,
    attributes: Attributes<'a>,
    events: &'a [(Duration, Event)],
    dropped_events: u32,
    is_error: bool,
}

impl<'a> Span<'a> {
    /// Returns a span with what those of a request have in common.
    fn new(
        (request, name): (&'a RequestSpan, &'a str),
        (start, end): (Duration, Duration),
        mut attributes: Attributes<'a>,
        error: Option<Cow<'a, str>>,
    ) -> Self {
        let is_error = error.is_some();
        if let Some(error) = error {
            attributes.text("error.type", error);
        }
        Self {
            request,
            span_id: request.context.span_id,
            parent: None,
            name: name.into(),
            kind: SERVER,
            flags: LOCAL_PARENT,
            start: request.start + start.as_nanos() as u64,
            end: request.start + end.max(start).as_nanos() as u64,
            attributes,
            events: &[],
            dropped_events: 0,
            is_error,
        }
    }

    fn write(&self, of_scope: &mut Message) {
        of_scope.long_message(2, |span| {
            span.bytes(1, self.request.context.trace_id);
            span.bytes(2, self.span_id);
            span.bytes(3, &*self.request.tracestate);
            if let Some(parent) = self.parent {
                span.bytes(4, parent);
            }
            span.bytes(5, &*self.name);
            span.number(6, self.kind);
            span.fixed64(7, self.start);
            span.fixed64(8, self.end);
            self.attributes.write(span, 9);
            for (time, event) in self.events {
                let time = self.request.start + time.as_nanos() as u64;
                span.message(11, |message| write_event(message, time, event));
            }
            span.number(12, self.dropped_events.into());
            if self.is_error {
                span.message(15, |status| status.number(3, ERROR));
            }
            span.fixed32(16, self.flags);
        });
    }

    /// Gives the span of a request the attributes and the name that its policy configures.
    fn customized(mut self) -> Self {
        let request = self.request;
        let tracing = &request.tracing;
        if let Some(parts) = &tracing.span_name {
            self.name = self.name_of(parts).into();
        }
        let copied = tracing.attributes.iter().filter_map(|(name, source)| {
            let AttributeSource::Attribute(other) = source else {
                return None;
            };
            Some((&**name, self.value(other)?.clone()))
        });
        let own = request.attributes.iter();
        let own = own.map(|(name, value)| (&**name, Value::Text((&**value).into())));
        let custom: Vec<_> = own.chain(copied).collect();
        // Keys must be unique, so that these replace others.
        let is_replaced = |key: &str| custom.iter().any(|(name, _)| key == *name);
        let attributes = &mut self.attributes.0;
        attributes.retain(|(key, _)| !is_replaced(key));
        attributes.extend(custom);
        self
    }

    fn name_of(&self, parts: &[NamePart]) -> String {
        let name: String = parts
            .iter()
            .map(|part| match part {
                NamePart::Text(text) => text.to_string(),
                NamePart::Attribute(key) => match self.value(key) {
                    // A method that nobody knows is not part of a name.
                    Some(Value::Text(text)) if text == OTHER => "HTTP".to_owned(),
                    Some(Value::Text(text)) => text.to_string(),
                    Some(Value::Number(number)) => number.to_string(),
                    None => String::new(),
                },
            })
            .collect();
        name.trim().to_owned()
    }

    fn value(&self, key: &str) -> Option<&Value<'a>> {
        let mut attributes = self.attributes.0.iter();
        attributes
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }
}

fn server_span<'a>(request: &'a RequestSpan, name: &'a str) -> Span<'a> {
    let mut attributes = Attributes(Vec::with_capacity(ATTRIBUTES));
    attributes.method(&request.method);
    attributes.text("url.path", &*request.path);
    attributes.text("url.scheme", request.peer.scheme);
    attributes.text("network.protocol.version", request.version);
    attributes.peer(["client.address", "client.port"], request.peer.client);
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
        let route = [&*route.kind, " ", &route.namespace, "/", &route.name].concat();
        attributes.text("portcullis.route", route);
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
        Some(reason) => Some(reason.into()),
        None if request.status >= 500 => Some(request.status.to_string().into()),
        None if GRPC_SERVER_ERRORS.contains(&status) => Some(grpc_name(status).into()),
        None => None,
    };
    let times = (Duration::ZERO, request.duration);
    let span = Span {
        parent: request.parent,
        flags: match request.has_parent() {
            true => REMOTE_PARENT,
            false => LOCAL_PARENT,
        },
        events: &request.events,
        dropped_events: request.dropped_events,
        ..Span::new((request, name), times, attributes, error)
    };
    span.customized()
}

fn client_span<'a>(
    (request, name): (&'a RequestSpan, &'a str),
    attempt: &'a AttemptSpan,
) -> Span<'a> {
    let mut attributes = Attributes(Vec::with_capacity(ATTRIBUTES));
    attributes.method(&request.method);
    let scheme = if attempt.is_tls {
        "https://"
    } else {
        "http://"
    };
    if let Some(endpoint) = attempt.endpoint {
        attributes.peer(["server.address", "server.port"], endpoint);
        let mut url = Vec::with_capacity(scheme.len() + ADDRESS + attempt.path.len());
        url.extend_from_slice(scheme.as_bytes());
        write_address(&mut url, endpoint);
        url.extend_from_slice(attempt.path.as_bytes());
        let url = String::from_utf8(url).unwrap_or_default();
        attributes.text("url.full", url);
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
        (Some(error), _) => Some(error.into()),
        (None, status @ 400..) => Some(status.to_string().into()),
        (None, _) => None,
    };
    let end = attempt.end.unwrap_or(request.duration);
    Span {
        span_id: attempt.span_id,
        parent: Some(request.context.span_id),
        kind: CLIENT,
        ..Span::new((request, name), (attempt.start, end), attributes, error)
    }
}

/// Writes an event of a span (`opentelemetry.proto.trace.v1.Span.Event`), which happened at `time`.
fn write_event(message: &mut Message, time: u64, event: &Event) {
    let mut attributes = Attributes::default();
    for (key, value) in &event.attributes {
        match value {
            EventValue::Word(word) => attributes.text(key, *word),
            EventValue::Name(name) => attributes.text(key, &**name),
            EventValue::Text(text) => attributes.text(key, &**text),
            EventValue::Number(number) => attributes.number(key, *number),
        }
    }
    message.fixed64(1, time);
    message.bytes(2, event.name);
    attributes.write(message, 3);
}

fn grpc_name(status: u16) -> &'static str {
    GRPC_STATUSES
        .get(usize::from(status))
        .copied()
        .unwrap_or("UNKNOWN")
}
