//! Records of the access log for collectors: the line of a request, with the ids of its span.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;

use super::context::TraceContext;
use super::otlp::{AnyValue, Attributes, KeyValue, Resource, SCHEMA, Scope, Value};
use crate::ir::Tracing;

/// A record of the access log.
#[derive(Debug)]
pub struct LogRecord {
    pub(super) tracing: Arc<Tracing>,
    /// Nanoseconds since the Unix epoch: when the head of the request was read, and when it ended.
    time: u64,
    end: u64,
    span: Option<TraceContext>,
    status: u16,
    error: Option<&'static str>,
    line: Box<[u8]>,
}

impl LogRecord {
    /// The record of a request that ends now. `span` is its span, if it is sampled, and `line` its line of the access log.
    pub fn new(
        tracing: Arc<Tracing>,
        span: Option<TraceContext>,
        duration: Duration,
        (status, error): (u16, Option<&'static str>),
        line: Box<[u8]>,
    ) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = since_epoch.unwrap_or_default().as_nanos() as u64;
        Self {
            tracing,
            time: end.saturating_sub(duration.as_nanos() as u64),
            end,
            span,
            status,
            error,
            line,
        }
    }

    /// Bytes that it takes beside itself.
    pub(super) fn bytes(&self) -> usize {
        self.line.len()
    }

    fn message(&self) -> Record {
        let mut attributes = Attributes::default();
        if self.status > 0 {
            attributes.number("http.response.status_code", self.status);
        }
        if let Some(error) = self.error {
            attributes.text("error.type", error);
        }
        let severity = match self.status {
            0 | 500.. => ERROR,
            400.. => WARN,
            _ if self.error.is_some() => ERROR,
            _ => INFO,
        };
        let text = self.line.trim_ascii_end();
        Record {
            time_unix_nano: self.time,
            severity_number: severity,
            body: Some(AnyValue {
                value: Some(Value::String(String::from_utf8_lossy(text).into_owned())),
            }),
            attributes: attributes.0,
            flags: self.span.map_or(0, |_| SAMPLED),
            trace_id: self.span.map_or_else(Vec::new, |it| it.trace_id.to_vec()),
            span_id: self.span.map_or_else(Vec::new, |it| it.span_id.to_vec()),
            observed_time_unix_nano: self.end,
            event_name: "portcullis.access".to_owned(),
        }
    }
}

/// Encodes records of the same policy as an `ExportLogsServiceRequest`.
pub fn encode_logs<'a>(tracing: &Tracing, records: impl Iterator<Item = &'a LogRecord>) -> Vec<u8> {
    let request = ExportLogs {
        resource_logs: vec![ResourceLogs {
            resource: Some(Resource::of(tracing)),
            scope_logs: vec![ScopeLogs {
                scope: Some(Scope::ours()),
                log_records: records.map(LogRecord::message).collect(),
            }],
            schema_url: SCHEMA.to_owned(),
        }],
    };
    request.encode_to_vec()
}

/// `SEVERITY_NUMBER_INFO`, `_WARN` and `_ERROR`.
const INFO: i32 = 9;
const WARN: i32 = 13;
const ERROR: i32 = 17;
/// Flag of a trace that is sampled.
const SAMPLED: u32 = 1;

/// `opentelemetry.proto.collector.logs.v1.ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
struct ExportLogs {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<ScopeLogs>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<Record>,
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
    #[prost(fixed32, tag = "8")]
    flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    event_name: String,
}
