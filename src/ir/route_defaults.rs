//! How requests are handled where their rule does not say it, after all policies on a listener and a rule are merged. Must
//! not know the policies apart from their names.

use std::time::Duration;

use serde::Serialize;

use super::ObjectRef;
use super::compression::Compression;
use super::error_page::ErrorPage;
use super::filter::HeaderChanges;

/// What policies say about the requests of a listener or a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct RouteDefaults {
    /// Maximum bytes of a request body. Others get 413.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body: Option<u64>,
    /// Maximum bytes of a request body that is read as a whole before a backend is asked. Others get 413. Without it, bodies
    /// are forwarded as they arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffered_body: Option<usize>,
    /// Timeouts that the rule does not set.
    pub timeouts: Timeouts,
    /// Time without a byte in either direction, after which an exchange or a tunnel ends; zero is no such time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle: Option<Duration>,
    /// Retries, if the rule does not set them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Changes of requests before the filters of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_headers: Option<HeaderChanges>,
    /// Changes of responses before the filters of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_headers: Option<HeaderChanges>,
    /// Compression of responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Pages in place of responses with an error status. The first that fits replaces a response.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_pages: Vec<ErrorPage>,
    /// The policies that contribute.
    pub policies: Vec<ObjectRef>,
}

/// Longer than any exchange.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl RouteDefaults {
    /// Returns the time after which an idle exchange or tunnel ends, if policies say it.
    pub fn stream_idle_timeout(&self) -> Option<Duration> {
        let timeout = self.stream_idle;
        timeout.map(|timeout| if timeout.is_zero() { ENDLESS } else { timeout })
    }
}

/// Timeouts of a rule, and of policies; `None` is not set, and zero is no timeout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Timeouts {
    /// The whole exchange with the client, retries included. When it expires, the client gets 504.
    pub request: Option<Duration>,
    /// One attempt. When it expires, the attempt fails with 504.
    pub backend_request: Option<Duration>,
}

/// Retries of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Retry {
    /// Maximum number of retries of a request; 0 is none.
    pub attempts: u32,
    /// Statuses that are retried, sorted, each once.
    pub codes: Vec<u16>,
    /// Minimum delay before the first retry.
    pub backoff: Duration,
}
