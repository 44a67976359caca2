//! The upstream side of the data plane: gets a response from a selected backend. Owns upstream
//! connections, the health of endpoints and the retry rules.

mod attempt;
mod attempts;
mod balance;
mod connect;
pub mod cookie;
mod exchange;
mod exchange_error;
mod health;
pub mod http1;
mod http2;
mod io;
mod pool;
mod release;
mod response;
mod slow_start;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request};
use http_body::Body;

pub use self::attempt::FailedAttempt;
pub use self::attempts::{Attempts, Resend};
pub use self::exchange_error::ExchangeError;
pub use self::io::Io;
use self::pool::Pool;
pub use self::response::{Response, ResponseBody, Upgraded};
use crate::clock::Clock;
use crate::descriptors::Descriptors;
use crate::settings::Limits;
use crate::table::UpstreamFault;

/// Why a request could not be sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The backend failed.
    #[error("{1}")]
    Backend(UpstreamFault, &'static str),
    /// The client failed while its body was forwarded.
    #[error("the request body failed")]
    RequestBody,
}

impl SendError {
    const NO_ENDPOINT: Self = Self::Backend(
        UpstreamFault::NoEndpoint,
        "the backend has no ready endpoint",
    );
    const NO_ENDPOINT_OF_RELEASE: Self = Self::Backend(
        UpstreamFault::NoEndpoint,
        "the selected release of the backend has no ready endpoint",
    );
    const NO_DESCRIPTOR: Self = Self::Backend(
        UpstreamFault::Descriptors,
        "the proxy has no file descriptor left for a connection to the backend",
    );
    const TIMEOUT: Self = Self::Backend(
        UpstreamFault::Timeout,
        "no response within the rule's backendRequest timeout",
    );
    const CLOSED: Self = Self::Backend(
        UpstreamFault::Reset,
        "the connection to the backend failed before it responded",
    );
}

impl From<ExchangeError> for SendError {
    fn from(cause: ExchangeError) -> Self {
        match cause {
            ExchangeError::RequestBody => Self::RequestBody,
            ExchangeError::Protocol(detail) => Self::Backend(UpstreamFault::Protocol, detail),
            ExchangeError::Refused => {
                Self::Backend(UpstreamFault::Refused, "the backend refused the stream")
            }
            ExchangeError::NotProcessed => Self::Backend(
                UpstreamFault::Refused,
                "the backend ended the connection before it processed the request",
            ),
            ExchangeError::Truncated => Self::Backend(
                UpstreamFault::Reset,
                "the backend closed the connection before it responded",
            ),
            ExchangeError::Reset => Self::Backend(
                UpstreamFault::Reset,
                "the backend reset the stream before it responded",
            ),
            ExchangeError::Io(_) => Self::CLOSED,
        }
    }
}

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
}

/// The upstream connections of one worker.
pub struct Upstream {
    pool: Rc<Pool>,
}

impl Upstream {
    /// Creates an empty set of connections.
    pub fn new(clock: &Rc<Clock>, limits: &Limits, descriptors: &Arc<Descriptors>) -> Self {
        Self {
            pool: Rc::new(Pool::new(clock.clone(), limits, descriptors.clone())),
        }
    }

    /// Closes connections that have been idle for too long. Called periodically.
    pub fn sweep(&self) {
        self.pool.sweep();
    }
}
