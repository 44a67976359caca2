//! Records of the access log for collectors: the line of a request, with the ids of its span, or that of a connection.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::context::TraceContext;
use super::otlp::{Attributes, Value};
use super::protobuf::Message;
use crate::ir::Tracing;

/// A record of the access log.
#[derive(Debug)]
pub struct LogRecord {
    pub(super) tracing: Arc<Tracing>,
    /// Nanoseconds since the Unix epoch: when the head of the request was read or the connection began, and its end.
    time: u64,
    end: u64,
    span: Option<TraceContext>,
    /// `None` for a connection, which has no status.
    status: Option<u16>,
    error: Option<&'static str>,
    line: Box<[u8]>,
}

impl LogRecord {
    /// The record of a request or connection that ends now. `span` is its span, if it is sampled, and `line` its line of the
    /// access log.
    pub fn new(
        tracing: Arc<Tracing>,
        span: Option<TraceContext>,
        duration: Duration,
        (status, error): (Option<u16>, Option<&'static str>),
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

    /// Writes it as an item of its scope (`opentelemetry.proto.logs.v1.LogRecord`).
    pub(super) fn write(&self, of_scope: &mut Message) {
        let mut attributes = Attributes::default();
        if let Some(status) = self.status.filter(|status| *status > 0) {
            attributes.number("http.response.status_code", status);
        }
        if let Some(error) = self.error {
            attributes.text("error.type", error);
        }
        let severity = match self.status {
            Some(0 | 500..) => ERROR,
            Some(400..) => WARN,
            _ if self.error.is_some() => ERROR,
            _ => INFO,
        };
        let text = String::from_utf8_lossy(self.line.trim_ascii_end());
        of_scope.long_message(2, |record| {
            record.fixed64(1, self.time);
            record.number(2, severity);
            Value::Text(text).write(record, 5);
            attributes.write(record, 6);
            if let Some(span) = self.span {
                record.fixed32(8, SAMPLED);
                record.bytes(9, span.trace_id);
                record.bytes(10, span.span_id);
            }
            record.fixed64(11, self.end);
            record.bytes(12, "portcullis.access");
        });
    }
}

/// `SEVERITY_NUMBER_INFO`, `_WARN` and `_ERROR`.
const INFO: u64 = 9;
const WARN: u64 = 13;
const ERROR: u64 = 17;
/// Flag of a trace that is sampled.
const SAMPLED: u32 = 1;
