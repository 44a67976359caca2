//! One exchange with a backend over HTTP/1.1 or HTTP/2. Driven by polling, without a task.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use super::exchange_error::ExchangeError;
use super::outgoing::{Informational, Replay};
use super::{http1, http2};
use crate::upstream::response_head::Head;

/// An exchange in progress. After the head it is the response body.
pub(super) enum Exchange<B> {
    Http1(Box<http1::Exchange<B>>),
    Http2(Box<http2::Exchange<B>>),
}

impl<B: Replay> Exchange<B> {
    /// Sends the request and waits for the final response head.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        informational: Option<Informational<'_>>,
    ) -> Poll<Result<Head, ExchangeError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_head(cx, informational),
            Self::Http2(exchange) => exchange.poll_head(cx, informational),
        }
    }

    /// Reports whether a retry on another connection is safe after `cause`, apart from the body.
    pub(super) fn is_replayable(&self, cause: ExchangeError) -> bool {
        match (self, cause) {
            (_, ExchangeError::RequestBody | ExchangeError::Protocol(_) | ExchangeError::Reset) => {
                false
            }
            (Self::Http1(exchange), _) => exchange.is_replayable(),
            (Self::Http2(exchange), cause) => exchange.is_replayable(cause),
        }
    }

    /// Reports whether a part of the request was sent.
    pub(super) fn has_written(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.has_written(),
            Self::Http2(_) => true,
        }
    }

    /// Reports whether a retry at another endpoint is safe after `cause`: no part of the response
    /// has arrived, and the method is safe, so that the client did not request any effect even if
    /// the backend processed the request (RFC 9110, 9.2.1).
    pub(super) fn is_retryable_elsewhere(&self, cause: ExchangeError) -> bool {
        matches!(cause, ExchangeError::Truncated | ExchangeError::Io(_))
            && match self {
                Self::Http1(exchange) => exchange.is_safe_without_response(),
                Self::Http2(exchange) => exchange.is_safe_without_response(),
            }
    }

    /// Reports whether the connection was reused.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_reused(),
            Self::Http2(exchange) => exchange.is_reused(),
        }
    }

    /// Returns the id of the HTTP/2 connection; 0 for HTTP/1.1.
    pub(super) fn connection(&self) -> u64 {
        match self {
            Self::Http1(_) => 0,
            Self::Http2(exchange) => exchange.connection(),
        }
    }

    /// Reports whether the whole request was sent.
    pub(super) fn is_request_sent(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_request_sent(),
            Self::Http2(exchange) => exchange.is_request_sent(),
        }
    }

    /// Returns the request body, before the response head.
    pub(super) fn into_body(self) -> Option<B> {
        match self {
            Self::Http1(exchange) => exchange.into_body(),
            Self::Http2(exchange) => exchange.into_body(),
        }
    }

    /// Returns the request body, rewound, if it is still kept after the response head.
    pub(super) fn take_rewound(&mut self) -> Option<B> {
        match self {
            Self::Http1(exchange) => exchange.take_rewound(),
            Self::Http2(exchange) => exchange.take_rewound(),
        }
    }

    /// Stops keeping the request body for a replay.
    pub(super) fn forget_body(&mut self) {
        match self {
            Self::Http1(exchange) => exchange.forget_body(),
            Self::Http2(exchange) => exchange.forget_body(),
        }
    }

    /// Sends as much of the rest of the request as possible, as [`Self::poll_frame`] does, and reads nothing.
    pub(super) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        match self {
            Self::Http1(exchange) => exchange.send_rest(cx),
            Self::Http2(exchange) => exchange.send_rest(cx),
        }
    }

    /// Returns the next frame of the response body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        match self {
            Self::Http1(exchange) => exchange.poll_frame(cx),
            Self::Http2(exchange) => exchange.poll_frame(cx),
        }
    }

    /// Gives back what it can of its read buffer. Returns the allocated bytes that it keeps and that do not count yet.
    pub(super) fn compact(&mut self) -> usize {
        match self {
            Self::Http1(exchange) => exchange.compact(),
            Self::Http2(_) => 0,
        }
    }

    /// Reports whether the response body is complete.
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_end_stream(),
            Self::Http2(exchange) => exchange.is_end_stream(),
        }
    }

    /// Returns the remaining bytes of the response body, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Http1(exchange) => exchange.remaining(),
            Self::Http2(exchange) => exchange.remaining(),
        }
    }
}
