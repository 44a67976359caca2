//! Why a request could not be sent to a backend.

use crate::table::{Overloaded, UpstreamFault};
use crate::upstream::exchange_error::ExchangeError;

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
    /// The backend has no endpoint.
    pub const NO_ENDPOINT: Self = Self::Backend(
        UpstreamFault::NoEndpoint,
        "the backend has no ready endpoint",
    );
    pub(super) const NO_ENDPOINT_OF_RELEASE: Self = Self::Backend(
        UpstreamFault::NoEndpoint,
        "the selected release of the backend has no ready endpoint",
    );
    pub(super) const NO_DESCRIPTOR: Self = Self::Backend(
        UpstreamFault::Descriptors,
        "the proxy has no file descriptor left for a connection to the backend",
    );
    pub(super) const OVERLOADED: Self = Self::Backend(
        UpstreamFault::Overloaded,
        "overloaded: the backend has as many requests or connections as its policy permits",
    );
    pub(super) const ENDPOINT_FULL: Self = Self::Backend(
        UpstreamFault::Overloaded,
        "overloaded: each endpoint has as many requests or connections as the backend's policy permits",
    );
    pub(super) const TIMEOUT: Self = Self::Backend(
        UpstreamFault::Timeout,
        "no response within the rule's backendRequest timeout",
    );
    pub(super) const CLOSED: Self = Self::Backend(
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

impl From<Overloaded> for SendError {
    fn from(_: Overloaded) -> Self {
        Self::OVERLOADED
    }
}
