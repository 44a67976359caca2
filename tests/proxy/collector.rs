//! A collector of spans in process, which decodes what it receives.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty, stream};

/// The part of an ExportTraceServiceRequest that the tests check.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Export {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    pub(crate) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(int32, tag = "6")]
    pub(crate) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(crate) start: u64,
    #[prost(fixed64, tag = "8")]
    pub(crate) end: u64,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
    #[prost(uint32, tag = "12")]
    pub(crate) dropped_events: u32,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(fixed64, tag = "1")]
    pub(crate) time: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// The part of an ExportLogsServiceRequest that the tests check.
#[derive(Clone, PartialEq, Message)]
struct ExportLogs {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceLogs {
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeLogs {
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<LogRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LogRecord {
    #[prost(int32, tag = "2")]
    pub(crate) severity: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) body: Option<AnyValue>,
    #[prost(bytes = "vec", tag = "9")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub(crate) span_id: Vec<u8>,
}

impl LogRecord {
    /// Returns the line of the access log.
    pub(crate) fn line(&self) -> Value {
        let text = self.body.as_ref().map(|body| &*body.text);
        serde_json::from_str(text.unwrap_or_default()).expect("JSON")
    }
}

const LOGS: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "3")]
    pub(crate) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
    #[prost(int64, tag = "3")]
    pub(crate) number: i64,
}

pub(crate) const SERVER: i32 = 2;
pub(crate) const CLIENT: i32 = 3;

impl Span {
    /// Returns an attribute as text; empty if it is missing.
    pub(crate) fn attribute(&self, key: &str) -> String {
        text(&self.attributes, key)
    }

    /// Returns the events, in text without the `portcullis.` of their names: the name, and these attributes in order.
    pub(crate) fn events(&self, keys: &[&str]) -> Vec<String> {
        let event = |event: &Event| {
            assert!((self.start..=self.end).contains(&event.time), "{self:?}");
            let name = event.name.strip_prefix("portcullis.");
            let mut words = vec![name.expect("a known name").to_owned()];
            words.extend(keys.iter().map(|key| text(&event.attributes, key)));
            words.retain(|word| !word.is_empty());
            words.join(" ")
        };
        self.events.iter().map(event).collect()
    }

    pub(crate) fn is_error(&self) -> bool {
        let is_error = self.status.as_ref().is_some_and(|status| status.code == 2);
        assert_eq!(
            is_error,
            !self.attribute("error.type").is_empty(),
            "{self:?}"
        );
        is_error
    }

    pub(crate) fn traceparent(&self) -> String {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect::<String>()
        };
        format!("00-{}-{}", hex(&self.trace_id), hex(&self.span_id))
    }
}

/// Returns an attribute as text; empty if it is missing.
fn text(attributes: &[KeyValue], key: &str) -> String {
    let mut found = attributes.iter().filter(|it| it.key == key);
    let value = found.next().and_then(|it| it.value.as_ref());
    assert!(found.next().is_none(), "{key} is there twice");
    match value {
        Some(value) if value.text.is_empty() => value.number.to_string(),
        Some(value) => value.text.clone(),
        None => String::new(),
    }
}

/// What a collector has received.
pub(crate) struct Collector {
    pub(crate) origin: Origin,
    pub(crate) messages: mpsc::UnboundedReceiver<(HeaderMap, Export)>,
    logs: mpsc::UnboundedReceiver<ExportLogs>,
    /// Spans that the test has not taken, by trace.
    pub(crate) spans: BTreeMap<Vec<u8>, Vec<Span>>,
    /// Spans of requests of the proxy's own that the test has not taken.
    subrequests: VecDeque<Span>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let (log_sender, logs) = mpsc::unbounded_channel();
        let origin = Origin::new(move |request: Request<Incoming>| {
            let (sender, log_sender) = (sender.clone(), log_sender.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("whole").to_bytes();
                let is_grpc = parts.uri.path()
                    == "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                let is_log = parts.uri.path().to_lowercase().contains("logs");
                let paths = ["/v1/traces", "/v1/logs", LOGS];
                assert!(is_grpc || paths.contains(&parts.uri.path()), "{parts:?}");
                let is_grpc = is_grpc || parts.uri.path() == LOGS;
                let message = if is_grpc { &body[5..] } else { &body[..] };
                if is_log {
                    let export = ExportLogs::decode(message).expect("a message");
                    let _ = log_sender.send(export);
                } else {
                    let export = Export::decode(message).expect("a message");
                    let _ = sender.send((parts.headers, export));
                }
                if !is_grpc {
                    return Response::new(empty());
                }
                let (sender, body) = stream();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                // The channel holds one frame, and is read once the response is returned.
                tokio::spawn(async move {
                    let _ = sender.send(Frame::data(Bytes::from_static(&[0; 5]))).await;
                    let _ = sender.send(Frame::trailers(trailers)).await;
                });
                let response = Response::builder().header("content-type", "application/grpc");
                response.body(body).expect("a response")
            }
        })
        .await;
        Self {
            origin,
            messages,
            logs,
            spans: BTreeMap::new(),
            subrequests: VecDeque::new(),
        }
    }

    pub(crate) async fn message(&mut self) -> (HeaderMap, Export) {
        let message = timeout(TEST_TIMEOUT, self.messages.recv()).await;
        message.expect("in time").expect("a message")
    }

    /// Returns the records of the next message of the access log.
    pub(crate) async fn records(&mut self) -> Vec<LogRecord> {
        let export = timeout(TEST_TIMEOUT, self.logs.recv()).await;
        let export = export.expect("in time").expect("a message");
        let resources = export.resource_logs.into_iter();
        let scopes = resources.flat_map(|it| it.scope_logs);
        scopes.flat_map(|it| it.log_records).collect()
    }

    /// Receives a message.
    async fn receive(&mut self) {
        let (_, export) = self.message().await;
        let resources = export.resource_spans.into_iter();
        let scopes = resources.flat_map(|it| it.scope_spans);
        for span in scopes.flat_map(|it| it.spans) {
            match span.attribute("portcullis.purpose").is_empty() {
                true => {
                    let spans = self.spans.entry(span.trace_id.clone());
                    spans.or_default().push(span);
                }
                false => self.subrequests.push_back(span),
            }
        }
    }

    /// Returns the span of the next request of the proxy's own.
    pub(crate) async fn subrequest(&mut self) -> Span {
        loop {
            match self.subrequests.pop_front() {
                Some(span) => return span,
                None => self.receive().await,
            }
        }
    }

    /// Returns the span of the next request, and those of its attempts in order.
    pub(crate) async fn request(&mut self) -> (Span, Vec<Span>) {
        while self.spans.is_empty() {
            self.receive().await;
        }
        let (_, mut spans) = self.spans.pop_first().expect("a trace");
        spans.sort_by_key(|span| (span.kind, span.start));
        let server = spans.remove(0);
        assert_eq!(server.kind, SERVER);
        assert!(server.start <= server.end, "{server:?}");
        for (resend, attempt) in spans.iter().enumerate() {
            assert_eq!(attempt.kind, CLIENT);
            assert_eq!(attempt.parent_span_id, server.span_id);
            assert!(attempt.start >= server.start && attempt.end <= server.end);
            let count = if resend > 0 {
                resend.to_string()
            } else {
                String::new()
            };
            assert_eq!(attempt.attribute("http.request.resend_count"), count);
        }
        (server, spans)
    }
}
