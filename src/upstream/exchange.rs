//! One exchange with a backend in either protocol: what both have in common. Its reader drives it.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;

use super::fault::Fault;
use super::{Informational, Replay, http1, http2};

/// Informational responses that a request may get.
const MAX_INFORMATIONAL: u8 = 32;

/// A final response head, without hop-by-hop headers other than `Upgrade`.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// The informational responses so far.
#[derive(Default)]
pub(super) struct InformationalHeads(u8);

impl InformationalHeads {
    /// Hands one on. A 100 is the answer to an expectation and concerns the request's body only.
    pub(super) fn forward(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        forward: Option<Informational<'_>>,
    ) -> Result<(), Fault> {
        if self.0 == MAX_INFORMATIONAL {
            return Err(Fault::Protocol(
                "the backend sent too many informational responses",
            ));
        }
        self.0 += 1;
        if let Some(forward) = forward
            && status != StatusCode::CONTINUE
        {
            forward(status, headers);
        }
        Ok(())
    }

    /// Whether there was one.
    pub(super) fn any(&self) -> bool {
        self.0 > 0
    }
}

/// An exchange under way. After the head has been read it is the response's body.
pub(super) enum Exchange<B> {
    Http1(Box<http1::Exchange<B>>),
    Http2(Box<http2::Exchange<B>>),
}

impl<B: Replay> Exchange<B> {
    /// Sends the request, and waits for the final head of the response.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        informational: Option<Informational<'_>>,
    ) -> Poll<Result<Head, Fault>> {
        match self {
            Self::Http1(exchange) => exchange.poll_head(cx, informational),
            Self::Http2(exchange) => exchange.poll_head(cx, informational),
        }
    }

    /// Whether the exchange, which failed by `fault`, may be tried again on another connection, its body aside.
    pub(super) fn is_replayable(&self, fault: Fault) -> bool {
        match (self, fault) {
            (_, Fault::RequestBody | Fault::Protocol(_) | Fault::Reset) => false,
            (Self::Http1(exchange), _) => exchange.is_replayable(),
            (Self::Http2(exchange), fault) => exchange.is_replayable(fault),
        }
    }

    /// Whether the exchange, which failed by `fault`, may be tried again at another endpoint: its method is safe, so that
    /// a backend that did get the request did nothing that the client asked for (RFC 9110, 9.2.1), and none of the
    /// response has come.
    pub(super) fn is_repeatable_elsewhere(&self, fault: Fault) -> bool {
        matches!(fault, Fault::Truncated | Fault::Io(_))
            && match self {
                Self::Http1(exchange) => exchange.is_safe_and_unanswered(),
                Self::Http2(exchange) => exchange.is_safe_and_unanswered(),
            }
    }

    /// Whether the connection has carried an exchange before.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_reused(),
            Self::Http2(exchange) => exchange.is_reused(),
        }
    }

    /// The id of the HTTP/2 connection, else 0.
    pub(super) fn connection(&self) -> u64 {
        match self {
            Self::Http1(_) => 0,
            Self::Http2(exchange) => exchange.connection(),
        }
    }

    /// Whether the whole request has left.
    pub(super) fn is_request_sent(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_request_sent(),
            Self::Http2(exchange) => exchange.is_request_sent(),
        }
    }

    /// The request's body, while there is no response head.
    pub(super) fn into_body(self) -> Option<B> {
        match self {
            Self::Http1(exchange) => exchange.into_body(),
            Self::Http2(exchange) => exchange.into_body(),
        }
    }

    /// The next frame of the response's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self {
            Self::Http1(exchange) => exchange.poll_frame(cx),
            Self::Http2(exchange) => exchange.poll_frame(cx),
        }
    }

    /// Whether the response's body is whole.
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_end_stream(),
            Self::Http2(exchange) => exchange.is_end_stream(),
        }
    }

    /// Bytes of the response's body still to come, where that is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Http1(exchange) => exchange.remaining(),
            Self::Http2(exchange) => exchange.remaining(),
        }
    }
}
