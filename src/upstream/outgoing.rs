//! A request to a backend.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request};
use http_body::Body;

use crate::table::Backend;

/// A request body that can be sent again while its beginning is buffered.
pub trait Replay: Body<Data = Bytes> + Unpin {
    /// Rewinds to the first byte. Returns false and changes nothing if the beginning is no longer
    /// buffered.
    fn rewind(&mut self) -> bool;

    /// Stops buffering. Called when the response head has arrived.
    fn forget(&mut self);
}

/// Error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Receives informational responses except 100, without hop-by-hop headers.
pub type Informational<'a> = &'a dyn Fn(StatusCode, &HeaderMap);

/// What a request asks for, which decides whether it may be sent again after the backend may have processed it (RFC
/// 9110, 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// It asks for no effect.
    Safe,
    /// It asks for an effect that is the same however often it is processed.
    Idempotent,
    /// It may ask for another effect each time.
    Other,
}

impl Semantics {
    /// Returns the semantics of the requests with this method.
    pub fn of(method: &Method) -> Self {
        match method {
            method if method.is_safe() => Self::Safe,
            method if method.is_idempotent() => Self::Idempotent,
            _ => Self::Other,
        }
    }
}

/// A request to send.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Method, target and end-to-end headers, including `Host` and without `Expect`.
    pub parts: &'a request::Parts,
    /// Its semantics.
    pub semantics: Semantics,
    /// Additional headers, whose names are not in `parts`.
    pub added: &'a [(HeaderName, HeaderValue)],
    /// Protocol to upgrade to.
    pub upgrade: Option<&'a HeaderValue>,
    /// Whether to send `Expect: 100-continue` to an HTTP/1.1 backend and to wait for its response
    /// before the body is read.
    pub expect_continue: bool,
    /// Receiver of informational responses.
    pub informational: Option<Informational<'a>>,
    /// Timeout of one attempt, until the response head.
    pub try_timeout: Option<Duration>,
    /// Whether to keep the beginning of the body after a failure and after the response head, so
    /// that the request can be sent again even if it may have had an effect.
    pub keeps_body: bool,
}

/// Limits of a response head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Maximum size in bytes.
    pub bytes: usize,
    /// Maximum number of headers.
    pub headers: usize,
    /// Whether the policy of the backend sets the size.
    pub is_of_policy: bool,
}

impl HeadLimits {
    /// Returns the limits of HTTP/1.1 responses of a backend, which its policy may make stricter.
    pub(super) fn of(self, backend: &Backend) -> Self {
        let settings = backend.settings.as_ref();
        let bytes = settings.and_then(|it| it.ir.connection.max_header_bytes);
        match bytes.map(|bytes| bytes as usize) {
            Some(bytes) if bytes < self.bytes => Self {
                bytes,
                is_of_policy: true,
                ..self
            },
            _ => self,
        }
    }
}
