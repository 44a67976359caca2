//! From a chosen backend to its response: an endpoint, a connection, an attempt. Owns connections to backends, the
//! health of their endpoints and the rules of replaying; knows nothing of routes, filters or the client.

mod attempt;
mod balance;
mod connect;
mod exchange;
mod fault;
mod health;
pub mod http1;
mod http2;
mod io;
mod pool;
mod response;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, request};
use http_body::Body;

pub use self::attempt::{Attempts, Failed};
pub use self::fault::Fault;
pub use self::io::Io;
use self::pool::Pool;
pub use self::response::{Response, ResponseBody, Upgraded};
use crate::clock::Clock;
use crate::settings::Limits;
use crate::table::UpstreamFault;

/// What a request failed of on its way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The backend's side failed.
    #[error("{1}")]
    Backend(UpstreamFault, &'static str),
    /// The client's side failed while its body was being forwarded.
    #[error("the request body failed")]
    RequestBody,
}

impl SendError {
    const NO_ENDPOINT: Self = Self::Backend(
        UpstreamFault::NoEndpoint,
        "the backend has no ready endpoint",
    );
    const TIMEOUT: Self = Self::Backend(
        UpstreamFault::Timeout,
        "no answer within the rule's backendRequest timeout",
    );
    const CLOSED: Self = Self::Backend(
        UpstreamFault::Reset,
        "the connection to the backend failed before it answered",
    );
}

impl From<Fault> for SendError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::RequestBody => Self::RequestBody,
            Fault::Protocol(detail) => Self::Backend(UpstreamFault::Protocol, detail),
            Fault::Refused => {
                Self::Backend(UpstreamFault::Refused, "the backend refused the stream")
            }
            Fault::LeftOut => Self::Backend(
                UpstreamFault::Refused,
                "the backend ended the connection before it processed the request",
            ),
            Fault::Truncated => Self::Backend(
                UpstreamFault::Reset,
                "the backend closed the connection before it answered",
            ),
            Fault::Reset => Self::Backend(
                UpstreamFault::Reset,
                "the backend reset the stream before it answered",
            ),
            Fault::Io(_) => Self::CLOSED,
        }
    }
}

/// A request's body. It can be sent again as long as it can go back to its first byte.
pub trait Replay: Body<Data = Bytes> + Unpin {
    /// Goes back to the first byte; false when what was read is no longer kept, and then nothing changes.
    fn rewind(&mut self) -> bool;

    /// The response's head is there: the body will not be sent again.
    fn forget(&mut self);
}

/// An error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Receives a request's informational responses, 100 aside, without hop-by-hop headers.
pub type Informational<'a> = &'a dyn Fn(StatusCode, &HeaderMap);

/// A request as it is to be sent.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Method, target and end-to-end headers, `Host` included and `Expect` not.
    pub parts: &'a request::Parts,
    /// Headers that are sent besides those, none of which they have.
    pub added: &'a [(HeaderName, HeaderValue)],
    /// The protocol to upgrade to.
    pub upgrade: Option<&'a HeaderValue>,
    /// Whether an HTTP/1.1 backend is asked by `Expect: 100-continue` before the body is read.
    pub expect_continue: bool,
    /// What gets the informational responses.
    pub informational: Option<Informational<'a>>,
    /// How long one attempt may take until the head of the response.
    pub try_timeout: Option<Duration>,
}

/// What the head of a response may take.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes.
    pub bytes: usize,
    /// Headers.
    pub headers: usize,
}

/// The connections of one worker to all backends.
pub struct Upstream {
    pool: Rc<Pool>,
}

impl Upstream {
    /// No connections yet.
    pub fn new(clock: &Rc<Clock>, limits: &Limits) -> Self {
        Self {
            pool: Rc::new(Pool::new(clock.clone(), limits)),
        }
    }

    /// Closes what has been idle for too long. To be called now and then.
    pub fn sweep(&self) {
        self.pool.sweep();
    }
}
