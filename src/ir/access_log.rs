//! What the access log has of the requests and connections through a Gateway: which of them, and which fields of their lines.
//! Must not know how lines are written.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use serde::Serialize;

use super::serialized::name;
use super::telemetry::Share;

/// The fields of lines of the access log: those of requests and those of connections.
pub const FIELDS: [&str; 28] = [
    "time",
    "client",
    "method",
    "path",
    "protocol",
    "user_agent",
    "host",
    "client_ip",
    "request_id",
    "server_name",
    "listener",
    "port",
    "status",
    "duration_ms",
    "bytes_received",
    "bytes_sent",
    "route",
    "rule",
    "backend",
    "upstream",
    "upstream_ms",
    "attempts",
    "picker",
    "picked",
    "release",
    "end",
    "error",
    "trace_id",
];

/// Those that cannot be left out, since they identify a request.
pub const IDENTITY: [&str; 2] = ["time", "request_id"];

/// What the access log has of the requests and connections through a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GatewayLog {
    /// Which of them are logged; `None` if the options of the process decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<LogFilter>,
    /// Fields that are left out.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub omit: Box<[&'static str]>,
    /// Further fields. Their names are letters, digits and `_.-`, and differ from [`FIELDS`].
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub add: Box<[AddedField]>,
}

/// The name and the source of a further field.
pub type AddedField = (Arc<str>, FieldSource);

/// Which requests are logged: those with this status or above, those with this duration or above, and a share of the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LogFilter {
    /// Status from which on all are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_status: Option<u16>,
    /// Duration from which on all are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_duration: Option<Duration>,
    /// Share of the others.
    pub sample: Share,
}

impl LogFilter {
    /// Reports whether a request is logged. `draw` returns a number that is drawn evenly from all of its type.
    pub fn admits(&self, status: u16, duration: Duration, draw: impl FnOnce() -> u32) -> bool {
        self.min_status.is_some_and(|min| status >= min)
            || self.min_duration.is_some_and(|min| duration >= min)
            || self.sample.contains(draw())
    }

    /// Reports whether a connection that is forwarded as it is has a line. It has no status, so that a minimum is reached by
    /// any failure.
    pub fn admits_connection(
        &self,
        is_error: bool,
        duration: Duration,
        draw: impl FnOnce() -> u32,
    ) -> bool {
        (is_error && self.min_status.is_some())
            || self.min_duration.is_some_and(|min| duration >= min)
            || self.sample.contains(draw())
    }
}

/// The source of the value of a further field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FieldSource {
    /// A header of the request as the client sent it.
    Header(#[serde(serialize_with = "name")] HeaderName),
    /// A header of the response as the client gets it.
    ResponseHeader(#[serde(serialize_with = "name")] HeaderName),
    /// A literal.
    Literal(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_request_needs_the_status_or_the_duration_or_luck() {
        let filter = LogFilter {
            min_status: Some(500),
            min_duration: Some(100 * MS),
            sample: Share {
                numerator: 1,
                denominator: 2,
            },
        };
        let unlucky = |status, duration| filter.admits(status, duration, || u32::MAX);
        assert!(unlucky(500, MS) && unlucky(200, 100 * MS) && unlucky(503, 101 * MS));
        assert!(!unlucky(499, 99 * MS));
        assert!(filter.admits(200, MS, || 0));
    }

    #[test]
    fn without_a_sample_no_other_request_is_logged() {
        let filter = LogFilter {
            min_status: None,
            min_duration: Some(MS),
            sample: Share::NONE,
        };
        assert!(!filter.admits(599, Duration::ZERO, || 0));
        assert!(filter.admits(200, MS, || u32::MAX));
    }
}
